//! Registered memory of a program, put into a memfd where it lies.
//!
//! The daemon reaches ordinary memory by a system call for each copy
//! ([`process_memory`](crate::memory::process_memory)), shared memory by plain loads and stores. So
//! [`share`] copies a range into a memfd and maps that in its place: the same addresses and the
//! same bytes, but from then on anybody who has the memfd reaches them too. When the last
//! [`Shared`] of a range is dropped, the program gets memory back that is its own again.
//!
//! Memory of stock programs is remapped where that is safe, of Rust programs where they ask for it;
//! see [`longest_wanted`]. Of a range that begins or ends amid a page, as what `malloc` gives does,
//! the whole pages are, if there are [enough](MIN_WHOLE_PAGES), for in the others lies something
//! else of the program's, which a child made by a bare `clone` would miss. What is not remapped,
//! for whatever [reason](NotRemapped), is reached by system calls, more slowly, and the reason is
//! shown (`urxe res mr`).
//!
//! # How no write is lost
//! While the pages are copied (70 us for 64 KiB, 0.7 ms for 1 MiB), nobody may write there. In a
//! program of one thread there is nobody else. Where there are more, the pages are protected
//! against writing by a `userfaultfd` (`write_protect`): whoever writes waits until the new memory
//! is in place, and then writes there. That holds for other threads, and for system calls that
//! write on their behalf, which an ordinary user may not stop (`vm.unprivileged_userfaultfd`): his
//! programs of several threads are not remapped. Where the daemon writes to a range by system calls
//! already, because it was registered before and not remapped, it is not remapped either
//! ([`Copied`]).
//!
//! # What is different in memory that was remapped
//! - Huge pages, NUMA placement and protection keys of the old pages are lost. Where somebody may
//!   hold on to the old pages (`io_uring`, `io_setup`, a real RDMA device, VFIO, a GPU), where a
//!   `userfaultfd` is watching, memory is locked, or in a program of several threads a file is open
//!   with `O_DIRECT`, nothing is remapped (`holders`), and what was remapped stays so after it was
//!   deregistered, until that is over or the program unmaps it. An `AF_XDP` socket's memory cannot
//!   be told.
//! - A child of `fork` has a copy, as of all memory, which the parent waits for (`fork`), but of
//!   what the program has excluded (`inheritance`); one that was made by a bare `clone` has a hole
//!   there.
//! - `MADV_DONTNEED` alone does not zero it: the bytes are still in the memfd. [`discard`] is to be
//!   called with it, as the library for stock programs does.
//! - Memory that is made longer (`mremap`) while it is registered ends where it ended. After it was
//!   deregistered it can be, and what is new takes up to twice the memory. Where only a part of a
//!   mapping was remapped, that part stays a mapping of its own, which no `mremap` goes beyond.

mod areas;
mod copied;
mod fork;
mod holders;
mod inheritance;
mod listed;
mod locked;
#[cfg(test)]
mod tests;
pub(crate) mod write_protect;

pub use copied::Copied;
pub use inheritance::note_inheritance;

use crate::client::LOWEST_DESCRIPTOR;
use crate::control::{Backing, WhyCopied};
use crate::memory::process::Process;
use crate::memory::region::create_memfd;
use crate::memory::region::page_size;
use crate::signals::SignalsBlocked;
use areas::Area;
use copied::CopiedRanges;
use inheritance::Excluded;
use listed::Listed;
use locked::Locked;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use write_protect::WriteProtection;

/// The shortest range that is remapped, in bytes: small messages gain most, which else cost two
/// system calls each. Remapping takes 70 us, once.
pub const MIN_LEN: u64 = 4096;

/// The fewest bytes of whole pages that are remapped of a range that begins or ends amid a page, as
/// what `malloc` gives does: the rest of it costs system calls all the same.
pub const MIN_WHOLE_PAGES: u64 = 65_536;

