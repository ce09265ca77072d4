//! Packets of one size, which share segmented sends; and what a program sees of it: nothing.

mod script;

use script::*;
use std::time::Duration;
use urxe_engine::Counter;
use urxe_types::{Extra, QpState, QpType, Qpn, Rkey, SendOp, WcOpcode, WcStatus};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::mad::Capabilities;
use urxe_wire::{Body, NakCode, Opcode, Packet, Request, Syndrome};

const REMOTE: u64 = 0x2000;
const KEY: u32 = 0x77;
const WRITE: SendOp = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: None };

/// A WRITE ONLY of the device's: `len` bytes for `at` bytes behind [`REMOTE`], as they stand in its
/// own memory.
fn part(t: &Script, psn: u32, at: usize, len: usize) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn)
        .reth(REMOTE + at as u64, KEY, len as u32)
        .payload(t.memory(at, len))
}

/// A device with a WRITE of three packets, the last of one byte, under way.
fn write_of_three() -> Script {
    let mut t = Script::uniform(QpType::Rc);
    t.fill(0, &bytes(3, 513));
    t.post(1, WRITE, &[t.sge(0, 513)]);
    t.expect(part(&t, 200, 0, 256));
    t.expect(part(&t, 201, 256, 256));
    t.expect(part(&t, 202, 512, 1).ack_req());
    t
}

#[test]
fn a_long_write_goes_as_write_onlys_with_a_range_each() {
    let mut t = write_of_three();
    t.expect_nothing();
    t.post(2, WRITE, &[]);
    t.expect(pkt(Opcode::RC_WRITE_ONLY, 203).reth(REMOTE, KEY, 0).ack_req());
}

#[test]
fn the_addresses_of_the_parts_wrap_as_that_of_the_message_does() {
    let mut t = Script::uniform(QpType::Rc);
    let op = SendOp::Write { remote_addr: u64::MAX - 255, rkey: Rkey(KEY), imm: None };
    t.post(1, op, &[t.sge(0, 257)]);
    t.expect(part(&t, 200, 0, 256).reth(u64::MAX - 255, KEY, 256));
    t.expect(part(&t, 201, 256, 1).reth(0, KEY, 1).ack_req());
}

#[test]
fn packets_of_a_list_carry_the_bytes_of_its_entries() {
    let mut t = Script::uniform(QpType::Rc);
    t.fill(0, &bytes(3, 4000));
    // The second entry begins amid the third packet, the third amid the sixth.
    t.post(1, WRITE, &[t.sge(0, 700), t.sge(1000, 800), t.sge(3000, 400)]);
    let message = [t.memory(0, 700), t.memory(1000, 800), t.memory(3000, 400)].concat();
    for (number, payload) in (0..).zip(message.chunks(256)) {
        let va = REMOTE + 256 * u64::from(number);
        let sent = pkt(Opcode::RC_WRITE_ONLY, 200 + number).payload(payload);
        let sent = sent.reth(va, KEY, payload.len() as u32);
        t.expect(if number == 7 { sent.ack_req() } else { sent });
    }
    t.expect_nothing();
}

#[test]
fn packets_of_a_message_carry_what_its_memory_holds_when_they_are_made() {
    let mut t = Script::uniform(QpType::Rc);
    t.post(1, SendOp::Send(Extra::None), &[t.sge(0, 16_384)]);
    let mut made = TxBatch::new(TxLimits::SINGLE, 8192);
    assert!(t.device.poll_transmit(t.now, &mut t.program, &mut made));
    let made = made.len();
    t.fill(0, &[0xee; 16_384]);
    let rest = t.sent();
    assert_eq!((made + rest.len(), rest.len() > 32), (64, true));
    assert!(rest.iter().all(|packet| packet.payload == [0xee; 256]));
}

#[test]
fn many_writes_share_one_segmented_send() {
    let mut t = Script::uniform(QpType::Rc);
    for number in 0..4 {
        t.post(number, WRITE, &[t.sge(0, 1024)]);
    }
    let mut tx = TxBatch::new(TxLimits::segmented(64), 1 << 16);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    let segments: Vec<usize> = tx.runs().map(|run| run.segments).collect();
    assert_eq!(segments, [16]);
}

