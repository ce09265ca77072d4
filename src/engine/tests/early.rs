//! Requests that come before their turn, as scripts: kept, carried out in order, and told of.

mod script;

use proptest::prelude::*;
use script::*;
use std::net::IpAddr;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::mad::Capabilities;
use urxe_wire::{EarlyBitmap, Flow, NakCode, Opcode, Syndrome};

const BOTH: Capabilities = Capabilities {
    selective_ack: true,
    echoes_marks: true,
    answers_in_onlys: false,
    takes_ack_first: false,
    takes_joined: false,
};
const NOTHING_KEPT: EarlyLimits = EarlyLimits { bytes_per_qp: 0, bytes_per_device: 1 << 20 };

/// A WRITE of one byte, which is its PSN, to the place of its PSN.
fn write(t: &Script, psn: u32) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA + u64::from(psn), t.key, 1).payload(&[psn as u8])
}

fn send(psn: u32) -> Pkt {
    pkt(Opcode::RC_SEND_ONLY, psn).payload(&[psn as u8])
}

/// The requests with these PSNs arrive as one batch.
fn receive_writes(t: &mut Script, psns: &[u32]) {
    let packets: Vec<Pkt> = psns.iter().map(|&psn| write(t, psn)).collect();
    t.receive(&packets);
}

/// What arrived of the WRITEs with these PSNs, each as it shall be.
fn is_written(t: &Script, psn: u32) -> bool {
    let byte = t.memory(psn as usize, 1)[0];
    assert!(byte == 0 || byte == psn as u8);
    byte != 0
}

/// A script with a peer that keeps to the standard, and has said so.
fn standard() -> Script {
    let mut t = Script::new();
    t.agree(Capabilities::default());
    t
}

/// As [`standard`], with a responder that keeps so much.
fn keeping(early: EarlyLimits) -> Script {
    let mut t = Script::keeping(early);
    t.agree(Capabilities::default());
    t
}

/// A script with a peer that understands selective acknowledgements.
fn agreed() -> Script {
    let mut t = Script::new();
    t.agree(BOTH);
    t
}

/// A selective acknowledgement: everything up to `psn` is done, and these are kept.
fn selective(psn: u32, msn: u32, kept: &[u32]) -> Pkt {
    let bitmap = EarlyBitmap::of(kept.iter().map(|kept| kept - psn - 2));
    let packet = pkt(Opcode::URXE_SELECTIVE_ACK, psn).aeth(Syndrome::ACK, msn);
    packet.payload(bitmap.bytes())
}

// What is kept.

