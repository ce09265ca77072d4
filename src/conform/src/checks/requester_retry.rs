//! Timeouts, sequence errors and "receiver not ready", at the requester of a reliable connection.

use crate::Arrived;
use crate::agent::Status;
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::Setup;
use crate::expect::request;
use crate::packet::{Packet, not_ready, positive_ack, read_responses, refusal};
use crate::script::{OUR_ADDR, OUR_RKEY, Script, our_memory};
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
        "requester-timeout/seven-retries-are-eight-tries",
        "RC-REQ-017",
        "With retry_cnt 7 a request is tried eight times, then it ends with RETRY_EXC_ERR and \
         nothing more is sent.",
        |t| ends_after(t, 7),
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

/// The ACK timeout that these checks use, 67 ms: coarse clocks of a device do not matter, few tries
/// do not take long, and it is what stock clients use.
const TIMEOUT: u8 = 14;

/// The same where an answer of ours is to be in time, 268 ms: a slow device has to hear of it.
const LONG_TIMEOUT: u8 = 16;

/// How much earlier a timeout may be: a tick of a coarse clock, and what the packet before it took
/// longer on its way than usual.
const TICK: Duration = Duration::from_millis(10);

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

/// The program SENDs short messages. The first is acknowledged at once: now the device knows how
/// long the way is, which some take into account. Returns the packet of the second, which is left.
fn leave_the_second(t: &mut Script<'_>, setup: Setup) -> Outcome<Arrived> {
    t.connect(&setup.sending(8))?;
    t.begin()?;
    t.expect(request(RC_SEND_ONLY, 0).len(8))?;
    t.send(positive_ack(0, 1))?;
    let second = next_at(t, 1, t.waits().reply)?;
    t.check(&request(RC_SEND_ONLY, 1).len(8), &second)?;
    Ok(second)
}

/// The next packet at this place, and none before it.
fn next_at(t: &mut Script<'_>, place: i32, within: Duration) -> Outcome<Arrived> {
    let until = t.now() + within;
    loop {
        let left = until.saturating_duration_since(t.now());
        let Some(packet) = t.next(left)? else {
            return Err(Stop::failed(format!("the request at PSN {place}"), "nothing"));
        };
        let found = t.place(&packet);
        ensure(found >= place, "nothing of what was acknowledged", || packet.to_string())?;
        if found == place {
            return Ok(packet);
        }
    }
}

/// The same packet as before, all but the ICRC, which covers what may differ from try to try.
fn ensure_same(t: &Script<'_>, first: &Arrived, again: Option<Arrived>) -> Outcome<Arrived> {
    let again = again.ok_or_else(|| Stop::failed(format!("{first} again"), "nothing"))?;
    let is_same = again.icrc_is_right
        && (again.opcode(), t.place(&again)) == (first.opcode(), t.place(first))
        && again.body() == first.body();
    ensure(is_same, &format!("{first} again, as it was"), || again.to_string())?;
    Ok(again)
}

fn repeats_in_time(t: &mut Script<'_>) -> Outcome {
    let second = leave_the_second(t, Setup { timeout: Some(TIMEOUT), ..Setup::rc() })?;
    let again = next_at(t, 1, longest(1))?;
    ensure_same(t, &second, Some(again)).map(|again| {
        if again.at - second.at < timeout() {
            t.allow("repeats before the ACK timeout");
        }
    })?;
    t.finish_work()
}

fn repeats_a_read(t: &mut Script<'_>) -> Outcome {
    let setup = Setup { timeout: Some(TIMEOUT), max_rd_atomic: Some(1), ..Setup::rc() };
    t.connect(&setup.reading(64))?;
    t.begin()?;
    t.expect(request(RC_READ_REQUEST, 0).reth(OUR_ADDR, OUR_RKEY, 64))?;
    t.send_all(&read_responses(0, &our_memory(OUR_ADDR, 64), PathMtu::Mtu1024, 1))?;
    let first = t.expect(request(RC_READ_REQUEST, 1))?;
    let again = t.next(longest(1))?;
    ensure_same(t, &first, again)?;
    t.finish_work()
}

fn repeats_the_rest(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { timeout: Some(TIMEOUT), ..Setup::rc() }.sending(4000))?;
    t.begin()?;
    t.take_beginning(0, 4, 4000)?;
    t.acknowledge(3)?;
    let packets = t.take_beginning(4, 4, 4000)?;
    t.collect(Duration::ZERO)?;
    if t.acknowledged() < 6 {
        t.acknowledge(5)?;
    }
    let missing = t.acknowledged();
    let again = next_at(t, missing, longest(1))?;
    ensure_same(t, &packets[missing as usize - 4], Some(again))?;
    for packet in t.collect(t.waits().quiet)? {
        let place = t.place(&packet);
        ensure(place >= missing, "nothing of what was acknowledged", || packet.to_string())?;
        if let Some(first) = packets.get(place as usize - 4) {
            ensure_same(t, first, Some(packet))?;
        }
    }
    t.finish_work()
}

