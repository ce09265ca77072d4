//! What a peer understands beside the standard, as scripts: asked, told, remembered.

mod script;

use script::*;
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN};
use urxe_wire::{Body, Datagram, Flow, Opcode, datagram_source_port};

const ALL: Capabilities = Capabilities {
    selective_ack: true,
    echoes_marks: true,
    answers_in_onlys: true,
    takes_ack_first: true,
    takes_joined: true,
};
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

fn mad(tid: u64, message: CapabilityMessage) -> Pkt {
    let bytes = CapabilityMad { tid, message }.bytes();
    pkt(Opcode::UD_SEND_ONLY, 9).deth(Qkey::GSI, 1).payload(&bytes).to(Qpn::GSI)
}

fn answer(tid: u64, capabilities: Capabilities) -> Pkt {
    mad(tid, CapabilityMessage::GetResp(capabilities))
}

fn ask(t: &mut Script) {
    t.device.ask_capabilities(t.now, &flow(LOCAL, PEER));
}

/// The datagram that the device sends next, and along which flow.
fn next_mad(t: &mut Script) -> (Flow, CapabilityMad) {
    let (flow, sent) = t.next_sent();
    let Body::Ud(Datagram { deth, .. }) = sent.headers.body else { panic!("{}", sent.headers) };
    assert_eq!((deth.qkey, deth.src_qp, sent.headers.bth.dest_qp), (Qkey::GSI, Qpn::GSI, Qpn::GSI));
    let bytes: [u8; MAD_LEN] = sent.payload.try_into().unwrap();
    (flow, CapabilityMad::parse(&bytes).unwrap())
}

/// Asks, and returns the question's number.
fn question(t: &mut Script) -> u64 {
    ask(t);
    let (flow, mad) = next_mad(t);
    assert_eq!((flow.src, flow.dst, mad.message), (LOCAL, PEER, CapabilityMessage::Get));
    assert_eq!(flow.src_port, datagram_source_port(Qpn::GSI));
    mad.tid
}

/// Each packet asks for it: what was looked up last is not looked up again.
#[test]
fn an_answer_is_known_at_once_and_of_no_other_peer() {
    let mut t = Script::in_reset();
    assert_eq!(t.device.peer_capabilities(PEER), None);
    let tid = question(&mut t);
    assert_eq!(t.device.peer_capabilities(PEER), None);
    t.receive_from(PEER, &answer(tid, ALL));
    for _ in 0..2 {
        assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
        assert_eq!(t.device.peer_capabilities(STRANGER), None);
    }
    assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
    t.wait(limits::CAPABILITIES_VALID);
    let tid = question(&mut t);
    assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
    t.receive_from(PEER, &answer(tid, Capabilities::default()));
    assert_eq!(t.device.peer_capabilities(PEER), Some(Capabilities::default()));
}

#[test]
fn a_question_is_answered_from_the_address_that_was_asked() {
    let mut t = Script::in_reset();
    t.receive_from(PEER, &mad(77, CapabilityMessage::Get));
    let (flow, mad) = next_mad(&mut t);
    assert_eq!((flow.src, flow.dst, mad.tid), (LOCAL, PEER, 77));
    let CapabilityMessage::GetResp(capabilities) = mad.message else { panic!("{mad:?}") };
    assert!(capabilities.selective_ack);
    assert_eq!(t.device.peer_capabilities(PEER), None, "who asks has told nothing");
    assert!(t.program.mads.is_empty(), "the host hears nothing of it");
}

#[test]
fn a_peer_that_asks_is_asked_back_once() {
    let mut t = Script::uniform(QpType::Rc);
    for tid in 77..79 {
        t.receive_from(PEER, &mad(tid, CapabilityMessage::Get));
    }
    let mut to_peer = vec![];
    for _ in 0..3 {
        let (flow, mad) = next_mad(&mut t);
        assert_eq!((flow.src, flow.dst), (LOCAL, PEER));
        to_peer.push(matches!(mad.message, CapabilityMessage::Get));
    }
    assert_eq!(to_peer.iter().filter(|&&is_question| is_question).count(), 1);
    t.expect_nothing();
    let mut strict = Script::new();
    strict.receive_from(PEER, &mad(77, CapabilityMessage::Get));
    next_mad(&mut strict);
    strict.expect_nothing();
}