#[test]
fn requests_behind_a_gap_are_carried_out_when_it_is_filled() {
    let mut t = standard();
    receive_writes(&mut t, &[101, 102, 103]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    assert!((101..104).all(|psn| !is_written(&t, psn)), "before its turn");
    assert_eq!(t.counted(Counter::EarlyKept), 3);
    receive_writes(&mut t, &[100]);
    t.expect(ack(103, 4));
    t.expect_nothing();
    assert!((100..104).all(|psn| is_written(&t, psn)));
    assert_eq!(t.device.early_bytes(), 0);
}

#[test]
fn each_hole_is_asked_for_once_it_is_the_next() {
    let mut t = standard();
    receive_writes(&mut t, &[101, 103, 105]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    t.expect(ack(101, 2));
    t.expect(nak(NakCode::SequenceError, 102, 2));
    receive_writes(&mut t, &[104, 106]);
    t.expect_nothing();
    receive_writes(&mut t, &[102]);
    t.expect(ack(106, 7));
    t.expect_nothing();
}

#[test]
fn memory_changes_in_the_order_of_the_requests() {
    let write_at = |psn: u32| Store::Write { at: u64::from(psn), len: 1 };
    let mut t = standard();
    t.post_recv(1, &[t.sge(1024, 8)]);
    let atomic = pkt(Opcode::RC_FETCH_ADD, 103).atomic(VA + 2048, t.key, 1, 0);
    t.receive(&[write(&t, 104), atomic, send(102), write(&t, 101)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    assert_eq!(t.program.stores, []);
    t.expect_no_completion();
    receive_writes(&mut t, &[100]);
    let barrier = Store::Barrier;
    let expected = [
        write_at(100),
        barrier,
        write_at(101),
        barrier,
        Store::Write { at: 1024, len: 1 },
        Store::Sync,
        Store::Atomic { at: 2048 },
        write_at(104),
        barrier,
        Store::Sync,
    ];
    assert_eq!(t.program.stores, expected);
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn a_message_of_several_packets_is_put_together() {
    let mut t = standard();
    t.post_recv(1, &[t.sge(0, 600)]);
    let data = bytes(7, 600);
    let first = pkt(Opcode::RC_SEND_FIRST, 100).payload(&data[..256]);
    let middle = pkt(Opcode::RC_SEND_MIDDLE, 101).payload(&data[256..512]);
    let last = pkt(Opcode::RC_SEND_LAST_IMM, 102).payload(&data[512..]).imm(5).solicited();
    t.receive(&[last, middle]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    t.receive(&[first]);
    t.expect(ack(102, 1));
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.byte_len, completion.extra), (600, Extra::Imm(5)));
    assert!(completion.solicited);
    assert_eq!(t.memory(0, 600), data);
}

#[test]
fn a_read_that_came_early_is_answered_in_its_place() {
    let mut t = standard();
    let key = t.key;
    t.fill(0, &[1; 8]);
    let read = |psn, len| pkt(Opcode::RC_READ_REQUEST, psn).reth(VA, key, len);
    t.receive(&[read(101, 300), write(&t, 103), write(&t, 105)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    t.receive(&[pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 8).payload(&[2; 8])]);
    let responses = t.sent();
    let psns: Vec<u32> = responses.iter().map(|packet| packet.headers.bth.psn.get()).collect();
    assert_eq!(psns, [101, 102, 103, 104], "READ, READ, ACK, NAK");
    assert_eq!(&responses[0].payload[..8], [2; 8]);
}

#[test]
fn requests_that_overlap_one_another_do_no_harm() {
    let mut t = standard();
    let key = t.key;
    t.receive(&[write(&t, 102), pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, key, 1000)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    assert_eq!(t.sent().len(), 4, "the answer to the READ, and nothing else");
    assert_eq!(t.device.early_bytes(), 0);
    receive_writes(&mut t, &[105]);
    t.receive(&[write(&t, 106).ack_req()]);
    t.expect(ack(106, 4));
}

#[test]
fn one_that_comes_twice_is_kept_once() {
    let mut t = standard();
    receive_writes(&mut t, &[102, 101, 102, 101]);
    let kept = t.device.early_bytes();
    receive_writes(&mut t, &[101, 102]);
    assert_eq!(t.device.early_bytes(), kept);
    assert_eq!((t.counted(Counter::EarlyKept), t.counted(Counter::EarlyDuplicates)), (2, 4));
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    t.expect(ack(102, 3));
}

// What is not.

#[test]
fn nothing_is_kept_where_the_limit_is_zero() {
    let mut t = keeping(NOTHING_KEPT);
    receive_writes(&mut t, &[101, 102]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    assert_eq!(t.counted(Counter::EarlyDropped), 2);
    receive_writes(&mut t, &[100]);
    t.receive(&[write(&t, 101).ack_req()]);
    t.expect(ack(101, 2));
}

#[test]
fn a_qp_keeps_no_more_than_its_limit() {
    let limits = EarlyLimits { bytes_per_qp: 4096, ..EarlyLimits::default() };
    let mut t = keeping(limits);
    let psns: Vec<u32> = (101..200).collect();
    receive_writes(&mut t, &psns);
    let kept = t.counted(Counter::EarlyKept);
    assert!(kept > 10 && t.device.early_bytes() <= 4096);
    assert_eq!(kept + t.counted(Counter::EarlyDropped), 99);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    t.expect(ack(100 + kept as u32, 1 + kept as u32));
    t.expect_nothing();
}

#[test]
fn all_qps_together_keep_no_more_than_the_limit_of_the_device() {
    let limits = EarlyLimits { bytes_per_device: 4096, ..EarlyLimits::default() };
    let mut t = keeping(limits);
    let psns: Vec<u32> = (101..200).collect();
    receive_writes(&mut t, &psns);
    let kept = t.counted(Counter::EarlyKept);
    t.another(QpType::Rc, None);
    receive_writes(&mut t, &psns);
    assert!(t.device.early_bytes() <= 4096);
    assert_eq!(t.counted(Counter::EarlyKept), kept);
}

#[test]
fn a_request_absurdly_far_ahead_is_dropped() {
    let mut t = standard();
    let far = 100 + limits::MAX_EARLY_PSNS as u32;
    let empty = |psn| pkt(Opcode::RC_SEND_ONLY, psn);
    t.receive(&[empty(far), empty(far + 1)]);
    assert_eq!((t.counted(Counter::EarlyKept), t.counted(Counter::EarlyDropped)), (1, 1));
}

#[test]
fn a_qp_keeps_no_more_packets_than_can_be_sorted_quickly() {
    let mut t = standard();
    let count = limits::MAX_EARLY_PACKETS as u32 + 2;
    for psn in (101..101 + count).rev() {
        t.receive(&[pkt(Opcode::RC_SEND_ONLY, psn)]);
    }
    assert_eq!(t.counted(Counter::EarlyDropped), 2);
}

#[test]
fn a_qp_that_ends_keeps_nothing() {
    let mut t = standard();
    let fill = |t: &mut Script| {
        receive_writes(t, &[101, 102]);
        assert!(t.device.early_bytes() > 0);
    };
    fill(&mut t);
    t.enter(QpState::Err);
    assert_eq!(t.device.early_bytes(), 0);
    t.another(QpType::Rc, None);
    fill(&mut t);
    t.enter(QpState::Reset);
    assert_eq!(t.device.early_bytes(), 0);
    let qpn = t.another(QpType::Rc, None);
    fill(&mut t);
    t.device.destroy_qp(t.now, qpn);
    assert_eq!(t.device.early_bytes(), 0);
}

// Refusals.

#[test]
fn one_that_is_refused_is_refused_in_its_turn() {
    let mut t = standard();
    let bad = pkt(Opcode::RC_WRITE_ONLY, 102).reth(VA, t.key ^ 1, 1).payload(b"x");
    t.receive(&[bad, write(&t, 101), write(&t, 103)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    assert_eq!(t.state(), QpState::Rts);
    receive_writes(&mut t, &[100]);
    t.expect(nak(NakCode::RemoteAccess, 102, 2));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Err);
    assert!(is_written(&t, 101) && !is_written(&t, 103));
    assert_eq!(t.device.early_bytes(), 0);
}

#[test]
fn behind_a_request_without_a_receive_the_others_are_kept() {
    let mut t = standard();
    t.receive(&[send(100), write(&t, 101), write(&t, 102).ack_req()]);
    t.expect(rnr(12, 100, 0));
    t.expect_nothing();
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[send(100)]);
    t.expect(ack(102, 3));
    t.expect_nothing();
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn a_gap_behind_a_request_without_a_receive_is_told_when_that_one_has_come() {
    let mut t = standard();
    t.receive(&[send(100), write(&t, 101), write(&t, 103)]);
    t.expect(rnr(12, 100, 0));
    t.expect_nothing();
    t.receive(&[send(100)]);
    t.expect(rnr(12, 100, 0));
    t.expect_nothing();
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[send(100)]);
    t.expect(ack(101, 2));
    t.expect(nak(NakCode::SequenceError, 102, 2));
    t.expect_nothing();
}

#[test]
fn one_that_was_kept_and_finds_no_receive_is_asked_for_again() {
    let mut t = standard();
    t.receive(&[send(101), write(&t, 102)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    t.expect(rnr(12, 101, 1));
    t.expect_nothing();
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[send(101)]);
    t.expect(ack(102, 3));
}

#[test]
fn nothing_is_carried_out_after_a_completion_was_lost() {
    let mut t = standard();
    t.program.full.insert(RCQ);
    t.post_recv(1, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 101), write(&t, 102)]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    receive_writes(&mut t, &[100]);
    assert_eq!(t.state(), QpState::Err);
    assert!(!is_written(&t, 102));
    assert_eq!(t.device.early_bytes(), 0);
}

// Peers that understand selective acknowledgements.

#[test]
fn a_peer_that_agreed_is_told_what_is_kept() {
    let mut t = agreed();
    receive_writes(&mut t, &[101, 102, 105]);
    t.expect(selective(99, 0, &[101, 102, 105]));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::SelectiveAcksSent), 1);
    receive_writes(&mut t, &[100]);
    t.expect(selective(102, 3, &[105]));
    receive_writes(&mut t, &[103, 104]);
    t.expect(ack(105, 6));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::SequenceNaksSent), 0);
}

#[test]
fn a_peer_that_keeps_to_the_standard_is_asked_with_a_nak() {
    let mut t = Script::new();
    t.agree(Capabilities { selective_ack: false, ..BOTH });
    receive_writes(&mut t, &[101]);
    t.expect(nak(NakCode::SequenceError, 100, 0));
    t.receive(&[write(&t, 102).ack_req(), write(&t, 99).ack_req()]);
    t.expect(ack(99, 0));
    t.expect_nothing();
}

#[test]
fn early_requests_are_told_of_when_they_ask_or_a_hole_begins_or_ends() {
    let mut t = agreed();
    receive_writes(&mut t, &[101]);
    t.expect(selective(99, 0, &[101]));
    receive_writes(&mut t, &[102]);
    t.expect_nothing();
    t.receive(&[write(&t, 103).ack_req()]);
    t.expect(selective(99, 0, &[101, 102, 103]));
    receive_writes(&mut t, &[106]);
    t.expect(selective(99, 0, &[101, 102, 103, 106]));
    receive_writes(&mut t, &[105]);
    t.expect(selective(99, 0, &[101, 102, 103, 105, 106]));
    receive_writes(&mut t, &[105]);
    t.expect(selective(99, 0, &[101, 102, 103, 105, 106]));
    t.expect_nothing();
}

#[test]
fn a_repeated_request_draws_a_selective_acknowledgement() {
    let mut t = agreed();
    let key = t.key;
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 1).ack_req();
    t.receive(&[read.clone(), write(&t, 101)]);
    t.sent();
    receive_writes(&mut t, &[103]);
    t.expect(selective(101, 2, &[103]));
    t.receive(&[write(&t, 101).ack_req()]);
    t.expect(selective(101, 2, &[103]));
    t.receive(&[read]);
    assert_eq!(t.next_sent().1.headers.body.opcode(), Opcode::RC_READ_RESPONSE_ONLY);
    t.expect(selective(101, 2, &[103]));
    t.expect_nothing();
}

#[test]
fn kept_requests_are_told_of_with_the_last_word_only() {
    let mut t = agreed();
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, 1);
    t.receive(&[write(&t, 102), read]);
    t.expect(ack(99, 0));
    assert_eq!(t.next_sent().1.headers.body.opcode(), Opcode::RC_READ_RESPONSE_ONLY);
    t.expect(selective(100, 1, &[102]));
    t.expect_nothing();
}

#[test]
fn a_read_that_is_kept_stands_for_all_its_psns() {
    let mut t = agreed();
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, t.key, 3 * 256)]);
    t.expect(selective(99, 0, &[101, 102, 103]));
    receive_writes(&mut t, &[104]);
    t.expect_nothing();
}

