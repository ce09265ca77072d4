mod fork;
mod whole_pages;

use super::*;
use crate::memory::region::Mapping;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use urxe_shell::testing::{could_not_run, needs_root};

const LEN: usize = 256 * 1024;

/// Memory as a program has it, touched word by word.
struct Memory {
    start: *mut c_void,
    len: usize,
}

// SAFETY: what it gives access to are atomics.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Memory {
        // SAFETY: a null hint without MAP_FIXED replaces nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)
        };
        let memory = Memory { start: start.unwrap(), len };
        for (number, word) in (0..).zip(memory.words()) {
            word.store(number, Ordering::Relaxed);
        }
        memory
    }

    fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self`, whatever is mapped there, and zeroed at first.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / 8) }
    }

    fn share(&self) -> Result<Shared, NotRemapped> {
        share(self.addr(), self.len as u64, u64::MAX)
    }

    /// `None`, and said so, where this user cannot be tested.
    fn shared(&self) -> Option<Shared> {
        self.shared_from(0)
    }

    /// From a byte on, with what lies before it the program's own as before.
    fn shared_from(&self, first: usize) -> Option<Shared> {
        match share(self.addr() + first as u64, (self.len - first) as u64, u64::MAX) {
            Err(NotRemapped::Threads) => {
                needs_root("this user may not use userfaultfd");
                None
            }
            result => Some(result.unwrap()),
        }
    }

    fn holds_its_numbers(&self) -> bool {
        (0..).zip(self.words()).all(|(number, word)| word.load(Ordering::Relaxed) == number)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped.
        unsafe { rustix::mm::munmap(self.start, self.len) }.unwrap();
    }
}

fn daemons_view(shared: &Shared, len: usize) -> Mapping {
    Mapping::of_foreign(shared.memfd(), shared.offset(), len as u64).unwrap()
}

/// What becomes of a child that does this.
pub(super) fn in_child(work: impl FnOnce() -> bool) -> ExitStatus {
    // SAFETY: the child of a process with other threads keeps to system calls and atomics, or
    // to what glibc makes safe in a child: allocating.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: has the child ended by a signal if it hangs.
        unsafe { libc::alarm(60) };
        let code = i32::from(!work());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    ExitStatus::from_raw(status)
}

#[test]
fn the_program_and_the_daemon_see_the_same_bytes() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let view = daemons_view(&shared, LEN);
    assert!(memory.holds_its_numbers());
    view.store_u64(80, 1).unwrap();
    assert_eq!(memory.words()[10].load(Ordering::Relaxed), 1);
    memory.words()[LEN / 8 - 1].store(2, Ordering::Relaxed);
    assert_eq!(view.fetch_add(LEN as u64 - 8, 0), Ok(2));
}

#[test]
fn no_write_is_lost() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 40;
    let mut used = Memory::new(LEN);
    if used.shared().is_none() {
        return;
    }
    for round in 0..ROUNDS {
        // Memory that never was remapped, and such that was before.
        if round % 2 == 0 {
            used = Memory::new(LEN);
        }
        let memory = &used;
        let before: Vec<u64> = memory.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        let is_over = AtomicBool::new(false);
        let written: Vec<u64> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let mine = memory.words().iter().skip(thread).step_by(THREADS);
                        let mut rounds = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            for word in mine.clone() {
                                let value = word.load(Ordering::Relaxed);
                                word.store(value + 1, Ordering::Relaxed);
                            }
                            rounds += 1;
                        }
                        rounds
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(1));
            // Shared, and given back at once.
            drop(memory.share().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(1));
            is_over.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        for (number, word) in memory.words().iter().enumerate() {
            let expected = before[number] + written[number % THREADS];
            assert_eq!(word.load(Ordering::Relaxed), expected, "word {number}");
        }
    }
}

#[test]
fn only_ordinary_memory_of_whole_pages_is_remapped() {
    let memory = Memory::new(LEN);
    let page = page_size() as u64;
    let shared = |addr, len| share(addr, len, u64::MAX).map(|_| ()).unwrap_err();
    assert!(matches!(shared(memory.addr(), MIN_LEN - 1), NotRemapped::Short(_)));
    for (addr, len) in [
        (memory.addr() + 8, MIN_LEN),
        (memory.addr(), MIN_LEN + 8),
        (memory.addr() + 8, MIN_LEN - 8 + page),
        (0u64.wrapping_sub(page), MIN_LEN),
    ] {
        let refused = shared(addr, len);
        assert!(matches!(refused, NotRemapped::PartialPages { .. }), "{addr:#x} {len} {refused}");
    }
    // Nothing there; then a file.
    assert!(matches!(shared(page, MIN_LEN), NotRemapped::OtherMemory(_)));
    let memfd = create_memfd("test", MIN_LEN).unwrap();
    for flags in [MapFlags::PRIVATE, MapFlags::SHARED] {
        // SAFETY: replaces pages of `memory`, which is made of atomics only.
        unsafe {
            rustix::mm::mmap(
                memory.start,
                MIN_LEN as usize,
                READ_WRITE,
                flags | MapFlags::FIXED,
                &memfd,
                0,
            )
        }
        .unwrap();
        assert!(matches!(memory.share(), Err(NotRemapped::OtherMemory(at)) if at == memory.addr()));
    }
    let read_only = Memory::new(LEN);
    let (middle, protection) = (MIN_LEN as usize, rustix::mm::MprotectFlags::READ);
    // SAFETY: nobody writes to this memory any more.
    unsafe { rustix::mm::mprotect(read_only.start.byte_add(middle), 4096, protection) }.unwrap();
    let at = read_only.addr() + MIN_LEN;
    assert!(matches!(read_only.share(), Err(NotRemapped::OtherMemory(found)) if found == at));
    assert!(read_only.holds_its_numbers());
}

#[test]
fn the_stack_of_the_caller_is_refused() {
    let stack = vec![0u8; 0];
    let page = page_size() as u64;
    let here = (&raw const stack).addr() as u64 / page * page;
    let refused = share(here - MIN_LEN + page, MIN_LEN, u64::MAX).unwrap_err();
    assert!(matches!(refused, NotRemapped::OwnStack { .. }), "{refused}");
}

#[test]
fn a_range_within_one_that_is_shared_is_in_the_same_memfd() {
    let memory = Memory::new(LEN);
    let Some(whole) = memory.shared() else { return };
    let part = share(memory.addr() + MIN_LEN, 2 * MIN_LEN, u64::MAX).unwrap();
    assert_eq!((whole.offset(), part.offset()), (0, MIN_LEN));
    drop(whole);
    daemons_view(&part, 8).store_u64(0, 1).unwrap();
    assert_eq!(memory.words()[MIN_LEN as usize / 8].load(Ordering::Relaxed), 1, "still shared");
}

#[test]
fn in_the_end_the_memory_is_the_programs_own_again() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let view = daemons_view(&shared, LEN);
    memory.words()[5].store(55, Ordering::Relaxed);
    drop(shared);
    assert_eq!(memory.words()[5].swap(5, Ordering::Relaxed), 55);
    assert!(memory.holds_its_numbers());
    let mut bytes = [1; 8];
    view.read(8, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8], "the memfd holds no memory any more");
    // A child has a copy, and giving memory back zeroes it, as allocators expect.
    assert!(in_child(|| memory.holds_its_numbers()).success());
    // SAFETY: the memory is made of atomics, and may change at any time.
    unsafe { rustix::mm::madvise(memory.start, LEN, Advice::LinuxDontNeed) }.unwrap();
    assert!(memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn discarded_memory_is_zero_for_the_program_and_the_daemon() {
    let memory = Memory::new(2 * LEN);
    let Some(shared) = memory.shared_from(LEN) else { return };
    let view = daemons_view(&shared, LEN);
    let page = page_size();
    let start = memory.addr() + LEN as u64;
    assert!(!discard(start - page as u64, page as u64), "not remapped");
    assert!(memory.holds_its_numbers());
    assert!(discard(start + page as u64, page as u64));
    let words = &memory.words()[LEN / 8..];
    let is_zero = |word: usize| words[word].load(Ordering::Relaxed) == 0;
    assert!((page / 8..2 * page / 8).all(is_zero));
    assert!(!is_zero(page / 8 - 1) && !is_zero(2 * page / 8));
    let mut bytes = [1; 8];
    view.read(page as u64 + 80, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    words[page / 8].store(7, Ordering::Relaxed);
    view.read(page as u64, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 7, "still the same memory");
}

#[test]
fn nothing_is_discarded_from_an_address_within_a_page() {
    let memory = Memory::new(LEN);
    let Some(_shared) = memory.shared() else { return };
    assert!(!discard(memory.addr() + 8, LEN as u64 - 8));
    assert!(!discard(memory.addr(), u64::MAX));
    assert!(memory.holds_its_numbers());
}

/// As an allocator asks, whose lock the one that remaps waits for.
#[test]
fn memory_that_is_not_remapped_is_discarded_without_waiting() {
    let memory = Memory::new(2 * LEN);
    let Some(_shared) = memory.shared_from(LEN) else { return };
    let state = Locked::state().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| discard(memory.addr(), LEN as u64));
        assert!(!other.join().unwrap());
    });
    drop(state);
    assert!(memory.holds_its_numbers());
}

#[test]
fn a_child_has_as_many_ranges_as_its_parent() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let child = in_child(|| {
        let is_listed = || listed::overlap(&(memory.addr()..memory.addr() + 1));
        let was_listed = is_listed();
        let Ok(own) = memory.share() else { return !was_listed };
        // SAFETY: the child's own copy, which it ends without using it again.
        drop(unsafe { std::ptr::read(&shared) });
        let stays_listed = is_listed();
        drop(own);
        !was_listed && stays_listed && !is_listed()
    });
    assert!(child.success(), "{child}");
    assert!(listed::overlap(&(memory.addr()..memory.addr() + 1)), "it is the parent's");
}

/// In a process of its own, which a signal would end.
#[test]
fn nothing_is_remapped_that_is_longer_than_a_file_may_be() {
    let memory = Memory::new(LEN);
    let child = in_child(|| {
        let limit = |bytes| rustix::process::Rlimit { current: Some(bytes), maximum: None };
        rustix::process::setrlimit(Resource::Fsize, limit(LEN as u64 - 1)).unwrap();
        let is_refused = matches!(memory.share(), Err(NotRemapped::System { .. }));
        rustix::process::setrlimit(Resource::Fsize, limit(LEN as u64)).unwrap();
        // What it is given back as is no longer than that either.
        let is_served = memory.share().map(drop).is_ok();
        is_refused && is_served && memory.holds_its_numbers()
    });
    assert!(child.success(), "{child}");
}

/// In a process of its own, which a signal would end.
#[test]
fn memory_that_was_given_back_can_be_made_longer() {
    let memory = Memory::new(LEN);
    let child = in_child(|| {
        drop(memory.share().unwrap());
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: the child does not use `memory` again.
        let start = unsafe { rustix::mm::mremap(memory.start, LEN, 2 * LEN, flags) }.unwrap();
        let longer = Memory { start, len: 2 * LEN };
        let (old, new) = longer.words().split_at(LEN / 8);
        let is_kept = (0..).zip(old).all(|(number, word)| word.load(Ordering::Relaxed) == number);
        let is_zero = new.iter().all(|word| word.swap(1, Ordering::Relaxed) == 0);
        // And remapped again, as one.
        let is_served = longer.share().is_ok();
        let has_all = new.iter().all(|word| word.load(Ordering::Relaxed) == 1);
        is_kept && is_zero && is_served && has_all
    });
    assert!(child.success(), "{child}");
}

#[test]
fn memory_that_the_daemon_reaches_by_system_calls_is_not_remapped() {
    let memory = Memory::new(LEN);
    let Registered::Copied(copied, why) = Registered::new(memory.addr() + 8, 100, u64::MAX) else {
        panic!("100 bytes were remapped");
    };
    assert_eq!(why, WhyCopied::Short);
    assert!(matches!(memory.share(), Err(NotRemapped::Copied { .. })));
    drop(copied);
    let Some(shared) = memory.shared() else { return };
    // Where it is remapped already, both ways lead to the same bytes.
    assert!(matches!(Registered::new(memory.addr(), 100, u64::MAX), Registered::Copied(..)));
    drop(shared);
}

#[test]
fn nothing_is_remapped_that_is_longer_than_asked_for() {
    let memory = Memory::new(LEN);
    let why = |longest| match Registered::new(memory.addr(), LEN as u64, longest) {
        Registered::Copied(_, why) => Some(why),
        Registered::Shared(_) | Registered::WholePages { .. } => None,
    };
    assert_eq!(why(LEN as u64 - 1), Some(WhyCopied::Long));
    assert_eq!(why(0), Some(WhyCopied::NotAsked));
    assert!(matches!(why(LEN as u64), None | Some(WhyCopied::Threads)));
}

/// In a process of its own, where the tests beside do not matter.
#[test]
fn nothing_is_remapped_where_somebody_may_hold_on_to_pages() {
    let memory = Memory::new(LEN);
    let outcome = in_child(|| {
        // SAFETY: our own memory, which stays where it is.
        let locked = unsafe { rustix::mm::mlock(memory.start, 4096) };
        locked.is_err() || matches!(memory.share(), Err(NotRemapped::Held("mlock")))
    });
    assert!(outcome.success(), "{outcome}");
    let outcome = in_child(|| {
        let mut context = 0u64;
        // SAFETY: fills in the context, which lives on the stack.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) };
        made != 0 || matches!(memory.share(), Err(NotRemapped::Held(_)))
    });
    assert!(outcome.success(), "{outcome}");
}

#[test]
fn memory_that_somebody_may_hold_on_to_is_given_back_later() {
    let memory = Memory::new(LEN);
    let other = Memory::new(LEN);
    let outcome = in_child(|| {
        let (shared, unmapped) = match (memory.share(), other.share()) {
            (Ok(shared), Ok(unmapped)) => (shared, unmapped),
            // By what a test beside has open.
            (Err(refused), _) => return matches!(refused, NotRemapped::Held(_)),
            _ => return false,
        };
        let view = daemons_view(&shared, LEN);
        let is_seen = |number| {
            view.store_u64(0, number).unwrap();
            memory.words()[0].load(Ordering::Relaxed) == number
        };
        let mut context = 0u64;
        // SAFETY: fills in the context, which lives on the stack.
        if unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) } != 0 {
            return true;
        }
        let number = unmapped.memfd().as_raw_fd();
        // SAFETY: memory of atomics only, which this child uses no more.
        unsafe { rustix::mm::munmap(other.start, LEN) }.unwrap();
        drop((shared, unmapped));
        let is_kept = is_seen(77);
        // SAFETY: only asks for its flags.
        let is_closed = unsafe { libc::fcntl(number, libc::F_GETFD) } < 0;
        // It can be registered again, and is the same memory.
        let again = memory.share();
        let is_same = again.is_ok() && is_seen(78);
        drop(again);
        let is_still_kept = is_seen(79);
        // SAFETY: what was made above.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        drop(memory.share());
        is_kept && is_closed && is_same && is_still_kept && !is_seen(80)
    });
    assert!(outcome.success(), "{outcome}");
}

/// In a process of one thread, where everybody's memory is remapped.
#[test]
fn a_child_has_nothing_of_what_its_parent_excludes() {
    let memory = Memory::new(LEN);
    let addr = memory.addr();
    let advise = |range: std::ops::Range<u64>, is_inherited| {
        let advice = if is_inherited { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        let len = range.end - range.start;
        // SAFETY: changes neither contents nor what is mapped.
        unsafe { rustix::mm::madvise(pointer(range.start), len as usize, advice) }.unwrap();
        note_inheritance(range.start, len, is_inherited);
    };
    let has_all = |range| Area::all_of(range).is_ok();
    let (first, second) = (addr..addr + LEN as u64 / 2, addr + LEN as u64 / 2..addr + LEN as u64);
    let outcome = in_child(|| {
        // Before it is remapped, while it is, and after it was.
        advise(first.clone(), false);
        let shared = match memory.share() {
            Ok(shared) => shared,
            // By what a test beside has open.
            Err(refused) => return matches!(refused, NotRemapped::Held(_)),
        };
        let lacks_first = in_child(|| {
            !has_all(first.start..first.start + 4096)
                && !has_all(first.end - 4096..first.end)
                && has_all(second.clone())
                && memory.words()[LEN / 8 - 1].load(Ordering::Relaxed) == LEN as u64 / 8 - 1
        });
        advise(first.clone(), true);
        let has_both = in_child(|| memory.holds_its_numbers());
        advise(second.clone(), false);
        let lacks_second = in_child(|| has_all(first.clone()) && !has_all(second.clone()));
        let view = daemons_view(&shared, LEN);
        view.store_u64(LEN as u64 - 8, 5).unwrap();
        let is_shared = memory.words()[LEN / 8 - 1].load(Ordering::Relaxed) == 5;
        drop(shared);
        let still_lacks = in_child(|| has_all(first.clone()) && !has_all(second.clone()));
        let in_children = [lacks_first, has_both, lacks_second, still_lacks];
        is_shared && in_children.iter().all(ExitStatus::success)
    });
    assert!(outcome.success(), "{outcome}");
}

#[test]
fn memory_that_may_only_be_read_is_found() {
    let memory = Memory::new(LEN);
    assert_eq!(read_only_part(memory.addr(), LEN as u64), None);
    let part = pointer(memory.addr() + 4096 * 3);
    // SAFETY: nobody writes there meanwhile.
    let protect = |flags| unsafe { rustix::mm::mprotect(part, 8192, flags) }.unwrap();
    protect(rustix::mm::MprotectFlags::READ);
    let found = Some(memory.addr() + 4096 * 3);
    assert_eq!(read_only_part(memory.addr(), LEN as u64), found);
    assert_eq!(read_only_part(memory.addr(), u64::MAX), found);
    assert_eq!(read_only_part(memory.addr(), 4096 * 3), None);
    assert_eq!(read_only_part(memory.addr() + 4096 * 5, 4096), None);
    protect(rustix::mm::MprotectFlags::empty());
    assert_eq!(read_only_part(memory.addr(), LEN as u64), None, "it is reserved");
}

#[test]
fn a_parents_range_means_nothing_in_a_child() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let child = in_child(|| {
        // SAFETY: the child's own copy, which it ends without using it again.
        drop(unsafe { std::ptr::read(&shared) });
        true
    });
    assert!(child.success(), "{child}");
    assert!(memory.holds_its_numbers());
}

#[test]
fn a_descriptor_that_the_program_has_taken_is_left_to_it() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let number = shared.memfd().as_raw_fd();
    assert!(number >= LOWEST_DESCRIPTOR);
    let file = create_memfd("the program's", 8).unwrap();
    // SAFETY: the number is open, and `shared` notices that it is another file's.
    let taken = unsafe { libc::dup2(file.as_raw_fd(), number) };
    assert_eq!(taken, number);
    assert!(matches!(memory.share(), Err(NotRemapped::OtherMemory(_))));
    drop(shared);
    assert!(memory.holds_its_numbers());
    // SAFETY: the descriptor is open, and nobody else's.
    let taken = unsafe { OwnedFd::from_raw_fd(taken) };
    assert_eq!(rustix::io::pwrite(&taken, b"his own", 0), Ok(7));
}

#[test]
fn memory_that_the_program_has_unmapped_and_used_otherwise_is_left_alone() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: replaces `memory`, which is made of atomics only.
    unsafe { rustix::mm::mmap_anonymous(memory.start, LEN / 2, READ_WRITE, flags) }.unwrap();
    memory.words()[7].store(77, Ordering::Relaxed);
    drop(shared);
    assert_eq!(memory.words()[7].load(Ordering::Relaxed), 77);
    assert_eq!(memory.words()[8].load(Ordering::Relaxed), 0);
    let last = LEN / 8 - 1;
    assert_eq!(memory.words()[last].load(Ordering::Relaxed), last as u64);
}

/// An ordinary user may stop only what runs in user mode. That is everything, if nobody else is
/// there.
#[test]
fn an_ordinary_user_is_served_in_a_program_of_one_thread() {
    const NOBODY: libc::uid_t = 65534;
    let is_root = rustix::process::geteuid().is_root();
    let memory = Memory::new(LEN);
    let child = in_child(|| {
        // SAFETY: gives up rights, in a process of one thread.
        if is_root && unsafe { libc::setuid(NOBODY) } != 0 {
            return false;
        }
        let shared = match share(memory.addr(), LEN as u64, u64::MAX) {
            Ok(shared) => shared,
            // Another thread held the lock when the child was made; or nobody at all is served.
            // SAFETY: ends the child at once.
            Err(NotRemapped::Busy | NotRemapped::System { .. }) => unsafe { libc::_exit(2) },
            Err(_) => return false,
        };
        daemons_view(&shared, LEN).store_u64(0, 9).unwrap();
        memory.words()[0].swap(0, Ordering::Relaxed) == 9 && memory.holds_its_numbers()
    });
    match child.code() {
        Some(2) => could_not_run("this system has no userfaultfd for ordinary users"),
        code => assert_eq!(code, Some(0), "{child}"),
    }
}
