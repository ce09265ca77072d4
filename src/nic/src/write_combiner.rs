//! Fewer, larger writes to memory that costs a system call each, in their order.
//!
//! A 64 KiB message arrives as 64 packets; written one by one it costs 64 system calls of 1 us,
//! joined it costs one of 10 us. Only a write that continues the one before is joined to it, so
//! the program sees all writes in the order in which they were made, only later.
//!
//! Joined writes reach the memory by one copy of the kernel's, within which bytes of one page may
//! become visible in any order. Where that matters the copy is cut, at the price of another one:
//! [`barrier`](WriteCombiner::barrier).

use std::sync::Arc;
use urxe_engine::MemoryFault;
use urxe_shm::memory::process_memory::{MAX_PIECES, ProcessMemory};
use urxe_shm::memory::store_order;

/// One stretch of a program's memory that is yet to be written.
pub(crate) struct WriteCombiner {
    memory: Option<Arc<ProcessMemory>>,
    addr: u64,
    /// Empty: nothing is held back.
    data: Vec<u8>,
    /// Where in the data a piece ends that becomes visible before the next.
    ends: Vec<usize>,
    /// A write that was held back has failed since the last [`sync`](Self::sync).
    faulted: bool,
}

impl WriteCombiner {
    /// `capacity`: how many bytes may be held back. The buffer is as large as it will ever be from
    /// the start.
    pub(crate) fn new(capacity: usize) -> WriteCombiner {
        WriteCombiner {
            memory: None,
            addr: 0,
            data: Vec::with_capacity(capacity),
            ends: Vec::with_capacity(MAX_PIECES),
            faulted: false,
        }
    }

