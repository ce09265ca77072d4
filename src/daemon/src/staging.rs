//! Fewer, larger accesses to memory that costs a system call each: writes are held back and
//! joined, reads that were announced are fetched at once.
//!
//! A 64 KiB message arrives as 64 packets; written one by one it costs 64 system calls of 1.2 us,
//! joined it costs one of 10 us. All buffers are as large as they will ever be from the start.

use crate::limits::{HELD_WRITE_LEN, HELD_WRITES, READ_AHEAD_LEN, READ_AHEAD_LEN_MIN};
use std::ops::Range;
use std::rc::Rc;
use urxe_engine::MemoryFault;
use urxe_shm::process_memory::ProcessMemory;

/// Held-back writes and fetched reads.
///
/// The held-back writes never overlap each other, so the order in which they are carried out
/// does not matter.
pub(crate) struct Staging {
    writes: Vec<HeldWrite>,
    /// The one that is carried out next when room is needed.
    oldest: usize,
    /// A write that was held back has failed since the last [`sync`](Self::sync).
    faulted: bool,
    ahead: ReadAhead,
}

#[derive(Default)]
struct HeldWrite {
    memory: Option<Rc<ProcessMemory>>,
    addr: u64,
    /// Empty: there is no write here.
    data: Vec<u8>,
}

#[derive(Default)]
struct ReadAhead {
    memory: Option<Rc<ProcessMemory>>,
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

impl Staging {
    pub(crate) fn new() -> Staging {
        let held = || HeldWrite { data: Vec::with_capacity(HELD_WRITE_LEN), ..Default::default() };
        Staging {
            writes: (0..HELD_WRITES).map(|_| held()).collect(),
            oldest: 0,
            faulted: false,
            ahead: ReadAhead {
                data: Vec::with_capacity(READ_AHEAD_LEN),
                fetch_len: READ_AHEAD_LEN,
                ..Default::default()
            },
        }
    }

    /// Writes, now or by the next [`sync`](Self::sync).
    pub(crate) fn write(
        &mut self,
        memory: &Rc<ProcessMemory>,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        let len = data.len() as u64;
        self.ahead.forget_overlapping(memory, addr, len);
        let mut continued = None;
        let mut empty = None;
        for (index, held) in self.writes.iter_mut().enumerate() {
            if held.overlaps(memory, addr, len) {
                self.faulted |= held.carry_out().is_err();
            }
            if held.data.is_empty() {
                empty = Some(index);
            } else if held.ends_at(memory, addr) && held.data.len() + data.len() <= HELD_WRITE_LEN {
                continued = Some(index);
            }
        }
        if let Some(index) = continued {
            self.writes[index].data.extend_from_slice(data);
            return Ok(());
        }
        if data.len() > HELD_WRITE_LEN / 2 {
            return memory.write(addr, data).map_err(|_| MemoryFault);
        }
        let index = empty.unwrap_or_else(|| {
            let index = self.oldest;
            self.oldest = (self.oldest + 1) % HELD_WRITES;
            self.faulted |= self.writes[index].carry_out().is_err();
            index
        });
        self.writes[index].begin(memory, addr, data);
        Ok(())
    }

    /// Writes at once and by itself, after all writes before. If one of those has failed, nothing
    /// is written, and it is still for [`sync`](Self::sync) to tell.
    pub(crate) fn write_alone(
        &mut self,
        memory: &Rc<ProcessMemory>,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        self.carry_out_all()?;
        self.ahead.forget_overlapping(memory, addr, data.len() as u64);
        memory.write(addr, data).map_err(|_| MemoryFault)
    }

    /// Carries out all held-back writes. An error tells of every write since the last
    /// [`sync`](Self::sync), and is still for that to tell.
    pub(crate) fn carry_out_all(&mut self) -> Result<(), MemoryFault> {
        for held in &mut self.writes {
            self.faulted |= held.carry_out().is_err();
        }
        if self.faulted { Err(MemoryFault) } else { Ok(()) }
    }

