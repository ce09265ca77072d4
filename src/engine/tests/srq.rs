//! Shared receive queues, as scripts.

mod script;

use script::*;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::{NakCode, Opcode};

const QUEUE: QueueId = QueueId(1000);

/// A device with an SRQ, and a QP of this type in RTS that receives from it.
fn with_srq(qp_type: QpType) -> (Script, SrqId) {
    let mut t = Script::in_reset();
    let srq = t.device.create_srq(SrqInit { pd: PD, queue: QUEUE, limit: 0 }).unwrap();
    t.another(qp_type, Some(srq));
    (t, srq)
}

fn send(psn: u32) -> Pkt {
    pkt(Opcode::RC_SEND_ONLY, psn).payload(b"x").ack_req()
}

#[test]
fn qps_of_every_transport_take_from_one_queue_in_the_order_of_their_packets() {
    let (mut t, srq) = with_srq(QpType::Rc);
    let rc = t.qpn;
    let uc = t.another(QpType::Uc, Some(srq));
    let ud = t.another(QpType::Ud, Some(srq));
    for wr_id in 1..=4 {
        t.post_recv(wr_id, &[t.sge(0, 100)]);
    }
    t.receive(&[pkt(Opcode::UD_SEND_ONLY, 0).deth(QKEY, 1)]);
    assert_eq!(t.expect_recv(1, WcStatus::Success).qpn, ud);
    t.select(rc);
    t.receive(&[send(100)]);
    assert_eq!(t.expect_recv(2, WcStatus::Success).qpn, rc);
    t.select(uc);
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 100)]);
    assert_eq!(t.expect_recv(3, WcStatus::Success).qpn, uc);
    t.select(rc);
    t.receive(&[send(101)]);
    assert_eq!(t.expect_recv(4, WcStatus::Success).qpn, rc);
}

#[test]
fn an_empty_srq_is_a_receiver_not_ready() {
    let (mut t, _) = with_srq(QpType::Rc);
    t.receive(&[send(100)]);
    t.expect(rnr(12, 100, 0));
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive(&[send(100)]);
    t.expect(ack(100, 1));
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn its_receives_are_checked_against_its_own_protection_domain() {
    let mut t = Script::in_reset();
    let access = Access::LOCAL_WRITE;
    let other = PdId(7);
    let spec = MrSpec { pd: other, addr: VA, length: 4096, access, region: RegionId(0) };
    let key_of_srq = t.device.reg_mr(spec).unwrap().lkey.0;
    let key_of_qp = t.key;
    let srq = t.device.create_srq(SrqInit { pd: other, queue: QUEUE, limit: 0 }).unwrap();
    t.another(QpType::Rc, Some(srq));
    for (psn, key) in [(100, key_of_srq), (101, key_of_qp)] {
        let mut sge = t.sge(0, 8);
        sge.lkey.0 = key;
        t.post_recv(psn.into(), &[sge]);
        t.receive(&[send(psn)]);
    }
    t.expect_recv(100, WcStatus::Success);
    let completion = t.expect_recv(101, WcStatus::LocalProtection);
    assert_eq!(completion.vendor_err, Cause::LocalKey as u32);
}

#[test]
fn its_receives_are_checked_only_as_far_as_the_message_reaches() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut t, _) = with_srq(qp_type);
        let mut bad = t.sge(0, 8);
        bad.lkey.0 ^= 1;
        t.post_recv(1, &[bad]);
        t.post_recv(2, &[t.sge(0, 1), bad]);
        let opcode = match qp_type {
            QpType::Rc => Opcode::RC_SEND_ONLY,
            _ => Opcode::UC_SEND_ONLY,
        };
        t.receive(&[pkt(opcode, 100), pkt(opcode, 101).payload(b"x")]);
        t.expect_recv(1, WcStatus::Success);
        t.expect_recv(2, WcStatus::Success);
    }
}

// The limit.

#[test]
fn the_limit_event_comes_once_when_fewer_are_posted_than_it_says() {
    let (mut t, srq) = with_srq(QpType::Rc);
    for wr_id in 1..=4 {
        t.post_recv(wr_id, &[t.sge(0, 100)]);
    }
    t.device.modify_srq(&mut t.program, srq, 3).unwrap();
    assert_eq!(t.device.query_srq(srq).unwrap().limit, 3);
    t.receive(&[send(100)]);
    assert_eq!(t.program.events, [], "three are as many as the limit");
    t.receive(&[send(101), send(102)]);
    assert_eq!(t.program.events, [AsyncEvent::SrqLimit(srq)]);
    assert_eq!(t.device.query_srq(srq).unwrap().limit, 0, "the event disarms it");
}

#[test]
fn a_limit_above_what_is_posted_fires_at_once_and_a_limit_of_zero_never() {
    let (mut t, srq) = with_srq(QpType::Rc);
    t.post_recv(1, &[t.sge(0, 100)]);
    t.device.modify_srq(&mut t.program, srq, 1).unwrap();
    assert_eq!(t.program.events, []);
    t.device.modify_srq(&mut t.program, srq, 2).unwrap();
    assert_eq!(t.program.events, [AsyncEvent::SrqLimit(srq)]);
    t.device.modify_srq(&mut t.program, srq, 0).unwrap();
    t.receive(&[send(100)]);
    assert_eq!(t.program.events.len(), 1);
}