#[test]
fn of_packets_that_are_sent_together_only_the_last_asks_for_an_ack() {
    let mut t = Script::uniform(QpType::Rc);
    t.post(1, WRITE, &[t.sge(0, 65_536)]);
    let sent = t.sent();
    let asking: Vec<usize> =
        (0..).zip(&sent).filter(|(_, p)| p.headers.bth.ack_req).map(|(at, _)| at).collect();
    // The first of a path that nothing is known of; each 64th after it; and the last of the window.
    assert_eq!(asking, [0, 64, 128, 192, 203, 204]);
    let psns: Vec<u32> = sent.iter().map(|p| p.headers.bth.psn.get()).collect();
    assert_eq!(psns, (200..405).collect::<Vec<_>>());
}

#[test]
fn packets_before_one_whose_memory_is_gone_are_in_flight_and_the_rest_is_not() {
    let mut t = Script::uniform(QpType::Rc);
    t.post(1, WRITE, &[t.sge(0, 2560)]);
    assert_eq!(t.sent().len(), 10);
    t.post(2, WRITE, &[t.sge(0, 1024)]);
    t.program.unmapped = true;
    t.expect_nothing();
    let in_flight = t.device.paths().next().map(|path| path.outward.in_flight);
    assert_eq!(in_flight, Some(2560 + 640));
    t.receive(&[ack(209, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::LocalProtection);
    let in_flight = t.device.paths().next().map(|path| path.outward.in_flight);
    assert_eq!(in_flight, Some(0));
}

#[test]
fn a_write_with_immediate_names_its_whole_range_in_its_first_packet() {
    let mut t = Script::uniform(QpType::Rc);
    let op = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: Some(9) };
    t.post(1, op, &[t.sge(0, 513)]);
    let (first, middle) = (Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE);
    assert_eq!(t.sent_opcodes(), [first, middle, Opcode::RC_WRITE_LAST_IMM]);
}

#[test]
fn in_the_strict_form_a_long_write_is_one_message() {
    let mut t = Script::new();
    t.post(1, WRITE, &[t.sge(0, 257)]);
    t.expect(pkt(Opcode::RC_WRITE_FIRST, 200).reth(REMOTE, KEY, 257).payload(t.memory(0, 256)));
    t.expect(pkt(Opcode::RC_WRITE_LAST, 201).payload(t.memory(256, 1)).ack_req());
}

/// How many bytes each READ request asks for, of a READ of so many packets.
fn parts_of_a_read(mut t: Script, packets: u32) -> Vec<u32> {
    let read = SendOp::Read { remote_addr: REMOTE, rkey: Rkey(KEY) };
    // Little is asked for before the first answer.
    t.post(0, read, &[t.sge(0, 1)]);
    t.sent();
    let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(Syndrome::ACK, 1);
    t.receive(&[answer.payload(&[0])]);
    t.post(1, read, &[t.sge(0, packets * MTU as u32)]);
    let length = |packet: &Pkt| match packet.headers.body {
        Body::RcRequest(Request::Read(reth)) => reth.len,
        body => panic!("{}", body.opcode()),
    };
    t.sent().iter().map(length).collect()
}

#[test]
fn a_short_read_is_asked_for_in_parts_whose_answers_are_all_of_one_size() {
    let (uniform, two) = (|| Script::uniform(QpType::Rc), 2 * MTU as u32);
    assert_eq!(parts_of_a_read(uniform(), 8), [two; 4]);
    assert_eq!(parts_of_a_read(uniform(), 9), [9 * MTU as u32], "a long one");
    assert_eq!(parts_of_a_read(Script::new(), 8), [8 * MTU as u32], "in the strict form");
}

#[test]
fn an_unreliable_write_stays_one_message() {
    let mut t = Script::uniform(QpType::Uc);
    t.post(1, WRITE, &[t.sge(0, 257)]);
    assert_eq!(t.sent_opcodes(), [Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_LAST]);
}

#[test]
fn a_write_in_parts_is_completed_once_and_when_its_last_part_is_acknowledged() {
    let mut t = write_of_three();
    t.receive(&[ack(200, 1)]);
    t.receive(&[ack(201, 2)]);
    t.expect_no_completion();
    t.receive(&[ack(202, 3)]);
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::RdmaWrite);
    t.expect_no_completion();
    assert_eq!(t.counted(Counter::SentMessages), 1);
}

