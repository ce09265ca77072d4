//! Memory shared between processes: making it, accepting it, reaching into it.
//!
//! Most of the project's `unsafe` is here, and it all rests on two arguments.
//!
//! *The bytes are there.* A [`Mapping`] is mapped once, never moved, and unmapped when it is
//! dropped; every access is checked against its length. The file behind it may end before it
//! does, in which case touching what lies beyond is a `SIGBUS`, that is a dead process and not
//! undefined behaviour; so that nobody can do that *to* us, we only map memfds that are sealed
//! against shrinking.
//!
//! *They may change at any moment.* Another process writes to them as it likes, so nothing here
//! makes a reference to plain data into a mapping, only to atomics, and everything else is copied.
//! Whoever makes one through [`Mapping::base`] answers for it, and uses it only while nobody
//! touches the same bytes: the slices that `as_slice` and `as_mut_slice` of the client library's
//! `Mr` give are such, by the promises of their callers.
//! [`Mapping::read`] and [`Mapping::write`] copy with `ptr::copy_nonoverlapping` (the latter all
//! but the last word, which it stores after that). Strictly, a race between two such copies in one
//! process is undefined in Rust's memory model, which has no bytewise atomic copy yet, and says
//! nothing of other processes at all. In practice the call is a `memcpy` behind a pointer whose
//! origin the compiler does not know (`mmap`), into or out of a buffer that is ours alone, and no
//! decision depends on the bytes being read twice or torn; rust-vmm's `volatile_memory` takes the
//! same stand for the memory of a virtual machine, and an RNIC would tear them too. What we
//! *decide* by, ring entries and indices, is read through atomics word by word instead, through a
//! [`Window`].

use crate::memory::store_order::copy_last_bytes_last;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Size of a page in bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Makes a memfd of `len` zero bytes that can be handed out: nobody can shrink it, or forbid us
/// to grow it.
pub fn create_memfd(name: &str, len: u64) -> io::Result<OwnedFd> {
    create_sealed(name, len, SealFlags::SHRINK)
}

/// Makes a memfd of `len` zero bytes whose size nobody can change.
pub fn create_memfd_of_fixed_size(name: &str, len: u64) -> io::Result<OwnedFd> {
    create_sealed(name, len, SealFlags::SHRINK | SealFlags::GROW)
}

/// How many bytes a file that is kept in memory can have: its size, if nobody can change that.
/// `None` if it is a file of another kind.
pub fn most_bytes_in_memory(fd: impl AsFd) -> Option<u64> {
    let seals = rustix::fs::fcntl_get_seals(&fd).ok()?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Some(u64::MAX);
    }
    Some(rustix::fs::fstat(&fd).map_or(u64::MAX, |file| file.st_size as u64))
}

fn create_sealed(name: &str, len: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag; newer ones ask for it.
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SEAL)?;
    Ok(fd)
}

/// An access outside of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie within {size} bytes of shared memory")]
pub struct OutOfBounds {
    /// Where the access begins.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// How long the memory is, in bytes.
    pub size: u64,
}

/// An atomic access, or a window, that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// It lies outside.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// Its address in our address space is not what it must be a multiple of.
    #[error("offset {offset} in shared memory is not aligned to {align} bytes")]
    Misaligned {
        /// Where it is.
        offset: u64,
        /// What it must be a multiple of, in bytes.
        align: usize,
    },
}

/// Memory that a program offers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ForeignMemoryError {
    /// It is no memfd, or was made without `MFD_ALLOW_SEALING`.
    #[error("the descriptor is not a memfd that allows sealing")]
    NotMemfd,
    /// The program could shrink it, and so kill whoever touches it.
    #[error("the memfd is not sealed with F_SEAL_SHRINK")]
    NotSealed,
    /// It is made of huge pages, which may be missing when they are touched.
    #[error("the memfd is made of huge pages")]
    HugePages,
    /// It ends before the offered range does.
    #[error("the memfd has {size} bytes, which {len} bytes at offset {offset} do not lie within")]
    TooShort {
        /// Where the range begins.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Length of the memfd in bytes.
        size: u64,
    },
    /// The system refuses.
    #[error("the memfd cannot be mapped: {0}")]
    Os(#[from] io::Error),
}

