//! Registered memory that is reached by system calls: what the daemon writes there while it was
//! being remapped would be lost, so it is not remapped.

use super::locked::Locked;
use std::collections::BTreeMap;
use std::ops::Range;

/// All ranges that are reached so, by where they begin, and in which order they came.
pub(super) struct CopiedRanges {
    ends: BTreeMap<(u64, u64), u64>,
    /// As long as any of them, so that those that overlap something are found near to it.
    longest: u64,
    next_number: u64,
}

impl CopiedRanges {
    pub(super) const fn new() -> CopiedRanges {
        CopiedRanges { ends: BTreeMap::new(), longest: 0, next_number: 0 }
    }

    fn insert(&mut self, addr: u64, len: u64) -> (u64, u64) {
        let key = (addr, self.next_number);
        self.next_number += 1;
        self.longest = self.longest.max(len);
        self.ends.insert(key, addr.saturating_add(len));
        key
    }

    /// Whether the daemon reaches any byte of this range by system calls.
    pub(super) fn overlap(&self, range: &Range<u64>) -> bool {
        let first = range.start.saturating_sub(self.longest);
        let mut near = self.ends.range((first, 0)..(range.end, 0));
        near.any(|(_, &end)| end > range.start)
    }
}

/// A range that the daemon reaches by system calls, for as long as this lives.
#[derive(Debug)]
pub struct Copied {
    /// `None` if it was registered by a signal handler that interrupted remapping.
    key: Option<(u64, u64)>,
}

impl Copied {
    /// To be had before the daemon is told of the range. Waits until nothing is being remapped.
    pub fn new(addr: u64, len: u64) -> Copied {
        Copied { key: Locked::state().map(|mut state| state.copied.insert(addr, len)) }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && let Some(mut state) = Locked::state()
        {
            state.copied.ends.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overlaps_is_found_until_it_is_gone() {
        // Addresses that no other test has.
        const BASE: u64 = 1 << 60;
        let overlaps = |range| Locked::state().unwrap().copied.overlap(&range);
        let long = Copied::new(BASE, 1 << 20);
        let short = Copied::new(BASE + 4096, 10);
        let again = Copied::new(BASE, 1 << 20);
        assert!(overlaps(BASE + 500_000..BASE + 500_001));
        assert!(!overlaps(BASE - 10..BASE));
        assert!(!overlaps(BASE + (1 << 20)..BASE + (1 << 21)));
        drop(long);
        assert!(overlaps(BASE + 500_000..BASE + 500_001), "registered twice");
        drop(again);
        assert!(!overlaps(BASE + 500_000..BASE + 500_001));
        assert!(overlaps(BASE..BASE + 4097));
        assert!(!overlaps(BASE + 4106..BASE + 8000));
        drop(short);
        assert!(!overlaps(BASE..BASE + 8000));
    }
}
