//! What the requester of a reliable connection makes of answers: right, old, wrong and refusing.

use crate::agent::{SendWr, Status};
use crate::check::{Check, Outcome, Stop};
use crate::device::{SOURCE, Setup, TARGET};
use crate::expect::request;
use crate::packet::{BECN, Packet, atomic_response, packet, positive_ack, read_responses, refusal};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::NakCode;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-ack/one-for-all-before-it",
        "RC-COMP-001",
        "An ACK completes every request up to its PSN, in order.",
        one_for_all_before_it,
    ),
    Check::new(
        "requester-ack/of-the-midst-completes-nothing",
        "RC-COMP-001",
        "An ACK of a packet in the midst of a message does not complete it.",
        of_the_midst,
    ),
    Check::new(
        "requester-ack/unsignaled-completes-nothing",
        "RC-REQ-009",
        "A request that is not signaled leaves no completion if it succeeds.",
        unsignaled,
    ),
    Check::new(
        "requester-ack/for-what-was-never-sent",
        "RC-COMP-012",
        "An ACK of a PSN that was never sent is dropped: nothing completes by it.",
        |t| dropped(t, positive_ack(9, 10)),
    ),
    Check::new(
        "requester-ack/far-ahead",
        "RC-COMP-012",
        "An ACK of a PSN far ahead is dropped.",
        |t| dropped(t, positive_ack(0x7f_0000, 1)),
    ),
    Check::new(
        "requester-ack/of-the-past",
        "RC-COMP-013",
        "An ACK of a PSN before the first request is dropped.",
        |t| dropped(t, positive_ack(-1, 0)),
    ),
    Check::new(
        "requester-ack/twice",
        "RC-COMP-013",
        "An ACK that comes twice completes once.",
        twice,
    ),
    Check::new(
        "requester-ack/wrong-icrc",
        "WIRE-028",
        "An ACK with a wrong ICRC is dropped.",
        |t| dropped(t, positive_ack(4, 5).wrong_icrc()),
    ),
    Check::new(
        "requester-ack/wrong-partition",
        "WIRE-022",
        "An ACK of another partition is dropped.",
        |t| dropped(t, positive_ack(4, 5).pkey(0x8123)),
    ),
    Check::new(
        "requester-ack/wrong-version",
        "WIRE-004",
        "An ACK of another transport version is dropped.",
        |t| dropped(t, Packet { version: 1, ..positive_ack(4, 5) }),
    ),
    Check::new(
        "requester-ack/without-aeth",
        "WIRE-007",
        "An ACK that is shorter than its header is dropped.",
        |t| dropped(t, packet(RC_ACK).at(4)),
    ),
    Check::new(
        "requester-ack/with-becn",
        "CONG-010",
        "An ACK with BECN completes what it acknowledges.",
        with_becn,
    ),
    Check::new(
        "requester-ack/without-credits",
        "RC-RESP-050",
        "An ACK that grants no credits stops a requester that obeys it for a while at most.",
        without_credits,
    ),
    Check::new(
        "requester-nak/invalid-request",
        "RC-COMP-008",
        "NAK invalid request ends its request with that, and the rest is flushed.",
        |t| fatal(t, NakCode::InvalidRequest, Status::RemInvReqErr),
    ),
    Check::new(
        "requester-nak/remote-access-error",
        "RC-COMP-009",
        "NAK remote access error ends its request with that, and the rest is flushed.",
        |t| fatal(t, NakCode::RemoteAccess, Status::RemAccessErr),
    ),
    Check::new(
        "requester-nak/remote-operational-error",
        "RC-COMP-010",
        "NAK remote operational error ends its request with that, and the rest is flushed.",
        |t| fatal(t, NakCode::RemoteOperational, Status::RemOpErr),
    ),
    Check::new(
        "requester-nak/completes-what-is-before-it",
        "RC-COMP-006",
        "A NAK acknowledges the requests before its PSN.",
        completes_what_is_before_it,
    ),
    Check::new(
        "requester-nak/unsignaled-request-completes",
        "RC-COMP-011",
        "A request that fails completes though it was not signaled.",
        unsignaled_request_completes,
    ),
    Check::new(
        "requester-nak/for-what-was-never-sent",
        "RC-COMP-012",
        "A fatal NAK of a PSN that was never sent is dropped.",
        |t| dropped(t, refusal(NakCode::RemoteAccess, 9, 5)),
    ),
    Check::new(
        "requester-nak/of-the-past",
        "RC-COMP-013",
        "A fatal NAK of what was acknowledged before is dropped.",
        nak_of_the_past,
    ),
    Check::new(
        "requester-nak/reserved-code",
        "RC-COMP-017",
        "A NAK with a reserved code does not complete its request with success.",
        |t| reserved(t, 0x60 | 0x1f),
    ),
    Check::new(
        "requester-nak/reserved-syndrome",
        "RC-COMP-017",
        "A reserved syndrome does not complete its request with success.",
        |t| reserved(t, 0x40),
    ),
    Check::new(
        "requester-response/too-short",
        "RC-COMP-014",
        "A READ response with fewer bytes than were asked for is a bad response.",
        |t| wrong_answer(t, |data| read_responses(0, &data[..60], PathMtu::Mtu1024, 1)),
    ),
    Check::new(
        "requester-response/too-long",
        "RC-COMP-014",
        "A READ response with more bytes than were asked for is a bad response.",
        |t| wrong_answer(t, |data| read_responses(0, &[data, data].concat(), PathMtu::Mtu1024, 1)),
    ),
    Check::new(
        "requester-response/last-without-first",
        "RC-COMP-015",
        "A READ response LAST where ONLY is due is a bad response.",
        |t| wrong_answer(t, |data| change_opcode(data, RC_READ_RESPONSE_LAST as u8)),
    ),
    Check::new(
        "requester-response/first-where-only-is-due",
        "RC-COMP-015",
        "A READ response FIRST where ONLY is due is a bad response.",
        |t| wrong_answer(t, |data| change_opcode(data, RC_READ_RESPONSE_FIRST as u8)),
    ),
    Check::new(
        "requester-response/atomic-answer-to-a-read",
        "RC-COMP-016",
        "An atomic's answer to a READ is a bad response.",
        |t| wrong_answer(t, |_| vec![atomic_response(0, 1, 3)]),
    ),
    Check::new(
        "requester-response/data-for-a-send",
        "RC-COMP-016",
        "A READ response to a SEND is a bad response.",
        data_for_a_send,
    ),
    Check::new(
        "requester-response/for-what-was-never-asked",
        "RC-COMP-012",
        "A READ response with a PSN that was never asked for is dropped.",
        |t| {
            let stray = read_responses(7, &[1; 64], PathMtu::Mtu1024, 1);
            dropped(t, stray.into_iter().next().unwrap_or_else(|| positive_ack(7, 1)))
        },
    ),
    Check::new(
        "requester-cnp/goes-on",
        "CONG-010",
        "A congestion notification slows a requester down at most: everything completes.",
        cnp_goes_on,
    ),
];

