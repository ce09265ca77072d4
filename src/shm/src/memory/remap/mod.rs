//! Registered memory of a program, put into a memfd where it lies: the opt-in `URXE_MR=remap`.
//!
//! The daemon reaches ordinary memory by a system call for each copy
//! ([`process_memory`](crate::memory::process_memory)), shared memory by plain loads and stores. So
//! [`share`] copies a range into a memfd and maps that in its place: the same addresses and the
//! same bytes, but from then on anybody who has the memfd reaches them too. When the last
//! [`Shared`] of a range is dropped, the program gets memory back that is its own again.
//!
//! # How no write is lost
//! While the pages are copied (70 us for 64 KiB, 0.7 ms for 1 MiB), they are protected against
//! writing by a `userfaultfd` (`write_protect`): whoever writes waits until the new memory is in
//! place, and then writes there. That holds for other threads, and for system calls that write on
//! their behalf, which an ordinary user may not stop, however (`vm.unprivileged_userfaultfd`). For
//! him only a program of one thread is remapped, in which nobody is left to make such a call. Where
//! no `userfaultfd` can be had at all, nothing is remapped.
//!
//! # What is different in memory that was remapped
//! - A child does not have it (`MADV_DONTFORK`), as after `ibv_fork_init`. Otherwise it would
//!   share it with its parent, and not get a copy. So only whole pages are remapped, which hold
//!   nothing else than what is registered.
//! - `MADV_DONTNEED` does not zero it: the bytes are still in the memfd. Memory is to be given
//!   back to an allocator only when it is no longer registered, and then this is over too.
//! - Huge pages, NUMA placement, `mlock` and protection keys of the old pages are lost. What is
//!   pinned (by `io_uring` or `O_DIRECT`) still goes to the old pages.
//! - What the daemon writes while the pages are copied, through another registration of the same
//!   range, fails.

mod areas;
#[cfg(test)]
mod tests;
pub(crate) mod write_protect;

use crate::memory::process::Process;
use crate::memory::region::create_memfd;
use crate::memory::region::page_size;
use areas::Area;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use write_protect::{SignalsBlocked, WriteProtection};

/// The shortest range that is remapped, in bytes. Remapping takes 70 us, as seven copies through
/// the kernel would, so that a message of this length is worth it soon.
pub const MIN_LEN: u64 = 64 * 1024;

/// Ranges that are remapped at a time, at most: each costs the program a descriptor.
pub const MAX_RANGES: usize = 128;

/// Their descriptors are numbered from here on, out of the way of programs that count on low
/// numbers, or close them all.
const LOWEST_DESCRIPTOR: i32 = 512;

/// By which `/proc/<pid>/maps` shows what is remapped, and what was.
const MEMFD_NAME: &str = "urxe-remapped";

/// All that is remapped in this process.
static REMAPPED: Mutex<Vec<Weak<Remapped>>> = Mutex::new(Vec::new());

/// A range that stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum NotRemapped {
    /// Too little would be gained.
    #[error("{0} bytes are not remapped, expected {MIN_LEN} or more")]
    Short(u64),
    /// Somebody else's bytes lie in the same pages.
    #[error("{len} bytes at {addr:#x} are not remapped, expected whole pages")]
    PartialPages {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// It is mapped from a file, or shared already, or cannot be read and written.
    #[error(
        "memory at {0:#x} is not remapped, expected private anonymous memory, readable and writable"
    )]
    OtherMemory(u64),
    /// We could not go on while it is protected.
    #[error("{len} bytes at {addr:#x} are not remapped: they hold the stack of the calling thread")]
    OwnStack {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// System calls of the other threads could lose what they write.
    #[error(
        "memory is not remapped: the program has several threads, and only a privileged user may stop their system calls (see vm.unprivileged_userfaultfd)"
    )]
    Threads,
    /// As much is remapped as may be.
    #[error("memory is not remapped: {MAX_RANGES} ranges are, and there can be no more")]
    TooMany,
    /// Another thread is remapping.
    #[error("memory is not remapped: another thread is about it")]
    Busy,
    /// The system refuses.
    #[error("memory is not remapped: {step}: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// The error of a step.
fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> NotRemapped {
    move |error| NotRemapped::System { step, source: error.into() }
}

