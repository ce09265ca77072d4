//! FLUSH, as scripts: the responder, then the requester.

mod script;

use script::*;
use urxe_engine::limits::MAX_WAITING_REPLIES;
use urxe_engine::{AsyncEvent, Cause, Counter};
use urxe_types::{
    Access, Extra, FlushPlacement, FlushSelectivity, MwType, QpAttr, QpState, Rkey, SendOp,
    WcOpcode, WcStatus,
};
use urxe_wire::{NakCode, Opcode, Syndrome};

const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 2;
const RANGE: u8 = 0;
const WHOLE_MR: u8 = 1;

/// A QP whose peer may FLUSH, and whose MR lets it.
fn script() -> Script {
    let access = usual().access.unwrap() | Access::FLUSH_GLOBAL;
    let mut t = Script::with(QpAttr { access: Some(access), ..usual() });
    t.key = t.reg_mr(PD, access | Access::MW_BIND);
    t
}

fn request(t: &Script, psn: u32) -> Pkt {
    pkt(Opcode::RC_FLUSH, psn).reth(VA, t.key, 64).feth(GLOBAL, RANGE).ack_req()
}

/// The answer: a READ response of nothing.
fn done(psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(Syndrome::ACK, msn)
}

// The responder.

#[test]
fn a_flush_is_answered_by_a_read_response_of_nothing() {
    let mut t = script();
    let write = pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, t.key, 1).payload(b"x");
    t.receive(&[write, request(&t, 101)]);
    t.expect(done(101, 2));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::ReceivedMessages), 2);
}

#[test]
fn a_flush_of_data_that_cannot_be_made_visible_fails() {
    let mut t = script();
    t.program.sync_fails = true;
    let write = pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, t.key, 1).payload(b"x");
    t.receive(&[write, request(&t, 101)]);
    t.expect(nak(NakCode::RemoteOperational, 100, 2));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_flush_of_the_whole_mr_has_no_range_to_be_checked() {
    let mut t = script();
    let key = t.key;
    let request = pkt(Opcode::RC_FLUSH, 100).reth(0, key, 1 << 30).feth(GLOBAL, WHOLE_MR);
    t.receive(&[request]);
    t.expect(done(100, 1));
}

/// The request is refused like this.
fn refused(code: NakCode, change: impl FnOnce(&mut Script, Pkt) -> Pkt) {
    let mut t = script();
    let good = request(&t, 100);
    let request = change(&mut t, good);
    t.receive(&[request]);
    t.expect(nak(code, 100, 0));
    assert_eq!(t.state(), QpState::Err);
    let event = match code {
        NakCode::InvalidRequest => AsyncEvent::QpRequestError(t.qpn),
        _ => AsyncEvent::QpAccessError(t.qpn),
    };
    assert_eq!(t.program.events, [event]);
}

#[test]
fn the_range_of_a_flush_is_inside_of_the_mr() {
    for (va, len) in [(VA - 1, 2), (VA + 65_535, 2), (VA, 65_537), (u64::MAX, 2)] {
        refused(NakCode::RemoteAccess, |t, request| request.reth(va, t.key, len));
    }
}

#[test]
fn the_key_is_checked_also_for_a_flush_of_nothing() {
    for (len, selectivity) in [(64, RANGE), (0, RANGE), (0, WHOLE_MR)] {
        refused(NakCode::RemoteAccess, |t, request| {
            request.reth(VA, t.key ^ 1, len).feth(GLOBAL, selectivity)
        });
    }
    let mut t = script();
    let key = t.key;
    t.receive(&[request(&t, 100).reth(VA, key, 0)]);
    t.expect(done(100, 1));
}

