//! Responses that a completer must not take as they come, as scripts.

mod script;

use script::*;
use urxe_engine::{Cause, Counter};
use urxe_types::{Extra, QpState, Rkey, SendOp, WcStatus};
use urxe_wire::{NakCode, Opcode, Syndrome};

const SEND: SendOp = SendOp::Send(Extra::None);
const READ: SendOp = SendOp::Read { remote_addr: 0x7000, rkey: Rkey(7) };
const ADD: SendOp = SendOp::FetchAdd { remote_addr: 0x7000, rkey: Rkey(7), add: 1 };

#[test]
fn an_ack_inside_a_message_completes_what_ended_before_it() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.post(2, SEND, &[t.sge(0, 600)]);
    t.sent();
    t.receive(&[ack(202, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_no_completion();
    t.receive(&[ack(203, 2)]);
    t.expect_send(2, WcStatus::Success);
}

/// One work request, and a response to it that is none.
#[track_caller]
fn bad_response(op: SendOp, length: u32, response: Pkt) {
    // Of a path that is not known READs ask for single packets.
    let mut t = Script::reading();
    t.post(1, op, &[t.sge(0, length)]);
    t.sent();
    t.receive(&[response]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::BadResponse);
    assert_eq!(completion.vendor_err, Cause::BadResponse as u32);
    t.expect_no_completion();
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.memory(0, length as usize), vec![0; length as usize]);
}

#[test]
fn a_read_response_that_ends_too_early_or_too_late_is_bad() {
    let response = |opcode, len| pkt(opcode, 200).payload(&bytes(1, len)).aeth(Syndrome::ACK, 1);
    bad_response(READ, 600, response(Opcode::RC_READ_RESPONSE_ONLY, 256));
    bad_response(READ, 600, response(Opcode::RC_READ_RESPONSE_LAST, 256));
    bad_response(READ, 200, response(Opcode::RC_READ_RESPONSE_FIRST, 200));
    bad_response(READ, 200, pkt(Opcode::RC_READ_RESPONSE_MIDDLE, 200).payload(&bytes(1, 200)));
}

#[test]
fn a_read_response_that_goes_on_with_what_has_not_begun_is_bad() {
    let last = pkt(Opcode::RC_READ_RESPONSE_LAST, 200).payload(&bytes(1, 200));
    bad_response(READ, 200, last.aeth(Syndrome::ACK, 1));
    bad_response(READ, 600, pkt(Opcode::RC_READ_RESPONSE_MIDDLE, 200).payload(&bytes(1, 256)));
}

#[test]
fn data_that_was_not_asked_for_is_a_bad_response() {
    let data = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[1; 8]).aeth(Syndrome::ACK, 1);
    let number = pkt(Opcode::RC_ATOMIC_ACK, 200).original(1).aeth(Syndrome::ACK, 1);
    bad_response(SEND, 8, data.clone());
    bad_response(SEND, 8, number.clone());
    bad_response(READ, 8, number);
    bad_response(ADD, 8, data);
}

#[test]
fn a_syndrome_without_a_meaning_is_a_bad_response() {
    for syndrome in [
        Syndrome::Reserved(0x40),
        Syndrome::Reserved(0xff),
        Syndrome::Nak(NakCode::InvalidRd),
        Syndrome::Nak(NakCode::Other(5)),
    ] {
        bad_response(SEND, 8, pkt(Opcode::RC_ACK, 200).aeth(syndrome, 1));
    }
    let nak = Syndrome::Nak(NakCode::RemoteAccess);
    let data = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).payload(&[1; 8]);
    bad_response(READ, 8, data.aeth(nak, 1));
    bad_response(ADD, 8, pkt(Opcode::RC_ATOMIC_ACK, 200).original(1).aeth(nak, 1));
}

#[test]
fn a_read_response_that_comes_twice_changes_nothing() {
    let mut t = Script::reading();
    let data = bytes(3, 600);
    t.post(1, READ, &[t.sge(0, 600)]);
    t.sent();
    let first = |data: &[u8]| pkt(Opcode::RC_READ_RESPONSE_FIRST, 200).payload(data);
    t.receive(&[
        first(&data[..256]).aeth(Syndrome::ACK, 1),
        first(&[0xee; 256]).aeth(Syndrome::ACK, 1),
        pkt(Opcode::RC_READ_RESPONSE_MIDDLE, 201).payload(&data[256..512]),
        pkt(Opcode::RC_READ_RESPONSE_LAST, 202).payload(&data[512..]).aeth(Syndrome::ACK, 1),
    ]);
    t.expect_send(1, WcStatus::Success);
    t.expect_nothing();
    assert_eq!(t.memory(0, 600), data);
    assert_eq!(t.counted(Counter::StaleResponses), 1);
}

#[test]
fn an_error_counts_as_solicited() {
    let mut t = Script::new();
    t.post_recv(9, &[]);
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    t.receive(&[nak(NakCode::RemoteAccess, 201, 1)]);
    assert!(!t.expect_send(1, WcStatus::Success).solicited);
    assert!(t.expect_send(2, WcStatus::RemoteAccess).solicited);
    assert!(t.expect_send(3, WcStatus::WrFlush).solicited);
    assert!(t.expect_recv(9, WcStatus::WrFlush).solicited);
}
