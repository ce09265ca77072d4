//! The least of what was measured lately.

use std::time::{Duration, Instant};

/// How long half of the time is that [`Least`] remembers.
const HALF: Duration = Duration::from_secs(5);

/// The least round trip of the last 5 to 10 seconds: a way that has become longer is found out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Least {
    halves: Option<Halves>,
}

#[derive(Clone, Copy, Debug)]
struct Halves {
    since: Instant,
    /// The least since then.
    current: Duration,
    /// The least of the half before.
    previous: Duration,
}

impl Least {
    /// Takes a sample. Returns whether half of what was remembered ends with it.
    pub(super) fn on_sample(&mut self, now: Instant, sample: Duration) -> bool {
        match &mut self.halves {
            Some(halves) if now.duration_since(halves.since) < HALF => {
                halves.current = halves.current.min(sample);
                false
            }
            halves => {
                let previous = halves.map_or(sample, |halves| halves.current);
                *halves = Some(Halves { since: now, current: sample, previous });
                true
            }
        }
    }

    /// The least, once there was a sample.
    pub(super) fn get(&self) -> Option<Duration> {
        self.halves.map(|halves| halves.current.min(halves.previous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_forgotten_after_ten_seconds_and_not_before_five() {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let start = Instant::now();
        let micros = Duration::from_micros;
        let mut least = Least::default();
        assert_eq!(least.get(), None);
        least.on_sample(start, micros(20));
        for second in 1..5 {
            least.on_sample(start + Duration::from_secs(second), micros(90));
            assert_eq!(least.get(), Some(micros(20)));
        }
        for second in 5..=10 {
            least.on_sample(start + Duration::from_secs(second), micros(90));
        }
        assert_eq!(least.get(), Some(micros(90)));
        least.on_sample(start + Duration::from_secs(11), micros(30));
        assert_eq!(least.get(), Some(micros(30)));
    }
}