#[test]
fn a_read_of_absurd_length_that_is_kept_takes_no_time() {
    let mut t = agreed();
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, t.key, u32::MAX)]);
    let told: Vec<u32> = (101..101 + EarlyBitmap::PSNS).collect();
    t.expect(selective(99, 0, &told));
}

#[test]
fn a_request_without_a_receive_is_refused_with_an_rnr_nak_and_the_rest_told() {
    let mut t = agreed();
    t.receive(&[send(100), write(&t, 101)]);
    t.expect(rnr(12, 100, 0));
    t.expect(selective(99, 0, &[101]));
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[send(100)]);
    t.expect(ack(101, 2));
    t.expect_nothing();
}

// Congestion marks.

fn marked() -> Flow {
    Flow { traffic_class: 3, ..flow(PEER, LOCAL) }
}

#[test]
fn a_congestion_mark_is_told_once_by_becn() {
    let mut t = agreed();
    let qpn = t.qpn;
    t.receive_along(&marked(), &write(&t, 100).ack_req().to(qpn));
    t.receive(&[]);
    let mut echo = ack(100, 1);
    echo.headers.bth.becn = true;
    t.expect(echo);
    t.receive(&[write(&t, 101).ack_req()]);
    t.expect(ack(101, 2));
}

#[test]
fn a_congestion_mark_amid_a_long_answer_is_told_once_by_becn() {
    let mut t = agreed();
    let qpn = t.qpn;
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, 50_000)]);
    let mut first = TxBatch::new(TxLimits::SINGLE, 8192);
    assert!(t.device.poll_transmit(t.now, &mut t.program, &mut first));
    t.receive_along(&marked(), &write(&t, 296).ack_req().to(qpn));
    t.receive(&[]);
    let rest = t.sent();
    assert_eq!(first.len() + rest.len(), 196 + 1);
    let echoes: Vec<bool> = rest.iter().map(|packet| packet.headers.bth.becn).collect();
    assert_eq!(echoes.iter().filter(|&&becn| becn).count(), 1, "{echoes:?}");
}

