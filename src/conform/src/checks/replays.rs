//! READs and atomics that come again.

use super::answers::{atomic_answer, value};
use super::requests::{MTU, compare_swap, fetch_add, read, write_only, writes};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{atomic_ack, atomic_result, nak, read_response};
use crate::script::Script;
use urxe_wire::{NakCode, Opcode};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "replays/a-read-is-answered-again",
        rule: "RC-RESP-029",
        says: "A READ that comes again is answered with the same data at the same PSNs, and \
               does not count again.",
        risk: Risk::None,
        run: a_read_is_answered_again,
    },
    Check {
        name: "replays/the-rest-of-a-read",
        rule: "RC-RESP-029",
        says: "The rest of a READ, asked for from its second response on, is answered from there.",
        risk: Risk::None,
        run: the_rest_of_a_read,
    },
    Check {
        name: "replays/the-last-response-of-a-read",
        rule: "RC-RESP-029",
        says: "The last response to a READ alone, asked for again, is a READ RESPONSE ONLY.",
        risk: Risk::None,
        run: the_last_response_of_a_read,
    },
    Check {
        name: "replays/the-midst-of-a-read",
        rule: "RC-RESP-029",
        says: "A part in the midst of a READ that is asked for again alone is answered, or nothing \
               comes.",
        risk: Risk::None,
        run: the_midst_of_a_read,
    },
    Check {
        name: "replays/a-read-from-its-start-after-its-rest",
        rule: "RC-RESP-029",
        says: "A READ that is asked for from its start after its rest was asked for again is \
               answered, or nothing comes.",
        risk: Risk::None,
        run: a_read_from_its_start_after_its_rest,
    },
    Check {
        name: "replays/a-read-of-other-memory",
        rule: "RC-RESP-030",
        says: "A repeated READ that asks for other memory than the first one is not answered, or \
               with what stands there.",
        risk: Risk::None,
        run: a_read_of_other_memory,
    },
    Check {
        name: "replays/a-read-after-other-requests",
        rule: "RC-RESP-029",
        says: "A READ is answered again also when WRITEs were done since.",
        risk: Risk::None,
        run: a_read_after_other_requests,
    },
    Check {
        name: "replays/a-fetch-add-is-not-done-again",
        rule: "RC-RESP-028",
        says: "A FETCH ADD that comes again is answered with the first result, and adds nothing.",
        risk: Risk::None,
        run: a_fetch_add_is_not_done_again,
    },
    Check {
        name: "replays/an-atomics-repeat-has-the-first-msn",
        rule: "RC-RESP-028",
        says: "The answer to a repeated atomic is the first answer, with its MSN, or with that of \
               now.",
        risk: Risk::None,
        run: an_atomics_repeat_has_the_first_msn,
    },
    Check {
        name: "replays/a-compare-swap-is-not-done-again",
        rule: "RC-RESP-028",
        says: "A COMPARE SWAP that comes again after others is answered with the first result, \
               and swaps nothing.",
        risk: Risk::None,
        run: a_compare_swap_is_not_done_again,
    },
    Check {
        name: "replays/an-atomic-with-other-content",
        rule: "RC-RESP-028",
        says: "A repeated atomic with another operand is answered with the first result, or \
               not, but not done.",
        risk: Risk::None,
        run: an_atomic_with_other_content,
    },
    Check {
        name: "replays/an-atomic-beyond-those-kept",
        rule: "RC-RESP-032",
        says: "An atomic that comes again after as many others as are kept is ignored, or \
               answered, but not done.",
        risk: Risk::None,
        run: an_atomic_beyond_those_kept,
    },
    Check {
        name: "replays/all-atomics-outstanding-are-kept",
        rule: "RC-RESP-032",
        says: "As many atomics as may be outstanding are each answered again with their own \
               result.",
        risk: Risk::None,
        run: all_atomics_outstanding_are_kept,
    },
    Check {
        name: "replays/an-atomic-as-a-read",
        rule: "RC-RESP-030",
        says: "A READ at the PSN of an atomic that was done is not answered as if it were the \
               next.",
        risk: Risk::None,
        run: an_atomic_as_a_read,
    },
];

fn a_read_is_answered_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2500))?;
    let first = t.expect_read(0, 2500, 1)?;
    t.send(read(t, 0, 0, 2500))?;
    let second = t.expect_read(0, 2500, 1)?;
    ensure(first == second, "the same data", || "other data".into())?;
    t.expect_service(3, 2)
}

