//! Answers that several checks judge: what is right and what is allowed stands here once.

use super::requests::fetch_add;
use crate::Arrived;
use crate::check::{Outcome, Stop};
use crate::expect::{Expect, atomic_result, nak};
use crate::script::Script;
use urxe_wire::NakCode::InvalidRequest;

/// This answer to a sound atomic comes. A device that does no atomics, which are optional, calls
/// all of them invalid requests: one that has not said that it does them may.
pub(super) fn atomic_answer(t: &mut Script<'_>, expected: Expect) -> Outcome<Arrived> {
    let place = expected.place().unwrap_or_default();
    if t.has_atomics() == Some(true) {
        return t.expect_answer(expected);
    }
    match t.expect_one_of(&[expected, nak(InvalidRequest, place)])? {
        (0, answer) => Ok(answer),
        _ => Err(Stop::NotSupported("it calls a sound atomic an invalid request".into())),
    }
}

/// What eight bytes contain, by an atomic at PSN 0.
pub(super) fn value(t: &mut Script<'_>, offset: u64) -> Outcome<u64> {
    t.send(fetch_add(t, 0, offset, 0))?;
    let answer = atomic_answer(t, atomic_result(0).msn(1))?;
    Ok(answer.body().last_chunk().map_or(0, |&bytes| u64::from_be_bytes(bytes)))
}