    /// Reads what the program and all writes so far have put there.
    pub(crate) fn read(
        &mut self,
        memory: &Rc<ProcessMemory>,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), MemoryFault> {
        if self.ahead.copy_fetched(memory, addr, buf) {
            return Ok(());
        }
        let fetch = self.ahead.worth_fetching(memory, addr, buf.len());
        self.carry_out_overlapping(memory, addr, buf.len().max(fetch) as u64);
        if fetch > 0 {
            self.ahead.fetch(memory, addr, fetch);
            if self.ahead.copy_fetched(memory, addr, buf) {
                return Ok(());
            }
        }
        memory.read(addr, buf).map_err(|_| MemoryFault)
    }

    /// Says that this stretch is going to be read, soon and from its start.
    pub(crate) fn read_ahead(&mut self, memory: &Rc<ProcessMemory>, addr: u64, len: u64) {
        self.ahead.announce(memory, addr, len);
    }

    /// Forgets what was fetched: the program may have changed it since.
    pub(crate) fn forget_reads(&mut self) {
        self.ahead.forget();
    }

    /// Carries out the held-back writes that touch a stretch.
    pub(crate) fn carry_out_overlapping(
        &mut self,
        memory: &Rc<ProcessMemory>,
        addr: u64,
        len: u64,
    ) {
        for held in &mut self.writes {
            if held.overlaps(memory, addr, len) {
                self.faulted |= held.carry_out().is_err();
            }
        }
    }

    /// Carries out all held-back writes. An error tells of every write since the last time.
    pub(crate) fn sync(&mut self) -> Result<(), MemoryFault> {
        let result = self.carry_out_all();
        self.faulted = false;
        result
    }

    /// Carries out what is held back for a program's memory, and lets go of it.
    pub(crate) fn release(&mut self, memory: &Rc<ProcessMemory>) {
        for held in &mut self.writes {
            if held.is_of(memory) {
                // Whoever waits for these writes has let go of the memory himself.
                let _ = held.carry_out();
                held.memory = None;
            }
        }
        if self.ahead.is_of(memory) {
            self.ahead.forget();
            self.ahead.memory = None;
        }
    }
}

fn same(memory: &Option<Rc<ProcessMemory>>, other: &Rc<ProcessMemory>) -> bool {
    memory.as_ref().is_some_and(|memory| Rc::ptr_eq(memory, other))
}

impl HeldWrite {
    fn is_of(&self, memory: &Rc<ProcessMemory>) -> bool {
        same(&self.memory, memory)
    }

    fn end(&self) -> u64 {
        self.addr + self.data.len() as u64
    }

    fn ends_at(&self, memory: &Rc<ProcessMemory>, addr: u64) -> bool {
        self.is_of(memory) && self.end() == addr
    }

    fn overlaps(&self, memory: &Rc<ProcessMemory>, addr: u64, len: u64) -> bool {
        self.is_of(memory) && self.addr < addr.saturating_add(len) && addr < self.end()
    }

    fn begin(&mut self, memory: &Rc<ProcessMemory>, addr: u64, data: &[u8]) {
        if !self.is_of(memory) {
            self.memory = Some(Rc::clone(memory));
        }
        self.addr = addr;
        self.data.extend_from_slice(data);
    }

    fn carry_out(&mut self) -> Result<(), MemoryFault> {
        let result = match &self.memory {
            Some(memory) if !self.data.is_empty() => memory.write(self.addr, &self.data),
            _ => Ok(()),
        };
        self.data.clear();
        result.map_err(|_| MemoryFault)
    }
}

impl ReadAhead {
    fn is_of(&self, memory: &Rc<ProcessMemory>) -> bool {
        same(&self.memory, memory)
    }

