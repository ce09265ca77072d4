//! What happened to a QP: what one asks for when it has failed.
//!
//! Ordinary traffic is counted only. A change of state, the first packet of the peer, and whatever
//! else is counted (a retry, a NAK, a drop) is an entry with its time; what comes again and again
//! is one entry that says how often and for how long. So a history is short, costs nothing while
//! all goes well, and is kept for every QP. What traffic there was between two entries, the
//! counters say as they stood at each.

use crate::cause::Cause;
use crate::counters::{Counter, LazyCounters};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use urxe_types::{Completion, Posted, QpState, Traffic, WcOpcode, WcStatus};

/// Entries that one history has at most.
pub const MAX_HISTORY_ENTRIES: usize = MAX_KEPT + 3;

/// The same without those of the first way to RTS.
const MAX_KEPT: usize = 45;

/// How many of the newest entries something may be a repeat of.
const LOOK_BACK: usize = 6;

/// Something that happened to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The program took it to this state.
    Modified(QpState),
    /// It failed, and went to this state.
    Failed(QpState, Cause),
    /// The first packet came for it.
    Heard,
    /// This was counted.
    Counted(Counter),
}

/// What happened to a QP, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When it happened first.
    pub at: Instant,
    /// From then to the last time that it is an entry of, in microseconds.
    span_us: u32,
    /// How often it happened.
    pub times: u32,
    /// What happened.
    pub what: Happening,
    /// What had been counted then.
    pub traffic: Traffic,
}

/// The ordinary traffic of a QP, by what was counted of it.
pub fn traffic(counted: impl Fn(Counter) -> u64) -> Traffic {
    Traffic {
        sent_packets: counted(Counter::SentPackets),
        received_packets: counted(Counter::ReceivedPackets),
        sent_messages: counted(Counter::SentMessages),
        received_messages: counted(Counter::ReceivedMessages),
        posted: Posted {
            sends: counted(Counter::PostedSends),
            writes: counted(Counter::PostedWrites),
            reads: counted(Counter::PostedReads),
            atomics: counted(Counter::PostedAtomics),
            flushes: counted(Counter::PostedFlushes),
            local: counted(Counter::PostedLocal),
        },
    }
}

impl HistoryEntry {
    /// How long after the first time the last one was.
    pub fn span(&self) -> Duration {
        Duration::from_micros(self.span_us.into())
    }
}

/// A work request that ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// When.
    pub at: Instant,
    /// Its kind.
    pub opcode: WcOpcode,
    /// The program's own number of it.
    pub wr_id: u64,
    /// Its bytes, if it was a send.
    pub length: u32,
    /// What its completion says.
    pub status: WcStatus,
    /// The number of its cause.
    pub vendor_err: u32,
}

/// What happened to one QP.
#[derive(Clone, Debug, Default)]
pub struct History {
    set_up: SetUp,
    /// What came behind that.
    kept: Option<Box<Kept>>,
}

/// How a QP was set up, and when it was heard of last: all that there is to tell of most of very
/// many QPs, so this is small.
#[derive(Clone, Copy, Debug)]
struct SetUp {
    /// When it went to INIT.
    began: Option<Instant>,
    /// How long after that it went to RTR, in microseconds.
    rtr_us: u32,
    /// The same of RTS.
    rts_us: u32,
    /// The same of the last packet that came, in milliseconds.
    heard_ms: u32,
    /// Bytes of the longest message of the send queue that was done.
    longest_done: u32,
}

/// What has not happened yet.
const NEVER: u32 = u32::MAX;

impl Default for SetUp {
    fn default() -> SetUp {
        SetUp { began: None, rtr_us: NEVER, rts_us: NEVER, heard_ms: NEVER, longest_done: 0 }
    }
}

impl SetUp {
    /// Takes note of a state, if it is the next on the way to RTS. Returns whether it was.
    fn advance(&mut self, now: Instant, to: QpState) -> bool {
        let since = |began: Instant| saturated((now - began).as_micros()).min(NEVER - 1);
        match (to, self.began) {
            (QpState::Init, None) => self.began = Some(now),
            (QpState::Rtr, Some(began)) if self.rtr_us == NEVER => self.rtr_us = since(began),
            (QpState::Rts, Some(began)) if self.rtr_us != NEVER && self.rts_us == NEVER => {
                self.rts_us = since(began);
            }
            _ => return false,
        }
        true
    }

