//! What is remembered of a QP, as scripts.

mod script;

use script::*;
use std::time::Duration;
use urxe_engine::{Cause, Counter, Happening};
use urxe_types::{Extra, Posted, QpAttr, QpState, Rkey, SendOp, WcOpcode, WcStatus};
use urxe_wire::{NakCode, Opcode};

const SEND: SendOp = SendOp::Send(Extra::None);
const TIMEOUT: Duration = ACK_TIMEOUT;

/// What the QP's history says, oldest first.
fn told(t: &Script) -> Vec<Happening> {
    let history = t.device.qp_history(t.qpn).unwrap();
    history.entries().map(|entry| entry.what).collect()
}

const SET_UP: [Happening; 3] = [
    Happening::Modified(QpState::Init),
    Happening::Modified(QpState::Rtr),
    Happening::Modified(QpState::Rts),
];

#[test]
fn a_peer_that_never_answers_leaves_a_history_that_says_so() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(2), ..usual() });
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[]);
    t.sent();
    for _ in 0..3 {
        t.wait(TIMEOUT);
        t.sent();
    }
    t.expect_send(1, WcStatus::RetryExceeded);
    let history = t.device.qp_history(t.qpn).unwrap();
    assert_eq!(history.heard(), None);
    let (_, cause) = history.failure().unwrap();
    assert_eq!(cause, Cause::AckTimeout);
    let failed = history.failed_request().unwrap();
    assert_eq!((failed.wr_id, failed.opcode), (1, WcOpcode::Send), "not the one that was flushed");
    let mut timeouts =
        history.entries().filter(|entry| entry.what == Happening::Counted(Counter::AckTimeouts));
    let entry = timeouts.next().unwrap();
    assert_eq!((entry.times, entry.span()), (3, 2 * TIMEOUT));
    assert_eq!(timeouts.next(), None, "repeats are one entry");
    let told = told(&t);
    assert_eq!(told[..3], SET_UP);
    let failed = Happening::Failed(QpState::Err, Cause::AckTimeout);
    assert!(told.contains(&failed) && !told.contains(&Happening::Heard), "{told:?}");
    assert_eq!(t.device.failed_qps().collect::<Vec<_>>(), [t.qpn]);
}

#[test]
fn traffic_without_trouble_leaves_no_entry_behind_the_first_packet() {
    let mut t = Script::new();
    for wr_id in 0..100 {
        t.post(wr_id, SEND, &[]);
        t.sent();
        t.receive(&[ack(200 + wr_id as u32, wr_id as u32 + 1)]);
        t.expect_send(wr_id, WcStatus::Success);
    }
    t.wait(Duration::from_secs(1));
    let told = told(&t);
    assert_eq!((&told[..3], &told[3..]), (&SET_UP[..], &[Happening::Heard][..]));
    assert_eq!(t.device.qp_history(t.qpn).unwrap().failure(), None);
}

#[test]
fn a_refusal_of_the_peer_stands_in_the_history() {
    let mut t = Script::new();
    t.post(7, SEND, &[]);
    t.sent();
    t.receive(&[nak(NakCode::RemoteOperational, 200, 0)]);
    t.expect_send(7, WcStatus::RemoteOperation);
    let told = told(&t);
    let expected = [
        Happening::Heard,
        Happening::Counted(Counter::FatalNaksReceived),
        Happening::Failed(QpState::Err, Cause::PeerRemoteOperation),
    ];
    assert_eq!(told[3..6], expected, "in the order in which it happened");
}

#[test]
fn a_qp_that_its_program_takes_to_err_has_not_failed() {
    let mut t = Script::new();
    t.post_recv(1, &[]);
    t.enter(QpState::Err);
    t.expect_recv(1, WcStatus::WrFlush);
    let history = t.device.qp_history(t.qpn).unwrap();
    assert_eq!((history.failure(), history.failed_request()), (None, None));
    assert!(told(&t).contains(&Happening::Modified(QpState::Err)));
    assert_eq!(t.device.failed_qps().next(), None);
}

#[test]
fn a_reset_keeps_what_happened_before_it() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(0), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    t.wait(TIMEOUT);
    t.expect_send(1, WcStatus::RetryExceeded);
    t.enter(QpState::Reset);
    let history = t.device.qp_history(t.qpn).unwrap();
    assert_eq!(history.failed_request().unwrap().wr_id, 1);
    assert_eq!(told(&t).last(), Some(&Happening::Modified(QpState::Reset)));
}

/// HISTORY-019
#[test]
fn a_qp_that_was_reset_tells_of_its_new_failure_and_not_of_the_one_before() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(0), ..usual() });
    t.post(1, SEND, &[t.sge(0, 1000)]);
    t.sent();
    t.receive(&[ack(203, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.post(2, SEND, &[]);
    t.sent();
    t.wait(TIMEOUT);
    t.expect_send(2, WcStatus::RetryExceeded);
    let known = |t: &Script| {
        let history = t.device.qp_history(t.qpn).unwrap();
        let failed = history.failed_request().map(|failed| failed.wr_id);
        (failed, history.failure().map(|(_, cause)| cause), history.longest_done())
    };
    let before = (Some(2), Some(Cause::AckTimeout), 1000);
    assert_eq!(known(&t), before);
    t.enter(QpState::Reset);
    assert_eq!(known(&t), before);
    t.connect(&usual());
    assert_eq!(known(&t), (Some(2), Some(Cause::AckTimeout), 0), "nothing has failed since");
    t.post(3, SEND, &[]);
    t.sent();
    t.receive(&[nak(NakCode::RemoteOperational, 200, 0)]);
    t.expect_send(3, WcStatus::RemoteOperation);
    assert_eq!(known(&t), (Some(3), Some(Cause::PeerRemoteOperation), 0));
    // By what a peer asked for, and no request of its own.
    t.enter(QpState::Reset);
    t.connect(&usual());
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, 1, 8).payload(&[1; 8]).ack_req()]);
    assert_eq!(known(&t), (None, Some(Cause::RequestRefused), 0));
}

#[test]
fn work_requests_are_counted_by_kind_when_they_are_taken() {
    let mut t = Script::new();
    let (remote_addr, rkey) = (0, Rkey(1));
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[]);
    t.post(3, SendOp::Write { remote_addr, rkey, imm: None }, &[]);
    t.post(4, SendOp::Read { remote_addr, rkey }, &[]);
    t.sent();
    t.receive(&[nak(NakCode::RemoteOperational, 200, 0)]);
    t.expect_send(1, WcStatus::RemoteOperation);
    t.post(5, SEND, &[]);
    t.sent();
    let posted = Posted { sends: 2, writes: 1, reads: 1, ..Posted::default() };
    let last = t.device.qp_history(t.qpn).unwrap().entries().last().unwrap();
    assert_eq!(last.traffic.posted, posted, "what is flushed was never taken to be sent");
    let counted = t.device.qp_counters(t.qpn).unwrap();
    assert_eq!(counted.get(Counter::PostedSends), 2);
}
