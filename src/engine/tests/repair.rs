//! How a requester repairs what was lost, as scripts: missing packets alone where the peer keeps
//! what came after them, and what shows whether it does.

mod script;

use script::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{MAX_DATAGRAM, TxBatch, TxLimits};
use urxe_wire::{Body, EarlyBitmap, Flow, NakCode, Opcode, Packet, Request, Syndrome};

const SEND: SendOp = SendOp::Send(Extra::None);
const REMOTE: u64 = 0x7000;
const KEY: u32 = 0x5eed;
const WRITE: SendOp = SendOp::Write { imm: None, remote_addr: REMOTE, rkey: Rkey(KEY) };
const READ: SendOp = SendOp::Read { remote_addr: REMOTE, rkey: Rkey(KEY) };
const MS: Duration = Duration::from_millis(1);

/// A selective acknowledgement: everything up to `psn` is done, and these are kept.
fn selective(psn: u32, msn: u32, kept: &[u32]) -> Pkt {
    let bitmap = EarlyBitmap::of(kept.iter().map(|kept| kept - psn - 2));
    let packet = pkt(Opcode::URXE_SELECTIVE_ACK, psn).aeth(Syndrome::ACK, msn);
    packet.payload(bitmap.bytes())
}

/// The device sends SENDs of nothing, as many as `psns`, whose work requests have the same numbers.
fn send(t: &mut Script, psns: std::ops::Range<u32>) {
    for psn in psns.clone() {
        t.post(u64::from(psn), SEND, &[]);
    }
    assert_eq!(psns_sent(t), psns.collect::<Vec<u32>>());
}

/// The PSNs of all that the device sends now on its QP.
fn psns_sent(t: &mut Script) -> Vec<u32> {
    let is_of_qp = |packet: &Pkt| packet.headers.bth.dest_qp == Qpn::new(PEER_QPN);
    let sent = t.sent().into_iter().filter(is_of_qp);
    sent.map(|packet| packet.headers.bth.psn.get()).collect()
}

/// The work requests with these PSNs end well, in order.
fn expect_done(t: &mut Script, psns: std::ops::Range<u32>) {
    for psn in psns {
        t.expect_send(u64::from(psn), WcStatus::Success);
    }
    t.expect_no_completion();
}

/// The device puts one packet into a batch that has no room for more.
fn send_one(t: &mut Script) {
    let mut tx = TxBatch::new(TxLimits::SINGLE, MAX_DATAGRAM);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    assert_eq!(tx.runs().map(|run| run.segments).sum::<usize>(), 1);
}

/// A QP that has sent 200 to 204, of which 200 was lost; and what shows that the peer kept the
/// rest: it acknowledges them when 200 alone was sent again. The next PSN is 205.
fn with_a_peer_that_keeps() -> Script {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[nak(NakCode::SequenceError, 200, 0)]);
    send_one(&mut t);
    t.receive(&[ack(204, 5)]);
    assert_eq!(psns_sent(&mut t), [], "there is nothing to repeat any more");
    expect_done(&mut t, 200..205);
    t
}

// Requests.

#[test]
fn a_missing_request_is_repeated_alone_where_the_peer_tells_what_it_has() {
    let mut t = Script::new();
    send(&mut t, 200..206);
    t.receive(&[selective(200, 1, &[202, 203, 204, 205])]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
    t.expect_nothing();
    expect_done(&mut t, 200..201);
    t.receive(&[ack(205, 6)]);
    expect_done(&mut t, 201..206);
    assert_eq!(t.counted(Counter::RetransmittedPackets), 1);
}

#[test]
fn a_peer_of_which_nothing_is_known_gets_everything_again() {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[nak(NakCode::SequenceError, 202, 2)]);
    assert_eq!(psns_sent(&mut t), [202, 203, 204]);
}

#[test]
fn acknowledgements_are_asked_for_more_often_where_a_loss_has_all_of_a_window_repeated() {
    let mut t = Script::new();
    for _ in 0..4 {
        t.post(1, SEND, &[t.sge(0, 65_536), t.sge(0, 65_536)]);
    }
    let longest_run = |sent: &[Pkt]| {
        let runs = sent.split(|packet| packet.headers.bth.ack_req);
        runs.map(<[Pkt]>::len).max().unwrap()
    };
    assert!(longest_run(&t.sent()) > 50);
    t.receive(&[ack(202, 0)]);
    t.sent();
    t.receive(&[nak(NakCode::SequenceError, 210, 0)]);
    // What is sent again goes in trains.
    t.wait(Duration::from_micros(1));
    let last = t.sent().last().unwrap().headers.bth.psn.get();
    t.receive(&[ack(last, 0)]);
    let sent = t.sent();
    assert!(sent.len() > 200, "{}", sent.len());
    assert!(longest_run(&sent) < 40, "{}", longest_run(&sent));
}

