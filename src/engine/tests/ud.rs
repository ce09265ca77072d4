//! UD, as scripts: datagrams to anybody, from anybody who knows the Q_Key.

mod script;

use script::*;
use std::net::IpAddr;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::{Body, Datagram, Flow, Opcode, datagram_source_port};

const SEND: SendOp = SendOp::Send(Extra::None);
const GRH: usize = 40;

fn ud() -> Script {
    Script::of(QpType::Ud)
}

fn av() -> AddressVector {
    usual().av.unwrap()
}

/// A datagram's destination: the peer's QP with the usual Q_Key.
fn to(path: DatagramPath) -> Option<Destination> {
    Some(Destination { path, qpn: Qpn::new(PEER_QPN), qkey: QKEY })
}

/// Posts a SEND of the first `len` bytes of memory along an address handle to the peer.
fn send(t: &mut Script, wr_id: u64, op: SendOp, len: u32) {
    let ah = t.device.create_ah(PD, &av()).unwrap();
    t.post_with(wr_id, op, &[t.sge(0, len)], |wqe| wqe.wr.to = to(DatagramPath::Handle(ah)));
}

// Sending.

#[test]
fn a_send_is_one_packet_and_complete_with_it() {
    let mut t = ud();
    t.fill(0, b"hello");
    let src = t.qpn.get();
    send(&mut t, 1, SEND, 5);
    send(&mut t, 2, SendOp::Send(Extra::Imm(7)), 2);
    t.expect(pkt(Opcode::UD_SEND_ONLY, 200).deth(QKEY, src).payload(b"hello"));
    t.expect(pkt(Opcode::UD_SEND_ONLY_IMM, 201).deth(QKEY, src).imm(7).payload(b"he"));
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::Send);
    t.expect_send(2, WcStatus::Success);
    assert_eq!((t.program.retired, t.device.poll_timeout()), (2, None));
}

#[test]
fn the_outer_headers_are_those_of_the_address_vector() {
    let mut t = ud();
    let source_port = datagram_source_port(t.qpn);
    let av = AddressVector { traffic_class: 0x20, hop_limit: 3, flow_label: 0x12345, ..av() };
    t.post_with(1, SEND, &[], |wqe| wqe.wr.to = to(DatagramPath::Vector(av)));
    let expected = Flow {
        src: LOCAL,
        dst: PEER,
        src_port: source_port,
        traffic_class: 0x20,
        hop_limit: 3,
        flow_label: 0x12345,
    };
    assert_eq!(t.next_sent().0, expected);
}

#[test]
fn inline_data_and_the_solicited_bit_are_sent() {
    let mut t = ud();
    let ah = t.device.create_ah(PD, &av()).unwrap();
    t.post_with(1, SEND, &[], |wqe| {
        wqe.wr.to = to(DatagramPath::Handle(ah));
        wqe.inline = Some(b"inline".to_vec());
        wqe.wr.solicited = true;
    });
    let (_, sent) = t.next_sent();
    assert_eq!((&sent.payload[..], sent.headers.bth.solicited), (&b"inline"[..], true));
}

#[test]
fn a_controlled_qkey_stands_for_that_of_the_qp() {
    let mut t = ud();
    for (qkey, sent) in [(0x8000_0000, QKEY), (0x7fff_ffff, Qkey(0x7fff_ffff))] {
        let path = DatagramPath::Vector(av());
        t.post_with(1, SEND, &[], |wqe| {
            wqe.wr.to = Some(Destination { path, qpn: Qpn::new(PEER_QPN), qkey: Qkey(qkey) });
        });
        let body = t.next_sent().1.headers.body;
        assert!(matches!(body, Body::Ud(Datagram { deth, .. }) if deth.qkey == sent));
    }
}

#[test]
fn a_datagram_may_be_as_long_as_the_link_allows_and_no_longer() {
    let mut t = ud();
    send(&mut t, 1, SEND, 1024);
    assert_eq!(t.next_sent().1.payload.len(), 1024);
    send(&mut t, 2, SEND, 1025);
    t.expect_nothing();
    t.expect_send(1, WcStatus::Success);
    let completion = t.expect_send(2, WcStatus::LocalLength);
    assert_eq!(completion.vendor_err, Cause::DatagramTooLong as u32);
}

