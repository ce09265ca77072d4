//! Memory of one's own process that may not be there: what a slot that runs in a program reaches
//! the program's memory by.
//!
//! It is copied by loads and stores as long as a fault can be noticed ([`guarded_copy`]), else by
//! system calls that name this very process (`process_vm_readv`, `process_vm_writev`): what keeps
//! the daemon from those, that a number may come to name another process, is not so of one's own.
//! Either way, memory that is gone, or not for this access, is a [`Fault`], and what is copied
//! becomes visible in the order that programs may count on ([`store_order`](super::store_order)).
//!
//! Two things are not as through [`process_memory`](super::process_memory): a page that the program
//! has made inaccessible or read-only since is a fault, and a page that a `userfaultfd` of the
//! program is to supply is waited for.

use crate::memory::guarded_copy;
use crate::memory::process_memory::Fault;
use crate::memory::store_order::{body_len, first_number, last_word};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// How memory of this process is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// By loads and stores, of which a fault is noticed.
    Guarded,
    /// By system calls, since the program has a handler of its own for SIGSEGV or SIGBUS, or blocks
    /// one of them, or the processor is another one than x86-64.
    SystemCalls,
}

impl CopyMethod {
    /// How memory is reached by this thread just now. To be asked shortly before it is
    /// ([`KnownMethod`]), for the program may install another handler at any time; that takes three
    /// system calls.
    pub fn now() -> CopyMethod {
        // OWN-022
        if guarded_copy::is_guarded() { CopyMethod::Guarded } else { CopyMethod::SystemCalls }
    }

    /// Copies from memory of this process, which is at `addr` if it is there.
    ///
    /// # Errors
    /// Where the first byte is that was not copied, or, by loads and stores, up to 63 before that.
    pub fn read(self, addr: u64, buf: &mut [u8]) -> Result<(), Fault> {
        match self {
            CopyMethod::Guarded => {
                let source = std::ptr::with_exposed_provenance(addr as usize);
                // SAFETY: the buffer is ours alone. What is at the source may be changed meanwhile
                // by whoever knows it, as of memory that is shared with another process
                // ([`region`](super::region)), and a fault is noticed.
                let left = unsafe { guarded_copy::copy(buf.as_mut_ptr(), source, buf.len()) };
                all_or_fault(addr, buf.len(), left)
            }
            CopyMethod::SystemCalls => read_by_call(addr, buf),
        }
    }

    /// Copies into memory of this process: after what was stored before, and the last bytes last.
    ///
    /// # Errors
    /// As for [`read`](Self::read). All bytes before are written.
    pub fn write(self, addr: u64, data: &[u8]) -> Result<(), Fault> {
        // OWN-020, ORDER-002
        match self {
            CopyMethod::Guarded => write_guarded(addr, data),
            CopyMethod::SystemCalls => write_by_call(addr, data, body_len(addr, data.len())),
        }
    }
}

/// For how long a thread goes by what it has found out: about as long as a call takes in which much
/// is copied, which is not asked for each time either.
const KNOWN_FOR: Duration = Duration::from_micros(20);

/// After how long it finds that out again while it has nothing else to do.
const RENEWED_AFTER: Duration = Duration::from_micros(10);

/// How memory is reached, as a thread has found out lately: for a message of 8 bytes three system
/// calls are a tenth of all that is done.
#[derive(Debug, Default)]
pub struct KnownMethod(Option<Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    method: CopyMethod,
    since: Instant,
    /// Threads block signals each for itself.
    thread: usize,
    /// It was asked for since.
    is_used: bool,
}

impl KnownMethod {
    /// How memory is reached by this thread, as it was within the last 20 us.
    pub fn get(&mut self, now: Instant) -> CopyMethod {
        // OWN-037
        match &mut self.0 {
            Some(known) if known.is_of_this_thread() && known.age(now) < KNOWN_FOR => {
                known.is_used = true;
                known.method
            }
            _ => self.find_out(now, true),
        }
    }

    /// To be called by who waits for something to do: if it has needed to know lately, it will know
    /// at once when there is.
    pub fn renew(&mut self, now: Instant) {
        let is_due = |known: &Known| {
            known.is_used && known.is_of_this_thread() && known.age(now) >= RENEWED_AFTER
        };
        if self.0.as_ref().is_some_and(is_due) {
            self.find_out(now, false);
        }
    }

    fn find_out(&mut self, now: Instant, is_used: bool) -> CopyMethod {
        let method = CopyMethod::now();
        self.0 = Some(Known { method, since: now, thread: this_thread(), is_used });
        method
    }
}

