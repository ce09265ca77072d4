//! libc's own functions, those behind the hooks.
//!
//! Constructors of other libraries call the hooks before anything of ours has run, and signal
//! handlers call them in the middle of anything; so each address is looked up when it is first
//! needed, into a word of its own. Two threads that look at the same time find the same.
//!
//! Functions may be left by cancellation of their thread, which unwinds: that is why all are
//! `C-unwind`, and why what calls them has nothing to drop, where a call may block.

use crate::hooks::{errno, fail, put_errno};
use libc::{
    DIR, FILE, Ioctl, c_char, c_int, c_uint, c_ulong, c_void, dirent, mode_t, msghdr, sighandler_t,
    size_t, sockaddr, socklen_t, ssize_t,
};
pub(crate) use libc::{stat as Stat, statx as Statx};
use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The order of directory entries in `scandir`, and which of them.
pub(crate) type Select = Option<unsafe extern "C-unwind" fn(*const dirent) -> c_int>;
pub(crate) type Compare =
    Option<unsafe extern "C-unwind" fn(*const *const dirent, *const *const dirent) -> c_int>;

/// The file system of this process as `*at` functions name it.
const HERE: c_int = libc::AT_FDCWD;

/// Defines functions that call the next ones of the same name. What stands after `or` is done
/// where libc is too old, or too new, to have one; else that is `ENOSYS`.
///
/// Variadic functions are called with the one argument that they may have; in the calling
/// conventions of Linux on 64-bit machines it lies where it would for a function without dots.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty $(, or $else:expr)?;)*) => {$(
        #[inline]
        pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no zero byte"),
                };
            let mut address = ADDRESS.load(Ordering::Relaxed);
            if address.is_null() {
                address = look_up(NAME, &ADDRESS);
                if address.is_null() {
                    // SAFETY: the caller's, who promises what the C function asks for.
                    $(return unsafe { $else };)?
                    #[allow(unreachable_code)]
                    return fail(Errno::NOSYS);
                }
            }
            // SAFETY: libc's function of this name has this signature, and the caller promises
            // what the C function asks for.
            unsafe { std::mem::transmute::<*mut c_void, Function>(address)($($arg),*) }
        }
    )*};
}

#[cold]
fn look_up(name: &CStr, address: &AtomicPtr<c_void>) -> *mut c_void {
    let before = errno();
    // SAFETY: a name that ends in a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // The program did not look for it, and is not to find a message about it.
        // SAFETY: it only forgets this thread's last message.
        unsafe { libc::dlerror() };
    }
    put_errno(before);
    address.store(found, Ordering::Relaxed);
    found
}

/// Of `madvise` the address is looked up when this library is loaded, and not when it is needed:
/// allocators call it with a lock of theirs held, and a look-up may allocate.
static MADVISE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

#[used]
// SAFETY: the section holds the addresses of functions that are called when a library is loaded.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = look_up_early;

extern "C" fn look_up_early() {
    look_up(c"madvise", &MADVISE);
}

/// libc's `madvise`, which other libraries may have put themselves before, or have changed where it
/// lies; for who calls it before this library is loaded, the system's.
#[inline]
pub(crate) unsafe fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int) -> c_int;
    let address = MADVISE.load(Ordering::Relaxed);
    // SAFETY: libc's function of this name has this signature, and the caller promises what the
    // system asks for.
    unsafe {
        match address.is_null() {
            true => libc::syscall(libc::SYS_madvise, start, len, advice) as c_int,
            false => std::mem::transmute::<*mut c_void, Function>(address)(start, len, advice),
        }
    }
}