#[test]
fn a_peer_that_keeps_to_the_standard_gets_no_becn() {
    let mut t = Script::new();
    t.agree(Capabilities { echoes_marks: false, ..BOTH });
    let qpn = t.qpn;
    t.receive_along(&marked(), &write(&t, 100).ack_req().to(qpn));
    t.receive(&[]);
    assert_eq!(t.next_sent().1.headers.body.opcode(), Opcode::CNP);
    t.expect(ack(100, 1));
}

// Questions.

#[test]
fn the_first_gap_asks_a_peer_of_which_nothing_is_known() {
    let after_a_gap = |mut t: Script| {
        receive_writes(&mut t, &[101]);
        t.sent_opcodes()
    };
    // The question and the NAK.
    let uniform = Script::uniform(QpType::Rc);
    assert_eq!(after_a_gap(uniform), [Opcode::UD_SEND_ONLY, Opcode::RC_ACK]);
    assert_eq!(after_a_gap(Script::new()), [Opcode::RC_ACK], "in the strict form");
}

// What was wrong.

#[test]
fn a_failure_after_a_nak_is_told_of_with_a_psn_that_the_peer_still_has() {
    let mut t = standard();
    receive_writes(&mut t, &[100, 102]);
    t.expect(nak(NakCode::SequenceError, 101, 1));
    t.program.sync_fails = true;
    receive_writes(&mut t, &[101]);
    t.expect(nak(NakCode::RemoteOperational, 101, 3));
    t.expect_nothing();
}