impl Known {
    fn is_of_this_thread(&self) -> bool {
        self.thread == this_thread()
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// What no other thread has at the same time.
fn this_thread() -> usize {
    thread_local! { static HERE: Cell<u8> = const { Cell::new(0) } }
    HERE.with(|here| here.as_ptr().addr())
}

/// Has memory of this process reached by loads and stores from now on, where that is possible.
/// Returns whether it can be reached at all: a filter may refuse the system calls.
pub fn prepare() -> bool {
    guarded_copy::install();
    let (word, mut found) = (1u64.to_ne_bytes(), [0; 8]);
    let source = (&raw const word).expose_provenance() as u64;
    let is_readable = CopyMethod::SystemCalls.read(source, &mut found).is_ok();
    // Taken after the last use of `found` itself: the system writes there.
    let target = (&raw mut found).expose_provenance() as u64;
    is_readable && CopyMethod::SystemCalls.write(target, &word).is_ok()
}

/// What came of a guarded copy of which so much is left.
fn all_or_fault(addr: u64, len: usize, left: usize) -> Result<(), Fault> {
    let addr = addr.wrapping_add((len - left) as u64);
    if left == 0 { Ok(()) } else { Err(Fault { addr, len: left, errno: Errno::FAULT }) }
}

fn write_guarded(addr: u64, data: &[u8]) -> Result<(), Fault> {
    // One stretch of any length, and then the numbers of the last word.
    let (mut done, mut len) = (0, last_word(addr, data.len()));
    loop {
        let at = addr.wrapping_add(done as u64);
        let target = std::ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: the data is ours, and has so many bytes. At the target is memory that the program
        // has given to its device, of which it knows that it changes; a fault is noticed.
        let left = unsafe { guarded_copy::copy(target, data[done..].as_ptr(), len) };
        done += len - left;
        if left > 0 || done == data.len() {
            return all_or_fault(addr, data.len(), data.len() - done);
        }
        len = first_number(addr.wrapping_add(done as u64), data.len() - done);
    }
}

fn read_by_call(addr: u64, buf: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let at = addr.wrapping_add(done as u64);
        let there = there(at, rest.len());
        // SAFETY: the one is a buffer of ours; of the other, the system finds out what is there.
        let step = unsafe { libc::process_vm_readv(own_pid(), &local, 1, &there, 1, 0) };
        done += progress(step, at, rest.len())?;
    }
    Ok(())
}

/// Writes the bytes before `body_len`, and then the others.
fn write_by_call(addr: u64, data: &[u8], body_len: usize) -> Result<(), Fault> {
    let mut done = 0;
    while done < data.len() {
        let (body, tail) = data[done..].split_at(body_len.saturating_sub(done));
        let local = [body, tail].map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        let at = addr.wrapping_add(done as u64);
        let there = there(at, data.len() - done);
        // SAFETY: the one is data of ours, which is only read; of the other, the system finds out
        // what is there. Its address was exposed by whoever gives it to be written to: the program,
        // which has given it to its device and knows that it changes, or `prepare`.
        let step = unsafe { libc::process_vm_writev(own_pid(), local.as_ptr(), 2, &there, 1, 0) };
        done += progress(step, at, data.len() - done)?;
    }
    Ok(())
}

/// How many bytes a call has copied of so many that were left.
fn progress(step: isize, addr: u64, left: usize) -> Result<usize, Fault> {
    match step {
        1.. => Ok(step as usize),
        0 => Err(Fault { addr, len: left, errno: Errno::FAULT }),
        _ => {
            let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::FAULT);
            Err(Fault { addr, len: left, errno })
        }
    }
}

fn there(addr: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr as usize), iov_len: len }
}

