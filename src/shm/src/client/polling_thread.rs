//! What a thread of the program has to have in order to do work of ours while it polls.

use crate::signals::is_fault_blocked;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Room on its stack, in bytes: several times what the work takes.
const STACK: usize = 64 << 10;

thread_local! {
    /// Where on its stack a thread may be that does work of ours: nowhere if it may not.
    static ROOM: Range<usize> = room();
}

/// Whether this thread can do work of ours here: a fault in memory comes to its handler, rather
/// than end the process, and there is room on the stack. Where a thread is on another stack than it
/// began with, as a coroutine is, nobody knows how much there is. Of signals and stack it counts
/// what was when this was asked first.
pub fn has_room() -> bool {
    let here = 0u8;
    ROOM.with(|room| room.contains(&(&raw const here).addr()))
}

fn room() -> Range<usize> {
    let Some(stack) = stack().filter(|_| !is_fault_blocked()) else { return 0..0 };
    stack.start.saturating_add(STACK)..stack.end
}

/// The stack that the thread began with, without the pages below that end it.
fn stack() -> Option<Range<usize>> {
    let mut attr = MaybeUninit::uninit();
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: what the first call has written is read by the second and destroyed by the third.
    let is_known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) == 0 && {
            let failed = libc::pthread_attr_getstack(attr.as_ptr(), &raw mut lowest, &raw mut size);
            libc::pthread_attr_destroy(attr.as_mut_ptr());
            failed == 0
        }
    };
    is_known.then(|| lowest.addr()..lowest.addr().saturating_add(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn has_room_with(stack: usize) -> bool {
        thread::Builder::new().stack_size(stack).spawn(has_room).unwrap().join().unwrap()
    }

    #[test]
    fn a_thread_with_a_small_stack_has_no_room() {
        // In this order, lest it gets the stack of the other one.
        assert!(!has_room_with(STACK));
        assert!(has_room_with(4 * STACK));
    }

    #[test]
    fn a_thread_that_blocks_faults_has_no_room() {
        let blocks = || {
            let mut set = MaybeUninit::uninit();
            // SAFETY: the set is written to before it is read.
            unsafe {
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            }
            has_room()
        };
        assert!(!thread::spawn(blocks).join().unwrap());
    }

    #[test]
    fn a_stack_is_where_its_variables_are() {
        let here = 0u8;
        assert!(stack().unwrap().contains(&(&raw const here).addr()));
    }
}
