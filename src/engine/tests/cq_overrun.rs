//! A CQ without room, as scripts: it is told once, and every QP that uses it stops.

mod script;

use script::*;
use urxe_engine::{AsyncEvent, Cause, Counter, CqId, QpInit};
use urxe_types::{Extra, QpState, QpType, Qpn, SendOp, WcStatus};
use urxe_wire::Opcode;
use urxe_wire::batch::{TxBatch, TxLimits};

const SEND: SendOp = SendOp::Send(Extra::None);

/// Another QP in RTS, with CQs of its choice.
fn another(t: &mut Script, send_cq: CqId, recv_cq: CqId) -> Qpn {
    let qpn = t.create_with(|init| QpInit { send_cq, recv_cq, ..init });
    t.connect(&usual());
    qpn
}

/// Completes a send where there is no room for it, and lets all QPs have their turns.
fn overrun(t: &mut Script) {
    t.program.full.insert(SCQ);
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_nothing();
}

fn state(t: &Script, qpn: Qpn) -> QpState {
    t.device.query_qp(qpn).unwrap().state
}

fn told(t: &Script, event: AsyncEvent) -> usize {
    t.program.events.iter().filter(|&&told| told == event).count()
}

#[test]
fn an_overrun_is_told_of_the_cq_and_of_the_qp_once() {
    let mut t = Script::new();
    for wr_id in 2..=4 {
        t.post_recv(wr_id, &[]);
    }
    overrun(&mut t);
    assert_eq!(t.state(), QpState::Err);
    t.post(5, SEND, &[]);
    t.expect_nothing();
    assert_eq!(t.program.events, [AsyncEvent::CqError(SCQ), AsyncEvent::QpFatal(t.qpn)]);
    assert_eq!(t.counted(Counter::CqOverruns), 2, "the send, and the flushed one");
}

#[test]
fn flushed_requests_of_the_other_cq_say_why() {
    let mut t = Script::new();
    t.post_recv(2, &[]);
    t.post_recv(3, &[]);
    overrun(&mut t);
    for wr_id in [2, 3] {
        let completion = t.expect_recv(wr_id, WcStatus::WrFlush);
        assert_eq!(completion.vendor_err, Cause::CqOverrun as u32, "the only place that says why");
    }
}

#[test]
fn every_qp_that_uses_the_cq_goes_to_err_with_its_own_event() {
    let mut t = Script::new();
    let first = t.qpn;
    let as_send_cq = another(&mut t, SCQ, CqId(7));
    t.post_recv(20, &[]);
    let as_recv_cq = another(&mut t, CqId(8), SCQ);
    t.post(30, SEND, &[]);
    t.sent();
    let neither = another(&mut t, CqId(7), CqId(8));
    t.select(first);
    overrun(&mut t);
    for qpn in [first, as_send_cq, as_recv_cq] {
        assert_eq!(state(&t, qpn), QpState::Err);
        assert_eq!(told(&t, AsyncEvent::QpFatal(qpn)), 1);
    }
    assert_eq!(state(&t, neither), QpState::Rts);
    assert_eq!(told(&t, AsyncEvent::QpFatal(neither)), 0);
    assert_eq!(told(&t, AsyncEvent::CqError(SCQ)), 1);
    let mut flushed: Vec<_> = t.program.completions.iter().map(|(cq, c)| (cq.0, c.wr_id)).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [(7, 20), (8, 30)]);
}

#[test]
fn the_cq_takes_no_more_even_if_there_is_room_again() {
    let mut t = Script::new();
    overrun(&mut t);
    t.program.full.clear();
    t.post(2, SEND, &[]);
    t.expect_nothing();
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::CqOverruns), 2);
    assert_eq!(t.program.retired, 2, "the places in the send queue are free");
}

