//! The programs' memory, as the engine and as the programs see it.
//!
//! A host may hold back the engine's writes until `sync`. This one always does: a completion or
//! an acknowledgement that comes before its `sync` shows stale bytes, and a checker sees it. The
//! order of the writes, as a program that polls its memory could see it, can be recorded.

use std::ops::Range;
use urxe_engine::{MemoryFault, RegionId};

/// All regions of one host.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    held_back: Vec<(RegionId, Range<usize>)>,
    /// A region, and the accesses until it is unmapped.
    unmapped_after: Option<(RegionId, u32)>,
    /// The order of stores, if it is recorded.
    stores: Option<Vec<Store>>,
}

/// A step in which memory changes, as a program that polls it sees it at the earliest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// Bytes, in any order with the writes before and after it up to a barrier.
    Write {
        /// Where.
        region: RegionId,
        /// Offset of the first byte.
        at: usize,
        bytes: Vec<u8>,
    },
    /// A number at this offset; everything before it comes before, everything after it after it.
    Atomic {
        /// Where.
        region: RegionId,
        /// Offset of its first byte.
        at: usize,
        /// The number.
        value: u64,
    },
    /// Everything before becomes visible before everything after.
    Barrier,
    /// Everything before is visible.
    Sync,
}

#[derive(Debug)]
struct Region {
    /// With the writes that are held back.
    engine: Vec<u8>,
    /// Without them.
    program: Vec<u8>,
    unmapped: Unmapped,
}

/// What is left of a region that was unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmapped {
    /// All of it.
    No,
    /// Nothing, and every access says so.
    Yes,
    /// Nothing, but writes are taken and only `sync` says so.
    WritesTaken,
}

impl Memory {
    /// Adds a region with this content.
    pub fn add(&mut self, content: Vec<u8>) -> RegionId {
        let program = content.clone();
        self.add_region(content, program)
    }

    /// Adds a region of so many zeros, which takes no memory where nothing is written.
    pub fn add_zeros(&mut self, len: usize) -> RegionId {
        self.add_region(vec![0; len], vec![0; len])
    }

    fn add_region(&mut self, engine: Vec<u8>, program: Vec<u8>) -> RegionId {
        self.regions.push(Region { engine, program, unmapped: Unmapped::No });
        RegionId(self.regions.len() as u32 - 1)
    }

    /// Adds more bytes at the end of a region.
    pub fn extend(&mut self, region: RegionId, content: &[u8]) {
        let region = &mut self.regions[region.0 as usize];
        region.engine.extend_from_slice(content);
        region.program.extend_from_slice(content);
    }

    /// What the program sees.
    pub fn program(&self, region: RegionId) -> &[u8] {
        &self.regions[region.0 as usize].program
    }

    /// The program writes.
    pub fn program_write(&mut self, region: RegionId, offset: usize, data: &[u8]) {
        let region = &mut self.regions[region.0 as usize];
        region.program[offset..offset + data.len()].copy_from_slice(data);
        region.engine[offset..offset + data.len()].copy_from_slice(data);
    }

    /// The program unmaps the region: the engine's accesses fail, `late` says whether its writes
    /// do so only in `sync`.
    pub fn unmap(&mut self, region: RegionId, late: bool) {
        let unmapped = if late { Unmapped::WritesTaken } else { Unmapped::Yes };
        self.regions[region.0 as usize].unmapped = unmapped;
    }

    /// The program unmaps the region as the engine accesses it for the `accesses`-th time.
    pub fn unmap_after(&mut self, region: RegionId, accesses: u32) {
        self.unmapped_after = Some((region, accesses));
    }

    /// Whether the engine's writes are all visible to the program.
    pub fn is_synced(&self) -> bool {
        self.held_back.is_empty()
    }

    /// Records from now on in which order memory changes.
    pub fn record_stores(&mut self) {
        self.stores = Some(Vec::new());
    }

    /// The recorded steps in which memory changed, since this was last asked.
    pub fn take_stores(&mut self) -> Vec<Store> {
        self.stores.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn record(&mut self, store: impl FnOnce() -> Store) {
        if let Some(stores) = &mut self.stores {
            stores.push(store());
        }
    }

    /// The engine orders its writes.
    pub fn barrier(&mut self) {
        self.record(|| Store::Barrier);
    }

    /// The engine reads.
    pub fn read(&mut self, region: RegionId, at: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        let region = self.access(region)?;
        let at = at as usize;
        buf.copy_from_slice(&region.engine[at..at + buf.len()]);
        Ok(())
    }

    /// The engine writes.
    pub fn write(&mut self, id: RegionId, at: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let at = at as usize;
        let range = at..at + data.len();
        let taken_anyway = self.regions[id.0 as usize].unmapped == Unmapped::WritesTaken;
        match self.access(id) {
            Ok(region) => region.engine[range.clone()].copy_from_slice(data),
            Err(_) if taken_anyway => {}
            Err(fault) => return Err(fault),
        }
        self.held_back.push((id, range));
        self.record(|| Store::Write { region: id, at, bytes: data.to_vec() });
        Ok(())
    }

    /// The engine makes its writes visible.
    pub fn sync(&mut self) -> Result<(), MemoryFault> {
        self.record(|| Store::Sync);
        let mut result = Ok(());
        for (id, range) in self.held_back.drain(..) {
            let region = &mut self.regions[id.0 as usize];
            match region.unmapped {
                Unmapped::No => {
                    region.program[range.clone()].copy_from_slice(&region.engine[range]);
                }
                _ => result = Err(MemoryFault),
            }
        }
        result
    }

    /// The engine replaces a number by what `change` makes of it; what it was.
    pub fn atomic(
        &mut self,
        id: RegionId,
        at: u64,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        let region = self.access(id)?;
        let range = at as usize..at as usize + 8;
        let word = region.engine[range.clone()].try_into().expect("8 bytes");
        let was = u64::from_ne_bytes(word);
        let value = change(was);
        region.engine[range.clone()].copy_from_slice(&value.to_ne_bytes());
        self.held_back.push((id, range));
        self.record(|| Store::Atomic { region: id, at: at as usize, value });
        Ok(was)
    }

    fn access(&mut self, id: RegionId) -> Result<&mut Region, MemoryFault> {
        if let Some((region, left)) = &mut self.unmapped_after
            && *region == id
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.unmap(id, false);
                self.unmapped_after = None;
            }
        }
        match &mut self.regions[id.0 as usize] {
            region if region.unmapped == Unmapped::No => Ok(region),
            _ => Err(MemoryFault),
        }
    }
}
