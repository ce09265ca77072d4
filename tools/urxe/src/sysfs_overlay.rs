//! `urxe sysfs-overlay`: the daemon's devices under `/sys/class`, for programs that look there in
//! ways that `urxe run` cannot redirect.
//!
//! An overlay of the daemon's files over `/sys/class` makes room for two directories more, and the
//! files themselves are mounted on these. The overlay alone would show a file as it was when it was
//! first looked at, and GIDs and states change.

use crate::cli::DaemonArguments;
use crate::error::Error;
use clap::Args;
use procfs::process::{MountInfos, Process};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  urxe sysfs-overlay -- ls -l /sys/class/infiniband
      Run one program that sees the daemon's devices under /sys/class. Needs no root.
  urxe sysfs-overlay -- urxe run -- ./my-tests.sh
      The same for everything that the tests start, with the devices in working order.
  sudo urxe sysfs-overlay
      Show the devices to all programs, until the daemon ends. Once more after it was restarted or
      upgraded: the files are other ones then.
  sudo urxe sysfs-overlay --undo
      Hide them again.

This shows files only; to use a device, a program has to run under `urxe run`, which shows it the
same files without any mount. So it is for what that cannot reach: static binaries, shells, and
programs that look at /sys from outside. /dev/infiniband stays as it is: a device file without
`urxe run` would lead nowhere.
Without root a user namespace is needed, and Linux 5.11 or newer.";

/// Show the daemon's devices under /sys/class, to one program or to all.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Hide what an earlier call has shown to all programs.
    #[arg(long, conflicts_with = "program")]
    undo: bool,

    /// This process has a mount namespace of its own already.
    #[arg(long, hide = true, requires = "program")]
    in_namespace: bool,

    /// Program that sees the devices, with its arguments. It runs in a mount namespace of its own,
    /// so that no other program does. Without PROGRAM all programs see them, which needs root.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Where the kernel shows its classes of devices.
const CLASSES: &str = "/sys/class";

/// The classes of ours.
const OURS: [&str; 2] = ["infiniband", "infiniband_verbs"];

/// The source of our overlay in the list of mounts.
const SOURCE: &str = "urxe";

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.undo {
        return match hide()? {
            true => Ok(()),
            false => Err(Error::Failed(format!("nothing of urxe is mounted on {CLASSES}"))),
        };
    }
    let (socket, _) = urxe_shm::connect_to_daemon(arguments.daemon.socket.as_deref())
        .map_err(urxe_verbs::Error::from)?;
    match &arguments.program[..] {
        [] => {
            classes_of(&socket)?;
            hide()?;
            show(&socket)
        }
        [program, args @ ..] if arguments.in_namespace => {
            show(&socket)?;
            // The program must not have the capabilities that the mounts needed.
            rustix::thread::clear_ambient_capability_set()
                .map_err(|errno| Error::system("giving up capabilities")(errno.into()))?;
            Err(exec(Command::new(program).args(args)))
        }
        program => {
            // Checked here, so that the error is not taken for one of the program.
            classes_of(&socket)?;
            Err(exec(&mut in_new_namespace(&socket, program)?))
        }
    }
}

/// This command again, in a mount namespace of its own.
fn in_new_namespace(socket: &Path, program: &[OsString]) -> Result<Command, Error> {
    let urxe = std::env::current_exe().map_err(Error::system("finding the urxe binary"))?;
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        // The user stays the same, but may mount in the namespace.
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.arg("--").arg(urxe).args(["sysfs-overlay", "--in-namespace", "--socket"]);
    command.arg(socket).arg("--").args(program);
    Ok(command)
}

/// Executes another program; returns only if that fails.
fn exec(command: &mut Command) -> Error {
    let error = command.exec();
    let program = command.get_program().to_string_lossy().into_owned();
    let hint = match (&*program, error.kind()) {
        ("unshare", io::ErrorKind::NotFound) => " (it is part of util-linux)",
        _ => "",
    };
    Error::system(format!("running {program}{hint}"))(error)
}