#[test]
fn the_key_must_let_it_be_flushed() {
    for selectivity in [RANGE, WHOLE_MR] {
        refused(NakCode::RemoteAccess, |t, request| {
            let key = t.reg_mr(PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
            request.reth(VA, key, 64).feth(GLOBAL, selectivity)
        });
    }
}

#[test]
fn the_qp_must_let_its_peer_flush() {
    let mut t = Script::new();
    t.key = t.reg_mr(PD, Access::FLUSH_GLOBAL);
    t.receive(&[request(&t, 100)]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
}

#[test]
fn nothing_here_is_persistent() {
    for placement in [PERSISTENT, GLOBAL | PERSISTENT] {
        refused(NakCode::InvalidRequest, |_, request| request.feth(placement, RANGE));
    }
    // A QP may allow it, but no MR does.
    let access = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let mut t = Script::with(QpAttr { access: Some(access), ..usual() });
    t.key = t.reg_mr(PD, Access::FLUSH_GLOBAL);
    t.receive(&[request(&t, 100).feth(GLOBAL | PERSISTENT, RANGE)]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
}

#[test]
fn a_flush_of_an_unknown_kind_is_invalid() {
    for (placement, selectivity) in [(0, RANGE), (4, RANGE), (5, RANGE), (GLOBAL, 2), (GLOBAL, 3)] {
        refused(NakCode::InvalidRequest, |_, request| request.feth(placement, selectivity));
    }
}

#[test]
fn a_window_lets_be_flushed_what_it_opens() {
    let mut t = script();
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 100, 50, Access::FLUSH_GLOBAL);
    t.receive(&[request(&t, 100).reth(VA + 100, rkey, 50)]);
    t.expect(done(100, 1));
    t.receive(&[request(&t, 101).reth(VA + 100, rkey, 51)]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

#[test]
fn a_repeated_flush_is_answered_again() {
    let mut t = script();
    t.receive(&[request(&t, 100), request(&t, 101)]);
    t.expect(done(100, 1));
    t.expect(done(101, 2));
    t.receive(&[request(&t, 100)]);
    t.expect(done(100, 2));
    t.receive(&[request(&t, 101)]);
    t.expect(done(101, 2));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::FlushesReplayed), 2);
    assert_eq!(t.counted(Counter::ReceivedMessages), 2);
}

#[test]
fn a_flush_repeated_however_late_is_answered_and_pushes_no_read_out() {
    let attr = QpAttr { max_dest_rd_atomic: Some(1), ..usual() };
    let mut t = Script::with(QpAttr { access: Some(Access::from_bits_retain(0x3ff)), ..attr });
    t.key = t.reg_mr(PD, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL);
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, 8);
    t.receive(std::slice::from_ref(&read));
    assert_eq!(t.sent().len(), 1);
    for psn in 101..110 {
        t.receive(&[request(&t, psn)]);
        t.expect(done(psn, psn - 99));
    }
    t.receive(&[request(&t, 101)]);
    t.expect(done(101, 10));
    t.receive(&[read]);
    assert_eq!(t.sent().len(), 1);
    assert_eq!(t.counted(Counter::DropUnknownDuplicate), 0);
}

#[test]
fn flushes_take_no_place_of_max_dest_rd_atomic() {
    let mut t = script();
    let requests: Vec<_> = (100..120).map(|psn| request(&t, psn)).collect();
    t.receive(&requests);
    assert_eq!(t.sent().len(), 20);
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn flushes_do_not_pile_up_while_nothing_can_be_sent() {
    let mut t = script();
    let too_many = MAX_WAITING_REPLIES as u32 + 100;
    let requests: Vec<_> = (100..100 + too_many).map(|psn| request(&t, psn)).collect();
    t.receive(&requests);
    assert_eq!(t.counted(Counter::FlushesHeldBack), 100);
    assert_eq!(t.sent().len(), MAX_WAITING_REPLIES);
    // What was held back is as good as lost.
    let held_back = 100 + MAX_WAITING_REPLIES;
    t.receive(&[requests[held_back - 100].clone()]);
    t.expect(done(held_back as u32, MAX_WAITING_REPLIES as u32 + 1));
}

#[test]
fn repeated_flushes_do_not_pile_up_answers() {
    let mut t = script();
    let again = vec![request(&t, 100); 50];
    t.receive(&again);
    assert_eq!(t.sent().len(), 1);
}

// The requester.

const OP: SendOp = SendOp::Flush {
    remote_addr: 0x5000,
    rkey: Rkey(9),
    length: 3_000_000,
    placement: FlushPlacement::GLOBAL,
    selectivity: FlushSelectivity::Range,
};

fn sent_request(psn: u32) -> Pkt {
    pkt(Opcode::RC_FLUSH, psn).reth(0x5000, 9, 3_000_000).feth(GLOBAL, RANGE).ack_req()
}

#[test]
fn a_flush_is_one_packet_however_long_and_completes_with_its_answer() {
    let mut t = Script::new();
    t.post(1, OP, &[]);
    t.expect(sent_request(200));
    t.expect_nothing();
    t.receive(&[done(200, 1)]);
    let completion = t.expect_send(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::Flush, 0));
}

#[test]
fn it_says_what_kind_of_flush_it_is() {
    let mut t = Script::new();
    let (placement, selectivity) = (FlushPlacement::all(), FlushSelectivity::Mr);
    let (remote_addr, rkey) = (7, Rkey(9));
    let op = SendOp::Flush { remote_addr, rkey, length: 0, placement, selectivity };
    t.post(1, op, &[]);
    t.expect(pkt(Opcode::RC_FLUSH, 200).reth(7, 9, 0).feth(3, 1).ack_req());
}

#[test]
fn a_kind_that_does_not_exist_fails_in_its_turn() {
    for (placement, selectivity) in [(0, RANGE), (4, RANGE), (GLOBAL, 2), (0x81, RANGE)] {
        let mut t = Script::new();
        let (remote_addr, rkey, length) = (7, Rkey(9), 8);
        let placement = FlushPlacement::from_bits_retain(placement);
        let selectivity = FlushSelectivity::from_code(selectivity);
        let op = SendOp::Flush { remote_addr, rkey, length, placement, selectivity };
        t.post(1, op, &[]);
        t.expect_nothing();
        let completion = t.expect_send(1, WcStatus::LocalQpOperation);
        assert_eq!(completion.vendor_err, Cause::FlushKind as u32);
    }
}

#[test]
fn a_flush_waits_for_no_place_of_max_rd_atomic() {
    let mut t = Script::with(QpAttr { max_rd_atomic: Some(0), ..usual() });
    for wr_id in 1..=3 {
        t.post(wr_id, OP, &[]);
    }
    assert_eq!(t.sent().len(), 3);
}

#[test]
fn a_fence_waits_for_it() {
    let mut t = Script::new();
    t.post(1, OP, &[]);
    t.post_with(2, SendOp::Send(Extra::None), &[], |wqe| wqe.wr.fence = true);
    t.expect(sent_request(200));
    t.expect_nothing();
    t.receive(&[done(200, 1)]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
}

#[test]
fn a_lost_one_is_asked_for_again() {
    let mut t = Script::new();
    t.post(1, OP, &[]);
    t.expect(sent_request(200));
    t.wait(ACK_TIMEOUT);
    t.expect(sent_request(200));
    t.receive(&[done(200, 1)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn no_ack_stands_for_its_answer() {
    let mut t = Script::new();
    t.post(1, OP, &[]);
    t.post(2, SendOp::Send(Extra::None), &[]);
    t.sent();
    t.receive(&[ack(201, 2)]);
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::ImpliedNaks), 1);
    t.expect(sent_request(200));
}

#[test]
fn its_answer_speaks_for_what_is_before_it() {
    let mut t = Script::new();
    t.post(1, SendOp::Send(Extra::None), &[]);
    t.post(2, OP, &[]);
    t.sent();
    t.receive(&[done(201, 2)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::Success);
}

#[test]
fn an_answer_that_brings_data_is_a_bad_response() {
    let mut t = Script::new();
    t.post(1, OP, &[]);
    t.sent();
    t.receive(&[done(200, 1).payload(b"data")]);
    assert_eq!(t.expect_send(1, WcStatus::BadResponse).vendor_err, Cause::BadResponse as u32);
}
