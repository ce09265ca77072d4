//! The requester and the completer, as scripts: which packets a work request becomes, and what
//! each answer does to it.

mod script;

use script::*;
use std::time::Duration;
use urxe_engine::{AsyncEvent, Cause, Counter, MrSpec, RegionId, limits};
use urxe_types::{
    Access, Extra, Lkey, Psn, QpAttr, QpState, Rkey, SendOp, Sge, WcOpcode, WcStatus,
};
use urxe_wire::{NakCode, Opcode, Part, Request, Syndrome};

const SEND: SendOp = SendOp::Send(Extra::None);
const REMOTE: u64 = 0x7000;
const KEY: u32 = 0x5eed;
const READ: SendOp = SendOp::Read { remote_addr: REMOTE, rkey: Rkey(KEY) };
const ADD: SendOp = SendOp::FetchAdd { remote_addr: REMOTE, rkey: Rkey(KEY), add: 3 };
const WRITE: SendOp = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: None };

/// The ACK timeout of code 14.
const TIMEOUT: Duration = ACK_TIMEOUT;

// Work requests to packets.

#[test]
fn a_small_send_is_one_packet_that_asks_for_an_ack() {
    let mut t = Script::new();
    t.fill(0, b"hello");
    t.post_with(1, SEND, &[t.sge(0, 5)], |wqe| wqe.wr.solicited = true);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).payload(b"hello").solicited().ack_req());
    t.expect_nothing();
    t.receive(&[ack(200, 1)]);
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::Send);
    assert_eq!(t.program.retired, 1);
}

#[test]
fn a_long_send_is_cut_at_the_mtu_and_gathered_from_its_list() {
    let mut t = Script::new();
    let data = bytes(5, 600);
    t.fill(0, &data[..300]);
    t.fill(1000, &data[300..]);
    t.post(1, SendOp::Send(Extra::Imm(77)), &[t.sge(0, 300), t.sge(1000, 300)]);
    t.expect(pkt(Opcode::RC_SEND_FIRST, 200).payload(&data[..256]));
    t.expect(pkt(Opcode::RC_SEND_MIDDLE, 201).payload(&data[256..512]));
    t.expect(pkt(Opcode::RC_SEND_LAST_IMM, 202).payload(&data[512..]).imm(77).ack_req());
}

#[test]
fn a_message_that_fills_its_packets_has_no_empty_last_one() {
    let mut t = Script::new();
    t.post(1, SEND, &[t.sge(0, 512)]);
    assert_eq!(t.sent_opcodes(), [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_LAST]);
}

#[test]
fn a_write_names_its_range_in_the_first_packet() {
    let mut t = Script::new();
    let data = bytes(0, 257);
    t.fill(0, &data);
    t.post(
        1,
        SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: Some(9) },
        &[t.sge(0, 257)],
    );
    t.expect(pkt(Opcode::RC_WRITE_FIRST, 200).reth(REMOTE, KEY, 257).payload(&data[..256]));
    t.expect(pkt(Opcode::RC_WRITE_LAST_IMM, 201).payload(&data[256..]).imm(9).ack_req());
    t.receive(&[ack(201, 1)]);
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::RdmaWrite);
}

#[test]
fn a_write_of_nothing_is_a_packet_of_its_own() {
    let mut t = Script::new();
    t.post(1, WRITE, &[]);
    t.expect(pkt(Opcode::RC_WRITE_ONLY, 200).reth(REMOTE, KEY, 0).ack_req());
}

#[test]
fn a_send_with_invalidate_carries_the_key_in_its_last_packet() {
    let mut t = Script::new();
    t.post(1, SendOp::Send(Extra::Invalidate(Rkey(5))), &[t.sge(0, 257)]);
    let sent = t.sent();
    assert_eq!(sent[0].headers.body, Request::Send(Part::First(())).into());
    let last = Request::Send(Part::Last(Extra::Invalidate(Rkey(5))));
    assert_eq!(sent[1].headers.body, last.into());
}

#[test]
fn only_the_last_packet_is_solicited() {
    let mut t = Script::new();
    t.post_with(1, SEND, &[t.sge(0, 600)], |wqe| wqe.wr.solicited = true);
    let solicited: Vec<_> = t.sent().iter().map(|p| p.headers.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true]);
}

