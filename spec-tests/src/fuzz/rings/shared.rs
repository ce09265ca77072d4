//! What a node and its program share. It is kept from run to run, for to map it anew takes longer
//! than most runs; each run finds it as if it were new.

use super::{CLOSED, MEMORY, OPEN};
use std::sync::Arc;
use urxe_shm::memory::region::{Mapping, Window, create_memfd, page_size};
use urxe_shm::ring::doorbell::DOORBELL_SIZE;

/// Bytes that the doorbells and rings of a node may have.
const ROOM: u64 = 1 << 20;

/// A ring in a program's memory, or its doorbells.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The memory of one node.
pub(super) struct Shared {
    /// The doorbells, and behind them the rings.
    pub(super) rings: Arc<Mapping>,
    /// Bytes of it that are in use.
    used: u64,
    /// What the node's keys open: all of it, and the half that each opens.
    pub(super) memory: Mapping,
    pub(super) halves: [Arc<Mapping>; 2],
}

impl Shared {
    pub(super) fn new() -> Shared {
        let rings = create_memfd("fuzzed rings", ROOM).expect("there is memory");
        let rings = Mapping::new(rings, 0, ROOM as usize).expect("there is room");
        let memory = create_memfd("fuzzed memory", MEMORY as u64).expect("there is memory");
        let map = |at, len| Mapping::new(&memory, at as u64, len).expect("there is room");
        let mut shared = Shared {
            rings: Arc::new(rings),
            used: 0,
            halves: [0, OPEN].map(|at| Arc::new(map(at, OPEN))),
            memory: map(0, MEMORY),
        };
        shared.clear();
        shared
    }

    /// Makes it as it is in the beginning: with nothing but doorbells that nobody has rung.
    pub(super) fn clear(&mut self) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..self.used).step_by(ZEROS.len()) {
            self.rings.write(at, &ZEROS).expect("whole pages are used");
        }
        self.used = DOORBELL_SIZE.next_multiple_of(page_size() as u64);
        self.memory.write(0, &[0; OPEN]).expect("it is longer");
        self.memory.write(OPEN as u64, &[CLOSED; MEMORY - OPEN]).expect("it is as long");
    }

    /// Room for a ring, on pages of its own, as far as there is any.
    pub(super) fn alloc(&mut self, len: u64) -> Option<(Span, Window)> {
        let at = self.used;
        let window = Window::new(Arc::clone(&self.rings), at, len).ok()?;
        self.used = (at + len).next_multiple_of(page_size() as u64);
        Some((Span { at, len }, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_memory_that_were_used_are_as_new_after_they_were_cleared() {
        let mut shared = Shared::new();
        let (first, _) = shared.alloc(5000).unwrap();
        while let Some((Span { at, len }, _)) = shared.alloc(9000) {
            shared.rings.write(at + len - 8, &[1; 8]).unwrap();
        }
        shared.memory.write(OPEN as u64 - 1, &[1; 2]).unwrap();
        shared.clear();
        let mut bytes = vec![0; ROOM as usize];
        shared.rings.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        let mut memory = [0; MEMORY];
        shared.memory.read(0, &mut memory).unwrap();
        assert!(memory[..OPEN] == [0; OPEN] && memory[OPEN..] == [CLOSED; MEMORY - OPEN]);
        assert_eq!(shared.alloc(5000).unwrap().0.at, first.at);
    }
}
