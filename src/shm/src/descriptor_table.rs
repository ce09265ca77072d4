//! Tables of descriptors: a thread may have one of its own, and close what it has in it.

use std::io;
use std::os::fd::RawFd;

/// Gives the calling thread a table of its own, a copy of the process's, without the descriptors
/// from a number on.
///
/// # Errors
/// Of Linux before 5.9.
pub(crate) fn unshare(without: RawFd) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: all descriptors stay what they are for the other threads. Of the copies that are
    // missing in the new table nothing knows.
    unsafe { close_range(number_of(without), libc::c_uint::MAX, flags) }
}

/// Closes all descriptors from a number on but these, which are in order.
///
/// # Safety
/// The calling thread has a table of its own, and nothing owns anything in it but what is kept.
///
/// # Errors
/// Of Linux before 5.9.
pub(crate) unsafe fn close_all_but(first: RawFd, kept: &[RawFd]) -> io::Result<()> {
    let mut from = number_of(first);
    for number in kept.iter().copied().map(number_of) {
        if number > from {
            // SAFETY: the caller's promise.
            unsafe { close_range(from, number - 1, 0)? };
        }
        from = number + 1;
    }
    // SAFETY: as above.
    unsafe { close_range(from, libc::c_uint::MAX, 0) }
}

/// Has all descriptors from a number on closed when another program is executed.
///
/// # Errors
/// Of Linux before 5.11.
pub(crate) fn close_on_exec(first: RawFd) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: no descriptor is closed by it: each stays what it is for whoever owns it here.
    unsafe { close_range(number_of(first), libc::c_uint::MAX, flags) }
}

/// A descriptor as this system call takes it; none is negative.
fn number_of(descriptor: RawFd) -> libc::c_uint {
    descriptor.cast_unsigned()
}

/// # Safety
/// Nobody owns a descriptor that is closed by it.
unsafe fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_uint,
) -> io::Result<()> {
    // SAFETY: the call takes no pointer; and the caller's promise.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
