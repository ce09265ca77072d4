//! Threads that are cancelled (`pthread_cancel`).
//!
//! Cancellation unwinds, from whatever function of libc the thread is in that may block; what
//! unwinds so through frames of Rust that have anything to drop, or through the standard library,
//! ends the process. So it is put off while work of ours is done.

use std::ffi::c_int;
use std::ptr::null_mut;

/// `PTHREAD_CANCEL_DISABLE` of every libc.
const DISABLE: c_int = 1;

// SAFETY: the signatures are those of libc, whose functions may unwind.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// While this lives, the calling thread is not cancelled. If somebody has asked for that, it is
/// where it may be next.
#[derive(Debug)]
pub struct CancellationDisabled {
    before: c_int,
}

impl CancellationDisabled {
    /// From now on. To be dropped by the same thread.
    pub fn in_this_thread() -> CancellationDisabled {
        let mut before = DISABLE;
        // SAFETY: only fills in what was so before; with this argument it cannot fail.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        CancellationDisabled { before }
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        // SAFETY: a state that the function itself has given. Threads that may be cancelled at any
        // time (`PTHREAD_CANCEL_ASYNCHRONOUS`) may call nothing of ours.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}

/// Ends the calling thread here if it is to be cancelled, as functions of libc do that may block.
///
/// # Safety
/// No frame between here and the program may have anything to drop.
#[inline]
pub unsafe fn cancellation_point() {
    // SAFETY: the caller's promise.
    unsafe { pthread_testcancel() };
}
