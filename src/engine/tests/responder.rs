//! The responder, as scripts: what it does with each request, and what it answers.

mod script;

use script::*;
use urxe_engine::{AsyncEvent, Cause, Counter, EarlyLimits};
use urxe_types::{Access, Extra, Lkey, Pkey, Psn, QpAttr, QpState, Qpn, Sge, WcOpcode, WcStatus};
use urxe_wire::mad::Capabilities;
use urxe_wire::{NakCode, Opcode, Syndrome};

// SEND.

#[test]
fn send_is_put_into_the_receive_and_acknowledged() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 100)]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).payload(b"hello").ack_req()]);
    t.expect(ack(100, 1));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::Recv, 5));
    assert_eq!(completion.src_qpn, Qpn::new(PEER_QPN));
    assert_eq!(t.memory(0, 5), b"hello");
}

#[test]
fn send_in_three_packets_is_scattered_over_the_list() {
    let mut t = Script::new();
    let data = bytes(7, 600);
    t.post_recv(1, &[t.sge(0, 300), t.sge(1000, 1), t.sge(2000, 400)]);
    t.receive(&[
        pkt(Opcode::RC_SEND_FIRST, 100).payload(&data[..256]),
        pkt(Opcode::RC_SEND_MIDDLE, 101).payload(&data[256..512]),
        pkt(Opcode::RC_SEND_LAST_IMM, 102).payload(&data[512..]).imm(0xa0b0_c0d0).ack_req(),
    ]);
    t.expect(ack(102, 1));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.byte_len, completion.extra), (600, Extra::Imm(0xa0b0_c0d0)));
    let stored = [t.memory(0, 300), t.memory(1000, 1), t.memory(2000, 299)].concat();
    assert_eq!(stored, data);
}

#[test]
fn send_of_nothing_completes_with_length_zero() {
    let mut t = Script::new();
    t.post_recv(1, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).solicited().ack_req()]);
    t.expect(ack(100, 1));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.byte_len, completion.solicited), (0, true));
}

#[test]
fn send_longer_than_its_receive_fails_on_both_sides() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 4)]);
    t.post_recv(2, &[t.sge(0, 4)]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).payload(b"hello").ack_req()]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
    let completion = t.expect_recv(1, WcStatus::LocalLength);
    assert_eq!(completion.vendor_err, Cause::ReceiveTooShort as u32);
    t.expect_recv(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn send_with_invalidate_of_a_wrong_key_is_refused() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 8)]);
    let wrong = t.key ^ 1;
    t.receive(&[pkt(Opcode::RC_SEND_ONLY_INV, 100).invalidate(wrong)]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
}

#[test]
fn send_into_a_receive_with_a_bad_lkey_is_our_own_fault() {
    let mut t = Script::new();
    let mut sge = t.sge(0, 8);
    sge.lkey.0 ^= 1;
    t.post_recv(1, &[sge]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).payload(b"x")]);
    t.expect(nak(NakCode::RemoteOperational, 100, 0));
    let completion = t.expect_recv(1, WcStatus::LocalProtection);
    assert_eq!(completion.vendor_err, Cause::LocalKey as u32);
}

/// A stretch of this length whose key opens nothing.
fn bad_sge(t: &Script, length: u32) -> Sge {
    let sge = t.sge(0, length);
    Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }
}