#[test]
fn a_larger_link_mtu_is_followed_at_once() {
    let mut t = ud();
    t.device.set_active_mtu(urxe_types::PathMtu::Mtu4096);
    send(&mut t, 1, SEND, 4096);
    assert_eq!(t.next_sent().1.payload.len(), 4096);
}

/// A SEND that must fail on our own side.
fn refused(t: &mut Script, op: SendOp, to: Option<Destination>, cause: Cause) {
    t.post_with(1, op, &[], |wqe| wqe.wr.to = to);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::LocalQpOperation);
    assert_eq!(Cause::from_number(completion.vendor_err), Some(cause));
    assert_eq!(t.state(), QpState::Sqe);
}

#[test]
fn an_address_handle_of_another_protection_domain_is_refused() {
    let mut t = ud();
    let ah = t.device.create_ah(PdId(2), &av()).unwrap();
    refused(&mut t, SEND, to(DatagramPath::Handle(ah)), Cause::ForeignAddressHandle);
}

#[test]
fn an_address_handle_that_was_destroyed_is_refused() {
    let mut t = ud();
    let ah = t.device.create_ah(PD, &av()).unwrap();
    assert!(t.device.destroy_ah(ah));
    assert!(!t.device.destroy_ah(ah));
    refused(&mut t, SEND, to(DatagramPath::Handle(ah)), Cause::NoSuchAddressHandle);
}

#[test]
fn a_path_whose_gid_has_gone_is_refused() {
    let mut t = ud();
    let ah = t.device.create_ah(PD, &av()).unwrap();
    t.device.set_gid(0, None);
    refused(&mut t, SEND, to(DatagramPath::Handle(ah)), Cause::NoPath);
}

#[test]
fn a_send_without_a_destination_is_refused() {
    refused(&mut ud(), SEND, None, Cause::MalformedEntry);
}

#[test]
fn a_write_is_refused() {
    let op = SendOp::Write { remote_addr: 0, rkey: urxe_types::Rkey(1), imm: None };
    refused(&mut ud(), op, to(DatagramPath::Vector(av())), Cause::NotOfThisTransport);
}

#[test]
fn memory_gone_while_sending_fails_the_work_request() {
    let mut t = ud();
    send(&mut t, 1, SEND, 8);
    t.program.unmapped = true;
    t.expect_nothing();
    t.expect_send(1, WcStatus::LocalProtection);
}

#[test]
fn an_address_vector_that_leads_nowhere_makes_no_address_handle() {
    let mut t = ud();
    let mut refuse = |dgid: &str, sgid_index| {
        let av = AddressVector { dgid: dgid.parse().unwrap(), sgid_index, ..av() };
        t.device.create_ah(PD, &av).unwrap_err().to_string()
    };
    assert!(refuse("10.0.0.2", 7).contains("sgid_index 7"));
    assert!(refuse("fe80::1", 0).contains("another address family"));
    assert!(refuse("0.0.0.0", 0).contains("dgid 0.0.0.0"));
    assert!(refuse("255.255.255.255", 0).contains("dgid 255.255.255.255"));
}

// Receiving.

/// A datagram of the peer to this script's QP.
fn datagram_to(t: &Script, payload: &[u8]) -> Pkt {
    pkt(Opcode::UD_SEND_ONLY, 5).deth(QKEY, 0x77).payload(payload).to(t.qpn)
}

