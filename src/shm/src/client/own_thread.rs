//! A thread of ours in a program that knows nothing of it.
//!
//! - No signal is delivered to it: handlers of the program run in threads of the program. Only
//!   those that a fault brings are not blocked, since a fault is the end of who blocks them.
//! - Its descriptors are its own, in a table that no other thread of the program has. So the
//!   program may close all descriptors that it knows nothing of, and what the thread has open is
//!   neither in the way of a number that the program counts on, nor inherited by a child, nor kept
//!   open by one: it is closed when the thread ends, with the process at the latest.
//!
//! To have a table of its own the thread begins with a copy of the program's and closes that. For
//! the moment in between, all that the program has open is open twice.

use crate::descriptor_table::{close_all_but, unshare};
use crate::signals::SignalsBlocked;
use rustix::fs::{Mode, OFlags};
use rustix::thread::Pid;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;

/// The first number behind those of the standard streams.
const FIRST: RawFd = 3;

/// Starts a thread that has some descriptors, and beside them only the standard streams, which are
/// empty. They are closed for the rest of the program.
///
/// # Errors
/// If there can be no thread, or no table of its own (Linux before 5.9).
pub fn spawn<const N: usize>(
    name: &str,
    descriptors: [OwnedFd; N],
    body: impl FnOnce([OwnedFd; N]) + Send + 'static,
) -> io::Result<()> {
    let numbers = descriptors.each_ref().map(AsRawFd::as_raw_fd);
    let spawner = rustix::thread::gettid();
    let (tell, told) = mpsc::channel();
    let run = move || {
        // SAFETY: the descriptors are open until we have told that they have become ours.
        let own = numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
        match leave_descriptors(own, spawner) {
            Ok(own) => {
                let _ = tell.send(Ok(()));
                body(own);
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    };
    let signals = SignalsBlocked::all_but_faults();
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    drop(signals);
    spawned?;
    let done = told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")));
    drop(descriptors);
    done
}

/// Gives this thread a table of its own, with some of the descriptors and empty standard streams.
fn leave_descriptors<const N: usize>(
    kept: [BorrowedFd<'_>; N],
    spawner: Pid,
) -> io::Result<[OwnedFd; N]> {
    // OWN-008: all numbers stay what they are for the other threads. Here, nothing but this
    // function knows any of them.
    unshare(RawFd::MAX)?;
    let mut own = Vec::with_capacity(N);
    for fd in kept {
        own.push(rustix::io::fcntl_dupfd_cloexec(fd, FIRST)?);
    }
    // OWN-024: what emulates system calls may know this one without its flag (valgrind).
    if let Some(fd) = own.first()
        && is_open_in(spawner, fd)?
    {
        let sentence = "the system, or what emulates it, gives a thread no descriptors of its own";
        return Err(io::Error::new(io::ErrorKind::Unsupported, sentence));
    }
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // It is among what is closed now.
    let _ = null.into_raw_fd();
    let mut numbers: Vec<_> = own.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    // SAFETY: the table is the calling thread's own, of which nobody owns anything but these.
    unsafe { close_all_but(FIRST, &numbers)? };
    own.try_into().map_err(|_| io::Error::other("another number of descriptors"))
}

/// Whether a descriptor of this thread is, by its number, the same file in another thread.
fn is_open_in(thread: Pid, descriptor: &OwnedFd) -> io::Result<bool> {
    let number = descriptor.as_raw_fd();
    let file_of =
        |thread: &str| rustix::fs::readlink(format!("/proc/{thread}/fd/{number}"), Vec::new());
    let own = file_of("thread-self")?;
    let other = file_of(&format!("self/task/{}", thread.as_raw_pid()));
    Ok(other.is_ok_and(|other| other == own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::FAULTS;
    use std::os::fd::AsFd;

    /// What a thread of ours finds.
    fn in_thread<T: Send + 'static>(
        descriptor: OwnedFd,
        look: impl FnOnce(OwnedFd) -> T + Send + 'static,
    ) -> T {
        let (tell, told) = mpsc::channel();
        spawn("test", [descriptor], move |[own]| tell.send(look(own)).unwrap()).unwrap();
        told.recv().unwrap()
    }

    #[test]
    fn the_thread_has_its_descriptor_and_none_of_the_programs() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let open = in_thread(read_end, |own| {
            let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            // The directory itself is one of them.
            let open: Vec<RawFd> = names.map(|name| name.parse().unwrap()).collect();
            (open, own.as_raw_fd())
        });
        let (mut open, own) = open;
        open.retain(|fd| *fd >= FIRST && *fd != own);
        assert!(open.len() <= 1, "{open:?}");
        // The program has the other end alone: the reading one ended with the thread.
        rustix::io::write(&write_end, b"x").unwrap_err();
    }

    #[test]
    fn a_table_that_is_shared_is_known_by_what_is_open_in_it() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let spawner = rustix::thread::gettid();
        let sharing = std::thread::spawn(move || is_open_in(spawner, &write_end).unwrap());
        assert!(sharing.join().unwrap());
        assert!(!in_thread(read_end, move |own| is_open_in(spawner, &own).unwrap()));
    }

    #[test]
    fn the_program_no_longer_has_the_descriptor() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let number = read_end.as_raw_fd();
        let (proceed, wait) = mpsc::channel::<()>();
        spawn("test", [read_end], move |_own| assert!(wait.recv().is_err())).unwrap();
        let link = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let pipe = link(write_end.as_raw_fd());
        assert!(pipe.is_some() && link(number) != pipe);
        // It is open in the thread.
        rustix::io::write(&write_end, b"x").unwrap();
        drop(proceed);
    }

    #[test]
    fn no_signal_is_delivered_to_the_thread_and_those_of_the_program_as_before() {
        let blocked = |thread: &str| {
            let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            u64::from_str_radix(line, 16).unwrap()
        };
        let before = blocked("thread-self");
        let (read_end, _write_end) = rustix::pipe::pipe().unwrap();
        let of_thread = in_thread(read_end, move |own| {
            let _ = own.as_fd();
            blocked("thread-self")
        });
        assert_eq!(blocked("thread-self"), before);
        let bit = |signal: libc::c_int| 1u64 << (signal - 1);
        let faults = FAULTS.map(bit).iter().sum::<u64>();
        assert_eq!(of_thread & faults, 0);
        // All but those that cannot be blocked, and the C library's own: two of glibc's, three of
        // musl's.
        let last_of_libc = if cfg!(target_env = "musl") { 34 } else { 33 };
        let unblockable = [9, 19].into_iter().chain(32..=last_of_libc).map(bit);
        assert_eq!(of_thread | faults | unblockable.sum::<u64>(), u64::MAX);
    }
}