#[test]
fn a_lost_part_is_repeated_with_its_own_range_and_those_behind_it() {
    let mut t = write_of_three();
    t.receive(&[nak(NakCode::SequenceError, 201, 1)]);
    t.expect(part(&t, 201, 256, 256));
    t.expect(part(&t, 202, 512, 1).ack_req());
    t.expect_nothing();
    t.receive(&[ack(202, 3)]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_refused_part_fails_the_message() {
    let mut t = write_of_three();
    t.post(2, WRITE, &[]);
    t.receive(&[nak(NakCode::RemoteAccess, 201, 1)]);
    t.expect_send(1, WcStatus::RemoteAccess);
    t.expect_send(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_write_that_began_is_sent_to_its_end_in_sqd() {
    let mut t = Script::uniform(QpType::Rc);
    // More than one turn sends.
    t.post(1, WRITE, &[t.sge(0, 100 * 256)]);
    let mut tx = TxBatch::new(TxLimits::SINGLE, 1);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    assert!(tx.len() < 100);
    t.enter(QpState::Sqd);
    t.post(2, WRITE, &[]);
    let mut last = 200 + tx.len() as u32 - 1;
    while last < 299 {
        last += t.sent().len() as u32;
        assert!(t.program.events.is_empty());
        t.receive(&[ack(last, 1)]);
    }
    t.expect_send(1, WcStatus::Success);
    t.expect_nothing();
    assert_eq!(t.program.events, [urxe_engine::AsyncEvent::SqDrained(t.qpn)]);
}

/// The opcodes of a WRITE of two packets that a QP sends which is connected now.
fn opcodes_of_a_new_qp(t: &mut Script) -> Vec<Opcode> {
    t.another(QpType::Rc, None);
    t.post(1, WRITE, &[t.sge(0, 257)]);
    t.sent_opcodes()
}

#[test]
fn a_peer_that_calls_a_later_part_invalid_gets_whole_messages_from_later_qps() {
    let mut t = write_of_three();
    t.receive(&[nak(NakCode::InvalidRequest, 201, 1)]);
    t.expect_send(1, WcStatus::RemoteInvalidRequest);
    assert_eq!(t.counted(Counter::UniformFormGivenUp), 1);
    let whole = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_LAST];
    assert_eq!(opcodes_of_a_new_qp(&mut t), whole);
    assert_eq!(opcodes_of_a_new_qp(&mut t), whole);
}

#[test]
fn a_refusal_that_the_form_does_not_explain_changes_nothing_for_later_qps() {
    let refusals = [
        nak(NakCode::InvalidRequest, 200, 0),
        nak(NakCode::RemoteAccess, 201, 1),
        nak(NakCode::RemoteOperational, 201, 1),
    ];
    for refusal in refusals {
        let mut t = write_of_three();
        t.receive(&[refusal]);
        assert_eq!(opcodes_of_a_new_qp(&mut t), [Opcode::RC_WRITE_ONLY; 2]);
        assert_eq!(t.counted(Counter::UniformFormGivenUp), 0);
    }
}

// What the peer's packets do here.

/// A WRITE ONLY of the peer's: a part of a message of full packets for the start of the MR, in
/// which byte `at` holds `at`.
fn peers_part(t: &Script, psn: u32, at: usize, len: usize) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn)
        .reth(VA + at as u64, t.key, len as u32)
        .payload(&bytes(at as u8, len))
}

#[test]
fn a_message_in_parts_is_stored_up_to_the_part_that_is_refused() {
    let end = 65_536;
    let mut t = Script::new();
    t.receive(&[
        peers_part(&t, 100, end - 512, 256),
        peers_part(&t, 101, end - 256, 256),
        peers_part(&t, 102, end, 256),
        peers_part(&t, 103, 0, 256).ack_req(),
    ]);
    assert_eq!(t.memory(end - 512, 512), bytes(0, 512), "before it");
    assert_eq!(t.memory(0, 256), [0; 256], "behind it");
    t.expect(nak(NakCode::RemoteAccess, 102, 2));
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_message_in_parts_of_which_the_first_is_refused_changes_nothing() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[
        peers_part(&t, 100, 0, 256).reth(VA, key ^ 1, 256),
        peers_part(&t, 101, 256, 256),
        peers_part(&t, 102, 512, 256).ack_req(),
    ]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    assert!(t.program.memory.iter().all(|&byte| byte == 0));
}

/// What is done to memory for one part of the peer's.
fn stored(at: usize, len: usize) -> Store {
    Store::Write { at: at as u64, len }
}

#[test]
fn parts_are_stored_as_packets_of_one_message() {
    let mut t = Script::new();
    let parts = [peers_part(&t, 100, 0, 256), peers_part(&t, 101, 256, 256)];
    t.receive(&parts);
    t.receive(&[peers_part(&t, 102, 512, 256), peers_part(&t, 103, 768, 9).ack_req()]);
    let before = [stored(0, 256), stored(256, 256), Store::Sync];
    let after = [stored(512, 256), stored(768, 9), Store::Barrier, Store::Sync];
    assert_eq!(t.program.stores, [&before[..], &after[..]].concat());
}

#[test]
fn a_write_only_is_stored_as_a_message_if_it_is_not_full_or_asks_for_an_ack() {
    let mut t = Script::new();
    t.receive(&[
        peers_part(&t, 100, 0, 256).ack_req(),
        peers_part(&t, 101, 256, 256).ack_req(),
        peers_part(&t, 102, 512, 255),
    ]);
    let barrier = Store::Barrier;
    let expected = [stored(0, 256), barrier, stored(256, 256), barrier, stored(512, 255), barrier];
    assert_eq!(t.program.stores, [&expected[..], &[Store::Sync]].concat());
}

#[test]
fn a_peer_that_ends_messages_without_asking_for_an_ack_is_taken_to_send_no_parts() {
    let key = Script::new().key;
    let write = |opcode, psn| pkt(opcode, psn).reth(VA, key, 257).payload(&bytes(1, 256));
    let silent_ends: [&[Pkt]; 3] = [
        &[pkt(Opcode::RC_SEND_ONLY, 100)],
        &[pkt(Opcode::RC_WRITE_ONLY, 100)],
        &[
            write(Opcode::RC_WRITE_FIRST, 100),
            pkt(Opcode::RC_WRITE_LAST, 101).payload(&bytes(1, 1)),
        ],
    ];
    for silent_end in silent_ends {
        let mut t = Script::new();
        t.post_recv(1, &[]);
        t.receive(silent_end);
        t.program.stores.clear();
        t.receive(&[peers_part(&t, 100 + silent_end.len() as u32, 0, 256)]);
        assert_eq!(t.program.stores, [stored(0, 256), Store::Barrier, Store::Sync]);
    }
}

// ACKs.

const TAKES_ACK_FIRST: Capabilities = Capabilities {
    selective_ack: false,
    echoes_marks: false,
    answers_in_onlys: false,
    takes_ack_first: true,
    takes_joined: false,
};

/// A device whose peer has said that it understands this, which owes it an ACK for PSN 100 and has
/// a WRITE of this length to send.
fn owing_an_ack(mut t: Script, peer: Option<Capabilities>, len: u32) -> Script {
    if let Some(capabilities) = peer {
        t.agree(capabilities);
    }
    t.post(1, WRITE, &[t.sge(0, len)]);
    t.receive(&[peers_part(&t, 100, 0, 256).ack_req()]);
    t
}

/// What the device puts into one batch: how many packets each send has, and which packets.
fn batch_of(t: &mut Script, limits: TxLimits, capacity: usize) -> (Vec<usize>, Vec<Opcode>) {
    let mut tx = TxBatch::new(limits, capacity);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    let opcode = |bytes| Packet::parse(bytes).unwrap().headers.body.opcode();
    let opcodes = tx.datagrams().map(|datagram| opcode(datagram.bytes)).collect();
    (tx.runs().map(|run| run.segments).collect(), opcodes)
}

#[test]
fn an_ack_ends_the_send_of_requests_to_a_peer_that_takes_it_first() {
    let mut t = owing_an_ack(Script::uniform(QpType::Rc), Some(TAKES_ACK_FIRST), 512);
    let (write, ack) = (Opcode::RC_WRITE_ONLY, Opcode::RC_ACK);
    let sent = batch_of(&mut t, TxLimits::segmented(64), 1 << 16);
    assert_eq!(sent, (vec![3], vec![write, write, ack]));
}

#[test]
fn an_ack_goes_in_the_datagram_of_a_lone_short_request_to_a_peer_that_takes_it_so() {
    let joins = Capabilities { takes_joined: true, ..TAKES_ACK_FIRST };
    let sent = |t: Script, peer, len| {
        let mut t = owing_an_ack(t, Some(peer), len);
        let mut tx = TxBatch::new(TxLimits::segmented(64), 1 << 16);
        t.device.poll_transmit(t.now, &mut t.program, &mut tx);
        let runs: Vec<_> = tx.runs().map(|run| (run.segments, run.is_joined)).collect();
        runs
    };
    let uniform = || Script::uniform(QpType::Rc);
    assert_eq!(sent(uniform(), joins, 8), [(2, true)]);
    assert_eq!(sent(uniform(), joins, 512), [(3, false)], "two requests");
    let needs_no_order = Capabilities { takes_ack_first: false, ..joins };
    assert_eq!(sent(uniform(), needs_no_order, 8), [(1, false), (1, false)]);
    assert_eq!(sent(uniform(), TAKES_ACK_FIRST, 8), [(2, false)]);
    assert_eq!(sent(Script::new(), joins, 8), [(1, false), (1, false)], "the strict form");
}

/// Whether what the device sends next is a request and an ACK in one datagram.
fn sends_joined(t: &mut Script) -> bool {
    let mut tx = TxBatch::new(TxLimits::segmented(64), 1 << 16);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    tx.runs().any(|run| run.is_joined)
}

#[test]
fn a_peer_that_does_not_answer_what_came_with_an_ack_is_asked_and_gets_none_so_before_it_answers() {
    let joins = Capabilities { takes_joined: true, ..TAKES_ACK_FIRST };
    let mut t = owing_an_ack(Script::uniform(QpType::Rc), Some(joins), 8);
    assert!(sends_joined(&mut t));
    t.wait(Duration::from_secs(10));
    let question = t.next_sent().1;
    assert_eq!(question.headers.bth.dest_qp, Qpn::GSI);
    t.sent();
    t.post(2, WRITE, &[t.sge(0, 8)]);
    t.receive(&[peers_part(&t, 101, 0, 256).ack_req()]);
    assert!(!sends_joined(&mut t));
}

#[test]
fn a_peer_that_was_asked_in_vain_is_asked_with_the_next_ack_and_gets_acks_so_when_it_answers() {
    let joins = Capabilities { takes_joined: true, ..TAKES_ACK_FIRST };
    let mut t = owing_an_ack(Script::uniform(QpType::Rc), Some(joins), 8);
    assert!(sends_joined(&mut t));
    t.wait(Duration::from_secs(10));
    // The question is lost.
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.wait(Duration::from_millis(2));
    t.post(2, WRITE, &[t.sge(0, 8)]);
    t.receive(&[peers_part(&t, 101, 0, 256).ack_req()]);
    assert!(!sends_joined(&mut t));
    t.answer_question(joins);
    t.receive(&[ack(201, 2)]);
    t.sent();
    t.post(3, WRITE, &[t.sge(0, 8)]);
    t.receive(&[peers_part(&t, 102, 0, 256).ack_req()]);
    assert!(sends_joined(&mut t));
}

#[test]
fn an_ack_goes_before_requests_where_the_peer_has_not_said_that_it_takes_it_first() {
    let minds = Capabilities { takes_ack_first: false, ..TAKES_ACK_FIRST };
    let together = TxLimits::segmented(64);
    let uniform = || Script::uniform(QpType::Rc);
    let cases = [
        (uniform(), None, together),
        (uniform(), Some(minds), together),
        (Script::new(), Some(TAKES_ACK_FIRST), together),
        // There is nothing to gain.
        (uniform(), Some(TAKES_ACK_FIRST), TxLimits::SINGLE),
    ];
    for (t, peer, limits) in cases {
        let mut t = owing_an_ack(t, peer, 512);
        let (_, opcodes) = batch_of(&mut t, limits, 1 << 16);
        assert_eq!((opcodes[0], opcodes.len()), (Opcode::RC_ACK, 3), "{peer:?}, {limits:?}");
    }
}

#[test]
fn an_ack_is_never_left_for_another_batch() {
    for capacity in (1..=48).map(|kib| kib << 10) {
        let mut t = owing_an_ack(Script::uniform(QpType::Rc), Some(TAKES_ACK_FIRST), 65_536);
        let (_, opcodes) = batch_of(&mut t, TxLimits::segmented(64), capacity);
        let acks = opcodes.iter().filter(|&&opcode| opcode == Opcode::RC_ACK).count();
        assert_eq!(acks, 1, "in {} packets", opcodes.len());
    }
}

#[test]
fn a_peer_to_which_acks_go_with_requests_again_and_again_is_asked_whether_it_takes_them_first() {
    let mut t = Script::uniform(QpType::Rc);
    let mut in_turn = |number: u32| {
        t.post(number.into(), WRITE, &[t.sge(0, 1)]);
        t.receive(&[peers_part(&t, 100 + number, 0, 256).ack_req()]);
        let (_, opcodes) = batch_of(&mut t, TxLimits::segmented(64), 1 << 16);
        t.receive(&[ack(200 + number, number + 1)]);
        opcodes
    };
    for number in 0..64 {
        assert_eq!(in_turn(number), [Opcode::RC_ACK, Opcode::RC_WRITE_ONLY], "{number}");
    }
    let question = Opcode::UD_SEND_ONLY;
    assert_eq!(in_turn(64), [question, Opcode::RC_ACK, Opcode::RC_WRITE_ONLY]);
}

#[test]
fn an_ack_goes_without_data_too() {
    let mut t = Script::uniform(QpType::Rc);
    t.receive(&[peers_part(&t, 100, 0, 256).ack_req()]);
    t.expect(ack(100, 1));
}

#[test]
fn it_is_known_when_an_ack_is_all_there_is_to_send() {
    let write = |t: &Script, psn| peers_part(t, psn, 0, 256).ack_req();
    // Whose send queue has been looked at.
    let idle = || {
        let mut t = Script::uniform(QpType::Rc);
        assert_eq!(t.sent(), []);
        t
    };
    let mut t = idle();
    assert!(!t.device.owes_only_an_ack());
    t.receive(&[write(&t, 100)]);
    assert!(t.device.owes_only_an_ack());
    t.expect(ack(100, 1));
    assert!(!t.device.owes_only_an_ack(), "it is sent");
    // What follows before it is sent changes nothing, nor does what is acknowledged with it.
    t.post(1, WRITE, &[]);
    assert_eq!(t.sent().len(), 1);
    t.receive(&[write(&t, 101), ack(200, 0), write(&t, 102)]);
    assert!(t.device.owes_only_an_ack());

    t.post(2, WRITE, &[]);
    assert!(!t.device.owes_only_an_ack(), "there is something to go with");
    let key = t.key;
    let owing: [(&str, Vec<Pkt>); 3] = [
        ("an answer", vec![pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, key, 1)]),
        ("a refusal", vec![write(&t, 102)]),
        ("nothing", vec![peers_part(&t, 101, 0, 256)]),
    ];
    for (owed, packets) in owing {
        let mut t = idle();
        t.receive(&[write(&t, 100)]);
        t.expect(ack(100, 1));
        t.receive(&packets);
        assert!(!t.device.owes_only_an_ack(), "{owed}");
    }
}