    fn entries(self) -> impl Iterator<Item = HistoryEntry> {
        let steps = [(QpState::Init, 0), (QpState::Rtr, self.rtr_us), (QpState::Rts, self.rts_us)];
        let steps = steps.into_iter().filter(|&(_, us)| us != NEVER);
        self.began.into_iter().flat_map(move |began| {
            steps.clone().map(move |(state, us)| HistoryEntry {
                at: began + Duration::from_micros(us.into()),
                span_us: 0,
                times: 1,
                what: Happening::Modified(state),
                traffic: Traffic::default(),
            })
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Kept {
    entries: VecDeque<HistoryEntry>,
    left_out: u32,
    failed: Option<Box<FailedRequest>>,
    /// That was before the QP was reset and set up again.
    is_of_before: bool,
}

impl Kept {
    /// It fails again, since it was reset.
    fn forget_before(&mut self) {
        if std::mem::take(&mut self.is_of_before) {
            self.failed = None;
        }
    }
}

impl History {
    /// What happened, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = HistoryEntry> {
        self.set_up.entries().chain(self.kept().copied())
    }

    fn kept(&self) -> impl DoubleEndedIterator<Item = &HistoryEntry> {
        self.kept.iter().flat_map(|kept| &kept.entries)
    }

    /// Entries that there was no room for, behind those of the QP's first way to RTS.
    pub fn left_out(&self) -> u32 {
        self.kept.as_ref().map_or(0, |kept| kept.left_out)
    }

    /// When the last packet came for it, to the millisecond; `None`: never.
    pub fn heard(&self) -> Option<Instant> {
        let SetUp { began, heard_ms, .. } = self.set_up;
        let heard = began? + Duration::from_millis(heard_ms.into());
        (heard_ms != NEVER).then_some(heard)
    }

    /// Bytes of the longest message of the send queue that was done since the QP was set up last.
    pub fn longest_done(&self) -> u32 {
        self.set_up.longest_done
    }

    /// The first work request that ended badly, and was not only flushed. If the QP was reset and
    /// has failed again since, what failed then.
    pub fn failed_request(&self) -> Option<&FailedRequest> {
        self.kept.as_ref()?.failed.as_deref()
    }

    /// When it failed of itself and why, if it did: the last time.
    pub fn failure(&self) -> Option<(Instant, Cause)> {
        self.kept().rev().find_map(|entry| match entry.what {
            Happening::Failed(_, cause) => Some((entry.at, cause)),
            _ => None,
        })
    }

    /// Takes note of something, which may be a repeat.
    pub(super) fn record(
        &mut self,
        now: Instant,
        counters: &LazyCounters,
        what: Happening,
        times: u64,
    ) {
        // SHARE-010
        if let (Happening::Modified(to), None) = (what, &self.kept)
            && self.set_up.advance(now, to)
        {
            return;
        }
        let kept = &mut **self.kept.get_or_insert_default();
        // HISTORY-019
        match what {
            Happening::Modified(QpState::Init) => {
                kept.is_of_before = true;
                self.set_up.longest_done = 0;
            }
            Happening::Failed(..) => kept.forget_before(),
            _ => {}
        }
        let Kept { entries, left_out, .. } = kept;
        // HISTORY-002
        if let Happening::Counted(_) = what {
            let newest = entries.iter_mut().rev().take(LOOK_BACK);
            let mut newest = newest.take_while(|entry| matches!(entry.what, Happening::Counted(_)));
            if let Some(entry) = newest.find(|entry| entry.what == what) {
                entry.times = entry.times.saturating_add(saturated(times));
                entry.span_us = saturated((now - entry.at).as_micros());
                return;
            }
        }
        // HISTORY-003
        if entries.len() >= MAX_KEPT {
            entries.pop_front();
            *left_out = left_out.saturating_add(1);
        }
        if entries.is_empty() {
            // SHARE-010: most QPs never have another than that they were heard of.
            entries.reserve_exact(1);
        }
        let counters = counters.get();
        let (times, traffic) = (saturated(times), traffic(|counter| counters.get(counter)));
        // HISTORY-007
        entries.push_back(HistoryEntry { at: now, span_us: 0, times, what, traffic });
    }

    /// Takes note of what was counted, unless it is what a QP does all the time.
    #[inline]
    pub(super) fn count(
        &mut self,
        now: Instant,
        counters: &LazyCounters,
        counter: Counter,
        times: u64,
    ) {
        // HISTORY-001
        if !counter.is_ordinary() && times > 0 {
            self.record(now, counters, Happening::Counted(counter), times);
        }
    }

    /// Whether no packet has come for it yet.
    pub(super) fn is_unheard(&self) -> bool {
        self.set_up.heard_ms == NEVER
    }

    /// Takes note of a packet that came.
    #[inline]
    pub(super) fn hear(&mut self, now: Instant, counters: &LazyCounters) {
        let Some(began) = self.set_up.began else { return };
        let heard = saturated((now - began).as_millis()).min(NEVER - 1);
        if std::mem::replace(&mut self.set_up.heard_ms, heard) == NEVER {
            self.record(now, counters, Happening::Heard, 1);
        }
    }

    /// Takes note of a message of the send queue that was done.
    #[inline]
    pub(super) fn done(&mut self, length: u64) {
        let longest = &mut self.set_up.longest_done;
        *longest = saturated(length).max(*longest);
    }

    /// Takes note of a completion, if it is the first with an error. Those behind it tell little:
    /// they are flushed.
    pub(super) fn complete(&mut self, now: Instant, completion: &Completion) {
        let &Completion { opcode, wr_id, byte_len: length, status, vendor_err, .. } = completion;
        if !matches!(status, WcStatus::Success | WcStatus::WrFlush) {
            let kept = self.kept.get_or_insert_default();
            kept.forget_before();
            // HISTORY-004
            kept.failed.get_or_insert_with(|| {
                Box::new(FailedRequest { at: now, opcode, wr_id, length, status, vendor_err })
            });
        }
    }
}

fn saturated(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    fn start() -> Instant {
        Instant::now()
    }

    fn counted(history: &History) -> Vec<(Counter, u32)> {
        let counted = |entry: &HistoryEntry| match entry.what {
            Happening::Counted(counter) => Some((counter, entry.times)),
            _ => None,
        };
        history.entries().filter_map(|entry| counted(&entry)).collect()
    }

    #[test]
    fn ordinary_traffic_leaves_no_entry() {
        let (now, mut history) = (start(), History::default());
        for counter in [Counter::SentPackets, Counter::AcksReceived, Counter::ReceivedBytes] {
            history.count(now, &LazyCounters::default(), counter, 1);
        }
        history.count(now, &LazyCounters::default(), Counter::Probes, 0);
        assert_eq!(history.entries().next(), None);
    }

    #[test]
    fn an_entry_says_what_traffic_there_had_been() {
        let (now, mut history, mut counters) =
            (start(), History::default(), LazyCounters::default());
        counters.add(Counter::SentPackets, 1204);
        counters.add(Counter::PostedWrites, 13);
        counters.add(Counter::SentMessages, 12);
        history.count(now, &counters, Counter::AckTimeouts, 1);
        counters.add(Counter::ReceivedPackets, 17);
        history.count(now, &counters, Counter::AckTimeouts, 1);
        history.count(now, &counters, Counter::RnrNaksReceived, 1);
        let posted = Posted { writes: 13, ..Posted::default() };
        let first = Traffic { sent_packets: 1204, sent_messages: 12, posted, ..Traffic::default() };
        let then = Traffic { received_packets: 17, ..first };
        let told: Vec<Traffic> = history.entries().map(|entry| entry.traffic).collect();
        assert_eq!(told, [first, then], "of a repeat, as it stood at the first time");
    }

    #[test]
    fn repeats_are_one_entry_until_the_state_changes() {
        let (begin, mut history) = (start(), History::default());
        for second in 0..100 {
            let now = begin + Duration::from_secs(second);
            history.count(now, &LazyCounters::default(), Counter::AckTimeouts, 1);
            history.count(now, &LazyCounters::default(), Counter::RetransmittedPackets, 3);
        }
        assert_eq!(
            counted(&history),
            [(Counter::AckTimeouts, 100), (Counter::RetransmittedPackets, 300)]
        );
        assert_eq!(history.entries().nth(1).unwrap().span(), Duration::from_secs(99));
        let now = begin + Duration::from_secs(100);
        history.record(now, &LazyCounters::default(), Happening::Modified(QpState::Sqd), 1);
        history.count(now, &LazyCounters::default(), Counter::AckTimeouts, 1);
        assert_eq!(counted(&history)[2], (Counter::AckTimeouts, 1));
    }

    #[test]
    fn a_long_history_keeps_its_beginning_and_its_end() {
        let (begin, mut history) = (start(), History::default());
        for state in [QpState::Init, QpState::Rtr] {
            history.record(begin, &LazyCounters::default(), Happening::Modified(state), 1);
        }
        for second in 0..1000 {
            let now = begin + Duration::from_secs(second);
            history.record(now, &LazyCounters::default(), Happening::Modified(QpState::Rts), 1);
            history.record(now, &LazyCounters::default(), Happening::Modified(QpState::Sqd), 1);
        }
        let end = begin + Duration::from_secs(1000);
        history.record(
            end,
            &LazyCounters::default(),
            Happening::Failed(QpState::Err, Cause::AckTimeout),
            1,
        );
        let entries: Vec<HistoryEntry> = history.entries().collect();
        assert_eq!(entries.len(), MAX_HISTORY_ENTRIES);
        assert_eq!(history.left_out() as usize + entries.len(), 2003);
        let first: Vec<Happening> = entries.iter().take(3).map(|entry| entry.what).collect();
        let set_up = [QpState::Init, QpState::Rtr, QpState::Rts];
        assert_eq!(first, set_up.map(Happening::Modified));
        assert!(entries.is_sorted_by_key(|entry| entry.at));
        assert_eq!(history.failure(), Some((end, Cause::AckTimeout)));
    }
}