#[test]
fn a_receive_is_checked_only_as_far_as_the_message_reaches() {
    let mut t = Script::new();
    t.post_recv(1, &[bad_sge(&t, 8)]);
    t.post_recv(2, &[t.sge(0, 2), bad_sge(&t, 8)]);
    t.post_recv(3, &[t.sge(0, MTU as u32), bad_sge(&t, 8)]);
    t.receive(&[
        pkt(Opcode::RC_SEND_ONLY, 100),
        pkt(Opcode::RC_SEND_ONLY, 101).payload(b"ab").ack_req(),
    ]);
    t.expect(ack(101, 2));
    t.expect_recv(1, WcStatus::Success);
    t.expect_recv(2, WcStatus::Success);
    assert_eq!(t.memory(0, 2), b"ab");
    // The first packet fits, the second one does not.
    t.receive(&[
        pkt(Opcode::RC_SEND_FIRST, 102).payload(&bytes(1, MTU)),
        pkt(Opcode::RC_SEND_LAST, 103).payload(b"x").ack_req(),
    ]);
    t.expect(nak(NakCode::RemoteOperational, 103, 2));
    t.expect_recv(3, WcStatus::LocalProtection);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn the_receive_that_immediate_data_of_a_write_takes_is_not_written_to_and_not_checked() {
    let mut t = Script::new();
    let key = t.key;
    t.post_recv(1, &[bad_sge(&t, 8)]);
    let write = pkt(Opcode::RC_WRITE_ONLY_IMM, 100).reth(VA, key, 1).imm(5).payload(b"w");
    t.receive(&[write.ack_req()]);
    t.expect(ack(100, 1));
    t.expect_recv(1, WcStatus::Success);
}

// Receiver not ready.

#[test]
fn without_a_receive_there_is_one_rnr_nak_and_then_silence_until_the_repeat() {
    let mut t = Script::new();
    t.receive(&[
        pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
        pkt(Opcode::RC_SEND_LAST, 101).payload(b"x").ack_req(),
        pkt(Opcode::RC_SEND_ONLY, 102).ack_req(),
    ]);
    t.expect(rnr(12, 100, 0));
    t.expect_nothing();
    t.post_recv(1, &[t.sge(0, 300)]);
    t.receive(&[
        pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
        pkt(Opcode::RC_SEND_LAST, 101).payload(b"x").ack_req(),
    ]);
    t.expect(ack(101, 1));
    assert_eq!(t.expect_recv(1, WcStatus::Success).byte_len, 257);
}

#[test]
fn write_with_immediate_needs_its_receive_at_the_last_packet() {
    let mut t = Script::new();
    let key = t.key;
    let last = pkt(Opcode::RC_WRITE_LAST_IMM, 101).imm(5).payload(b"yz").ack_req();
    t.receive(&[
        pkt(Opcode::RC_WRITE_FIRST, 100).reth(VA, key, 258).payload(&bytes(1, MTU)),
        last.clone(),
    ]);
    t.expect(rnr(12, 101, 0));
    t.post_recv(9, &[]);
    t.receive(&[last]);
    t.expect(ack(101, 1));
    let completion = t.expect_recv(9, WcStatus::Success);
    assert_eq!(completion.opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!((completion.byte_len, completion.extra), (258, Extra::Imm(5)));
    assert_eq!(t.memory(256, 2), b"yz");
}

#[test]
fn a_solicited_write_with_immediate_says_so() {
    let mut t = Script::new();
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY_IMM, psn).reth(VA, key, 1).imm(5).payload(b"x");
    t.post_recv(1, &[]);
    t.post_recv(2, &[]);
    t.receive(&[write(100), write(101).solicited()]);
    assert!(!t.expect_recv(1, WcStatus::Success).solicited);
    assert!(t.expect_recv(2, WcStatus::Success).solicited);
}

// WRITE.

#[test]
fn write_in_packets_lands_in_memory_without_a_completion() {
    let mut t = Script::new();
    let (key, data) = (t.key, bytes(3, 520));
    t.receive(&[
        pkt(Opcode::RC_WRITE_FIRST, 100).reth(VA + 5, key, 520).payload(&data[..256]),
        pkt(Opcode::RC_WRITE_MIDDLE, 101).payload(&data[256..512]),
        pkt(Opcode::RC_WRITE_LAST, 102).payload(&data[512..]).ack_req(),
    ]);
    t.expect(ack(102, 1));
    assert_eq!(t.memory(5, 520), data);
    t.expect_no_completion();
}

#[test]
fn the_key_of_a_write_of_nothing_is_not_checked() {
    let mut t = Script::new();
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(0, 0xbad, 0).ack_req()]);
    t.expect(ack(100, 1));
}

/// A WRITE that must be refused for access, with nothing of it done.
fn refused_write(change: impl FnOnce(&Script) -> (u64, u32, u32)) {
    let mut t = Script::new();
    let (va, key, len) = change(&t);
    t.receive(&[pkt(Opcode::RC_WRITE_FIRST, 100).reth(va, key, len).payload(&bytes(1, MTU))]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.program.events, [AsyncEvent::QpAccessError(t.qpn)]);
    assert!(t.program.memory.iter().all(|&byte| byte == 0));
}

#[test]
fn write_with_a_wrong_key_is_refused() {
    refused_write(|t| (VA, t.key ^ 1, 300));
}

