//! Which paths are ours, and where they really lead.
//!
//! The daemon keeps a tree of ordinary files beside its socket that looks as `/sys/class` and
//! `/dev` would if the kernel had its devices. Paths of RDMA devices lead there, all others
//! stay. Without a daemon, thus without a tree, every path stays, so that what real hardware the
//! machine has remains visible.

use crate::reasons;
use libc::{PATH_MAX, c_char};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use urxe_shm::sysfs_directory;

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Where it always leads.
    Untouched,
    /// To this file of the tree.
    Tree(&'a CStr),
    /// To a device, if this file of the tree exists.
    Device(Device, &'a CStr),
}

/// A character device of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// `/dev/infiniband/uverbsN` of this number.
    Uverbs(u32),
    /// `/dev/infiniband/rdma_cm`.
    RdmaCm,
}

/// A path below one of the directories of RDMA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreePath<'a> {
    /// The directory of the tree in which it goes on,
    below: &'static str,
    /// with this.
    tail: &'a [u8],
    /// The device, if it is that of one.
    device: Option<Device>,
}

/// The directories on the way to those of RDMA devices. None is ever a symbolic link, so `..`
/// leads back up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directory {
    Root,
    Sys,
    Class,
    Misc,
    Dev,
}

/// A step on the way.
enum Step {
    To(Directory),
    /// Into a directory of RDMA devices.
    Ours,
    /// To anywhere else.
    Elsewhere,
}

impl Directory {
    fn step(self, name: &[u8]) -> Step {
        use Directory::*;
        match (self, name) {
            (Root | Sys | Dev, b"..") => Step::To(Root),
            (Class, b"..") => Step::To(Sys),
            (Misc, b"..") => Step::To(Class),
            (Root, b"sys") => Step::To(Sys),
            (Root, b"dev") => Step::To(Dev),
            (Sys, b"class") => Step::To(Class),
            (Class, b"misc") => Step::To(Misc),
            (Class | Dev, b"infiniband") | (Misc, b"rdma_cm") => Step::Ours,
            (Class, name) if name.starts_with(b"infiniband_") => Step::Ours,
            _ => Step::Elsewhere,
        }
    }

    /// What the tree calls it.
    fn name(self) -> &'static str {
        match self {
            Directory::Root | Directory::Sys => "",
            Directory::Class => "class",
            Directory::Misc => "class/misc",
            Directory::Dev => "dev",
        }
    }
}

/// Where a path leads that is ours. Names that do not begin like one of ours cost a comparison
/// or two, and nothing is allocated.
pub(crate) fn tree_path(path: &[u8]) -> Option<TreePath<'_>> {
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut directory = Directory::Root;
    let mut at = 0;
    while at < path.len() {
        let name = component(path, at);
        let start = at;
        at += name.len() + 1;
        if matches!(name, b"" | b".") {
            continue;
        }
        match directory.step(name) {
            Step::To(next) => directory = next,
            Step::Elsewhere => return None,
            Step::Ours => match inside(path, at) {
                Inside::Stays(leaf) => {
                    let leaf = leaf.filter(|_| directory == Directory::Dev);
                    let device = leaf.and_then(Device::of_name);
                    return Some(TreePath {
                        below: directory.name(),
                        tail: &path[start..],
                        device,
                    });
                }
                // Back in the directory that it came from.
                Inside::LeavesAt(next) => at = next,
            },
        }
    }
    None
}

/// What becomes of a path in a directory of ours.
enum Inside<'a> {
    /// It stays there; the name of the file, if it lies directly in it.
    Stays(Option<&'a [u8]>),
    /// It leads out again, and goes on from here.
    LeavesAt(usize),
}

/// Follows a path from `at` on, where it is in a directory of ours.
fn inside(path: &[u8], mut at: usize) -> Inside<'_> {
    let mut depth = 0;
    let mut leaf = None;
    while at < path.len() {
        let name = component(path, at);
        at += name.len() + 1;
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return Inside::LeavesAt(at),
            b".." => (depth, leaf) = (depth - 1, None),
            name => (depth, leaf) = (depth + 1, (depth == 0).then_some(name)),
        }
    }
    let is_file = path.last() != Some(&b'/');
    Inside::Stays(leaf.filter(|_| is_file))
}

/// The bytes from `at` to the next slash.
fn component(path: &[u8], at: usize) -> &[u8] {
    let rest = &path[at..];
    &rest[..rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())]
}

