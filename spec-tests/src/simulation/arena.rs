//! Local memory of one program: where its work requests gather from and scatter to.

use crate::rng::Rng;
use crate::simulation::host::SimHost;
use crate::simulation::world::{Mr, Node};
use std::ops::Range;
use urxe_engine::PdId;
use urxe_types::{Access, Lkey, Sge};

/// Entries that a scatter/gather list may have.
pub const MAX_SGE: usize = 32;

/// A few MRs from which pieces are cut, each piece for one work request only, with unused bytes
/// between them: so the arena also knows which bytes must never change.
///
/// Most of an arena is never cut. So an MR has memory only as far as it was cut, and an access
/// behind that is a panic.
#[derive(Debug)]
pub struct Arena {
    mrs: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    mr: Mr,
    /// Of the MR.
    len: usize,
    /// The expected content, as far as it was cut.
    model: Vec<u8>,
    /// What follows it.
    content: Rng,
    /// Ranges whose content is not known, because of failed work requests.
    unknown: Vec<Range<usize>>,
    cut: usize,
}

impl Arena {
    /// An arena of `count` MRs of `len` random bytes each.
    pub fn new(rng: &mut Rng, node: &mut Node, pd: PdId, count: usize, len: usize) -> Arena {
        let part = |_| {
            let content = rng.clone().fork();
            // Runs of older seeds stay as they were with all of it drawn here.
            rng.skip(len as u64 / 8 + 1);
            let addr = rng.next_u64() >> rng.range(1..=40);
            let mr = node.reg_without_memory(pd, addr, Access::LOCAL_WRITE, len);
            Part { mr, len, model: Vec::new(), content, unknown: Vec::new(), cut: 0 }
        };
        Arena { mrs: (0..count).map(part).collect() }
    }

    /// Cuts a list of `len` bytes in at most `entries` pieces; `None` if there is not enough left.
    pub fn cut(&mut self, rng: &mut Rng, len: usize, entries: usize) -> Option<Vec<Sge>> {
        let mut sges = Vec::new();
        let mut left = len;
        let pieces = rng.range(1..=entries.min(MAX_SGE) as u64) as usize;
        for piece in (0..pieces).rev() {
            let length = match piece {
                0 => left,
                _ if rng.percent(10) => 0,
                _ => rng.range(0..=2 * left as u64 / (piece as u64 + 1)).min(left as u64) as usize,
            };
            sges.push(self.cut_piece(rng, length)?);
            left -= length;
        }
        Some(sges)
    }

    fn cut_piece(&mut self, rng: &mut Rng, length: usize) -> Option<Sge> {
        if length == 0 {
            // Nothing is checked of an entry without bytes.
            return Some(Sge {
                addr: rng.next_u64(),
                length: 0,
                lkey: Lkey(rng.next_u64() as u32),
            });
        }
        let first = rng.index(self.mrs.len());
        let gap = rng.range(0..=9) as usize;
        let count = self.mrs.len();
        let fits = |i: &usize| self.mrs[*i].cut + gap + length <= self.mrs[*i].len;
        let index = (0..count).map(|i| (first + i) % count).find(fits)?;
        let part = &mut self.mrs[index];
        let at = part.cut + gap;
        part.cut = at + length;
        part.grow();
        Some(Sge { addr: part.mr.addr + at as u64, length: length as u32, lkey: Lkey(part.mr.key) })
    }

    /// Gives its MRs their memory, as far as they were cut.
    pub fn lay_out(&self, host: &mut SimHost) {
        for Part { mr, model, .. } in &self.mrs {
            let laid_out = host.memory.program(mr.region).len();
            host.memory.extend(mr.region, &model[laid_out..]);
        }
    }

    /// The keys of its MRs.
    pub fn mrs(&self) -> impl Iterator<Item = Mr> + '_ {
        self.mrs.iter().map(|part| part.mr)
    }

    /// The expected content of the memory of a list.
    pub fn gather(&self, sges: &[Sge]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, at, len) in self.pieces(sges) {
            bytes.extend_from_slice(&self.mrs[index].model[at..at + len]);
        }
        bytes
    }

    /// The memory of a list now begins with `data`.
    pub fn scatter(&mut self, sges: &[Sge], data: &[u8]) {
        let mut left = data;
        for (index, at, len) in self.pieces(sges) {
            let (now, later) = left.split_at(len.min(left.len()));
            self.mrs[index].model[at..at + now.len()].copy_from_slice(now);
            left = later;
        }
    }

    /// The content of the memory of a list is not known any longer. (Entries with a key of another
    /// arena are ignored.)
    pub fn mark_unknown(&mut self, sges: &[Sge]) {
        for (index, at, len) in self.pieces(sges) {
            self.mrs[index].unknown.push(at..at + len);
        }
    }

    /// Compares with the memory of the program.
    ///
    /// # Panics
    /// If it is not what it must be.
    pub fn check(&self, host: &SimHost) {
        for Part { mr, model, unknown, .. } in &self.mrs {
            check_memory("MR of an arena", host.memory.program(mr.region), model, unknown);
        }
    }

    fn pieces(&self, sges: &[Sge]) -> Vec<(usize, usize, usize)> {
        let piece = |sge: &Sge| {
            let index = self.mrs.iter().position(|part| part.mr.key == sge.lkey.0)?;
            Some((index, (sge.addr - self.mrs[index].mr.addr) as usize, sge.length as usize))
        };
        sges.iter().filter(|sge| sge.length > 0).filter_map(piece).collect()
    }
}

impl Part {
    /// What was cut gets its content, with some bytes behind it that must never change.
    fn grow(&mut self) {
        let end = (self.cut + 64).next_multiple_of(8).min(self.len);
        let more = self.content.bytes(end.saturating_sub(self.model.len()));
        self.model.extend(more);
    }
}

/// Compares memory with its model, except for ranges of unknown content.
///
/// # Panics
/// If they differ.
pub fn check_memory(name: &str, found: &[u8], model: &[u8], unknown: &[Range<usize>]) {
    if found == model {
        return;
    }
    let mut model = model.to_vec();
    for range in unknown {
        model[range.clone()].copy_from_slice(&found[range.clone()]);
    }
    if let Some(at) = (0..model.len()).find(|&i| found[i] != model[i]) {
        panic!("{name}: byte {at} is {:#x}, and must be {:#x}", found[at], model[at]);
    }
}
