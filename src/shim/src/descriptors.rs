//! Which descriptor of the program is what.
//!
//! Every interposed `read`, `write` and `close` asks here first, so a look-up takes no lock,
//! allocates nothing and may be interrupted by a signal handler that asks too. For a descriptor
//! that is not ours it is two loads.

use crate::uverbs::{AsyncEvents, CompletionEvents, Context};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What a descriptor of ours is.
#[derive(Clone, Debug)]
pub(crate) enum Descriptor {
    /// An opened uverbs device: `write` is a command.
    Uverbs(Arc<Context>),
    /// A completion channel: `read` is a CQ event.
    CompletionChannel(Arc<CompletionEvents>),
    /// Asynchronous events of a context: `read` is one of them.
    AsyncEvents(Arc<AsyncEvents>),
    /// The shim's own; not for the program to close.
    Private,
}

/// Which open file a descriptor is, as far as can be told: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity(u64, u64);

impl FileIdentity {
    /// That of an open descriptor.
    pub(crate) fn of(fd: RawFd) -> Option<FileIdentity> {
        // `fstat` of a number that is not open is an error, and nothing else.
        // SAFETY: the number is not negative, and the borrow ends with the call.
        let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
        let found = rustix::fs::fstat(fd).ok()?;
        Some(FileIdentity(found.st_dev, found.st_ino))
    }
}

/// A descriptor in the table.
struct Entry {
    descriptor: Descriptor,
    /// What the number was when it was put here. A program may close it behind our back, by a
    /// system call of its own or `fclose`, and get the number again for something else.
    file: Option<FileIdentity>,
    /// The next of those that are retired.
    next: *mut Entry,
}

/// Descriptors with numbers up to a million, the kernel's default bound, in pages of 1,024.
const PAGES: usize = 1024;
const PAGE_LEN: usize = 1024;

type Page = [AtomicPtr<Entry>; PAGE_LEN];

/// The table of a process.
pub(crate) struct Table {
    pages: [AtomicPtr<Page>; PAGES],
    /// Look-ups that are under way.
    readers: AtomicUsize,
    /// Taken out of the table, but perhaps still looked at: a list.
    retired: AtomicPtr<Entry>,
    /// The process whose descriptors these are.
    pid: AtomicI32,
}

/// The one of this process.
pub(crate) static DESCRIPTORS: Table = Table::new();

impl Table {
    const fn new() -> Table {
        Table {
            pages: [const { AtomicPtr::new(ptr::null_mut()) }; PAGES],
            readers: AtomicUsize::new(0),
            retired: AtomicPtr::new(ptr::null_mut()),
            pid: AtomicI32::new(0),
        }
    }

