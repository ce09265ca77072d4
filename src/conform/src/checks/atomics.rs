//! Atomics at the responder of a reliable connection.

use super::answers::{atomic_answer, value};
use super::requests::{compare_swap, fetch_add, read, write_only};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{atomic_ack, atomic_result};
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "atomics/fetch-add-adds",
        rule: "RC-RESP-024",
        says: "FETCH ADD answers with what was there, and adds.",
        risk: Risk::None,
        run: fetch_add_adds,
    },
    Check {
        name: "atomics/fetch-add-wraps",
        rule: "RC-RESP-024",
        says: "FETCH ADD adds modulo 2^64.",
        risk: Risk::None,
        run: fetch_add_wraps,
    },
    Check {
        name: "atomics/fetch-add-carries",
        rule: "RC-RESP-024",
        says: "FETCH ADD carries from the lower half to the upper.",
        risk: Risk::None,
        run: fetch_add_carries,
    },
    Check {
        name: "atomics/compare-swap-that-matches",
        rule: "RC-RESP-023",
        says: "COMPARE SWAP swaps what compares equal, and answers with what was there.",
        risk: Risk::None,
        run: compare_swap_that_matches,
    },
    Check {
        name: "atomics/compare-swap-that-does-not-match",
        rule: "RC-RESP-023",
        says: "COMPARE SWAP leaves what does not compare equal, and answers with what is there.",
        risk: Risk::None,
        run: compare_swap_that_does_not_match,
    },
    Check {
        name: "atomics/compare-swap-compares-all-bytes",
        rule: "RC-RESP-023",
        says: "COMPARE SWAP compares all eight bytes: one other bit anywhere is enough.",
        risk: Risk::None,
        run: compare_swap_compares_all_bytes,
    },
    Check {
        name: "atomics/several-at-once",
        rule: "RC-RESP-024",
        says: "Atomics that come at once are done in their order.",
        risk: Risk::None,
        run: several_at_once,
    },
    Check {
        name: "atomics/other-words-stay",
        rule: "RC-RESP-024",
        says: "An atomic changes its own eight bytes only.",
        risk: Risk::None,
        run: other_words_stay,
    },
    Check {
        name: "atomics/sees-writes-before-it",
        rule: "ORDER-004",
        says: "An atomic sees the WRITE before it, as a number of one byte order.",
        risk: Risk::None,
        run: sees_writes_before_it,
    },
    Check {
        name: "atomics/the-last-word-of-the-region",
        rule: "RC-RESP-015",
        says: "An atomic may be of the last eight bytes of its region.",
        risk: Risk::None,
        run: the_last_word_of_the_region,
    },
    Check {
        name: "atomics/the-answer-is-bare",
        rule: "WIRE-015",
        says: "The answer to an atomic is a BTH, an AETH, eight bytes and the ICRC.",
        risk: Risk::None,
        run: the_answer_is_bare,
    },
    Check {
        name: "atomics/with-ackreq-draws-no-ack",
        rule: "RC-RESP-019",
        says: "An atomic that asks for an acknowledgement is answered by its result alone.",
        risk: Risk::None,
        run: with_ackreq_draws_no_ack,
    },
    Check {
        name: "atomics/fetch-add-misaligned",
        rule: "RC-RESP-025",
        says: "A FETCH ADD at an address that is no multiple of eight is an invalid request.",
        risk: Risk::None,
        run: fetch_add_misaligned,
    },
    Check {
        name: "atomics/compare-swap-misaligned",
        rule: "RC-RESP-025",
        says: "A COMPARE SWAP at an odd address is an invalid request.",
        risk: Risk::None,
        run: compare_swap_misaligned,
    },
    Check {
        name: "atomics/wrong-key-is-refused",
        rule: "RC-RESP-011",
        says: "An atomic with a key that opens nothing is a remote access error.",
        risk: Risk::None,
        run: wrong_key_is_refused,
    },
    Check {
        name: "atomics/past-the-end",
        rule: "RC-RESP-015",
        says: "An atomic behind its region is a remote access error.",
        risk: Risk::None,
        run: past_the_end,
    },
];

fn fetch_add_adds(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, 0x0102_0304_0506_0708))?;
    t.expect(atomic_ack(1, original).msn(2))?;
    t.send(fetch_add(t, 2, 0, 0))?;
    t.expect(atomic_ack(2, original.wrapping_add(0x0102_0304_0506_0708)).msn(3))?;
    t.expect_nothing()
}

fn fetch_add_wraps(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, u64::MAX - original))?;
    t.expect(atomic_ack(1, original))?;
    t.send(fetch_add(t, 2, 0, 5))?;
    t.expect(atomic_ack(2, u64::MAX))?;
    t.send(fetch_add(t, 3, 0, 0))?;
    t.expect(atomic_ack(3, 4))?;
    Ok(())
}