#[test]
fn a_read_that_is_kept_behind_a_missing_request_is_not_asked_for_again() {
    let mut t = Script::reading();
    send(&mut t, 200..202);
    t.post(202, READ, &[t.sge(0, 8)]);
    assert_eq!(psns_sent(&mut t), [202]);
    send(&mut t, 203..209);
    t.receive(&[selective(200, 1, &[202, 203, 204, 205, 206, 207, 208])]);
    assert_eq!(psns_sent(&mut t), [201]);
    t.receive(&[ack(208, 8)]);
    assert_eq!(psns_sent(&mut t), [202], "it was carried out, and its answer lost");
}

/// A QP that has filled its window, 205 to some later PSN, to a peer that tells what it keeps. The
/// next PSN is what comes back.
fn with_a_full_window() -> (Script, u32) {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[selective(200, 1, &[202, 203, 204])]);
    t.receive(&[ack(204, 5)]);
    expect_done(&mut t, 200..205);
    t.post(205, WRITE, &[t.sge(0, 65_536), t.sge(0, 65_536)]);
    let sent = psns_sent(&mut t);
    assert_eq!(sent[0], 205);
    (t, 205 + sent.len() as u32)
}

#[test]
fn a_refused_request_is_sent_again_whatever_fills_the_window() {
    let (mut t, _) = with_a_full_window();
    t.receive(&[selective(204, 5, &[206, 207, 208, 209])]);
    assert_eq!(psns_sent(&mut t)[0], 205);
    t.receive(&[ack(205, 5)]);
    assert!(!psns_sent(&mut t).is_empty(), "the window is filled again");
    t.receive(&[rnr(1, 206, 5)]);
    t.expect_nothing();
    t.wait(MS);
    assert_eq!(psns_sent(&mut t), [206]);
}

#[test]
fn a_request_that_is_refused_until_there_is_a_receive_is_no_loss_for_the_path() {
    let mut t = Script::controlled(QpType::Rc, CongestionControl::default());
    t.connect(&QpAttr { rnr_retry: Some(7), ..usual() });
    send(&mut t, 200..205);
    t.receive(&[selective(200, 1, &[202, 203, 204])]);
    t.receive(&[ack(204, 5)]);
    expect_done(&mut t, 200..205);
    t.post(205, SEND, &[t.sge(0, 256)]);
    assert_eq!(psns_sent(&mut t), [205]);
    let outward = |t: &Script| t.device.paths().next().unwrap().outward;
    let window = outward(&t).window;
    assert!(outward(&t).in_flight > 0);
    for _ in 0..250 {
        t.receive(&[rnr(1, 205, 5)]);
        // CONG-034
        assert_eq!((outward(&t).window, outward(&t).in_flight), (window, 0));
        // The longest RNR wait.
        t.wait(10 * MS);
        assert_eq!(psns_sent(&mut t), [205]);
        assert_eq!(outward(&t).in_flight, 0, "others have all of the window");
    }
    t.receive(&[ack(205, 6)]);
    expect_done(&mut t, 205..206);
}

#[test]
fn an_answer_to_a_refused_request_alone_means_that_the_rest_was_not_kept() {
    let (mut t, next) = with_a_full_window();
    t.receive(&[nak(NakCode::SequenceError, 205, 5)]);
    assert_eq!(psns_sent(&mut t), [205]);
    t.wait(MS);
    t.receive(&[ack(205, 5)]);
    let again = psns_sent(&mut t);
    assert!(again.len() > 1 && again.len() < (next - 205) as usize, "as the window has room");
    assert!(again.iter().copied().eq((206..).take(again.len())), "{again:?}");
}

#[test]
fn a_request_that_may_be_close_behind_is_not_repeated_yet() {
    let mut t = Script::new();
    send(&mut t, 200..206);
    t.receive(&[selective(200, 1, &[202, 203, 204])]);
    t.expect_nothing();
    t.receive(&[selective(200, 1, &[202, 203, 204, 205])]);
    assert_eq!(psns_sent(&mut t), [201]);
}