#[test]
fn inline_data_is_that_of_the_posting() {
    let mut t = Script::new();
    t.post_with(1, WRITE, &[], |wqe| wqe.inline = Some(bytes(1, 300)));
    let sent = t.sent();
    assert_eq!([&sent[0].payload[..], &sent[1].payload[..]].concat(), bytes(1, 300));
}

#[test]
fn an_unsignaled_send_retires_without_a_completion() {
    let mut t = Script::new();
    t.post_with(1, SEND, &[t.sge(0, 1)], |wqe| wqe.wr.signaled = false);
    t.post(2, SEND, &[t.sge(0, 1)]);
    t.sent();
    t.receive(&[ack(201, 2)]);
    t.expect_send(2, WcStatus::Success);
    t.expect_no_completion();
    assert_eq!(t.program.retired, 2);
}

#[test]
fn the_place_of_a_send_is_free_when_its_completion_is_told() {
    let mut t = Script::new();
    t.post_with(1, SEND, &[], |wqe| wqe.wr.signaled = false);
    for wr_id in 2..=4 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    // The third fails, and the last is flushed.
    t.receive(&[ack(201, 2), nak(NakCode::RemoteOperational, 202, 2)]);
    t.expect_send(2, WcStatus::Success);
    t.expect_send(3, WcStatus::RemoteOperation);
    t.expect_send(4, WcStatus::WrFlush);
    assert_eq!(t.program.retired_when_completed, [2, 3, 4]);
}

// READ and atomics.

#[test]
fn a_read_takes_a_psn_for_each_response_and_stores_them() {
    let mut t = Script::reading();
    let data = bytes(3, 600);
    t.post(1, READ, &[t.sge(0, 100), t.sge(500, 500)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 600).ack_req());
    t.post(2, SEND, &[]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 203).ack_req());
    let response =
        |opcode, psn, range: std::ops::Range<usize>| pkt(opcode, psn).payload(&data[range]);
    t.receive(&[
        response(Opcode::RC_READ_RESPONSE_FIRST, 200, 0..256).aeth(Syndrome::ACK, 1),
        response(Opcode::RC_READ_RESPONSE_MIDDLE, 201, 256..512),
    ]);
    t.expect_no_completion();
    t.receive(&[
        response(Opcode::RC_READ_RESPONSE_LAST, 202, 512..600).aeth(Syndrome::ACK, 1),
        ack(203, 2),
    ]);
    assert_eq!(t.expect_send(1, WcStatus::Success).byte_len, 600);
    t.expect_send(2, WcStatus::Success);
    assert_eq!([t.memory(0, 100), t.memory(500, 500)].concat(), data);
}

#[test]
fn an_atomic_stores_what_was_there() {
    let mut t = Script::new();
    t.post(1, ADD, &[t.sge(16, 8)]);
    t.expect(pkt(Opcode::RC_FETCH_ADD, 200).atomic(REMOTE, KEY, 3, 0).ack_req());
    t.receive(&[pkt(Opcode::RC_ATOMIC_ACK, 200).aeth(Syndrome::ACK, 1).original(0x1122)]);
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::FetchAdd);
    assert_eq!(t.memory(16, 8), 0x1122u64.to_ne_bytes());
}

#[test]
fn no_more_reads_are_outstanding_than_max_rd_atomic() {
    let mut t = Script::with(QpAttr { max_rd_atomic: Some(2), ..usual() });
    for wr_id in 1..=3 {
        t.post(wr_id, READ, &[t.sge(0, 1)]);
    }
    assert_eq!(t.sent().len(), 2);
    let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(b"x");
    t.receive(&[response.aeth(Syndrome::ACK, 1)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 202).reth(REMOTE, KEY, 1).ack_req());
}

#[test]
fn a_fence_waits_for_the_reads_before_it_and_for_nothing_else() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.post_with(2, SEND, &[], |wqe| wqe.wr.fence = true);
    assert_eq!(t.sent().len(), 2);
    t.post(3, ADD, &[t.sge(0, 8)]);
    t.post_with(4, SEND, &[], |wqe| wqe.wr.fence = true);
    assert_eq!(t.sent().len(), 1);
    let answer = pkt(Opcode::RC_ATOMIC_ACK, 202).aeth(Syndrome::ACK, 3).original(0);
    t.receive(&[answer]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 203).ack_req());
}

