//! Multicast, as scripts: a datagram to a group goes to every QP that is attached to it.

mod script;

use script::*;
use std::net::IpAddr;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::Opcode;

const GROUP: &str = "239.1.2.3";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A datagram to a group.
fn to_group(payload: &[u8]) -> Pkt {
    pkt(Opcode::UD_SEND_ONLY, 7).deth(QKEY, 0x77).payload(payload).to(Qpn::MULTICAST)
}

/// Two UD QPs with a receive each, both of them in the group.
fn two_members() -> (Script, Qpn, Qpn) {
    let mut t = Script::of(QpType::Ud);
    let one = t.qpn;
    t.post_recv(1, &[t.sge(0, 100)]);
    let two = t.another(QpType::Ud, None);
    t.post_recv(2, &[t.sge(100, 100)]);
    assert_eq!(t.device.attach_mcast(one, ip(GROUP)), Ok(true));
    assert_eq!(t.device.attach_mcast(two, ip(GROUP)), Ok(false));
    (t, one, two)
}

#[test]
fn every_member_gets_its_own_copy() {
    let (mut t, one, two) = two_members();
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"hello"));
    for (wr_id, qpn, offset) in [(1, one, 0), (2, two, 100)] {
        let completion = t.expect_recv(wr_id, WcStatus::Success);
        assert_eq!((completion.qpn, completion.byte_len), (qpn, 45));
        assert_eq!((completion.src_qpn, completion.grh), (Qpn::new(0x77), Some(GrhKind::Ipv4)));
        assert_eq!(t.memory(offset + 36, 4), [239, 1, 2, 3], "the group is the destination");
        assert_eq!(t.memory(offset + 40, 5), b"hello");
    }
}

#[test]
fn each_member_checks_its_own_qkey() {
    let (mut t, one, _) = two_members();
    t.select(one);
    let qkey = Some(Qkey(9));
    t.modify(&QpAttr { state: Some(QpState::Rts), qkey, ..QpAttr::default() }).unwrap();
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"x"));
    t.expect_recv(2, WcStatus::Success);
    t.expect_no_completion();
    assert_eq!(t.device.qp_counters(one).unwrap().get(Counter::DropBadQkey), 1);
}

#[test]
fn a_member_without_a_receive_does_not_keep_it_from_the_others() {
    let (mut t, ..) = two_members();
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"x"));
    t.expect_recv(1, WcStatus::Success);
    t.expect_recv(2, WcStatus::Success);
    t.post_recv(3, &[t.sge(0, 100)]);
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"y"));
    t.expect_recv(3, WcStatus::Success);
    assert_eq!(t.counted(Counter::DropNoReceive), 1);
}

#[test]
fn a_member_that_fails_does_not_keep_it_from_the_others() {
    let mut t = Script::of(QpType::Ud);
    t.device.attach_mcast(t.qpn, ip(GROUP)).unwrap();
    let mut sge = t.sge(0, 100);
    sge.lkey.0 ^= 1;
    t.post_recv(1, &[sge]);
    let two = t.another(QpType::Ud, None);
    t.device.attach_mcast(two, ip(GROUP)).unwrap();
    t.post_recv(2, &[t.sge(0, 100)]);
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"x"));
    t.expect_recv(1, WcStatus::LocalProtection);
    t.expect_recv(2, WcStatus::Success);
}

#[test]
fn a_datagram_goes_to_the_group_that_it_was_addressed_to() {
    let (mut t, ..) = two_members();
    // Another group, and the multicast QPN at the address of one host.
    for dst in [ip("239.1.2.4"), LOCAL] {
        t.receive_along(&flow(PEER, dst), &to_group(b"x"));
    }
    assert_eq!(t.counted(Counter::DropNoMulticastMember), 2);
    t.expect_no_completion();
}

#[test]
fn a_qp_attached_twice_gets_one_copy_and_is_detached_at_once() {
    let mut t = Script::of(QpType::Ud);
    assert_eq!(t.device.attach_mcast(t.qpn, ip(GROUP)), Ok(true));
    assert_eq!(t.device.attach_mcast(t.qpn, ip(GROUP)), Ok(false));
    t.post_recv(1, &[t.sge(0, 100)]);
    t.post_recv(2, &[t.sge(0, 100)]);
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"x"));
    t.expect_recv(1, WcStatus::Success);
    t.expect_no_completion();
    assert_eq!(t.device.detach_mcast(t.qpn, ip(GROUP)), Ok(true));
}

#[test]
fn the_last_to_go_is_told_and_nothing_comes_any_more() {
    let (mut t, one, two) = two_members();
    assert_eq!(t.device.detach_mcast(one, ip(GROUP)), Ok(false));
    assert_eq!(t.device.detach_mcast(two, ip(GROUP)), Ok(true));
    assert_eq!(t.device.mcast_groups().count(), 0);
    t.receive_along(&flow(PEER, ip(GROUP)), &to_group(b"x"));
    t.expect_no_completion();
    let not_attached = McastError::NotAttached { qpn: one, group: ip(GROUP) };
    assert_eq!(t.device.detach_mcast(one, ip(GROUP)), Err(not_attached));
}

#[test]
fn a_destroyed_qp_leaves_its_groups() {
    let (mut t, one, two) = two_members();
    t.device.attach_mcast(one, ip("ff15::1")).unwrap();
    assert_eq!(t.device.mcast_groups().collect::<Vec<_>>(), [ip(GROUP), ip("ff15::1")]);
    t.device.destroy_qp(t.now, one);
    assert_eq!(t.device.mcast_groups().collect::<Vec<_>>(), [ip(GROUP)]);
    t.device.destroy_qp(t.now, two);
    assert_eq!(t.device.mcast_groups().count(), 0);
}

#[test]
fn only_ud_qps_and_only_groups_are_attached() {
    let mut t = Script::of(QpType::Rc);
    let rc = t.qpn;
    assert_eq!(t.device.attach_mcast(rc, ip(GROUP)), Err(McastError::NotUd(rc)));
    let ud = t.another(QpType::Ud, None);
    let host = ip("10.0.0.9");
    assert_eq!(t.device.attach_mcast(ud, host), Err(McastError::NotMulticast(host)));
    let nobody = Qpn::new(0x1234);
    assert_eq!(t.device.attach_mcast(nobody, ip(GROUP)), Err(McastError::NoSuchQp(nobody)));
}

#[test]
fn a_send_to_a_group_goes_to_its_address_and_the_multicast_qpn() {
    let mut t = Script::of(QpType::Ud);
    let av = AddressVector { dgid: ip(GROUP), ..usual().av.unwrap() };
    let ah = t.device.create_ah(PD, &av).unwrap();
    let (path, qpn) = (DatagramPath::Handle(ah), Qpn::MULTICAST);
    t.post_with(1, SendOp::Send(Extra::None), &[], |wqe| {
        wqe.wr.to = Some(Destination { path, qpn, qkey: QKEY });
    });
    let (flow, packet) = t.next_sent();
    assert_eq!((flow.dst, packet.headers.bth.dest_qp), (ip(GROUP), Qpn::MULTICAST));
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_packet_of_a_connection_to_a_group_is_counted() {
    let (mut t, ..) = two_members();
    let packet = pkt(Opcode::RC_SEND_ONLY, 1).to(Qpn::MULTICAST);
    t.receive_along(&flow(PEER, ip(GROUP)), &packet);
    assert_eq!(t.counted(Counter::DropWrongTransport), 2, "once for each member");
    t.expect_no_completion();
}
