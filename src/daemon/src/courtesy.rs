//! When to yield the processor while looking for work.
//!
//! Programs of our own library yield while they poll, and so does the daemon: where cores are
//! scarce they take turns within microseconds. A program that polls without ever yielding, as those
//! of stock rdma-core do, gives the processor back with the next tick of the clock only, and then
//! it is better to sleep: whoever is woken up gets it at once.

use crate::limits::{YIELD_MAX, YIELD_PAUSE};
use std::time::{Duration, Instant};

/// Remembers how yielding went.
pub(crate) struct Courtesy {
    /// Yields in a row that took too long. One alone may be anybody's.
    slow: u32,
    /// When to yield again.
    again: Instant,
}

impl Courtesy {
    pub(crate) fn new(now: Instant) -> Courtesy {
        Courtesy { slow: 0, again: now }
    }

    /// Whether to yield.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.again <= now
    }

    /// The processor was yielded, and came back after so long.
    pub(crate) fn came_back(&mut self, now: Instant, away: Duration) {
        self.slow = if away > YIELD_MAX { self.slow.saturating_add(1) } else { 0 };
        if self.slow > 1 {
            self.again = now + YIELD_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_yielded_to_who_does_not_give_the_processor_back() {
        let (start, slow, quick) = (Instant::now(), 2 * YIELD_MAX, YIELD_MAX / 2);
        let mut courtesy = Courtesy::new(start);
        assert!(courtesy.is_due(start));
        for away in [slow, quick, slow] {
            courtesy.came_back(start, away);
            assert!(courtesy.is_due(start), "one alone is an accident");
        }
        courtesy.came_back(start, slow);
        assert!(!courtesy.is_due(start));
        // Then once to see whether it is better now.
        let later = start + YIELD_PAUSE;
        assert!(courtesy.is_due(later));
        courtesy.came_back(later, slow);
        assert!(!courtesy.is_due(later));
        courtesy.came_back(later + YIELD_PAUSE, quick);
        courtesy.came_back(later + YIELD_PAUSE, slow);
        assert!(courtesy.is_due(later + YIELD_PAUSE));
    }
}
