//! Memory that a program does not want its children to have (`MADV_DONTFORK`): a child has none of
//! it, as before it was remapped, and nobody waits until it is copied.

use super::areas::{Area, hexadecimal};
use super::{Locked, listed, pointer};
use crate::memory::region::page_size;
use rustix::mm::Advice;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// The program has ever asked for it: only then is looked for what is excluded, for that takes
/// milliseconds in a large program.
static IS_ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// Takes note of what the program has asked for by `madvise`: that its children have this range
/// (`MADV_DOFORK`), or not (`MADV_DONTFORK`). Waits for nobody unless some of it is remapped.
pub fn note_inheritance(addr: u64, len: u64, is_inherited: bool) {
    if !is_inherited {
        IS_ASKED_FOR.store(true, Ordering::Relaxed);
    }
    let end =
        addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size() as u64));
    let Some(end) = end else { return };
    if !listed::overlap(&(addr..end)) {
        return;
    }
    let Some(state) = Locked::state() else { return };
    for remapped in state.remapped.iter().filter_map(Weak::upgrade) {
        let all = remapped.addr..remapped.addr + remapped.len;
        let part = intersection(&(addr..end), &all);
        if !part.is_empty() && remapped.process.is_this() {
            remapped.excluded.note(&part, is_inherited);
            // The program has just let children share the view: they are to have a copy, which
            // is made when somebody forks.
            let areas = if is_inherited { Area::all().unwrap_or_default() } else { Vec::new() };
            for area in areas.iter().filter(|area| remapped.is_seen_in(area)) {
                exclude(&intersection(&area.range, &part));
            }
        }
    }
}

/// Has children made from now on lack a range, as far as it is mapped.
fn exclude(range: &Range<u64>) {
    if range.is_empty() {
        return;
    }
    let len = (range.end - range.start) as usize;
    // SAFETY: changes neither contents nor what is mapped.
    let _ = unsafe { rustix::mm::madvise(pointer(range.start), len, Advice::LinuxDontFork) };
}

/// Parts of a range that children do not have.
#[derive(Debug)]
pub(super) struct Excluded(Mutex<Vec<Range<u64>>>);

impl Excluded {
    /// Those of memory that is about to be remapped.
    pub(super) fn of(range: &Range<u64>) -> Excluded {
        let is_asked_for = IS_ASKED_FOR.load(Ordering::Relaxed);
        let found = is_asked_for.then(|| File::open("/proc/self/smaps").ok()).flatten();
        let found = found.map(|file| excluded_by(BufReader::new(file), range));
        Excluded(Mutex::new(found.unwrap_or_default()))
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, part: &Range<u64>, is_inherited: bool) {
        let mut parts = self.parts();
        *parts = parts.iter().flat_map(|other| without(other, part)).collect();
        if !is_inherited {
            parts.push(part.clone());
        }
    }

    /// What children have of a range.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.parts().iter().fold(vec![range.clone()], |rest, part| {
            rest.iter().flat_map(|piece| without(piece, part)).collect()
        })
    }

    /// Excludes them again within a range that was mapped anew.
    pub(super) fn apply(&self, range: &Range<u64>) {
        for part in self.parts().iter() {
            exclude(&intersection(part, range));
        }
    }
}

/// What two ranges have in common.
fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// What is left of a range without another.
fn without(range: &Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = range.start..range.end.min(other.start);
    let behind = range.start.max(other.end)..range.end;
    [before, behind].into_iter().filter(|piece| !piece.is_empty())
}

/// The parts of a range that `smaps` says children do not have: after each mapping, by address, it
/// has the flag `dc`.
fn excluded_by(smaps: impl BufRead, range: &Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut mapping = 0..0;
    for line in smaps.lines() {
        let Ok(line) = line else { break };
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("VmFlags:") => {
                let part = intersection(range, &mapping);
                if !part.is_empty() && words.any(|flag| flag == "dc") {
                    found.push(part);
                }
            }
            Some(word) => {
                if let Some(next) = hexadecimal(word) {
                    mapping = next;
                }
            }
            None => {}
        }
        if mapping.start >= range.end {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ranges: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        ranges.into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn mappings_that_children_do_not_have_are_found() {
        let smaps = "\
1000-3000 rw-p 00000000 00:00 0
Size: 8 kB
VmFlags: rd wr mr mw me ac dc
3000-5000 rw-p 00000000 00:00 0    [heap]
Rss: 8 kB
VmFlags: rd wr mr mw me ac
5000-9000 rw-p 00000000 00:00 0
VmFlags: rd wr dc mr
9000-a000 rw-p 00000000 00:00 0
VmFlags: rd wr dc mr
";
        let of = |start, end| ends(excluded_by(smaps.as_bytes(), &(start..end)));
        assert_eq!(of(0x2000, 0x6000), [(0x2000, 0x3000), (0x5000, 0x6000)]);
        assert_eq!(of(0x3000, 0x5000), []);
        assert_eq!(of(0x9000, 0xa000), [(0x9000, 0xa000)]);
    }

    #[test]
    fn the_last_word_about_a_part_counts() {
        let excluded = Excluded(Mutex::default());
        let rest = || ends(excluded.rest_of(&(0..100)));
        excluded.note(&(10..20), false);
        assert_eq!(rest(), [(0, 10), (20, 100)]);
        excluded.note(&(15..30), false);
        assert_eq!(rest(), [(0, 10), (30, 100)]);
        excluded.note(&(12..18), true);
        assert_eq!(rest(), [(0, 10), (12, 18), (30, 100)]);
        assert_eq!(ends(excluded.rest_of(&(13..16))), [(13, 16)]);
        excluded.note(&(0..100), true);
        assert_eq!(rest(), [(0, 100)]);
        excluded.note(&(0..100), false);
        assert_eq!(rest(), []);
    }
}
