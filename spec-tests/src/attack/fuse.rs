//! A file whose server answers nothing any more: who touches it waits.
//!
//! The server is a few messages of the kernel's FUSE protocol (`linux/fuse.h`), for a directory
//! with one file. An ordinary user mounts it in a namespace of its own.

use super::{Lacking, Result, Setting};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, read, write};
use rustix::mount::{MountFlags, mount};
use rustix::process::{getgid, getuid};
use std::error::Error;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests of the kernel, by the numbers that it gives them.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// The directory and its file.
const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The file's length.
const LEN: u64 = 4096;

/// What the kernel's request begins with, and how much of one is read.
const REQUEST_HEADER: usize = 40;
const REQUEST_MAX: usize = 1 << 17;

/// A mounted file system with one file, in a process that has a mount namespace of its own.
pub(super) struct Mount {
    path: PathBuf,
    answers: Arc<AtomicBool>,
}

/// Whether this process has a namespace of its own, in which it may mount.
const UNSHARED: &str = "--unshared";

impl Mount {
    /// Mounts it. An attacker that has no mount namespace of its own becomes one that has: it does
    /// not return then. [`Lacking`] where users may not mount it, or the kernel has no FUSE.
    pub(super) fn new(setting: &Setting, attack: &str) -> Result<Mount> {
        if !setting.is_unshared {
            return Err(unshared(setting, attack));
        }
        let path = setting.socket.with_file_name("fuse");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|errno| lacking_or_wrong("/dev/fuse", errno))?;
        let (fd, user, group) = (device.as_raw_fd(), getuid().as_raw(), getgid().as_raw());
        let options = format!("fd={fd},rootmode=40000,user_id={user},group_id={group}");
        let options = CString::new(options)?;
        mount("attack", &path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(&*options))
            .map_err(|errno| lacking_or_wrong("mount of FUSE", errno))?;
        let answers = Arc::new(AtomicBool::new(true));
        let mount = Mount { path, answers: Arc::clone(&answers) };
        std::thread::spawn(move || serve(&device, &answers));
        // The kernel learns that closing is nothing to ask about: it would ask a server that ends
        // with this process, and keep the process waiting for it.
        drop(mount.open()?);
        Ok(mount)
    }

    /// Its file.
    pub(super) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.path.join("file"), flags, Mode::empty())?)
    }

    /// From now on whoever touches the file waits.
    pub(super) fn stop_answering(&self) {
        self.answers.store(false, Ordering::Relaxed);
    }
}

/// Whether it is this machine that has or permits no FUSE.
fn lacking_or_wrong(what: &str, errno: Errno) -> Box<dyn Error> {
    let reason = format!("{what}: {errno}");
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::ACCESS | Errno::PERM => {
            Lacking(reason).into()
        }
        _ => reason.into(),
    }
}

/// Executes this attacker in namespaces of its own. Returns only why that cannot be done.
fn unshared(setting: &Setting, attack: &str) -> Box<dyn Error> {
    let unshare = || {
        let mut command = Command::new("unshare");
        if !getuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg("--mount");
        command
    };
    // What becomes of the attacker behind it would not tell this from an attack that is broken.
    match unshare().arg("true").output() {
        Ok(ended) if ended.status.success() => {}
        Ok(ended) => {
            let said = String::from_utf8_lossy(&ended.stderr);
            return Lacking(format!("unshare ended with {}: {}", ended.status, said.trim())).into();
        }
        Err(error) => return Lacking(format!("unshare: {error}")).into(),
    }
    let attacker = setting.attacker(attack);
    let mut command = unshare();
    command.arg(attacker.get_program()).args(attacker.get_args()).arg(UNSHARED).exec().into()
}

/// Answers the kernel until it is told not to.
fn serve(device: &OwnedFd, answers: &AtomicBool) {
    let mut buffer = vec![0; REQUEST_MAX];
    loop {
        let len = match read(device, &mut buffer) {
            Ok(len) if len >= REQUEST_HEADER => len,
            Err(Errno::INTR | Errno::NOENT) => continue,
            _ => return,
        };
        if !answers.load(Ordering::Relaxed) {
            continue;
        }
        let word = |at: usize| buffer[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let long = |at: usize| buffer[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let (opcode, unique, node) = (word(4), &buffer[8..16], long(16));
        let (errno, body) = match opcode {
            INIT => (0, initial(&buffer[REQUEST_HEADER..len])),
            GETATTR => (0, [&[0; 16][..], &attributes(node)].concat()),
            LOOKUP => (0, [&FILE.to_ne_bytes()[..], &[0; 32], &attributes(FILE)].concat()),
            OPEN => (0, vec![0; 16]),
            _ => (-Errno::NOSYS.raw_os_error(), Vec::new()),
        };
        let total = (16 + body.len()) as u32;
        let answer = [&total.to_ne_bytes()[..], &errno.to_ne_bytes(), unique, &body].concat();
        if write(device, &answer).is_err() {
            return;
        }
    }
}

/// `fuse_init_out`: the kernel's version, and nothing that is optional.
fn initial(request: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..8].copy_from_slice(request.get(..8).unwrap_or(&[0; 8]));
    // The largest read-ahead and the largest write, in bytes.
    body[8..12].copy_from_slice(&4096u32.to_ne_bytes());
    body[20..24].copy_from_slice(&4096u32.to_ne_bytes());
    body
}

/// `fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { 0o40_755 } else { 0o100_666 };
    let mut attr = Vec::new();
    attr.extend([node, LEN, LEN / 512, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes));
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let words = [0, 0, 0, mode, 1, user, group, 0, 4096, 0];
    attr.extend(words.into_iter().flat_map(u32::to_ne_bytes));
    attr
}
