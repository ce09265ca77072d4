//! The daemon's room for rings: page-aligned extents of a session's memfd.
//!
//! To give back the pages of a ring takes the system 2 us for each, half a second for a gigabyte.
//! So what is freed is given back in slices ([`Arena::reclaim`]), and handed out again only then.

use crate::memory::region::page_size;
use crate::memory::region::{Mapping, Window, create_memfd};
use crate::memory::session_memory::{SessionMemory, WindowError};
use crate::ring::doorbell::DOORBELL_SIZE;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A part of the memfd: offset and length in bytes, both multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// No extent could be handed out.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The session has used up what it may.
    #[error("{wanted} bytes wanted, but the session's quota of {limit} bytes has no such gap left")]
    QuotaExceeded {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes that the session may have in all, doorbells included.
        limit: u64,
    },
    /// The system refuses.
    #[error("the session's memory cannot grow: {0}")]
    Os(#[from] io::Error),
    /// It cannot be mapped.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// A session's memfd: the doorbells, and room for rings.
#[derive(Debug)]
pub struct Arena {
    memory: SessionMemory,
    extents: Extents,
    /// What was freed and may still have pages, with how many bytes of it have none any more.
    freed: VecDeque<(Extent, u64)>,
    /// Length of the file. It only grows.
    file_len: u64,
}

impl Arena {
    /// Makes a memfd that holds the doorbells and may grow to `limit` bytes.
    pub fn new(limit: u64) -> Result<Self, ArenaError> {
        let page = page_size() as u64;
        let first = DOORBELL_SIZE.next_multiple_of(page);
        let limit = (limit - limit % page).max(first);
        let memory = SessionMemory::new(create_memfd("urxe-session", first)?, limit)?;
        let (extents, freed) = (Extents::new(first, limit), VecDeque::new());
        Ok(Self { memory, extents, freed, file_len: first })
    }

    /// Hands out `len` zero bytes, rounded up to pages.
    pub fn alloc(&mut self, len: u64) -> Result<(Extent, Window), ArenaError> {
        let limit = self.extents.limit;
        let no_room = ArenaError::QuotaExceeded { wanted: len, limit };
        let Some(extent) = self.extents.alloc(len) else { return Err(no_room) };
        let end = extent.offset + extent.len;
        if end > self.file_len {
            if let Err(error) = rustix::fs::ftruncate(self.memory.memfd(), end) {
                self.extents.free(extent);
                return Err(ArenaError::Os(error.into()));
            }
            self.file_len = end;
        }
        match self.memory.window(extent.offset, extent.len) {
            Ok(window) => Ok((extent, window)),
            Err(error) => {
                self.extents.free(extent);
                Err(error.into())
            }
        }
    }

    /// Takes an extent back. Its pages are given back by [`reclaim`](Self::reclaim), and only then
    /// it is handed out again. The program may still have it mapped; it then sees zeros, and later
    /// whatever is put there.
    pub fn free(&mut self, extent: Extent) {
        self.freed.push_back((extent, 0));
    }

    /// Takes everything back: no ring is used any more. The program may have put pages also where
    /// it has no ring.
    pub fn free_all(&mut self) {
        let first = DOORBELL_SIZE.next_multiple_of(page_size() as u64);
        self.extents = Extents::new(first, first);
        let all = Extent { offset: first, len: self.file_len - first };
        self.freed = VecDeque::from([(all, 0)]);
    }

    /// Whether something is freed whose pages were not given back.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Gives pages to the system of what was freed: so many bytes at most. Where there are none, as
    /// in a ring that was never used, it takes no time to speak of, but counts as a page.
    pub fn reclaim(&mut self, budget: u64) {
        let mut left = budget;
        // SHARE-006
        while left > 0
            && let Some((extent, done)) = self.freed.front_mut()
        {
            let end = extent.offset + extent.len;
            let from = extent.offset + *done;
            // An error says that there is none.
            match rustix::fs::seek(self.memory.memfd(), SeekFrom::Data(from)) {
                Ok(at) if (from..end).contains(&at) => {
                    let len = (end - at).min(left);
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    // If it is refused, they stay with us until the session ends.
                    let _ = rustix::fs::fallocate(self.memory.memfd(), flags, at, len);
                    *done = at + len - extent.offset;
                    left -= len;
                }
                _ => {
                    self.extents.free(*extent);
                    self.freed.pop_front();
                    left = left.saturating_sub(page_size() as u64);
                }
            }
        }
    }

    /// The memfd, for the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.memfd()
    }

    /// The doorbell pages: the memfd from its first byte on.
    pub fn doorbells(&self) -> &Arc<Mapping> {
        self.memory.doorbells()
    }

    /// The quota in bytes: what [`Reply::Hello`](crate::control::Reply::Hello) tells the program.
    pub fn limit(&self) -> u64 {
        self.extents.limit
    }
}