    /// Whether `fd` is ours, or was when last seen.
    #[inline]
    pub(crate) fn has(&self, fd: RawFd) -> bool {
        self.slot(fd).is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null())
    }

    /// Calls `look` with what `fd` is, if it is ours. `look` must not block: it delays the end of
    /// descriptors that were closed.
    #[inline]
    pub(crate) fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Descriptor) -> R) -> Option<R> {
        self.with_entry(fd, |entry| look(&entry.descriptor))
    }

    #[inline]
    fn with_entry<R>(&self, fd: RawFd, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        let slot = self.slot(fd)?;
        if slot.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.readers.fetch_add(1, Ordering::SeqCst);
        let found = slot.load(Ordering::SeqCst);
        // SAFETY: `free_retired` frees an entry only when, after it was taken out of its slot,
        // there was a moment without readers; we have been one since before we read the slot.
        let result = unsafe { found.as_ref() }.map(look);
        if self.readers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.free_retired();
        }
        result
    }

    /// What `fd` is, if it still is the file that it was. If it is not, the program has closed it
    /// behind our back, and it is forgotten.
    pub(crate) fn genuine(&self, fd: RawFd) -> Option<Descriptor> {
        let found = self.with_entry(fd, |entry| (entry.descriptor.clone(), entry.file))?;
        match found {
            (descriptor, file) if file == FileIdentity::of(fd) => Some(descriptor),
            _ => {
                self.remove(fd);
                None
            }
        }
    }

    /// Says what `fd` is from now on.
    pub(crate) fn insert(&self, fd: RawFd, descriptor: Descriptor) {
        self.pid.store(own_pid(), Ordering::Relaxed);
        let entry = Entry { descriptor, file: FileIdentity::of(fd), next: ptr::null_mut() };
        let Some(slot) = self.make_slot(fd) else { return };
        self.retire(slot.swap(Box::into_raw(Box::new(entry)), Ordering::SeqCst));
    }

    /// `fd` is not ours any more.
    pub(crate) fn remove(&self, fd: RawFd) {
        if let Some(slot) = self.slot(fd) {
            self.retire(slot.swap(ptr::null_mut(), Ordering::SeqCst));
        }
    }

    /// The first descriptor of ours from `fd` on.
    pub(crate) fn next_from(&self, fd: RawFd) -> Option<RawFd> {
        let fd = usize::try_from(fd).ok()?;
        let first_page = fd / PAGE_LEN;
        for (number, page) in self.pages.iter().enumerate().skip(first_page) {
            // SAFETY: a page, once made, is never freed.
            let Some(page) = (unsafe { page.load(Ordering::Acquire).as_ref() }) else { continue };
            let skipped = if number == first_page { fd % PAGE_LEN } else { 0 };
            let is_ours = |slot: &AtomicPtr<Entry>| !slot.load(Ordering::Relaxed).is_null();
            if let Some(found) = page[skipped..].iter().position(is_ours) {
                return RawFd::try_from(number * PAGE_LEN + skipped + found).ok();
            }
        }
        None
    }

    /// Whether this process has descriptors of its own. Between `vfork` and `exec` a child has
    /// its own already, but the memory, this table too, is still its parent's.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid.load(Ordering::Relaxed) == own_pid()
    }

    /// To be called in a child after `fork`: the descriptors are its own from now on, and it has
    /// but one thread, which looks nothing up just now.
    pub(crate) fn adopt(&self) {
        self.pid.store(own_pid(), Ordering::Relaxed);
        self.readers.store(0, Ordering::SeqCst);
    }

    /// Frees an entry that was taken out of its slot, or null, as soon as nobody looks at it.
    fn retire(&self, entry: *mut Entry) {
        if !entry.is_null() {
            self.push_retired(entry, entry);
            self.free_retired();
        }
    }

    /// Adds a list, from `first` to `last`, to the retired.
    fn push_retired(&self, first: *mut Entry, last: *mut Entry) {
        let mut head = self.retired.load(Ordering::Relaxed);
        loop {
            // SAFETY: only we know these entries: they are out of the table, and on no list.
            // Those who still look at them do not look at `next`.
            unsafe { (&raw mut (*last).next).write(head) };
            let pushed = self.retired.compare_exchange_weak(
                head,
                first,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(present) => head = present,
            }
        }
    }

    /// Frees all that is retired, if nobody is looking anything up. Without a lock, for a signal
    /// handler may have interrupted somebody who does the same.
    fn free_retired(&self) {
        while !self.retired.load(Ordering::Relaxed).is_null() {
            let first = self.retired.swap(ptr::null_mut(), Ordering::SeqCst);
            // Whoever looks from now on finds the slots without those on the list.
            if self.readers.load(Ordering::SeqCst) == 0 {
                // The last name of a context may end here, and talk to the daemon.
                free(first);
                continue;
            }
            let mut last = first;
            // SAFETY: the whole list is ours now; it ends in null.
            while let Some(next) = unsafe { last.as_ref() }.map(|entry| entry.next)
                && !next.is_null()
            {
                last = next;
            }
            if !last.is_null() {
                self.push_retired(first, last);
            }
            // The last reader frees them; if it went just before we put them back, we do.
            if self.readers.load(Ordering::SeqCst) != 0 {
                return;
            }
        }
    }

    #[inline]
    fn slot(&self, fd: RawFd) -> Option<&AtomicPtr<Entry>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE_LEN)?.load(Ordering::Acquire);
        // SAFETY: a page, once made, is never freed.
        let page = unsafe { page.as_ref() }?;
        Some(&page[fd % PAGE_LEN])
    }

    fn make_slot(&self, fd: RawFd) -> Option<&AtomicPtr<Entry>> {
        if let Some(slot) = self.slot(fd) {
            return Some(slot);
        }
        let place = self.pages.get(usize::try_from(fd).ok()? / PAGE_LEN)?;
        let page: Box<Page> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE_LEN]);
        let page = Box::into_raw(page);
        let made =
            place.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
        if made.is_err() {
            // SAFETY: another thread was faster; nobody has seen our page.
            drop(unsafe { Box::from_raw(page) });
        }
        self.slot(fd)
    }
}

/// Frees a list of entries that nobody else knows.
fn free(mut entry: *mut Entry) {
    while !entry.is_null() {
        // SAFETY: what stood in a slot came from `Box::into_raw`, and whoever took it out of the
        // slot, and then off the list of the retired, is the only one who has it.
        entry = unsafe { Box::from_raw(entry) }.next;
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}