fn the_rest_of_a_read(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 3500))?;
    let all = t.expect_read(0, 3500, 1)?;
    t.send(read(t, 1, 1024, 3500 - 1024))?;
    let rest = rest_of_read(t, 1, 3500 - 1024)?;
    ensure(all[1024..] == rest, "the same data", || "other data".into())?;
    t.expect_service(4, 2)
}

fn the_last_response_of_a_read(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2500))?;
    let all = t.expect_read(0, 2500, 1)?;
    t.send(read(t, 2, 2048, 2500 - 2048))?;
    let rest = rest_of_read(t, 2, 2500 - 2048)?;
    ensure(all[2048..] == rest, "the same data", || "other data".into())?;
    t.expect_service(3, 2)
}

fn the_midst_of_a_read(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 3500))?;
    let all = t.expect_read(0, 3500, 1)?;
    t.send(read(t, 1, 1024, 1024))?;
    // A requester asks for all that is missing, to the end.
    if t.is_answered()? {
        let part = rest_of_read(t, 1, 1024)?;
        ensure(all[1024..2048] == part, "the same data", || "other data".into())?;
    } else {
        t.allow("does not answer a part in the midst of a READ that comes again");
    }
    t.expect_service(4, 2)
}

fn a_read_from_its_start_after_its_rest(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2500))?;
    let all = t.expect_read(0, 2500, 1)?;
    t.send(read(t, 2, 2048, 2500 - 2048))?;
    rest_of_read(t, 2, 2500 - 2048)?;
    t.send(read(t, 0, 0, 2500))?;
    // No requester goes back behind what it has had.
    if t.is_answered()? {
        let again = t.expect_read(0, 2500, 1)?;
        ensure(all == again, "the same data", || "other data".into())?;
    } else {
        t.allow("does not answer the whole of a READ whose rest came again before");
    }
    t.expect_service(3, 2)
}

fn a_read_of_other_memory(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let there = t.bytes(1000);
    t.send(write_only(t, 0, 8192, &there))?;
    t.expect_acked(0, 1)?;
    t.send(read(t, 1, 0, 1000))?;
    t.expect_read(1, 1000, 2)?;
    t.send(read(t, 1, 8192, 1000))?;
    let answer = read_response(Opcode::RC_READ_RESPONSE_ONLY, 1).msn(2);
    let refusals = [nak(NakCode::InvalidRequest, 1), nak(NakCode::RemoteAccess, 1)];
    match t.expect_silence_or(&[&[answer], &refusals[..]].concat())? {
        None => t.expect_service(2, 3),
        // It has checked key and bounds anew.
        Some((0, answer)) => {
            ensure(answer.payload() == there, "what stands there", || "other data".into())?;
            t.allow("answers a repeated READ with the memory that it asks for now");
            t.expect_service(2, 3)
        }
        Some(_) => {
            t.allow("refuses a repeated READ that is not the rest of the first one");
            Ok(())
        }
    }
}

fn a_read_after_other_requests(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(2000);
    t.send_all(&writes(t, 0, 0, &data))?;
    t.send(read(t, 2, 0, 2000))?;
    t.expect_read(2, 2000, 2)?;
    t.send(write_only(t, 4, 4096, &[1; 8]))?;
    t.expect_acked(4, 3)?;
    t.send(read(t, 2, 0, 2000))?;
    let again = read_again(t, 2, 2000)?;
    ensure(again == data, "the data of the first answer", || "other data".into())?;
    t.expect_service(5, 4)
}

fn a_fetch_add_is_not_done_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, 5))?;
    t.expect(atomic_ack(1, original).msn(2))?;
    t.send(fetch_add(t, 1, 0, 5))?;
    t.expect(atomic_ack(1, original))?;
    t.send(fetch_add(t, 2, 0, 0))?;
    t.expect(atomic_ack(2, original.wrapping_add(5)).msn(3))?;
    Ok(())
}

fn an_atomics_repeat_has_the_first_msn(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    for psn in 0..2 {
        t.send(fetch_add(t, psn, 0, 1))?;
        atomic_answer(t, atomic_result(psn).msn(psn as u32 + 1))?;
    }
    t.send(fetch_add(t, 0, 0, 1))?;
    let again = t.expect(atomic_result(0).msns(1..=2))?;
    if again.aeth().is_some_and(|(_, msn)| msn == 2) {
        t.allow("the answer to a repeated atomic has the MSN of now");
    }
    Ok(())
}