    /// Writes, now or by the next [`sync`](Self::sync), after all writes before. If one of those
    /// has failed, nothing is written, and it is still for `sync` to tell.
    pub(crate) fn write(
        &mut self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        let continued = !self.data.is_empty()
            && self.is_of(memory)
            && self.end() == addr
            && self.data.len() + data.len() <= self.data.capacity();
        if !continued {
            self.carry_out()?;
            if data.len() > self.data.capacity() {
                return memory.write(addr, data).map_err(|_| MemoryFault);
            }
            if !self.is_of(memory) {
                self.memory = Some(Arc::clone(memory));
            }
            self.addr = addr;
        }
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Has everything so far become visible before all that is written later, and its last bytes
    /// last.
    pub(crate) fn barrier(&mut self) {
        let start = self.ends.last().map_or(0, |&end| end);
        let len = self.data.len() - start;
        if len == 0 {
            return;
        }
        // ORDER-002
        let body = store_order::body_len(self.addr.wrapping_add(start as u64), len);
        if body > 0 {
            self.ends.push(start + body);
        }
        self.ends.push(self.data.len());
        // There may be no room for two more.
        if self.ends.len() + 2 > MAX_PIECES {
            // Whether it failed is told by the next call.
            let _ = self.carry_out();
        }
    }

    /// Whether a stretch has bytes that are held back.
    pub(crate) fn overlaps(&self, memory: &Arc<ProcessMemory>, addr: u64, len: u64) -> bool {
        self.is_of(memory) && self.addr < addr.saturating_add(len) && addr < self.end()
    }

    /// Whether anything is held back.
    pub(crate) fn holds_any(&self) -> bool {
        !self.data.is_empty()
    }

    /// Carries out what is held back. An error tells of every write since the last
    /// [`sync`](Self::sync), and is still for that to tell.
    pub(crate) fn carry_out(&mut self) -> Result<(), MemoryFault> {
        if let (Some(memory), false) = (&self.memory, self.data.is_empty()) {
            // ORDER-001, ORDER-008
            self.faulted |= memory.write_in_order(self.addr, &self.data, &self.ends).is_err();
        }
        self.data.clear();
        self.ends.clear();
        if self.faulted { Err(MemoryFault) } else { Ok(()) }
    }

    /// Carries out what is held back. An error tells of every write since the last time.
    pub(crate) fn sync(&mut self) -> Result<(), MemoryFault> {
        let result = self.carry_out();
        self.faulted = false;
        result
    }

    /// Lets go of a program's memory, for which nothing is held back any more.
    pub(crate) fn release(&mut self, memory: &Arc<ProcessMemory>) {
        if self.is_of(memory) {
            debug_assert!(self.data.is_empty(), "what a QP has written is synced with its batch");
            self.memory = None;
        }
    }

    fn is_of(&self, memory: &Arc<ProcessMemory>) -> bool {
        self.memory.as_ref().is_some_and(|of| Arc::ptr_eq(of, memory))
    }

    fn end(&self) -> u64 {
        self.addr.wrapping_add(self.data.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::memory::process_memory::open_own;

    /// Our own memory, as a program would pass it, and bytes of it that are only touched through
    /// it while a test runs, from the start of a cache line.
    fn arena() -> (Arc<ProcessMemory>, Box<Bytes>, u64) {
        let memory = Arc::new(ProcessMemory::accept(open_own().unwrap()).unwrap());
        let mut bytes = Box::new(Bytes([0; LEN]));
        let addr = bytes.0.as_mut_ptr() as u64;
        (memory, bytes, addr)
    }

    const LEN: usize = 8192;

    #[repr(align(64))]
    struct Bytes([u8; LEN]);

    fn behind(memory: &ProcessMemory, addr: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        memory.read(addr, &mut buf).unwrap();
        buf
    }

    #[test]
    fn writes_that_follow_each_other_are_joined_until_sync() {
        let (memory, _bytes, addr) = arena();
        let mut writes = WriteCombiner::new(1024);
        writes.write(&memory, addr, &[1; 8]).unwrap();
        writes.write(&memory, addr + 8, &[2; 8]).unwrap();
        assert_eq!(behind(&memory, addr, 16), [0; 16]);
        writes.sync().unwrap();
        assert_eq!(behind(&memory, addr, 16), [[1; 8], [2; 8]].concat());
    }

    #[test]
    fn a_write_elsewhere_comes_after_the_writes_before_it() {
        let (memory, _bytes, addr) = arena();
        let mut writes = WriteCombiner::new(1024);
        let mut last: Option<(u64, u8)> = None;
        // Behind, before, with a gap, over the same bytes: in whatever direction it is.
        for (at, value) in [512, 0, 100, 104, 110].into_iter().zip(1..) {
            writes.write(&memory, addr + at, &[value; 8]).unwrap();
            assert_ne!(behind(&memory, addr + at, 8), [value; 8], "only later");
            if let Some((at, value)) = last.replace((at, value)) {
                assert_eq!(behind(&memory, addr + at, 8), [value; 8]);
            }
        }
    }

    #[test]
    fn a_barrier_cuts_the_copy_after_a_message_and_before_its_last_word() {
        let (memory, _bytes, addr) = arena();
        let mut writes = WriteCombiner::new(1024);
        // A message of two packets, a flag behind it, a message within a cache line, nothing.
        writes.write(&memory, addr, &[1; 100]).unwrap();
        writes.write(&memory, addr + 100, &[2; 156]).unwrap();
        writes.barrier();
        writes.write(&memory, addr + 256, &[3; 8]).unwrap();
        writes.barrier();
        writes.write(&memory, addr + 264, &[4; 56]).unwrap();
        writes.barrier();
        writes.barrier();
        assert_eq!(writes.ends, [248, 256, 264, 320]);
        writes.sync().unwrap();
        let expected = [&[1; 100][..], &[2; 156], &[3; 8], &[4; 56]].concat();
        assert_eq!(behind(&memory, addr, 320), expected);
        assert!(writes.ends.is_empty());
    }

    #[test]
    fn more_messages_than_one_call_can_separate_take_several() {
        let (memory, _bytes, addr) = arena();
        let mut writes = WriteCombiner::new(LEN);
        let messages: Vec<[u8; 80]> = (1..=100).map(|number| [number; 80]).collect();
        for (number, message) in (0..).zip(&messages) {
            writes.write(&memory, addr + 80 * number, message).unwrap();
            writes.barrier();
            assert!(writes.ends.len() <= MAX_PIECES);
        }
        writes.sync().unwrap();
        assert_eq!(behind(&memory, addr, 8000), messages.concat());
    }

    #[test]
    fn nothing_is_written_after_a_write_that_failed() {
        let (memory, _bytes, addr) = arena();
        let mut writes = WriteCombiner::new(1024);
        writes.write(&memory, 64, &[1; 8]).unwrap();
        assert_eq!(writes.write(&memory, addr, &[2; 8]), Err(MemoryFault));
        assert_eq!(writes.write(&memory, addr, &[3; 8]), Err(MemoryFault));
        assert_eq!(writes.sync(), Err(MemoryFault));
        assert_eq!(behind(&memory, addr, 8), [0; 8]);
        assert_eq!(writes.sync(), Ok(()), "it is told once");
    }
}