#[test]
fn write_that_would_reach_past_the_end_is_refused_at_its_first_packet() {
    refused_write(|t| (VA + 65_536 - 257, t.key, 258));
}

#[test]
fn write_before_the_start_is_refused() {
    refused_write(|t| (VA - 1, t.key, 300));
}

#[test]
fn write_that_wraps_the_address_space_is_refused() {
    refused_write(|t| (u64::MAX, t.key, 300));
}

#[test]
fn write_to_a_qp_that_does_not_allow_it_is_an_invalid_request() {
    let mut t = Script::with(QpAttr { access: Some(Access::LOCAL_WRITE), ..usual() });
    let key = t.key;
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x")]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
    assert_eq!(t.program.events, [AsyncEvent::QpRequestError(t.qpn)]);
}

// READ.

#[test]
fn read_is_answered_with_first_middle_last() {
    let mut t = Script::new();
    let (key, data) = (t.key, bytes(9, 600));
    t.fill(10, &data);
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA + 10, key, 600)]);
    let response =
        |opcode, psn, range: std::ops::Range<usize>| pkt(opcode, psn).payload(&data[range]);
    t.expect(response(Opcode::RC_READ_RESPONSE_FIRST, 100, 0..256).aeth(Syndrome::ACK, 1));
    t.expect(response(Opcode::RC_READ_RESPONSE_MIDDLE, 101, 256..512));
    t.expect(response(Opcode::RC_READ_RESPONSE_LAST, 102, 512..600).aeth(Syndrome::ACK, 1));
    t.expect_nothing();
    t.post_recv(1, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 103).ack_req()]);
    t.expect(ack(103, 2));
}

#[test]
fn read_of_nothing_is_answered_with_nothing_whatever_its_key() {
    let mut t = Script::new();
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(0, 0xbad, 0)]);
    t.expect(pkt(Opcode::RC_READ_RESPONSE_ONLY, 100).aeth(Syndrome::ACK, 1));
}

#[test]
fn read_without_the_right_is_refused() {
    let mut t = Script::new();
    let wrong = t.key ^ 1;
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, wrong, 8)]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
}

#[test]
fn an_ack_does_not_overtake_the_responses_before_it() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[
        pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"a").ack_req(),
        pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, key, 257),
        pkt(Opcode::RC_WRITE_ONLY, 103).reth(VA + 900, key, 1).payload(b"b").ack_req(),
    ]);
    let order: Vec<_> =
        t.sent().iter().map(|p| (p.headers.body.opcode(), p.headers.bth.psn.get())).collect();
    assert_eq!(
        order,
        [
            (Opcode::RC_ACK, 100),
            (Opcode::RC_READ_RESPONSE_FIRST, 101),
            (Opcode::RC_READ_RESPONSE_LAST, 102),
            (Opcode::RC_ACK, 103),
        ]
    );
}

#[test]
fn more_reads_than_the_qp_takes_are_an_invalid_request() {
    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(2), ..usual() });
    let key = t.key;
    let read = |psn| pkt(Opcode::RC_READ_REQUEST, psn).reth(VA, key, 1);
    t.receive(&[read(100), read(101), read(102)]);
    let sent = t.sent();
    assert_eq!(sent.len(), 3);
    assert_eq!(
        sent[2].headers.body.aeth().unwrap().syndrome,
        Syndrome::Nak(NakCode::InvalidRequest)
    );
}

#[test]
fn read_of_memory_deregistered_meanwhile_ends_in_a_nak() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 600)]);
    t.device.dereg_mr(Lkey(key)).unwrap();
    t.expect(nak(NakCode::RemoteAccess, 100, 1));
    assert_eq!(t.state(), QpState::Err);
}

// Atomics.

#[test]
fn compare_and_swap_swaps_only_what_compares() {
    let mut t = Script::new();
    let key = t.key;
    t.fill(8, &7u64.to_ne_bytes());
    t.receive(&[pkt(Opcode::RC_COMPARE_SWAP, 100).atomic(VA + 8, key, 9, 7)]);
    t.expect(pkt(Opcode::RC_ATOMIC_ACK, 100).aeth(Syndrome::ACK, 1).original(7));
    t.receive(&[pkt(Opcode::RC_COMPARE_SWAP, 101).atomic(VA + 8, key, 11, 7)]);
    t.expect(pkt(Opcode::RC_ATOMIC_ACK, 101).aeth(Syndrome::ACK, 2).original(9));
    assert_eq!(t.memory(8, 8), 9u64.to_ne_bytes());
}