#[test]
fn a_response_acknowledges_everything_before_it() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.post(2, READ, &[t.sge(0, 1)]);
    t.sent();
    let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 201).payload(b"x");
    t.receive(&[response.aeth(Syndrome::ACK, 2)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
}

#[test]
fn a_lost_response_is_asked_for_again_alone() {
    let mut t = Script::new();
    let data = bytes(0, 600);
    t.post(1, READ, &[t.sge(0, 600)]);
    t.post(2, SEND, &[]);
    // The READ goes in three requests, as nothing is known of the path.
    t.sent();
    let first = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&data[..256]);
    let last = pkt(Opcode::RC_READ_RESPONSE_ONLY, 202).payload(&data[512..]);
    t.receive(&[first.aeth(Syndrome::ACK, 1), last.clone().aeth(Syndrome::ACK, 1), ack(203, 2)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 201).reth(REMOTE + 256, KEY, 256).ack_req());
    t.expect_nothing();
    t.expect_no_completion();
    let missing = pkt(Opcode::RC_READ_RESPONSE_ONLY, 201).payload(&data[256..512]);
    t.receive(&[missing.aeth(Syndrome::ACK, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
    assert_eq!(t.memory(0, 600), data);
    assert_eq!(t.counted(Counter::ImpliedNaks), 1);
}

#[test]
fn a_read_response_of_a_wrong_length_is_a_bad_response() {
    let mut t = Script::new();
    t.post(1, READ, &[t.sge(0, 2)]);
    t.sent();
    let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(b"xyz");
    t.receive(&[response.aeth(Syndrome::ACK, 1)]);
    t.expect_send(1, WcStatus::BadResponse);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_plain_ack_of_a_read_is_an_implied_nak() {
    let mut t = Script::new();
    t.post(1, READ, &[t.sge(0, 2)]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 2).ack_req());
}

// Retransmission.

#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_repeats_the_rest() {
    let mut t = Script::new();
    for wr_id in 1..=4 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    t.receive(&[nak(NakCode::SequenceError, 202, 2)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 202).ack_req());
    t.expect(pkt(Opcode::RC_SEND_ONLY, 203).ack_req());
    t.receive(&[nak(NakCode::SequenceError, 202, 2)]);
    t.expect_nothing();
    assert_eq!(t.counted(Counter::RetransmittedPackets), 2);
}

#[test]
fn a_repeat_begins_in_the_middle_of_a_message() {
    let mut t = Script::new();
    let data = bytes(0, 700);
    t.fill(0, &data);
    t.post(1, WRITE, &[t.sge(0, 700)]);
    t.sent();
    t.receive(&[nak(NakCode::SequenceError, 201, 0)]);
    t.expect(pkt(Opcode::RC_WRITE_MIDDLE, 201).payload(&data[256..512]));
    t.expect(pkt(Opcode::RC_WRITE_LAST, 202).payload(&data[512..]).ack_req());
}

/// Sends one SEND that nobody answers, with this `retry_cnt`; counts how often it is sent.
fn tries(retry_cnt: u8) -> usize {
    let mut t = Script::with(QpAttr { retry_cnt: Some(retry_cnt), ..usual() });
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[]);
    let mut sent = t.sent().len() / 2;
    for _ in 0..retry_cnt {
        t.wait(TIMEOUT - Duration::from_nanos(1));
        t.expect_nothing();
        t.wait(Duration::from_nanos(1));
        sent += t.sent().len() / 2;
    }
    t.expect_no_completion();
    t.wait(TIMEOUT);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::RetryExceeded);
    assert_eq!(completion.vendor_err, Cause::AckTimeout as u32);
    t.expect_send(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
    sent
}

#[test]
fn retry_cnt_is_the_number_of_tries_after_the_first() {
    assert_eq!(tries(0), 1);
    assert_eq!(tries(3), 4);
}

#[test]
fn retry_cnt_seven_is_seven_tries_and_not_for_ever() {
    assert_eq!(tries(7), 8);
}

#[test]
fn progress_restores_the_tries() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(1), ..usual() });
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    // A late answer makes the path one of which it is only known that it may be long.
    let long = 2 * limits::MAX_PROBE_INTERVAL;
    for psn in 200..202 {
        t.wait(long);
        t.sent();
        t.receive(&[ack(psn, 1)]);
    }
    t.wait(long);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 202).ack_req());
}

