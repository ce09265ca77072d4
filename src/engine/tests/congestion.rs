//! Congestion, as scripts: marks are told of, notifications are obeyed, and paths are listed.

mod script;

use script::*;
use std::time::Duration;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN};
use urxe_wire::{Flow, Opcode};

const SEND: SendOp = SendOp::Send(Extra::None);
const US: Duration = Duration::from_micros(1);

fn marked() -> Flow {
    Flow { traffic_class: 0x23, ..flow(PEER, LOCAL) }
}

/// A WRITE of one byte that asks for no acknowledgement.
fn write(t: &Script, psn: u32) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, t.key, 1).payload(&[1]).to(t.qpn)
}

/// The marked request with this PSN arrives.
fn receive_marked(t: &mut Script, psn: u32) {
    t.receive_along(&marked(), &write(t, psn));
    t.receive(&[]);
}

fn notification() -> Pkt {
    let mut packet = pkt(Opcode::CNP, 0).payload(&[0; 16]);
    packet.headers.bth.becn = true;
    packet
}

/// The peer agrees to tell of marks.
fn agree(t: &mut Script) {
    t.device.ask_capabilities(t.now, &flow(LOCAL, PEER));
    let question: [u8; MAD_LEN] = t.next_sent().1.payload.try_into().unwrap();
    let tid = CapabilityMad::parse(&question).unwrap().tid;
    let capabilities =
        Capabilities { selective_ack: true, echoes_marks: true, ..Default::default() };
    let answer = CapabilityMad { tid, message: CapabilityMessage::GetResp(capabilities) }.bytes();
    let answer = pkt(Opcode::UD_SEND_ONLY, 9).deth(Qkey::GSI, 1).payload(&answer).to(Qpn::GSI);
    t.receive_from(PEER, &answer);
}

fn with(parameters: CongestionParameters) -> Script {
    let congestion = CongestionControl::On(parameters);
    let mut t = Script::controlled(QpType::Rc, congestion);
    t.connect(&usual());
    t
}

fn path(t: &Script) -> PathInfo {
    t.device.paths().next().unwrap()
}