impl Device {
    /// By its name in `/dev/infiniband`.
    fn of_name(name: &[u8]) -> Option<Device> {
        match name {
            b"rdma_cm" => Some(Device::RdmaCm),
            name => uverbs_number(name).map(Device::Uverbs),
        }
    }

    /// What a program calls to have it opened.
    pub(crate) fn opened_by(self) -> &'static str {
        match self {
            Device::Uverbs(_) => "ibv_open_device",
            Device::RdmaCm => "rdma_create_event_channel",
        }
    }
}

fn uverbs_number(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(b"uverbs")?;
    let is_plain = digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0");
    if !is_plain && digits != b"0" {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl TreePath<'_> {
    /// The same file in a tree; `None` if its path is too long.
    fn in_tree<'b>(&self, tree: &Path, room: &'b mut [MaybeUninit<u8>]) -> Option<&'b CStr> {
        let parts = [tree.as_os_str().as_bytes(), b"/", self.below.as_bytes(), b"/", self.tail];
        let mut len = 0;
        for &byte in parts.iter().copied().flatten().chain(&[0]) {
            room.get_mut(len)?.write(byte);
            len += 1;
        }
        // SAFETY: the first `len` bytes were written just now.
        let path = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), len) };
        CStr::from_bytes_with_nul(path).ok()
    }
}

