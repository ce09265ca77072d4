//! Shared receive queues.

use crate::agent::{EventKind, RecvWr, State, Status};
use crate::check::{Check, Outcome, ensure};
use crate::device::{Setup, Srq};
use crate::expect::rnr_nak;
use crate::packet::send_message;
use crate::script::Script;
use urxe_types::PathMtu;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "srq/messages-of-two-qps-take-its-receives",
        "SRQ-001",
        "Messages take receives from the shared queue in the order in which they begin, whichever \
         QP they come to.",
        two_qps,
    ),
    Check::new(
        "srq/empty-one-is-not-ready",
        "SRQ-002",
        "Without a receive in the shared queue a SEND is refused by an RNR NAK.",
        empty,
    ),
    Check::new(
        "srq/limit-is-told-once",
        "SRQ-004",
        "When fewer receives are posted than the limit, SRQ_LIMIT_REACHED is told, once.",
        limit,
    ),
    Check::new(
        "srq/last-receive-is-told-of",
        "SRQ-007",
        "A QP that goes to ERR tells QP_LAST_WQE_REACHED.",
        last_receive,
    ),
    Check::new(
        "srq/error-of-one-qp-leaves-the-queue",
        "SRQ-008",
        "The receives in the shared queue are not flushed when a QP goes to ERR: others take them.",
        error_leaves_the_queue,
    ),
];

fn queue(t: &mut Script<'_>, receives: u64) -> Outcome<Srq> {
    let srq = t.create_srq()?;
    let receive = |id: u64| RecvWr::new(id, id as usize * 256..id as usize * 256 + 256);
    let wrs: Vec<RecvWr> = (0..receives).map(receive).collect();
    if receives > 0 {
        t.post_srq(srq, &wrs)?;
    }
    Ok(srq)
}

fn on(srq: Srq) -> Setup {
    Setup { srq: Some(srq), ..Setup::rc() }
}

fn message(t: &mut Script<'_>, srq: Srq, at: i32, id: u64) -> Outcome {
    let data = t.bytes(100);
    t.send_all(&send_message(at, &data, PathMtu::Mtu1024))?;
    t.expect_acked(at, at as u32 + 1)?;
    t.expect_completion(id, Status::Success)?;
    let found = t.srq_buffer(srq, id as usize * 256, 100)?;
    ensure(found == data, "the message in its receive", || "other bytes".into())
}

fn two_qps(t: &mut Script<'_>) -> Outcome {
    let srq = queue(t, 4)?;
    let a = t.connect(&on(srq))?;
    let b = t.connect(&on(srq))?;
    for (id, (connection, at)) in [(a, 0), (b, 0), (b, 1), (a, 1)].into_iter().enumerate() {
        t.select(connection);
        message(t, srq, at, id as u64)?;
    }
    Ok(())
}

fn empty(t: &mut Script<'_>) -> Outcome {
    let srq = queue(t, 1)?;
    t.connect(&on(srq))?;
    message(t, srq, 0, 0)?;
    t.send_all(&send_message(1, &[1; 8], PathMtu::Mtu1024))?;
    t.expect(rnr_nak(1)).map(drop)
}

fn limit(t: &mut Script<'_>) -> Outcome {
    let srq = queue(t, 4)?;
    t.connect(&on(srq))?;
    t.limit(srq, 3)?;
    message(t, srq, 0, 0)?;
    let early = t.event(t.waits().quiet)?;
    ensure(early.is_none(), "no event while three are left", || format!("{early:?}"))?;
    message(t, srq, 1, 1)?;
    t.expect_event(EventKind::SrqLimitReached)?;
    message(t, srq, 2, 2)?;
    let more = t.event(t.waits().quiet)?;
    ensure(more.is_none(), "no second event", || format!("{more:?}"))
}

fn last_receive(t: &mut Script<'_>) -> Outcome {
    let srq = queue(t, 2)?;
    t.connect(&on(srq))?;
    message(t, srq, 0, 0)?;
    t.modify(State::Err)?;
    t.expect_event(EventKind::QpLastWqeReached).map(drop)
}

fn error_leaves_the_queue(t: &mut Script<'_>) -> Outcome {
    let srq = queue(t, 3)?;
    let a = t.connect(&on(srq))?;
    let b = t.connect(&on(srq))?;
    t.select(a);
    message(t, srq, 0, 0)?;
    t.modify(State::Err)?;
    t.expect_no_completion()?;
    t.select(b);
    message(t, srq, 0, 1)
}
