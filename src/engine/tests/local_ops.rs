//! Local operations in the send queue, as scripts: when they are done, and when they are told.

mod script;

use script::*;
use std::time::Duration;
use urxe_engine::{Cause, Counter};
use urxe_types::{Access, Extra, Lkey, MwType, QpState, QpType, Rkey, SendOp, WcOpcode, WcStatus};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{NakCode, Opcode, Syndrome};

const SEND: SendOp = SendOp::Send(Extra::None);

fn bind(t: &Script, mw: u32) -> SendOp {
    SendOp::BindMw {
        mw: Rkey(mw),
        new_rkey: Rkey(next_key(mw)),
        mr: Lkey(t.key),
        addr: VA,
        length: 64,
        access: Access::REMOTE_WRITE,
    }
}

fn send_only(psn: u32) -> Pkt {
    pkt(Opcode::RC_SEND_ONLY, psn).ack_req()
}

#[test]
fn a_local_operation_takes_no_psn_and_sends_nothing() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw), &[]);
    t.post(3, SEND, &[]);
    t.expect(send_only(200));
    t.expect(send_only(201));
    t.expect_nothing();
}

#[test]
fn alone_it_completes_at_once() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, bind(&t, mw), &[]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::BindMw, 0));
    t.post(2, invalidate(next_key(mw)), &[]);
    t.expect_nothing();
    assert_eq!(t.expect_send(2, WcStatus::Success).opcode, WcOpcode::LocalInvalidate);
    assert_eq!(t.program.retired, 2);
}

#[test]
fn a_bind_is_done_in_its_turn_and_told_after_all_before_it() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw), &[]);
    t.post(3, SEND, &[]);
    t.sent();
    assert!(t.is_bound(mw), "the second SEND may tell the peer of it");
    t.expect_no_completion();
    t.receive(&[ack(201, 2)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
    t.expect_send(3, WcStatus::Success);
    assert_eq!(t.program.retired, 3);
}

#[test]
fn an_invalidation_waits_for_all_before_it() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, Access::REMOTE_WRITE);
    t.post(1, SEND, &[]);
    t.post(2, invalidate(rkey), &[]);
    t.post(3, SEND, &[]);
    t.expect(send_only(200));
    t.expect_nothing();
    assert!(t.is_bound(rkey), "the peer may still be using it");
    t.receive(&[ack(200, 1)]);
    t.expect(send_only(201));
    assert!(!t.is_bound(rkey));
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
}

#[test]
fn a_fenced_bind_waits_for_the_reads_before_it_and_for_nothing_else() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    let (remote_addr, rkey) = (0, Rkey(9));
    t.post(1, SendOp::Read { remote_addr, rkey }, &[t.sge(0, 8)]);
    t.post(2, SEND, &[]);
    t.post_with(3, bind(&t, mw), &[], |wqe| wqe.wr.fence = true);
    t.sent();
    assert!(!t.is_bound(mw));
    let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(Syndrome::ACK, 1);
    t.receive(&[response.payload(&[0; 8])]);
    t.expect_nothing();
    assert!(t.is_bound(mw), "the SEND is still under way");
}

#[test]
fn a_retry_does_not_repeat_what_was_done_here() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw), &[]);
    t.post(3, SEND, &[]);
    t.expect(send_only(200));
    t.expect(send_only(201));
    t.wait(ACK_TIMEOUT);
    t.expect(send_only(200));
    t.expect(send_only(201));
    assert_eq!(t.counted(Counter::WindowsBound), 1);
    // Half of it is acknowledged, and the rest lost once more.
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
    t.receive(&[nak(NakCode::SequenceError, 201, 1)]);
    t.expect(send_only(201));
    t.receive(&[ack(201, 2)]);
    t.expect_send(3, WcStatus::Success);
    assert_eq!(t.counted(Counter::WindowsBound), 1);
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn a_retry_does_not_close_a_window_that_was_bound_since() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, Access::REMOTE_WRITE);
    t.post(1, invalidate(rkey), &[]);
    t.post(2, bind(&t, rkey), &[]);
    t.post(3, SEND, &[]);
    t.expect(send_only(200));
    t.wait(ACK_TIMEOUT);
    t.expect(send_only(200));
    assert!(t.is_bound(rkey));
    assert_eq!(t.counted(Counter::KeysInvalidated), 1);
}