/// Ranges that are remapped at a time, at most: each costs the program a descriptor.
pub const MAX_RANGES: usize = 128;

/// By which `/proc/<pid>/maps` shows what is remapped, and what was.
const MEMFD_NAME: &str = "urxe-remapped";

/// How the registered memory of this process is reached.
struct State {
    remapped: Vec<Weak<Remapped>>,
    /// What nobody has registered any more, but somebody may hold on to.
    held: Vec<Arc<Remapped>>,
    copied: CopiedRanges,
}

impl State {
    /// Gives back what nobody has registered and nobody holds on to: who does would go on with the
    /// pages of the memfd, as with those of before when something is remapped.
    fn give_back_held(&mut self) {
        self.held.retain(|range| range.process.is_this() && Arc::strong_count(range) == 1);
        if !self.held.is_empty() && !matches!(holders::any(), Ok(None)) {
            // What the program has unmapped needs no more than to be closed.
            let areas = Area::all().unwrap_or_default();
            self.held.retain(|range| areas.iter().any(|area| range.is_seen_in(area)));
            return;
        }
        self.held.clear();
    }
}

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
    /// It is longer than what is remapped.
    #[error(
        "{len} bytes are not remapped, expected at most {longest} (URXE_MR=remap in the environment remaps longer ones)"
    )]
    Long {
        /// Length in bytes.
        len: u64,
        /// The longest that is.
        longest: u64,
    },
    /// It was registered before, and is reached by system calls.
    #[error(
        "{len} bytes at {addr:#x} are not remapped: some of them are registered already, and reached by system calls"
    )]
    Copied {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Somebody may go on with the old pages.
    #[error("memory is not remapped: {0} may hold on to pages of this program")]
    Held(&'static str),
    /// This thread is just remapping something, and was interrupted.
    #[error("memory is not remapped: this thread is about it already")]
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
    remapped: ManuallyDrop<Arc<Remapped>>,
    offset: u64,
}

impl Shared {
    fn new(remapped: Arc<Remapped>, offset: u64) -> Shared {
        Shared { remapped: ManuallyDrop::new(remapped), offset }
    }

    /// The memfd, for [`Backing::Shared`] or [`Backing::WholePages`]. It cannot shrink.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.remapped.memfd.as_fd()
    }

    /// Where the range begins in it.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for Shared {
    /// Waits until nobody forks: the one that does ends the inheritance of what it found shared,
    /// which must still be so. A child that knows of no fork (a bare `clone`) has nothing to give
    /// back, and may find the lock taken for ever.
    fn drop(&mut self) {
        let state = self.remapped.process.is_this().then(Locked::state).flatten();
        // SAFETY: this is the end; nobody uses it afterwards.
        let remapped = unsafe { ManuallyDrop::take(&mut self.remapped) };
        if let Some(mut state) = state {
            state.held.push(remapped);
            state.give_back_held();
        }
    }
}

/// Memory that is about to be registered, in the way in which the daemon will reach it. To be kept
/// until the daemon has let go of it.
#[derive(Debug)]
pub enum Registered {
    /// By loads and stores.
    Shared(Shared),
    /// By loads and stores its whole pages, and by system calls what lies before and behind them.
    WholePages {
        /// The pages.
        shared: Shared,
        /// What lies before and behind them.
        edges: [Option<Copied>; 2],
        /// Bytes before them.
        before: u64,
        /// Bytes of them.
        len: u64,
    },
    /// By system calls.
    Copied(Copied, WhyCopied),
}

impl Registered {
    /// Has the daemon told of a range, which is [shared](share) if that can be. Where the daemon,
    /// which maps only so much, has no room for it, it is told again, of one that is copied.
    pub fn told<T, E>(
        addr: u64,
        len: u64,
        longest: u64,
        tell: impl Fn(Registered) -> Result<T, E>,
        is_no_room: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        let registered = Registered::new(addr, len, longest);
        let is_shared = !matches!(registered, Registered::Copied(..));
        match tell(registered) {
            Err(error) if is_shared && is_no_room(&error) => {
                tell(Registered::copied(addr, len, WhyCopied::TooMany))
            }
            result => result,
        }
    }