/// The program SENDs short messages, and their packets have come.
fn sends(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().sending(8))?;
    t.begin()?;
    t.take_work().map(drop)
}

fn one_for_all_before_it(t: &mut Script<'_>) -> Outcome {
    sends(t)?;
    t.send(positive_ack(2, 3))?;
    t.expect_succeeded(3)?;
    t.finish_work()
}

fn of_the_midst(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().sending(4000))?;
    t.begin()?;
    t.take_beginning(0, 4, 4000)?;
    t.send(positive_ack(2, 0))?;
    t.expect_succeeded(0)?;
    t.send(positive_ack(3, 1))?;
    t.expect_succeeded(1)?;
    t.finish_work()
}

fn unsignaled(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(16);
    t.fill(SOURCE, &data)?;
    let range = SOURCE..SOURCE + 16;
    t.grant_credits()?;
    t.post(&[SendWr::send(1, range.clone()).unsignaled(), SendWr::send(2, range)])?;
    t.expect(request(RC_SEND_ONLY, 0))?;
    t.expect(request(RC_SEND_ONLY, 1))?;
    t.send(positive_ack(1, 2))?;
    t.expect_success([2])?;
    t.expect_no_completion()
}

/// The messages wait for their ACK, and this comes instead: it changes nothing.
fn dropped(t: &mut Script<'_>, answer: Packet) -> Outcome {
    sends(t)?;
    t.send(answer)?;
    t.expect_nothing_new(5)?;
    t.expect_succeeded(0)?;
    t.finish_work()
}

