//! Times that are written down.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A time as what lies between it and another one, which whoever reads it knows too: an [`Instant`]
/// means nothing outside of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeOffset {
    /// In nanoseconds; negative if it is before the other one.
    nanos: i64,
}

impl TimeOffset {
    /// A time, seen from another one.
    pub fn of(time: Instant, from: Instant) -> TimeOffset {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let (after, before) =
            (time.saturating_duration_since(from), from.saturating_duration_since(time));
        TimeOffset { nanos: nanos(after) - nanos(before) }
    }

    /// That time again. One that no clock shows is the other time itself.
    pub fn from(self, from: Instant) -> Instant {
        let span = Duration::from_nanos(self.nanos.unsigned_abs());
        let time = if self.nanos < 0 { from.checked_sub(span) } else { from.checked_add(span) };
        time.unwrap_or(from)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "some time to begin with")]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_found_again_from_another_one_before_or_behind_it() {
        let from = Instant::now();
        for (before, after) in [(0, 0), (3, 0), (0, 7_000_000_000)] {
            let time = from + Duration::from_nanos(after) - Duration::from_nanos(before);
            assert_eq!(TimeOffset::of(time, from).from(from), time);
        }
    }

    #[test]
    fn a_time_that_no_clock_shows_is_none_that_fails() {
        let from = Instant::now();
        for nanos in [i64::MIN, i64::MAX] {
            let _ = TimeOffset { nanos }.from(from);
        }
    }
}