/// A SEND with its opcode changed arrives from this address.
fn receive_reserved(t: &mut Script, from: IpAddr, opcode: u8, psn: u32) {
    let (outer, mut bytes) = datagram(from, &pkt(Opcode::RC_SEND_ONLY, psn).to(t.qpn));
    bytes[0] = opcode;
    urxe_wire::icrc::stamp(&outer.flow, 0, &mut bytes);
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes);
}

#[test]
fn a_reserved_opcode_in_the_place_of_the_next_request_is_an_invalid_request() {
    for opcode in [0x15, 0x18, 0x1b, 0x1e, 0x1f] {
        let mut t = standard();
        receive_reserved(&mut t, PEER, opcode, 100);
        t.expect(nak(NakCode::InvalidRequest, 100, 0));
        t.expect_nothing();
        assert_eq!(t.state(), QpState::Err);
        assert_eq!(t.counted(Counter::DropUnknownOpcode), 1);
        receive_reserved(&mut t, PEER, opcode, 100);
        t.expect_nothing();
    }
}

#[test]
fn a_reserved_opcode_anywhere_else_is_dropped() {
    let mut t = standard();
    receive_reserved(&mut t, PEER, 0x15, 101);
    receive_reserved(&mut t, PEER, 0x15, 99);
    receive_reserved(&mut t, "10.0.0.9".parse().unwrap(), 0x15, 100);
    receive_reserved(&mut t, PEER, 0x35, 100);
    let rc = t.qpn;
    let ud = t.another(QpType::Ud, None);
    receive_reserved(&mut t, PEER, 0x15, 100);
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropUnknownOpcode), 5);
    for qpn in [rc, ud] {
        t.select(qpn);
        assert_eq!(t.state(), QpState::Rts);
    }
}