#[test]
fn a_peer_that_is_known_is_told_and_not_asked_back() {
    let mut t = Script::uniform(QpType::Rc);
    let tid = question(&mut t);
    t.receive_from(PEER, &answer(tid, ALL));
    for tid in 77..80 {
        t.wait(10 * limits::MIN_CAPABILITY_INTERVAL);
        t.receive_from(PEER, &mad(tid, CapabilityMessage::Get));
        let (_, told) = next_mad(&mut t);
        assert_eq!((told.tid, told.message), (tid, CapabilityMessage::GetResp(ALL)));
        t.expect_nothing();
    }
}

#[test]
fn a_peer_that_has_a_question_to_answer_is_not_asked_back() {
    let mut t = Script::uniform(QpType::Rc);
    let asked = question(&mut t);
    for tid in 77..80 {
        t.wait(10 * limits::MIN_CAPABILITY_INTERVAL);
        t.receive_from(PEER, &mad(tid, CapabilityMessage::Get));
        assert_eq!(next_mad(&mut t).1.tid, tid);
        t.expect_nothing();
    }
    t.receive_from(PEER, &answer(asked, ALL));
    assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
}

#[test]
fn a_question_that_cannot_be_answered_is_dropped_and_counted() {
    let mut t = Script::in_reset();
    let to_group = Flow { dst: "239.1.2.3".parse().unwrap(), ..flow(PEER, LOCAL) };
    let from_group = Flow { src: "239.1.2.3".parse().unwrap(), ..flow(PEER, LOCAL) };
    for flow in [to_group, from_group] {
        t.receive_along(&flow, &mad(77, CapabilityMessage::Get));
    }
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropWrongAddress), 2);
}

#[test]
fn questions_that_pour_in_do_not_pile_up_answers() {
    let mut t = Script::in_reset();
    for tid in 0..limits::MAX_WAITING_MADS as u64 + 3 {
        t.receive_from(PEER, &mad(tid, CapabilityMessage::Get));
    }
    assert_eq!(t.counted(Counter::MadsNotSent), 3);
    assert_eq!(t.sent().len(), limits::MAX_WAITING_MADS);
}

#[test]
fn an_answer_is_remembered() {
    let mut t = Script::in_reset();
    let tid = question(&mut t);
    assert_eq!(t.device.peer_capabilities(PEER), None);
    t.receive_from(PEER, &answer(tid, ALL));
    assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
    t.expect_nothing();
}

#[test]
fn an_answer_that_was_not_asked_for_is_dropped() {
    let mut t = Script::in_reset();
    t.receive_from(PEER, &answer(0, ALL));
    let tid = question(&mut t);
    t.receive_from(PEER, &answer(tid ^ 1, ALL));
    t.receive_from(STRANGER, &answer(tid, ALL));
    assert_eq!(t.counted(Counter::DropUnexpectedCapabilities), 3);
    let none = Capabilities::default();
    t.receive_from(PEER, &answer(tid, none));
    t.receive_from(PEER, &answer(tid, ALL));
    assert_eq!(t.device.peer_capabilities(PEER), Some(none), "a question has one answer");
    assert_eq!(t.device.peer_capabilities(STRANGER), None);
}

#[test]
fn a_refusal_means_that_the_peer_keeps_to_the_standard() {
    let mut t = Script::in_reset();
    let tid = question(&mut t);
    t.receive_from(PEER, &mad(tid, CapabilityMessage::Refused));
    assert_eq!(t.device.peer_capabilities(PEER), Some(Capabilities::default()));
    t.wait(limits::MIN_CAPABILITY_INTERVAL);
    ask(&mut t);
    t.expect_nothing();
}

