//! Whether the conformance checks find what is wrong: run on engines with a seeded fault each.
//!
//! `cargo xtask seeded` runs it, and shows which checks found which fault.

#![expect(clippy::print_stdout, reason = "the table is what one runs it for")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use urxe_conform::check::Check;
use urxe_conform::checks;
use urxe_conform::run::{Plan, play};
use urxe_conform::verdict::Verdict;
use urxe_engine::seeded::{self, Fault};
use urxe_port::sim::Link;
use urxe_spec_tests::conform::laboratory;

/// Each fault, and a check that fails because of it.
const FOUND_BY: &[(Fault, &str)] = &[
    (Fault::IcrcNotChecked, "icrc/wrong-is-dropped"),
    (Fault::PkeyNotChecked, "partition/other-is-dropped"),
    (Fault::LimitedMemberDropped, "partition/limited-member-is-taken"),
    (Fault::PadTakenForPayload, "lengths/write-of-small-lengths"),
    (Fault::ReplyOfOtherPartition, "acks/partition-is-the-connections"),
    (Fault::ReplyWithBecn, "acks/congestion-bits-are-0"),
    (Fault::ReplyAsksForAck, "acks/neither-solicited-nor-asking"),
    (Fault::AckMissing, "write/only-is-acknowledged"),
    (Fault::AckMissingAmidMessage, "acks/in-the-midst-of-a-message"),
    (Fault::AckBesideAnswer, "read/with-ackreq-draws-no-ack"),
    (Fault::AckPsnAhead, "write/in-packets-is-one-message"),
    (Fault::MsnCountsPackets, "write/in-packets-is-one-message"),
    (Fault::MsnWithoutSingles, "acks/msn-counts-reads"),
    (Fault::MsnCountsRefused, "naks/a-refused-message-does-not-count"),
    (Fault::GapNotTold, "psn/a-gap-is-told"),
    (Fault::SequenceNakRepeated, "psn/a-gap-is-told-once"),
    (Fault::NextGapNotTold, "psn/the-next-gap-is-told-again"),
    (Fault::NakPsnAhead, "psn/a-gap-is-told-without-ackreq"),
    (Fault::PsnWithoutWrap, "psn/wrap-inside-a-gap"),
    (Fault::PsnWindowQuarter, "psn/far-ahead-is-a-gap"),
    (Fault::PsnBeforeDropped, "duplicates/a-write-is-acknowledged-again"),
    (Fault::AccessErrorAsInvalidRequest, "write/wrong-key-is-refused"),
    (Fault::InvalidRequestAsOperational, "opcodes/write-first-inside-a-write"),
    (Fault::DuplicateSendDelivered, "duplicates/a-send-takes-no-second-receive"),
    (Fault::DuplicateWriteDone, "duplicates/a-write-is-not-done-again"),
    (Fault::DuplicateAtomicDone, "replays/a-fetch-add-is-not-done-again"),
    (Fault::DuplicateNotAcknowledged, "duplicates/a-send-is-acknowledged-again"),
    (Fault::DuplicateAtomicNotAnswered, "replays/a-compare-swap-is-not-done-again"),
    (Fault::DuplicateReadNotAnswered, "replays/a-read-is-answered-again"),
    (Fault::DuplicateReadFromItsStart, "replays/the-rest-of-a-read"),
    (Fault::PartWithoutFirstTaken, "opcodes/write-middle-without-first"),
    (Fault::StartInsideSendTaken, "opcodes/send-first-inside-a-send"),
    (Fault::OtherInsideMessageTaken, "opcodes/read-inside-a-write"),
    (Fault::FirstShortTaken, "lengths/write-first-short"),
    (Fault::FirstLongTaken, "lengths/write-middle-long"),
    (Fault::LastEmptyTaken, "lengths/send-last-empty"),
    (Fault::OnlyLongTaken, "lengths/write-only-long"),
    (Fault::DmaLengthNotChecked, "lengths/write-last-too-early"),
    (Fault::WriteRightNotChecked, "rights/write-where-only-reads-are-allowed"),
    (Fault::ReadRightNotChecked, "rights/read-where-only-writes-are-allowed"),
    (Fault::AtomicRightNotChecked, "rights/fetch-add-where-only-reads-and-writes-are-allowed"),
    (Fault::QpRightsNotChecked, "rights/qp-that-does-not-let-write"),
    (Fault::RegionRightsNotChecked, "rights/region-that-does-not-let-read"),
    (Fault::WriteBoundsNotChecked, "memory/past-the-end"),
    (Fault::ReadBoundsNotChecked, "read/past-the-end"),
    (Fault::AtomicBoundsNotChecked, "atomics/past-the-end"),
    (Fault::KeyLowByteNotChecked, "memory/key-with-another-low-byte"),
    (Fault::KeyOfNothingChecked, "lengths/write-of-nothing-with-a-wrong-key"),
    (Fault::FlushKeyNotChecked, "placement/flush-with-a-wrong-key"),
    (Fault::AtomicMisalignedTaken, "atomics/fetch-add-misaligned"),
    (Fault::CompareSwapSwapsOperands, "atomics/compare-swap-that-matches"),
    (Fault::AtomicReturnsNewValue, "atomics/fetch-add-adds"),
    (Fault::FetchAddOf32Bits, "atomics/fetch-add-wraps"),
    (Fault::RnrNotTold, "rnr/a-send-is-told"),
    (Fault::RnrTimerOfItsOwn, "rnr/the-timer-is-the-qps"),
    (Fault::RnrConsumesMessage, "rnr/the-next-psn-stays"),
    (Fault::ImmediateNeedsNoReceive, "rnr/immediate-data-is-told"),
    (Fault::ImmediateLost, "receives/immediate-data"),
    (Fault::ImmediateSwapped, "receives/write-with-immediate-data"),
    (Fault::ImmediateLengthLost, "receives/long-write-with-immediate-data"),
    (Fault::InvalidateNotDone, "windows/send-with-invalidate-closes-it"),
    (Fault::InvalidateNotChecked, "send/with-invalidate-of-an-unknown-key"),
    (Fault::TooLongAsProtectionError, "receives/too-long-send-is-a-local-length-error"),
    (Fault::ReadEndsWithMiddle, "read/in-packets"),
    (Fault::ReadGoesOnWithFirst, "read/path-mtu-256"),
    (Fault::ReadResponseShort, "read/of-full-packets"),
    (Fault::ReadResponsePsnStays, "read/of-one-byte-more"),
    (Fault::ReadTakesOnePsn, "read/takes-as-many-psns-as-responses"),
    (Fault::ReadsBeyondLimitTaken, "read/none-may-be-outstanding"),
    (Fault::WindowTwiceAsLong, "windows/nothing-outside-of-its-part"),
    (Fault::WindowRightsOfRegion, "windows/rights-are-those-of-the-bind"),
    (Fault::WindowOpensToOthers, "windows/type-2-is-of-its-qp"),
    (Fault::UcHoleTaken, "uc-responder/lost-middle-drops-the-message"),
    (Fault::UcStaysAtGap, "uc-responder/goes-on-after-a-gap"),
    (Fault::UdQkeyNotChecked, "ud-responder/wrong-key-is-dropped"),
    (Fault::UdWithoutGrh, "ud-responder/grh-has-the-addresses"),
    (Fault::UdAtStartOfReceive, "ud-responder/lies-behind-40-bytes"),
    (Fault::UdLengthWithoutGrh, "ud-responder/any-sender"),
    (Fault::UdTooLongCut, "ud-responder/too-long-for-its-receive"),
    (Fault::UdControlledQkeySent, "ud-requester/controlled-key-is-the-qps-own"),
    (Fault::UdAsksForAck, "ud-requester/asks-for-no-acknowledgement"),
    (Fault::UdSourceMissing, "ud-requester/send"),
    (Fault::MulticastToOne, "multicast/every-member-gets-a-copy"),
    (Fault::CnpForMarkable, "congestion/ecn-capable-is-not-marked"),
    (Fault::CnpWithoutBecn, "congestion/a-cnp-is-sound"),
    (Fault::AckReqMissing, "requester-send/last-packet-asks-for-an-acknowledgement"),
    (Fault::PsnSkipped, "requester-send/psns-follow-each-other"),
    (Fault::ReadRequestTakesOnePsn, "requester-read/takes-a-psn-for-each-response"),
    (Fault::SolicitedInAll, "requester-send/solicited-in-the-last-packet-only"),
    (Fault::MigreqCleared, "requester-send/migreq-is-set"),
    (Fault::ImmediateSentSwapped, "requester-send/immediate-in-one-packet"),
    (Fault::WriteAddressStays, "requester-write/long-one-covers-its-range-in-order"),
    (Fault::MaxRdAtomicExceeded, "requester-read/one-outstanding-at-most"),
    (Fault::FenceIgnored, "requester-read/fence-waits-for-the-answer"),
    (Fault::RetryCntOneLess, "requester-timeout/ends-after-retry-cnt"),
    (Fault::RetryCntSeven, "requester-timeout/without-retries-ends-at-once"),
    (Fault::RnrRetryOneMore, "requester-rnr/ends-after-rnr-retry"),
    (Fault::RnrSevenIsFinite, "requester-rnr/seven-is-for-ever"),
    (Fault::RnrUsesRetryCnt, "requester-rnr/does-not-use-up-retry-cnt"),
    (Fault::ProgressRestoresNothing, "requester-timeout/progress-gives-tries-back"),
    (Fault::TimeoutNever, "requester-timeout/ends-after-retry-cnt"),
    (Fault::TimeoutEarly, "requester-timeout/without-retries-ends-at-once"),
    (Fault::TimeoutOfCodeZero, "requester-timeout/code-0-waits-for-ever"),
    (Fault::RnrWaitShort, "requester-rnr/waits-its-timer"),
    (Fault::SequenceNakIgnored, "requester-sequence/repeats-from-the-missing-packet"),
    (Fault::SequenceNakAcknowledgesNothing, "requester-sequence/completes-what-is-before-it"),
    (Fault::SequenceNakRepeatsForEver, "requester-sequence/uses-up-the-tries"),
    (Fault::AckStandsForAnswer, "requester-read/plain-ack-is-no-answer"),
    (Fault::AtomicAnswerToAnythingTaken, "requester-response/atomic-answer-to-a-read"),
    (Fault::GhostAckTaken, "requester-ack/for-what-was-never-sent"),
    (Fault::PartEndsMessage, "requester-ack/of-the-midst-completes-nothing"),
    (Fault::ResponseLengthNotChecked, "requester-response/too-short"),
    (Fault::ResponseOrderNotChecked, "requester-response/last-without-first"),
    (Fault::ReservedSyndromeAcknowledges, "requester-nak/reserved-syndrome"),
    (Fault::AccessNakAsInvalidRequest, "requester-nak/remote-access-error"),
    (Fault::UnsignaledCompletes, "requester-ack/unsignaled-completes-nothing"),
    (Fault::UnsignaledErrorNotTold, "requester-nak/unsignaled-request-completes"),
    (Fault::UnsignaledNotFlushed, "states/err-flushes-unsignaled-sends"),
    (Fault::ReceivesNotFlushed, "states/err-flushes-in-order"),
    (Fault::ErrAnswers, "states/err-answers-nothing"),
    (Fault::SqdBeginsAnew, "states/sqd-ends-what-has-begun"),
    (Fault::SqdDrainedNotTold, "states/sqd-goes-on-in-rts"),
    (Fault::EstablishedToldAgain, "states/rtr-tells-of-the-first-packet"),
    (Fault::AccessErrorNotTold, "receives/access-error-is-told-of"),
    (Fault::RequestErrorNotTold, "receives/invalid-request-is-told-of"),
    (Fault::LastWqeNotTold, "srq/last-receive-is-told-of"),
    (Fault::SrqLimitNotTold, "srq/limit-is-told-once"),
    (Fault::SrqLimitToldAgain, "srq/limit-is-told-once"),
];

