//! Which descriptor of the program is what.
//!
//! Every interposed `read`, `write` and `close` asks here first, so the look-up takes no lock,
//! allocates nothing and may be interrupted by a signal handler that asks too. For a descriptor
//! that is not ours it is two loads.

use crate::uverbs::{AsyncEvents, CompletionEvents, Context};
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

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

/// Descriptors with numbers up to a million, the kernel's default bound, in pages of 1,024.
const PAGES: usize = 1024;
const PAGE_LEN: usize = 1024;

type Page = [AtomicPtr<Descriptor>; PAGE_LEN];

/// The table of a process.
pub(crate) struct Table {
    pages: [AtomicPtr<Page>; PAGES],
    /// Look-ups that are under way.
    readers: AtomicUsize,
    /// Taken out of the table, but perhaps still looked at.
    retired: Mutex<Vec<Box<Descriptor>>>,
}

/// The one of this process.
pub(crate) static DESCRIPTORS: Table = Table::new();

impl Table {
    const fn new() -> Table {
        Table {
            pages: [const { AtomicPtr::new(ptr::null_mut()) }; PAGES],
            readers: AtomicUsize::new(0),
            retired: Mutex::new(Vec::new()),
        }
    }

    /// Calls `look` with what `fd` is, if it is ours. `look` must not block: it delays the end of
    /// descriptors that were closed.
    #[inline]
    pub(crate) fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Descriptor) -> R) -> Option<R> {
        let slot = self.slot(fd)?;
        if slot.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.readers.fetch_add(1, Ordering::SeqCst);
        let found = slot.load(Ordering::SeqCst);
        // SAFETY: `replace` frees a descriptor only when, after it was taken out of its slot,
        // there was a moment without readers; we have been one since before we read the slot.
        let result = unsafe { found.as_ref() }.map(look);
        self.readers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// What `fd` is, to keep.
    pub(crate) fn get(&self, fd: RawFd) -> Option<Descriptor> {
        self.with(fd, Descriptor::clone)
    }

    /// Says what `fd` is from now on.
    pub(crate) fn insert(&self, fd: RawFd, descriptor: Descriptor) {
        self.replace(fd, Some(descriptor));
    }

    /// `fd` is not ours any more.
    pub(crate) fn remove(&self, fd: RawFd) {
        self.replace(fd, None);
    }

    fn replace(&self, fd: RawFd, descriptor: Option<Descriptor>) {
        let slot = match (self.slot(fd), &descriptor) {
            (Some(slot), _) => slot,
            (None, None) => return,
            (None, Some(_)) => match self.make_slot(fd) {
                Some(slot) => slot,
                None => return,
            },
        };
        let new = descriptor.map_or(ptr::null_mut(), |it| Box::into_raw(Box::new(it)));
        let old = slot.swap(new, Ordering::SeqCst);
        if old.is_null() {
            return;
        }
        // SAFETY: what stands in a slot came from `Box::into_raw`, and only this swap took it out.
        let old = unsafe { Box::from_raw(old) };
        let mut retired = self.retired.lock();
        retired.push(old);
        // Whoever looks from now on finds the slots without those that are retired.
        let free = if self.readers.load(Ordering::SeqCst) == 0 {
            std::mem::take(&mut *retired)
        } else {
            Vec::new()
        };
        drop(retired);
        // Outside of the lock: the last name of a context may end here, and talk to the daemon.
        drop(free);
    }

    #[inline]
    fn slot(&self, fd: RawFd) -> Option<&AtomicPtr<Descriptor>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE_LEN)?.load(Ordering::Acquire);
        // SAFETY: a page, once made, is never freed.
        let page = unsafe { page.as_ref() }?;
        Some(&page[fd % PAGE_LEN])
    }

    fn make_slot(&self, fd: RawFd) -> Option<&AtomicPtr<Descriptor>> {
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
