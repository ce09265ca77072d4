//! UC, as scripts: nothing is acknowledged, and a message arrives whole or not at all.

mod script;

use script::*;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::Opcode;
use urxe_wire::batch::{TxBatch, TxLimits};

const SEND: SendOp = SendOp::Send(Extra::None);
const REMOTE: u64 = 0x7000;
const KEY: u32 = 0x5eed;
const WRITE: SendOp = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: None };

fn uc() -> Script {
    Script::of(QpType::Uc)
}

// The requester.

#[test]
fn a_send_is_cut_into_packets_that_ask_for_nothing() {
    let mut t = uc();
    let data = bytes(5, 600);
    t.fill(0, &data);
    t.post_with(1, SendOp::Send(Extra::Imm(77)), &[t.sge(0, 600)], |wqe| wqe.wr.solicited = true);
    t.expect(pkt(Opcode::UC_SEND_FIRST, 200).payload(&data[..256]));
    t.expect(pkt(Opcode::UC_SEND_MIDDLE, 201).payload(&data[256..512]));
    t.expect(pkt(Opcode::UC_SEND_LAST_IMM, 202).payload(&data[512..]).imm(77).solicited());
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::Send);
    assert_eq!(t.program.retired, 1);
}

#[test]
fn a_write_names_its_range_in_the_first_packet() {
    let mut t = uc();
    let data = bytes(0, 257);
    t.fill(0, &data);
    let op = SendOp::Write { remote_addr: REMOTE, rkey: Rkey(KEY), imm: Some(9) };
    t.post(1, op, &[t.sge(0, 257)]);
    t.post(2, WRITE, &[]);
    t.expect(pkt(Opcode::UC_WRITE_FIRST, 200).reth(REMOTE, KEY, 257).payload(&data[..256]));
    t.expect(pkt(Opcode::UC_WRITE_LAST_IMM, 201).payload(&data[256..]).imm(9));
    t.expect(pkt(Opcode::UC_WRITE_ONLY, 202).reth(REMOTE, KEY, 0));
    assert_eq!(t.expect_send(1, WcStatus::Success).opcode, WcOpcode::RdmaWrite);
    t.expect_send(2, WcStatus::Success);
}

#[test]
fn a_message_completes_with_its_last_packet_and_not_before() {
    let mut t = uc();
    t.post(1, SEND, &[t.sge(0, 600)]);
    for packets in 1..=3 {
        t.expect_no_completion();
        // A batch with room for one packet.
        let mut tx = TxBatch::new(TxLimits::SINGLE, 1);
        t.device.poll_transmit(t.now, &mut t.program, &mut tx);
        assert_eq!((tx.len(), t.counted(Counter::SentPackets)), (1, packets));
    }
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn nothing_is_waited_for() {
    let mut t = uc();
    for wr_id in 0..1000 {
        t.post(wr_id, SEND, &[t.sge(0, 300)]);
    }
    assert_eq!(t.sent().len(), 2000);
    assert_eq!(t.program.completions.len(), 1000);
    assert_eq!(t.device.poll_timeout(), None);
}

#[test]
fn psns_wrap_around() {
    let mut t = Script::in_reset_of(QpType::Uc);
    t.connect(&QpAttr { sq_psn: Some(Psn::new(0xff_ffff)), ..usual_uc() });
    t.post(1, SEND, &[t.sge(0, 257)]);
    let psns: Vec<_> = t.sent().iter().map(|p| p.headers.bth.psn.get()).collect();
    assert_eq!(psns, [0xff_ffff, 0]);
}

#[test]
fn operations_that_need_an_answer_are_refused() {
    let (remote_addr, rkey) = (REMOTE, Rkey(KEY));
    for op in [
        SendOp::Read { remote_addr, rkey },
        SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
        SendOp::Send(Extra::Invalidate(rkey)),
    ] {
        let mut t = uc();
        t.post(1, op, &[t.sge(0, 8)]);
        t.expect_nothing();
        let completion = t.expect_send(1, WcStatus::LocalQpOperation);
        assert_eq!(completion.vendor_err, Cause::NotOfThisTransport as u32);
    }
}

// The responder.

#[test]
fn a_send_is_scattered_over_its_receive_and_not_answered() {
    let mut t = uc();
    let data = bytes(7, 600);
    t.post_recv(1, &[t.sge(0, 300), t.sge(1000, 400)]);
    t.receive(&[
        pkt(Opcode::UC_SEND_FIRST, 100).payload(&data[..256]),
        pkt(Opcode::UC_SEND_MIDDLE, 101).payload(&data[256..512]),
        pkt(Opcode::UC_SEND_LAST_IMM, 102).payload(&data[512..]).imm(5).solicited().ack_req(),
    ]);
    t.expect_nothing();
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::Recv, 600));
    assert_eq!((completion.extra, completion.solicited), (Extra::Imm(5), true));
    assert_eq!((completion.src_qpn, completion.grh), (Qpn::new(PEER_QPN), None));
    assert_eq!([t.memory(0, 300), t.memory(1000, 300)].concat(), data);
}