/// What the standard lets a device do, and most do not: the check that says so.
const VARIATIONS: &[(Fault, &str)] = &[
    (Fault::ReservedOpcodeDropped, "opcodes/reserved-0x15"),
    (Fault::DuplicateAtomicNewMsn, "replays/an-atomics-repeat-has-the-first-msn"),
    (Fault::ReadSeesLaterWrites, "read/before-a-write-to-the-same-place"),
    (Fault::RnrFollowedBySequenceNak, "rnr/requests-behind-are-silent"),
    (Fault::CnpNever, "congestion/a-marked-request-is-notified"),
    (Fault::CnpMarkable, "congestion/a-cnp-is-not-markable"),
    (Fault::EstablishedNotTold, "states/rtr-tells-of-the-first-packet"),
];

/// The verdicts of all checks on an engine with this fault, or on a right one.
fn verdicts(fault: Option<Fault>, seed: u64) -> BTreeMap<&'static str, Verdict> {
    let verdicts =
        checks::all().filter_map(|check| Some((check.name, verdict(check, fault, seed)?)));
    verdicts.collect()
}

thread_local! {
    /// Whether this thread runs an engine with a seeded fault.
    static IS_FAULTY: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of faulty engines out of the log: they are expected, and would hide another.
fn silence_faulty_engines() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_FAULTY.get() {
                say(panic);
            }
        }));
    });
}

