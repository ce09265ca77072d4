//! What checks make of devices that do what is allowed, and of such that do not.

use crate::Arrived;
use crate::packet::{Packet, atomic_response, not_ready, positive_ack, read_responses, refusal};
use crate::testing::{Model, finding, twisted};
use crate::verdict::Verdict::{self, Fail, NotSupported, Pass, Variation};
use urxe_types::PathMtu;
use urxe_wire::{NakCode, Opcode};

type Answer = Option<Vec<Packet>>;

/// What is said of a device with this twist.
fn verdict(
    name: &str,
    twist: impl FnMut(&mut Model, &Arrived, i32) -> Answer + 'static,
) -> Verdict {
    finding(name, &mut twisted(twist)).verdict
}

fn is(request: &Arrived, opcode: Opcode) -> bool {
    request.opcode() == opcode as u8
}

#[test]
fn a_device_without_a_twist_is_right() {
    for name in [
        "write/only-is-acknowledged",
        "read/in-packets",
        "read/takes-as-many-psns-as-responses",
        "acks/msn-counts-reads",
        "acks/msn-counts-atomics",
        "replays/a-read-is-answered-again",
    ] {
        assert_eq!(verdict(name, |_, _, _| None), Pass, "{name}");
    }
}

#[test]
fn atomics_are_optional_unless_the_device_says_that_it_has_them() {
    const NAMES: [&str; 6] = [
        "atomics/fetch-add-adds",
        "atomics/the-answer-is-bare",
        "atomics/wrong-key-is-refused",
        "atomics/past-the-end",
        "replays/an-atomics-repeat-has-the-first-msn",
        "acks/msn-counts-atomics",
    ];
    for (has_atomics, expected) in
        [(None, NotSupported), (Some(false), NotSupported), (Some(true), Fail)]
    {
        for name in NAMES {
            let mut device = twisted(|model, request, at| {
                is(request, Opcode::RC_FETCH_ADD).then(|| model.refuse(NakCode::InvalidRequest, at))
            });
            device.0.wire.borrow_mut().has_atomics = has_atomics;
            assert_eq!(finding(name, &mut device).verdict, expected, "{name}, {has_atomics:?}");
        }
    }
}

/// Answers a READ with this MSN in the first response, and this in the last.
fn with_msns(model: &mut Model, request: &Arrived, at: i32, first: u32, last: u32) -> Answer {
    if !is(request, Opcode::RC_READ_REQUEST) {
        return None;
    }
    let mut answers = model.read(request, at, last);
    let firsts = model.read(request, at, first);
    if answers.len() > 1 {
        answers[0] = firsts[0].clone();
    }
    model.next += answers.len() as i32;
    model.msn += 1;
    Some(answers)
}

#[test]
fn a_read_is_counted_in_its_last_response_at_the_latest() {
    for (first, last, expected) in
        [(0, 1, Pass), (1, 1, Pass), (0, 0, Fail), (1, 0, Fail), (2, 1, Fail), (1, 2, Fail)]
    {
        let found = verdict("read/in-packets", move |model, request, at| {
            with_msns(model, request, at, first, last)
        });
        assert_eq!(found, expected, "MSN {first} in FIRST, {last} in LAST");
    }
}

#[test]
fn answers_to_requests_that_came_at_once_may_count_all_of_them() {
    for (msn, expected) in [(3, Variation), (4, Fail)] {
        let found = verdict("read/takes-as-many-psns-as-responses", move |model, request, at| {
            with_msns(model, request, at, msn, msn)
        });
        assert_eq!(found, expected, "MSN {msn} of three requests");
    }
}

#[test]
fn a_repeated_atomic_may_have_the_msn_of_now() {
    for (msn, expected) in [(1, Pass), (2, Variation), (0, Fail), (3, Fail)] {
        let found = verdict("replays/an-atomics-repeat-has-the-first-msn", move |model, _, at| {
            (at < model.next).then(|| vec![atomic_response(at, msn, 0)])
        });
        assert_eq!(found, expected, "MSN {msn}");
    }
}

#[test]
fn parts_of_reads_that_no_requester_asks_for_may_be_ignored() {
    for name in ["replays/the-midst-of-a-read", "replays/a-read-from-its-start-after-its-rest"] {
        let mut repeats = 0;
        let is_midst = name.ends_with("midst-of-a-read");
        let silent = verdict(name, move |model, _, at| {
            let is_repeat = at < model.next;
            repeats += u32::from(is_repeat);
            (is_repeat && (is_midst || repeats == 2)).then(Vec::new)
        });
        assert_eq!(silent, Variation, "{name}");
        let other = verdict(name, |model, request, at| {
            let len = request.reth()?.2 as usize;
            (at < model.next).then(|| read_responses(at, &vec![9; len], PathMtu::Mtu1024, 1))
        });
        assert_eq!(other, Fail, "{name}: other data");
    }
}

