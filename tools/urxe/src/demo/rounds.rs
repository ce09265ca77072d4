//! What rounds of one operation and size add up to.

use super::message::Operation;
use super::program::window;
use crate::latency::{Latencies, LatencySummary};
use serde::Serialize;
use std::time::Duration;

/// Either part of a measurement, latency and bandwidth, ends after this time ...
const ENOUGH_TIME: Duration = Duration::from_millis(120);
/// ... or so many messages, whatever comes first; but there is one round of each.
const ENOUGH_MESSAGES: u64 = 20_000;

/// Figures in the making.
pub(super) struct Tally {
    operation: Operation,
    size: u32,
    latencies: Latencies,
    messages: u64,
    time: Duration,
}

/// What was measured of one operation in one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) op: Operation,
    /// Length of a message in bytes.
    pub(super) size: u32,
    /// Messages in all, each of them checked.
    pub(super) iterations: u64,
    /// With many messages under way.
    pub(super) bandwidth_gbit_s: f64,
    /// With many messages under way.
    pub(super) messages_per_s: f64,
    /// From post to completion, a full round trip, with one message under way.
    pub(super) latency_us: LatencySummary,
}

impl Tally {
    pub(super) fn new(operation: Operation, size: u32) -> Self {
        let (messages, time) = (0, Duration::ZERO);
        Tally { operation, size, latencies: Latencies::new(), messages, time }
    }

    /// Whether this part of the measurement may end.
    pub(super) fn is_enough(&self, one_by_one: bool, elapsed: Duration) -> bool {
        let messages = if one_by_one { self.latencies.len() } else { self.messages };
        messages >= u64::from(window(self.size))
            && (elapsed >= ENOUGH_TIME || messages >= ENOUGH_MESSAGES)
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

    /// What came out. There was at least one round of each part.
    pub(super) fn figures(&self) -> Figures {
        let messages_per_s = self.messages as f64 / self.time.as_secs_f64().max(1e-9);
        Figures {
            op: self.operation,
            size: self.size,
            iterations: self.messages + self.latencies.len(),
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
    fn there_is_at_least_one_round_of_each_part() {
        let mut tally = Tally::new(Operation::Write, 1 << 20);
        assert!(!tally.is_enough(false, Duration::MAX));
        tally.many(8, Duration::from_secs(1));
        assert!(tally.is_enough(false, Duration::MAX));
        assert!(!tally.is_enough(true, Duration::MAX));
    }
}
