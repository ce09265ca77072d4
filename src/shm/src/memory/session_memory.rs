//! A session's memfd in our address space, as far as it is in use.
//!
//! A session may have gigabytes of rings, and most have a few pages. So the memfd is mapped in
//! areas, when something is first wanted there: the first area is small, and each of the others is
//! as long as all before it. Rings never move, for areas stay where they are; a ring that lies in
//! two areas has a mapping of its own. So there are a few dozen mappings at most, of little more
//! than what is used, whatever is created and destroyed in whatever order.
//!
//! None of it is in a core file: it would be as long as all rings, and says little without the
//! other side.

use crate::memory::region::{AccessError, Mapping, OutOfBounds, Window};
use crate::ring::doorbell::DOORBELL_SIZE;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Length of the first area: the doorbells, and the rings of a few QPs.
const FIRST_AREA: u64 = 1 << 20;
const _: () = assert!(DOORBELL_SIZE <= FIRST_AREA);

/// A ring cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// It does not lie in the session's memory.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// There is no address space for it, or there are too many mappings.
    #[error("mapping {len} bytes of the session's memory: {source}")]
    Os {
        /// Bytes wanted.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// A session's memory.
#[derive(Debug)]
pub struct SessionMemory {
    memfd: OwnedFd,
    limit: u64,
    /// With the doorbells.
    first: Arc<Mapping>,
    /// The others that are mapped, by where they begin in the memfd.
    areas: Mutex<Vec<(u64, Arc<Mapping>)>>,
}

impl SessionMemory {
    /// Maps the beginning of a session's memfd, which may grow to `limit` bytes.
    pub fn new(memfd: OwnedFd, limit: u64) -> io::Result<Self> {
        let limit = limit.max(DOORBELL_SIZE);
        let first = Arc::new(map(&memfd, area_of(0, limit))?);
        Ok(Self { memfd, limit, first, areas: Mutex::default() })
    }

    /// The doorbell pages, and what lies next to them: the memfd from its first byte on.
    pub fn doorbells(&self) -> &Arc<Mapping> {
        &self.first
    }

    /// The `len` bytes at `offset` of the memfd.
    pub fn window(&self, offset: u64, len: u64) -> Result<Window, WindowError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.limit);
        let outside = OutOfBounds { offset, len, size: self.limit };
        let end = end.ok_or(AccessError::OutOfBounds(outside))?;
        let area = area_of(offset, self.limit);
        if end <= area.end
            && let Ok(mapping) = self.area(&area)
        {
            return Ok(Window::new(mapping, offset - area.start, len)?);
        }
        let own = map(&self.memfd, offset..end);
        let own = own.map_err(|source| WindowError::Os { len, source })?;
        Ok(Window::new(Arc::new(own), 0, len)?)
    }

    /// The memfd.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// Bytes that the memfd may grow to.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// An area, which is mapped now if it was not.
    fn area(&self, area: &Range<u64>) -> io::Result<Arc<Mapping>> {
        if area.start == 0 {
            return Ok(self.first.clone());
        }
        let mut areas = self.areas.lock();
        if let Some((_, mapping)) = areas.iter().find(|(start, _)| *start == area.start) {
            return Ok(mapping.clone());
        }
        let mapping = Arc::new(map(&self.memfd, area.clone())?);
        areas.push((area.start, mapping.clone()));
        Ok(mapping)
    }
}

/// The area that a byte lies in.
fn area_of(offset: u64, limit: u64) -> Range<u64> {
    let area = match offset.max(1).ilog2() {
        log2 if offset >= FIRST_AREA => (1 << log2)..(2 << log2),
        _ => 0..FIRST_AREA,
    };
    area.start..area.end.min(limit)
}

fn map(memfd: &OwnedFd, range: Range<u64>) -> io::Result<Mapping> {
    let len = range.end - range.start;
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mapping = Mapping::new(memfd, range.start, len)?;
    mapping.leave_out_of_core_files();
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::create_memfd;
    use crate::memory::region::page_size;
    use proptest::prelude::*;

    const LIMIT: u64 = 1 << 32;

    fn memory() -> SessionMemory {
        SessionMemory::new(create_memfd("session", LIMIT).unwrap(), LIMIT).unwrap()
    }

    /// Bytes mapped of the memfd.
    fn mapped(memory: &SessionMemory) -> usize {
        let areas = memory.areas.lock();
        memory.first.len() + areas.iter().map(|(_, mapping)| mapping.len()).sum::<usize>()
    }

    proptest! {
        /// Whatever is wanted where, it is the same bytes of the memfd for everybody, and no more
        /// is mapped than twice what lies before its end.
        #[test]
        fn windows_show_the_memfd_wherever_they_are(
            rings in prop::collection::vec((0..20u32, any::<u32>(), 1..300u64), 1..20),
        ) {
            let (memory, page) = (memory(), page_size() as u64);
            let mut end = FIRST_AREA;
            for (log2, offset, pages) in rings {
                let offset = u64::from(offset) % (page << log2);
                let (offset, len) = (offset - offset % page, pages * page);
                let Ok(window) = memory.window(offset, len) else {
                    prop_assert!(offset + len > LIMIT);
                    continue;
                };
                end = end.max(offset + len);
                window.store(0, &offset.to_ne_bytes());
                let mut bytes = [0; 8];
                rustix::io::pread(&memory.memfd, &mut bytes, offset).unwrap();
                prop_assert_eq!(u64::from_ne_bytes(bytes), offset);
            }
            prop_assert!(mapped(&memory) as u64 <= 2 * end);
        }
    }

    #[test]
    fn a_session_with_few_rings_maps_little() {
        let memory = memory();
        memory.window(DOORBELL_SIZE.next_multiple_of(page_size() as u64), 1 << 16).unwrap();
        assert_eq!(mapped(&memory) as u64, FIRST_AREA);
    }

    #[test]
    fn windows_beyond_the_limit_are_refused() {
        let memory = memory();
        for (offset, len) in [(LIMIT, 1), (LIMIT - 64, 65), (u64::MAX, 1), (0, LIMIT + 1)] {
            let refused = memory.window(offset, len);
            assert!(matches!(refused, Err(WindowError::Access(_))), "{offset} {len}");
        }
        assert!(memory.window(LIMIT - 64, 64).is_ok());
    }

    #[test]
    fn none_of_it_is_in_a_core_file() {
        let memory = memory();
        let window = memory.window(3 << 20, 4096).unwrap();
        window.store(0, &[1; 8]);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_memfd = smaps.split("VmFlags:").filter(|text| text.contains("memfd:session"));
        let count = of_memfd.count();
        let flags = smaps.lines().collect::<Vec<_>>();
        let mut left_out = 0;
        for (at, line) in flags.iter().enumerate() {
            if line.contains("memfd:session") {
                let flags = flags[at..].iter().find(|line| line.starts_with("VmFlags:")).unwrap();
                assert!(flags.contains(" dd"), "{line}: {flags}");
                left_out += 1;
            }
        }
        assert!(left_out >= 2 && left_out == count);
    }
}