    /// What was fetched and is announced again stays, so that a long stretch can be announced
    /// anew with each of its packets.
    fn announce(&mut self, memory: &Rc<ProcessMemory>, addr: u64, len: u64) {
        let fetched_to = self.addr + self.data.len() as u64;
        let end = addr.saturating_add(len);
        if self.is_of(memory) && (self.addr..=fetched_to).contains(&addr) {
            self.announced = fetched_to..end;
        } else {
            self.forget();
            self.memory = Some(Rc::clone(memory));
            self.announced = addr..end;
        }
    }

    fn forget(&mut self) {
        if !self.data.is_empty() {
            self.fetch_len = (2 * self.used).clamp(READ_AHEAD_LEN_MIN, READ_AHEAD_LEN);
        }
        self.announced = 0..0;
        self.data.clear();
    }

    fn forget_overlapping(&mut self, memory: &Rc<ProcessMemory>, addr: u64, len: u64) {
        let end = self.addr + self.data.len() as u64;
        if self.is_of(memory) && addr < end && self.addr < addr.saturating_add(len) {
            self.forget();
        }
    }

    /// How many bytes to fetch for a read of `len` bytes at `addr`; 0 when fetching gains nothing.
    fn worth_fetching(&self, memory: &Rc<ProcessMemory>, addr: u64, len: usize) -> usize {
        if !self.is_of(memory) || !self.announced.contains(&addr) {
            return 0;
        }
        let announced = self.announced.end - addr;
        let fetch = announced.min(self.fetch_len as u64) as usize;
        if fetch > len { fetch } else { 0 }
    }

    /// Fetches up to `len` bytes; what is not mapped ends it.
    fn fetch(&mut self, memory: &Rc<ProcessMemory>, addr: u64, len: usize) {
        self.addr = addr;
        self.used = 0;
        self.data.resize(len, 0);
        if let Err(fault) = memory.read(addr, &mut self.data) {
            self.data.truncate(len - fault.len.min(len));
        }
        self.announced.start = addr + len as u64;
    }