/// Which bytes are free: first fit, neighbours joined.
#[derive(Debug)]
struct Extents {
    /// Offset to length.
    free: BTreeMap<u64, u64>,
    limit: u64,
}

impl Extents {
    fn new(first: u64, limit: u64) -> Self {
        let free =
            if first < limit { BTreeMap::from([(first, limit - first)]) } else { BTreeMap::new() };
        Self { free, limit }
    }

    fn alloc(&mut self, len: u64) -> Option<Extent> {
        let len = len.max(1).checked_next_multiple_of(page_size() as u64)?;
        let (&offset, &gap) = self.free.iter().find(|&(_, &gap)| gap >= len)?;
        self.free.remove(&offset);
        if gap > len {
            self.free.insert(offset + len, gap - len);
        }
        Some(Extent { offset, len })
    }

    fn free(&mut self, extent: Extent) {
        let Extent { mut offset, mut len } = extent;
        if let Some((&before, &gap)) = self.free.range(..offset).next_back()
            && before + gap == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, gap + len);
        }
        if let Some(gap) = self.free.remove(&(offset + len)) {
            len += gap;
        }
        self.free.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Alloc(u64),
        Free(prop::sample::Index),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            prop_oneof![1..5u64, 1..100_000u64].prop_map(Op::Alloc),
            any::<prop::sample::Index>().prop_map(Op::Free),
        ]
    }

    proptest! {
        /// Extents in use lie within the quota and apart from one another, on pages; and what
        /// is freed comes together again.
        #[test]
        fn extents_never_overlap(ops in prop::collection::vec(op(), 0..200)) {
            let page = page_size() as u64;
            let (first, limit) = (3 * page, 100 * page);
            let mut extents = Extents::new(first, limit);
            let mut used: Vec<Extent> = Vec::new();
            for op in ops {
                match op {
                    Op::Alloc(len) => match extents.alloc(len) {
                        Some(new) => {
                            prop_assert!(new.offset >= first && new.offset + new.len <= limit);
                            prop_assert!(new.offset % page == 0 && new.len % page == 0);
                            prop_assert!(new.len >= len && new.len < len + page);
                            for old in &used {
                                let before = new.offset + new.len <= old.offset;
                                let behind = old.offset + old.len <= new.offset;
                                prop_assert!(before || behind, "{new:?} overlaps {old:?}");
                            }
                            used.push(new);
                        }
                        None => {
                            let in_use: u64 = used.iter().map(|extent| extent.len).sum();
                            let largest = extents.free.values().copied().max().unwrap_or(0);
                            prop_assert!(largest < len);
                            let free: u64 = extents.free.values().sum();
                            prop_assert_eq!(in_use + free, limit - first, "nothing leaks");
                        }
                    },
                    Op::Free(index) if !used.is_empty() => {
                        extents.free(used.swap_remove(index.index(used.len())));
                    }
                    Op::Free(_) => {}
                }
            }
            for extent in used {
                extents.free(extent);
            }
            prop_assert_eq!(extents.free, BTreeMap::from([(first, limit - first)]));
        }
    }

    #[test]
    fn memory_handed_out_again_is_zero() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let (first, window) = arena.alloc(5000).unwrap();
        window.store(4992, &[1; 8]);
        arena.free(first);
        arena.reclaim(u64::MAX);
        let (second, window) = arena.alloc(5000).unwrap();
        assert_eq!(second, first);
        let mut bytes = [9; 8];
        window.load(4992, &mut bytes);
        assert_eq!(bytes, [0; 8]);
    }

    /// Bytes of the memfd that have pages.
    fn resident(arena: &Arena) -> u64 {
        rustix::fs::fstat(arena.fd()).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn pages_of_what_is_freed_are_given_back_in_slices() {
        let page = page_size() as u64;
        let mut arena = Arena::new(1 << 30).unwrap();
        let doorbells = resident(&arena);
        let (extent, window) = arena.alloc(64 * page).unwrap();
        // Every other page.
        (0..32).for_each(|at| window.store((at * 2 * page) as usize, &[1; 8]));
        assert_eq!(resident(&arena), doorbells + 32 * page);
        arena.free(extent);
        let (mut before, mut slices) = (resident(&arena), 0);
        while arena.has_freed() {
            arena.reclaim(8 * page);
            slices += 1;
            // SHARE-006
            assert!(before - resident(&arena) <= 8 * page);
            before = resident(&arena);
        }
        assert!(slices > 32 / 8, "{slices}");
        assert_eq!(resident(&arena), doorbells);
        assert_eq!(arena.alloc(64 * page).unwrap().0, extent);
    }

    #[test]
    fn a_ring_that_was_never_touched_costs_one_page_to_give_back() {
        let page = page_size() as u64;
        let mut arena = Arena::new(1 << 32).unwrap();
        let extents = [(); 3].map(|()| arena.alloc(1 << 30).unwrap().0);
        extents.into_iter().for_each(|extent| arena.free(extent));
        arena.reclaim(2 * page);
        assert!(arena.has_freed());
        arena.reclaim(page);
        assert!(!arena.has_freed());
    }

    #[test]
    fn pages_that_a_program_put_where_it_has_no_ring_are_given_back_at_the_end() {
        let mut arena = Arena::new(1 << 30).unwrap();
        let doorbells = resident(&arena);
        let (extent, _) = arena.alloc(1 << 20).unwrap();
        arena.free(extent);
        arena.reclaim(u64::MAX);
        let (_ring, _) = arena.alloc(1).unwrap();
        let program = Mapping::new(arena.fd(), 0, (extent.offset + extent.len) as usize).unwrap();
        program.write(extent.offset + 4096 * 9, &[1; 4096 * 9]).unwrap();
        arena.free_all();
        while arena.has_freed() {
            arena.reclaim(1 << 14);
        }
        assert_eq!(resident(&arena), doorbells);
        assert!(arena.alloc(1 << 20).is_ok());
    }

    #[test]
    fn a_program_sees_what_the_daemon_writes() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let program = Mapping::new(arena.fd(), 0, arena.limit() as usize).unwrap();
        let (extent, window) = arena.alloc(1).unwrap();
        window.store(0, b"a ring!!");
        let mut bytes = [0; 8];
        program.read(extent.offset, &mut bytes).unwrap();
        assert_eq!(&bytes, b"a ring!!");
    }

    #[test]
    fn the_quota_bounds_a_session() {
        let page = page_size() as u64;
        let doorbells = DOORBELL_SIZE.next_multiple_of(page);
        let mut arena = Arena::new(doorbells + 2 * page + 1).unwrap();
        assert_eq!(arena.limit(), doorbells + 2 * page);
        let (extent, _) = arena.alloc(2 * page).unwrap();
        assert!(matches!(
            arena.alloc(1),
            Err(ArenaError::QuotaExceeded { wanted: 1, limit }) if limit == doorbells + 2 * page
        ));
        arena.free(extent);
        assert!(matches!(arena.alloc(1), Err(ArenaError::QuotaExceeded { .. })));
        arena.reclaim(page);
        assert!(matches!(arena.alloc(2 * page + 1), Err(ArenaError::QuotaExceeded { .. })));
        assert!(matches!(arena.alloc(u64::MAX), Err(ArenaError::QuotaExceeded { .. })));
        arena.alloc(2 * page).unwrap();
    }

    #[test]
    fn a_quota_of_nothing_still_has_doorbells() {
        let mut arena = Arena::new(0).unwrap();
        assert!(arena.limit() >= DOORBELL_SIZE);
        assert!(crate::ring::doorbell::DoorbellReader::new(arena.doorbells().clone()).is_ok());
        assert!(arena.alloc(1).is_err());
    }
}