/// What the device asks for, and the marked answer to it.
fn read_marked_answer(t: &mut Script) {
    let op = SendOp::Read { remote_addr: 0x7000, rkey: Rkey(1) };
    t.post(1, op, &[t.sge(0, 8)]);
    t.sent();
    let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(urxe_wire::Syndrome::ACK, 1);
    t.receive_along(&marked(), &answer.payload(&[7; 8]).to(t.qpn));
    t.receive(&[]);
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_mark_is_answered_with_a_notification() {
    let mut t = Script::new();
    receive_marked(&mut t, 100);
    t.expect(notification());
    t.expect_nothing();
    assert_eq!((t.counted(Counter::CnpsSent), t.counted(Counter::EcnMarked)), (1, 1));
}

#[test]
fn a_qp_sends_one_notification_in_50_us() {
    let mut t = Script::new();
    receive_marked(&mut t, 100);
    t.expect(notification());
    t.wait(49 * US);
    receive_marked(&mut t, 101);
    t.expect_nothing();
    t.wait(US);
    receive_marked(&mut t, 102);
    t.expect(notification());
}

#[test]
fn a_mark_on_uc_is_answered_with_a_notification() {
    let mut t = Script::of(QpType::Uc);
    let packet = pkt(Opcode::UC_WRITE_ONLY, 100).reth(VA, t.key, 1).payload(&[1]).to(t.qpn);
    t.receive_along(&marked(), &packet);
    t.receive(&[]);
    t.expect(notification());
}

#[test]
fn a_peer_that_agreed_is_told_in_replies_and_not_notified() {
    let mut t = Script::new();
    agree(&mut t);
    t.receive_along(&marked(), &write(&t, 100).ack_req());
    t.receive(&[]);
    let mut echo = ack(100, 1);
    echo.headers.bth.becn = true;
    t.expect(echo);
    t.expect_nothing();
    assert_eq!((t.counted(Counter::MarksEchoed), t.counted(Counter::CnpsSent)), (1, 0));
}

#[test]
fn a_marked_read_answer_cuts_the_inward_window_and_is_answered_with_a_notification() {
    let mut t = Script::new();
    let before = path(&t);
    read_marked_answer(&mut t);
    t.expect(notification());
    let after = path(&t);
    assert_eq!(after.inward.window, limits::INITIAL_WINDOW / 2);
    assert_eq!(after.inward.last_cut, Some(CutCause::Mark));
    assert_eq!(after.outward.window, before.outward.window);
    assert_eq!(t.counted(Counter::CutsByMark), 1);
}

#[test]
fn a_marked_read_answer_of_a_peer_that_agreed_is_told_to_nobody() {
    let mut t = Script::new();
    agree(&mut t);
    read_marked_answer(&mut t);
    t.expect_nothing();
    assert_eq!(path(&t).inward.last_cut, Some(CutCause::Mark));
}

#[test]
fn a_receive_buffer_that_fills_counts_as_a_mark() {
    let mut t = Script::new();
    t.device.set_receive_fill(0.25);
    t.receive(&[write(&t, 100)]);
    t.expect_nothing();
    t.device.set_receive_fill(0.26);
    t.receive(&[write(&t, 101)]);
    t.expect(notification());
    assert_eq!(t.counted(Counter::EcnMarked), 0, "no switch did it");
    t.device.set_receive_fill(0.0);
    t.wait(50 * US);
    t.receive(&[write(&t, 102)]);
    t.expect_nothing();
}

#[test]
fn an_echoed_mark_cuts_the_outward_window() {
    let mut t = Script::new();
    let before = path(&t);
    t.post(1, SEND, &[t.sge(0, 64)]);
    t.sent();
    let mut echo = ack(200, 1);
    echo.headers.bth.becn = true;
    t.receive(&[echo]);
    let after = path(&t);
    assert_eq!(after.outward.window, before.outward.window / 2);
    assert_eq!(after.inward.window, before.inward.window);
    assert_eq!(t.counted(Counter::CutsByMark), 1);
}

#[test]
fn a_notification_limits_the_rate() {
    let mut t = Script::new();
    assert_eq!(path(&t).outward.rate, None);
    t.receive(&[notification()]);
    let outward = path(&t).outward;
    assert!(outward.rate.is_some());
    assert_eq!(outward.last_cut, Some(CutCause::Notification));
    assert_eq!(t.counted(Counter::CnpsReceived), 1);
    assert_eq!(t.counted(Counter::CutsByNotification), 1);
}

#[test]
fn a_rate_holds_what_is_sent_and_lets_it_go_in_time() {
    let mut t = Script::new();
    for _ in 0..40 {
        t.receive(&[notification()]);
        t.wait(50 * US);
    }
    let at_once = 64;
    for wr_id in 0..at_once {
        t.post(wr_id, SEND, &[t.sge(0, 256)]);
    }
    let sent = t.sent().len();
    assert!(sent < at_once as usize, "all sent at once");
    let outward = path(&t).outward;
    assert_eq!((outward.waiting, outward.held), (1, Held::Pace));
    assert!(outward.held_by_pace > 0);
    let latest = t.now + Duration::from_secs(1);
    let mut more = Vec::new();
    while more.is_empty() {
        let due = t.device.poll_timeout().unwrap();
        assert!(due > t.now && due < latest);
        t.wait(due - t.now);
        more = t.sent();
    }
}

#[test]
fn a_notification_from_elsewhere_changes_nothing() {
    let mut t = Script::new();
    let elsewhere = "10.0.0.9".parse().unwrap();
    t.receive_from(elsewhere, &notification().to(t.qpn));
    assert_eq!(path(&t).outward.rate, None);
    assert_eq!(t.counted(Counter::DropWrongAddress), 1);
    assert_eq!(t.counted(Counter::CnpsReceived), 0);
}

#[test]
fn without_control_nothing_is_told_and_nothing_obeyed() {
    let mut t = Script::controlled(QpType::Rc, CongestionControl::Off);
    t.connect(&usual());
    t.device.set_receive_fill(1.0);
    receive_marked(&mut t, 100);
    t.expect_nothing();
    let before = path(&t);
    t.receive(&[notification()]);
    assert_eq!(path(&t), before);
}

#[test]
fn switches_may_mark_what_goes_to_peers_that_tell_of_it() {
    let class = |t: &mut Script| {
        t.post(1, SEND, &[t.sge(0, 8)]);
        t.next_sent().0.traffic_class
    };
    let parameters = CongestionParameters::default();
    let mut t = with(parameters);
    assert_eq!(class(&mut t), 0);
    let mut t = with(parameters);
    agree(&mut t);
    assert_eq!(class(&mut t), 2);
    let mut t = with(CongestionParameters { ecn: Ecn::Off, ..parameters });
    agree(&mut t);
    assert_eq!(class(&mut t), 0);
    let mut t = with(CongestionParameters { ecn: Ecn::On, ..parameters });
    assert_eq!(class(&mut t), 2);
}

#[test]
fn a_notification_itself_is_not_to_be_marked() {
    let mut t = with(CongestionParameters { ecn: Ecn::On, ..CongestionParameters::default() });
    receive_marked(&mut t, 100);
    let (flow, packet) = t.next_sent();
    assert_eq!((packet.headers.body.opcode(), flow.traffic_class), (Opcode::CNP, 0));
}

#[test]
fn paths_are_listed_with_what_is_known_of_them() {
    let mut t = Script::new();
    let first = path(&t);
    assert_eq!((first.local, first.peer, first.traffic_class), (LOCAL, PEER, 0));
    assert_eq!((first.users, first.round_trip, first.outward.in_flight), (1, None, 0));
    assert_eq!((first.outward.held, first.outward.last_cut), (Held::Nothing, None));
    t.another(QpType::Rc, None);
    assert_eq!((t.device.paths().count(), path(&t).users), (1, 2));
    t.post(1, SEND, &[t.sge(0, 100)]);
    t.sent();
    assert!(path(&t).outward.in_flight >= 100);
    t.wait(30 * US);
    t.receive(&[ack(200, 1)]);
    let round_trip = path(&t).round_trip.unwrap();
    assert_eq!((round_trip.least, round_trip.smoothed), (30 * US, 30 * US));
    assert_eq!(path(&t).outward.in_flight, 0);
}

#[test]
fn a_qp_that_waits_for_a_receive_of_its_peer_keeps_no_other_qp_waiting() {
    let mut t = Script::new();
    for wr_id in 0.. {
        t.post(wr_id, SEND, &[t.sge(0, 1024)]);
        t.sent();
        if path(&t).outward.waiting > 0 {
            break;
        }
    }
    t.wait(30 * US);
    // For 491 ms.
    t.receive(&[rnr(31, 200, 0)]);
    t.another(QpType::Rc, None);
    t.post(1, SendOp::Write { remote_addr: 0x7000, rkey: Rkey(1), imm: None }, &[t.sge(0, 1024)]);
    let mut sent = t.sent_opcodes();
    // What the peer has dropped may have to leave the path first.
    t.wait(30 * US);
    sent.extend(t.sent_opcodes());
    let write = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_MIDDLE];
    // CONG-032
    assert_eq!(sent, [&write[..], &[Opcode::RC_WRITE_LAST]].concat());
}