fn a_compare_swap_is_not_done_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(compare_swap(t, 1, 0, original, 7))?;
    t.expect(atomic_ack(1, original))?;
    t.send(compare_swap(t, 2, 0, 7, original))?;
    t.expect(atomic_ack(2, 7))?;
    t.send(compare_swap(t, 1, 0, original, 7))?;
    t.expect(atomic_ack(1, original))?;
    t.send(fetch_add(t, 3, 0, 0))?;
    t.expect(atomic_ack(3, original))?;
    Ok(())
}

fn an_atomic_with_other_content(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, 5))?;
    t.expect(atomic_ack(1, original))?;
    t.send(fetch_add(t, 1, 0, 100))?;
    t.expect_nothing_or(&[atomic_ack(1, original)])?;
    t.send(fetch_add(t, 2, 0, 0))?;
    t.expect(atomic_ack(2, original.wrapping_add(5)))?;
    Ok(())
}

fn an_atomic_beyond_those_kept(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(1), ..Setup::rc().atomic() })?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, 5))?;
    t.expect(atomic_ack(1, original))?;
    for psn in 2..5 {
        t.send(fetch_add(t, psn, 8, 1))?;
        t.expect(atomic_result(psn))?;
    }
    t.send(fetch_add(t, 1, 0, 5))?;
    t.expect_nothing_or(&[atomic_ack(1, original)])?;
    t.send(fetch_add(t, 5, 0, 0))?;
    t.expect(atomic_ack(5, original.wrapping_add(5)))?;
    Ok(())
}

fn all_atomics_outstanding_are_kept(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(4), ..Setup::rc().atomic() })?;
    let original = value(t, 0)?;
    let atomics: Vec<_> = (1..5).map(|psn| fetch_add(t, psn, 0, 3)).collect();
    for _ in 0..2 {
        t.send_all(&atomics)?;
        for psn in 1..5 {
            t.expect(atomic_ack(psn, original.wrapping_add(3 * (psn as u64 - 1))))?;
        }
    }
    t.send(fetch_add(t, 5, 0, 0))?;
    t.expect(atomic_ack(5, original.wrapping_add(12)))?;
    Ok(())
}

fn an_atomic_as_a_read(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic().read())?;
    let original = value(t, 0)?;
    t.send(read(t, 0, 0, 8))?;
    t.expect_nothing_or(&[nak(NakCode::InvalidRequest, 0)])?;
    t.send(fetch_add(t, 1, 0, 0))?;
    t.expect(atomic_ack(1, original).msn(2))?;
    Ok(())
}

/// The answer to a READ that asks for a part of an earlier one: as to a READ of its own, or as the
/// rest of the first answer.
fn rest_of_read(t: &mut Script<'_>, psn: i32, len: usize) -> Outcome<Vec<u8>> {
    use Opcode::{
        RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE,
        RC_READ_RESPONSE_ONLY,
    };
    let last = len.div_ceil(MTU) - 1;
    let mut data = Vec::new();
    for i in 0..=last {
        let (usual, other) = match (i == 0, i == last) {
            (true, true) => (RC_READ_RESPONSE_ONLY, RC_READ_RESPONSE_LAST),
            (true, false) => (RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_MIDDLE),
            (false, true) => (RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_LAST),
            (false, false) => (RC_READ_RESPONSE_MIDDLE, RC_READ_RESPONSE_MIDDLE),
        };
        let part = |opcode| read_response(opcode, psn + i as i32).len((len - i * MTU).min(MTU));
        let (found, arrived) = t.expect_one_of(&[part(usual), part(other)])?;
        if found == 1 {
            t.allow("answers the rest of a READ with MIDDLE and LAST, not with FIRST or ONLY");
        }
        data.extend(arrived.payload());
    }
    Ok(data)
}

/// The answer to a repeated READ of two packets, with whatever MSN.
fn read_again(t: &mut Script<'_>, psn: i32, len: usize) -> Outcome<Vec<u8>> {
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, psn).len(1024);
    let last = read_response(Opcode::RC_READ_RESPONSE_LAST, psn + 1).len(len - 1024);
    let mut data = t.expect(first)?.payload().to_vec();
    data.extend(t.expect(last)?.payload());
    Ok(data)
}