#[test]
fn a_datagram_lies_behind_forty_bytes_with_the_ipv4_header_in_the_last_twenty() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 10), t.sge(100, 100)]);
    let flow = Flow { traffic_class: 0x20, hop_limit: 9, ..flow(PEER, LOCAL) };
    t.receive_along(&flow, &datagram_to(&t, b"hello"));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::Recv, 45));
    assert_eq!((completion.src_qpn, completion.grh), (Qpn::new(0x77), Some(GrhKind::Ipv4)));
    let stored = [t.memory(0, 10), t.memory(100, 35)].concat();
    assert_eq!(stored[..20], [0; 20]);
    let header = &stored[20..GRH];
    // BTH 12, DETH 8, payload and pad 8, ICRC 4 behind 28 bytes of IP and UDP header.
    assert_eq!((header[0], header[1], &header[2..4]), (0x45, 0x20, &[0, 60][..]));
    assert_eq!((header[8], header[9]), (9, 17));
    assert_eq!(header[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
    let sum: u32 = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum is valid");
    assert_eq!(&stored[GRH..], b"hello");
}

#[test]
fn a_datagram_over_ipv6_lies_behind_its_ipv6_header() {
    let mut t = ud();
    let (src, dst): (IpAddr, IpAddr) = ("fe80::2".parse().unwrap(), "fe80::1".parse().unwrap());
    t.device.set_gid(1, Some(dst));
    t.post_recv(1, &[t.sge(0, 100)]);
    let flow = Flow { traffic_class: 0x12, hop_limit: 9, flow_label: 0x34567, ..flow(src, dst) };
    t.receive_along(&flow, &datagram_to(&t, b"1234"));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.byte_len, completion.grh), (44, Some(GrhKind::Ipv6)));
    assert_eq!(t.memory(0, 8), [0x61, 0x23, 0x45, 0x67, 0, 36, 17, 9]);
    assert_eq!((t.memory(8, 2), t.memory(23, 1)), (&[0xfe, 0x80][..], &[2][..]));
    assert_eq!((t.memory(24, 2), t.memory(39, 1)), (&[0xfe, 0x80][..], &[1][..]));
    assert_eq!(t.memory(40, 4), b"1234");
}

#[test]
fn immediate_data_and_the_solicited_bit_are_told() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 40)]);
    let packet = pkt(Opcode::UD_SEND_ONLY_IMM, 5).deth(QKEY, 0x77).imm(0xa1b2).solicited();
    t.receive(&[packet]);
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.extra, completion.solicited), (Extra::Imm(0xa1b2), true));
    assert_eq!(completion.byte_len, 40);
}

#[test]
fn any_host_may_send_in_any_order_of_psns() {
    let mut t = ud();
    for (psn, src) in [(9, "10.0.0.2"), (3, "10.0.0.3"), (3, "10.9.9.9")] {
        t.post_recv(1, &[t.sge(0, 100)]);
        let packet = pkt(Opcode::UD_SEND_ONLY, psn).deth(QKEY, 1).to(t.qpn);
        t.receive_from(src.parse().unwrap(), &packet);
        t.expect_recv(1, WcStatus::Success);
    }
    t.expect_nothing();
}

/// A datagram that must be dropped under this counter. The receive that was posted before it, if
/// one was, is still there for the next.
fn dropped(t: &mut Script, counter: Counter, packet: Pkt) {
    t.receive_along(&flow(PEER, LOCAL), &packet);
    assert_eq!(t.counted(counter), 1);
    assert_eq!(t.device.qp_counters(t.qpn).unwrap().get(counter), 1, "also counted for the QP");
    t.expect_nothing();
    t.expect_no_completion();
    t.post_recv(99, &[t.sge(0, 100)]);
    t.receive_along(&flow(PEER, LOCAL), &datagram_to(t, b"next"));
    assert_eq!(t.completion().1.byte_len, 44);
}

#[test]
fn a_wrong_qkey_is_counted() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 100)]);
    let packet = datagram_to(&t, b"x").deth(Qkey(QKEY.0 ^ 1), 0x77);
    dropped(&mut t, Counter::DropBadQkey, packet);
}

#[test]
fn a_changed_qkey_holds_at_once() {
    let mut t = ud();
    let qkey = Some(Qkey(0x2222));
    t.modify(&QpAttr { state: Some(QpState::Rts), qkey, ..QpAttr::default() }).unwrap();
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive(&[datagram_to(&t, b"x")]);
    assert_eq!(t.counted(Counter::DropBadQkey), 1);
    t.receive(&[datagram_to(&t, b"x").deth(Qkey(0x2222), 1)]);
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn a_wrong_pkey_is_counted() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 100)]);
    let mut packet = datagram_to(&t, b"x");
    packet.headers.bth.pkey = Pkey(0x8001);
    t.receive(&[packet]);
    assert_eq!(t.counted(Counter::DropBadPkey), 1);
    t.expect_no_completion();
}

#[test]
fn a_datagram_without_a_receive_is_counted() {
    let mut t = ud();
    let packet = datagram_to(&t, b"x");
    dropped(&mut t, Counter::DropNoReceive, packet);
}