#[test]
fn a_qp_whose_peer_is_silent_beside_others_sends_its_oldest_packet_alone() {
    let psns = |t: &mut Script| -> Vec<u32> {
        t.sent().iter().map(|packet| packet.headers.bth.psn.get()).collect()
    };
    let mut t = Script::probing_after(1000 * US, usual());
    let silent = t.qpn;
    (1..=3).for_each(|wr_id| t.post(wr_id, SEND, &[]));
    assert_eq!(psns(&mut t), [200, 201, 202]);
    t.wait(1000 * US);
    assert_eq!(psns(&mut t), [200]);
    t.another(QpType::Rc, None);
    t.post(1, SEND, &[]);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.select(silent);
    t.wait(2000 * US);
    assert_eq!(psns(&mut t), [200]);
    // CONG-033
    assert_eq!(path(&t).outward.in_flight, 0);
    t.post(4, SEND, &[]);
    t.expect_nothing();
    for _ in 0..2 {
        t.wait(ACK_TIMEOUT);
        // CONG-036
        assert_eq!(psns(&mut t), [200]);
        assert_eq!((path(&t).outward.in_flight, path(&t).outward.last_cut), (0, None));
    }
    assert!(t.counted(Counter::AckTimeouts) > 0);
    t.receive(&[ack(200, 1)]);
    assert_eq!(psns(&mut t), [201, 202, 203]);
    assert!(path(&t).outward.in_flight > 0);
}

