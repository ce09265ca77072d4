//! Keeping everybody from writing to a range for a moment: a `userfaultfd` in write-protect mode.

use super::{NotRemapped, system};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const ENABLE: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);
const WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(0xaa, 6);

const API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`.
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;

/// A range that nobody can write to. Whoever tries waits until this is dropped, and then tries
/// again, with whatever is mapped there by then.
pub(super) struct WriteProtection {
    /// None is needed where nobody else is there to write.
    _userfaultfd: Option<OwnedFd>,
}

impl WriteProtection {
    /// Protects a range of private memory. Signals must be blocked: a handler that writes there
    /// would wait for the thread it runs in.
    pub(super) fn of(start: u64, len: u64) -> Result<WriteProtection, NotRemapped> {
        if is_only_thread().map_err(system("reading /proc/self/task"))? {
            return Ok(WriteProtection { _userfaultfd: None });
        }
        let fd = open()?;
        register(&fd, start, len, REGISTER_MODE_WP).map_err(system("registering a userfaultfd"))?;
        let mut protect = WriteProtect { start, len, mode: WRITEPROTECT_MODE_WP };
        // SAFETY: this request takes a `uffdio_writeprotect`. What is protected stays readable,
        // and becomes writable again at the latest when the descriptor is closed.
        unsafe { ioctl(&fd, Updater::<{ WRITEPROTECT }, _>::new(&mut protect)) }
            .map_err(system("protecting memory by a userfaultfd"))?;
        Ok(WriteProtection { _userfaultfd: Some(fd) })
    }
}

/// Has a new `userfaultfd` stop whoever touches a range in a certain way.
pub(crate) fn register(fd: &OwnedFd, start: u64, len: u64, mode: u64) -> Result<(), Errno> {
    let enable = |features| {
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: this request takes a `uffdio_api`, and only fills it in.
        unsafe { ioctl(fd, Updater::<{ ENABLE }, _>::new(&mut api)) }
    };
    // What was remapped before is protected by kernels from 5.19 on.
    enable(FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_SHMEM)
        .or_else(|_| enable(FEATURE_PAGEFAULT_FLAG_WP))?;
    let mut register = Register { start, len, mode, ioctls: 0 };
    // SAFETY: this request takes a `uffdio_register`, and changes nothing in memory.
    unsafe { ioctl(fd, Updater::<{ REGISTER }, _>::new(&mut register)) }
}

/// A `userfaultfd` that stops everybody, system calls too.
fn open() -> Result<OwnedFd, NotRemapped> {
    // SAFETY: what is done with it is `WriteProtection`'s to justify.
    match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) } {
        Err(Errno::PERM) => Err(NotRemapped::Threads),
        result => result.map_err(system("userfaultfd")),
    }
}

/// Whether the calling thread is the program's only one. Nobody else is there to change that.
pub(super) fn is_only_thread() -> io::Result<bool> {
    Ok(std::fs::read_dir("/proc/self/task")?.count() == 1)
}

/// Whether the calling thread could not go on if it could not write to this range: the end of its
/// stack, or its thread-local variables.
pub(super) fn is_needed_by_caller(range: &Range<u64>) -> bool {
    /// More than the calls to come put on the stack.
    const CALLS: u64 = 64 * 1024;
    let variable = 0u8;
    let stack = (&raw const variable).addr() as u64;
    // SAFETY: gives a pointer, which is not followed.
    let thread_local = unsafe { libc::__errno_location() }.addr() as u64;
    let is_stack = range.start <= stack && stack.saturating_sub(CALLS) < range.end;
    is_stack || range.contains(&thread_local)
}
