//! Closing. The last descriptor of a uverbs device ends its context; what the shim itself has
//! open stays open, as if the program did not have it.

use super::{answer, fail, hooks};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use libc::{c_int, c_uint};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

hooks! {
    fn close(fd: c_int) -> c_int {
        if !DESCRIPTORS.has(fd) {
            return next::close(fd);
        }
        match forget(fd) {
            Ok(()) => next::close(fd),
            Err(errno) => fail(errno),
        }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if !concerns_us(first, last) || flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0 {
            return next::close_range(first, last, flags);
        }
        // Nothing has that number: this asks only whether there is such a system call.
        let nothing = next::close_range(c_uint::MAX, c_uint::MAX, flags);
        if nothing != 0 {
            return nothing;
        }
        close_around_ours(first, last, |first, last| next::close_range(first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        let from = first.max(0) as c_uint;
        if !concerns_us(from, c_uint::MAX) {
            return next::closefrom(first);
        }
        close_around_ours(from, c_uint::MAX, |first, last| {
            if next::close_range(first, last, 0) != 0 {
                close_each(first, last);
            }
            0
        });
    }
}

/// Whether a range of descriptors has any of ours.
fn concerns_us(first: c_uint, last: c_uint) -> bool {
    ours_from(first).is_some_and(|fd| fd <= last && DESCRIPTORS.is_of_this_process())
}

/// The first descriptor of ours from `fd` on.
fn ours_from(fd: c_uint) -> Option<c_uint> {
    DESCRIPTORS.next_from(fd.try_into().ok()?)?.try_into().ok()
}

/// Takes note that the program closes a descriptor that the table has. `EBADF` if it is not for
/// the program to close.
fn forget(fd: c_int) -> Result<(), Errno> {
    if !DESCRIPTORS.is_of_this_process() {
        return Ok(());
    }
    let held = DESCRIPTORS.genuine(fd);
    if let Some(Descriptor::Private) = held {
        return Err(Errno::BADF);
    }
    answer(|| {
        // Before the number is free: the next one who gets it may be ours again.
        DESCRIPTORS.remove(fd);
        // What we held may have been the last of it.
        drop(held);
        Ok(())
    });
    Ok(())
}

/// Closes a range of descriptors, except those that are the shim's own.
fn close_around_ours(
    first: c_uint,
    last: c_uint,
    close_range: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let mut from = first;
    let mut at = first;
    while let Some(fd) = ours_from(at).filter(|&fd| fd <= last) {
        if forget(fd as c_int).is_err() {
            if fd > from && close_range(from, fd - 1) != 0 {
                return -1;
            }
            from = fd + 1;
        }
        at = fd + 1;
    }
    if from <= last { close_range(from, last) } else { 0 }
}

/// The same where the system has no call for it (before Linux 5.9).
fn close_each(first: c_uint, last: c_uint) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    for fd in first..=last.min(limit as c_uint) {
        // SAFETY: the program asked for it.
        unsafe { next::close(fd as c_int) };
    }
}