/// Calls `go` with where a path leads.
///
/// # Safety
/// `path` must be a C string, or null.
#[inline]
pub(crate) unsafe fn follow<R>(path: *const c_char, go: impl FnOnce(Route<'_>) -> R) -> R {
    if path.is_null() {
        return go(Route::Untouched);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    match tree_path(bytes) {
        None => go(Route::Untouched),
        Some(path) => follow_to(path, go),
    }
}

#[cold]
fn follow_to<R>(to: TreePath<'_>, go: impl FnOnce(Route<'_>) -> R) -> R {
    let mut room = [MaybeUninit::uninit(); PATH_MAX as usize];
    let path = tree().and_then(|tree| to.in_tree(&tree, &mut room));
    match (path, to.device) {
        (None, _) => go(Route::Untouched),
        (Some(path), None) => go(Route::Tree(path)),
        (Some(path), Some(device)) => go(Route::Device(device, path)),
    }
}

/// The tree of the daemon that this process would talk to, if there is one.
pub(crate) fn tree() -> Option<PathBuf> {
    let tree = sysfs_directory(&urxe_shm::socket_path());
    match rustix::fs::access(&tree, rustix::fs::Access::EXISTS) {
        Ok(()) => Some(tree),
        Err(_) => {
            reasons::no_daemon();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where a path leads in a tree called `T`.
    fn led(path: &str) -> Option<String> {
        let found = tree_path(path.as_bytes())?;
        let mut room = [MaybeUninit::uninit(); 200];
        let path = found.in_tree(Path::new("T"), &mut room).unwrap().to_str().unwrap();
        Some(match found.device {
            None => path.to_owned(),
            Some(Device::Uverbs(number)) => format!("{number}={path}"),
            Some(Device::RdmaCm) => format!("cm={path}"),
        })
    }

    #[test]
    fn paths_of_rdma_devices_lead_into_the_tree() {
        for (path, to) in [
            ("/sys/class/infiniband", "T/class/infiniband"),
            ("/sys/class/infiniband/", "T/class/infiniband/"),
            (
                "/sys/class/infiniband/urxe0/ports/1/gids/0",
                "T/class/infiniband/urxe0/ports/1/gids/0",
            ),
            ("/sys/class/infiniband_verbs/uverbs0/dev", "T/class/infiniband_verbs/uverbs0/dev"),
            ("/sys/class/infiniband_mad/umad0", "T/class/infiniband_mad/umad0"),
            ("/sys/class/misc/rdma_cm/abi_version", "T/class/misc/rdma_cm/abi_version"),
            ("/dev/infiniband", "T/dev/infiniband"),
            ("/dev/infiniband/rdma_cm", "cm=T/dev/infiniband/rdma_cm"),
            ("/dev/infiniband/uverbs0", "0=T/dev/infiniband/uverbs0"),
            ("/dev/infiniband/uverbs12", "12=T/dev/infiniband/uverbs12"),
            ("//sys/./class//infiniband/./urxe0//x", "T/class/infiniband/./urxe0//x"),
            ("/sys/../dev/.././dev/infiniband//./uverbs3", "3=T/dev/infiniband//./uverbs3"),
            ("/sys/class/infiniband/../infiniband_verbs/x", "T/class/infiniband_verbs/x"),
            ("/sys/class/misc/../infiniband/a/../b", "T/class/infiniband/a/../b"),
        ] {
            assert_eq!(led(path).as_deref(), Some(to), "{path}");
        }
    }

    #[test]
    fn all_other_paths_stay() {
        for path in [
            "",
            "/",
            "sys/class/infiniband",
            "./dev/infiniband/uverbs0",
            "/sys/class",
            "/sys/class/infinibandit",
            "/sys/class/net/eth0/../../infiniband",
            "/sys/class/infiniband/..",
            "/sys/class/infiniband/../net/eth0",
            "/sys/class/misc/rdma_cm2",
            "/sys/devices/infiniband",
            "/dev",
            "/dev/null",
            "/dev/infiniband_verbs/x",
            "/home/sys/class/infiniband",
            "/infiniband",
        ] {
            assert_eq!(led(path), None, "{path}");
        }
    }

    #[test]
    fn only_the_kernels_names_are_devices() {
        for name in [
            "uverbs",
            "uverbs00",
            "uverbs01",
            "uverbs-1",
            "uverbs1/",
            "uverbs1/x",
            "x",
            "rdma_cm/",
            "rdma_cm0",
            "rdma",
            "rdma_cm/x",
        ] {
            let path = format!("/dev/infiniband/{name}");
            assert_eq!(tree_path(path.as_bytes()).unwrap().device, None, "{name}");
        }
        let too_large = b"/dev/infiniband/uverbs99999999999";
        assert_eq!(tree_path(too_large).unwrap().device, None);
        let of_class = b"/sys/class/misc/rdma_cm";
        assert_eq!(tree_path(of_class).unwrap().device, None);
    }

    #[test]
    fn a_path_that_is_too_long_stays() {
        let found = tree_path(b"/dev/infiniband/uverbs0").unwrap();
        let long = "T/dev/infiniband/uverbs0".len() + 1;
        let mut room = [MaybeUninit::uninit(); 100];
        assert!(found.in_tree(Path::new("T"), &mut room[..long]).is_some());
        assert!(found.in_tree(Path::new("T"), &mut room[..long - 1]).is_none());
    }

    /// Pieces of which paths are made that are nearly ours.
    fn paths() -> impl Strategy<Value = String> {
        const NAMES: [&str; 13] = [
            "sys",
            "class",
            "misc",
            "dev",
            "infiniband",
            "infiniband_verbs",
            "rdma_cm",
            "uverbs0",
            "..",
            ".",
            "",
            "net",
            "x",
        ];
        let names = proptest::collection::vec(proptest::sample::select(&NAMES[..]), 0..10);
        names.prop_map(|names| format!("/{}", names.join("/")))
    }

    /// What `path` means where no directory is a symbolic link.
    fn plain(path: &str) -> Vec<&str> {
        let mut plain = Vec::new();
        for name in path.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(plain.pop()),
                name => plain.push(name),
            }
        }
        plain
    }

    fn is_ours(plain: &[&str]) -> bool {
        match plain {
            ["sys", "class", "misc", "rdma_cm", ..] | ["dev", "infiniband", ..] => true,
            ["sys", "class", name, ..] => *name == "infiniband" || name.starts_with("infiniband_"),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn only_paths_of_rdma_devices_lead_into_the_tree(path in paths()) {
            if let Some(to) = led(&path) {
                let meant = plain(&path);
                prop_assert!(is_ours(&meant), "{path} led to {to}");
                let to = to.split_once('=').map_or(&*to, |(_, to)| to);
                let tail = plain(to);
                let meant = meant.strip_prefix(&["sys"]).unwrap_or(&meant);
                prop_assert_eq!(meant, &tail[1..], "{} led to {}", path, to);
            }
        }

        #[test]
        fn direct_paths_of_ours_lead_into_the_tree(path in paths()) {
            if !path.contains("..") && is_ours(&plain(&path)) {
                prop_assert!(led(&path).is_some());
            }
        }

        #[test]
        fn any_bytes_are_a_path(path in proptest::collection::vec(any::<u8>(), 0..50)) {
            let is_relative = path.first() != Some(&b'/');
            let found = tree_path(&path);
            prop_assert!(!(is_relative && found.is_some()));
        }
    }
}
