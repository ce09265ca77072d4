//! What is mapped where in this process: `/proc/self/maps`.

use super::{MEMFD_NAME, NotRemapped, system};
use std::io;
use std::ops::Range;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) range: Range<u64>,
    /// Of a file, mapped `MAP_SHARED`, readable and writable.
    pub(super) is_shared: bool,
    /// Of a memfd of ours, mapped `MAP_SHARED`.
    pub(super) is_remapped: bool,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Mapped `MAP_PRIVATE`.
    is_private: bool,
    /// Ordinary memory: private, anonymous, readable and writable, and no stack. What was remapped
    /// and given back is as good.
    pub(super) is_private_memory: bool,
    /// Where it begins in its file.
    pub(super) offset: u64,
    /// The file's; 0 if there is none.
    pub(super) inode: u64,
}

impl Area {
    /// All of this process, by address.
    pub(super) fn all() -> io::Result<Vec<Area>> {
        let text = std::fs::read("/proc/self/maps")?;
        let lines = String::from_utf8_lossy(&text);
        Ok(lines.lines().filter_map(Area::parse).collect())
    }

    /// Those that a range lies in, which leave no gap in it.
    pub(super) fn all_of(range: Range<u64>) -> Result<Vec<Area>, NotRemapped> {
        let mut areas = Area::all().map_err(system("reading /proc/self/maps"))?;
        areas.retain(|area| area.range.start < range.end && range.start < area.range.end);
        let mut covered = range.start;
        for area in areas.iter().filter(|area| area.range.start <= range.start) {
            covered = area.range.end;
        }
        for area in areas.iter().filter(|area| area.range.start > range.start) {
            if area.range.start == covered {
                covered = area.range.end;
            }
        }
        match covered >= range.end {
            true => Ok(areas),
            false => Err(NotRemapped::OtherMemory(covered)),
        }
    }

    /// A part of it.
    pub(super) fn part(&self, range: Range<u64>) -> Area {
        let offset = self.offset + (range.start - self.range.start);
        Area { range, offset, ..self.clone() }
    }

    /// Whether this is memory that the program may read and not write, and that is its own: whoever
    /// writes there by `/proc/<pid>/mem` is not kept from it. What it may not read either is left
    /// out, for memory is reserved so that it has not begun to use.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_private && self.is_readable && !self.is_writable
    }

    /// A line: `start-end rights offset device inode name`.
    fn parse(line: &str) -> Option<Area> {
        let mut words = line.split_ascii_whitespace();
        let range = hexadecimal(words.next()?)?;
        let rights = words.next().filter(|rights| rights.len() == 4)?;
        let offset = words.next()?;
        let _device = words.next()?;
        let inode = words.next()?.parse().ok()?;
        let name = words.next().unwrap_or_default();
        let is_plain = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
        let is_ours = name.strip_prefix("/memfd:") == Some(MEMFD_NAME);
        Some(Area {
            range,
            is_shared: rights == "rw-s",
            is_remapped: is_ours && rights.ends_with('s'),
            is_readable: rights.starts_with('r'),
            is_writable: rights[1..].starts_with('w'),
            is_private: rights.ends_with('p'),
            is_private_memory: rights == "rw-p" && (inode == 0 && is_plain || is_ours),
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode,
        })
    }
}

/// A range as it stands at the beginning of a line: `start-end`.
pub(super) fn hexadecimal(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_memory_is_ordinary() {
        let is_ordinary = |line| Area::parse(line).unwrap().is_private_memory;
        assert!(is_ordinary("55d0c000-55d2d000 rw-p 00000000 00:00 0                 [heap]"));
        assert!(is_ordinary("7f4a8c000000-7f4a8c021000 rw-p 00000000 00:00 0 "));
        assert!(is_ordinary("7f4a8c000000-7f4a8c021000 rw-p 00000000 00:00 0  [anon:my name]"));
        assert!(is_ordinary(
            "7f4a8c000000-7f4a8c021000 rw-p 00000000 00:01 9  /memfd:urxe-remapped (deleted)"
        ));
        for other in [
            "7ffd2a5e8000-7ffd2a609000 rw-p 00000000 00:00 0    [stack]",
            "7f4a8c000000-7f4a8c021000 rwxp 00000000 00:00 0 ",
            "7f4a8c000000-7f4a8c021000 r--p 00000000 00:00 0 ",
            "7f4a8c000000-7f4a8c021000 rw-s 00000000 00:01 1027  /memfd:x (deleted)",
            "7f4a8c000000-7f4a8c021000 rw-p 00000000 00:0f 1027  /anon_hugepage (deleted)",
            "7f4a8c000000-7f4a8c021000 rw-p 00001000 fe:01 77  /usr/lib/libc.so.6",
        ] {
            assert!(!is_ordinary(other), "{other}");
        }
        assert_eq!(Area::parse("nonsense"), None);
        assert_eq!(Area::parse(""), None);
    }

    #[test]
    fn memory_that_a_program_may_only_read_is_told_from_what_it_has_reserved() {
        for (rights, expected) in
            [("r--p", true), ("r-xp", true), ("rw-p", false), ("---p", false), ("r--s", false)]
        {
            let line = format!("7f4a8c000000-7f4a8c021000 {rights} 00000000 00:00 0 ");
            assert_eq!(Area::parse(&line).unwrap().is_read_only(), expected, "{rights}");
        }
    }

    #[test]
    fn our_own_memory_is_found_without_gaps() {
        let page = 0u8;
        let here = &raw const page as u64;
        let areas = Area::all_of(here..here + 1).unwrap();
        assert_eq!(areas.len(), 1);
        assert!(areas[0].range.contains(&here));
        // Below `vm.mmap_min_addr`, where nothing ever is.
        assert!(matches!(Area::all_of(4096..8192), Err(NotRemapped::OtherMemory(4096))));
        let gap = Area::all_of(areas[0].range.start..u64::MAX);
        assert!(matches!(gap, Err(NotRemapped::OtherMemory(_))), "{gap:?}");
    }
}