#[test]
fn each_of_several_missing_requests_is_repeated_and_nothing_between_them() {
    let mut t = Script::new();
    send(&mut t, 200..212);
    t.receive(&[selective(200, 1, &[202, 203, 205, 207, 208, 209, 210, 211])]);
    assert_eq!(psns_sent(&mut t), [201, 204, 206]);
    t.receive(&[selective(203, 4, &[205, 207, 208, 209, 210, 211])]);
    assert_eq!(psns_sent(&mut t), [], "they are under way");
}

#[test]
fn an_ack_beyond_what_was_repeated_shows_that_the_peer_keeps_early_requests() {
    let mut t = with_a_peer_that_keeps();
    send(&mut t, 205..210);
    t.receive(&[nak(NakCode::SequenceError, 206, 6)]);
    assert_eq!(psns_sent(&mut t), [206]);
    t.another(QpType::Rc, None);
    send(&mut t, 200..204);
    t.receive(&[nak(NakCode::SequenceError, 201, 1)]);
    assert_eq!(psns_sent(&mut t), [201], "the path remembers it");
}

#[test]
fn an_ack_of_one_packet_more_than_was_repeated_shows_nothing() {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[nak(NakCode::SequenceError, 200, 0)]);
    send_one(&mut t);
    t.receive(&[ack(201, 2)]);
    assert_eq!(psns_sent(&mut t), [202, 203, 204]);
    t.receive(&[nak(NakCode::SequenceError, 202, 2)]);
    assert_eq!(psns_sent(&mut t), [202, 203, 204]);
}

#[test]
fn repairs_that_each_miss_the_next_packet_show_that_the_peer_keeps_nothing() {
    let mut t = with_a_peer_that_keeps();
    send(&mut t, 205..215);
    for missing in 205..209 {
        t.receive(&[nak(NakCode::SequenceError, missing, missing - 200)]);
        assert_eq!(psns_sent(&mut t), [missing]);
    }
    t.receive(&[nak(NakCode::SequenceError, 209, 9)]);
    assert_eq!(psns_sent(&mut t), (209..215).collect::<Vec<u32>>());
}

#[test]
fn a_selective_acknowledgement_before_the_oldest_packet_is_news() {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[selective(199, 0, &[201, 202, 203, 204])]);
    assert_eq!(psns_sent(&mut t), [200]);
    assert_eq!(t.counted(Counter::StaleResponses), 0);
    t.receive(&[selective(198, 0, &[200])]);
    assert_eq!(t.counted(Counter::StaleResponses), 1, "of what was done long ago");
}

#[test]
fn a_selective_acknowledgement_of_what_was_never_sent_does_no_harm() {
    let mut t = Script::new();
    send(&mut t, 200..202);
    let all: Vec<u32> = (201..201 + EarlyBitmap::PSNS).collect();
    t.receive(&[selective(199, 0, &all)]);
    t.expect_no_completion();
    t.receive(&[ack(201, 2)]);
    expect_done(&mut t, 200..202);
}

#[test]
fn requests_that_have_arrived_end_when_they_were_carried_out() {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[selective(199, 0, &[201, 202, 203, 204])]);
    assert_eq!(psns_sent(&mut t), [200]);
    t.expect_no_completion();
    t.receive(&[rnr(12, 201, 1)]);
    expect_done(&mut t, 200..201);
    t.expect_nothing();
    t.wait(RnrTimer::new(12).duration());
    assert_eq!(psns_sent(&mut t), [201], "what was refused, and nothing that was kept");
    t.receive(&[ack(204, 5)]);
    expect_done(&mut t, 201..205);
}

#[test]
fn after_an_ack_timeout_everything_is_repeated_whatever_had_arrived() {
    let mut t = Script::new();
    send(&mut t, 200..205);
    t.receive(&[selective(199, 0, &[201, 202, 203, 204])]);
    assert_eq!(psns_sent(&mut t), [200]);
    t.wait(ACK_TIMEOUT);
    assert_eq!(psns_sent(&mut t), [200, 201, 202, 203, 204]);
}

#[test]
fn a_read_that_was_kept_still_lacks_its_answer() {
    let mut t = Script::new();
    send(&mut t, 200..204);
    t.post(204, READ, &[t.sge(0, 4)]);
    t.sent();
    send(&mut t, 205..206);
    t.receive(&[selective(199, 0, &[201, 202, 203, 204, 205])]);
    assert_eq!(psns_sent(&mut t), [200]);
    t.receive(&[ack(205, 6)]);
    expect_done(&mut t, 200..204);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 204).reth(REMOTE, KEY, 4).ack_req());
    t.expect_nothing();
    let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 204).aeth(Syndrome::ACK, 5);
    t.receive(&[answer.payload(b"data")]);
    expect_done(&mut t, 204..206);
    assert_eq!(t.memory(0, 4), b"data");
}