#[test]
fn a_repeated_read_of_other_memory_brings_what_stands_there() {
    let name = "replays/a-read-of-other-memory";
    assert_eq!(verdict(name, |model, _, at| (at < model.next).then(Vec::new)), Pass);
    assert_eq!(verdict(name, |_, _, _| None), Variation);
    let first_again = verdict(name, |model, _, at| {
        let data = [0; 1000];
        (at < model.next).then(|| read_responses(at, &data, PathMtu::Mtu1024, 2))
    });
    assert_eq!(first_again, Fail);
}

/// A READ that is answered as far as it lies within, and refused there, after so many packets.
fn refused_after(name: &str, responses: usize) -> Verdict {
    verdict(name, move |model, request, at| {
        if !is(request, Opcode::RC_READ_REQUEST) || model.has_failed {
            return None;
        }
        let len = (responses + 1) * 1024;
        let mut answers = read_responses(at, &vec![0; len], PathMtu::Mtu1024, 0);
        answers.truncate(responses);
        answers.extend(model.refuse(NakCode::RemoteAccess, at + responses as i32));
        Some(answers)
    })
}

#[test]
fn a_read_is_refused_at_once_or_where_it_leaves_its_region() {
    for (name, within) in [("read/past-the-end", 2), ("read/of-two-gigabytes", 64)] {
        assert_eq!(refused_after(name, 0), Pass, "{name}");
        assert_eq!(refused_after(name, 1), Variation, "{name}");
        assert_eq!(refused_after(name, within), Variation, "{name}");
        assert_eq!(refused_after(name, within + 1), Fail, "{name}");
    }
}

#[test]
fn a_write_is_refused_at_once_or_where_it_leaves_its_region() {
    for (refused, expected) in [(0, Pass), (64, Variation), (63, Fail), (65, Fail)] {
        let found = verdict("memory/longer-than-the-region", move |model, _, at| {
            (at == refused && !model.has_failed).then(|| model.refuse(NakCode::RemoteAccess, at))
        });
        assert_eq!(found, expected, "refused at packet {refused}");
    }
}

#[test]
fn an_invalidation_that_is_not_allowed_fails_in_one_of_four_ways() {
    let name = "send/with-invalidate-of-a-region";
    let refused = |code| {
        verdict(name, move |model, _, at| (!model.has_failed).then(|| model.refuse(code, at)))
    };
    assert_eq!(refused(NakCode::RemoteAccess), Pass);
    assert_eq!(refused(NakCode::InvalidRequest), Variation);
    assert_eq!(refused(NakCode::RemoteOperational), Variation);
    assert_eq!(verdict(name, |_, _, _| Some(Vec::new())), Variation);
    assert_eq!(verdict(name, |_, _, _| None), Fail);
}

#[test]
fn an_rnr_nak_may_ask_for_more_time_than_the_qp_was_given() {
    for (name, code, expected) in [
        ("rnr/the-timer-is-the-qps", 21, Pass),
        ("rnr/the-timer-is-the-qps", 22, Variation),
        ("rnr/the-timer-is-the-qps", 0, Variation),
        ("rnr/the-timer-is-the-qps", 20, Fail),
        ("rnr/the-timer-0-is-the-longest", 0, Pass),
        ("rnr/the-timer-0-is-the-longest", 31, Fail),
        ("rnr/the-timer-0-is-the-longest", 1, Fail),
    ] {
        let found = verdict(name, move |_, _, at| Some(vec![not_ready(code, at, 0)]));
        assert_eq!(found, expected, "{name} with code {code}");
    }
}

#[test]
fn a_wrong_answer_is_noted_though_the_next_ones_are_right() {
    let mut requests = 0;
    let check = "write/only-is-acknowledged";
    let mut device = twisted(move |model, _, at| {
        requests += 1;
        (requests == 1).then(|| model.refuse(NakCode::RemoteAccess, at))
    });
    let check = super::all().find(|other| other.name == check).unwrap();
    let plan = crate::run::Plan::default();
    let found = crate::run::play(check, &mut device.0, &mut device.1, &plan);
    assert_eq!((found.verdict, found.attempts, found.passed), (Variation, 3, 2));
    assert!(found.seen.contains("remote access"), "{}", found.seen);
}

#[test]
fn a_sequence_error_and_another_place_may_be_the_networks() {
    for answer in [refusal(NakCode::SequenceError, 0, 0), positive_ack(-1, 0)] {
        let mut requests = 0;
        let mut device = twisted(move |_, _, _| {
            requests += 1;
            (requests == 1).then(|| vec![answer.clone()])
        });
        let check = super::all().find(|other| other.name == "read/only").unwrap();
        let plan = crate::run::Plan::default();
        let found = crate::run::play(check, &mut device.0, &mut device.1, &plan);
        assert_eq!(found.verdict, Pass, "{}", found.seen);
    }
}
