//! When to yield the processor while looking for work.
//!
//! The daemon yields while it looks for work, and programs while they poll: where cores are scarce
//! they take turns within microseconds. Who never yields, such as a program that computes, gives
//! the processor back with the next tick of the clock only. Then the daemon had better sleep, for
//! whoever is woken up gets the processor soon, and a program had better keep what it has.

use std::time::{Duration, Instant};

/// How long the processor may be away after it was yielded: others that yield give it back within
/// microseconds, those that do not keep it until the clock ticks, every 1 to 10 ms.
pub const YIELD_MAX: Duration = Duration::from_micros(500);

/// How long it is not yielded again after that, at first.
pub const YIELD_PAUSE: Duration = Duration::from_millis(100);

/// The pause doubles with each further yield that takes too long, up to this: a kernel that takes
/// a yield for the whole turn (Linux from 6.18 on) gives the processor back after 50 ms and more.
pub const MAX_YIELD_PAUSE: Duration = Duration::from_secs(2);

/// Remembers how yielding went.
#[derive(Clone, Copy, Debug, Default)]
pub struct YieldPolicy {
    /// Yields in a row that took too long. One alone may be anybody's.
    slow: u32,
    /// How long it was not yielded last time.
    pause: Duration,
    /// When to yield again; at once if `None`.
    again: Option<Instant>,
}

impl YieldPolicy {
    /// The initial state.
    pub const fn new() -> YieldPolicy {
        YieldPolicy { slow: 0, pause: Duration::ZERO, again: None }
    }

    /// Whether to yield.
    pub fn is_due(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| again <= now)
    }

    /// The processor was yielded, and came back after so long.
    pub fn on_yield(&mut self, now: Instant, away: Duration) {
        if away <= YIELD_MAX {
            *self = YieldPolicy::new();
            return;
        }
        self.slow = self.slow.saturating_add(1);
        if self.slow > 1 {
            self.pause(now);
        }
    }

    /// Yields no more for a while, for longer than last time.
    pub fn pause(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(YIELD_PAUSE, MAX_YIELD_PAUSE);
        self.again = Some(now + self.pause);
    }

    /// Whether there was a pause since the processor last came back soon.
    pub fn has_paused(&self) -> bool {
        self.again.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yielding_pauses_where_the_processor_does_not_come_back_soon() {
        let (start, slow, quick) = (Instant::now(), 2 * YIELD_MAX, YIELD_MAX / 2);
        let mut yield_policy = YieldPolicy::new();
        assert!(yield_policy.is_due(start));
        for away in [slow, quick, slow] {
            yield_policy.on_yield(start, away);
            assert!(yield_policy.is_due(start), "one alone is an accident");
        }
        yield_policy.on_yield(start, slow);
        assert!(!yield_policy.is_due(start));
        // Then once to see whether it is better now, more and more seldom.
        let (mut now, mut pause) = (start + YIELD_PAUSE, YIELD_PAUSE);
        for _ in 0..10 {
            assert!(yield_policy.is_due(now));
            yield_policy.on_yield(now, slow);
            pause = (2 * pause).min(MAX_YIELD_PAUSE);
            assert!(!yield_policy.is_due(now + pause - Duration::from_nanos(1)));
            now += pause;
        }
        // It is as if nothing had been.
        yield_policy.on_yield(now, quick);
        yield_policy.on_yield(now, slow);
        assert!(yield_policy.is_due(now));
        yield_policy.on_yield(now, slow);
        assert!(yield_policy.is_due(now + YIELD_PAUSE));
    }
}
