//! Answers to READs that are all of one size, between two that have agreed on them.

mod script;

use script::*;
use urxe_engine::Counter;
use urxe_types::{QpType, Rkey, SendOp, WcStatus};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN};
use urxe_wire::{Body, Bth, NakCode, Opcode, Syndrome};

const REMOTE: u64 = 0x2000;
const KEY: u32 = 0x77;
const READ: SendOp = SendOp::Read { remote_addr: REMOTE, rkey: Rkey(KEY) };
const AGREED: Capabilities = Capabilities {
    selective_ack: false,
    echoes_marks: false,
    answers_in_onlys: true,
    takes_ack_first: false,
    takes_joined: false,
};

/// A packet of a READ request that asks for answers of one size.
fn asking(mut request: Pkt) -> Pkt {
    request.headers.bth.resv7 = Bth::ANSWER_IN_ONLYS;
    request
}

fn request(psn: u32, at: u64, len: u32) -> Pkt {
    pkt(Opcode::RC_READ_REQUEST, psn).reth(REMOTE + at, KEY, len).ack_req()
}

/// An answer with byte `at` and those that follow it.
fn answer(opcode: Opcode, psn: u32, at: usize, len: usize) -> Pkt {
    let packet = pkt(opcode, psn).payload(&bytes(at as u8, len));
    match opcode {
        Opcode::RC_READ_RESPONSE_MIDDLE => packet,
        _ => packet.aeth(Syndrome::ACK, 2),
    }
}

fn only(psn: u32, at: usize, len: usize) -> Pkt {
    answer(Opcode::RC_READ_RESPONSE_ONLY, psn, at, len)
}

/// A device that has read a byte from its peer, so that it asks for more than a few packets at
/// once. Its next PSN is 201.
fn reading() -> Script {
    let mut t = Script::uniform(QpType::Rc);
    t.post(0, READ, &[t.sge(0, 1)]);
    t.expect(request(200, 0, 1));
    t.receive(&[only(200, 0, 1)]);
    t.expect_send(0, WcStatus::Success);
    t
}

/// One whose peer has agreed, with a READ of four packets under way, the last of one byte.
fn read_of_four() -> Script {
    let mut t = reading();
    t.agree(AGREED);
    t.post(1, READ, &[t.sge(0, 769)]);
    t.expect(asking(request(201, 0, 769)));
    t.expect_nothing();
    t
}

#[test]
fn a_peer_that_agreed_is_asked_once_for_a_read_and_answers_in_onlys() {
    let mut t = read_of_four();
    t.receive(&[only(201, 0, 256), only(202, 256, 256), only(203, 512, 256)]);
    t.expect_no_completion();
    t.receive(&[only(204, 768, 1)]);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.memory(0, 769), bytes(0, 769));
}

