//! Detaching from the process that started us.

use crate::daemon::ourselves;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::process::{Command, Stdio};

/// Starts this program again without the argument that led here: in a session of its own, in no
/// directory that may be unmounted, and with none of our descriptors but the first three. This
/// process is not its parent for long: it ends, and init takes it over.
pub(crate) fn go_on_in_background(argument: &str) -> io::Result<()> {
    rustix::process::setsid()?;
    close_on_exec();
    let mut words = std::env::args_os().skip(1).filter(|word| word != argument);
    let subcommand = words.next().unwrap_or_default();
    let mut command: Command = ourselves(&subcommand.to_string_lossy());
    command.args(words).current_dir("/").stdin(Stdio::null()).spawn().map(drop)
}

/// Keeps our descriptors, inherited ones above all, from those that we start: whoever reads to the
/// end of a pipe should not have to wait for them.
fn close_on_exec() {
    let Ok(listed) = fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<RawFd> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&fd| fd > 2)
        .collect();
    for fd in numbers {
        // SAFETY: It is borrowed for this call alone. A number that was open when it was listed is
        // open still, since this process has one thread; should it be closed (the listing's own
        // is), the system says so and nothing happens.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
    }
}
