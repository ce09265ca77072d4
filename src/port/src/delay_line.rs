//! Things that wait for their time, and a path that things travel along in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Holds things until they are due, and gives them back in the order of their time; those of one
/// time in the order in which they came.
#[derive(Debug)]
pub(crate) struct DelayLine<T> {
    heap: BinaryHeap<Reverse<Waiting<T>>>,
    pushed: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    due: Instant,
    order: u64,
    item: T,
}

impl<T> DelayLine<T> {
    pub(crate) fn new() -> Self {
        DelayLine { heap: BinaryHeap::new(), pushed: 0 }
    }

    pub(crate) fn push(&mut self, due: Instant, item: T) {
        self.heap.push(Reverse(Waiting { due, order: self.pushed, item }));
        self.pushed += 1;
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(waiting)| waiting.due)
    }

    /// The next one, if it is due.
    pub(crate) fn peek_due(&self, now: Instant) -> Option<&T> {
        self.heap.peek().filter(|Reverse(w)| w.due <= now).map(|Reverse(w)| &w.item)
    }

    /// Takes the next one, if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        self.peek_due(now)?;
        self.heap.pop().map(|Reverse(waiting)| waiting.item)
    }
}

impl<T> Waiting<T> {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.order)
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// A path on which nothing overtakes, unless something is held back.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// When the last one that was not held back arrives.
    last_arrival: Option<Instant>,
}

impl Path {
    /// When something arrives that sets out at `now` and takes `delay`: not before those that set
    /// out earlier, unless these were `held` back, which lets the later ones pass.
    pub(crate) fn arrival(
        &mut self,
        now: Instant,
        delay: Duration,
        held: Option<Duration>,
    ) -> Instant {
        let arrival = self.last_arrival.map_or(now + delay, |last| last.max(now + delay));
        match held {
            Some(held) => arrival + held,
            None => {
                self.last_arrival = Some(arrival);
                arrival
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn drain(line: &mut DelayLine<u32>, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| line.pop_due(now)).collect()
    }

    #[test]
    fn nothing_comes_before_its_time_and_equals_keep_their_order() {
        let now = Instant::now();
        let mut line = DelayLine::new();
        line.push(now + 2 * MS, 1);
        line.push(now + MS, 2);
        line.push(now + MS, 3);
        assert_eq!(line.next_due(), Some(now + MS));
        assert!(drain(&mut line, now).is_empty());
        assert_eq!(drain(&mut line, now + MS), [2, 3]);
        assert_eq!(drain(&mut line, now + 2 * MS), [1]);
        assert_eq!(line.next_due(), None);
    }

    #[test]
    fn a_shorter_delay_overtakes_only_what_is_held_back() {
        let now = Instant::now();
        let mut path = Path::default();
        assert_eq!(path.arrival(now, 3 * MS, None), now + 3 * MS);
        assert_eq!(path.arrival(now, MS, None), now + 3 * MS, "kept behind the first");
        assert_eq!(path.arrival(now, MS, Some(5 * MS)), now + 8 * MS);
        assert_eq!(path.arrival(now, MS, None), now + 3 * MS, "passes the one held back");
    }
}