#[test]
fn a_limit_may_be_armed_from_the_beginning() {
    let mut t = Script::in_reset();
    let srq = t.device.create_srq(SrqInit { pd: PD, queue: QUEUE, limit: 2 }).unwrap();
    t.another(QpType::Rc, Some(srq));
    for wr_id in 1..=3 {
        t.post_recv(wr_id, &[t.sge(0, 100)]);
    }
    t.receive(&[send(100)]);
    assert_eq!(t.program.events, []);
    t.receive(&[send(101)]);
    assert_eq!(t.program.events, [AsyncEvent::SrqLimit(srq)]);
}

// A QP that fails.

#[test]
fn a_qp_going_to_err_says_once_that_it_took_its_last_and_leaves_the_queue_alone() {
    let (mut t, srq) = with_srq(QpType::Rc);
    for wr_id in 1..=2 {
        t.post_recv(wr_id, &[t.sge(0, 1000)]);
    }
    t.receive(&[pkt(Opcode::RC_SEND_FIRST, 100).payload(&[1; MTU])]);
    t.enter(QpState::Err);
    t.expect_recv(1, WcStatus::WrFlush);
    t.expect_no_completion();
    assert_eq!(t.program.events, [AsyncEvent::LastWqeReached(t.qpn)]);
    t.enter(QpState::Err);
    t.device.ring_doorbell(t.qpn);
    t.expect_nothing();
    assert_eq!(t.program.events.len(), 1);
    t.expect_no_completion();
    t.another(QpType::Rc, Some(srq));
    t.receive(&[send(100)]);
    t.expect_recv(2, WcStatus::Success);
}

#[test]
fn a_qp_that_fails_by_itself_says_so_too() {
    let (mut t, _) = with_srq(QpType::Rc);
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, 0xbad, 1).payload(b"x")]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    let expected = [AsyncEvent::QpAccessError(t.qpn), AsyncEvent::LastWqeReached(t.qpn)];
    assert_eq!(t.program.events, expected);
}

#[test]
fn a_qp_in_sqe_still_takes_receives_and_says_nothing_of_a_last_one() {
    let (mut t, _) = with_srq(QpType::Uc);
    t.post(1, SendOp::Send(Extra::None), &[Sge { addr: 0, ..t.sge(0, 1) }]);
    t.expect_nothing();
    t.expect_send(1, WcStatus::LocalProtection);
    assert_eq!((t.state(), &t.program.events[..]), (QpState::Sqe, &[][..]));
    t.enter(QpState::Err);
    assert_eq!(t.program.events, [AsyncEvent::LastWqeReached(t.qpn)]);
}

#[test]
fn a_qp_with_a_queue_of_its_own_has_no_last_receive() {
    let mut t = Script::new();
    t.enter(QpState::Err);
    assert_eq!(t.program.events, []);
}

#[test]
fn a_failure_of_one_qp_does_not_touch_the_others() {
    let (mut t, srq) = with_srq(QpType::Rc);
    let healthy = t.qpn;
    t.another(QpType::Rc, Some(srq));
    t.post_recv(1, &[t.sge(0, 1)]);
    t.post_recv(2, &[t.sge(0, 100)]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).payload(b"too long")]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
    t.expect_recv(1, WcStatus::LocalLength);
    t.select(healthy);
    t.receive(&[send(100)]);
    t.expect(ack(100, 1));
    t.expect_recv(2, WcStatus::Success);
}

#[test]
fn a_ring_that_cannot_be_read_is_told_once_and_ends_the_qps_that_need_it() {
    let (mut t, srq) = with_srq(QpType::Rc);
    let one = t.qpn;
    let two = t.another(QpType::Rc, Some(srq));
    let idle = t.another(QpType::Rc, Some(srq));
    t.program.broken.insert(QUEUE);
    for qpn in [one, two] {
        t.select(qpn);
        t.receive(&[send(100)]);
        t.expect(nak(NakCode::RemoteOperational, 100, 0));
        assert_eq!(t.state(), QpState::Err);
    }
    let expected = [
        AsyncEvent::SrqError(srq),
        AsyncEvent::QpFatal(one),
        AsyncEvent::LastWqeReached(one),
        AsyncEvent::QpFatal(two),
        AsyncEvent::LastWqeReached(two),
    ];
    assert_eq!(t.program.events, expected);
    t.select(idle);
    assert_eq!(t.state(), QpState::Rts);
}

// Its life.

#[test]
fn an_srq_in_use_is_not_destroyed() {
    let (mut t, srq) = with_srq(QpType::Rc);
    assert_eq!(t.device.destroy_srq(srq), Err(DestroySrqError::InUse { srq, qps: 1 }));
    t.device.destroy_qp(t.now, t.qpn);
    assert_eq!(t.device.destroy_srq(srq), Ok(()));
    assert_eq!(t.device.destroy_srq(srq), Err(DestroySrqError::NoSuchSrq(srq)));
    assert_eq!(t.device.query_srq(srq), None);
    let gone = t.device.modify_srq(&mut t.program, srq, 1);
    assert_eq!(gone, Err(ModifySrqError::NoSuchSrq(srq)));
}

#[test]
fn a_reset_qp_still_receives_from_its_srq() {
    let (mut t, srq) = with_srq(QpType::Rc);
    t.enter(QpState::Reset);
    assert_eq!(t.device.query_srq(srq).unwrap().qps, 1);
    t.connect(&usual());
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive(&[send(100)]);
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn a_qp_cannot_be_made_with_an_srq_that_is_not_there() {
    let mut t = Script::in_reset();
    let mut init = t.device.query_qp(t.qpn).unwrap().init;
    init.recv = RecvSource::Shared(SrqId(5));
    assert_eq!(t.device.create_qp(init), Err(CreateQpError::NoSuchSrq(SrqId(5))));
}