// Any order.

/// The requests of a peer: messages of several kinds and lengths, without holes in the PSNs.
fn requests(t: &Script, kinds: &[u8]) -> Vec<Pkt> {
    let mut packets: Vec<Pkt> = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let psn = 100 + packets.len() as u32;
        let va = VA + 4096 + 8 * number as u64;
        let data = |seed: usize, len| bytes((number + seed) as u8, len);
        match kind % 5 {
            0 => packets.push(
                pkt(Opcode::RC_WRITE_ONLY, psn).reth(va - 4, t.key, 16).payload(&data(0, 16)),
            ),
            1 => packets.push(pkt(Opcode::RC_SEND_ONLY, psn).payload(&data(0, 200))),
            2 => packets.extend([
                pkt(Opcode::RC_WRITE_FIRST, psn).reth(va, t.key, 700).payload(&data(0, MTU)),
                pkt(Opcode::RC_WRITE_MIDDLE, psn + 1).payload(&data(1, MTU)),
                pkt(Opcode::RC_WRITE_LAST, psn + 2).payload(&data(2, 700 - 2 * MTU)),
            ]),
            3 => packets.push(pkt(Opcode::RC_FETCH_ADD, psn).atomic(va, t.key, 3, 0)),
            _ => packets.extend([
                pkt(Opcode::RC_SEND_FIRST, psn).payload(&data(0, MTU)),
                pkt(Opcode::RC_SEND_LAST, psn + 1).payload(&data(1, 5)),
            ]),
        }
    }
    packets
}

/// A script with receives enough; each goes to a place of its own.
fn with_receives(early: EarlyLimits) -> Script {
    let mut t = Script::keeping(early);
    for number in 0..64 {
        t.post_recv(number, &[t.sge(16_384 + 512 * number, 512)]);
    }
    t
}

/// What the program sees: its memory, the order in which that changed, and its completions.
fn outcome(t: Script) -> (Vec<u8>, Vec<Store>, Vec<Completion>) {
    let Program { memory, mut stores, completions, .. } = t.program;
    stores.retain(|store| *store != Store::Sync);
    (memory, stores, completions.into_iter().map(|(_, completion)| completion).collect())
}

