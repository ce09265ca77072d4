//! Remapped memory and children of the program.

use super::*;

#[test]
fn memory_that_is_given_back_while_another_thread_forks_is_inherited() {
    const ROUNDS: usize = 100;
    let memory = Memory::new(LEN);
    if memory.shared().is_none() {
        return;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(in_child(|| true).success());
            }
        });
        let failed = (0..ROUNDS).find_map(|round| {
            drop(memory.share().unwrap());
            let child = in_child(|| memory.holds_its_numbers());
            (!child.success()).then_some((round, child))
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, None);
    });
}

#[test]
fn a_child_of_fork_has_a_copy_of_its_own() {
    let memory = Memory::new(LEN);
    let Some(shared) = memory.shared() else { return };
    let view = daemons_view(&shared, LEN);
    let protection = rustix::mm::MprotectFlags::READ;
    // SAFETY: nobody writes to this page any more.
    unsafe { rustix::mm::mprotect(memory.start.byte_add(4096), 4096, protection) }.unwrap();
    let child = in_child(|| {
        // What the parent's peers write now is not the child's.
        view.store_u64(80, 1).unwrap();
        let had_all = memory.holds_its_numbers();
        // And what the child writes is not the parent's, nor its own child's parent's.
        memory.words()[0].store(99, Ordering::Relaxed);
        let grandchild = in_child(|| {
            let has_it = memory.words()[0].load(Ordering::Relaxed) == 99;
            memory.words()[1].store(98, Ordering::Relaxed);
            has_it
        });
        had_all && grandchild.success() && memory.words()[1].load(Ordering::Relaxed) == 1
    });
    assert!(child.success(), "{child}");
    let reads_only = in_child(|| {
        memory.words()[512].store(1, Ordering::Relaxed);
        true
    });
    assert_eq!(reads_only.signal(), Some(libc::SIGSEGV), "rights are as they were");
    assert_eq!(memory.words()[10].swap(10, Ordering::Relaxed), 1, "still shared with the daemon");
    assert!(memory.holds_its_numbers());
}

#[test]
fn a_parent_that_remaps_in_several_threads_has_children_with_all_their_memory() {
    let memory = Memory::new(LEN);
    let Some(_shared) = memory.shared() else { return };
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let other = Memory::new(LEN);
                while !is_over.load(Ordering::Relaxed) {
                    drop(other.share());
                }
            });
        }
        for _ in 0..50 {
            assert!(in_child(|| memory.holds_its_numbers()).success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_of_a_program_whose_threads_register_memory_can_do_so_too() {
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let register = || {
            let memory = Memory::new(LEN);
            let copied = Registered::copied(memory.addr(), LEN as u64, WhyCopied::NotAsked);
            drop(memory.share());
            drop(copied);
            drop(memory.share());
        };
        for _ in 0..2 {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    register();
                }
            });
        }
        for _ in 0..100 {
            let child = in_child(|| {
                register();
                true
            });
            assert!(child.success(), "{child}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// In a process of its own, in which no other test forks at the same time.
#[test]
fn a_child_of_a_bare_clone_does_not_share_with_its_parent() {
    let outcome = in_child(|| {
        let memory = Memory::new(LEN);
        let _shared = memory.share().unwrap();
        // SAFETY: as `fork` without its handlers; the child only reads memory, and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let code = i32::from(!memory.holds_its_numbers());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child as libc::pid_t, &mut status, 0) };
        ExitStatus::from_raw(status).signal() == Some(libc::SIGSEGV)
    });
    assert!(outcome.success(), "{outcome}");
}