/// A range that lies in a memfd. While it lives, the range stays mapped, and it is to be kept
/// until the daemon has let go of the memfd.
#[derive(Debug)]
pub struct Shared {
    remapped: Arc<Remapped>,
    offset: u64,
}

impl Shared {
    /// The memfd, for [`Backing::Shared`](crate::control::Backing::Shared). It cannot shrink.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.remapped.memfd.as_fd()
    }

    /// Where the range begins in it.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Whether the user of this program wishes memory to be remapped.
pub fn is_wanted() -> bool {
    std::env::var_os("URXE_MR").is_some_and(|value| value == "remap")
}

/// Puts `len` bytes at `addr` into a memfd where they lie, unless they are in one already.
///
/// To the program nothing changes but what the [module](self) names, and if it is refused, nothing
/// at all. The caller knows that the range is memory that was given to it, as registering it says
/// anyway: nobody unmaps it meanwhile.
pub fn share(addr: u64, len: u64) -> Result<Shared, NotRemapped> {
    if len < MIN_LEN {
        return Err(NotRemapped::Short(len));
    }
    let page = page_size() as u64;
    let end = addr.checked_add(len).filter(|end| addr.is_multiple_of(page) && end % page == 0);
    let end = end.ok_or(NotRemapped::PartialPages { addr, len })?;
    let mut remapped = REMAPPED.try_lock().map_err(|_| NotRemapped::Busy)?;
    remapped.retain(|other| other.strong_count() > 0);
    let areas = Area::all_of(addr..end)?;
    if let [area] = &areas[..]
        && area.is_shared
    {
        let mut ranges = remapped.iter().filter_map(Weak::upgrade);
        let found = ranges.find(|range| range.inode == area.inode && range.has_its_memfd());
        let remapped = found.ok_or(NotRemapped::OtherMemory(addr))?;
        return Ok(Shared { remapped, offset: area.offset + (addr - area.range.start) });
    }
    if let Some(other) = areas.iter().find(|area| !area.is_private_memory) {
        return Err(NotRemapped::OtherMemory(other.range.start.max(addr)));
    }
    if write_protect::is_needed_by_caller(&(addr..end)) {
        return Err(NotRemapped::OwnStack { addr, len });
    }
    if remapped.len() >= MAX_RANGES {
        return Err(NotRemapped::TooMany);
    }
    let new = Arc::new(Remapped::new(addr, len)?);
    remapped.push(Arc::downgrade(&new));
    Ok(Shared { remapped: new, offset: 0 })
}

/// A range of the program's memory that was put into a memfd.
#[derive(Debug)]
struct Remapped {
    /// Open, unless the program has closed it though it was not its own.
    memfd: ManuallyDrop<OwnedFd>,
    inode: u64,
    addr: u64,
    len: u64,
    /// Whose memory it is: not that of a child.
    process: Process,
}

impl Remapped {
    fn new(addr: u64, len: u64) -> Result<Remapped, NotRemapped> {
        let memfd = create_memfd(MEMFD_NAME, len).map_err(system("memfd_create"))?;
        let memfd = rustix::io::fcntl_dupfd_cloexec(&memfd, LOWEST_DESCRIPTOR);
        let memfd = memfd.map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
        let inode = rustix::fs::fstat(&memfd).map_err(system("fstat"))?.st_ino;
        let process = Process::current().map_err(system("making a page that is wiped on fork"))?;
        let new = Replacement::of(&memfd, len)?;
        // From here to the end nothing may touch the range, nor what the program keeps beside
        // it: no memory is allocated, and no signal handler runs.
        let signals = SignalsBlocked::in_this_thread();
        let protection = WriteProtection::of(addr, len)?;
        copy(&memfd, addr, len).map_err(system("copying to the memfd"))?;
        new.move_to(addr)?;
        drop(protection);
        drop(signals);
        Ok(Remapped { memfd: ManuallyDrop::new(memfd), inode, addr, len, process })
    }

    /// Whether the descriptor still is what it was.
    fn has_its_memfd(&self) -> bool {
        rustix::fs::fstat(&*self.memfd).is_ok_and(|file| file.st_ino == self.inode)
    }
}