    /// [Shares](share) a range if that can be, or the whole pages of it.
    fn new(addr: u64, len: u64, longest: u64) -> Registered {
        let refused = match share(addr, len, longest) {
            Ok(shared) => return Registered::Shared(shared),
            Err(refused) => refused,
        };
        let pages = match refused {
            NotRemapped::PartialPages { .. } => whole_pages(addr, len),
            _ => None,
        };
        let Some((start, end)) = pages else {
            return Registered::copied(addr, len, refused.why());
        };
        match share(start, end - start, longest) {
            Ok(shared) => Registered::WholePages {
                shared,
                edges: [(addr, start), (end, addr + len)]
                    .map(|(start, end)| (start < end).then(|| Copied::new(start, end - start))),
                before: start - addr,
                len: end - start,
            },
            Err(refused) => Registered::copied(addr, len, refused.why()),
        }
    }

    /// A range that is not to be shared, and why.
    pub fn copied(addr: u64, len: u64, why: WhyCopied) -> Registered {
        Registered::Copied(Copied::new(addr, len), why)
    }

    /// What the daemon is to be told of it, and the memfd that goes with that.
    pub fn backing(&self) -> (Backing, Option<BorrowedFd<'_>>) {
        match self {
            Registered::Shared(shared) => {
                (Backing::Shared { offset: shared.offset() }, Some(shared.memfd()))
            }
            &Registered::WholePages { ref shared, before, len, .. } => {
                let offset = shared.offset();
                (Backing::WholePages { offset, before, len }, Some(shared.memfd()))
            }
            &Registered::Copied(_, why) => (Backing::Process { why }, None),
        }
    }
}

impl NotRemapped {
    /// The reason as a word.
    fn why(&self) -> WhyCopied {
        match self {
            NotRemapped::Short(_) => WhyCopied::Short,
            NotRemapped::PartialPages { .. } => WhyCopied::PartialPages,
            NotRemapped::OtherMemory(_) => WhyCopied::OtherMemory,
            NotRemapped::OwnStack { .. } => WhyCopied::OwnStack,
            NotRemapped::Threads => WhyCopied::Threads,
            NotRemapped::TooMany => WhyCopied::TooMany,
            NotRemapped::Long { longest: 0, .. } => WhyCopied::NotAsked,
            NotRemapped::Long { .. } => WhyCopied::Long,
            NotRemapped::Copied { .. } => WhyCopied::RegisteredBefore,
            NotRemapped::Held(_) => WhyCopied::PagesHeld,
            NotRemapped::Busy => WhyCopied::Busy,
            NotRemapped::System { .. } => WhyCopied::System,
        }
    }
}

/// The longest range of a stock program that is remapped without being asked for, in bytes: it is
/// needed twice for a moment, and takes a fifth of a second.
pub const LONGEST_BY_DEFAULT: u64 = 256 << 20;

/// Says which memory is to be remapped: `remap` or `copy`.
const VARIABLE: &str = "URXE_MR";

/// The longest range that is to be remapped, in bytes, where nothing else is wished than
/// `by_default`: any with `URXE_MR=remap` in the environment, none with `URXE_MR=copy`.
pub fn longest_wanted(by_default: u64) -> u64 {
    match std::env::var_os(VARIABLE) {
        Some(value) if value == "remap" => u64::MAX,
        Some(value) if value == "copy" => 0,
        _ => by_default,
    }
}

/// What is wrong with `URXE_MR`, in a sentence, if it says something that it cannot say.
pub fn why_nothing_is_wished() -> Option<String> {
    let value = std::env::var_os(VARIABLE)?;
    let is_known = value.is_empty() || value == "remap" || value == "copy";
    (!is_known).then(|| format!("{VARIABLE} is {value:?}: expected remap or copy"))
}