#[test]
fn a_peer_that_agreed_may_answer_in_the_standard_form_all_the_same() {
    let mut t = read_of_four();
    let (first, middle) = (Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE);
    t.receive(&[
        answer(first, 201, 0, 256),
        answer(middle, 202, 256, 256),
        answer(middle, 203, 512, 256),
        answer(Opcode::RC_READ_RESPONSE_LAST, 204, 768, 1),
    ]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn an_answer_of_one_size_that_was_lost_is_asked_for_alone() {
    let mut t = read_of_four();
    t.receive(&[only(201, 0, 256), only(203, 512, 256), only(204, 768, 1)]);
    t.expect(asking(request(202, 256, 256)));
    t.receive(&[only(202, 256, 256)]);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.memory(0, 769), bytes(0, 769));
}

#[test]
fn an_answer_of_one_size_is_held_to_the_length_of_its_place() {
    for (psn, at, len) in [(201, 0, 0), (202, 256, 255), (204, 768, 2), (204, 768, 256)] {
        let mut t = read_of_four();
        t.receive(&[only(psn, at, len)]);
        t.expect_send(1, WcStatus::BadResponse);
    }
}

#[test]
fn a_read_whose_standard_answers_are_all_of_one_size_asks_for_nothing_else() {
    let mut t = reading();
    t.agree(AGREED);
    t.post(1, READ, &[t.sge(0, 512)]);
    t.expect(request(201, 0, 512));
}

#[test]
fn a_peer_that_did_not_agree_is_sent_what_the_standard_has_and_held_to_it() {
    for told in [None, Some(Capabilities { answers_in_onlys: false, ..AGREED })] {
        let mut t = reading();
        if let Some(told) = told {
            t.agree(told);
        }
        t.post(1, READ, &[t.sge(0, 769)]);
        t.expect(request(201, 0, 512));
        t.expect(request(203, 512, 257));
        t.receive(&[only(201, 0, 256)]);
        t.expect_send(1, WcStatus::BadResponse);
    }
}

#[test]
fn the_strict_form_asks_for_nothing_beside_the_standard() {
    let mut t = Script::reading();
    t.agree(AGREED);
    t.post(1, READ, &[t.sge(0, 769)]);
    t.expect(request(200, 0, 769));
}

/// How many questions the device sends while it reads so often 64 KiB.
fn questions_of(reads: u64) -> usize {
    let (mut t, mut psn, mut questions) = (reading(), 201, 0);
    for number in 0..reads {
        t.post(1 + number, READ, &[t.sge(0, 65_536)]);
        let mut left = 256;
        while left > 0 {
            let sent = t.sent();
            assert!(!sent.is_empty());
            for packet in sent {
                let Body::RcRequest(urxe_wire::Request::Read(reth)) = packet.headers.body else {
                    let mad: [u8; MAD_LEN] = packet.payload.try_into().unwrap();
                    let mad = CapabilityMad::parse(&mad).unwrap();
                    assert_eq!(mad.message, CapabilityMessage::Get);
                    questions += 1;
                    continue;
                };
                let packets = reth.len.div_ceil(256);
                for number in 0..packets {
                    let opcode = match (number == 0, number + 1 == packets) {
                        (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                        (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                        (false, true) => Opcode::RC_READ_RESPONSE_LAST,
                        (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                    };
                    t.receive(&[answer(opcode, psn + number, 0, 256)]);
                }
                psn += packets;
                left -= packets;
            }
        }
        t.expect_send(1 + number, WcStatus::Success);
    }
    questions
}

#[test]
fn a_peer_from_which_much_is_read_is_asked_whether_it_answers_in_packets_of_one_size() {
    assert_eq!(questions_of(1), 0, "little is read");
    assert_eq!(questions_of(4), 1);
}

// What the peer's requests do here.

/// A READ request of the peer's for the first bytes of the MR.
fn peers_request(t: &Script, psn: u32, len: u32) -> Pkt {
    pkt(Opcode::RC_READ_REQUEST, psn).reth(VA, t.key, len)
}

fn answer_of(t: &Script, opcode: Opcode, psn: u32, at: usize, len: usize) -> Pkt {
    let packet = pkt(opcode, psn).payload(t.memory(at, len));
    match opcode {
        Opcode::RC_READ_RESPONSE_MIDDLE => packet,
        _ => packet.aeth(Syndrome::ACK, 1),
    }
}

#[test]
fn a_read_that_asks_for_it_is_answered_in_onlys_also_when_it_comes_again() {
    let mut t = Script::uniform(QpType::Rc);
    t.fill(0, &bytes(7, 513));
    let only = |t: &Script, psn, at, len| answer_of(t, Opcode::RC_READ_RESPONSE_ONLY, psn, at, len);
    t.receive(&[asking(peers_request(&t, 100, 513))]);
    t.expect(only(&t, 100, 0, 256));
    t.expect(only(&t, 101, 256, 256));
    t.expect(only(&t, 102, 512, 1));
    let rest = pkt(Opcode::RC_READ_REQUEST, 101).reth(VA + 256, t.key, 257);
    t.receive(&[asking(rest.clone())]);
    t.sent()
        .iter()
        .filter(|packet| matches!(packet.headers.body, Body::RcResponse(_)))
        .for_each(|packet| assert_eq!(packet.headers.body.opcode(), Opcode::RC_READ_RESPONSE_ONLY));
    // As somebody asks who keeps to the standard.
    t.receive(&[rest]);
    t.expect(answer_of(&t, Opcode::RC_READ_RESPONSE_FIRST, 101, 256, 256));
    t.expect(answer_of(&t, Opcode::RC_READ_RESPONSE_LAST, 102, 512, 1));
}

/// The opcodes of the answer to a READ of three packets with these reserved bits.
fn opcodes_of_the_answer(mut t: Script, resv7: u8) -> Vec<Opcode> {
    let mut request = peers_request(&t, 100, 513);
    request.headers.bth.resv7 = resv7;
    t.receive(&[request]);
    t.sent_opcodes()
}

#[test]
fn reserved_bits_that_ask_for_nothing_are_ignored_and_all_are_in_the_strict_form() {
    let standard = [
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_READ_RESPONSE_MIDDLE,
        Opcode::RC_READ_RESPONSE_LAST,
    ];
    for resv7 in (0..0x80).filter(|&resv7| resv7 != Bth::ANSWER_IN_ONLYS) {
        let answer = opcodes_of_the_answer(Script::uniform(QpType::Rc), resv7);
        assert_eq!(answer, standard, "{resv7:#x}");
    }
    assert_eq!(opcodes_of_the_answer(Script::new(), Bth::ANSWER_IN_ONLYS), standard);
}

#[test]
fn a_key_that_is_taken_back_ends_an_answer_of_one_size_with_a_refusal() {
    let mut t = Script::uniform(QpType::Rc);
    t.receive(&[asking(peers_request(&t, 100, 513))]);
    t.program.unmapped = true;
    t.expect(nak(NakCode::RemoteAccess, 100, 1));
    assert_eq!(t.counted(Counter::RemoteAccessNaksSent), 1);
}

#[test]
fn many_answers_of_one_size_share_one_segmented_send() {
    let mut t = Script::uniform(QpType::Rc);
    t.receive(&[asking(peers_request(&t, 100, 1024)), asking(peers_request(&t, 104, 1024))]);
    let mut tx = TxBatch::new(TxLimits::segmented(64), 1 << 16);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    let segments: Vec<usize> = tx.runs().map(|run| run.segments).collect();
    assert_eq!(segments, [8]);
}

/// What a device of this form says of itself.
fn says(t: &mut Script) -> bool {
    let question = CapabilityMad { tid: 7, message: CapabilityMessage::Get }.bytes();
    let question = pkt(Opcode::UD_SEND_ONLY, 9)
        .deth(urxe_types::Qkey::GSI, 1)
        .payload(&question)
        .to(urxe_types::Qpn::GSI);
    t.receive_from(PEER, &question);
    let mad: [u8; MAD_LEN] = t.next_sent().1.payload.try_into().unwrap();
    match CapabilityMad::parse(&mad).unwrap().message {
        CapabilityMessage::GetResp(capabilities) => capabilities.answers_in_onlys,
        message => panic!("{message:?}"),
    }
}

#[test]
fn only_a_device_that_sends_packets_of_one_size_says_that_it_answers_so() {
    assert!(says(&mut Script::uniform(QpType::Rc)));
    assert!(!says(&mut Script::new()));
}