/// What a C function returns when it failed.
pub(crate) trait Failure {
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

impl Failure for ssize_t {
    const FAILURE: ssize_t = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

impl Failure for sighandler_t {
    const FAILURE: sighandler_t = libc::SIG_ERR;
}

impl Failure for () {
    const FAILURE: () = ();
}

/// A system call whose result is an `int`.
macro_rules! system {
    ($number:ident $(, $arg:expr)*) => { libc::syscall(libc::$number $(, $arg)*) as c_int };
}

functions! {
    // The names that end in 64: musl since 1.2.4 has them for the loader alone, which gives
    // programs that were built before the ones without, or now ours.
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        or open(path, flags, mode);
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        or openat(dir, path, flags, mode);
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE,
        or fopen(path, mode);
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE,
        or freopen(path, mode, file);
    fn opendir(path: *const c_char) -> *mut DIR;

    // Since glibc 2.33 there are `stat` and its relatives; before, `__xstat` and its relatives,
    // which new architectures do not have.
    fn stat(path: *const c_char, buf: *mut Stat) -> c_int,
        or system!(SYS_newfstatat, HERE, path, buf, 0);
    fn stat64(path: *const c_char, buf: *mut Stat) -> c_int,
        or system!(SYS_newfstatat, HERE, path, buf, 0);
    fn lstat(path: *const c_char, buf: *mut Stat) -> c_int,
        or system!(SYS_newfstatat, HERE, path, buf, libc::AT_SYMLINK_NOFOLLOW);
    fn lstat64(path: *const c_char, buf: *mut Stat) -> c_int,
        or system!(SYS_newfstatat, HERE, path, buf, libc::AT_SYMLINK_NOFOLLOW);
    fn fstat(fd: c_int, buf: *mut Stat) -> c_int, or system!(SYS_fstat, fd, buf);
    fn fstat64(fd: c_int, buf: *mut Stat) -> c_int, or system!(SYS_fstat, fd, buf);
    fn fstatat(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int,
        or system!(SYS_newfstatat, dir, path, buf, flags);
    fn fstatat64(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int,
        or system!(SYS_newfstatat, dir, path, buf, flags);
    fn __xstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int;
    fn __xstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int;
    fn __lxstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int;
    fn __lxstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, buf: *mut Stat) -> c_int;
    fn __fxstat64(version: c_int, fd: c_int, buf: *mut Stat) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int)
        -> c_int;
    fn __fxstatat64(version: c_int, dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int)
        -> c_int;
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut Statx)
        -> c_int, or system!(SYS_statx, dir, path, flags, mask, buf);

    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;

    fn ioctl(fd: c_int, request: Ioctl, arg: c_ulong) -> c_int;

    fn pause() -> c_int;
    fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int;
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t;

    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int,
        or system!(SYS_close_range, first, last, flags);
    fn closefrom(first: c_int) -> ();
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, arg: c_ulong) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, arg: c_ulong) -> c_int,
        or fcntl(fd, command, arg);

    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int;
    fn eaccess(path: *const c_char, mode: c_int) -> c_int;
    fn readlink(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t;
    fn readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t;
    fn __readlink_chk(path: *const c_char, buf: *mut c_char, len: size_t, room: size_t)
        -> ssize_t;
    fn __readlinkat_chk(
        dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t, room: size_t
    ) -> ssize_t;
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char;
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: size_t) -> *mut c_char;
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char;
    fn scandir(
        path: *const c_char, list: *mut *mut *mut dirent, select: Select, compare: Compare
    ) -> c_int;
    fn scandir64(
        path: *const c_char, list: *mut *mut *mut dirent, select: Select, compare: Compare
    ) -> c_int, or scandir(path, list, select, compare);
    fn scandirat(
        dir: c_int, path: *const c_char, list: *mut *mut *mut dirent, select: Select,
        compare: Compare
    ) -> c_int;
    fn scandirat64(
        dir: c_int, path: *const c_char, list: *mut *mut *mut dirent, select: Select,
        compare: Compare
    ) -> c_int;
    fn getxattr(path: *const c_char, name: *const c_char, buf: *mut c_void, len: size_t)
        -> ssize_t;
    fn lgetxattr(path: *const c_char, name: *const c_char, buf: *mut c_void, len: size_t)
        -> ssize_t;
    fn listxattr(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t;
    fn llistxattr(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t;
    fn chdir(path: *const c_char) -> c_int;
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int;

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn setsockopt(
        fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int)
        -> ssize_t;
    fn recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
        address: *mut sockaddr, address_len: *mut socklen_t
    ) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
}
