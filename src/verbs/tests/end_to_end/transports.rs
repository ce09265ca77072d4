//! UC, UD and multicast.

use crate::{ALL, Net, Side, WAIT, pattern};
use std::net::IpAddr;
use urxe_verbs::*;

const QKEY: u32 = 0x1234;

/// A queue pair of another transport, beside the one that a side has.
fn qp_of(side: &Side, qp_type: QpType) -> Qp {
    side.pd.create_qp(&QpInit { qp_type, ..QpInit::new(&side.cq) }).unwrap()
}

fn datagrams(side: &Side) -> Qp {
    let qp = qp_of(side, QpType::Ud);
    qp.start_datagrams(QKEY).unwrap();
    qp
}

/// Posts a receive of `len` bytes at `at`.
fn receive(side: &Side, qp: &Qp, wr_id: u64, at: usize, len: usize) {
    qp.post_recv(&[RecvWr::new(wr_id, &[side.mr.sge(at..at + len).unwrap()])]).unwrap();
}

#[test]
fn an_unreliable_connection_carries_sends_and_writes() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (from, to) = (qp_of(&near, QpType::Uc), qp_of(&far, QpType::Uc));
    from.connect(&to.endpoint().unwrap(), ALL).unwrap();
    to.connect(&from.endpoint().unwrap(), ALL).unwrap();
    let data = pattern(10_000);
    near.mr.write_at(0, &data).unwrap();
    let sge = [near.mr.sge(..10_000).unwrap()];
    receive(&far, &to, 1, 0, 10_000);
    receive(&far, &to, 2, 0, 0);
    let there = far.mr.remote_buf(20_000..30_000).unwrap();
    from.post_send(&[
        SendWr::send_imm(1, &sge, 7).signaled(),
        SendWr::write_imm(2, &sge, there, 8).signaled(),
    ])
    .unwrap();
    let (send, write) = (far.done(), far.done());
    assert_eq!((send.wr_id, send.opcode, send.imm), (1, WcOpcode::Recv, Some(7)));
    assert_eq!((write.opcode, write.imm), (WcOpcode::RecvRdmaWithImm, Some(8)));
    assert!(far.bytes(0, 10_000) == data && far.bytes(20_000, 10_000) == data);
    assert_eq!((near.done().wr_id, near.done().wr_id), (1, 2));
}

#[test]
fn a_datagram_tells_where_it_came_from_and_can_be_answered() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (asks, answers) = (datagrams(&near), datagrams(&far));
    receive(&far, &answers, 1, 0, 100);
    receive(&near, &asks, 2, 0, 100);
    let address = far.context.device().address;
    let ah = near.pd.create_ah(&AddressVector::to(address)).unwrap();
    asks.post_send(&[SendWr::send(3, Inline(b"who?")).to(&ah, answers.qpn(), QKEY)]).unwrap();

    let wc = far.done();
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qpn), (1, 44, asks.qpn()));
    assert!(wc.grh);
    assert_eq!(far.bytes(40, 4), b"who?");
    let header: [u8; 40] = far.bytes(0, 40).try_into().unwrap();
    let grh = Grh::parse(&header).unwrap();
    assert_eq!((grh.source, grh.destination), (near.context.device().address, address));

    let back = far.pd.create_ah_from_wc(&wc, &header).unwrap();
    answers.post_send(&[SendWr::send(4, Inline(b"me")).to(&back, wc.src_qpn, QKEY)]).unwrap();
    let wc = near.done();
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qpn), (2, 42, answers.qpn()));
    assert_eq!(near.bytes(40, 2), b"me");
}

#[test]
fn requests_posted_before_destroy_are_sent() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let to = datagrams(&far);
    let ah = near.pd.create_ah(&AddressVector::to(far.context.device().address)).unwrap();
    for round in 0..50 {
        receive(&far, &to, round, 0, 100);
        let from = datagrams(&near);
        from.post_send(&[SendWr::send(1, Inline(b"last")).to(&ah, to.qpn(), QKEY)]).unwrap();
        drop(from);
        assert_eq!((far.done().wr_id, far.bytes(40, 4)), (round, b"last".to_vec()));
    }
}

#[test]
fn a_datagram_with_another_q_key_is_not_received() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (from, to) = (datagrams(&near), datagrams(&far));
    receive(&far, &to, 1, 0, 100);
    let ah = near.pd.create_ah(&AddressVector::to(far.context.device().address)).unwrap();
    let send = |text, qkey| SendWr::send(1, Inline(text)).to(&ah, to.qpn(), qkey);
    // The last one's Q_Key stands for the sender's own.
    from.post_send(&[send(b"wrong", QKEY + 1), send(b"right", 0x8000_0000)]).unwrap();
    assert_eq!((far.done().wr_id, far.bytes(40, 5)), (1, b"right".to_vec()));
}

#[test]
fn a_datagram_longer_than_a_packet_is_a_length_error_and_sends_go_on_after_it() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (from, to) = (datagrams(&near), datagrams(&far));
    receive(&far, &to, 1, 0, 100);
    let ah = near.pd.create_ah(&AddressVector::to(far.context.device().address)).unwrap();
    let sge = [near.mr.sge(..100_000).unwrap()];
    from.post_send(&[SendWr::send(1, &sge).to(&ah, to.qpn(), QKEY)]).unwrap();
    let wc = near.next();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalLength));
    assert_eq!(from.query().unwrap().attr.state, Some(QpState::Sqe));
    from.resume().unwrap();
    let fits = SendWr::send(2, Inline(b"fits")).to(&ah, to.qpn(), QKEY);
    from.post_send(&[fits.signaled()]).unwrap();
    assert_eq!(near.done().wr_id, 2);
    assert_eq!(far.done().byte_len, 44);
}

#[test]
fn a_group_reaches_all_that_are_attached_and_nobody_else() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let from = datagrams(&near);
    let members = [datagrams(&far), datagrams(&far)];
    let other = datagrams(&far);
    // A group for each run: others may test on this machine too.
    let [low, high, ..] = std::process::id().to_le_bytes();
    let group = IpAddr::from([239, 40, high, low]);
    for (wr_id, qp) in (1..).zip(&members) {
        qp.attach_mcast(group).unwrap();
        receive(&far, qp, wr_id, wr_id as usize * 100, 100);
    }
    receive(&far, &other, 3, 300, 100);
    let ah = near.pd.create_ah(&AddressVector::to(group)).unwrap();
    let send = |text| SendWr::send(1, Inline(text)).to(&ah, MULTICAST_QPN, QKEY);
    from.post_send(&[send(b"all")]).unwrap();
    let mut reached = [far.done().wr_id, far.done().wr_id];
    reached.sort_unstable();
    assert_eq!(reached, [1, 2]);
    assert_eq!((far.bytes(140, 3), far.bytes(240, 3)), (b"all".to_vec(), b"all".to_vec()));

    members[0].detach_mcast(group).unwrap();
    assert!(members[0].detach_mcast(group).is_err(), "it is not attached any more");
    receive(&far, &members[0], 4, 0, 100);
    receive(&far, &members[1], 5, 0, 100);
    from.post_send(&[send(b"one")]).unwrap();
    assert_eq!(far.done().wr_id, 5);
    assert_eq!(far.cq.wait(&mut [Wc::default()], Some(WAIT.unwrap() / 1000)).unwrap(), 0);
    assert!(near.qp.attach_mcast(group).is_err(), "RC has no groups");
}
