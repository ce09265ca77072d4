//! Which descriptor of the program is what.
//!
//! Every interposed `read`, `write` and `close` asks here first, so a look-up takes no lock,
//! allocates nothing and may be interrupted by a signal handler that asks too. For a descriptor
//! that is not ours it is two loads.

use crate::netlink::Netlink;
use crate::ucma::Channel;
use crate::uverbs::{AsyncEvents, CompletionEvents, Context};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use urxe_shm::client::cancellation::CancellationDisabled;
use urxe_shm::client::file_identity::FileIdentity;

/// What a descriptor of ours is.
#[derive(Clone, Debug)]
pub(crate) enum Descriptor {
    /// An opened uverbs device: `write` is a command.
    Uverbs(Arc<Context>),
    /// A completion channel: `read` is a CQ event.
    CompletionChannel(Arc<CompletionEvents>),
    /// Asynchronous events of a context: `read` is one of them.
    AsyncEvents(Arc<AsyncEvents>),
    /// An opened connection manager: `write` is a command.
    RdmaCm(Arc<Channel>),
    /// A socket of `NETLINK_RDMA`: what is sent is a question.
    Netlink(Arc<Netlink>),
    /// The shim's own; not for the program to close.
    Private,
}

/// A descriptor in the table.
struct Entry<D> {
    descriptor: D,
    /// What the number was when it was put here. A program may close it behind our back, by a
    /// system call of its own or `fclose`, and get the number again for something else.
    file: Option<FileIdentity>,
    /// The next of those that are retired.
    next: *mut Entry<D>,
}

/// Descriptors with numbers up to a million, the kernel's default bound, in pages of 1,024.
const PAGES: usize = 1024;
const PAGE_LEN: usize = 1024;

type Page<D> = [AtomicPtr<Entry<D>>; PAGE_LEN];

/// The table of a process.
pub(crate) struct Table<D> {
    pages: [AtomicPtr<Page<D>>; PAGES],
    /// Look-ups that are under way.
    readers: AtomicUsize,
    /// Taken out of the table, but perhaps still looked at: a list.
    retired: AtomicPtr<Entry<D>>,
    /// The process whose descriptors these are.
    pid: AtomicI32,
}