/// A READ of so many packets is asked for, whose answers have PSNs from 200 on. Returns what one of
/// them takes in flight.
fn read_of(t: &mut Script, packets: u32) -> u64 {
    let op = SendOp::Read { remote_addr: 0x7000, rkey: Rkey(1) };
    t.post(1, op, &[t.sge(0, packets * 256)]);
    t.sent();
    let in_flight = path(t).inward.in_flight;
    assert_eq!(in_flight % u64::from(packets), 0);
    in_flight / u64::from(packets)
}

/// The answer of this number: to one of the requests for 64 packets that a READ is asked for by.
fn answer(t: &Script, number: u32) -> Pkt {
    let (ack, psn, request) = (urxe_wire::Syndrome::ACK, 200 + number, number / 64);
    let packet = match number % 64 {
        0 => pkt(Opcode::RC_READ_RESPONSE_FIRST, psn).aeth(ack, 2 + request),
        63 => pkt(Opcode::RC_READ_RESPONSE_LAST, psn).aeth(ack, 2 + request),
        _ => pkt(Opcode::RC_READ_RESPONSE_MIDDLE, psn),
    };
    packet.payload(&[7; 256]).to(t.qpn)
}

#[test]
fn a_path_counts_few_of_a_reads_answers_too_many_as_in_flight_and_none_when_it_has_ended() {
    // Enough that an eighth of what is left is at first more than may be told of together.
    const PACKETS: u32 = 128;
    let mut t = Script::reading();
    let each = read_of(&mut t, PACKETS);
    let mut most_untold = 0;
    for number in 0..PACKETS {
        t.receive(&[answer(&t, number)]);
        let left = u64::from(PACKETS - 1 - number);
        let told = path(&t).inward.in_flight / each;
        assert!((left..=left + left / 8).contains(&told), "{told} where {left} are");
        most_untold = most_untold.max(told - left);
    }
    assert_eq!(most_untold, 7, "with the eighth the path is told of all");
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_program_is_told_that_a_read_has_ended_before_the_path_is_while_many_more_are_under_way() {
    let mut t = Script::with(QpAttr { max_rd_atomic: Some(128), ..usual() });
    let op = SendOp::Read { remote_addr: 0x7000, rkey: Rkey(1) };
    let answer = |number: u32| {
        let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 200 + number);
        answer.aeth(urxe_wire::Syndrome::ACK, 1 + number).payload(&[7; 256])
    };
    // The round trip is known then.
    t.post(0, op, &[t.sge(0, 256)]);
    t.sent();
    t.receive(&[answer(0).to(t.qpn)]);
    t.expect_send(0, WcStatus::Success);
    for wr_id in 1..=16 {
        t.post(wr_id, op, &[t.sge(0, 256)]);
    }
    t.sent();
    let (all, mut was_told_later) = (path(&t).inward.in_flight, false);
    for number in 1..=16 {
        t.receive(&[answer(number).to(t.qpn)]);
        t.expect_send(number.into(), WcStatus::Success);
        let (told, left) = (path(&t).inward.in_flight, all / 16 * u64::from(16 - number));
        assert!((left..=left + left / 8).contains(&told), "{told} where {left} are");
        was_told_later |= told > left;
    }
    assert!(was_told_later);
    assert_eq!(path(&t).inward.in_flight, 0);
}

#[test]
fn a_path_is_told_of_answers_before_a_mark_without_it_and_of_all_when_no_more_comes() {
    let mut t = Script::reading();
    let each = read_of(&mut t, 64);
    for number in 0..5 {
        t.receive(&[answer(&t, number)]);
    }
    assert!(path(&t).inward.in_flight > 59 * each);
    t.receive_along(&marked(), &answer(&t, 5));
    t.receive(&[]);
    assert_eq!(path(&t).inward.in_flight, 58 * each);
    assert_eq!(path(&t).inward.last_cut, Some(CutCause::Mark));
    for number in 6..10 {
        t.receive(&[answer(&t, number)]);
    }
    assert!(path(&t).inward.in_flight > 54 * each);
    // The rest was lost.
    t.wait(Duration::from_secs(10));
    assert!(path(&t).inward.in_flight <= 54 * each);
}
