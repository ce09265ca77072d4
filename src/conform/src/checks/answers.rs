//! Answers that several checks judge: what is right and what is allowed stands here once.

use super::requests::{MTU, fetch_add};
use crate::Arrived;
use crate::check::{Outcome, Stop};
use crate::expect::{Expect, atomic_result, nak, read_response};
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess, RemoteOperational};
use urxe_wire::Opcode;

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

/// A READ at PSN 0 that leaves its region is refused: at once, or after the responses that are full
/// packets of what lies within, so many.
pub(super) fn read_is_refused(t: &mut Script<'_>, within: usize) -> Outcome {
    for psn in 0..=within as i32 {
        let opcode = match psn {
            0 => Opcode::RC_READ_RESPONSE_FIRST,
            _ => Opcode::RC_READ_RESPONSE_MIDDLE,
        };
        let refusal = nak(RemoteAccess, psn);
        let found = match psn == within as i32 {
            true => t.expect_one_of(&[refusal])?.0,
            false => t.expect_one_of(&[refusal, read_response(opcode, psn).len(MTU)])?.0,
        };
        if found == 0 {
            if psn > 0 {
                t.allow("refuses a READ that leaves its region at the packet that would leave it");
            }
            return t.expect_no_service(psn);
        }
    }
    Ok(())
}

/// A SEND that is longer than its receive is an invalid request: the fault is the requester's.
pub(super) fn too_long_is_refused(t: &mut Script<'_>, psn: i32) -> Outcome {
    t.expect_refused(InvalidRequest, psn)
}

/// A SEND that may not invalidate what it names fails. Some devices just end the QP.
pub(super) fn invalidation_fails(t: &mut Script<'_>, psn: i32) -> Outcome {
    let refusals = [RemoteAccess, InvalidRequest, RemoteOperational];
    match t.expect_nothing_or(&refusals.map(|code| nak(code, psn)))? {
        Some(0) => {}
        Some(found) => {
            t.allow(format!("refuses with {:?}, not with RemoteAccess", refusals[found]))
        }
        None => t.allow("ends the QP without a NAK"),
    }
    t.expect_no_service(psn)
}
