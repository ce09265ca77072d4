//! ATOMIC WRITE, as scripts: the responder, then the requester.

mod script;

use script::*;
use urxe_engine::{Cause, Counter};
use urxe_types::{Access, Extra, QpAttr, QpState, Rkey, SendOp, WcOpcode, WcStatus};
use urxe_wire::{NakCode, Opcode, Syndrome};

const WORD: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn request(t: &Script, psn: u32, word: [u8; 8]) -> Pkt {
    pkt(Opcode::RC_ATOMIC_WRITE, psn).reth(VA, t.key, 8).payload(&word).ack_req()
}

/// The answer: a READ response of nothing.
fn done(psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(Syndrome::ACK, msn)
}

// The responder.

#[test]
fn eight_bytes_are_written_and_answered_by_a_read_response_of_nothing() {
    let mut t = Script::new();
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(done(100, 1));
    t.expect_nothing();
    assert_eq!(t.memory(0, 9), [1, 2, 3, 4, 5, 6, 7, 8, 0]);
    assert_eq!(t.counted(Counter::ReceivedMessages), 1);
    t.expect_no_completion();
}

#[test]
fn it_is_carried_out_in_order_with_what_is_around_it() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[
        pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 8).payload(&[9; 8]),
        request(&t, 101, WORD),
        pkt(Opcode::RC_WRITE_ONLY, 102).reth(VA, key, 1).payload(b"z").ack_req(),
    ]);
    t.expect(done(101, 2));
    t.expect(ack(102, 3));
    assert_eq!(t.memory(0, 8), *b"z\x02\x03\x04\x05\x06\x07\x08");
}

/// The request is an invalid one; nothing is written.
fn invalid(change: impl FnOnce(Pkt) -> Pkt) {
    let mut t = Script::new();
    let before = t.program.memory.clone();
    t.receive(&[change(request(&t, 100, WORD))]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.program.memory, before);
}

#[test]
fn one_of_another_length_than_eight_is_invalid() {
    let key = Script::new().key;
    for len in [0, 1, 7, 9, 256] {
        invalid(|request| request.payload(&bytes(1, len)));
        invalid(|request| request.payload(&bytes(1, len)).reth(VA, key, len as u32));
        invalid(|request| request.reth(VA, key, len as u32));
    }
}

#[test]
fn one_of_nothing_does_not_pass_by_its_key_unchecked() {
    invalid(|request| request.payload(&[]).reth(VA, 0xdead_beef, 0));
}

#[test]
fn one_at_an_address_not_a_multiple_of_eight_is_invalid() {
    let key = Script::new().key;
    for offset in [1, 4, 7] {
        invalid(|request| request.reth(VA + offset, key, 8));
    }
}

#[test]
fn it_needs_remote_write_of_the_qp_and_of_the_key() {
    let mut t = Script::with(QpAttr { access: Some(Access::REMOTE_ATOMIC), ..usual() });
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));

    let mut t = Script::new();
    t.key = t.reg_mr(PD, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));

    let mut t = Script::new();
    let beyond = pkt(Opcode::RC_ATOMIC_WRITE, 100).reth(VA + 65_536, t.key, 8).payload(&WORD);
    t.receive(&[beyond]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
}

#[test]
fn a_repeated_one_is_answered_again_and_not_done_again() {
    let mut t = Script::new();
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(done(100, 1));
    t.fill(0, &[9; 8]);
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(done(100, 1));
    assert_eq!(t.memory(0, 8), [9; 8]);
    assert_eq!(t.counted(Counter::AtomicsReplayed), 1);
}

#[test]
fn repeats_do_not_pile_up_answers() {
    let mut t = Script::new();
    let again = vec![request(&t, 100, WORD); 50];
    t.receive(&again);
    assert_eq!(t.sent().len(), 1);
}

#[test]
fn one_repeated_too_late_is_dropped() {
    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(1), ..usual() });
    for psn in [100, 101] {
        t.receive(&[request(&t, psn, WORD)]);
        t.expect(done(psn, psn - 99));
    }
    t.receive(&[request(&t, 100, WORD)]);
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropUnknownDuplicate), 1);
}

#[test]
fn more_than_max_dest_rd_atomic_at_once_are_an_invalid_request() {
    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(2), ..usual() });
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, 8);
    let atomic = pkt(Opcode::RC_FETCH_ADD, 102).atomic(VA + 8, t.key, 1, 0);
    t.receive(&[read, request(&t, 101, WORD), atomic]);
    let sent = t.sent();
    assert_eq!(sent.len(), 3);
    let refusal = nak(NakCode::InvalidRequest, 102, 2);
    assert_eq!(sent[2].headers.body.aeth(), refusal.headers.body.aeth());
    assert_eq!(t.memory(8, 8), [0; 8]);

    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(0), ..usual() });
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
}

#[test]
fn memory_that_is_gone_is_a_remote_operational_error() {
    let mut t = Script::new();
    t.program.unmapped = true;
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(nak(NakCode::RemoteOperational, 100, 0));
}

