//! When somebody who polls in vain asks the system whether there is a daemon.
//!
//! Polling calls nothing of the system, so whoever only polls would do so for ever when the daemon
//! is gone. To ask costs as much as some 30 empty polls, so it is done ten times a second.

use rustix::time::{ClockId, clock_gettime};

/// How long it is polled in vain, in milliseconds.
const INTERVAL_MS: i64 = 100;

/// When the daemon was last seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookout {
    seen_ms: i64,
}

impl Lookout {
    /// Of somebody who has never seen it.
    pub const fn new() -> Lookout {
        Lookout { seen_ms: i64::MIN }
    }

    /// Whether to look for it again. Where it is gone, every poll is to find that out from then on,
    /// so only who has found it says that it was [`seen`](Self::seen).
    #[inline]
    pub fn is_due(&self) -> bool {
        now_ms().saturating_sub(self.seen_ms) >= INTERVAL_MS
    }

    /// The daemon is there.
    pub fn seen(&mut self) {
        self.seen_ms = now_ms();
    }
}

/// A clock that costs next to nothing to look at, and goes in steps of a few milliseconds.
#[inline]
fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_daemon_that_was_seen_is_looked_for_again_after_a_while() {
        let mut lookout = Lookout::new();
        assert!(lookout.is_due());
        let before = Instant::now();
        lookout.seen();
        while !lookout.is_due() {}
        // The clock goes in steps.
        assert!(before.elapsed() > Duration::from_millis(INTERVAL_MS as u64 / 2));
        assert!(lookout.is_due(), "until it is seen");
    }
}