/// Puts `len` bytes at `addr` into a memfd where they lie, unless they are in one already, or are
/// more than `longest`.
///
/// To the program nothing changes but what the [module](self) names, and if it is refused, nothing
/// at all. The caller knows that the range is memory that was given to it, as registering it says
/// anyway: nobody unmaps it meanwhile.
pub fn share(addr: u64, len: u64, longest: u64) -> Result<Shared, NotRemapped> {
    if len > longest {
        return Err(NotRemapped::Long { len, longest });
    }
    if len < MIN_LEN {
        return Err(NotRemapped::Short(len));
    }
    let page = page_size() as u64;
    let end = addr.checked_add(len).filter(|end| addr.is_multiple_of(page) && end % page == 0);
    let end = end.ok_or(NotRemapped::PartialPages { addr, len })?;
    let mut state = Locked::state().ok_or(NotRemapped::Busy)?;
    state.give_back_held();
    let State { remapped, copied, .. } = &mut *state;
    remapped.retain(is_of_this_process);
    let areas = Area::all_of(addr..end)?;
    if let [area] = &areas[..]
        && area.is_shared
    {
        let mut ranges = remapped.iter().filter_map(Weak::upgrade);
        let found = ranges.find(|range| range.inode == area.inode && range.has_its_memfd());
        let remapped = found.ok_or(NotRemapped::OtherMemory(addr))?;
        return Ok(Shared::new(remapped, area.offset + (addr - area.range.start)));
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
    if copied.overlap(&(addr..end)) {
        return Err(NotRemapped::Copied { addr, len });
    }
    if let Some(holder) = holders::any().map_err(system("reading /proc/self"))? {
        return Err(NotRemapped::Held(holder));
    }
    if !fork::is_watched() {
        return Err(system("pthread_atfork")(Errno::NOMEM));
    }
    // MEM-060: the system ends a program that goes beyond.
    if len > longest_file() {
        return Err(system("setting the length of a memfd (RLIMIT_FSIZE)")(Errno::FBIG));
    }
    let new = Arc::new(Remapped::new(addr, len)?);
    remapped.push(Arc::downgrade(&new));
    Ok(Shared::new(new, 0))
}

/// From where to where a range has whole pages, if that are enough.
fn whole_pages(addr: u64, len: u64) -> Option<(u64, u64)> {
    let page = page_size() as u64;
    let end = addr.checked_add(len)?;
    let (start, end) = (addr.checked_next_multiple_of(page)?, end - end % page);
    (end.checked_sub(start)? >= MIN_WHOLE_PAGES).then_some((start, end))
}

/// A parent's ranges are copies in its child, which are nobody's to give back.
fn is_of_this_process(remapped: &Weak<Remapped>) -> bool {
    remapped.upgrade().is_some_and(|remapped| remapped.process.is_this())
}

/// The length that this process may give to a file (`ulimit -f`).
fn longest_file() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Where in a range the memory begins that the program may read and not write, if there is any: a
/// peer that may write to the range would write there too, where the daemon reaches it by system
/// calls. What is mapped or protected otherwise later is not seen.
pub fn read_only_part(addr: u64, len: u64) -> Option<u64> {
    let end = addr.saturating_add(len);
    // Without the file, as in a `chroot`, nothing is known.
    let areas = Area::all().unwrap_or_default();
    let found = areas
        .iter()
        .find(|area| area.is_read_only() && area.range.start < end && addr < area.range.end);
    found.map(|area| area.range.start.max(addr))
}

/// Zeroes what is remapped of a range, in whole pages, as `madvise(MADV_DONTNEED)` does with
/// memory of the program's own. Says whether anything was. What does not begin with a page it
/// leaves alone, like that. Waits for nobody unless some of it is remapped.
pub fn discard(addr: u64, len: u64) -> bool {
    let page = page_size() as u64;
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end.filter(|_| addr.is_multiple_of(page)) else { return false };
    // MEM-058
    if !listed::overlap(&(addr..end)) {
        return false;
    }
    let Some(state) = Locked::state() else { return false };
    let mut found = false;
    for range in state.remapped.iter().filter_map(Weak::upgrade) {
        let (start, end) = (addr.max(range.addr), end.min(range.addr + range.len));
        if start < end && range.process.is_this() && range.has_its_memfd() {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let zeroed =
                rustix::fs::fallocate(&*range.memfd, mode, start - range.addr, end - start);
            found |= zeroed.is_ok();
        }
    }
    found
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
    excluded: Excluded,
    /// In a child the slot may be another range's.
    listed: ManuallyDrop<Listed>,
}

impl Remapped {
    fn new(addr: u64, len: u64) -> Result<Remapped, NotRemapped> {
        // One that can grow: see `allow_longer_views`.
        let memfd = create_memfd(MEMFD_NAME, len).map_err(system("memfd_create"))?;
        let memfd = rustix::io::fcntl_dupfd_cloexec(&memfd, LOWEST_DESCRIPTOR);
        let memfd = memfd.map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
        let inode = rustix::fs::fstat(&memfd).map_err(system("fstat"))?.st_ino;
        let process = Process::current().map_err(system("making a page that is wiped on fork"))?;
        let excluded = Excluded::of(&(addr..addr + len));
        let new = Replacement::of(&memfd, len)?;
        let listed = Listed::new(&(addr..addr + len)).ok_or(NotRemapped::TooMany)?;
        // From here to the end nothing may touch the range, nor what the program keeps beside
        // it: no memory is allocated, and no signal handler runs.
        let signals = SignalsBlocked::all();
        let protection = WriteProtection::of(addr, len)?;
        copy(&memfd, addr, len).map_err(system("copying to the memfd"))?;
        new.move_to(addr)?;
        drop(protection);
        drop(signals);
        let (memfd, listed) = (ManuallyDrop::new(memfd), ManuallyDrop::new(listed));
        Ok(Remapped { memfd, inode, addr, len, process, excluded, listed })
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
        if self.has_its_memfd() {
            if self.process.is_this() && self.give_back_all().is_ok() {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(&*self.memfd, mode, 0, self.len);
                self.allow_longer_views();
            }
            // SAFETY: this is the end; nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memfd) };
        }
        if self.process.is_this() {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.listed) };
        }
    }
}