/// Shows the devices in this mount namespace, over those shown before if there are any.
fn show(socket: &Path) -> Result<(), Error> {
    let classes = classes_of(socket)?;
    let found = devices_in(&Path::new(CLASSES).join("infiniband"));
    if !found.is_empty() && !is_ours(&mounts()?) {
        return Err(Error::Failed(format!(
            "this machine has RDMA devices of its own, whose files would be hidden: {}; `urxe run` \
             needs no mount",
            found.join(", ")
        )));
    }
    let refused = |what: String| {
        let hint = match rustix::process::geteuid().is_root() {
            true => "",
            false => " (to mount for all programs takes root; for one, name it after `--`)",
        };
        move |errno: rustix::io::Errno| Error::system(format!("{what}{hint}"))(errno.into())
    };
    // By descriptor, since a path may have characters with a meaning in a list of options.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lower = rustix::fs::open(&classes, flags, Mode::empty())
        .map_err(refused(format!("opening {}", classes.display())))?;
    let options = format!("lowerdir=/proc/self/fd/{}:{CLASSES}", lower.as_raw_fd());
    let options = CString::new(options).unwrap_or_default();
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(SOURCE, CLASSES, "overlay", flags, &*options)
        .map_err(refused(format!("mounting an overlay on {CLASSES}")))?;
    for class in OURS {
        let (from, to) = (classes.join(class), Path::new(CLASSES).join(class));
        if let Err(errno) = rustix::mount::mount_bind(&from, &to) {
            // All or nothing.
            hide()?;
            return Err(refused(format!("mounting {} on {}", from.display(), to.display()))(errno));
        }
    }
    Ok(())
}

/// Unmounts what we have mounted, if there is anything.
fn hide() -> Result<bool, Error> {
    if !is_ours(&mounts()?) {
        return Ok(false);
    }
    // With all that is mounted below, and even while a program uses it.
    rustix::mount::unmount(CLASSES, UnmountFlags::DETACH)
        .map_err(|errno| Error::system(format!("unmounting {CLASSES}"))(errno.into()))?;
    Ok(true)
}

/// The mounts of this mount namespace.
fn mounts() -> Result<MountInfos, Error> {
    let mounts = Process::myself().and_then(|process| process.mountinfo());
    mounts.map_err(|error| Error::Failed(format!("reading the mounts: {error}")))
}

/// Whether the last mount on `/sys/class`, which is the one that is seen, is ours.
fn is_ours(mounts: &MountInfos) -> bool {
    let last = mounts.iter().rfind(|mount| mount.mount_point == Path::new(CLASSES));
    last.is_some_and(|mount| {
        mount.fs_type == "overlay" && mount.mount_source.as_deref() == Some(SOURCE)
    })
}

/// The classes that the daemon at a socket shows as files.
fn classes_of(socket: &Path) -> Result<PathBuf, Error> {
    let classes = urxe_shm::sysfs_directory(socket).join("class");
    let shown = OURS.iter().all(|class| classes.join(class).is_dir());
    shown.then_some(classes.clone()).ok_or_else(|| {
        Error::Failed(format!(
            "the daemon shows no devices in {}; its log says why",
            classes.display()
        ))
    })
}

/// The names in a directory; none if there is no such directory.
fn devices_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromBufRead;

    const SYS: &str = "22 28 0:21 / /sys rw,relatime - sysfs sysfs rw";
    const OURS: &str = "73 22 0:39 / /sys/class ro - overlay urxe ro,lowerdir=/a:/sys/class";
    const ITS_PART: &str = "74 73 254:0 /t /sys/class/infiniband rw,relatime - ext4 /dev/vda rw";
    const ANOTHERS: &str = "75 22 0:40 / /sys/class ro - overlay overlay ro,lowerdir=urxe";

    #[test]
    fn only_our_own_mount_is_taken_away() {
        let is_ours = |lines: &[&str]| {
            is_ours(&MountInfos::from_buf_read(lines.join("\n").as_bytes()).unwrap())
        };
        assert!(!is_ours(&[SYS]));
        assert!(is_ours(&[SYS, OURS, ITS_PART]));
        assert!(!is_ours(&[SYS, ANOTHERS]));
        assert!(!is_ours(&[SYS, OURS, ANOTHERS]), "it covers ours");
    }
}