#[test]
fn fetch_and_add_wraps() {
    let mut t = Script::new();
    let key = t.key;
    t.fill(0, &u64::MAX.to_ne_bytes());
    t.receive(&[pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA, key, 3, 0)]);
    t.expect(pkt(Opcode::RC_ATOMIC_ACK, 100).aeth(Syndrome::ACK, 1).original(u64::MAX));
    assert_eq!(t.memory(0, 8), 2u64.to_ne_bytes());
}

#[test]
fn atomic_at_an_address_not_a_multiple_of_eight_is_an_invalid_request() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA + 4, key, 3, 0)]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
}

// Duplicates.

#[test]
fn a_repeated_write_is_acknowledged_and_not_done_again() {
    let mut t = Script::new();
    let key = t.key;
    let write = |data: &[u8]| pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(data);
    t.receive(&[write(b"a").ack_req()]);
    t.expect(ack(100, 1));
    t.receive(&[write(b"b").ack_req()]);
    t.expect(ack(100, 1));
    assert_eq!(t.memory(0, 1), b"a");
    assert_eq!(t.counted(Counter::DuplicateRequests), 1);
}

#[test]
fn a_repeated_send_consumes_no_second_receive() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 8)]);
    t.post_recv(2, &[t.sge(8, 8)]);
    let send = pkt(Opcode::RC_SEND_ONLY, 100).payload(b"x").ack_req();
    t.receive(&[send.clone(), send]);
    t.expect(ack(100, 1));
    t.expect_recv(1, WcStatus::Success);
    t.expect_no_completion();
}

#[test]
fn a_repeated_atomic_is_answered_from_memory_of_its_result() {
    let mut t = Script::new();
    let key = t.key;
    let add = pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA, key, 5, 0);
    let answer = pkt(Opcode::RC_ATOMIC_ACK, 100).aeth(Syndrome::ACK, 1).original(0);
    t.receive(std::slice::from_ref(&add));
    t.expect(answer.clone());
    t.receive(&[add]);
    t.expect(answer);
    assert_eq!(t.memory(0, 8), 5u64.to_ne_bytes());
}

#[test]
fn a_repeated_read_is_answered_from_where_it_asks() {
    let mut t = Script::new();
    let (key, data) = (t.key, bytes(1, 600));
    t.fill(0, &data);
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 600)]);
    assert_eq!(t.sent().len(), 3);
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 101).reth(VA + 256, key, 344)]);
    let first = pkt(Opcode::RC_READ_RESPONSE_FIRST, 101).payload(&data[256..512]);
    t.expect(first.aeth(Syndrome::ACK, 1));
    let last = pkt(Opcode::RC_READ_RESPONSE_LAST, 102).payload(&data[512..600]);
    t.expect(last.aeth(Syndrome::ACK, 1));
}

#[test]
fn repeated_reads_do_not_pile_up_answers() {
    let mut t = Script::new();
    let key = t.key;
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 600);
    t.receive(&vec![read; 50]);
    assert_eq!(t.sent().len(), 3);
}

#[test]
fn a_read_or_atomic_repeated_too_late_is_dropped() {
    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(1), ..usual() });
    let key = t.key;
    let add = |psn| pkt(Opcode::RC_FETCH_ADD, psn).atomic(VA, key, 1, 0);
    t.receive(&[add(100)]);
    t.sent();
    t.receive(&[add(101)]);
    t.sent();
    t.receive(&[add(100)]);
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropUnknownDuplicate), 1);
}

// Order.

#[test]
fn a_gap_is_answered_by_one_nak_and_then_silence_until_it_is_filled() {
    let mut t = Script::new();
    t.agree(Capabilities::default());
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req();
    t.receive(&[write(100), write(102), write(103)]);
    t.expect(ack(100, 1));
    t.expect(nak(NakCode::SequenceError, 101, 1));
    t.receive(&[write(104)]);
    t.expect_nothing();
    t.receive(&[write(101)]);
    t.expect(ack(104, 5));
    t.receive(&[write(106), write(108)]);
    t.expect(nak(NakCode::SequenceError, 105, 5));
    t.receive(&[write(105)]);
    t.expect(ack(106, 7));
    t.expect(nak(NakCode::SequenceError, 107, 7));
    t.expect_nothing();
}

