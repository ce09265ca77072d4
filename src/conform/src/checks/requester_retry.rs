//! Timeouts, sequence errors and "receiver not ready", at the requester of a reliable connection.

use super::requester_send::SEND;
use crate::Arrived;
use crate::agent::{SendWr, State, Status};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{Setup, TARGET};
use crate::expect::request;
use crate::packet::{not_ready, positive_ack, read_responses, refusal};
use crate::script::{OUR_ADDR, OUR_RKEY, Script};
use std::time::Duration;
use urxe_types::{PathMtu, RnrTimer, TimeCode};
use urxe_wire::NakCode;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-timeout/repeats-in-time",
        "RC-REQ-020",
        "A request without an answer is sent again within four times the ACK timeout.",
        repeats_in_time,
    ),
    Check::new(
        "requester-timeout/repeats-a-read",
        "RC-REQ-020",
        "A READ without an answer is asked for again, with the same PSN and range.",
        repeats_a_read,
    ),
    Check::new(
        "requester-timeout/repeats-what-was-not-acknowledged",
        "RC-REQ-016",
        "What was acknowledged before the timeout is not sent again; the rest is, as it was.",
        repeats_the_rest,
    ),
    Check::new(
        "requester-timeout/ends-after-retry-cnt",
        "RC-REQ-017",
        "With retry_cnt 2 a request is tried three times, then it ends with RETRY_EXC_ERR and \
         nothing more is sent.",
        |t| ends_after(t, 2),
    ),
    Check::new(
        "requester-timeout/without-retries-ends-at-once",
        "RC-REQ-017",
        "With retry_cnt 0 the first timeout ends a request.",
        |t| ends_after(t, 0),
    ),
    Check::new(
        "requester-timeout/flushes-the-rest-in-order",
        "RC-REQ-017",
        "When the tries are used up the requests behind are flushed in order.",
        flushes_the_rest,
    ),
    Check::new(
        "requester-timeout/code-0-waits-for-ever",
        "RC-REQ-020",
        "With ACK timeout code 0 a request without an answer never ends.",
        code_0_waits,
    ),
    Check::new(
        "requester-timeout/progress-gives-tries-back",
        "RC-REQ-019",
        "With retry_cnt 1, each of several requests may need its second try.",
        progress_gives_tries_back,
    ),
    Check::new(
        "requester-sequence/repeats-from-the-missing-packet",
        "RC-REQ-015",
        "A sequence error NAK has its packet sent again, with the same PSN, opcode and data, and \
         what follows it or that alone.",
        |t| sequence_error(t, 1),
    ),
    Check::new(
        "requester-sequence/repeats-from-the-first-packet",
        "RC-REQ-015",
        "A sequence error NAK of the first packet of a message has it sent again.",
        |t| sequence_error(t, 0),
    ),
    Check::new(
        "requester-sequence/completes-what-is-before-it",
        "RC-COMP-006",
        "A sequence error NAK acknowledges the requests before its PSN.",
        sequence_error_completes,
    ),
    Check::new(
        "requester-sequence/uses-up-the-tries",
        "RC-REQ-021",
        "Sequence error NAKs of the same packet without end use up retry_cnt.",
        sequence_errors_use_up_tries,
    ),
    Check::new(
        "requester-rnr/waits-its-timer",
        "RC-REQ-022",
        "After an RNR NAK nothing is sent for the time of its code, then the same request.",
        |t| waits_the_timer(t, 20),
    ),
    Check::new(
        "requester-rnr/waits-its-timer-of-code-24",
        "RC-REQ-022",
        "The time of code 24 is 40.96 ms.",
        |t| waits_the_timer(t, 24),
    ),
    Check::new(
        "requester-rnr/completes-what-is-before-it",
        "RC-COMP-006",
        "An RNR NAK acknowledges the requests before its PSN.",
        rnr_completes,
    ),
    Check::new(
        "requester-rnr/ends-after-rnr-retry",
        "RC-REQ-023",
        "With rnr_retry 2 the third RNR NAK ends the request with RNR_RETRY_EXC_ERR.",
        ends_after_rnr_retry,
    ),
    Check::new(
        "requester-rnr/seven-is-for-ever",
        "RC-REQ-024",
        "With rnr_retry 7 a request outlives any number of RNR NAKs.",
        seven_is_for_ever,
    ),
    Check::new(
        "requester-rnr/does-not-use-up-retry-cnt",
        "RC-REQ-039",
        "With retry_cnt 1, RNR NAKs do not end a request.",
        rnr_is_no_timeout,
    ),
];