// Answers.

/// The answers to a READ of `data` from PSN 200 on that is asked for in requests of so many
/// packets.
fn answers(data: &[u8], at_once: usize) -> Vec<Pkt> {
    let mut answers = vec![];
    for request in data.chunks(at_once * MTU) {
        let count = request.len().div_ceil(MTU);
        for (number, payload) in request.chunks(MTU).enumerate() {
            let psn = 200 + answers.len() as u32;
            let answer = match (number == 0, number + 1 == count) {
                (true, true) => pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(Syndrome::ACK, 1),
                (true, false) => pkt(Opcode::RC_READ_RESPONSE_FIRST, psn).aeth(Syndrome::ACK, 1),
                (false, true) => pkt(Opcode::RC_READ_RESPONSE_LAST, psn).aeth(Syndrome::ACK, 1),
                (false, false) => pkt(Opcode::RC_READ_RESPONSE_MIDDLE, psn),
            };
            answers.push(answer.payload(payload));
        }
    }
    answers
}

#[test]
fn answers_are_placed_in_whatever_order_they_come() {
    let mut t = Script::reading();
    let data = bytes(3, 1000);
    t.post(1, READ, &[t.sge(0, 1000)]);
    t.sent();
    let mut answers = answers(&data, 4);
    answers.reverse();
    t.receive(&answers);
    t.expect_nothing();
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.memory(0, 1000), data);
}

#[test]
fn missing_answers_are_asked_for_within_the_request_that_asked_for_them() {
    let at_once = limits::INITIAL_WINDOW as usize / MTU / limits::READS_IN_WINDOW as usize;
    let length = (at_once + 8) * MTU;
    let mut t = Script::reading();
    let data = bytes(3, length);
    let request = |number: usize, count: usize| {
        let va = REMOTE + (number * MTU) as u64;
        let request = pkt(Opcode::RC_READ_REQUEST, 200 + number as u32);
        request.reth(va, KEY, (count * MTU) as u32).ack_req()
    };
    t.post(1, READ, &[t.sge(0, length as u32)]);
    t.expect(request(0, at_once));
    t.expect(request(at_once, 8));
    let mut answers = answers(&data, at_once);
    answers.drain(at_once - 2..at_once + 1);
    t.receive(&answers);
    t.expect(request(at_once - 2, 2));
    t.expect(request(at_once, 1));
    t.expect_nothing();
    t.expect_no_completion();
    let answer = |opcode, number: usize| {
        pkt(opcode, 200 + number as u32).payload(&data[number * MTU..(number + 1) * MTU])
    };
    t.receive(&[
        answer(Opcode::RC_READ_RESPONSE_ONLY, at_once).aeth(Syndrome::ACK, 1),
        answer(Opcode::RC_READ_RESPONSE_LAST, at_once - 1).aeth(Syndrome::ACK, 1),
        answer(Opcode::RC_READ_RESPONSE_FIRST, at_once - 2).aeth(Syndrome::ACK, 1),
    ]);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.memory(0, length), data);
}

// Questions.

/// How many questions about capabilities and how many congestion notifications the device sends.
fn questions_and_notifications(t: &mut Script) -> (usize, usize) {
    let sent = t.sent();
    let count = |opcode| sent.iter().filter(|p| p.headers.body.opcode() == opcode).count();
    (count(Opcode::UD_SEND_ONLY), count(Opcode::CNP))
}

/// A request arrives that was marked on its way.
fn receive_marked(t: &mut Script, psn: u32) {
    let write = pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, t.key, 1).payload(&[1]).to(t.qpn);
    t.receive_along(&Flow { traffic_class: 3, ..flow(PEER, LOCAL) }, &write);
    t.receive(&[]);
}