#[test]
fn naks_do_not_pile_up_while_nothing_can_be_sent() {
    let mut t = Script::keeping(EarlyLimits { bytes_per_qp: 0, ..EarlyLimits::default() });
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req();
    let pairs: Vec<_> = (100..2100).flat_map(|psn| [write(psn + 1), write(psn)]).collect();
    t.receive(&pairs);
    let held_back = t.counted(Counter::NaksHeldBack);
    assert_eq!(t.counted(Counter::SequenceNaksSent) + held_back, 2000);
    let sent = t.sent();
    assert!(sent.len() <= urxe_engine::limits::MAX_WAITING_REPLIES + 1, "{} replies", sent.len());
    assert_eq!(sent.last(), Some(&to_peer(ack(2099, 2000))), "the last word is what is done");
    t.receive(&[write(2102), write(2100)]);
    t.expect(nak(NakCode::SequenceError, 2100, 2001));
    t.expect(ack(2100, 2001));
}

#[test]
fn psns_wrap_around() {
    let mut t = Script::with(QpAttr { rq_psn: Some(Psn::new(0xff_ffff)), ..usual() });
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req();
    t.receive(&[write(0xff_ffff), write(0)]);
    t.expect(ack(0, 2));
    t.receive(&[write(0xff_ffff)]);
    t.expect(ack(0, 2));
}

#[test]
fn many_requests_of_one_batch_share_one_ack() {
    let mut t = Script::new();
    let key = t.key;
    let packets: Vec<_> = (100..150)
        .map(|psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req())
        .collect();
    t.receive(&packets);
    t.expect(ack(149, 50));
    t.expect_nothing();
}

#[test]
fn a_request_that_does_not_ask_is_not_acknowledged() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"a")]);
    t.expect_nothing();
}

// Requests that break the rules.

/// Packets of which the last must be refused as an invalid request.
fn invalid_request(packets: impl FnOnce(&Script) -> Vec<Pkt>) {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 4096)]);
    let packets = packets(&t);
    let refused = packets.last().unwrap().headers.bth.psn.get();
    t.receive(&packets);
    t.expect(nak(NakCode::InvalidRequest, refused, 0));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.counted(Counter::InvalidRequestNaksSent), 1);
}

#[test]
fn a_middle_packet_without_a_first_is_invalid() {
    invalid_request(|_| vec![pkt(Opcode::RC_SEND_MIDDLE, 100).payload(&bytes(0, MTU))]);
}

#[test]
fn a_new_message_inside_another_is_invalid() {
    invalid_request(|_| {
        vec![
            pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
            pkt(Opcode::RC_SEND_ONLY, 101),
        ]
    });
}

#[test]
fn a_write_going_on_as_a_send_is_invalid() {
    invalid_request(|t| {
        vec![
            pkt(Opcode::RC_WRITE_FIRST, 100).reth(VA, t.key, 300).payload(&bytes(0, MTU)),
            pkt(Opcode::RC_SEND_LAST, 101).payload(b"x"),
        ]
    });
}

#[test]
fn a_first_packet_that_is_not_full_is_invalid() {
    invalid_request(|_| vec![pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU - 1))]);
}

#[test]
fn a_packet_longer_than_the_path_mtu_is_invalid() {
    invalid_request(|_| vec![pkt(Opcode::RC_SEND_ONLY, 100).payload(&bytes(0, MTU + 1))]);
}

#[test]
fn a_last_packet_of_nothing_is_invalid() {
    invalid_request(|_| {
        vec![
            pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
            pkt(Opcode::RC_SEND_LAST, 101),
        ]
    });
}

#[test]
fn a_write_with_more_data_than_it_said_is_invalid() {
    invalid_request(|t| {
        vec![
            pkt(Opcode::RC_WRITE_FIRST, 100).reth(VA, t.key, 258).payload(&bytes(0, MTU)),
            pkt(Opcode::RC_WRITE_LAST, 101).payload(b"xyz"),
        ]
    });
}

#[test]
fn a_write_with_less_data_than_it_said_is_invalid() {
    invalid_request(|t| vec![pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, t.key, 3).payload(b"xy")]);
}

#[test]
fn a_request_longer_than_two_gigabytes_is_invalid() {
    invalid_request(|t| vec![pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, (1 << 31) + 1)]);
}

