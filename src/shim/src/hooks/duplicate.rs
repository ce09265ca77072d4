//! Duplicates. A duplicate of a descriptor of ours is another name of the same thing.

use super::{answer, errno, hooks};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use libc::{c_int, c_ulong};
use rustix::io::Errno;

hooks! {
    fn dup(fd: c_int) -> c_int {
        note(fd, next::dup(fd))
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        replace(fd, new, || next::dup2(fd, new))
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        replace(fd, new, || next::dup3(fd, new, flags))
    }

    fn fcntl(fd: c_int, command: c_int, arg: c_ulong) -> c_int {
        let result = next::fcntl(fd, command, arg);
        if is_duplicate(command) { note(fd, result) } else { result }
    }

    fn fcntl64(fd: c_int, command: c_int, arg: c_ulong) -> c_int {
        let result = next::fcntl64(fd, command, arg);
        if is_duplicate(command) { note(fd, result) } else { result }
    }
}

fn is_duplicate(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// Takes note that `new` is a duplicate of `fd`, unless it is an error.
#[inline]
fn note(fd: c_int, new: c_int) -> c_int {
    if new < 0 || !DESCRIPTORS.has(fd) {
        return new;
    }
    answer(|| {
        if let Some(descriptor) = shared(fd) {
            DESCRIPTORS.insert(new, descriptor);
        }
        Ok(new)
    })
}

/// Makes `new` a duplicate of `fd`, whatever it was before, by `duplicate`. Only what the shim
/// itself has open is not replaced: that is `EBUSY`.
#[inline]
fn replace(fd: c_int, new: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    let concerns_us = DESCRIPTORS.has(fd) || DESCRIPTORS.has(new);
    if !concerns_us || fd == new || !DESCRIPTORS.is_of_this_process() {
        return duplicate();
    }
    answer(|| {
        let descriptor = shared(fd);
        let before = DESCRIPTORS.genuine(new);
        if let Some(Descriptor::Private) = before {
            return Err(Errno::BUSY);
        }
        // Before the file is replaced: a reader must not take the new one for the old.
        DESCRIPTORS.remove(new);
        let result = duplicate();
        let failure = (result < 0).then(|| Errno::from_raw_os_error(errno()));
        if let Some(now) = if failure.is_some() { before } else { descriptor } {
            DESCRIPTORS.insert(new, now);
        }
        failure.map_or(Ok(result), Err)
    })
}

/// What `fd` is, as far as the program knows of it.
fn shared(fd: c_int) -> Option<Descriptor> {
    if !DESCRIPTORS.is_of_this_process() {
        return None;
    }
    DESCRIPTORS.genuine(fd).filter(|descriptor| !matches!(descriptor, Descriptor::Private))
}