    fn copy_fetched(&mut self, memory: &Rc<ProcessMemory>, addr: u64, buf: &mut [u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use urxe_shm::process_memory::open_own;

    /// Our own memory, as a program would pass it.
    fn own_memory() -> Rc<ProcessMemory> {
        Rc::new(ProcessMemory::accept(open_own().unwrap()).unwrap())
    }

    /// Memory that is only touched through the descriptor while a test runs.
    fn arena(len: usize) -> (Rc<ProcessMemory>, Vec<u8>, u64) {
        let mut bytes = vec![0u8; len];
        let addr = bytes.as_mut_ptr() as u64;
        (own_memory(), bytes, addr)
    }

    fn behind(memory: &ProcessMemory, addr: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        memory.read(addr, &mut buf).unwrap();
        buf
    }

    #[test]
    fn consecutive_writes_are_held_back_and_joined() {
        let (memory, _bytes, addr) = arena(64);
        let mut staging = Staging::new();
        staging.write(&memory, addr, &[1; 8]).unwrap();
        staging.write(&memory, addr + 8, &[2; 8]).unwrap();
        assert_eq!(behind(&memory, addr, 16), [0; 16]);
        assert_eq!(staging.writes.iter().filter(|held| !held.data.is_empty()).count(), 1);
        staging.sync().unwrap();
        assert_eq!(behind(&memory, addr, 16), [[1; 8], [2; 8]].concat());
    }

    #[test]
    fn announced_reads_are_served_from_one_fetch_until_forgotten() {
        let (memory, _bytes, addr) = arena(4096);
        let mut staging = Staging::new();
        let mut buf = [0; 16];
        staging.read_ahead(&memory, addr, 4096);
        staging.read(&memory, addr, &mut buf).unwrap();
        memory.write(addr + 16, &[9; 16]).unwrap();
        staging.read_ahead(&memory, addr + 16, 4080);
        staging.read(&memory, addr + 16, &mut buf).unwrap();
        assert_eq!(buf, [0; 16], "was fetched before the change");
        staging.forget_reads();
        staging.read(&memory, addr + 16, &mut buf).unwrap();
        assert_eq!(buf, [9; 16]);
    }

    #[test]
    fn a_held_back_write_that_fails_is_told_once_by_sync() {
        let memory = own_memory();
        let mut staging = Staging::new();
        staging.write(&memory, 64, &[1; 8]).unwrap();
        // Has to be carried out, and fails, long before the sync.
        let _ = staging.read(&memory, 64, &mut [0; 8]);
        assert_eq!(staging.sync(), Err(MemoryFault));
        assert_eq!(staging.sync(), Ok(()));
    }

    #[test]
    fn a_write_by_itself_comes_after_all_others_and_hides_none_that_failed() {
        let (memory, _bytes, addr) = arena(64);
        let mut staging = Staging::new();
        staging.write(&memory, addr, &[1; 8]).unwrap();
        staging.write_alone(&memory, addr + 8, &[2; 8]).unwrap();
        assert_eq!(behind(&memory, addr, 16), [[1; 8], [2; 8]].concat());
        staging.write(&memory, 64, &[1; 8]).unwrap();
        assert_eq!(staging.write_alone(&memory, addr + 16, &[3; 8]), Err(MemoryFault));
        assert_eq!(behind(&memory, addr + 16, 8), [0; 8]);
        assert_eq!(staging.sync(), Err(MemoryFault), "the write before is lost all the same");
    }

    #[test]
    fn an_announcement_that_runs_off_the_mapping_does_no_harm() {
        let (memory, _bytes, addr) = arena(64);
        let mut staging = Staging::new();
        staging.read_ahead(&memory, addr, u64::MAX);
        let mut buf = [1; 64];
        staging.read(&memory, addr, &mut buf).unwrap();
        assert_eq!(buf, [0; 64]);
        staging.read_ahead(&memory, 8, 4096);
        assert_eq!(staging.read(&memory, 8, &mut buf), Err(MemoryFault));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write { at: usize, len: usize, value: u8 },
        Read { at: usize, len: usize },
        Announce { at: usize, len: usize },
        Sync,
    }

    fn op() -> impl Strategy<Value = Op> {
        let at = prop_oneof![0..256usize, 0..100_000usize];
        let len = prop_oneof![0..64usize, 0..80_000usize];
        prop_oneof![
            4 => (at.clone(), len.clone(), any::<u8>())
                .prop_map(|(at, len, value)| Op::Write { at, len, value }),
            4 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Read { at, len }),
            2 => (at, len).prop_map(|(at, len)| Op::Announce { at, len }),
            1 => Just(Op::Sync),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is held back or fetched: reads see all writes so far, and after a sync the
        /// memory holds exactly what plain writes would have left.
        #[test]
        fn is_plain_memory_to_its_user(ops in prop::collection::vec(op(), 1..60)) {
            const LEN: usize = 180_000;
            let (memory, _bytes, addr) = arena(LEN);
            let mut model = vec![0u8; LEN];
            let mut staging = Staging::new();
            for op in ops {
                match op {
                    Op::Write { at, len, value } => {
                        staging.write(&memory, addr + at as u64, &vec![value; len]).unwrap();
                        model[at..at + len].fill(value);
                    }
                    Op::Read { at, len } => {
                        let mut buf = vec![0xa5; len];
                        staging.read(&memory, addr + at as u64, &mut buf).unwrap();
                        prop_assert!(buf == model[at..at + len]);
                    }
                    Op::Announce { at, len } => {
                        staging.read_ahead(&memory, addr + at as u64, len as u64);
                    }
                    Op::Sync => staging.sync().unwrap(),
                }
            }
            staging.sync().unwrap();
            prop_assert!(behind(&memory, addr, LEN) == model);
        }
    }
}
