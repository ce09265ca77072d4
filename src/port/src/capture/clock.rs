//! Times of a calendar.

use std::time::{Instant, SystemTime};

/// Turns the times that a port is called with into those of a calendar.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    instant: Instant,
    /// Nanoseconds between 1970 and `instant`.
    nanoseconds: u64,
}

impl Clock {
    /// A clock for which these are the same moment.
    pub fn new(now: Instant, wall: SystemTime) -> Clock {
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { instant: now, nanoseconds: since_1970.as_nanos() as u64 }
    }

    /// Nanoseconds between 1970 and a moment.
    pub fn nanoseconds(&self, now: Instant) -> u64 {
        self.nanoseconds + now.saturating_duration_since(self.instant).as_nanos() as u64
    }
}