#[test]
fn earlier_completions_stay() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.program.full.insert(SCQ);
    t.post(2, SEND, &[]);
    t.sent();
    t.receive(&[ack(201, 2)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_no_completion();
}

#[test]
fn a_message_whose_completion_is_lost_is_not_acknowledged() {
    let mut t = Script::new();
    t.program.full.insert(RCQ);
    t.post_recv(1, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).ack_req()]);
    t.expect_nothing();
    assert_eq!(t.program.events, [AsyncEvent::CqError(RCQ), AsyncEvent::QpFatal(t.qpn)]);
}

#[test]
fn a_flush_that_fills_another_cq_stops_the_qps_of_that_one_too() {
    let mut t = Script::new();
    let first = t.qpn;
    let (cqs, qps): (Vec<_>, Vec<_>) = (10..40)
        .map(|number| {
            // Each QP shares one CQ with the one before.
            let qpn = another(&mut t, CqId(number), CqId(number + 1));
            t.post_recv(u64::from(number), &[]);
            t.program.full.insert(CqId(number + 1));
            (CqId(number + 1), qpn)
        })
        .unzip();
    let last = another(&mut t, CqId(10), CqId(50));
    t.select(first);
    overrun(&mut t);
    assert!(qps.iter().all(|&qpn| state(&t, qpn) == QpState::Rts), "it is none of theirs");
    t.program.full.insert(CqId(10));
    t.select(last);
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_nothing();
    for (cq, qpn) in cqs.into_iter().zip(qps) {
        assert_eq!(state(&t, qpn), QpState::Err);
        assert_eq!(told(&t, AsyncEvent::QpFatal(qpn)), 1);
        assert_eq!(told(&t, AsyncEvent::CqError(cq)), 1);
    }
}

#[test]
fn a_qp_in_reset_is_left_alone_and_fails_when_it_completes_something() {
    let mut t = Script::new();
    let first = t.qpn;
    let unused = t.create(QpType::Rc, None);
    t.select(first);
    overrun(&mut t);
    assert_eq!(state(&t, unused), QpState::Reset);
    t.select(unused);
    t.connect(&usual());
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(told(&t, AsyncEvent::QpFatal(unused)), 1);
    assert_eq!(told(&t, AsyncEvent::CqError(SCQ)), 1);
}

#[test]
fn a_qp_in_err_is_told_when_it_loses_a_completion() {
    let mut t = Script::new();
    let first = t.qpn;
    let failed = t.another(QpType::Rc, None);
    t.enter(QpState::Err);
    t.select(first);
    overrun(&mut t);
    assert_eq!(told(&t, AsyncEvent::QpFatal(failed)), 0, "it has lost nothing");
    t.select(failed);
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[]);
    t.expect_nothing();
    assert_eq!(told(&t, AsyncEvent::QpFatal(failed)), 1);
}

#[test]
fn a_new_cq_of_the_same_number_begins_anew() {
    let mut t = Script::new();
    overrun(&mut t);
    t.device.destroy_qp(t.now, t.qpn);
    t.device.release_cq(SCQ);
    t.program.full.clear();
    t.another(QpType::Rc, None);
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.program.full.insert(SCQ);
    t.post(2, SEND, &[]);
    t.sent();
    t.receive(&[ack(201, 2)]);
    assert_eq!(told(&t, AsyncEvent::CqError(SCQ)), 2);
}

#[test]
fn the_qps_of_a_failed_cq_are_flushed_each_in_its_turn() {
    let mut t = Script::new();
    let first = t.qpn;
    for wr_id in 0..100 {
        another(&mut t, SCQ, CqId(7));
        t.post_recv(wr_id, &[]);
    }
    t.select(first);
    t.program.full.insert(SCQ);
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_no_completion();
    let mut tx = TxBatch::new(TxLimits::SINGLE, 4096);
    assert!(t.device.poll_transmit(t.now, &mut t.program, &mut tx));
    assert!((1..50).contains(&t.program.completions.len()));
    t.expect_nothing();
    assert_eq!(t.program.completions.len(), 100);
}