proptest! {
    /// The peer sends what is not done yet again and again; each packet arrives twice, once or
    /// never, in any order.
    #[test]
    fn any_order_of_arrival_gives_the_result_of_the_order_of_sending(
        kinds in proptest::collection::vec(any::<u8>(), 1..40),
        chances in proptest::collection::vec((any::<u16>(), 0..5u8), 64),
        bytes_per_qp in prop_oneof![Just(0), 500..3000usize, Just(1 << 20)],
        agrees: bool,
    ) {
        let mut in_order = with_receives(EarlyLimits::default());
        let all = requests(&in_order, &kinds);
        in_order.receive(&all);
        prop_assert_eq!(in_order.state(), QpState::Rts);
        let limits = EarlyLimits { bytes_per_qp, bytes_per_device: 1 << 20 };
        let mut t = with_receives(limits);
        if agrees {
            t.agree(BOTH);
        }
        let end = Psn::new(100 + all.len() as u32);
        let mut round = 0;
        loop {
            let rq_psn = t.device.query_qp(t.qpn).unwrap().rq_psn;
            if rq_psn == end {
                break;
            }
            prop_assert_eq!(t.state(), QpState::Rts);
            round += 1;
            let missing = &all[rq_psn.diff(Psn::new(100)) as usize..];
            let mut arriving: Vec<(u16, &Pkt)> = Vec::new();
            for (i, packet) in missing.iter().enumerate() {
                let (place, copies) = chances[(i * 7 + round * 13) % chances.len()];
                // In the end everything arrives.
                let copies = if round > 20 { 1 } else { copies.saturating_sub(2) };
                arriving.extend((0..copies).map(|copy| (place.rotate_left(copy.into()), packet)));
            }
            arriving.sort_by_key(|(place, _)| *place);
            if round > 40 {
                arriving = missing.iter().map(|packet| (0, packet)).collect();
            }
            for batch in arriving.chunks(5) {
                let batch: Vec<Pkt> = batch.iter().map(|(_, packet)| (*packet).clone()).collect();
                t.receive(&batch);
                t.sent();
                prop_assert!(t.device.early_bytes() <= bytes_per_qp);
            }
        }
        prop_assert_eq!(t.device.early_bytes(), 0);
        prop_assert_eq!(t.state(), QpState::Rts);
        let (expected, found) = (outcome(in_order), outcome(t));
        prop_assert_eq!(found.1, expected.1, "the order of memory");
        prop_assert!(found.0 == expected.0, "memory");
        prop_assert_eq!(found.2, expected.2, "completions");
    }
}

/// What comes from the peer's address and another port.
fn stranger() -> Flow {
    Flow { src_port: 0x1234, ..flow(PEER, LOCAL) }
}

#[test]
fn early_requests_from_another_port_than_the_peers_are_not_kept() {
    let mut t = standard();
    receive_writes(&mut t, &[100]);
    let _ = t.sent();
    let forged = pkt(Opcode::RC_WRITE_ONLY, 102).reth(VA, 0, 1).payload(&[9]);
    t.receive_along(&stranger(), &forged.to(t.qpn));
    assert_eq!(t.counted(Counter::EarlyForeign), 1);
    assert_eq!(t.counted(Counter::EarlyKept), 0);
    receive_writes(&mut t, &[101, 102, 103]);
    assert!((101..=103).all(|psn| is_written(&t, psn)), "the peer goes on");
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn early_requests_of_a_stranger_are_forgotten_when_the_peer_comes() {
    let mut t = standard();
    let forged = pkt(Opcode::RC_WRITE_ONLY, 101).reth(VA, 0, 1).payload(&[9]);
    t.receive_along(&stranger(), &forged.to(t.qpn));
    assert_eq!(t.counted(Counter::EarlyKept), 1);
    receive_writes(&mut t, &[100, 101, 102]);
    assert!((101..=102).all(|psn| is_written(&t, psn)), "the peer goes on");
    assert_eq!(t.state(), QpState::Rts);
}