// Our own side fails.

#[test]
fn memory_that_is_gone_is_a_remote_operational_error() {
    let mut t = Script::new();
    let key = t.key;
    t.program.unmapped = true;
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x").ack_req()]);
    t.expect(nak(NakCode::RemoteOperational, 100, 0));
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_write_that_cannot_be_made_visible_is_not_acknowledged() {
    let mut t = Script::new();
    let key = t.key;
    t.program.sync_fails = true;
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x").ack_req()]);
    t.expect(nak(NakCode::RemoteOperational, 100, 1));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn an_atomic_that_cannot_be_made_visible_is_not_answered() {
    let mut t = Script::new();
    let key = t.key;
    t.program.sync_fails = true;
    t.receive(&[pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA, key, 1, 0)]);
    t.expect(nak(NakCode::RemoteOperational, 100, 1));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_receive_completion_without_room_on_the_cq_fails_the_qp() {
    let mut t = Script::new();
    t.program.full.insert(RCQ);
    t.post_recv(1, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).ack_req()]);
    assert_eq!(t.state(), QpState::Err);
    assert!(t.counted(Counter::CqOverruns) > 0);
}

// What is dropped, and under which name.

#[track_caller]
fn dropped(t: &mut Script, counter: Counter, packet: Pkt) {
    t.receive_from(PEER, &packet);
    t.expect_nothing();
    assert_eq!(t.counted(counter), 1, "{}", counter.name());
}

/// A packet as the device sends it.
fn to_peer(mut packet: Pkt) -> Pkt {
    packet.headers.bth.dest_qp = Qpn::new(PEER_QPN);
    packet
}

fn to_qp(t: &Script, mut packet: Pkt) -> Pkt {
    packet.headers.bth.dest_qp = t.qpn;
    packet
}

#[test]
fn a_packet_for_no_qp_is_counted() {
    let mut t = Script::new();
    let mut packet = pkt(Opcode::RC_SEND_ONLY, 100);
    packet.headers.bth.dest_qp = Qpn::new(t.qpn.get() + 1);
    dropped(&mut t, Counter::DropUnknownQp, packet);
}

#[test]
fn a_packet_of_another_service_is_counted() {
    let mut t = Script::new();
    let packet = to_qp(&t, pkt(Opcode::UC_SEND_ONLY, 100));
    dropped(&mut t, Counter::DropWrongTransport, packet);
}

#[test]
fn a_packet_of_another_partition_is_counted() {
    let mut t = Script::new();
    let mut packet = to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100));
    packet.headers.bth.pkey = Pkey(0x1234);
    dropped(&mut t, Counter::DropBadPkey, packet);
}

#[test]
fn a_packet_of_another_host_is_counted() {
    let mut t = Script::new();
    let packet = to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100));
    t.receive_from("10.0.0.3".parse().unwrap(), &packet);
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropWrongAddress), 1);
}

#[test]
fn a_damaged_packet_is_counted() {
    let mut t = Script::new();
    let (outer, mut bytes) = datagram(PEER, &to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100)));
    bytes[9] ^= 1;
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes);
    assert_eq!(t.counted(Counter::DropBadIcrc), 1);
}

#[test]
fn a_packet_too_short_to_be_one_is_counted() {
    let mut t = Script::new();
    let (outer, bytes) = datagram(PEER, &to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100)));
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes[..15]);
    assert_eq!(t.counted(Counter::DropTooShort), 1);
}

#[test]
fn a_packet_before_rtr_is_counted() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    let packet = to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100));
    dropped(&mut t, Counter::DropQpNotReady, packet);
}

#[test]
fn a_packet_in_err_is_counted() {
    let mut t = Script::new();
    t.enter(QpState::Err);
    let packet = to_qp(&t, pkt(Opcode::RC_SEND_ONLY, 100));
    dropped(&mut t, Counter::DropQpNotReady, packet);
}

#[test]
fn the_first_packet_in_rtr_tells_that_communication_is_established() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    t.enter_rtr(&usual()).unwrap();
    let (key, qpn) = (t.key, t.qpn);
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req();
    t.receive(&[write(100), write(101)]);
    t.expect(ack(101, 2));
    assert_eq!(t.program.events, [AsyncEvent::CommunicationEstablished(qpn)]);
}