fn ends_after(t: &mut Script<'_>, retry_cnt: u8) -> Outcome {
    let second = leave_the_second(t, setup(retry_cnt))?;
    let tries = u32::from(retry_cnt) + 1;
    t.expect_failure_within(longest(tries), Status::RetryExcErr)?;
    let (lasted, least) = (t.now() - second.at, timeout() * tries - TICK);
    ensure(lasted >= least, &format!("an end after {} ms at least", least.as_millis()), || {
        format!("after {} ms", lasted.as_millis())
    })?;
    let mut seen = 1;
    for packet in t.collect(Duration::ZERO)? {
        if t.place(&packet) == 1 {
            ensure_same(t, &second, Some(packet))?;
            seen += 1;
        }
    }
    ensure(seen >= tries, &format!("{tries} tries"), || seen.to_string())?;
    if seen > tries {
        t.allow("repeats before the ACK timeout");
    }
    t.expect_nothing()
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
    t.connect(&Setup { timeout: Some(LONG_TIMEOUT), ..setup(1) })?;
    t.expect_requester_works(0, 1)?;
    let timeout = TimeCode::new(LONG_TIMEOUT).duration();
    let data = t.bytes(8);
    for at in 1..4 {
        t.post_sends(&[&data])?;
        let first = t.expect(request(RC_SEND_ONLY, at).payload(&data))?;
        // What is repeated earlier is no try.
        let until = first.at + timeout - TICK;
        loop {
            let again = t.next(timeout * 6)?;
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
    t.connect(&Setup::rc().sending(4000))?;
    t.begin()?;
    // Only what is before it need have come: the rest may wait for an ACK.
    let packets = t.take_beginning(0, missing as usize + 1, 4000)?;
    let behind = t.collect(t.waits().quiet)?;
    t.send(refusal(NakCode::SequenceError, missing, 0))?;
    let again = t.next(t.waits().reply)?;
    ensure_same(t, &packets[missing as usize], again)?;
    let mut is_alone = true;
    for packet in t.collect(t.waits().quiet)? {
        let place = t.place(&packet);
        ensure(place >= missing, "nothing of what was acknowledged", || packet.to_string())?;
        if let Some(first) = behind.iter().find(|first| t.place(first) == place) {
            ensure_same(t, first, Some(packet))?;
            is_alone = false;
        }
    }
    if is_alone && !behind.is_empty() {
        t.allow("repeats the missing packet alone");
    }
    t.finish_work()
}

fn sequence_error_completes(t: &mut Script<'_>) -> Outcome {
    acknowledges_before(t, refusal(NakCode::SequenceError, 2, 2))
}

/// A NAK of the third message is an ACK of those before it.
fn acknowledges_before(t: &mut Script<'_>, nak: Packet) -> Outcome {
    t.connect(&Setup::rc().sending(8))?;
    t.begin()?;
    let packets = t.take_work()?;
    t.send(nak)?;
    let again = t.next(t.waits().reply)?;
    ensure_same(t, &packets[2], again)?;
    for packet in t.collect(t.waits().quiet)? {
        ensure(t.place(&packet) >= 2, "nothing of what was acknowledged", || packet.to_string())?;
    }
    t.expect_succeeded(2)?;
    t.finish_work()
}

fn sequence_errors_use_up_tries(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup(2))?;
    t.take_short_sends(1)?;
    let (mut tries, end) = (0, t.now() + longest(3) * 2);
    loop {
        t.send(refusal(NakCode::SequenceError, 0, 0))?;
        // Some take several signs of one loss for one, and each ACK timeout for another.
        let Some(packet) = t.next(longest(1))? else {
            ensure(tries >= 2, "two more tries", || tries.to_string())?;
            break;
        };
        tries += 1;
        ensure(t.now() < end, "an end after two more tries", || format!("{tries} tries"))?;
        t.check(&request(RC_SEND_ONLY, 0), &packet)?;
        // What else is repeated meanwhile asks for the answer to the same try.
        t.collect(Duration::from_millis(2))?;
    }
    t.expect_completion_within(longest(3), 1, Status::RetryExcErr).map(drop)
}

fn waits_the_timer(t: &mut Script<'_>, code: u8) -> Outcome {
    t.connect(&Setup::rc().sending(8))?;
    t.begin()?;
    let packets = t.take_work()?;
    t.send(not_ready(code, 0, 0))?;
    let refused = t.now();
    let again = t.next(t.waits().reply)?;
    let again = ensure_same(t, &packets[0], again)?;
    let (waited, least) = (again.at - refused, RnrTimer::new(code).duration());
    // What the way takes is not the device's.
    ensure(waited >= least.mul_f64(0.98), &format!("{least:?} without a packet"), || {
        format!("{waited:?}")
    })?;
    t.finish_work()
}

fn rnr_completes(t: &mut Script<'_>) -> Outcome {
    acknowledges_before(t, not_ready(10, 2, 2))
}

/// The program SENDs short messages, of which the first is refused so many times, each time as it
/// comes.
fn refuse(t: &mut Script<'_>, setup: Setup, times: u32) -> Outcome {
    t.connect(&setup.sending(8))?;
    t.begin()?;
    let mut refused = 0;
    while refused < times {
        let Some(packet) = t.next(t.waits().reply)? else {
            return Err(Stop::failed("the message again", format!("nothing after {refused} NAKs")));
        };
        if t.place(&packet) == 0 {
            t.check(&request(RC_SEND_ONLY, 0).len(8), &packet)?;
            t.send(not_ready(12, 0, 0))?;
            refused += 1;
        }
    }
    Ok(())
}

fn ends_after_rnr_retry(t: &mut Script<'_>) -> Outcome {
    refuse(t, Setup { rnr_retry: Some(2), ..Setup::rc() }, 3)?;
    t.expect_failure(Status::RnrRetryExcErr)?;
    t.collect(Duration::ZERO)?;
    t.expect_nothing()
}

fn seven_is_for_ever(t: &mut Script<'_>) -> Outcome {
    refuse(t, Setup { rnr_retry: Some(7), ..Setup::rc() }, 12)?;
    t.finish_work()
}

fn rnr_is_no_timeout(t: &mut Script<'_>) -> Outcome {
    refuse(t, Setup { rnr_retry: Some(7), ..setup(1) }, 5)?;
    t.finish_work()
}