#[test]
fn a_loss_has_the_peer_asked_and_a_quiet_path_does_not() {
    let mut t = Script::uniform(QpType::Rc);
    send(&mut t, 200..204);
    t.receive(&[ack(203, 4)]);
    assert_eq!(questions_and_notifications(&mut t), (0, 0));
    let after_a_loss = |mut t: Script| {
        t.post(1, READ, &[t.sge(0, 2)]);
        t.post(2, READ, &[t.sge(0, 2)]);
        t.sent();
        let second = pkt(Opcode::RC_READ_RESPONSE_ONLY, 201).aeth(Syndrome::ACK, 2);
        t.receive(&[second.payload(b"ab")]);
        questions_and_notifications(&mut t)
    };
    assert_eq!(after_a_loss(Script::uniform(QpType::Rc)), (1, 0));
    assert_eq!(after_a_loss(Script::new()), (0, 0), "in the strict form");
}

#[test]
fn a_read_that_comes_again_has_the_peer_asked() {
    let mut t = Script::uniform(QpType::Rc);
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, t.key, 4).ack_req();
    let receive = |t: &mut Script| {
        let read = read.clone().to(t.qpn);
        t.receive(&[read]);
        questions_and_notifications(t)
    };
    assert_eq!(receive(&mut t), (0, 0));
    assert_eq!(receive(&mut t), (1, 0));
}

#[test]
fn a_mark_has_the_peer_asked_and_it_has_time_to_answer_before_it_is_notified() {
    let mut t = Script::uniform(QpType::Rc);
    receive_marked(&mut t, 100);
    assert_eq!(questions_and_notifications(&mut t), (1, 0));
    let moment = Duration::from_nanos(1);
    t.wait(limits::FIRST_CAPABILITY_WAIT - moment);
    receive_marked(&mut t, 101);
    assert_eq!(questions_and_notifications(&mut t), (0, 0));
    t.wait(moment);
    receive_marked(&mut t, 102);
    assert_eq!(questions_and_notifications(&mut t).1, 1);
    let mut t = Script::new();
    receive_marked(&mut t, 100);
    assert_eq!(questions_and_notifications(&mut t), (0, 1), "in the strict form");
}

// Paths.

#[test]
fn a_request_that_waits_at_the_peer_for_a_missing_one_took_no_longer_for_that() {
    let mut t = Script::new();
    let smoothed = |t: &Script| {
        let round_trip = t.device.paths().next().and_then(|path| path.round_trip);
        round_trip.map(|round_trip| round_trip.smoothed)
    };
    // The answer to 200 shows how long that took; the next that is measured is 202.
    send(&mut t, 200..202);
    t.wait(MS);
    t.receive(&[ack(200, 1)]);
    expect_done(&mut t, 200..201);
    send(&mut t, 202..206);
    t.wait(2 * MS);
    t.receive(&[selective(200, 1, &[202, 203, 204, 205])]);
    assert_eq!(smoothed(&t), Some(MS * 9 / 8));
    assert_eq!(psns_sent(&mut t), [201]);
    t.wait(MS);
    t.receive(&[ack(205, 6)]);
    expect_done(&mut t, 201..206);
    assert_eq!(smoothed(&t), Some(MS * 9 / 8));
}

#[test]
fn a_request_behind_one_that_a_peer_only_says_to_miss_is_not_measured() {
    let mut t = with_a_peer_that_keeps();
    let known = |t: &Script| t.device.paths().next().is_some_and(|path| path.round_trip.is_some());
    send(&mut t, 205..207);
    t.wait(MS);
    t.receive(&[nak(NakCode::SequenceError, 205, 5)]);
    t.wait(MS);
    t.receive(&[ack(206, 7)]);
    expect_done(&mut t, 205..207);
    assert!(!known(&t));
}

#[test]
fn a_long_message_on_an_unknown_path_asks_for_an_ack_with_its_first_packet() {
    let asking = |t: &mut Script, packets: u32| {
        t.post(1, SEND, &[t.sge(0, packets * MTU as u32)]);
        let sent = t.sent();
        assert_eq!(sent.len(), packets as usize);
        let numbers = sent.iter().enumerate().filter(|(_, packet)| packet.headers.bth.ack_req);
        numbers.map(|(number, _)| number).collect::<Vec<usize>>()
    };
    assert_eq!(asking(&mut Script::new(), 9), [0, 8]);
    assert_eq!(asking(&mut Script::new(), 8), [7]);
    let mut known = Script::probing_after(3600 * 1000 * MS, usual());
    assert_eq!(asking(&mut known, 9), [8]);
}