fn twice(t: &mut Script<'_>) -> Outcome {
    sends(t)?;
    t.send_all(&[positive_ack(0, 1), positive_ack(0, 1)])?;
    t.expect_succeeded(1)?;
    t.send_all(&[positive_ack(3, 4), positive_ack(0, 1), positive_ack(3, 4)])?;
    t.expect_succeeded(4)?;
    t.finish_work()
}

fn with_becn(t: &mut Script<'_>) -> Outcome {
    sends(t)?;
    t.send(Packet { congestion: BECN, ..positive_ack(4, 5) })?;
    t.expect_done()
}

fn without_credits(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.take_short_sends(1)?;
    t.send(packet(RC_ACK).at(0).aeth(0, 1))?;
    t.expect_success([1])?;
    t.fill(SOURCE, &[7; 16])?;
    t.post(&[SendWr::send(2, SOURCE..SOURCE + 8), SendWr::send(3, SOURCE..SOURCE + 8)])?;
    t.expect(request(RC_SEND_ONLY, 1))?;
    // One request may go without credits, and no more.
    if t.next(t.waits().quiet)?.is_none_or(|next| t.place(&next) != 2) {
        t.allow("obeys the credits of ACKs");
        t.send(positive_ack(1, 2))?;
        t.expect(request(RC_SEND_ONLY, 2))?;
    }
    t.send(positive_ack(2, 3))?;
    t.expect_success(2..=3)
}

fn fatal(t: &mut Script<'_>, code: NakCode, status: Status) -> Outcome {
    sends(t)?;
    t.send(refusal(code, 0, 0))?;
    t.expect_failure(status)?;
    t.collect(t.waits().quiet)?;
    t.expect_nothing()
}

fn completes_what_is_before_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.take_short_sends(3)?;
    t.send(refusal(NakCode::RemoteOperational, 1, 1))?;
    t.expect_success([1])?;
    t.expect_completion(2, Status::RemOpErr)?;
    t.expect_flushed([3])
}

fn unsignaled_request_completes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::send(1, SOURCE..SOURCE + 8).unsignaled()])?;
    t.expect(request(RC_SEND_ONLY, 0))?;
    t.send(refusal(NakCode::InvalidRequest, 0, 0))?;
    t.expect_completion(1, Status::RemInvReqErr).map(drop)
}

fn nak_of_the_past(t: &mut Script<'_>) -> Outcome {
    sends(t)?;
    t.send(positive_ack(0, 1))?;
    t.expect_succeeded(1)?;
    t.send(refusal(NakCode::RemoteAccess, 0, 0))?;
    t.expect_succeeded(1)?;
    t.finish_work()
}

fn reserved(t: &mut Script<'_>, syndrome: u8) -> Outcome {
    sends(t)?;
    t.send(packet(RC_ACK).at(4).aeth(syndrome, 5))?;
    t.expect_bad_response_to_work(4)
}

/// A READ of 64 bytes gets this answer, which makes no sense.
fn wrong_answer(t: &mut Script<'_>, answer: fn(&[u8]) -> Vec<Packet>) -> Outcome {
    t.connect(&Setup { max_rd_atomic: Some(1), ..Setup::rc().reading(64) })?;
    t.begin()?;
    t.expect(request(RC_READ_REQUEST, 0))?;
    let data = t.bytes(64);
    t.send_all(&answer(&data))?;
    t.expect_bad_response_to_work(0)?;
    if !t.is_told() {
        return Ok(());
    }
    let behind = t.buffer(TARGET + 64, 64)?;
    match behind.iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(Stop::failed("nothing behind the READ's place", "bytes of the answer")),
    }
}

fn change_opcode(data: &[u8], opcode: u8) -> Vec<Packet> {
    let change = |answer| Packet { opcode, ..answer };
    read_responses(0, data, PathMtu::Mtu1024, 1).into_iter().map(change).collect()
}

fn data_for_a_send(t: &mut Script<'_>) -> Outcome {
    sends(t)?;
    t.send_all(&read_responses(4, &[1; 64], PathMtu::Mtu1024, 5))?;
    t.expect_bad_response_to_work(4)
}

fn cnp_goes_on(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().sending(4000))?;
    t.begin()?;
    t.take_beginning(0, 1, 4000)?;
    for _ in 0..3 {
        t.send(Packet { congestion: BECN, payload: vec![0; 16], ..packet(CNP).at_absolute(0) })?;
    }
    t.finish_work()
}
