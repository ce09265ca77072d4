//! Times in which the loop refrains from something.

use std::time::{Duration, Instant};

/// A time in which something is not done because it did harm: twice as long each time, unless that
/// has become rare.
pub(super) struct Pause {
    until: Instant,
    length: Duration,
}

impl Pause {
    pub(super) fn over(now: Instant) -> Pause {
        Pause { until: now, length: Duration::ZERO }
    }

    /// How long it has been over.
    pub(super) fn over_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.until)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Begins anew. It is rare if all went well for `well`, so many times as long as the last one.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        (well, times): (Duration, u32),
        bounds: [Duration; 2],
    ) {
        let is_rare = well > self.length * times;
        let length = if is_rare { Duration::ZERO } else { self.length * 2 };
        self.length = length.clamp(bounds[0], bounds[1]);
        self.until = now + self.length;
    }
}