impl Remapped {
    fn give_back_all(&self) -> io::Result<()> {
        for area in Area::all()? {
            if area.is_shared && self.is_seen_in(&area) {
                self.give_back(&area)?;
            }
        }
        Ok(())
    }

    /// Whether this is mapped there, in its place.
    fn is_seen_in(&self, area: &Area) -> bool {
        let place = self.addr.checked_add(area.offset);
        area.is_remapped
            && area.inode == self.inode
            && place == Some(area.range.start)
            && area.range.end <= self.addr + self.len
    }

    /// The program may make what was given back longer (`mremap`): what is new then is memory of
    /// zeroes, and not beyond the end of a file. Nobody else sees the memfd any more.
    fn allow_longer_views(&self) {
        /// More than any address space has.
        const LONGEST: u64 = 1 << 57;
        // MEM-061
        let len = longest_file().min(LONGEST).max(self.len);
        let _ = rustix::fs::ftruncate(&*self.memfd, len);
    }

    fn give_back(&self, area: &Area) -> Result<(), Errno> {
        let start = pointer(area.range.start);
        let len = (area.range.end - area.range.start) as usize;
        let (rights, flags) = (READ_WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the range was found to be a view of our memfd, and is replaced by another view
        // of the same bytes. (A program that has unmapped memory before deregistering it, and
        // maps something else just there in this moment, has not kept what `share` asks for.)
        unsafe { rustix::mm::mmap(start, len, rights, flags, &*self.memfd, area.offset)? };
        self.excluded.apply(&area.range);
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