/// The ACK timeout that these checks use, 33.6 ms: coarse clocks of a device do not matter, and
/// few tries do not take long.
const TIMEOUT: u8 = 13;

fn timeout() -> Duration {
    TimeCode::new(TIMEOUT).duration()
}

/// How long a device may wait at most: four times the timeout, and as much as a system may be late.
fn longest(tries: u32) -> Duration {
    (timeout() * 4 + Duration::from_millis(20)) * tries
}

fn setup(retry_cnt: u8) -> Setup {
    Setup { timeout: Some(TIMEOUT), retry_cnt: Some(retry_cnt), ..Setup::rc() }
}

/// Connects, and answers a first SEND at once: now the device knows how long the way is, which some
/// take into account. The next PSN is 1.
fn connect(t: &mut Script<'_>, retry_cnt: u8) -> Outcome {
    t.connect(&setup(retry_cnt))?;
    t.expect_requester_works(0, 1)
}

fn repeats_in_time(t: &mut Script<'_>) -> Outcome {
    connect(t, 7)?;
    let data = t.bytes(100);
    t.post_sends(&[&data])?;
    let first = t.expect(request(RC_SEND_ONLY, 1).payload(&data))?;
    let expected = request(RC_SEND_ONLY, 1).payload(&data);
    let Some(again) = t.next(longest(1))? else {
        let seen = format!("not within {} ms", longest(1).as_millis());
        return Err(Stop::failed("the request again", seen));
    };
    t.check(&expected, &again)?;
    if again.at - first.at < timeout() {
        t.allow("repeats before the ACK timeout");
    }
    t.send(positive_ack(1, 2))?;
    t.expect_success([1])
}

fn repeats_a_read(t: &mut Script<'_>) -> Outcome {
    connect(t, 7)?;
    t.post(&[SendWr::read(1, TARGET..TARGET + 200, OUR_ADDR, OUR_RKEY)])?;
    let asks = || request(RC_READ_REQUEST, 1).reth(OUR_ADDR, OUR_RKEY, 200);
    t.expect(asks())?;
    let again = t.next(longest(1))?;
    let again = again.ok_or_else(|| Stop::failed("the READ again", "nothing"))?;
    t.check(&asks(), &again)?;
    let data = t.bytes(200);
    t.send_all(&read_responses(1, &data, PathMtu::Mtu1024, 2))?;
    t.expect_success([1])
}

fn repeats_the_rest(t: &mut Script<'_>) -> Outcome {
    connect(t, 7)?;
    let data = t.bytes(4000);
    t.post_sends(&[&data])?;
    t.expect_message(SEND, 1, &data)?;
    t.send(positive_ack(2, 1))?;
    let repeated = t.collect(longest(1))?;
    ensure(!repeated.is_empty(), "the rest again", || "nothing".into())?;
    for packet in repeated {
        let place = t.place(&packet);
        let opcode = if place == 4 { RC_SEND_LAST } else { RC_SEND_MIDDLE };
        ensure((3..5).contains(&place), "one of the last two packets again", || {
            packet.to_string()
        })?;
        let at = (place as usize - 1) * 1024;
        let part = &data[at..data.len().min(at + 1024)];
        t.check(&request(opcode, place).payload(part), &packet)?;
    }
    t.send(positive_ack(4, 2))?;
    t.expect_success([1])
}

