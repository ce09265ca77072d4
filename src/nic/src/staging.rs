//! Memory of a program that costs a system call to reach, with fewer and larger accesses: writes
//! are held back and joined ([`WriteCombiner`]), reads that were announced are fetched at once
//! ([`ReadAhead`]).

use crate::limits::HELD_WRITE_LEN;
use crate::read_ahead::ReadAhead;
use crate::write_combiner::WriteCombiner;
use std::sync::Arc;
use urxe_engine::MemoryFault;
use urxe_shm::memory::process_memory::ProcessMemory;

/// Held-back writes and fetched reads.
pub(crate) struct Staging {
    writes: WriteCombiner,
    ahead: ReadAhead,
}

impl Staging {
    pub(crate) fn new() -> Staging {
        Staging { writes: WriteCombiner::new(HELD_WRITE_LEN), ahead: ReadAhead::new() }
    }

    /// Writes, now or by the next [`sync`](Self::sync), after all writes before.
    pub(crate) fn write(
        &mut self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        self.ahead.forget_overlapping(memory, addr, data.len() as u64);
        self.writes.write(memory, addr, data)
    }

    /// Writes at once and by itself, after all writes before. If one of those has failed, nothing
    /// is written, and it is still for [`sync`](Self::sync) to tell.
    pub(crate) fn write_alone(
        &mut self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        self.writes.carry_out()?;
        self.ahead.forget_overlapping(memory, addr, data.len() as u64);
        memory.write(addr, data).map_err(|_| MemoryFault)
    }

    /// Has everything so far become visible before all that is written later, and its last bytes
    /// last.
    pub(crate) fn barrier(&mut self) {
        self.writes.barrier();
    }

    /// Has all writes so far become visible before a store that is not made here, to memory that
    /// may be the same as some of this. If one of them has failed, that is still for
    /// [`sync`](Self::sync) to tell.
    pub(crate) fn before_store(&mut self) -> Result<(), MemoryFault> {
        self.ahead.forget();
        self.writes.carry_out()
    }

    /// Reads what the program and all writes so far have put there.
    pub(crate) fn read(
        &mut self,
        memory: &Arc<ProcessMemory>,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), MemoryFault> {
        if self.ahead.copy_fetched(memory, addr, buf) {
            return Ok(());
        }
        let fetch = self.ahead.worth_fetching(memory, addr, buf.len());
        // MEM-013
        if self.writes.overlaps(memory, addr, buf.len().max(fetch) as u64) {
            self.writes.carry_out()?;
        }
        if fetch > 0 {
            self.ahead.fetch(memory, addr, fetch);
            if self.ahead.copy_fetched(memory, addr, buf) {
                return Ok(());
            }
        }
        memory.read(addr, buf).map_err(|_| MemoryFault)
    }

    /// Says that this stretch is going to be read, soon and from its start.
    pub(crate) fn read_ahead(&mut self, memory: &Arc<ProcessMemory>, addr: u64, len: u64) {
        self.ahead.announce(memory, addr, len);
    }

    /// Whether any writes are held back.
    pub(crate) fn holds_writes(&self) -> bool {
        self.writes.holds_any()
    }

    /// Forgets what was fetched: the program may have changed it since.
    pub(crate) fn forget_reads(&mut self) {
        self.ahead.forget();
    }

    /// Carries out all held-back writes. An error tells of every write since the last time.
    pub(crate) fn sync(&mut self) -> Result<(), MemoryFault> {
        self.writes.sync()
    }

    /// Lets go of a program's memory.
    pub(crate) fn release(&mut self, memory: &Arc<ProcessMemory>) {
        self.writes.release(memory);
        self.ahead.release(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use urxe_shm::memory::process_memory::open_own;

    /// Our own memory, as a program would pass it.
    fn own_memory() -> Arc<ProcessMemory> {
        Arc::new(ProcessMemory::accept(open_own().unwrap()).unwrap())
    }

    /// Memory that is only touched through the descriptor while a test runs.
    fn arena(len: usize) -> (Arc<ProcessMemory>, Vec<u8>, u64) {
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
        Barrier,
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
            2 => Just(Op::Barrier),
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
                    Op::Barrier => staging.barrier(),
                    Op::Sync => staging.sync().unwrap(),
                }
            }
            staging.sync().unwrap();
            prop_assert!(behind(&memory, addr, LEN) == model);
        }
    }
}