fn own_pid() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::page_size;
    #[cfg(target_arch = "x86_64")]
    use crate::signals::SignalsBlocked;
    use proptest::prelude::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
    use std::sync::atomic::{AtomicBool, Ordering};

    const METHODS: [CopyMethod; 2] = [CopyMethod::Guarded, CopyMethod::SystemCalls];

    /// What became of a page.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Page {
        Whole,
        ReadOnly,
        Inaccessible,
    }

    /// Pages of which some are not there any more.
    struct Pages {
        addr: u64,
        pages: Vec<Page>,
    }

    impl Pages {
        fn new(pages: Vec<Page>) -> Pages {
            let (size, both) = (pages.len() * page_size(), ProtFlags::READ | ProtFlags::WRITE);
            let null = std::ptr::null_mut();
            // SAFETY: a null hint without MAP_FIXED replaces nothing.
            let start = unsafe { rustix::mm::mmap_anonymous(null, size, both, MapFlags::PRIVATE) };
            let pages = Pages { addr: start.unwrap().expose_provenance() as u64, pages };
            for (at, page) in pages.pages.iter().enumerate() {
                let rights = match page {
                    Page::Whole => continue,
                    Page::ReadOnly => MprotectFlags::READ,
                    // As one that is unmapped, which might be mapped by another test.
                    Page::Inaccessible => MprotectFlags::empty(),
                };
                let start = pages.start(at);
                // SAFETY: a page that was mapped above, which nobody has a reference to.
                unsafe { rustix::mm::mprotect(start, page_size(), rights) }.unwrap();
            }
            pages
        }

        fn start(&self, page: usize) -> *mut std::ffi::c_void {
            std::ptr::with_exposed_provenance_mut(self.addr as usize + page * page_size())
        }

        /// How many bytes from an offset on can be accessed.
        fn good(&self, at: usize, len: usize, is_good: impl Fn(Page) -> bool) -> usize {
            let is_bad = |byte: &usize| !is_good(self.pages[byte / page_size()]);
            (at..at + len).find(is_bad).unwrap_or(at + len) - at
        }

        /// All that can be read, and zeros.
        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0; self.pages.len() * page_size()];
            for (at, bytes) in bytes.chunks_mut(page_size()).enumerate() {
                let _ = CopyMethod::SystemCalls.read(self.addr + (at * page_size()) as u64, bytes);
            }
            bytes
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let size = self.pages.len() * page_size();
            // SAFETY: what `new` has mapped; nobody has a reference to it.
            unsafe { rustix::mm::munmap(self.start(0), size) }.unwrap();
        }
    }

    fn page() -> impl Strategy<Value = Page> {
        let gone = prop_oneof![Just(Page::ReadOnly), Just(Page::Inaccessible)];
        prop_oneof![3 => Just(Page::Whole), 1 => gone]
    }

    /// Where a copy begins, and its length: near the edges of pages as well as anywhere.
    fn stretch() -> impl Strategy<Value = (usize, usize)> {
        let near = (1..4usize, 0..200usize).prop_map(|(page, at)| page * page_size() - 100 + at);
        let at = prop_oneof![near, 0..4 * page_size()];
        (at, prop_oneof![0..300usize, 0..4 * page_size()])
    }

    fn check(result: Result<(), Fault>, addr: u64, good: usize, len: usize) -> usize {
        match result {
            Ok(()) => {
                assert_eq!(good, len, "beyond what is there");
                len
            }
            Err(fault) => {
                assert!(good < len, "{fault}, and all is there");
                let copied = (fault.addr - addr) as usize;
                assert!(copied <= good && good < copied + 64, "{copied} of {good}");
                assert_eq!((fault.len, fault.errno), (len - copied, Errno::FAULT));
                copied
            }
        }
    }

    proptest! {
        /// Whatever pages are there or not: what can be copied is, forward, nothing else is
        /// touched, and the rest is a fault.
        #[test]
        fn memory_that_is_gone_is_a_fault_and_nothing_behind_it_is_touched(
            pages in prop::collection::vec(page(), 4..6),
            (at, len) in stretch(),
            seed in 1..100u8,
        ) {
            prop_assert!(prepare());
            for method in METHODS {
                let pages = Pages::new(pages.clone());
                let len = len.min(pages.pages.len() * page_size() - at);
                let addr = pages.addr + at as u64;
                let data: Vec<u8> = (0..len).map(|i| (i % 151) as u8 + seed).collect();

                let good = pages.good(at, len, |page| page == Page::Whole);
                let copied = check(method.write(addr, &data), addr, good, len);
                let bytes = pages.bytes();
                prop_assert!(bytes[at..at + copied] == data[..copied]);
                prop_assert!(bytes[..at].iter().all(|byte| *byte == 0));
                prop_assert!(bytes[at + good..].iter().all(|byte| *byte == 0));

                let mut found = vec![0; len];
                let good = pages.good(at, len, |page| page != Page::Inaccessible);
                let copied = check(method.read(addr, &mut found), addr, good, len);
                prop_assert!(found[..copied] == bytes[at..at + copied]);
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_off_under_its_mapping_is_a_fault() {
        assert!(prepare());
        let (len, both) = (2 * page_size(), ProtFlags::READ | ProtFlags::WRITE);
        for method in METHODS {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, len as u64).unwrap();
            let null = std::ptr::null_mut();
            // SAFETY: a null hint without MAP_FIXED replaces nothing.
            let start = unsafe { rustix::mm::mmap(null, len, both, MapFlags::SHARED, &file, 0) };
            let start = start.unwrap();
            let addr = start.expose_provenance() as u64;
            let data = vec![7; len];
            method.write(addr, &data).unwrap();
            rustix::fs::ftruncate(&file, page_size() as u64).unwrap();
            let fault =
                Fault { addr: addr + page_size() as u64, len: page_size(), errno: Errno::FAULT };
            assert_eq!(method.write(addr, &data), Err(fault), "{method:?}");
            assert_eq!(method.read(addr, &mut vec![0; len]), Err(fault), "{method:?}");
            // SAFETY: what was mapped above, and nobody else knows of.
            unsafe { rustix::mm::munmap(start, len) }.unwrap();
        }
    }

    #[test]
    fn addresses_that_nothing_can_have_are_faults() {
        assert!(prepare());
        for method in METHODS {
            for addr in [0, 4096, 1 << 47, 1 << 63, u64::MAX - 7] {
                assert!(method.read(addr, &mut [0; 16]).is_err(), "{method:?} {addr:#x}");
                assert!(method.write(addr, &[0; 16]).is_err(), "{method:?} {addr:#x}");
                assert_eq!(method.write(addr, &[]), Ok(()));
            }
        }
    }

    /// Memory that another thread takes away and gives back while it is written to.
    #[test]
    fn memory_may_go_in_the_midst_of_a_copy() {
        assert!(prepare());
        let is_guarded = CopyMethod::now() == CopyMethod::Guarded;
        assert_eq!(is_guarded, cfg!(target_arch = "x86_64"));
        let pages = Pages::new(vec![Page::Whole; 4]);
        let (data, method) = (vec![1; 4 * page_size()], CopyMethod::now());
        let (mut faults, mut whole) = (0, 0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let rights = [MprotectFlags::empty(), MprotectFlags::READ | MprotectFlags::WRITE];
                for rights in rights.into_iter().cycle() {
                    // SAFETY: nobody has a reference to the page.
                    unsafe { rustix::mm::mprotect(pages.start(2), page_size(), rights) }.unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            while faults < 100 || whole < 100 {
                match method.write(pages.addr, &data) {
                    Ok(()) => whole += 1,
                    Err(_) => faults += 1,
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn copies_in_a_fork_are_of_its_own_memory_and_guarded_too() {
        assert!(prepare());
        let pages = Pages::new(vec![Page::Whole, Page::Inaccessible]);
        let method = CopyMethod::now();
        method.write(pages.addr, b"before").unwrap();
        // SAFETY: between fork and _exit the child only copies memory.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut found = [0; 6];
            let is_right = method.read(pages.addr, &mut found).is_ok()
                && found == *b"before"
                && method.write(pages.addr, b"child!").is_ok()
                && method.write(pages.addr + page_size() as u64 - 3, b"child!").is_err();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        let mut found = [0; 6];
        method.read(pages.addr, &mut found).unwrap();
        assert_eq!(&found, b"before");
    }

    /// OWN-037
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_thread_goes_by_what_it_has_found_out_for_no_longer_than_20_us() {
        prepare();
        let (now, us) = (Instant::now(), Duration::from_micros(1));
        let test = move || {
            let mut known = KnownMethod::default();
            assert_eq!(known.get(now), CopyMethod::Guarded);
            let _blocked = SignalsBlocked::all();
            assert_eq!(known.get(now + 19 * us), CopyMethod::Guarded);
            known.renew(now + 9 * us);
            assert_eq!(known.get(now + 9 * us), CopyMethod::Guarded, "too soon");
            known.renew(now + 10 * us);
            assert_eq!(known.get(now + 10 * us), CopyMethod::SystemCalls);
            let guarded = Known {
                method: CopyMethod::Guarded,
                since: now,
                thread: this_thread(),
                is_used: false,
            };
            let mut known = KnownMethod(Some(guarded));
            known.renew(now + 19 * us);
            assert_eq!(known.get(now + 19 * us), CopyMethod::Guarded, "nobody had asked");
            assert_eq!(known.get(now + 20 * us), CopyMethod::SystemCalls);
            known
        };
        let mut known = std::thread::spawn(test).join().unwrap();
        assert_eq!(known.get(now + 20 * us), CopyMethod::Guarded, "here it is not blocked");
    }
}
