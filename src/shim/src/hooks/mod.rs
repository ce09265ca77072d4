//! The functions of libc that are interposed.
//!
//! Each does what libc does, except where a path or a descriptor of ours is concerned. On that
//! way, and only there, a panic is caught: it must not go on into a program that knows nothing
//! of it. `errno` is touched by failures alone.

mod advise;
mod close;
mod duplicate;
mod io;
mod ioctl;
mod name;
mod open;
mod signal;
mod socket;
mod stat;

use crate::next::Failure;
use libc::c_int;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use urxe_shm::client::cancellation::CancellationDisabled;

/// Defines functions that the program, and the libraries it uses, call instead of libc's.
macro_rules! hooks {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block
    )*) => {$(
        $(#[$doc])*
        // SAFETY: the name is libc's; the signature and the meaning are those of libc.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the program promises what the C function of this name asks for, and libc's
            // own function asks for no more.
            unsafe { $body }
        }
    )*};
}
use hooks;

/// Does what is ours to do, and says how it went as a C function does. The thread is not cancelled
/// meanwhile: that would unwind through us.
fn answer<R: Failure>(work: impl FnOnce() -> Result<R, Errno>) -> R {
    // CLIENT-063
    let _cancellation = CancellationDisabled::in_this_thread();
    answer_uncancelled(work)
}

/// The same where nothing is called in which a thread may be cancelled.
fn answer_uncancelled<R: Failure>(work: impl FnOnce() -> Result<R, Errno>) -> R {
    let before = errno();
    match catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO)) {
        Ok(result) => {
            put_errno(before);
            result
        }
        Err(errno) => fail(errno),
    }
}

/// A failure, and why.
pub(crate) fn fail<R: Failure>(errno: Errno) -> R {
    put_errno(errno.raw_os_error());
    R::FAILURE
}

/// This thread's `errno`, which may be 0.
pub(crate) fn errno() -> c_int {
    // SAFETY: libc gives the address of this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub(crate) fn put_errno(errno: c_int) {
    // SAFETY: libc gives the address of this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_says_why_something_failed_and_is_left_alone_else() {
        put_errno(77);
        let done = answer(|| {
            put_errno(5);
            Ok(3)
        });
        assert_eq!((done, errno()), (3, 77));
        assert_eq!((answer::<c_int>(|| Err(Errno::BUSY)), errno()), (-1, libc::EBUSY));
    }

    #[test]
    fn a_panic_stays_here() {
        let failed: isize = answer(|| panic!("on purpose"));
        assert_eq!((failed, errno()), (-1, libc::EIO));
    }
}