#[test]
fn requests_carried_out_behind_a_missing_answer_restore_the_tries() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(2), ..usual() });
    t.post(1, READ, &[t.sge(0, 8)]);
    for wr_id in 2..=10 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    for missing in 202..=209 {
        t.receive(&[nak(NakCode::SequenceError, missing, 0)]);
        t.sent();
    }
    t.expect_no_completion();
    let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[7; 8]);
    t.receive(&[answer.aeth(Syndrome::ACK, 1), ack(209, 10)]);
    for wr_id in 1..=10 {
        t.expect_send(wr_id, WcStatus::Success);
    }
}

#[test]
fn a_nak_of_what_was_carried_out_changes_nothing() {
    let mut t = Script::new();
    t.post(1, READ, &[t.sge(0, 8)]);
    t.post(2, SEND, &[]);
    t.post(3, SEND, &[]);
    t.sent();
    t.receive(&[ack(202, 3)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 8).ack_req());
    let late = [NakCode::SequenceError, NakCode::InvalidRequest, NakCode::RemoteOperational];
    for code in late {
        t.receive(&[nak(code, 201, 1)]);
    }
    t.receive(&[rnr(1, 202, 1)]);
    t.wait(Duration::from_micros(20));
    t.expect_nothing();
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::StaleResponses), 4);
}

#[test]
fn a_request_refused_by_rnr_behind_a_missing_answer_is_not_repeated_at_once() {
    let mut t = Script::new();
    t.post(1, READ, &[t.sge(0, 8)]);
    t.post(2, SEND, &[]);
    t.sent();
    t.receive(&[rnr(12, 201, 1)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 8).ack_req());
    t.expect_nothing();
}

#[test]
fn timeout_zero_waits_for_ever() {
    let mut t = Script::with(QpAttr { timeout: Some(0), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    t.wait(Duration::from_secs(3000));
    t.expect_nothing();
    t.expect_no_completion();
}

#[test]
fn sequence_naks_without_progress_use_up_the_tries() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(0), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[nak(NakCode::SequenceError, 200, 0)]);
    assert_eq!(t.expect_send(1, WcStatus::RetryExceeded).vendor_err, Cause::SequenceRetries as u32);
}

#[test]
fn sequence_naks_of_one_packet_without_end_are_followed_no_longer_than_retry_cnt_allows() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(3), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.post(2, SEND, &[]);
    let (mut sent, mut naks) = (t.sent().len(), 0);
    while t.state() == QpState::Rts && naks < 1000 {
        t.receive(&[nak(NakCode::SequenceError, 201, 1)]);
        naks += 1;
        sent += t.sent().len();
        t.wait(Duration::from_millis(1));
    }
    t.expect_send(2, WcStatus::RetryExceeded);
    assert_eq!(sent, 4);
}

// Receiver not ready.

/// The longest that a short RNR wait becomes.
const MAX_RNR_BACKOFF: Duration = Duration::from_millis(10);

#[test]
fn after_an_rnr_nak_the_requester_is_silent_for_the_time_it_says() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[rnr(12, 200, 0)]);
    t.post(2, SEND, &[]);
    t.wait(Duration::from_micros(639));
    t.expect_nothing();
    t.wait(Duration::from_micros(1));
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
}