#[test]
fn a_silent_peer_is_asked_ever_more_rarely_and_at_last_never_again() {
    let mut t = Script::in_reset();
    for tries in 0..limits::MAX_CAPABILITY_TRIES {
        let interval = limits::MIN_CAPABILITY_INTERVAL * 8u32.pow(tries);
        question(&mut t);
        ask(&mut t);
        t.wait(interval - Duration::from_millis(1));
        ask(&mut t);
        t.expect_nothing();
        t.wait(Duration::from_millis(1));
    }
    t.wait(Duration::from_secs(100_000));
    ask(&mut t);
    t.expect_nothing();
    t.receive_from(PEER, &mad(77, CapabilityMessage::Get));
    next_mad(&mut t);
    question(&mut t);
}

#[test]
fn a_peer_that_was_started_anew_is_asked_again() {
    let mut t = Script::in_reset();
    let tid = question(&mut t);
    t.receive_from(PEER, &answer(tid, ALL));
    t.wait(limits::MIN_CAPABILITY_INTERVAL);
    t.receive_from(PEER, &mad(77, CapabilityMessage::Get));
    next_mad(&mut t);
    let tid = question(&mut t);
    assert_eq!(t.device.peer_capabilities(PEER), Some(ALL), "until it says otherwise");
    let less = Capabilities { echoes_marks: false, ..ALL };
    t.receive_from(PEER, &answer(tid, less));
    assert_eq!(t.device.peer_capabilities(PEER), Some(less));
}

#[test]
fn a_peer_that_does_not_answer_any_more_is_forgotten() {
    let mut t = Script::in_reset();
    let tid = question(&mut t);
    t.receive_from(PEER, &answer(tid, ALL));
    t.wait(limits::CAPABILITIES_VALID - Duration::from_millis(1));
    ask(&mut t);
    t.expect_nothing();
    t.wait(Duration::from_millis(1));
    for tries in 0..limits::MAX_CAPABILITY_TRIES {
        question(&mut t);
        assert_eq!(t.device.peer_capabilities(PEER), Some(ALL));
        t.wait(limits::MIN_CAPABILITY_INTERVAL * 8u32.pow(tries));
    }
    ask(&mut t);
    t.expect_nothing();
    assert_eq!(t.device.peer_capabilities(PEER), None);
}

#[test]
fn only_so_many_peers_are_remembered() {
    let mut t = Script::in_reset();
    let tid = question(&mut t);
    t.receive_from(PEER, &answer(tid, ALL));
    for number in 0..limits::MAX_KNOWN_PEERS as u32 {
        t.wait(Duration::from_nanos(1));
        let dst = IpAddr::V4((0x0b00_0000 + number).into());
        t.device.ask_capabilities(t.now, &flow(LOCAL, dst));
        next_mad(&mut t);
    }
    assert_eq!(t.device.peer_capabilities(PEER), None);
}

#[test]
fn questions_in_the_name_of_one_address_are_answered_at_a_bounded_rate() {
    let mut t = Script::uniform(QpType::Rc);
    let asked = |t: &mut Script, times: u32| {
        let mut sent = 0;
        for tid in 0..times {
            t.receive_from(STRANGER, &mad(tid.into(), CapabilityMessage::Get));
            sent += t.sent().len() as u32;
        }
        sent
    };
    let Rate { per_second, at_once } = limits::CAPABILITY_REPLIES_EACH;
    assert_eq!(asked(&mut t, 5000), at_once, "questions back included");
    assert_eq!(t.counted(Counter::CapabilityRepliesHeldBack), 5000 + 1 - u64::from(at_once));
    t.receive_from(PEER, &mad(77, CapabilityMessage::Get));
    assert_eq!(next_mad(&mut t).0.dst, PEER, "another is answered");
    t.sent();
    t.wait(Duration::from_secs(1));
    assert_eq!(asked(&mut t, 5000), per_second);
}