#[test]
fn little_is_asked_for_before_the_first_answer_to_a_read_has_come() {
    let mut t = Script::new();
    t.post(1, READ, &[t.sge(0, 1 << 15)]);
    let asked = |t: &mut Script| {
        let length = |packet: &Pkt| match packet.headers.body {
            Body::RcRequest(Request::Read(reth)) => u64::from(reth.len),
            body => panic!("{}", body.opcode()),
        };
        t.sent().iter().map(length).collect::<Vec<u64>>()
    };
    let first = asked(&mut t);
    assert!(first.iter().sum::<u64>() <= limits::FIRST_ANSWERS, "{first:?}");
    let at_once = first[0] as usize / MTU;
    t.receive(&answers(&bytes(3, 1 << 15), at_once)[..at_once]);
    let more = asked(&mut t);
    assert!(more.iter().sum::<u64>() > limits::FIRST_ANSWERS, "{more:?}");
}

#[test]
fn a_qp_whose_way_changes_sends_again_on_the_new_one() {
    let mut t = Script::new();
    send(&mut t, 200..203);
    t.enter(QpState::Sqd);
    let elsewhere = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    let av = usual().av.map(|av| AddressVector { dgid: elsewhere, ..av });
    t.modify(&QpAttr { state: Some(QpState::Sqd), av, ..QpAttr::default() }).unwrap();
    let paths: Vec<PathInfo> = t.device.paths().collect();
    assert!(paths.iter().all(|path| path.outward.in_flight == 0), "nothing is left on the old one");
    t.enter(QpState::Rts);
    for psn in 200..203 {
        let (flow, packet) = t.next_sent();
        assert_eq!((flow.dst, packet.headers.bth.psn.get()), (elsewhere, psn));
    }
    t.expect_nothing();
}

#[test]
fn an_answer_without_a_place_fails_its_own_work_request_in_its_turn() {
    let mut t = Script::reading();
    t.post(1, READ, &[t.sge(0, 8)]);
    let mut sge = t.sge(8, 8);
    sge.lkey.0 ^= 1;
    t.post(2, READ, &[sge]);
    t.sent();
    let answer =
        |psn| pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(Syndrome::ACK, 1).payload(&[7; 8]);
    t.receive(&[answer(201)]);
    t.expect_no_completion();
    t.receive(&[answer(200)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::LocalProtection);
}

/// What the device sends now, in one batch: its PSNs, and of what was sent before, after what.
fn with_repeats(t: &mut Script) -> Vec<(u32, Option<Counter>)> {
    let mut tx = TxBatch::new(TxLimits::SINGLE, 1 << 18);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    let repeats = t.device.repeats();
    let psns = tx.datagrams().enumerate().filter_map(|(index, datagram)| {
        let headers = Packet::parse(datagram.bytes).unwrap().headers;
        let repeat = repeats.iter().find(|repeat| repeat.datagram == index);
        let psn = headers.bth.psn.get();
        let is_of_qp = headers.bth.dest_qp == Qpn::new(PEER_QPN);
        is_of_qp.then_some((psn, repeat.map(|repeat| repeat.after)))
    });
    psns.collect()
}

#[test]
fn a_packet_that_is_sent_again_is_told_with_its_reason() {
    let mut t = with_a_peer_that_keeps();
    t.device.note_senders(true);
    let new: Vec<_> = (205..210).map(|psn| (psn, None)).collect();
    for &(psn, _) in &new {
        t.post(psn.into(), SEND, &[]);
    }
    assert_eq!(with_repeats(&mut t), new);
    t.receive(&[nak(NakCode::SequenceError, 205, 5)]);
    t.post(210, SEND, &[]);
    let expected = [(205, Some(Counter::SequenceNaksReceived)), (210, None)];
    assert_eq!(with_repeats(&mut t), expected, "one is new");
    t.receive(&[selective(205, 6, &[207, 208, 209, 210])]);
    assert_eq!(with_repeats(&mut t), [(206, Some(Counter::SelectiveAcksReceived))]);
    t.receive(&[ack(210, 11)]);
    t.post(211, SEND, &[]);
    assert_eq!(with_repeats(&mut t), [(211, None)]);
    t.receive(&[rnr(1, 211, 11)]);
    t.wait(MS);
    assert_eq!(with_repeats(&mut t), [(211, Some(Counter::RnrNaksReceived))]);
    t.wait(ACK_TIMEOUT);
    assert_eq!(with_repeats(&mut t), [(211, Some(Counter::AckTimeouts))]);
    t.device.note_senders(false);
    t.wait(ACK_TIMEOUT);
    assert_eq!(with_repeats(&mut t), [(211, None)], "nobody asks any more");
}
