//! Fewer, larger reads of memory that costs a system call each: what was announced is fetched at
//! once.
//!
//! What was fetched is what the program had there at that time, and as the engine never reads
//! more than one call ahead, a program sees its memory read within one call of the engine, as an
//! RNIC might read it. It is forgotten when the engine writes there, takes a newer work request,
//! or is called again.

use crate::limits::{READ_AHEAD_LEN, READ_AHEAD_LEN_MIN};
use std::ops::Range;
use std::sync::Arc;
use urxe_shm::memory::process_memory::ProcessMemory;

/// The stretch of a program's memory that is going to be read, and what is fetched of it.
pub(crate) struct ReadAhead {
    memory: Option<Arc<ProcessMemory>>,
    /// What is going to be read and is not fetched.
    announced: Range<u64>,
    /// Address of the first byte fetched.
    addr: u64,
    data: Vec<u8>,
    /// Bytes used of those fetched.
    used: usize,
    /// Bytes to fetch next time: twice what was used of the last, because a requester may be
    /// allowed to send much less than its message.
    fetch_len: usize,
}

impl ReadAhead {
    /// The buffer is as large as it will ever be from the start.
    pub(crate) fn new() -> ReadAhead {
        ReadAhead {
            memory: None,
            announced: 0..0,
            addr: 0,
            data: Vec::with_capacity(READ_AHEAD_LEN),
            used: 0,
            fetch_len: READ_AHEAD_LEN,
        }
    }

    fn is_of(&self, memory: &Arc<ProcessMemory>) -> bool {
        self.memory.as_ref().is_some_and(|of| Arc::ptr_eq(of, memory))
    }

    /// Says that this stretch is going to be read, soon and from its start. What was fetched and is
    /// announced again stays, so that a long stretch can be announced anew with each packet.
    pub(crate) fn announce(&mut self, memory: &Arc<ProcessMemory>, addr: u64, len: u64) {
        let fetched_to = self.addr + self.data.len() as u64;
        let end = addr.saturating_add(len);
        if self.is_of(memory) && (self.addr..=fetched_to).contains(&addr) {
            self.announced = fetched_to..end;
        } else {
            self.forget();
            self.memory = Some(Arc::clone(memory));
            self.announced = addr..end;
        }
    }

    /// Forgets what was fetched: the program may have changed it since.
    pub(crate) fn forget(&mut self) {
        if !self.data.is_empty() {
            self.fetch_len = (2 * self.used).clamp(READ_AHEAD_LEN_MIN, READ_AHEAD_LEN);
        }
        self.announced = 0..0;
        self.data.clear();
    }

    /// Forgets what was fetched if this stretch, which is written, has any of it.
    pub(crate) fn forget_overlapping(&mut self, memory: &Arc<ProcessMemory>, addr: u64, len: u64) {
        let end = self.addr + self.data.len() as u64;
        if self.is_of(memory) && addr < end && self.addr < addr.saturating_add(len) {
            self.forget();
        }
    }

    /// How many bytes to fetch for a read of `len` bytes at `addr`; 0 when fetching gains nothing.
    pub(crate) fn worth_fetching(
        &self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        len: usize,
    ) -> usize {
        if !self.is_of(memory) || !self.announced.contains(&addr) {
            return 0;
        }
        let announced = self.announced.end - addr;
        let fetch = announced.min(self.fetch_len as u64) as usize;
        if fetch > len { fetch } else { 0 }
    }

    /// Fetches up to `len` bytes; what is not mapped ends it.
    pub(crate) fn fetch(&mut self, memory: &Arc<ProcessMemory>, addr: u64, len: usize) {
        self.addr = addr;
        self.used = 0;
        self.data.resize(len, 0);
        if let Err(fault) = memory.read(addr, &mut self.data) {
            self.data.truncate(len - fault.len.min(len));
        }
        self.announced.start = addr + len as u64;
    }

    /// Lets go of a program's memory.
    pub(crate) fn release(&mut self, memory: &Arc<ProcessMemory>) {
        if self.is_of(memory) {
            self.forget();
            self.memory = None;
        }
    }

    /// Copies what was fetched, if all of this stretch was.
    pub(crate) fn copy_fetched(
        &mut self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        buf: &mut [u8],
    ) -> bool {
        if !self.is_of(memory) {
            return false;
        }
        let start = addr.checked_sub(self.addr).and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(buf.len()));
        let (Some(start), Some(end)) = (start, end) else { return false };
        let Some(fetched) = self.data.get(start..end) else { return false };
        buf.copy_from_slice(fetched);
        self.used = self.used.max(end);
        true
    }
}