#[test]
fn a_datagram_longer_than_its_receive_is_dropped_and_the_receive_stays() {
    let mut t = ud();
    // Room for the datagram, but not for the 40 bytes in front of it.
    t.post_recv(1, &[t.sge(0, 44)]);
    let packet = datagram_to(&t, b"hello");
    dropped(&mut t, Counter::DropReceiveTooShort, packet);
    assert!(t.program.memory[44..].iter().all(|&byte| byte == 0));
    t.receive(&[datagram_to(&t, b"")]);
    t.expect_recv(99, WcStatus::Success);
}

#[test]
fn nothing_of_a_datagram_that_does_not_fit_is_put_anywhere() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 44)]);
    t.receive(&[datagram_to(&t, b"hello")]);
    assert!(t.program.memory.iter().all(|&byte| byte == 0));
}

#[test]
fn a_datagram_longer_than_the_link_carries_is_counted() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 2000)]);
    let packet = datagram_to(&t, &[1; 1025]);
    dropped(&mut t, Counter::DropDatagramTooLong, packet);
}

#[test]
fn a_packet_of_a_connection_is_counted() {
    let mut t = ud();
    let packet = pkt(Opcode::RC_SEND_ONLY, 5).to(t.qpn);
    dropped(&mut t, Counter::DropWrongTransport, packet);
}

#[test]
fn a_datagram_to_a_connected_qp_is_counted() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut t = Script::of(qp_type);
        t.receive(&[datagram_to(&t, b"x")]);
        assert_eq!(t.counted(Counter::DropWrongTransport), 1);
    }
}

#[test]
fn a_datagram_to_one_qp_of_a_multicast_address_is_counted() {
    let mut t = ud();
    t.receive_along(&flow(PEER, "224.0.0.9".parse().unwrap()), &datagram_to(&t, b"x"));
    assert_eq!(t.counted(Counter::DropWrongAddress), 1);
}

#[test]
fn nothing_is_received_before_rtr_and_in_err() {
    let mut t = Script::in_reset_of(QpType::Ud);
    t.enter_init(&usual_ud()).unwrap();
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive(&[datagram_to(&t, b"x")]);
    t.enter_rtr(&usual_ud()).unwrap();
    t.receive(&[datagram_to(&t, b"x")]);
    t.expect_recv(1, WcStatus::Success);
    t.enter(QpState::Err);
    t.receive(&[datagram_to(&t, b"x")]);
    assert_eq!(t.counted(Counter::DropQpNotReady), 2);
    assert_eq!(t.program.events, [], "a datagram establishes no communication");
}

#[test]
fn a_receive_with_a_bad_lkey_fails_and_ends_the_qp() {
    let mut t = ud();
    let mut sge = t.sge(0, 100);
    sge.lkey.0 ^= 1;
    t.post_recv(1, &[sge]);
    t.post_recv(2, &[t.sge(0, 100)]);
    t.receive(&[datagram_to(&t, b"x")]);
    let completion = t.expect_recv(1, WcStatus::LocalProtection);
    assert_eq!(completion.vendor_err, Cause::LocalKey as u32);
    t.expect_recv(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_receive_is_checked_only_as_far_as_the_grh_and_the_message_reach() {
    let mut t = ud();
    let mut bad = t.sge(0, 8);
    bad.lkey.0 ^= 1;
    t.post_recv(1, &[t.sge(0, GRH as u32), bad]);
    t.post_recv(2, &[t.sge(0, GRH as u32 + 1), bad]);
    t.post_recv(3, &[t.sge(0, GRH as u32 - 1), bad]);
    t.receive(&[datagram_to(&t, b""), datagram_to(&t, b"x")]);
    t.expect_recv(1, WcStatus::Success);
    t.expect_recv(2, WcStatus::Success);
    assert_eq!(t.memory(GRH, 1), b"x");
    t.receive(&[datagram_to(&t, b"")]);
    t.expect_recv(3, WcStatus::LocalProtection);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_congestion_mark_is_counted_and_the_datagram_taken() {
    let mut t = ud();
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive_along(&Flow { traffic_class: 3, ..flow(PEER, LOCAL) }, &datagram_to(&t, b"x"));
    t.expect_recv(1, WcStatus::Success);
    assert_eq!(t.counted(Counter::EcnMarked), 1);
}