#[test]
fn an_rnr_wait_holds_up_a_local_operation_behind_it_once() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw), &[]);
    t.expect(send_only(200));
    t.receive(&[rnr(1, 200, 0)]);
    t.expect_nothing();
    t.wait(Duration::from_millis(1));
    t.expect(send_only(200));
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
    assert_eq!(t.counted(Counter::WindowsBound), 1);
}

#[test]
fn a_local_failure_is_told_after_all_earlier_requests_have_ended() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw ^ 1), &[]);
    t.post(3, SEND, &[]);
    t.expect(send_only(200));
    t.expect_nothing();
    t.expect_no_completion();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::MwBind);
    t.expect_send(3, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn in_err_local_operations_are_flushed_and_not_done() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.enter(QpState::Err);
    t.post(1, bind(&t, mw), &[]);
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::WrFlush).vendor_err, Cause::Flushed as u32);
    assert!(!t.is_bound(mw));
}

#[test]
fn local_operations_done_before_a_failure_are_flushed_in_turn() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, SEND, &[]);
    t.post(2, bind(&t, mw), &[]);
    t.sent();
    t.receive(&[nak(NakCode::RemoteOperational, 200, 0)]);
    t.expect_send(1, WcStatus::RemoteOperation);
    t.expect_send(2, WcStatus::WrFlush);
    assert!(t.is_bound(mw), "it had its turn");
}

#[test]
fn an_unsignaled_one_is_retired_without_a_completion() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post_with(1, bind(&t, mw), &[], |wqe| wqe.wr.signaled = false);
    t.expect_nothing();
    t.expect_no_completion();
    assert_eq!(t.program.retired, 1);
}

#[test]
fn nothing_is_waited_for() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.post(1, bind(&t, mw), &[]);
    t.expect_nothing();
    assert_eq!(t.device.poll_timeout(), None);
}

#[test]
fn sqd_does_not_begin_it() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    t.enter(QpState::Sqd);
    t.post(1, bind(&t, mw), &[]);
    t.expect_nothing();
    assert!(!t.is_bound(mw));
    t.enter(QpState::Rts);
    t.expect_nothing();
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn uc_has_local_operations_and_ud_has_not() {
    let mut t = Script::of(QpType::Uc);
    let rkey = t.window(0, 64, Access::REMOTE_WRITE);
    t.receive(&[pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, rkey, 1).payload(b"x")]);
    assert_eq!(t.memory(0, 1), b"x");

    let mut t = Script::of(QpType::Ud);
    let mw = t.alloc_mw(MwType::Two);
    t.bind(mw, 0, 64, Access::REMOTE_WRITE);
    let completion = t.expect_send(BIND_WR_ID, WcStatus::LocalQpOperation);
    assert_eq!(completion.vendor_err, Cause::NotOfThisTransport as u32);
}

#[test]
fn others_have_their_turn_however_many_local_operations_are_posted() {
    const POSTED: u64 = 10_000;
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let op = SendOp::BindMw {
        mw: Rkey(mw),
        new_rkey: Rkey(mw),
        mr: Lkey(t.key),
        addr: VA,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    for wr_id in 0..POSTED {
        t.post(wr_id, op, &[]);
    }
    let mut tx = TxBatch::new(TxLimits::SINGLE, 4096);
    let more = t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    assert!(more && tx.is_empty());
    assert!((1..POSTED / 2).contains(&t.counted(Counter::WindowsBound)));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::WindowsBound), POSTED, "in the calls that follow");
}