#[test]
fn a_write_lands_in_memory_and_only_its_immediate_data_is_told() {
    let mut t = uc();
    let (key, data) = (t.key, bytes(3, 300));
    t.post_recv(1, &[]);
    t.receive(&[
        pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, key, 2).payload(b"ab"),
        pkt(Opcode::UC_WRITE_FIRST, 101).reth(VA + 5, key, 300).payload(&data[..256]),
        pkt(Opcode::UC_WRITE_LAST_IMM, 102).payload(&data[256..]).imm(6),
    ]);
    t.expect_nothing();
    let completion = t.expect_recv(1, WcStatus::Success);
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RecvRdmaWithImm, 300));
    assert_eq!(completion.extra, Extra::Imm(6));
    t.expect_no_completion();
    assert_eq!((t.memory(0, 2), t.memory(5, 300)), (&b"ab"[..], &data[..]));
}

/// A SEND of three packets, from this PSN on.
fn three_packets(psn: u32, data: &[u8]) -> [Pkt; 3] {
    [
        pkt(Opcode::UC_SEND_FIRST, psn).payload(&data[..256]),
        pkt(Opcode::UC_SEND_MIDDLE, psn + 1).payload(&data[256..512]),
        pkt(Opcode::UC_SEND_LAST, psn + 2).payload(&data[512..]),
    ]
}

#[test]
fn whichever_packet_is_lost_the_message_is_dropped_and_the_next_gets_its_receive() {
    for lost in 0..3 {
        let mut t = uc();
        t.post_recv(1, &[t.sge(0, 1000)]);
        let mut packets = three_packets(100, &bytes(1, 600)).to_vec();
        packets.remove(lost);
        t.receive(&packets);
        t.expect_no_completion();
        let next = bytes(9, 555);
        t.receive(&three_packets(103, &next));
        assert_eq!(t.expect_recv(1, WcStatus::Success).byte_len, 555);
        assert_eq!(t.memory(0, 555), next, "packet {lost} of the message before was lost");
        t.expect_no_completion();
        t.expect_nothing();
        assert_eq!((t.state(), t.program.events.len()), (QpState::Rts, 0));
        assert_eq!(t.counted(Counter::UcGaps), 1);
        assert_eq!(t.counted(Counter::ReceivedMessages), 1);
    }
}

#[test]
fn the_rest_of_a_message_is_counted() {
    let mut t = uc();
    t.post_recv(1, &[t.sge(0, 1000)]);
    let [first, _, last] = three_packets(100, &bytes(1, 600));
    t.receive(&[first, last]);
    assert_eq!(t.counted(Counter::UcMessagesDropped), 1);
    assert_eq!(t.counted(Counter::DropMessagePart), 1);
}

#[test]
fn after_a_gap_the_psn_that_came_is_the_one_to_go_on_from() {
    let mut t = uc();
    for (psn, gaps) in [(100, 0), (105, 1), (106, 1), (50, 2), (51, 2)] {
        t.post_recv(psn.into(), &[]);
        t.receive(&[pkt(Opcode::UC_SEND_ONLY, psn)]);
        t.expect_recv(psn.into(), WcStatus::Success);
        assert_eq!(t.counted(Counter::UcGaps), gaps);
    }
}

#[test]
fn a_write_with_a_gap_is_not_told_though_part_of_it_was_written() {
    let mut t = uc();
    let key = t.key;
    t.post_recv(1, &[]);
    t.receive(&[
        pkt(Opcode::UC_WRITE_FIRST, 100).reth(VA, key, 600).payload(&bytes(1, 256)),
        pkt(Opcode::UC_WRITE_LAST_IMM, 102).payload(&bytes(1, 88)).imm(1),
    ]);
    t.expect_no_completion();
    assert_eq!(t.memory(256, 344), [0; 344], "nothing is put where it does not belong");
}

