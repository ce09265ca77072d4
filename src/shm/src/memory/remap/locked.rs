//! The lock of all ranges. A thread that holds it knows that at every moment at which one of its
//! signal handlers may run: a handler may fork, and [`fork`] takes the lock too.

use super::State;
use super::copied::CopiedRanges;
use super::fork;
use crate::client::cancellation::CancellationDisabled;
use crate::signals::SignalsBlocked;
use rustix::thread::futex;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

static STATE: Mutex<State> =
    Mutex::new(State { remapped: Vec::new(), held: Vec::new(), copied: CopiedRanges::new() });

/// How often the lock was let go of: who waits for it waits for another number.
static RELEASES: AtomicU32 = AtomicU32::new(0);

/// How many threads may wait for one.
static WAITERS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread holds the lock: what it allocates may come back here, by the `madvise`
    /// of an allocator, or by a `fork` in a signal handler.
    static IS_HOLDER: Cell<bool> = const { Cell::new(false) };
}

/// The state, locked. Nothing that is done with it leaves it half changed; nor does a cancellation,
/// which the files that are read meanwhile would invite.
pub(super) struct Locked {
    state: ManuallyDrop<MutexGuard<'static, State>>,
    _cancellation: CancellationDisabled,
}

impl Locked {
    /// Waits for other threads, which takes milliseconds; none if this thread has it already.
    pub(super) fn state() -> Option<Locked> {
        if IS_HOLDER.get() {
            return None;
        }
        // Before the lock is taken for the first time: a child is not to find it taken.
        fork::watch();
        let _cancellation = CancellationDisabled::in_this_thread();
        let state = try_lock().unwrap_or_else(wait_and_lock);
        Some(Locked { state: ManuallyDrop::new(state), _cancellation })
    }
}

/// Takes the lock if it is free.
fn try_lock() -> Option<MutexGuard<'static, State>> {
    // A handler that ran between the two, and forked, would wait for its own thread.
    let _signals = SignalsBlocked::all();
    let state = match STATE.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    IS_HOLDER.set(true);
    Some(state)
}

/// Waits with handlers running: whoever holds the lock may be waiting for one of them, as a garbage
/// collector does that stops all threads by signals.
fn wait_and_lock() -> MutexGuard<'static, State> {
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let state = loop {
        let seen = RELEASES.load(Ordering::SeqCst);
        if let Some(state) = try_lock() {
            break state;
        }
        // However it ends, it is looked again.
        let _ = futex::wait(&RELEASES, futex::Flags::PRIVATE, seen, None);
    };
    WAITERS.fetch_sub(1, Ordering::SeqCst);
    state
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // As in `try_lock`.
        let signals = SignalsBlocked::all();
        IS_HOLDER.set(false);
        // SAFETY: this is the end; nobody uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.state) };
        drop(signals);
        RELEASES.fetch_add(1, Ordering::SeqCst);
        if WAITERS.load(Ordering::SeqCst) > 0 {
            // It fails only if nobody could be woken there.
            let _ = futex::wake(&RELEASES, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::super::tests::in_child;
    use super::Locked;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::sleep;
    use std::time::Duration;

    extern "C" fn fork_and_wait(_signal: libc::c_int) {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for our own child, without its status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    /// In a process of its own, which ends if it waits for itself.
    #[test]
    fn a_handler_that_forks_does_not_wait_for_the_thread_that_it_interrupts() {
        const FORKS: usize = 2000;
        let outcome = in_child(|| {
            // What the parent remaps is looked for in each fork.
            Locked::state().unwrap().remapped.clear();
            let handler = fork_and_wait as extern "C" fn(libc::c_int);
            // SAFETY: the handler calls what may be called while this thread allocates nothing.
            let registering = unsafe {
                libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
                libc::pthread_self()
            };
            let is_over = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for _ in 0..FORKS {
                        // SAFETY: the thread waits for this one.
                        unsafe { libc::pthread_kill(registering, libc::SIGUSR1) };
                        sleep(Duration::from_micros(200));
                    }
                    is_over.store(true, Ordering::Relaxed);
                });
                while !is_over.load(Ordering::Relaxed) {
                    drop(Copied::new(1 << 60, 1));
                }
            });
            true
        });
        assert!(outcome.success(), "{outcome}");
    }
}
