//! How many messages there were when, for a picture of bandwidth over time.

use std::time::Duration;

/// Samples of a run; when there are so many, every other one is dropped.
const MAX_SAMPLES: usize = 128;

/// The time between the first samples.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);

/// Samples of a run, whose length need not be known: few enough for any length.
#[derive(Debug)]
pub(super) struct Samples {
    interval: Duration,
    /// When the next one is due, after the beginning.
    next: Duration,
    /// Messages since the beginning, and when.
    taken: Vec<(Duration, u64)>,
}

impl Samples {
    pub(super) fn new() -> Self {
        let taken = Vec::with_capacity(MAX_SAMPLES);
        Samples { interval: FIRST_INTERVAL, next: FIRST_INTERVAL, taken }
    }

    /// Takes a sample, if it is due after `elapsed`.
    pub(super) fn tick(&mut self, elapsed: Duration, sample: impl FnOnce() -> (Duration, u64)) {
        if elapsed < self.next {
            return;
        }
        if self.taken.len() == MAX_SAMPLES {
            self.interval *= 2;
            // Those that stay are the ones at the ends of the longer intervals.
            let mut index = 0;
            self.taken.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.taken.push(sample());
        self.next = elapsed + self.interval;
    }

    /// Gbit/s over seconds, of messages of `size` bytes, of which there were so many when all had
    /// ended.
    pub(super) fn gbit_s(mut self, size: u32, elapsed: Duration, messages: u64) -> Vec<(f64, f64)> {
        // What is left at the end is often too short to say anything by itself.
        let begun =
            |samples: &[(Duration, u64)]| samples.last().map_or(Duration::ZERO, |all| all.0);
        if elapsed.saturating_sub(begun(&self.taken)) < self.interval / 2 {
            self.taken.pop();
        }
        self.taken.push((elapsed, messages));
        let mut before = (Duration::ZERO, 0);
        let mut points = Vec::with_capacity(self.taken.len());
        for (at, messages) in self.taken {
            let seconds = at.saturating_sub(before.0).as_secs_f64().max(1e-9);
            let bits = (messages - before.1) as f64 * f64::from(size) * 8.;
            points.push(((before.0 + at).as_secs_f64() / 2., bits / seconds * 1e-9));
            before = (at, messages);
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of 125 bytes in this many milliseconds, one each microsecond: 1 Gbit/s.
    fn run(milliseconds: u64) -> Vec<(f64, f64)> {
        let mut samples = Samples::new();
        for us in (0..milliseconds * 1000).step_by(10) {
            let now = Duration::from_micros(us);
            samples.tick(now, || (now, us));
        }
        let us = milliseconds * 1000;
        samples.gbit_s(125, Duration::from_micros(us), us)
    }

    #[test]
    fn a_steady_rate_is_the_same_at_all_times_in_runs_of_any_length() {
        for milliseconds in [1, 3, 128, 129, 1000, 20_000] {
            let points = run(milliseconds);
            assert!((1..=MAX_SAMPLES + 1).contains(&points.len()), "{milliseconds}");
            let is_steady = |point: &(f64, f64)| (point.1 - 1.).abs() < 1e-6;
            assert!(points.iter().all(is_steady), "{milliseconds}: {points:?}");
            assert!(points.is_sorted_by(|a, b| a.0 < b.0), "{milliseconds}: {points:?}");
        }
    }

    #[test]
    fn a_rest_that_is_too_short_counts_with_the_sample_before_it() {
        let mut samples = Samples::new();
        let ms = Duration::from_millis;
        samples.tick(ms(1), || (ms(1), 1000));
        samples.tick(ms(2), || (ms(2), 2000));
        let points = samples.gbit_s(125, Duration::from_micros(2001), 2001);
        assert_eq!(points.len(), 2, "{points:?}");
    }

    #[test]
    fn a_run_without_time_or_messages_has_a_point() {
        let points = Samples::new().gbit_s(64, Duration::ZERO, 0);
        assert_eq!(points, [(0., 0.)]);
    }
}