#[test]
fn a_receive_that_a_dropped_message_left_is_not_completed_by_a_write() {
    let mut t = uc();
    let key = t.key;
    t.post_recv(1, &[t.sge(0, 600)]);
    t.receive(&[
        pkt(Opcode::UC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
        pkt(Opcode::UC_WRITE_ONLY, 101).reth(VA + 4096, key, 1).payload(b"x"),
    ]);
    t.expect_no_completion();
    assert_eq!(t.memory(4096, 1), b"x");
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 102).payload(b"y")]);
    t.expect_recv(1, WcStatus::Success);
}

#[test]
fn a_new_message_inside_another_takes_its_place() {
    let mut t = uc();
    t.post_recv(1, &[t.sge(0, 600)]);
    t.receive(&[
        pkt(Opcode::UC_SEND_FIRST, 100).payload(&bytes(0, MTU)),
        pkt(Opcode::UC_SEND_ONLY, 101).payload(b"new"),
    ]);
    assert_eq!(t.expect_recv(1, WcStatus::Success).byte_len, 3);
    assert_eq!(t.counted(Counter::UcMessagesDropped), 1);
}

/// A message that must be dropped under this counter, with the QP going on as before.
fn dropped(t: &mut Script, counter: Counter, packets: &[Pkt]) {
    t.receive(packets);
    assert_eq!(t.counted(counter), 1);
    t.expect_nothing();
    t.expect_no_completion();
    assert_eq!((t.state(), t.program.events.len()), (QpState::Rts, 0));
    t.post_recv(99, &[t.sge(0, 600)]);
    let next = 100 + packets.len() as u32;
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, next).payload(b"next")]);
    assert_eq!(t.completion().1.byte_len, 4);
}

#[test]
fn without_a_receive_the_whole_message_is_dropped() {
    let mut t = uc();
    dropped(&mut t, Counter::DropNoReceive, &three_packets(100, &bytes(0, 600)));
    assert_eq!(t.counted(Counter::DropMessagePart), 2);
}

#[test]
fn immediate_data_without_a_receive_is_dropped() {
    let mut t = uc();
    let packet = pkt(Opcode::UC_WRITE_ONLY_IMM, 100).reth(VA, t.key, 0).imm(1);
    dropped(&mut t, Counter::DropNoReceive, &[packet]);
}

#[test]
fn a_message_longer_than_its_receive_is_dropped_and_the_receive_stays() {
    let mut t = uc();
    t.post_recv(1, &[t.sge(0, 300)]);
    dropped(&mut t, Counter::DropReceiveTooShort, &three_packets(100, &bytes(0, 600)));
    assert_eq!(t.counted(Counter::UcMessagesDropped), 1);
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 104)]);
    t.expect_recv(99, WcStatus::Success);
}

#[test]
fn a_write_that_its_key_does_not_allow_is_dropped() {
    let mut t = uc();
    let packet = pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, t.key ^ 1, 1).payload(b"x");
    dropped(&mut t, Counter::DropRemoteAccess, &[packet]);
    let mut t = uc();
    let packet =
        pkt(Opcode::UC_WRITE_FIRST, 100).reth(VA + 65_536 - 299, t.key, 300).payload(&[1; MTU]);
    dropped(&mut t, Counter::DropRemoteAccess, &[packet]);
    assert!(t.program.memory[4..].iter().all(|&byte| byte == 0), "nothing of it is done");
}

#[test]
fn a_write_that_the_qp_does_not_allow_is_dropped() {
    let mut t = Script::in_reset_of(QpType::Uc);
    t.connect(&QpAttr { access: Some(Access::LOCAL_WRITE), ..usual_uc() });
    let packet = pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, t.key, 1).payload(b"x");
    dropped(&mut t, Counter::DropInvalidRequest, &[packet]);
}

#[test]
fn packets_whose_lengths_make_no_sense_are_dropped() {
    let short_first = pkt(Opcode::UC_SEND_FIRST, 100).payload(&[1; 255]);
    dropped(&mut uc(), Counter::DropInvalidRequest, &[short_first]);
    let too_long = pkt(Opcode::UC_SEND_ONLY, 100).payload(&[1; 257]);
    dropped(&mut uc(), Counter::DropInvalidRequest, &[too_long]);
    let mut t = uc();
    let less_than_said = pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, t.key, 9).payload(&[1; 8]);
    dropped(&mut t, Counter::DropInvalidRequest, &[less_than_said]);
}