#[test]
fn a_request_refused_by_rnr_goes_alone_until_it_is_acknowledged() {
    let mut t = Script::new();
    t.fill(0, &bytes(1, 600));
    t.post(1, WRITE, &[t.sge(0, 1)]);
    t.post(2, SEND, &[t.sge(0, 300)]);
    t.post(3, WRITE, &[t.sge(0, 1)]);
    for wr_id in 4..=8 {
        t.post(wr_id, SEND, &[t.sge(0, 1)]);
    }
    assert_eq!(t.sent().len(), 9);
    t.receive(&[rnr(12, 201, 1)]);
    t.wait(Duration::from_micros(640));
    let psns = |t: &mut Script| -> Vec<_> {
        t.sent().iter().map(|sent| (sent.headers.bth.psn.get(), sent.headers.bth.ack_req)).collect()
    };
    // The first packet of the SEND takes the receive, so nothing goes behind it.
    assert_eq!(psns(&mut t), [(201, true)]);
    t.receive(&[ack(201, 1)]);
    // What it has taken is not refused again. Of the next, two go.
    assert_eq!(psns(&mut t), [(202, true), (203, true), (204, true), (205, true)]);
    t.receive(&[rnr(12, 204, 3)]);
    t.wait(Duration::from_micros(640));
    assert_eq!(psns(&mut t), [(204, true)]);
    t.receive(&[ack(208, 8)]);
    for wr_id in 1..=3 {
        t.expect_send(wr_id, WcStatus::Success);
    }
}

#[test]
fn a_write_whose_immediate_data_was_refused_goes_on_with_its_last_packet_alone() {
    let mut t = Script::new();
    let op = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: Some(9) };
    t.post(1, op, &[t.sge(0, 600)]);
    t.post(2, op, &[t.sge(0, 600)]);
    t.sent();
    t.receive(&[rnr(12, 202, 0)]);
    t.wait(Duration::from_micros(640));
    t.expect(pkt(Opcode::RC_WRITE_LAST_IMM, 202).payload(&[0; 88]).imm(9).ack_req());
    t.expect_nothing();
    t.receive(&[ack(202, 1)]);
    let expected = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST_IMM];
    assert_eq!(t.sent_opcodes(), expected);
}

#[test]
fn rnr_waits_grow_while_the_same_request_is_refused() {
    let mut t = Script::with(QpAttr { rnr_retry: Some(7), ..usual() });
    t.post(1, SEND, &[]);
    let refuse = |wait: u64| {
        assert_eq!(t.sent().len(), 1);
        t.receive(&[rnr(1, 200, 0)]);
        t.wait(Duration::from_micros(wait - 1));
        t.expect_nothing();
        t.wait(Duration::from_micros(1));
    };
    [10, 20, 40, 80, 160, 160].into_iter().for_each(refuse);
}

/// Answers one SEND by RNR NAKs only; counts how often it is sent before it fails, or `None` if
/// it is still being sent after 50 times.
fn rnr_tries(rnr_retry: u8) -> Option<usize> {
    let mut t = Script::with(QpAttr { rnr_retry: Some(rnr_retry), ..usual() });
    t.post(1, SEND, &[]);
    for round in 1..=50 {
        assert_eq!(t.sent().len(), 1);
        t.receive(&[rnr(1, 200, 0)]);
        if !t.program.completions.is_empty() {
            t.expect_send(1, WcStatus::RnrRetryExceeded);
            return Some(round);
        }
        t.wait(MAX_RNR_BACKOFF);
    }
    None
}

#[test]
fn rnr_retry_is_the_number_of_tries_after_the_first() {
    assert_eq!(rnr_tries(0), Some(1));
    assert_eq!(rnr_tries(6), Some(7));
}

#[test]
fn rnr_retry_seven_is_for_ever() {
    assert_eq!(rnr_tries(7), None);
}

#[test]
fn an_rnr_nak_is_a_sign_of_life_and_restores_the_other_tries() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(1), rnr_retry: Some(7), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    for _ in 0..3 {
        t.wait(TIMEOUT);
        assert!(!t.sent().is_empty(), "its RNR NAK was lost: it is sent again");
        t.receive(&[rnr(1, 200, 0)]);
        t.wait(MAX_RNR_BACKOFF);
        t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
    }
    t.expect_no_completion();
}

#[test]
fn the_ack_timeout_does_not_run_during_an_rnr_wait() {
    let mut t = Script::with(QpAttr { retry_cnt: Some(0), ..usual() });
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[rnr(0, 200, 0)]);
    t.wait(Duration::from_micros(655_359));
    t.expect_no_completion();
    t.wait(Duration::from_micros(1));
    assert_eq!(t.sent().len(), 1);
}

