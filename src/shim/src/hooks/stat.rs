//! What files are. Our devices are character devices, though below them are memfds, pipes or files.

use super::hooks;
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next::{self, Stat, Statx};
use crate::paths::{Device, Route, follow};
use libc::{c_char, c_int, c_uint};

/// Device numbers of uverbs devices, as the kernel gives them.
const UVERBS_MAJOR: u32 = 231;
const FIRST_UVERBS_MINOR: u32 = 192;
/// Device numbers of the connection manager: the kernel gives it any minor that is free.
const MISC_MAJOR: u32 = 10;
const RDMA_CM_MINOR: u32 = 58;
/// Anybody may open one.
const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

hooks! {
    fn stat(path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::stat(path, buf))
    }

    fn stat64(path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::stat64(path, buf))
    }

    fn lstat(path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::lstat(path, buf))
    }

    fn lstat64(path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::lstat64(path, buf))
    }

    fn fstat(fd: c_int, buf: *mut Stat) -> c_int {
        of_descriptor(fd, buf, next::fstat(fd, buf))
    }

    fn fstat64(fd: c_int, buf: *mut Stat) -> c_int {
        of_descriptor(fd, buf, next::fstat64(fd, buf))
    }

    fn fstatat(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        let result = of_path(path, buf, |path| next::fstatat(dir, path, buf, flags));
        if names_descriptor(path, flags) { of_descriptor(dir, buf, result) } else { result }
    }

    fn fstatat64(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        let result = of_path(path, buf, |path| next::fstatat64(dir, path, buf, flags));
        if names_descriptor(path, flags) { of_descriptor(dir, buf, result) } else { result }
    }

    // Programs built with a glibc before 2.33 call these.

    fn __xstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::__xstat(version, path, buf))
    }

    fn __xstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::__xstat64(version, path, buf))
    }

    fn __lxstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::__lxstat(version, path, buf))
    }

    fn __lxstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        of_path(path, buf, |path| next::__lxstat64(version, path, buf))
    }

    fn __fxstat(version: c_int, fd: c_int, buf: *mut Stat) -> c_int {
        of_descriptor(fd, buf, next::__fxstat(version, fd, buf))
    }

    fn __fxstat64(version: c_int, fd: c_int, buf: *mut Stat) -> c_int {
        of_descriptor(fd, buf, next::__fxstat64(version, fd, buf))
    }

    fn __fxstatat(
        version: c_int, dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int,
    ) -> c_int {
        let result = of_path(path, buf, |path| next::__fxstatat(version, dir, path, buf, flags));
        if names_descriptor(path, flags) { of_descriptor(dir, buf, result) } else { result }
    }

    fn __fxstatat64(
        version: c_int, dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int,
    ) -> c_int {
        let result = of_path(path, buf, |path| next::__fxstatat64(version, dir, path, buf, flags));
        if names_descriptor(path, flags) { of_descriptor(dir, buf, result) } else { result }
    }

    fn statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut Statx,
    ) -> c_int {
        let mut device = None;
        let result = follow(path, |way| {
            device = way.device();
            next::statx(dir, way.or(path), flags, mask, buf)
        });
        if names_descriptor(path, flags) {
            device = device_of(dir);
        }
        if let (0, Some(device)) = (result, device) {
            (*buf).stx_mode = MODE as u16;
            ((*buf).stx_rdev_major, (*buf).stx_rdev_minor) = device.numbers();
            (*buf).stx_size = 0;
        }
        result
    }
}

/// Whether a function that takes a directory and a path means the "directory" itself, which then
/// may be any file.
///
/// # Safety
/// `path` must be a C string, or null.
#[inline]
unsafe fn names_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// Asks what is where `path` leads.
///
/// # Safety
/// `path` must be a C string, or null, and `buf` what `ask` writes to.
#[inline]
unsafe fn of_path(
    path: *const c_char,
    buf: *mut Stat,
    ask: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        follow(path, |way| {
            let result = ask(way.or(path));
            if let Some(device) = way.device() { show(device, buf, result) } else { result }
        })
    }
}

/// Mends what libc answered about `fd`.
///
/// # Safety
/// `buf` must be what libc has written to, if `result` is 0.
#[inline]
unsafe fn of_descriptor(fd: c_int, buf: *mut Stat, result: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if let Some(device) = device_of(fd) { unsafe { show(device, buf, result) } } else { result }
}

/// Shows a file of ours as what it stands for.
///
/// # Safety
/// `buf` must be what libc has written to, if `result` is 0.
unsafe fn show(device: Device, buf: *mut Stat, result: c_int) -> c_int {
    if result != 0 {
        return result;
    }
    // SAFETY: the caller's promise: libc has written to it.
    let buf = unsafe { &mut *buf };
    buf.st_mode = MODE;
    let (major, minor) = device.numbers();
    buf.st_rdev = libc::makedev(major, minor);
    buf.st_size = 0;
    result
}

/// The device that a descriptor is.
#[inline]
fn device_of(fd: c_int) -> Option<Device> {
    if !DESCRIPTORS.has(fd) {
        return None;
    }
    match DESCRIPTORS.genuine(fd) {
        Some(Descriptor::Uverbs(context)) => Some(Device::Uverbs(context.device())),
        Some(Descriptor::RdmaCm(_)) => Some(Device::RdmaCm),
        _ => None,
    }
}

impl Route<'_> {
    /// The device that it leads to.
    fn device(self) -> Option<Device> {
        match self {
            Route::Device(device, _) => Some(device),
            Route::Untouched | Route::Tree(_) => None,
        }
    }
}

impl Device {
    /// Major and minor.
    fn numbers(self) -> (u32, u32) {
        match self {
            Device::Uverbs(number) => (UVERBS_MAJOR, FIRST_UVERBS_MINOR + number),
            Device::RdmaCm => (MISC_MAJOR, RDMA_CM_MINOR),
        }
    }
}
