//! The states of a QP, as its program sees them.

use crate::agent::{EventKind, RecvWr, SendWr, State, Status};
use crate::check::{Check, Outcome, ensure};
use crate::device::{RECEIVES, SOURCE, Setup, TARGET};
use crate::expect::request;
use crate::packet::{positive_ack, read_responses, send_message};
use crate::script::{OUR_ADDR, OUR_RKEY, Script};
use urxe_types::PathMtu;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "states/err-flushes-in-order",
        "STATE-009",
        "A QP that goes to ERR completes its sends and its receives with flush errors, each queue \
         in order, and sends nothing more.",
        err_flushes,
    ),
    Check::new(
        "states/err-flushes-unsignaled-sends",
        "STATE-009",
        "A flushed send completes though it was not signaled.",
        err_flushes_unsignaled,
    ),
    Check::new(
        "states/posted-in-err-is-flushed",
        "STATE-010",
        "What is posted to a QP in ERR is flushed.",
        posted_in_err,
    ),
    Check::new(
        "states/err-answers-nothing",
        "STATE-013",
        "A QP in ERR carries nothing out and answers nothing.",
        err_answers_nothing,
    ),
    Check::new(
        "states/sqd-ends-what-has-begun",
        "STATE-005",
        "In SQD what has begun ends, nothing new begins, and then SQ_DRAINED is told.",
        sqd_ends_what_has_begun,
    ),
    Check::new(
        "states/sqd-keeps-what-waits-at-a-fence",
        "STATE-030",
        "A SEND that waits at a fence when its QP goes to SQD is sent in RTS, and not before.",
        sqd_keeps_what_waits,
    ),
    Check::new(
        "states/sqd-goes-on-in-rts",
        "STATE-008",
        "From SQD a QP goes on in RTS with the sends that were posted meanwhile.",
        sqd_goes_on,
    ),
    Check::new(
        "states/sqd-answers-requests",
        "STATE-007",
        "In SQD requests of the peer are carried out and acknowledged.",
        sqd_answers,
    ),
    Check::new(
        "states/reset-forgets",
        "STATE-003",
        "A QP that goes to RESET completes nothing that was posted, and sends nothing.",
        reset_forgets,
    ),
    Check::new(
        "states/rtr-tells-of-the-first-packet",
        "STATE-012",
        "In RTR requests are carried out, and the first packet may be told of by COMM_EST, once.",
        rtr_tells,
    ),
];

fn err_flushes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let receive = |id| RecvWr::new(id, RECEIVES..RECEIVES + 64);
    t.post_recv(&[receive(101), receive(102), receive(103)])?;
    t.take_short_sends(3)?;
    t.modify(State::Err)?;
    // The order is due within each queue, not between them.
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    while sends.len() + receives.len() < 6 {
        let Some(wc) = t.completion(t.waits().reply)? else { break };
        ensure(wc.status == Status::WrFlushErr, "flush errors", || format!("{wc:?}"))?;
        if wc.id > 100 { receives.push(wc.id) } else { sends.push(wc.id) }
    }
    let is_all = (&sends[..], &receives[..]) == (&[1, 2, 3], &[101, 102, 103]);
    ensure(is_all, "three sends and three receives, each in order", || {
        format!("{sends:?} and {receives:?}")
    })?;
    t.collect(t.waits().quiet)?;
    t.expect_nothing()
}

fn err_flushes_unsignaled(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::send(4, SOURCE..SOURCE + 8).unsignaled()])?;
    t.expect(request(RC_SEND_ONLY, 0))?;
    t.modify(State::Err)?;
    t.expect_flushed([4])
}

fn posted_in_err(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.modify(State::Err)?;
    t.post_recv(&[RecvWr::new(7, RECEIVES..RECEIVES + 64)])?;
    t.expect_flushed([7])?;
    t.post(&[SendWr::send(8, SOURCE..SOURCE + 8)])?;
    t.expect_flushed([8])?;
    t.expect_nothing()
}

fn err_answers_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 64))?;
    t.modify(State::Err)?;
    t.expect_flushed([0])?;
    t.send_all(&send_message(0, &[1; 16], PathMtu::Mtu1024))?;
    t.expect_nothing()?;
    t.expect_no_completion()
}

fn sqd_ends_what_has_begun(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.take_short_sends(2)?;
    t.modify(State::Sqd)?;
    t.post(&[SendWr::send(3, SOURCE..SOURCE + 8)])?;
    t.expect_nothing_new(2)?;
    t.send(positive_ack(1, 2))?;
    t.expect_success(1..=2)?;
    t.expect_event(EventKind::SqDrained)?;
    t.collect(t.waits().quiet)?;
    t.expect_nothing()?;
    t.expect_no_completion()
}

fn sqd_keeps_what_waits(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[
        SendWr::read(1, TARGET..TARGET + 64, OUR_ADDR, OUR_RKEY),
        SendWr::send(2, SOURCE..SOURCE + 8).fence(),
    ])?;
    t.expect(request(RC_READ_REQUEST, 0))?;
    t.modify(State::Sqd)?;
    t.send_all(&read_responses(0, &[1; 64], PathMtu::Mtu1024, 1))?;
    t.expect_success([1])?;
    t.expect_event(EventKind::SqDrained)?;
    t.expect_nothing_new(1)?;
    t.modify(State::Rts)?;
    t.expect(request(RC_SEND_ONLY, 1))?;
    t.send(positive_ack(1, 2))?;
    t.expect_success([2])
}

fn sqd_goes_on(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.modify(State::Sqd)?;
    t.expect_event(EventKind::SqDrained)?;
    t.post(&[SendWr::send(3, SOURCE..SOURCE + 8)])?;
    t.expect_nothing()?;
    t.modify(State::Rts)?;
    t.expect(request(RC_SEND_ONLY, 0))?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([3])
}

fn sqd_answers(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 64))?;
    t.modify(State::Sqd)?;
    t.send_all(&send_message(0, &[1; 16], PathMtu::Mtu1024))?;
    t.expect_acked(0, 1)?;
    t.expect_success([0])
}

fn reset_forgets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, 64))?;
    t.take_short_sends(2)?;
    t.modify(State::Reset)?;
    t.send(positive_ack(1, 2))?;
    t.expect_no_completion()?;
    t.collect(t.waits().quiet)?;
    t.expect_nothing()
}

fn rtr_tells(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { state: State::Rtr, ..Setup::rc().exactly(2, 64) })?;
    t.send_all(&send_message(0, &[1; 16], PathMtu::Mtu1024))?;
    t.expect_acked(0, 1)?;
    t.expect_success([0])?;
    match t.event(t.waits().quiet)? {
        Some(event) => {
            ensure(event.event == EventKind::CommEst, "COMM_EST", || format!("{event:?}"))?
        }
        None => t.allow("does not tell of the first packet"),
    }
    t.send_all(&send_message(1, &[1; 16], PathMtu::Mtu1024))?;
    t.expect_acked(1, 2)?;
    t.expect_success([1])?;
    let more = t.event(t.waits().quiet)?;
    ensure(more.is_none(), "no second event", || format!("{more:?}"))?;
    t.to_rts()?;
    t.expect_requester_works(0, 1)
}