// Fatal NAKs.

#[track_caller]
fn fatal(code: NakCode, status: WcStatus) {
    let mut t = Script::new();
    for wr_id in 1..=3 {
        t.post_with(wr_id, SEND, &[], |wqe| wqe.wr.signaled = false);
    }
    t.post_recv(9, &[]);
    t.sent();
    t.receive(&[nak(code, 201, 1)]);
    t.expect_send(2, status);
    t.expect_send(3, WcStatus::WrFlush);
    t.expect_recv(9, WcStatus::WrFlush);
    t.expect_no_completion();
    assert_eq!((t.state(), t.program.retired), (QpState::Err, 3));
}

#[test]
fn an_invalid_request_nak_fails_its_work_request_and_flushes_the_rest() {
    fatal(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest);
}

#[test]
fn a_remote_access_nak_fails_its_work_request_and_flushes_the_rest() {
    fatal(NakCode::RemoteAccess, WcStatus::RemoteAccess);
}

#[test]
fn a_remote_operational_nak_fails_its_work_request_and_flushes_the_rest() {
    fatal(NakCode::RemoteOperational, WcStatus::RemoteOperation);
}

// Responses that belong to nothing.

#[test]
fn an_ack_of_something_never_sent_is_dropped() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(201, 1), nak(NakCode::RemoteAccess, 5000, 1)]);
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::GhostResponses), 2);
}

#[test]
fn a_late_answer_is_dropped() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.receive(&[ack(200, 1), nak(NakCode::RemoteAccess, 199, 1)]);
    assert_eq!(t.state(), QpState::Rts);
    assert_eq!(t.counted(Counter::StaleResponses), 2);
}

// Local errors.

#[track_caller]
fn local_error(status: WcStatus, cause: Cause, post: impl FnOnce(&mut Script)) {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    post(&mut t);
    t.post(3, SEND, &[]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
    t.expect_nothing();
    t.expect_no_completion();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.expect_send(2, status).vendor_err, cause as u32);
    t.expect_send(3, WcStatus::WrFlush);
}

#[test]
fn a_bad_lkey_fails_in_its_turn() {
    local_error(WcStatus::LocalProtection, Cause::LocalKey, |t| {
        let mut sge = t.sge(0, 8);
        sge.lkey.0 ^= 1;
        t.post(2, SEND, &[sge]);
    });
}

#[test]
fn a_list_beyond_its_mr_fails_in_its_turn() {
    local_error(WcStatus::LocalProtection, Cause::LocalBounds, |t| {
        t.post(2, WRITE, &[t.sge(65_530, 7)]);
    });
}

/// Where nothing can be placed: a stretch of `length` bytes without a key, one that reaches
/// outside of its MR, one of an MR without local write access.
fn no_place(t: &mut Script, length: u32) -> [(Cause, Sge); 3] {
    let access = Access::REMOTE_READ;
    let spec = MrSpec { pd: PD, addr: 0, length: 64, access, region: RegionId(0) };
    let read_only = t.device.reg_mr(spec).unwrap().lkey.0;
    let sge = t.sge(0, length);
    [
        (Cause::LocalKey, Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }),
        (Cause::LocalBounds, t.sge(65_536 - u64::from(length) + 1, length)),
        (Cause::LocalRights, Sge { addr: 0, length, lkey: Lkey(read_only) }),
    ]
}

#[test]
fn a_read_is_asked_for_and_its_place_is_checked_when_the_data_comes() {
    for number in 0..3 {
        let mut t = Script::new();
        let (cause, sge) = no_place(&mut t, 8)[number];
        t.post(1, READ, &[sge]);
        t.post(2, SEND, &[]);
        t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 8).ack_req());
        t.sent();
        t.expect_no_completion();
        let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(b"whatever");
        t.receive(&[answer.aeth(Syndrome::ACK, 1)]);
        assert_eq!(t.expect_send(1, WcStatus::LocalProtection).vendor_err, cause as u32);
        t.expect_send(2, WcStatus::WrFlush);
        assert_eq!(t.state(), QpState::Err);
    }
}

