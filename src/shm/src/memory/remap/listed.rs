//! Where memory is remapped, to be looked at without the lock of all ranges: the program's
//! allocator asks, by `madvise`, with a lock of its own that whoever holds ours may wait for.

use super::MAX_RANGES;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A range, or none if it ends at 0.
struct Slot {
    start: AtomicU64,
    end: AtomicU64,
}

static SLOTS: [Slot; MAX_RANGES] =
    [const { Slot { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; MAX_RANGES];

/// A range that is found for as long as this lives.
#[derive(Debug)]
pub(super) struct Listed {
    slot: usize,
}

impl Listed {
    /// To be had before anything of the range is copied: whoever has zeroed it before finds it, or
    /// the zeroes are copied. With the lock. `None` if there are too many.
    pub(super) fn new(range: &Range<u64>) -> Option<Listed> {
        let slot = SLOTS.iter().position(|slot| slot.end.load(Ordering::Relaxed) == 0)?;
        SLOTS[slot].start.store(range.start, Ordering::Relaxed);
        SLOTS[slot].end.store(range.end, Ordering::Release);
        fence(Ordering::SeqCst);
        Some(Listed { slot })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        SLOTS[self.slot].end.store(0, Ordering::Release);
    }
}

/// Whether any byte of this range is remapped, or just being so.
pub(super) fn overlap(range: &Range<u64>) -> bool {
    fence(Ordering::SeqCst);
    SLOTS.iter().any(|slot| {
        let end = slot.end.load(Ordering::Acquire);
        range.start < end && slot.start.load(Ordering::Relaxed) < range.end
    })
}

/// To be called in a child after `fork`: none is its own.
pub(super) fn forget_all() {
    for slot in &SLOTS {
        slot.end.store(0, Ordering::Relaxed);
    }
}
