//! Opening files and directories. A device of ours is opened by us, and nobody else.

use super::{answer, hooks};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use crate::paths::{Device, Route, follow};
use crate::reasons;
use crate::session;
use crate::ucma::Channel;
use crate::uverbs::Context;
use libc::{DIR, FILE, c_char, c_int, mode_t};
use rustix::fs::{Access, OFlags};
use rustix::io::{Errno, FdFlags};
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

hooks! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        lead(path, flags, |path| next::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        lead(path, flags, |path| next::open64(path, flags, mode))
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        lead(path, flags, |path| next::openat(dir, path, flags, mode))
    }

    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        lead(path, flags, |path| next::openat64(dir, path, flags, mode))
    }

    // The four that follow are called where _FORTIFY_SOURCE is on.

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        lead(path, flags, |path| next::__open_2(path, flags))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        lead(path, flags, |path| next::__open64_2(path, flags))
    }

    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        lead(path, flags, |path| next::__openat_2(dir, path, flags))
    }

    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        lead(path, flags, |path| next::__openat64_2(dir, path, flags))
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        follow(path, |way| next::fopen(way.or(path), mode))
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        follow(path, |way| next::fopen64(way.or(path), mode))
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        follow(path, |way| next::freopen(way.or(path), mode, file))
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        follow(path, |way| next::freopen64(way.or(path), mode, file))
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        follow(path, |way| next::opendir(way.or(path)))
    }
}

/// Opens a device of ours, or where `path` leads.
///
/// # Safety
/// `path` must be a C string, or null.
#[inline]
unsafe fn lead(
    path: *const c_char,
    flags: c_int,
    open: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        follow(path, |way| match way {
            // Just to name the file, or as what it is not: its file in the tree is as good.
            Route::Device(device, file) if flags & (libc::O_PATH | libc::O_DIRECTORY) == 0 => {
                answer(|| open_device(device, file, flags))
            }
            way => open(way.or(path)),
        })
    }
}

/// Opens a device, which the daemon shows as `file`.
fn open_device(device: Device, file: &CStr, flags: c_int) -> Result<c_int, Errno> {
    rustix::fs::access(file, Access::EXISTS)?;
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Err(Errno::EXIST);
    }
    let session =
        session::current().map_err(|refused| reasons::refused(device.opened_by(), &refused))?;
    let close_on_exec = flags & libc::O_CLOEXEC != 0;
    let (fd, descriptor) = match device {
        Device::Uverbs(number) => {
            let fd = duplicate(session.connection().memfd(), close_on_exec)?;
            (fd, Descriptor::Uverbs(Arc::new(Context::open(session, number))))
        }
        Device::RdmaCm => {
            let (channel, fd) = Channel::open(session)
                .map_err(|refused| reasons::refused(device.opened_by(), &refused))?;
            if flags & libc::O_NONBLOCK != 0 {
                rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
            }
            if !close_on_exec {
                rustix::io::fcntl_setfd(&fd, FdFlags::empty())?;
            }
            (fd, Descriptor::RdmaCm(Arc::new(channel)))
        }
    };
    let fd = fd.into_raw_fd();
    DESCRIPTORS.insert(fd, descriptor);
    Ok(fd)
}

/// The same file under the lowest number that is free.
fn duplicate(fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<OwnedFd, Errno> {
    match close_on_exec {
        true => rustix::io::fcntl_dupfd_cloexec(fd, 0),
        false => rustix::io::dup(fd),
    }
}
