//! Signals that are kept from a thread, and those that a fault in memory brings.

use std::mem::MaybeUninit;

/// The signals of memory that is not there: of addresses without a page, and of pages without
/// bytes.
pub(crate) const FAULTS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Whether this thread lets a signal of [`FAULTS`] wait. Of a fault, that would be the end.
pub(crate) fn is_fault_blocked() -> bool {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: it only asks, and writes to what is ours, which is read then.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) != 0
            || FAULTS.into_iter().any(|s| libc::sigismember(blocked.as_ptr(), s) != 0)
    }
}

/// While this lives, the calling thread runs no signal handler, and the threads that it begins
/// never do.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// No handler at all.
    pub(crate) fn all() -> SignalsBlocked {
        SignalsBlocked::all_but(&[])
    }

    /// None but of [`FAULTS`]: a fault is the end of who blocks its signal.
    pub(crate) fn all_but_faults() -> SignalsBlocked {
        SignalsBlocked::all_but(&FAULTS)
    }

    fn all_but(signals: &[libc::c_int]) -> SignalsBlocked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigfillset` initialises the one, `pthread_sigmask` the other; with these
        // arguments they cannot fail.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for &signal in signals {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            SignalsBlocked { before: before.assume_init() }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: a signal set that `pthread_sigmask` gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
