//! Which causes were told, and how often they came again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Causes that are told one by one.
pub(super) const MOST_CAUSES: usize = 128;

/// No cause has this key.
const NONE: u64 = 0;

/// The causes of a process. It is asked from any thread and any signal handler: no lock.
pub(super) struct Repeats {
    causes: [Cause; MOST_CAUSES],
    /// Those for which there was no room.
    others: AtomicU64,
}

struct Cause {
    key: AtomicU64,
    count: AtomicU64,
}

/// What is to be said of a cause that has come just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It was never told.
    First,
    /// It was, and has come so often by now that this is said.
    Again(u64),
    /// It was, and is counted.
    Counted,
    /// There is no room for another, for the first time.
    NoRoom,
}

/// The key of a cause.
pub(crate) fn key_of(cause: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    cause.hash(&mut hasher);
    hasher.finish().max(NONE + 1)
}

impl Repeats {
    pub(super) const fn new() -> Repeats {
        Repeats {
            causes: [const { Cause { key: AtomicU64::new(NONE), count: AtomicU64::new(0) } };
                MOST_CAUSES],
            others: AtomicU64::new(0),
        }
    }

    /// Takes note of a cause.
    pub(super) fn note(&self, key: u64) -> Turn {
        // WHY-002
        for cause in &self.causes {
            let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
            let known = match cause.key.compare_exchange(NONE, key, set, unset) {
                Ok(_) => key,
                Err(known) => known,
            };
            if known == key {
                return match cause.count.fetch_add(1, Ordering::Relaxed) + 1 {
                    1 => Turn::First,
                    count if is_power_of_ten(count) => Turn::Again(count),
                    _ => Turn::Counted,
                };
            }
        }
        match self.others.fetch_add(1, Ordering::Relaxed) {
            0 => Turn::NoRoom,
            _ => Turn::Counted,
        }
    }
}

fn is_power_of_ten(count: u64) -> bool {
    count.checked_ilog10().is_some_and(|digits| 10u64.pow(digits) == count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_and_then_at_each_power_of_ten() {
        let repeats = Repeats::new();
        assert_eq!(repeats.note(7), Turn::First);
        assert_eq!(repeats.note(8), Turn::First);
        let turns: Vec<Turn> = (2..=1000).map(|_| repeats.note(7)).collect();
        let told: Vec<_> = turns.into_iter().filter(|turn| *turn != Turn::Counted).collect();
        assert_eq!(told, [10, 100, 1000].map(Turn::Again));
    }

    #[test]
    fn causes_beyond_the_table_are_told_of_once_all_together() {
        let repeats = Repeats::new();
        for key in 1..=MOST_CAUSES as u64 {
            assert_eq!(repeats.note(key), Turn::First);
        }
        assert_eq!(repeats.note(u64::MAX), Turn::NoRoom);
        assert_eq!(repeats.note(u64::MAX), Turn::Counted);
        assert_eq!(repeats.note(1), Turn::Counted, "it is still known");
    }

    #[test]
    fn every_cause_has_a_key() {
        assert_ne!(key_of(&""), NONE);
        assert_eq!(key_of(&"one"), key_of(&"one"));
        assert_ne!(key_of(&"one"), key_of(&"two"));
    }
}