thread_local! {
    /// What this thread has open is in a table of its own: the numbers of this one mean nothing
    /// there.
    static IS_APART: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread has descriptors of its own: none of them is in the table.
pub(crate) fn set_apart() {
    IS_APART.set(true);
}

/// The one of this process.
pub(crate) static DESCRIPTORS: Table<Descriptor> = Table::new();

impl<D: Clone> Table<D> {
    const fn new() -> Table<D> {
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
        let is_there = |slot: &AtomicPtr<Entry<D>>| !slot.load(Ordering::Relaxed).is_null();
        // OWN-010
        self.slot(fd).is_some_and(is_there) && !IS_APART.get()
    }

    /// Calls `look` with what `fd` is, if it is ours. `look` must not block: it delays the end of
    /// descriptors that were closed.
    #[inline]
    pub(crate) fn with<R>(&self, fd: RawFd, look: impl FnOnce(&D) -> R) -> Option<R> {
        self.with_entry(fd, |entry| look(&entry.descriptor))
    }

    #[inline]
    fn with_entry<R>(&self, fd: RawFd, look: impl FnOnce(&Entry<D>) -> R) -> Option<R> {
        let slot = self.slot(fd)?;
        if slot.load(Ordering::Relaxed).is_null() || IS_APART.get() {
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
    pub(crate) fn genuine(&self, fd: RawFd) -> Option<D> {
        self.with_entry(fd, |entry| {
            if entry.file == FileIdentity::of(fd) {
                return Some(entry.descriptor.clone());
            }
            // CLIENT-066: what a child of `vfork` has there says nothing of its parent's.
            if self.is_of_this_process() {
                self.remove_entry(fd, entry);
            }
            None
        })
        .flatten()
    }

    /// Says what `fd` is from now on.
    pub(crate) fn insert(&self, fd: RawFd, descriptor: D) {
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

    /// The same, unless another thread has said meanwhile what `fd` is from now on. For whoever
    /// looks at the entry: so it is not freed, and no other is at its address.
    fn remove_entry(&self, fd: RawFd, entry: &Entry<D>) {
        let Some(slot) = self.slot(fd) else { return };
        let entry = ptr::from_ref(entry).cast_mut();
        // CLIENT-066
        let removed =
            slot.compare_exchange(entry, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        self.retire(removed.unwrap_or(ptr::null_mut()));
    }

    /// The first descriptor of ours from `fd` on.
    pub(crate) fn next_from(&self, fd: RawFd) -> Option<RawFd> {
        let fd = usize::try_from(fd).ok()?;
        let first_page = fd / PAGE_LEN;
        for (number, page) in self.pages.iter().enumerate().skip(first_page) {
            // SAFETY: a page, once made, is never freed.
            let Some(page) = (unsafe { page.load(Ordering::Acquire).as_ref() }) else { continue };
            let skipped = if number == first_page { fd % PAGE_LEN } else { 0 };
            let is_ours = |slot: &AtomicPtr<Entry<D>>| !slot.load(Ordering::Relaxed).is_null();
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
    fn retire(&self, entry: *mut Entry<D>) {
        if !entry.is_null() {
            self.push_retired(entry, entry);
            self.free_retired();
        }
    }

    /// Adds a list, from `first` to `last`, to the retired.
    fn push_retired(&self, first: *mut Entry<D>, last: *mut Entry<D>) {
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
                let _cancellation = CancellationDisabled::in_this_thread();
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
    fn slot(&self, fd: RawFd) -> Option<&AtomicPtr<Entry<D>>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE_LEN)?.load(Ordering::Acquire);
        // SAFETY: a page, once made, is never freed.
        let page = unsafe { page.as_ref() }?;
        Some(&page[fd % PAGE_LEN])
    }

    fn make_slot(&self, fd: RawFd) -> Option<&AtomicPtr<Entry<D>>> {
        if let Some(slot) = self.slot(fd) {
            return Some(slot);
        }
        let place = self.pages.get(usize::try_from(fd).ok()? / PAGE_LEN)?;
        let page: Box<Page<D>> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE_LEN]);
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
fn free<D>(mut entry: *mut Entry<D>) {
    while !entry.is_null() {
        // SAFETY: what stood in a slot came from `Box::into_raw`, and whoever took it out of the
        // slot, and then off the list of the retired, is the only one who has it.
        entry = unsafe { Box::from_raw(entry) }.next;
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicBool;

    /// Something that says when it ends.
    fn watched() -> (Arc<()>, impl Fn() -> bool) {
        let value = Arc::new(());
        let watch = Arc::downgrade(&value);
        (value, move || watch.strong_count() == 0)
    }

    #[test]
    fn entries_stay_until_they_are_replaced_or_removed() {
        let table = Table::new();
        for fd in [0, 1023, 1024, 1_048_575] {
            assert!(!table.has(fd));
            table.insert(fd, fd);
            assert!(table.has(fd));
            assert_eq!(table.with(fd, |&it| it), Some(fd));
            table.insert(fd, -1);
            assert_eq!(table.with(fd, |&it| it), Some(-1));
            table.remove(fd);
            table.remove(fd);
            assert_eq!(table.with(fd, |&it| it), None);
        }
        for fd in [-1, 1_048_576, i32::MIN, i32::MAX] {
            table.insert(fd, fd);
            assert!(!table.has(fd), "there is no such number");
        }
    }

    #[test]
    fn those_of_a_range_are_found_in_order() {
        let table = Table::new();
        assert_eq!(table.next_from(0), None);
        for fd in [5, 1023, 1024, 70_000] {
            table.insert(fd, ());
        }
        table.remove(1024);
        let found =
            [0, 5, 6, 1023, 1024, 70_000, 70_001, i32::MAX, -1].map(|fd| table.next_from(fd));
        let (five, last) = (Some(5), Some(70_000));
        let expected = [five, five, Some(1023), Some(1023), last, last, None, None, None];
        assert_eq!(found, expected);
    }

    #[test]
    fn it_ends_when_it_is_taken_out_but_not_while_somebody_looks() {
        let table = Table::new();
        let (value, is_over) = watched();
        table.insert(7, value);
        table.with(7, |_| {
            table.remove(7);
            assert!(!is_over(), "it is being looked at");
        });
        assert!(is_over());
    }

    #[test]
    fn a_number_that_became_another_file_is_forgotten() {
        let table = Table::new();
        let mut file = rustix::pipe::pipe().unwrap().0;
        let fd = file.as_raw_fd();
        let (value, is_over) = watched();
        table.insert(fd, value);
        assert!(table.genuine(fd).is_some());
        rustix::io::dup2(rustix::pipe::pipe().unwrap().0, &mut file).unwrap();
        assert!(table.genuine(fd).is_none());
        assert!(is_over() && !table.has(fd));
    }

    #[test]
    fn an_entry_that_was_replaced_meanwhile_stays() {
        let table = Table::new();
        table.insert(7, 1);
        table.with_entry(7, |entry| {
            table.insert(7, 2);
            table.remove_entry(7, entry);
        });
        assert_eq!(table.with(7, |&it| it), Some(2));
    }

    #[test]
    fn another_process_with_this_memory_forgets_nothing() {
        let table = Table::new();
        let mut file = rustix::pipe::pipe().unwrap().0;
        let fd = file.as_raw_fd();
        table.insert(fd, 7);
        table.pid.store(own_pid() + 1, Ordering::Relaxed);
        rustix::io::dup2(rustix::pipe::pipe().unwrap().0, &mut file).unwrap();
        assert_eq!(table.genuine(fd), None);
        assert!(table.has(fd), "to its owner it is what it was");
    }

    #[test]
    fn a_thread_that_is_set_apart_has_none_of_the_descriptors() {
        let table = Table::new();
        let file = rustix::pipe::pipe().unwrap().0;
        let fd = file.as_raw_fd();
        table.insert(fd, 7);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_apart();
                assert!(!table.has(fd));
                assert_eq!((table.with(fd, |&it| it), table.genuine(fd)), (None, None));
            });
        });
        assert_eq!(table.genuine(fd), Some(7), "for the others it stays what it was");
    }

    #[test]
    fn threads_look_at_what_lives_and_nothing_is_left_behind() {
        const ROUNDS: usize = 20_000;
        let table = Table::new();
        let is_over = AtomicBool::new(false);
        let lives = Arc::new(());
        std::thread::scope(|scope| {
            let (table, lives, is_over) = (&table, &lives, &is_over);
            let look = move || {
                let mut seen = 0;
                while !is_over.load(Ordering::Relaxed) {
                    for fd in 0..4 {
                        // Freed memory would hold anything but these two.
                        let it = table.with(fd, |it: &(usize, Arc<()>, usize)| (it.0, it.2));
                        if let Some((number, same)) = it {
                            assert_eq!(number, !same);
                            seen += 1;
                        }
                    }
                }
                seen
            };
            let lookers = [scope.spawn(look), scope.spawn(look)];
            let change = move |odd: usize| {
                for round in 0..ROUNDS {
                    let number = round * 2 + odd;
                    let fd = (number % 4) as RawFd;
                    table.insert(fd, (number, lives.clone(), !number));
                    if round % 3 == 0 {
                        table.remove(fd);
                    }
                }
            };
            let changers = [0, 1].map(|odd| scope.spawn(move || change(odd)));
            changers.into_iter().for_each(|thread| thread.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            lookers.into_iter().for_each(|thread| assert_ne!(thread.join().unwrap(), 0));
        });
        (0..4).for_each(|fd| table.remove(fd));
        assert_eq!(Arc::strong_count(&lives), 1, "something was never freed");
    }
}
