//! Lines on the stderr that the program was started with.
//!
//! The number 2 says nothing: a program may close its stderr, and the next file that it opens,
//! a log or a table of a database, has the number. So the file behind it is noted before the
//! program begins, and a line is written only while it is still the same. A program that has
//! replaced its stderr by another file gets no line there.

use crate::hooks::{errno, put_errno};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use urxe_shm::client::file_identity::FileIdentity;

const STDERR: RawFd = 2;

/// The longest line. A pipe takes it whole, so that lines of two processes do not mix.
const LINE_MAX: usize = 1024;

/// The file that stderr was at the beginning.
static AT_THE_BEGINNING: OnceLock<Option<FileIdentity>> = OnceLock::new();

/// Called by the loader, before the program's first line.
#[used]
#[unsafe(link_section = ".init_array")]
// SAFETY: the loader calls what stands there once, as a C function; this one needs nothing that
// another constructor makes.
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    AT_THE_BEGINNING.get_or_init(|| FileIdentity::of(STDERR));
}

/// One line, as far as there is room.
pub(super) struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    /// A line that begins as all of ours.
    pub(super) fn new() -> Line {
        let mut line = Line { bytes: [0; LINE_MAX], len: 0 };
        line.put(b"urxe: ");
        line
    }

    fn put(&mut self, bytes: &[u8]) {
        // One byte is for the end of the line.
        let room = LINE_MAX - 1 - self.len;
        let bytes = &bytes[..bytes.len().min(room)];
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Writes it, if stderr is what it was and takes it at once. `errno` stays as it is.
    pub(super) fn send(mut self) {
        self.bytes[self.len] = b'\n';
        let line = &self.bytes[..=self.len];
        let before = errno();
        // WHY-010
        let noted = AT_THE_BEGINNING.get().copied().flatten();
        if noted.is_some() && noted == FileIdentity::of(STDERR) {
            // SAFETY: the number was open just now, and is not used after this call, in which the
            // system looks for itself whether it is open.
            let stderr = unsafe { BorrowedFd::borrow_raw(STDERR) };
            if takes_a_line(stderr) {
                without_sigpipe(|| rustix::io::write(stderr, line).err());
            }
        }
        put_errno(before);
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// Whether a write would not wait, and somebody reads.
fn takes_a_line(stderr: BorrowedFd<'_>) -> bool {
    let mut files = [PollFd::new(&stderr, PollFlags::OUT)];
    // WHY-011
    matches!(poll(&mut files, Some(&Timespec::default())), Ok(1))
        && files[0].revents() == PollFlags::OUT
}

/// Writes, and sees to it that a reader who has gone just now is no signal to the program.
fn without_sigpipe(write: impl FnOnce() -> Option<Errno>) {
    let mut sigpipe = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first call fills the set in; the second reads it and fills the other in.
    let blocked = unsafe {
        libc::sigemptyset(sigpipe.as_mut_ptr());
        libc::sigaddset(sigpipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, sigpipe.as_ptr(), before.as_mut_ptr())
    };
    if blocked != 0 {
        return;
    }
    // A signal of that kind that waited before is not ours to take.
    let mut waiting = MaybeUninit::uninit();
    // SAFETY: the set is filled in, and then asked.
    let had_one = unsafe {
        libc::sigpending(waiting.as_mut_ptr());
        libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) == 1
    };
    if write() == Some(Errno::PIPE) && !had_one {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are there; nobody wants to know of the signal.
        unsafe { libc::sigtimedwait(sigpipe.as_ptr(), null_mut(), &now) };
    }
    // SAFETY: the set is what was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn a_line_that_is_too_long_is_cut_and_has_an_end() {
        let mut line = Line::new();
        write!(line, "{:>2000}", "x").unwrap();
        assert_eq!(line.len, LINE_MAX - 1);
        let mut line = Line::new();
        let number = 2;
        write!(line, "one: {number}").unwrap();
        assert_eq!(&line.bytes[..line.len], b"urxe: one: 2");
    }

    #[test]
    fn a_pipe_that_nobody_reads_or_that_is_full_takes_no_line() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        use std::os::fd::AsFd;
        assert!(takes_a_line(write_end.as_fd()));
        rustix::io::ioctl_fionbio(&write_end, true).unwrap();
        while rustix::io::write(&write_end, &[0; 4096]).is_ok() {}
        assert!(!takes_a_line(write_end.as_fd()), "WHY-011");
        drop(read_end);
        assert!(!takes_a_line(write_end.as_fd()), "WHY-011");
        // And where the reader goes in between, nothing happens to the program.
        let mut failed = None;
        without_sigpipe(|| {
            failed = rustix::io::write(&write_end, b"x").err();
            failed
        });
        assert_eq!(failed, Some(Errno::PIPE));
    }
}