#[test]
fn an_ack_is_not_all_there_is_to_send_where_another_qp_has_something_too() {
    let mut t = Script::uniform(QpType::Rc);
    let first = t.qpn;
    let second = t.another(QpType::Rc, None);
    t.sent();
    let write = peers_part(&t, 100, 0, 256).ack_req();
    t.receive_from(PEER, &write.clone().to(first));
    t.receive_from(PEER, &write.clone().to(second));
    t.device.end_of_batch(t.now, &mut t.program);
    assert!(!t.device.owes_only_an_ack());
    t.sent();
    t.receive(&[peers_part(&t, 101, 0, 256).ack_req()]);
    assert!(t.device.owes_only_an_ack(), "that was another batch");
    t.sent();
    // It got nothing this time, but has a turn.
    t.post(1, WRITE, &[]);
    t.select(first);
    t.receive(&[peers_part(&t, 101, 0, 256).ack_req()]);
    assert!(!t.device.owes_only_an_ack());
}

#[test]
fn answers_and_refusals_go_before_requests() {
    let owing = || {
        let mut t = Script::uniform(QpType::Rc);
        t.agree(TAKES_ACK_FIRST);
        t.post(1, WRITE, &[]);
        let key = t.key;
        t.receive(&[
            peers_part(&t, 100, 0, 256).ack_req(),
            pkt(Opcode::RC_READ_REQUEST, 101).reth(VA, key, 1),
            pkt(Opcode::RC_SEND_ONLY, 102),
        ]);
        t
    };
    let (_, opcodes) = batch_of(&mut owing(), TxLimits::segmented(64), 1 << 16);
    let (answer, write) = (Opcode::RC_READ_RESPONSE_ONLY, Opcode::RC_WRITE_ONLY);
    assert_eq!(opcodes, [Opcode::RC_ACK, answer, Opcode::RC_ACK, write]);
    let mut t = owing();
    t.expect(ack(100, 1));
    t.expect(pkt(Opcode::RC_READ_RESPONSE_ONLY, 101).aeth(Syndrome::ACK, 2).payload(&[0]));
    t.expect(rnr(12, 102, 2));
    t.expect(pkt(Opcode::RC_WRITE_ONLY, 200).reth(REMOTE, KEY, 0).ack_req());
}