fn ends_after(t: &mut Script<'_>, retry_cnt: u8) -> Outcome {
    connect(t, retry_cnt)?;
    let tries = u32::from(retry_cnt) + 1;
    let data = t.bytes(100);
    t.post_sends(&[&data])?;
    let first = t.expect(request(RC_SEND_ONLY, 1).payload(&data))?;
    t.expect_completion_within(longest(tries), 1, Status::RetryExcErr)?;
    let lasted = t.now() - first.at;
    let least = timeout() * tries;
    ensure(lasted >= least, &format!("an end after {} ms at least", least.as_millis()), || {
        format!("after {} ms", lasted.as_millis())
    })?;
    let mut seen = 1;
    for packet in t.collect(Duration::ZERO)? {
        t.check(&request(RC_SEND_ONLY, 1).payload(&data), &packet)?;
        seen += 1;
    }
    ensure(seen >= tries, &format!("{tries} tries"), || seen.to_string())?;
    if seen > tries {
        t.allow("repeats before the ACK timeout");
    }
    t.expect_nothing()?;
    t.expect_state(State::Err)
}

fn flushes_the_rest(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup(0))?;
    t.take_short_sends(4)?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])?;
    t.expect_completion_within(longest(1), 2, Status::RetryExcErr)?;
    t.expect_flushed(3..=4)
}

fn code_0_waits(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { timeout: Some(0), retry_cnt: Some(1), ..Setup::rc() })?;
    t.take_short_sends(1)?;
    let ended = t.completion(Duration::from_millis(600))?;
    ensure(ended.is_none(), "no end", || format!("{ended:?}"))?;
    if !t.collect(Duration::ZERO)?.is_empty() {
        t.allow("repeats before the ACK timeout");
    }
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])
}

fn progress_gives_tries_back(t: &mut Script<'_>) -> Outcome {
    connect(t, 1)?;
    let data = t.bytes(8);
    for at in 1..4 {
        t.post_sends(&[&data])?;
        let first = t.expect(request(RC_SEND_ONLY, at).payload(&data))?;
        // What is repeated earlier is no try.
        let until = first.at + timeout();
        loop {
            let again = t.next(longest(3))?;
            let again = again.ok_or_else(|| Stop::failed("the request again", "nothing"))?;
            t.check(&request(RC_SEND_ONLY, at).payload(&data), &again)?;
            if again.at >= until {
                break;
            }
        }
        t.send(positive_ack(at, at as u32 + 1))?;
        t.expect_success([1])?;
        t.collect(t.waits().quiet)?;
    }
    Ok(())
}

fn sequence_error(t: &mut Script<'_>, missing: i32) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(4000);
    t.post_sends(&[&data])?;
    // Only what is before it need have come: the rest may wait for an ACK.
    t.take_beginning(0, missing as usize + 1, data.len())?;
    let mut came = missing + 1;
    for packet in t.collect(t.waits().quiet)? {
        came = came.max(check_part(t, &packet, 0, &data)? + 1);
    }
    t.send(refusal(NakCode::SequenceError, missing, 0))?;
    let again = t.next(t.waits().reply)?;
    let again = again.ok_or_else(|| Stop::failed("the missing packet", "nothing"))?;
    let place = check_part(t, &again, missing, &data)?;
    ensure(place == missing, "the missing packet", || again.to_string())?;
    let mut is_alone = true;
    loop {
        match t.next(t.waits().quiet)? {
            Some(packet) => {
                let place = check_part(t, &packet, missing, &data)?;
                is_alone &= place >= came || place == missing;
                came = came.max(place + 1);
            }
            None if came == 4 => break,
            None => {
                // It waits for an ACK: what is not repeated is taken to be here.
                t.acknowledge(came - 1)?;
                let next = t.next(t.waits().reply)?;
                let next =
                    next.ok_or_else(|| Stop::failed("the rest of the message", "nothing"))?;
                came = came.max(check_part(t, &next, missing, &data)? + 1);
            }
        }
    }
    if is_alone {
        t.allow("repeats the missing packet alone");
    }
    t.send(positive_ack(3, 1))?;
    t.expect_success([1])?;
    t.collect(t.waits().quiet)?;
    t.expect_requester_works(4, 2)
}