impl Drop for Remapped {
    /// Gives the program memory of its own again, wherever this is still mapped: first a private
    /// view of the memfd, from one moment to the next; then copies of all its pages; and when
    /// nothing of the memfd is seen any more, its pages are freed.
    fn drop(&mut self) {
        if !self.has_its_memfd() {
            return;
        }
        if self.process.is_this() && self.give_back_all().is_ok() {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&*self.memfd, mode, 0, self.len);
        }
        // SAFETY: this is the end; nobody uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memfd) };
    }
}

impl Remapped {
    fn give_back_all(&self) -> io::Result<()> {
        for area in Area::all()? {
            let is_ours = area.is_shared && area.inode == self.inode;
            let place = self.addr.checked_add(area.offset);
            if is_ours && place == Some(area.range.start) && area.range.end <= self.addr + self.len
            {
                self.give_back(&area)?;
            }
        }
        Ok(())
    }

    fn give_back(&self, area: &Area) -> Result<(), Errno> {
        let start = pointer(area.range.start);
        let len = (area.range.end - area.range.start) as usize;
        let (rights, flags) = (READ_WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the range was found to be a view of our memfd, and is replaced by another view
        // of the same bytes. (A program that has unmapped memory before deregistering it, and
        // maps something else just there in this moment, has not kept what `share` asks for.)
        unsafe { rustix::mm::mmap(start, len, rights, flags, &*self.memfd, area.offset)? };
        // SAFETY: populating changes neither contents nor what is mapped.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite) }
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn pointer(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

/// The memfd, mapped anywhere, until it is moved to its place.
struct Replacement<'a> {
    memfd: &'a OwnedFd,
    start: *mut c_void,
    len: usize,
}

impl Replacement<'_> {
    fn of(memfd: &OwnedFd, len: u64) -> Result<Replacement<'_>, NotRemapped> {
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM).map_err(system("mmap"))?;
        // SAFETY: a null hint without MAP_FIXED: the kernel chooses where, and replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, memfd, 0)
        };
        let new = Replacement { memfd, start: start.map_err(system("mmap"))?, len };
        // SAFETY: what was mapped just now, and nobody else knows of.
        unsafe { rustix::mm::madvise(new.start, len, Advice::LinuxDontFork) }
            .map_err(system("madvise(MADV_DONTFORK)"))?;
        // Now rather than with each page's first use, and if there is too little memory, now
        // rather than as a dead program.
        // SAFETY: populating changes neither contents nor what is mapped.
        unsafe { rustix::mm::madvise(new.start, len, Advice::LinuxPopulateWrite) }
            .map_err(system("madvise(MADV_POPULATE_WRITE)"))?;
        Ok(new)
    }

    /// Takes the place of what is mapped there, from one moment to the next.
    fn move_to(self, addr: u64) -> Result<(), NotRemapped> {
        let (place, flags) = (pointer(addr), MremapFlags::MAYMOVE);
        // SAFETY: what is replaced is private memory of the program, which nobody else maps and
        // the caller of `share` keeps mapped; the new pages hold the same bytes, for nobody
        // could write since they were copied. Pointers into it stay good.
        let moved =
            unsafe { rustix::mm::mremap_fixed(self.start, self.len, self.len, flags, place) };
        match moved {
            Ok(_) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(errno) => {
                let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
                // If the kernel had begun and was then out of memory, there is a hole.
                // SAFETY: replaces nothing.
                let _ =
                    unsafe { rustix::mm::mmap(place, self.len, READ_WRITE, flags, self.memfd, 0) };
                Err(system("mremap")(errno))
            }
        }
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        // SAFETY: what `of` has mapped, and nobody else knows of. It cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

/// Copies memory of this process into a memfd, without a Rust reference to what others may read
/// at the same time.
fn copy(memfd: &OwnedFd, addr: u64, len: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let left = usize::try_from(len - done).unwrap_or(usize::MAX);
        let start = pointer(addr + done).cast::<u8>().cast_const();
        // SAFETY: the bytes are mapped and initialised (`Area` has found private memory), and
        // while the slice lives, nobody can write there: it is write-protected.
        let bytes = unsafe { std::slice::from_raw_parts(start, left) };
        match rustix::io::pwrite(memfd, bytes, done) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