#[test]
fn an_atomic_is_executed_even_if_its_result_has_no_place() {
    for number in 0..3 {
        let mut t = Script::new();
        let (cause, sge) = no_place(&mut t, 8)[number];
        t.post(1, ADD, &[sge]);
        t.expect(pkt(Opcode::RC_FETCH_ADD, 200).atomic(REMOTE, KEY, 3, 0).ack_req());
        t.expect_no_completion();
        t.receive(&[pkt(Opcode::RC_ATOMIC_ACK, 200).aeth(Syndrome::ACK, 1).original(7)]);
        assert_eq!(t.expect_send(1, WcStatus::LocalProtection).vendor_err, cause as u32);
        assert_eq!(t.state(), QpState::Err);
    }
}

#[test]
fn the_refusal_of_a_read_is_told_and_not_that_it_had_no_place() {
    for op in [READ, ADD] {
        let mut t = Script::new();
        let (_, sge) = no_place(&mut t, 8)[0];
        t.post(1, op, &[sge]);
        t.sent();
        t.receive(&[nak(NakCode::RemoteAccess, 200, 0)]);
        t.expect_send(1, WcStatus::RemoteAccess);
    }
}

#[test]
fn a_read_of_nothing_needs_no_place() {
    let mut t = Script::new();
    let sge = no_place(&mut t, 0)[0].1;
    t.post(1, READ, &[sge]);
    t.sent();
    t.receive(&[pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(Syndrome::ACK, 1)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn an_atomic_of_another_length_than_eight_fails_in_its_turn() {
    local_error(WcStatus::LocalLength, Cause::LocalLength, |t| t.post(2, ADD, &[t.sge(0, 4)]));
}

#[test]
fn a_message_longer_than_two_gigabytes_fails_in_its_turn() {
    local_error(WcStatus::LocalLength, Cause::LocalLength, |t| {
        t.post(2, WRITE, &[t.sge(0, 1 << 31), t.sge(0, 1)]);
    });
}

#[test]
fn a_read_on_a_qp_without_rd_atomic_fails_and_does_not_hang() {
    let mut t = Script::with(QpAttr { max_rd_atomic: Some(0), ..usual() });
    t.post(1, READ, &[t.sge(0, 1)]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::LocalQpOperation);
    assert_eq!(completion.vendor_err, Cause::NoReadsAllowed as u32);
}

#[test]
fn a_send_queue_that_cannot_be_read_ends_the_qp_and_what_is_flushed_says_why() {
    let mut t = Script::new();
    t.post_recv(1, &[]);
    let queue = t.device.query_qp(t.qpn).unwrap().init.send_queue;
    t.program.broken.insert(queue);
    t.device.ring_doorbell(t.qpn);
    t.expect_nothing();
    assert_eq!(t.expect_recv(1, WcStatus::WrFlush).vendor_err, Cause::BrokenQueue as u32);
    assert_eq!(t.program.events, [AsyncEvent::QpFatal(t.qpn)]);
}

#[test]
fn memory_gone_while_sending_fails_the_work_request() {
    let mut t = Script::new();
    t.program.unmapped = true;
    t.post(1, SEND, &[t.sge(0, 8)]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::LocalProtection);
    assert_eq!(completion.vendor_err, Cause::LocalMemory as u32);
}

// What is in flight.

#[test]
fn psns_wrap_around() {
    let mut t = Script::with(QpAttr { sq_psn: Some(Psn::new(0xff_ffff)), ..usual() });
    t.post(1, SEND, &[t.sge(0, 300)]);
    t.expect(pkt(Opcode::RC_SEND_FIRST, 0xff_ffff).payload(&[0; 256]));
    t.expect(pkt(Opcode::RC_SEND_LAST, 0).payload(&[0; 44]).ack_req());
    t.receive(&[ack(0, 1)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_message_longer_than_the_window_asks_for_acks_on_its_way() {
    let mut t = Script::new();
    t.post(1, WRITE, &[t.sge(0, 65_536), t.sge(0, 65_536)]);
    let sent = t.sent();
    assert_eq!(sent.len(), 205, "the window of an unknown path is 64 KiB, headers included");
    assert!(sent.iter().filter(|p| p.headers.bth.ack_req).count() >= 4);
    assert!(sent.last().unwrap().headers.bth.ack_req, "or nobody would go on");
    t.receive(&[ack(200 + 63, 0)]);
    assert_eq!(t.sent().len(), 128, "64 acknowledged, and the window has grown by as much");
}

// Probes for a lost tail.

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_late_answer_is_probed_for_with_the_oldest_packet_ever_more_rarely() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[]);
    t.sent();
    for pause in [1, 2, 4] {
        t.wait(MS * pause - Duration::from_nanos(1));
        t.expect_nothing();
        t.wait(Duration::from_nanos(1));
        t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
        t.expect_nothing();
    }
    assert_eq!(t.counted(Counter::Probes), 3);
}

#[test]
fn an_answer_to_the_probe_alone_means_that_the_rest_was_lost() {
    let mut t = Script::probing_after(MS, usual());
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    t.wait(MS);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
    t.expect(pkt(Opcode::RC_SEND_ONLY, 202).ack_req());
}

#[test]
fn an_answer_to_the_probe_says_nothing_of_what_was_sent_after_it() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, SEND, &[]);
    t.sent();
    t.wait(MS);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
    t.post(2, SEND, &[]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
    t.receive(&[ack(200, 1)]);
    t.expect_nothing();
}

#[test]
fn a_probe_costs_no_tries() {
    let mut t = Script::probing_after(MS, QpAttr { retry_cnt: Some(0), ..usual() });
    t.post(1, SEND, &[]);
    for _ in 0..20 {
        t.wait(MS);
        t.sent();
    }
    t.expect_no_completion();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn where_packets_are_lost_the_first_probe_of_a_peer_that_keeps_nothing_is_all_that_was_sent() {
    let mut t = Script::probing_after(MS, usual());
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    // That loss is known of the path when its repeat is answered.
    t.receive(&[nak(NakCode::SequenceError, 200, 0)]);
    t.sent();
    t.receive(&[ack(202, 3)]);
    for wr_id in 4..=6 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    t.wait(MS / 8);
    for psn in 203..206 {
        t.expect(pkt(Opcode::RC_SEND_ONLY, psn).ack_req());
    }
    // In the same silence, the next is for the oldest alone.
    t.wait(MS);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 203).ack_req());
    t.expect_nothing();
}

#[test]
fn after_an_answer_that_was_only_late_the_next_is_waited_for_longer() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, READ, &[t.sge(0, 100)]);
    t.sent();
    t.wait(MS);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(REMOTE, KEY, 100).ack_req());
    let answer = || pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[0; 100]);
    t.receive(&[answer().aeth(Syndrome::ACK, 1)]);
    assert_eq!(t.counted(Counter::NeedlessRepeats), 0);
    t.receive(&[answer().aeth(Syndrome::ACK, 1), answer().aeth(Syndrome::ACK, 1)]);
    assert_eq!(t.counted(Counter::NeedlessRepeats), 1, "it was repeated once");
    t.post(2, READ, &[t.sge(0, 100)]);
    t.sent();
    t.wait(MS);
    t.expect_nothing();
    t.wait(MS);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 201).reth(REMOTE, KEY, 100).ack_req());
    assert_eq!(t.counted(Counter::Probes), 2);
}

#[test]
fn an_answer_that_comes_twice_by_itself_says_nothing_of_the_time() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, READ, &[t.sge(0, 100)]);
    t.sent();
    let answer = || pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[0; 100]);
    t.receive(&[answer().aeth(Syndrome::ACK, 1), answer().aeth(Syndrome::ACK, 1)]);
    assert_eq!(t.counted(Counter::StaleResponses), 1);
    assert_eq!(t.counted(Counter::NeedlessRepeats), 0);
}

#[test]
fn a_probe_for_a_read_asks_for_what_is_missing() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, READ, &[t.sge(0, 300)]);
    t.sent();
    let first = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[0; 256]);
    t.receive(&[first.aeth(Syndrome::ACK, 1)]);
    t.wait(MS);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 201).reth(REMOTE + 256, KEY, 44).ack_req());
}