/// The verdict of one of them. A faulty engine may end the simulation: that is no verdict.
fn verdict(check: &'static Check, fault: Option<Fault>, seed: u64) -> Option<Verdict> {
    silence_faulty_engines();
    IS_FAULTY.set(fault.is_some());
    seeded::set(fault);
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        let (mut link, mut device) = laboratory(seed, Link::default());
        // This network loses nothing: once is enough.
        let plan = Plan { attempts: 1, seed, ..Plan::default() };
        play(check, &mut link, &mut device, &plan).verdict
    }));
    seeded::set(None);
    IS_FAULTY.set(false);
    verdict.ok()
}

#[test]
fn every_fault_is_found_by_the_check_beside_it() {
    let right = verdicts(None, 1);
    let (mut table, mut missed) = (String::new(), Vec::new());
    let failing = FOUND_BY.iter().map(|&of_fault| (of_fault, Verdict::Fail));
    let varying = VARIATIONS.iter().map(|&of_fault| (of_fault, Verdict::Variation));
    for ((fault, beside), expected) in failing.chain(varying) {
        let faulty = verdicts(Some(fault), 1);
        let differs = |(name, verdict): &(&&str, &Verdict)| {
            **verdict == expected && right.get(**name) != Some(*verdict)
        };
        let mut found: Vec<&str> = faulty.iter().filter(differs).map(|(name, _)| *name).collect();
        if !found.contains(&beside) {
            missed.push(format!("{fault:?}: {beside}: {:?}", faulty.get(beside)));
        }
        found.retain(|&name| name != beside);
        _ = writeln!(table, "{fault:?}: {}\n    {expected}: {beside}", fault.says());
        if !found.is_empty() {
            let more = found.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            found.truncate(SHOWN);
            _ = writeln!(table, "    also {}{more}", found.join(", "));
        }
    }
    println!("{table}\n{} faults, {} checks", Fault::ALL.len(), right.len());
    assert!(missed.is_empty(), "{} not found\n{}", missed.len(), missed.join("\n"));
}

/// How many further checks the table names.
const SHOWN: usize = 4;

#[test]
fn the_tables_have_every_fault_once() {
    let mut named: Vec<Fault> =
        FOUND_BY.iter().chain(VARIATIONS).map(|of_fault| of_fault.0).collect();
    named.sort_unstable();
    assert_eq!(named, Fault::ALL, "in the order of the faults");
}

/// On a network that loses packets too: `tests/conformance.rs`.
#[test]
fn an_engine_without_a_fault_passes_all_checks_a_hundred_times() {
    for seed in 1..=100 {
        let verdicts = verdicts(None, seed);
        assert_eq!(verdicts.len(), checks::all().count());
        let is_wrong = |verdict: &Verdict| !matches!(verdict, Verdict::Pass | Verdict::Variation);
        let wrong: Vec<_> = verdicts.iter().filter(|(_, verdict)| is_wrong(verdict)).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
}
