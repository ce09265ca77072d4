//! Registered memory that is reached by system calls: what the daemon writes there while it was
//! being remapped would be lost, so it is not remapped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranges by where they begin, and in which order they came.
static COPIED: Mutex<Ranges> =
    Mutex::new(Ranges { ends: BTreeMap::new(), longest: 0, next_number: 0 });

struct Ranges {
    ends: BTreeMap<(u64, u64), u64>,
    /// As long as any of them, so that those that overlap something are found near to it.
    longest: u64,
    next_number: u64,
}

/// Nothing that is done with the lock held leaves the ranges half changed.
fn ranges() -> MutexGuard<'static, Ranges> {
    COPIED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range that the daemon reaches by system calls, for as long as this lives.
#[derive(Debug)]
pub struct Copied {
    key: (u64, u64),
}

impl Copied {
    /// To be had before the daemon is told of the range.
    pub fn new(addr: u64, len: u64) -> Copied {
        let mut ranges = ranges();
        let key = (addr, ranges.next_number);
        ranges.next_number += 1;
        ranges.longest = ranges.longest.max(len);
        ranges.ends.insert(key, addr.saturating_add(len));
        Copied { key }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        ranges().ends.remove(&self.key);
    }
}

/// Whether the daemon reaches any byte of this range by system calls.
pub(super) fn overlaps(range: &Range<u64>) -> bool {
    let ranges = ranges();
    let first = range.start.saturating_sub(ranges.longest);
    let mut near = ranges.ends.range((first, 0)..(range.end, 0));
    near.any(|(_, &end)| end > range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overlaps_is_found_until_it_is_gone() {
        // Addresses that no other test has.
        const BASE: u64 = 1 << 60;
        let long = Copied::new(BASE, 1 << 20);
        let short = Copied::new(BASE + 4096, 10);
        let again = Copied::new(BASE, 1 << 20);
        assert!(overlaps(&(BASE + 500_000..BASE + 500_001)));
        assert!(!overlaps(&(BASE - 10..BASE)));
        assert!(!overlaps(&(BASE + (1 << 20)..BASE + (1 << 21))));
        drop(long);
        assert!(overlaps(&(BASE + 500_000..BASE + 500_001)), "registered twice");
        drop(again);
        assert!(!overlaps(&(BASE + 500_000..BASE + 500_001)));
        assert!(overlaps(&(BASE..BASE + 4097)));
        assert!(!overlaps(&(BASE + 4106..BASE + 8000)));
        drop(short);
        assert!(!overlaps(&(BASE..BASE + 8000)));
    }
}
