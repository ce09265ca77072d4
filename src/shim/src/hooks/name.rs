//! What else is done with the name of a file or directory.

use super::hooks;
use crate::next::{self, Compare, Select};
use crate::paths::{Route, follow};
use libc::{c_char, c_int, c_void, dirent, size_t, ssize_t};

hooks! {
    fn access(path: *const c_char, mode: c_int) -> c_int {
        follow(path, |way| next::access(way.or(path), way.mode(mode)))
    }

    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        follow(path, |way| next::faccessat(dir, way.or(path), way.mode(mode), flags))
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        follow(path, |way| next::euidaccess(way.or(path), way.mode(mode)))
    }

    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        follow(path, |way| next::eaccess(way.or(path), way.mode(mode)))
    }

    fn readlink(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        follow(path, |way| next::readlink(way.or(path), buf, len))
    }

    fn readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        follow(path, |way| next::readlinkat(dir, way.or(path), buf, len))
    }

    fn __readlink_chk(
        path: *const c_char, buf: *mut c_char, len: size_t, room: size_t,
    ) -> ssize_t {
        follow(path, |way| next::__readlink_chk(way.or(path), buf, len, room))
    }

    fn __readlinkat_chk(
        dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t, room: size_t,
    ) -> ssize_t {
        follow(path, |way| next::__readlinkat_chk(dir, way.or(path), buf, len, room))
    }

    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        follow(path, |way| next::realpath(way.or(path), resolved))
    }

    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: size_t) -> *mut c_char {
        follow(path, |way| next::__realpath_chk(way.or(path), resolved, room))
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        follow(path, |way| next::canonicalize_file_name(way.or(path)))
    }

    fn scandir(
        path: *const c_char, list: *mut *mut *mut dirent, select: Select, compare: Compare,
    ) -> c_int {
        follow(path, |way| next::scandir(way.or(path), list, select, compare))
    }

    fn scandir64(
        path: *const c_char, list: *mut *mut *mut dirent, select: Select, compare: Compare,
    ) -> c_int {
        follow(path, |way| next::scandir64(way.or(path), list, select, compare))
    }

    fn scandirat(
        dir: c_int, path: *const c_char, list: *mut *mut *mut dirent, select: Select,
        compare: Compare,
    ) -> c_int {
        follow(path, |way| next::scandirat(dir, way.or(path), list, select, compare))
    }

    fn scandirat64(
        dir: c_int, path: *const c_char, list: *mut *mut *mut dirent, select: Select,
        compare: Compare,
    ) -> c_int {
        follow(path, |way| next::scandirat64(dir, way.or(path), list, select, compare))
    }

    // `ls -l` calls the four that follow.

    fn getxattr(
        path: *const c_char, name: *const c_char, buf: *mut c_void, len: size_t,
    ) -> ssize_t {
        follow(path, |way| next::getxattr(way.or(path), name, buf, len))
    }

    fn lgetxattr(
        path: *const c_char, name: *const c_char, buf: *mut c_void, len: size_t,
    ) -> ssize_t {
        follow(path, |way| next::lgetxattr(way.or(path), name, buf, len))
    }

    fn listxattr(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        follow(path, |way| next::listxattr(way.or(path), buf, len))
    }

    fn llistxattr(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        follow(path, |way| next::llistxattr(way.or(path), buf, len))
    }

    fn chdir(path: *const c_char) -> c_int {
        follow(path, |way| next::chdir(way.or(path)))
    }

    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
        follow(path, |way| next::inotify_add_watch(fd, way.or(path), mask))
    }
}

impl Route<'_> {
    /// The path to give to libc, where the program gave `path`.
    #[inline]
    pub(super) fn or(self, path: *const c_char) -> *const c_char {
        match self {
            Route::Untouched => path,
            Route::Tree(path) | Route::Device(_, path) => path.as_ptr(),
        }
    }

    /// How the file must be accessible for the program's `mode`. Anybody may read and write a
    /// device that exists, whatever the rights of its file in the tree.
    fn mode(self, mode: c_int) -> c_int {
        match self {
            Route::Device(..) => mode & !(libc::R_OK | libc::W_OK),
            Route::Untouched | Route::Tree(_) => mode,
        }
    }
}
