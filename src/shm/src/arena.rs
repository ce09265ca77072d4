//! The daemon's room for rings: page-aligned extents of a session's memfd.

use crate::doorbell::DOORBELL_SIZE;
use crate::layout::page_size;
use crate::region::{Mapping, Window, create_memfd};
use rustix::fs::FallocateFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
}

/// A session's memfd: the doorbells, and room for rings.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    extents: Extents,
    /// Length of the file. It only grows.
    file_len: u64,
}

impl Arena {
    /// Makes a memfd that holds the doorbells and may grow to `limit` bytes.
    pub fn new(limit: u64) -> Result<Self, ArenaError> {
        let page = page_size() as u64;
        let first = DOORBELL_SIZE.next_multiple_of(page);
        let limit = (limit - limit % page).max(first);
        let len =
            usize::try_from(limit).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let fd = create_memfd("urxe-session", first)?;
        // The whole quota is mapped at once, so that rings never move while the file grows.
        let mapping = Arc::new(Mapping::new(&fd, 0, len)?);
        Ok(Self { fd, mapping, extents: Extents::new(first, limit), file_len: first })
    }

    /// Hands out `len` zero bytes, rounded up to pages.
    pub fn alloc(&mut self, len: u64) -> Result<(Extent, Window), ArenaError> {
        let limit = self.extents.limit;
        let no_room = ArenaError::QuotaExceeded { wanted: len, limit };
        let Some(extent) = self.extents.alloc(len) else { return Err(no_room) };
        let end = extent.offset + extent.len;
        if end > self.file_len {
            if let Err(error) = rustix::fs::ftruncate(&self.fd, end) {
                self.extents.free(extent);
                return Err(ArenaError::Os(error.into()));
            }
            self.file_len = end;
        }
        match Window::new(self.mapping.clone(), extent.offset, extent.len) {
            Ok(window) => Ok((extent, window)),
            Err(_) => unreachable!("an extent lies within the mapping of the whole quota"),
        }
    }

    /// Takes an extent back, and gives its pages to the system. The program may still have it
    /// mapped; it then sees zeros, and later whatever is put there.
    pub fn free(&mut self, extent: Extent) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&self.fd, flags, extent.offset, extent.len);
        self.extents.free(extent);
        Ok(punched?)
    }

    /// The memfd, for the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The whole of it, as far as it may ever grow.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
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
