//! The figures of the rounds of one operation and size.

use super::message::Operation;
use super::program::window;
use crate::latency::{Latencies, LatencySummary};
use serde::Serialize;
use std::time::Duration;

/// Rounds of one pace end after this time ...
const ENOUGH_TIME: Duration = Duration::from_millis(60);
/// ... or so many messages, whatever comes first.
const ENOUGH_MESSAGES: u64 = 20_000;

/// Messages of a round that are timed one by one, at most: on a machine with much else to do each
/// may take milliseconds.
const MAX_ONE_BY_ONE: u32 = 32;

/// How the messages of a round are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Each when the one before it has ended: shows the latency.
    OneByOne,
    /// All at once: shows the bandwidth.
    AllAtOnce,
}

impl Pace {
    /// Messages of a round.
    pub(super) fn messages(self, operation: Operation, size: u32) -> u32 {
        match self {
            Pace::OneByOne => window(operation, size).min(MAX_ONE_BY_ONE),
            Pace::AllAtOnce => window(operation, size),
        }
    }
}

/// Sums up rounds.
pub(super) struct Tally {
    operation: Operation,
    size: u32,
    latencies: Latencies,
    messages: u64,
    time: Duration,
    lost: u64,
}

/// What was measured of one operation in one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) op: Operation,
    /// Length of a message in bytes.
    pub(super) size: u32,
    /// Messages in all, each of those that arrived checked.
    pub(super) iterations: u64,
    /// Messages that did not arrive, on unreliable transports.
    pub(super) lost: u64,
    /// With many messages under way.
    pub(super) bandwidth_gbit_s: f64,
    /// With many messages under way.
    pub(super) messages_per_s: f64,
    /// From post to completion with one message under way: a full round trip, or on UC and UD
    /// until it was sent.
    pub(super) latency_us: LatencySummary,
}

impl Tally {
    pub(super) fn new(operation: Operation, size: u32) -> Self {
        let (messages, time) = (0, Duration::ZERO);
        Tally { operation, size, latencies: Latencies::new(), messages, time, lost: 0 }
    }

    /// Whether the rounds of this pace, which have taken `elapsed`, were enough.
    pub(super) fn is_enough(&self, pace: Pace, elapsed: Duration) -> bool {
        let messages = match pace {
            Pace::OneByOne => self.latencies.len(),
            Pace::AllAtOnce => self.messages,
        };
        elapsed >= ENOUGH_TIME || messages >= ENOUGH_MESSAGES
    }

    /// One message was posted and completed, with nothing else under way.
    pub(super) fn single(&mut self, time: Duration) {
        self.latencies.record(time);
    }

    /// Many were posted at once, and all completed after `time`.
    pub(super) fn many(&mut self, messages: u32, time: Duration) {
        self.messages += u64::from(messages);
        self.time += time;
    }

    /// So many messages of a round did not arrive.
    pub(super) fn lost(&mut self, messages: u32) {
        self.lost += u64::from(messages);
    }

    /// The figures. There was at least one round of each pace.
    pub(super) fn figures(&self) -> Figures {
        let messages_per_s = self.messages as f64 / self.time.as_secs_f64().max(1e-9);
        Figures {
            op: self.operation,
            size: self.size,
            iterations: self.messages + self.latencies.len(),
            lost: self.lost,
            bandwidth_gbit_s: messages_per_s * f64::from(self.size) * 8.0 / 1e9,
            messages_per_s,
            latency_us: self.latencies.summary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_bits_over_time() {
        let mut tally = Tally::new(Operation::Write, 1 << 20);
        tally.single(Duration::from_micros(500));
        for _ in 0..2 {
            tally.many(8, Duration::from_millis(8));
        }
        let figures = tally.figures();
        assert_eq!(figures.iterations, 17);
        assert!((figures.messages_per_s - 1000.0).abs() < 1e-6);
        assert!((figures.bandwidth_gbit_s - 8.388_608).abs() < 1e-6);
    }

    #[test]
    fn many_messages_are_enough_whatever_their_time() {
        let mut tally = Tally::new(Operation::Write, 1);
        assert!(!tally.is_enough(Pace::AllAtOnce, Duration::ZERO));
        assert!(tally.is_enough(Pace::AllAtOnce, ENOUGH_TIME));
        tally.many(20_000, Duration::from_millis(1));
        assert!(tally.is_enough(Pace::AllAtOnce, Duration::ZERO));
        assert!(!tally.is_enough(Pace::OneByOne, Duration::ZERO));
    }
}