/// A packet of a SEND of four packets, from this place on; returns its place.
fn check_part(t: &Script<'_>, packet: &Arrived, from: i32, data: &[u8]) -> Outcome<i32> {
    let opcodes = [RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_MIDDLE, RC_SEND_LAST];
    let place = t.place(packet);
    ensure((from..4).contains(&place), "a packet of the message", || packet.to_string())?;
    let at = place as usize;
    let part = &data[at * 1024..data.len().min((at + 1) * 1024)];
    t.check(&request(opcodes[at], place).payload(part), packet)?;
    Ok(place)
}

fn sequence_error_completes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.take_short_sends(3)?;
    t.send(refusal(NakCode::SequenceError, 2, 2))?;
    t.expect(request(RC_SEND_ONLY, 2))?;
    t.send(positive_ack(2, 3))?;
    t.expect_success(1..=3)
}

fn sequence_errors_use_up_tries(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup(2))?;
    t.take_short_sends(1)?;
    let mut tries = 0;
    loop {
        t.send(refusal(NakCode::SequenceError, 0, 0))?;
        // Some take several signs of one loss for one.
        let Some(packet) = t.next(longest(1))? else {
            ensure(tries >= 2, "two more tries", || tries.to_string())?;
            break;
        };
        tries += 1;
        ensure(tries <= 20, "an end after two more tries", || tries.to_string())?;
        t.check(&request(RC_SEND_ONLY, 0), &packet)?;
        t.wait(Duration::from_millis(2))?;
    }
    t.expect_completion_within(longest(3), 1, Status::RetryExcErr).map(drop)
}

fn waits_the_timer(t: &mut Script<'_>, code: u8) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(100);
    t.post_sends(&[&data])?;
    t.expect(request(RC_SEND_ONLY, 0).payload(&data))?;
    t.send(not_ready(code, 0, 0))?;
    let refused = t.now();
    let again = t.expect(request(RC_SEND_ONLY, 0).payload(&data))?;
    let (waited, least) = (again.at - refused, RnrTimer::new(code).duration());
    // What the way takes is not the device's.
    ensure(waited >= least.mul_f64(0.98), &format!("{least:?} without a packet"), || {
        format!("{waited:?}")
    })?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])
}

fn rnr_completes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.take_short_sends(3)?;
    t.send(not_ready(10, 2, 2))?;
    t.expect_success(1..=2)?;
    t.expect(request(RC_SEND_ONLY, 2))?;
    t.send(positive_ack(2, 3))?;
    t.expect_success([3])
}

/// Refuses a request so many times, each time as it comes.
fn refuse(t: &mut Script<'_>, times: u32) -> Outcome {
    for _ in 0..times {
        t.expect(request(RC_SEND_ONLY, 0))?;
        t.send(not_ready(12, 0, 0))?;
    }
    Ok(())
}

fn ends_after_rnr_retry(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { rnr_retry: Some(2), ..Setup::rc() })?;
    let data = t.bytes(8);
    t.post_sends(&[&data])?;
    refuse(t, 3)?;
    t.expect_completion(1, Status::RnrRetryExcErr)?;
    t.expect_state(State::Err)?;
    t.expect_nothing()
}

fn seven_is_for_ever(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { rnr_retry: Some(7), ..Setup::rc() })?;
    let data = t.bytes(8);
    t.post_sends(&[&data])?;
    refuse(t, 12)?;
    t.expect(request(RC_SEND_ONLY, 0).payload(&data))?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])
}

fn rnr_is_no_timeout(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { rnr_retry: Some(7), ..setup(1) })?;
    let data = t.bytes(8);
    t.post_sends(&[&data])?;
    refuse(t, 5)?;
    t.expect(request(RC_SEND_ONLY, 0).payload(&data))?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])
}
