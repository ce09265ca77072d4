//! Room for rings in the memory that a session shares with its program.

use super::{Refusal, refuse};
use crate::limits::MAX_RING_BYTES;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use urxe_shm::control::{ControlError, RingLocation};
use urxe_shm::memory::arena::{Arena, ArenaError, Extent};
use urxe_shm::memory::region::{Mapping, Window};
use urxe_shm::ring::geometry::Geometry;

/// A session's memory for rings and doorbells.
pub(crate) struct ArenaRings {
    arena: Arena,
    /// Rings that were left for others, until the program knows.
    retired: Vec<Extent>,
}

impl ArenaRings {
    pub(crate) fn new() -> Result<ArenaRings, ControlError> {
        let arena = Arena::new(MAX_RING_BYTES).or_refuse(Errno::NOMEM, "session memory")?;
        Ok(ArenaRings { arena, retired: Vec::new() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.arena.fd()
    }

    pub(crate) fn doorbells(&self) -> Arc<Mapping> {
        Arc::clone(self.arena.doorbells())
    }

    pub(crate) fn limit(&self) -> u64 {
        self.arena.limit()
    }

    /// Finds room for a ring.
    pub(crate) fn alloc(
        &mut self,
        what: &str,
        geometry: &Geometry,
    ) -> Result<(Extent, Window), ControlError> {
        self.arena.alloc(geometry.size().into()).map_err(|error| match error {
            ArenaError::QuotaExceeded { .. } | ArenaError::Os(_) | ArenaError::Window(_) => {
                refuse(Errno::NOMEM, format!("{what}: {error}"))
            }
        })
    }

    /// Gives a ring's room back.
    pub(crate) fn free(&mut self, extent: Extent) {
        // The room is free either way; only its pages may stay with us until the session ends.
        let _ = self.arena.free(extent);
    }

    /// Gives back the room of a ring that the program still believes in: when its next request
    /// comes, for by then it has seen the answer to this one.
    pub(crate) fn retire(&mut self, extent: Extent) {
        self.retired.push(extent);
    }

    /// Says that the next request has come.
    pub(crate) fn free_retired(&mut self) {
        while let Some(extent) = self.retired.pop() {
            self.free(extent);
        }
    }
}

/// Where a program finds a ring.
pub(crate) fn location(extent: Extent, geometry: &Geometry) -> RingLocation {
    RingLocation { offset: extent.offset, size: geometry.size() }
}