fn fetch_add_carries(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(fetch_add(t, 1, 0, 0xffff_ffff_u64.wrapping_sub(original)))?;
    t.expect(atomic_ack(1, original))?;
    t.send(fetch_add(t, 2, 0, 1))?;
    t.expect(atomic_ack(2, 0xffff_ffff))?;
    t.send(fetch_add(t, 3, 0, 0))?;
    t.expect(atomic_ack(3, 0x1_0000_0000))?;
    Ok(())
}

fn compare_swap_that_matches(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(compare_swap(t, 1, 0, original, 0xa1a2_a3a4_a5a6_a7a8))?;
    t.expect(atomic_ack(1, original).msn(2))?;
    t.send(fetch_add(t, 2, 0, 0))?;
    t.expect(atomic_ack(2, 0xa1a2_a3a4_a5a6_a7a8))?;
    t.expect_nothing()
}

fn compare_swap_that_does_not_match(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    t.send(compare_swap(t, 1, 0, original ^ 1, 0xa1a2_a3a4_a5a6_a7a8))?;
    t.expect(atomic_ack(1, original).msn(2))?;
    t.send(fetch_add(t, 2, 0, 0))?;
    t.expect(atomic_ack(2, original))?;
    t.expect_nothing()
}

fn compare_swap_compares_all_bytes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let original = value(t, 0)?;
    for byte in 0..8 {
        let psn = byte + 1;
        t.send(compare_swap(t, psn, 0, original ^ 0x80 << (8 * byte), !original))?;
        t.expect(atomic_ack(psn, original))?;
    }
    Ok(())
}

fn several_at_once(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(4), ..Setup::rc().atomic() })?;
    let original = value(t, 0)?;
    let atomics: Vec<Packet> = (1..5).map(|psn| fetch_add(t, psn, 0, 10)).collect();
    t.send_all(&atomics)?;
    for psn in 1..5 {
        let (added, msn) = (10 * (psn as u64 - 1), psn as u32 + 1);
        let answer = t.expect(atomic_ack(psn, original.wrapping_add(added)).msns(msn..=5))?;
        t.allow_newer_msn(&answer, msn);
    }
    t.expect_nothing()
}

fn other_words_stay(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic().read())?;
    let before = {
        t.send(read(t, 0, 0, 32))?;
        t.expect_read(0, 32, 1)?
    };
    t.send(fetch_add(t, 1, 8, 0x1111_1111_1111_1111))?;
    atomic_answer(t, atomic_result(1))?;
    let after = {
        t.send(read(t, 2, 0, 32))?;
        t.expect_read(2, 32, 3)?
    };
    ensure(before[..8] == after[..8], "the word before unchanged", || "changed".into())?;
    ensure(before[16..] == after[16..], "the words behind unchanged", || "changed".into())?;
    ensure(before[8..16] != after[8..16], "the word changed", || "unchanged".into())
}

fn sees_writes_before_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().atomic())?;
    value(t, 64)?;
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    t.send(write_only(t, 1, 64, &data))?;
    t.expect_acked(1, 2)?;
    t.send(fetch_add(t, 2, 64, 0))?;
    let orders = [u64::from_le_bytes(data), u64::from_be_bytes(data)];
    t.expect_one_of(&orders.map(|number| atomic_ack(2, number).msn(3)))?;
    Ok(())
}

fn the_last_word_of_the_region(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let at = t.memory().len as u64 - 8;
    t.send(fetch_add(t, 0, at, 0))?;
    atomic_answer(t, atomic_result(0).msn(1))?;
    t.expect_nothing()
}

fn the_answer_is_bare(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    t.send(fetch_add(t, 0, 0, 0))?;
    let answer = atomic_answer(t, atomic_result(0))?;
    ensure(answer.bytes.len() == 28, "28 bytes", || format!("{} bytes", answer.bytes.len()))?;
    ensure(!answer.ack_req() && !answer.solicited(), "neither bit", || "AckReq or solicited".into())
}

fn with_ackreq_draws_no_ack(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    t.send(fetch_add(t, 0, 0, 0).ack_req())?;
    atomic_answer(t, atomic_result(0).msn(1))?;
    t.expect_nothing()
}

fn fetch_add_misaligned(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    value(t, 0)?;
    t.send(fetch_add(t, 1, 4, 1))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 1)
}

fn compare_swap_misaligned(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    value(t, 0)?;
    t.send(compare_swap(t, 1, 1, 0, 0))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 1)
}

fn wrong_key_is_refused(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    value(t, 0)?;
    let (addr, wrong) = (t.addr(0), t.rkey() ^ 0x1000_0001);
    t.send(packet(Opcode::RC_FETCH_ADD).at(1).atomic(addr, wrong, 1, 0))?;
    t.expect_refused(RemoteAccess, 1)
}

fn past_the_end(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    value(t, 0)?;
    let at = t.memory().len as u64;
    t.send(fetch_add(t, 1, at, 1))?;
    t.expect_refused(RemoteAccess, 1)
}
