//! Latency as a distribution.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times of single operations, with three significant digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

/// Anything slower counts as this: an operation that takes a minute has failed.
const MAX: Duration = Duration::from_secs(60);

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX.as_nanos() as u64, 3);
        Latencies(histogram.expect("the bounds are constants that a histogram takes"))
    }

    /// Adds the time of one operation.
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().min(MAX.as_nanos()).max(1) as u64);
    }

    /// How many operations there were.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The distribution as a curve of microseconds: a point is at `n` where one of `n` operations
    /// took longer, and the slowest of all where there are none slower than it.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        /// In each half of what is left to the slowest operation.
        const POINTS: u32 = 6;
        let most = self.0.len() as f64;
        let points = self.0.iter_quantiles(POINTS).map(|value| {
            let slower = 1. - value.quantile_iterated_to();
            ((1. / slower).min(most), value.value_iterated_to() as f64 / 1e3)
        });
        points.collect()
    }

    /// The distribution.
    pub(crate) fn summary(&self) -> LatencySummary {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        LatencySummary {
            min: us(self.0.min()),
            median: us(self.0.value_at_quantile(0.5)),
            mean: self.0.mean() / 1e3,
            p99: us(self.0.value_at_quantile(0.99)),
            p99_9: us(self.0.value_at_quantile(0.999)),
            max: us(self.0.max()),
        }
    }
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LatencySummary {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) mean: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_operations() {
        let mut latencies = Latencies::new();
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        let summary = latencies.summary();
        let about = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.002;
        assert_eq!(latencies.len(), 1000);
        assert!(about(summary.min, 1.0) && about(summary.max, 1000.0), "{summary:?}");
        assert!(about(summary.median, 500.0) && about(summary.p99, 990.0), "{summary:?}");
        assert!(about(summary.p99_9, 999.0) && about(summary.mean, 500.5), "{summary:?}");
    }

    #[test]
    fn a_curve_rises_to_the_slowest_operation() {
        let mut latencies = Latencies::new();
        assert!(latencies.curve().is_empty());
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let curve = latencies.curve();
        assert!(curve.is_sorted(), "{curve:?}");
        let about = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.002;
        let median = curve.iter().find(|point| point.0 >= 2.).unwrap();
        assert!(about(median.1, 500.0), "{median:?}");
        let last = curve.last().unwrap();
        assert!(last.0 == 1000. && about(last.1, 1000.0), "{last:?}");
    }

    #[test]
    fn no_time_is_outside_the_range() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(1 << 40));
        assert_eq!(latencies.len(), 2);
    }
}