#[test]
fn one_that_cannot_be_made_visible_is_not_answered() {
    let mut t = Script::new();
    t.program.sync_fails = true;
    t.receive(&[request(&t, 100, WORD)]);
    t.expect(nak(NakCode::RemoteOperational, 100, 1));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
}

// The requester.

const OP: SendOp = SendOp::AtomicWrite { remote_addr: 0x5000, rkey: Rkey(9) };

fn sent_request(psn: u32, word: [u8; 8]) -> Pkt {
    pkt(Opcode::RC_ATOMIC_WRITE, psn).reth(0x5000, 9, 8).payload(&word).ack_req()
}

#[test]
fn it_is_asked_for_in_one_packet_and_completes_with_its_answer() {
    let mut t = Script::new();
    t.fill(0, &WORD);
    t.post(1, OP, &[t.sge(0, 3), t.sge(3, 5)]);
    t.expect(sent_request(200, WORD));
    t.receive(&[done(200, 1)]);
    let completion = t.expect_send(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::AtomicWrite, 8));
}

#[test]
fn its_bytes_may_be_inline() {
    let mut t = Script::new();
    t.post_with(1, OP, &[], |wqe| wqe.inline = Some(WORD.to_vec()));
    t.expect(sent_request(200, WORD));
}

#[test]
fn eight_bytes_it_must_be() {
    for len in [0, 7, 9] {
        let mut t = Script::new();
        t.post(1, OP, &[t.sge(0, len)]);
        t.expect_nothing();
        let completion = t.expect_send(1, WcStatus::LocalLength);
        assert_eq!(completion.vendor_err, Cause::LocalLength as u32);

        let mut t = Script::new();
        t.post_with(1, OP, &[], |wqe| wqe.inline = Some(vec![0; len as usize]));
        t.expect_nothing();
        t.expect_send(1, WcStatus::LocalLength);
    }
}

#[test]
fn a_bad_lkey_fails_in_its_turn() {
    let mut t = Script::new();
    let mut sge = t.sge(0, 8);
    sge.lkey.0 ^= 1;
    t.post(1, OP, &[sge]);
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::LocalProtection).vendor_err, Cause::LocalKey as u32);
}

#[test]
fn it_takes_a_place_of_max_rd_atomic() {
    let mut t = Script::with(QpAttr { max_rd_atomic: Some(2), ..usual() });
    for wr_id in 1..=3 {
        t.post(wr_id, OP, &[t.sge(0, 8)]);
    }
    assert_eq!(t.sent().len(), 2);
    t.receive(&[done(200, 1)]);
    t.expect(sent_request(202, [0; 8]));

    let mut t = Script::with(QpAttr { max_rd_atomic: Some(0), ..usual() });
    t.post(1, OP, &[t.sge(0, 8)]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::LocalQpOperation);
    assert_eq!(completion.vendor_err, Cause::NoReadsAllowed as u32);
}

#[test]
fn a_fence_waits_for_it() {
    let mut t = Script::new();
    t.post(1, OP, &[t.sge(0, 8)]);
    t.post_with(2, SendOp::Send(Extra::None), &[], |wqe| wqe.wr.fence = true);
    t.expect(sent_request(200, [0; 8]));
    t.expect_nothing();
    t.receive(&[done(200, 1)]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
}

#[test]
fn a_lost_one_is_asked_for_again() {
    let mut t = Script::new();
    t.post(1, OP, &[t.sge(0, 8)]);
    t.expect(sent_request(200, [0; 8]));
    t.wait(ACK_TIMEOUT);
    t.expect(sent_request(200, [0; 8]));
    t.receive(&[done(200, 1)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn no_ack_stands_for_its_answer() {
    let mut t = Script::new();
    t.post(1, OP, &[t.sge(0, 8)]);
    t.post(2, SendOp::Send(Extra::None), &[]);
    t.sent();
    t.receive(&[ack(201, 2)]);
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::ImpliedNaks), 1);
    t.expect(sent_request(200, [0; 8]));
    t.expect_nothing();
}

#[test]
fn an_answer_that_brings_data_is_a_bad_response() {
    let answers = [
        done(200, 1).payload(&WORD),
        pkt(Opcode::RC_READ_RESPONSE_FIRST, 200).aeth(Syndrome::ACK, 1).payload(&bytes(0, MTU)),
        pkt(Opcode::RC_READ_RESPONSE_LAST, 200).aeth(Syndrome::ACK, 1),
        pkt(Opcode::RC_ATOMIC_ACK, 200).aeth(Syndrome::ACK, 1).original(5),
    ];
    for answer in answers {
        let mut t = Script::new();
        t.post(1, OP, &[t.sge(0, 8)]);
        t.sent();
        t.receive(&[answer]);
        assert_eq!(t.expect_send(1, WcStatus::BadResponse).vendor_err, Cause::BadResponse as u32);
        assert_eq!(t.counted(Counter::BadResponses), 1);
    }
}

#[test]
fn a_refusal_fails_it() {
    let mut t = Script::new();
    t.post(1, OP, &[t.sge(0, 8)]);
    t.sent();
    t.receive(&[nak(NakCode::RemoteAccess, 200, 0)]);
    t.expect_send(1, WcStatus::RemoteAccess);
}