#[test]
fn a_send_going_on_as_a_write_is_dropped() {
    let mut t = uc();
    t.post_recv(1, &[t.sge(0, 600)]);
    let packets = [
        pkt(Opcode::UC_SEND_FIRST, 100).payload(&[1; MTU]),
        pkt(Opcode::UC_WRITE_LAST, 101).payload(b"x"),
    ];
    dropped(&mut t, Counter::DropInvalidRequest, &packets);
}

// What ends the QP: faults of our own side.

#[test]
fn a_receive_with_a_bad_lkey_fails_and_ends_the_qp() {
    let mut t = uc();
    let mut sge = t.sge(0, 8);
    sge.lkey.0 ^= 1;
    t.post_recv(1, &[sge]);
    t.post_recv(2, &[]);
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 100).payload(b"x")]);
    t.expect_nothing();
    let completion = t.expect_recv(1, WcStatus::LocalProtection);
    assert_eq!(completion.vendor_err, Cause::LocalKey as u32);
    t.expect_recv(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_receive_is_checked_only_as_far_as_the_message_reaches() {
    let mut t = uc();
    let mut bad = t.sge(0, 8);
    bad.lkey.0 ^= 1;
    t.post_recv(1, &[bad]);
    t.post_recv(2, &[t.sge(0, 1), bad]);
    t.post_recv(3, &[t.sge(0, 1), bad]);
    t.receive(&[
        pkt(Opcode::UC_SEND_ONLY, 100),
        pkt(Opcode::UC_SEND_ONLY, 101).payload(b"x"),
        pkt(Opcode::UC_SEND_ONLY, 102).payload(b"xy"),
    ]);
    t.expect_recv(1, WcStatus::Success);
    t.expect_recv(2, WcStatus::Success);
    t.expect_recv(3, WcStatus::LocalProtection);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn memory_that_is_gone_ends_the_qp_with_an_event_if_no_receive_can_tell() {
    let mut t = uc();
    let key = t.key;
    t.program.unmapped = true;
    t.receive(&[pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x")]);
    t.expect_nothing();
    assert_eq!(
        (t.state(), &t.program.events[..]),
        (QpState::Err, &[AsyncEvent::QpFatal(t.qpn)][..])
    );
}

#[test]
fn a_write_that_cannot_be_made_visible_ends_the_qp_and_sends_nothing() {
    let mut t = uc();
    t.program.sync_fails = true;
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 100).payload(b"x")]);
    t.expect_nothing();
    t.expect_recv(1, WcStatus::LocalProtection);
    assert_eq!(t.counted(Counter::RemoteOperationalNaksSent), 0);
}

// What is dropped before it is looked at.

#[test]
fn packets_of_another_service_or_host_are_counted() {
    let mut t = uc();
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100), ack(200, 1)]);
    assert_eq!(t.counted(Counter::DropWrongTransport), 2);
    let packet = pkt(Opcode::UC_SEND_ONLY, 100).to(t.qpn);
    t.receive_from("10.0.0.3".parse().unwrap(), &packet);
    assert_eq!(t.counted(Counter::DropWrongAddress), 1);
}

#[test]
fn nothing_is_executed_in_err() {
    let mut t = uc();
    t.post_recv(1, &[]);
    t.enter(QpState::Err);
    t.expect_recv(1, WcStatus::WrFlush);
    let key = t.key;
    t.receive(&[pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x")]);
    assert_eq!((t.counted(Counter::DropQpNotReady), t.memory(0, 1)), (1, &[0][..]));
}

#[test]
fn the_first_packet_in_rtr_tells_that_communication_is_established() {
    let mut t = Script::in_reset_of(QpType::Uc);
    t.enter_init(&usual_uc()).unwrap();
    t.enter_rtr(&usual_uc()).unwrap();
    t.post_recv(1, &[]);
    t.post_recv(2, &[]);
    t.receive(&[pkt(Opcode::UC_SEND_ONLY, 100), pkt(Opcode::UC_SEND_ONLY, 101)]);
    assert_eq!(t.program.events, [AsyncEvent::CommunicationEstablished(t.qpn)]);
}
