//! How often something is logged: what is caused again and again is said some times, then now and
//! then, with how often it was not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many of a kind are logged at once after a pause.
pub const BURST: u32 = 20;

/// In this time there is room for one more of a kind.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Kinds that are known at a time. Beyond these nothing is logged of further ones, until one of
/// them has been silent for long enough.
const MAX_KINDS: usize = 4096;

/// What of each kind is logged: a token bucket for each.
#[derive(Debug)]
pub struct RateLimit<K> {
    kinds: BTreeMap<K, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When there is room for all of [`BURST`] again.
    full_at: Instant,
    /// Those that were not logged since the last that was.
    unlogged: u64,
}

impl<K> Default for RateLimit<K> {
    fn default() -> RateLimit<K> {
        RateLimit { kinds: BTreeMap::new() }
    }
}

impl<K: Ord> RateLimit<K> {
    /// Whether one more of a kind is to be logged now; then with how many were not since the last.
    /// `unlogged` more before this one were left out by somebody else.
    pub fn admit(&mut self, now: Instant, kind: K, unlogged: u64) -> Option<u64> {
        if self.kinds.len() >= MAX_KINDS && !self.kinds.contains_key(&kind) {
            self.kinds.retain(|_, bucket| bucket.full_at > now);
            if self.kinds.len() >= MAX_KINDS {
                return None;
            }
        }
        let new = Bucket { full_at: now, unlogged: 0 };
        let bucket = self.kinds.entry(kind).or_insert(new);
        bucket.unlogged = bucket.unlogged.saturating_add(unlogged);
        let full_at = bucket.full_at.max(now) + INTERVAL;
        // LOG-001
        if full_at > now + INTERVAL * BURST {
            bucket.unlogged = bucket.unlogged.saturating_add(1);
            return None;
        }
        bucket.full_at = full_at;
        Some(std::mem::take(&mut bucket.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many are logged at once, and what the first of them says of others.
    fn admitted(limit: &mut RateLimit<u32>, now: Instant, kind: u32, count: u32) -> (usize, u64) {
        let admitted: Vec<u64> = (0..count).filter_map(|_| limit.admit(now, kind, 0)).collect();
        (admitted.len(), admitted.first().copied().unwrap_or(0))
    }

    #[test]
    fn a_kind_is_logged_some_times_at_once_and_then_at_intervals() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let burst = BURST as usize;
        assert_eq!(admitted(&mut limit, start, 7, 10_000), (burst, 0));
        let nearly = start + INTERVAL - Duration::from_nanos(1);
        assert_eq!(limit.admit(nearly, 7, 0), None);
        assert_eq!(admitted(&mut limit, start + INTERVAL, 7, 10), (1, 10_000 - 20 + 1));
        assert_eq!(admitted(&mut limit, start + INTERVAL * 3, 7, 10), (2, 9));
        let later = start + INTERVAL * 1000;
        assert_eq!(admitted(&mut limit, later, 7, 100), (burst, 8), "no more than the burst");
    }

    #[test]
    fn each_kind_has_room_of_its_own() {
        let (mut limit, now) = (RateLimit::default(), Instant::now());
        admitted(&mut limit, now, 7, 1000);
        assert_eq!(limit.admit(now, 8, 0), Some(0));
        assert_eq!(limit.admit(now, 7, 0), None);
    }

    #[test]
    fn events_that_were_left_out_elsewhere_are_told_too() {
        let (mut limit, now) = (RateLimit::default(), Instant::now());
        assert_eq!(limit.admit(now, 7, 5), Some(5));
        admitted(&mut limit, now, 7, BURST - 1);
        assert_eq!(limit.admit(now, 7, u64::MAX - 2), None);
        assert_eq!(limit.admit(now + INTERVAL, 7, 9), Some(u64::MAX));
    }

    #[test]
    fn there_are_only_so_many_kinds_and_silent_ones_make_room() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let kinds = MAX_KINDS as u32;
        assert!((0..kinds).all(|kind| limit.admit(start, kind, 0).is_some()));
        assert_eq!(limit.admit(start, kinds, 0), None);
        assert_eq!(limit.admit(start, 0, 0), Some(0), "one that is known goes on");
        let later = start + INTERVAL;
        assert_eq!(limit.admit(later, kinds, 0), Some(0));
        assert_eq!(limit.kinds.len(), 2, "the one that is not full again, and the new one");
    }
}