/// A part of a memfd in our address space, readable and writable, shared with whoever else has
/// the memfd.
#[derive(Debug)]
pub struct Mapping {
    /// First byte asked for: up to a page behind `pages`.
    base: NonNull<u8>,
    len: usize,
    /// What was mapped.
    pages: NonNull<u8>,
    pages_len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and the value owns it alone.
unsafe impl Send for Mapping {}
// SAFETY: all access through `&self` is atomic, or a copy that the module's second argument
// covers; there is nothing else to race with.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on, which need not be a multiple of anything.
    /// The range may reach beyond the end of the file, as long as nobody touches what lies there.
    pub fn new(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let lead = offset % page_size() as u64;
        let pages_len = len.checked_add(lead as usize).ok_or(Errno::NOMEM)?;
        // SAFETY: a null hint without MAP_FIXED: the kernel chooses where, and replaces nothing.
        let pages = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                pages_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                offset - lead,
            )?
        };
        let pages = NonNull::new(pages.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: `lead` is below `pages_len`, for `mmap` refuses a length of 0.
        let base = unsafe { pages.add(lead as usize) };
        Ok(Self { base, len, pages, pages_len })
    }

    /// Maps memory that a stranger offers, if it is of a kind that cannot be pulled from under
    /// our feet. Nothing can take that back afterwards.
    pub fn of_foreign(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
    ) -> Result<Self, ForeignMemoryError> {
        const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ForeignMemoryError::NotMemfd)?;
        if rustix::fs::fstatfs(fd).map_err(io::Error::from)?.f_type as u64 == HUGETLBFS_MAGIC {
            return Err(ForeignMemoryError::HugePages);
        }
        // MEM-010
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ForeignMemoryError::NotSealed);
        }
        // Read after the seal was seen: from here on it can only grow.
        let size = rustix::fs::fstat(fd).map_err(io::Error::from)?.st_size as u64;
        match (offset.checked_add(len), usize::try_from(len)) {
            (Some(end), Ok(len)) if end <= size => Ok(Self::new(fd, offset, len)?),
            _ => Err(ForeignMemoryError::TooShort { offset, len, size }),
        }
    }

    /// Has a core file of this process not contain it. Where the system refuses that, it does.
    pub fn leave_out_of_core_files(&self) {
        // CLIENT-019
        let advice = rustix::mm::Advice::LinuxDontDump;
        // SAFETY: exactly what `new` mapped; it changes nothing of what is there.
        let _ = unsafe { rustix::mm::madvise(self.pages.as_ptr().cast(), self.pages_len, advice) };
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte. The pointer is good for [`len`](Self::len) bytes, as long as the mapping
    /// lives. What is done through it is the caller's to justify, here and in other processes;
    /// above all, a reference made through it must not be in use while anything else, such as
    /// [`write`](Self::write), touches the same bytes.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies out of the mapping.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, buf.len() as u64)?;
        // SAFETY: `at` has checked that the source lies in the mapping; `buf` does not, for a slice
        // of it, which only `base` could have led to, is not in use while this runs. Concurrent
        // writers: see the module's text.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    /// Copies into the mapping: after what was written before, and the last bytes last
    /// ([`store_order`](crate::memory::store_order)).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.at(offset, data.len() as u64)?;
        // SAFETY: `at` has checked that the target lies in the mapping; `data` does not, as in
        // `read`, and no other slice of the same bytes is in use. Concurrent readers: see the
        // module's text.
        unsafe { copy_last_bytes_last(target, data) };
        Ok(())
    }

    /// Atomically: if the 8 bytes at `offset` equal `compare`, makes them `swap`. Returns what
    /// was there.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, AccessError> {
        let order = Ordering::SeqCst;
        let word = self.atomic_u64(offset)?;
        Ok(word.compare_exchange(compare, swap, order, order).unwrap_or_else(|was| was))
    }

    /// Atomically adds to the 8 bytes at `offset`, wrapping. Returns what was there.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        Ok(self.atomic_u64(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Atomically puts 8 bytes at `offset`.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        self.atomic_u64(offset)?.store(value, Ordering::SeqCst);
        Ok(())
    }

    fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        let word = self.at(offset, size_of::<AtomicU64>() as u64)?.cast::<AtomicU64>();
        if !word.is_aligned() {
            return Err(AccessError::Misaligned { offset, align: size_of::<AtomicU64>() });
        }
        // SAFETY: the 8 bytes lie in the mapping, which outlives the borrow of `self`, and are
        // aligned. An atomic may be shared with anybody.
        Ok(unsafe { word.as_ref() })
    }

    /// Where `len` bytes at `offset` are, if they all lie in the mapping.
    fn at(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let size = self.len as u64;
        match offset.checked_add(len) {
            // SAFETY: `offset` is at most the mapping's length.
            Some(end) if end <= size => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(OutOfBounds { offset, len, size }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and every borrow of it has ended. It cannot fail
        // for a range that is mapped.
        let _ = unsafe { rustix::mm::munmap(self.pages.as_ptr().cast(), self.pages_len) };
    }
}

/// A part of a mapping that begins at a cache line: the place of a ring, or of the doorbells.
///
/// Its accessors take offsets that its user has computed and not been told; an offset that is
/// out of bounds or misaligned is a bug and panics.
#[derive(Clone, Debug)]
pub struct Window {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Window {
    /// The `len` bytes at `offset` of a mapping.
    pub fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, AccessError> {
        const CACHE_LINE: usize = 64;
        let base = mapping.at(offset, len)?;
        if !base.addr().get().is_multiple_of(CACHE_LINE) {
            return Err(AccessError::Misaligned { offset, align: CACHE_LINE });
        }
        Ok(Self { mapping, offset: offset as usize, len: len as usize })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        let word = self.at::<AtomicU32>(offset, 1);
        // SAFETY: `at` has checked that the word lies in the mapping, which the borrow of `self`
        // keeps alive, and that it is aligned. An atomic may be shared with anybody.
        unsafe { word.as_ref() }
    }

    /// `count` 64-bit words from `offset` on, a multiple of 8.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let first = self.at::<AtomicU64>(offset, count);
        // SAFETY: `at` has checked that the words lie in the mapping, which the borrow of `self`
        // keeps alive, and that they are aligned. Atomics may be shared with anybody.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// Copies out of the window, 64 bits at a time, so that what is then checked and used cannot
    /// change any more. `offset` is a multiple of 8, and the last word lies wholly inside.
    pub(crate) fn load(&self, offset: usize, buf: &mut [u8]) {
        let words = self.words(offset, buf.len().div_ceil(8));
        let (whole, rest) = buf.as_chunks_mut();
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if let Some(word) = words.get(whole.len()) {
            rest.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
        }
    }

    /// Copies into the window, 64 bits at a time; what the last word has left is filled with
    /// zeros. `offset` is a multiple of 8, and the last word lies wholly inside.
    pub(crate) fn store(&self, offset: usize, data: &[u8]) {
        let words = self.words(offset, data.len().div_ceil(8));
        let (whole, rest) = data.as_chunks();
        for (&chunk, word) in whole.iter().zip(words) {
            word.store(u64::from_ne_bytes(chunk), Ordering::Relaxed);
        }
        if let Some(word) = words.get(whole.len()) {
            let mut chunk = [0; 8];
            chunk[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(chunk), Ordering::Relaxed);
        }
    }

    /// Where `count` values of a type are.
    fn at<T>(&self, offset: usize, count: usize) -> NonNull<T> {
        let fits = offset <= self.len && count <= (self.len - offset) / size_of::<T>();
        assert!(fits, "{count} words at {offset} in a window of {} bytes", self.len);
        // SAFETY: the window lies in the mapping, and `offset` in the window.
        let first = unsafe { self.mapping.base.add(self.offset + offset).cast::<T>() };
        assert!(first.is_aligned(), "a misaligned word at {offset} in a window");
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_fixed_size_has_no_more_bytes_than_that() {
        let fixed = create_memfd_of_fixed_size("test", 5000).unwrap();
        assert_eq!(most_bytes_in_memory(fixed), Some(5000));
        assert_eq!(most_bytes_in_memory(create_memfd("test", 5000).unwrap()), Some(u64::MAX));
        assert_eq!(most_bytes_in_memory(rustix::pipe::pipe().unwrap().0), None);
    }
    use proptest::prelude::*;
    use urxe_shell::testing::could_not_run;

    fn mapping(len: usize) -> Mapping {
        Mapping::new(create_memfd("test", len as u64).unwrap(), 0, len).unwrap()
    }

    fn foreign(fd: &OwnedFd, offset: u64, len: u64) -> Result<Mapping, ForeignMemoryError> {
        Mapping::of_foreign(fd.as_fd(), offset, len)
    }

    proptest! {
        /// Writes and reads are those of a vector, and what lies outside is refused whole.
        #[test]
        fn a_mapping_behaves_as_bytes_do(
            accesses in prop::collection::vec(
                (0..5000u64, prop::collection::vec(any::<u8>(), 0..3000)), 0..10,
            ),
        ) {
            const LEN: usize = 4097;
            let (mapping, mut model) = (mapping(LEN), vec![0; LEN]);
            for (offset, data) in accesses {
                let end = offset as usize + data.len();
                let result = mapping.write(offset, &data);
                if end <= LEN {
                    prop_assert_eq!(result, Ok(()));
                    model[offset as usize..end].copy_from_slice(&data);
                } else {
                    let (len, size) = (data.len() as u64, LEN as u64);
                    prop_assert_eq!(result, Err(OutOfBounds { offset, len, size }));
                }
                let mut read = vec![0; LEN];
                mapping.read(0, &mut read).unwrap();
                prop_assert_eq!(&read, &model);
            }
        }

        /// A window's loads and stores are those of a vector, too, but for the last word, which
        /// is always written whole.
        #[test]
        fn a_window_copies_any_length(
            word in 0..100usize,
            data in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mapping = Arc::new(mapping(1000 + 64));
            let window = Window::new(mapping.clone(), 64, 1000).unwrap();
            mapping.write(64, &[0xa5; 1000]).unwrap();
            window.store(word * 8, &data);
            let mut expected = vec![0xa5; 1000];
            expected[word * 8..][..data.len().next_multiple_of(8)].fill(0);
            expected[word * 8..][..data.len()].copy_from_slice(&data);
            let mut whole = vec![0; 1000];
            mapping.read(64, &mut whole).unwrap();
            prop_assert_eq!(whole, expected);
            let mut back = vec![0; data.len()];
            window.load(word * 8, &mut back);
            prop_assert_eq!(back, data);
        }
    }

    #[test]
    fn accesses_that_wrap_around_are_out_of_bounds() {
        let mapping = mapping(4096);
        let error = |offset, len| OutOfBounds { offset, len, size: 4096 };
        assert_eq!(mapping.read(u64::MAX, &mut [0; 2]), Err(error(u64::MAX, 2)));
        assert_eq!(mapping.write(4096, &[1]), Err(error(4096, 1)));
        assert_eq!(mapping.write(4096, &[]), Ok(()));
        assert_eq!(mapping.fetch_add(4089, 1), Err(error(4089, 8).into()));
    }

    #[test]
    fn atomics_change_eight_bytes() {
        let mapping = mapping(4096);
        mapping.write(8, &5u64.to_ne_bytes()).unwrap();
        assert_eq!(mapping.fetch_add(8, u64::MAX), Ok(5));
        assert_eq!(mapping.compare_swap(8, 5, 9), Ok(4), "no match, no change");
        assert_eq!(mapping.compare_swap(8, 4, 9), Ok(4));
        let mut bytes = [0; 24];
        mapping.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[8..16], 9u64.to_ne_bytes());
        assert!(bytes[..8].iter().chain(&bytes[16..]).all(|&byte| byte == 0));
        assert_eq!(mapping.fetch_add(4, 1), Err(AccessError::Misaligned { offset: 4, align: 8 }));
    }

    #[test]
    fn two_mappings_of_one_memfd_share_it_at_any_offset() {
        let fd = create_memfd("test", 10_000).unwrap();
        let (whole, part) = (Mapping::new(&fd, 0, 10_000).unwrap(), foreign(&fd, 4099, 5).unwrap());
        whole.write(4099, b"hello").unwrap();
        let mut bytes = [0; 5];
        part.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        assert_eq!(part.len(), 5);
        assert!(part.read(1, &mut bytes).is_err());
    }

    #[test]
    fn our_memfds_cannot_shrink_and_can_grow() {
        let fd = create_memfd("test", 4096).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 4095), Err(Errno::PERM));
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        assert_eq!(
            rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW),
            Err(Errno::PERM),
            "a program cannot forbid the daemon to grow it"
        );
    }

    #[test]
    fn memory_that_could_be_pulled_away_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(foreign(&unsealed, 0, 1), Err(ForeignMemoryError::NotSealed)));
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
        assert!(foreign(&unsealed, 0, 4096).is_ok(), "sealed by now");

        let plain = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(foreign(&plain, 0, 1), Err(ForeignMemoryError::NotSealed)));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(foreign(&pipe, 0, 1), Err(ForeignMemoryError::NotMemfd)));
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(matches!(foreign(&file, 0, 1), Err(ForeignMemoryError::NotMemfd)));
    }

    #[test]
    fn huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let huge = match rustix::fs::memfd_create("test", flags) {
            Ok(huge) => huge,
            Err(errno) => return could_not_run(&format!("no file of huge pages: {errno}")),
        };
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
        assert!(matches!(foreign(&huge, 0, 1), Err(ForeignMemoryError::HugePages)));
    }

    #[test]
    fn a_range_beyond_the_memfd_is_refused() {
        let fd = create_memfd("test", 4096).unwrap();
        for (offset, len) in [(0, 4097), (4096, 1), (1, u64::MAX), (u64::MAX, 2)] {
            assert!(matches!(
                foreign(&fd, offset, len),
                Err(ForeignMemoryError::TooShort { size: 4096, .. })
            ));
        }
    }

    #[test]
    fn a_range_of_nothing_is_refused_by_the_system() {
        let fd = create_memfd("test", 4096).unwrap();
        assert!(matches!(foreign(&fd, 0, 0), Err(ForeignMemoryError::Os(_))));
    }

    #[test]
    fn a_window_lies_on_cache_lines_of_its_mapping() {
        let mapping = Arc::new(mapping(4096));
        assert!(Window::new(mapping.clone(), 64, 4032).is_ok());
        assert_eq!(
            Window::new(mapping.clone(), 8, 64).unwrap_err(),
            AccessError::Misaligned { offset: 8, align: 64 }
        );
        assert_eq!(
            Window::new(mapping, 64, 4033).unwrap_err(),
            AccessError::OutOfBounds(OutOfBounds { offset: 64, len: 4033, size: 4096 })
        );
    }

    #[test]
    #[should_panic(expected = "in a window of 64 bytes")]
    fn an_offset_out_of_a_window_is_a_bug() {
        Window::new(Arc::new(mapping(4096)), 0, 64).unwrap().words(8, 8);
    }
}
