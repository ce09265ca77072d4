//! Descriptors that a thread of ours shares with the threads of its program.
//!
//! A thread with a table of its own ([`own_thread`](super::own_thread)) has open there what the
//! program cannot close. What the program's threads are to use as well is open in both tables,
//! under one number, so that who uses it need not know in which thread it runs. It gets into the
//! program's table, and out of it, by a second thread, which has that table and otherwise sleeps.
//!
//! A program that closes such a number keeps its slot, but a socket of its own that it then has
//! there is taken for the slot's by its polls: the numbers are out of its way
//! ([`LOWEST_DESCRIPTOR`]).
//!
//! A child of `fork` inherits what is in the program's table, until it executes another program.

use super::LOWEST_DESCRIPTOR;
use super::file_identity::FileIdentity;
use crate::control::channel::{Channel, renumbered};
use crate::signals::SignalsBlocked;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Who is told what is done to the program's table, in a thread that has it.
#[derive(Clone, Copy, Debug)]
pub struct TableNotes {
    /// A number is open from now on, and not the program's to close.
    pub opened: fn(RawFd),
    /// A number is about to be closed.
    pub closing: fn(RawFd),
}

impl TableNotes {
    /// Nobody.
    pub const NONE: TableNotes = TableNotes { opened: |_| (), closing: |_| () };
}

/// What the thread that has the program's table is to do.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Open what comes with this, and say under which number.
    Open,
    Close(RawFd),
}

/// Which number it has, or the errno.
type Opened = Result<RawFd, i32>;

/// The other thread, as a thread of ours asks it. It ends with this, at the latest.
#[derive(Debug)]
pub struct Mirror(Mutex<Channel>);

/// What is open in the program's table, until this is dropped.
#[derive(Debug)]
pub struct Mirrored {
    number: RawFd,
    mirror: Arc<Mirror>,
}

/// The thread that has the program's table, as the program ends it.
#[derive(Debug)]
pub struct MirrorThread {
    thread: Option<JoinHandle<()>>,
    /// Its end of the channel by which it gets orders.
    end: Kept,
    notes: TableNotes,
    process: u32,
}

impl MirrorThread {
    /// Starts a thread that has the descriptors of the calling one. What it returns beside is for
    /// [`Mirror::new`], in a thread that has others.
    ///
    /// # Errors
    /// If there can be no thread, or no socket.
    pub fn begin(notes: TableNotes) -> io::Result<(OwnedFd, MirrorThread)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let end = renumbered(other, LOWEST_DESCRIPTOR);
        let other = rustix::io::fcntl_dupfd_cloexec(&end, LOWEST_DESCRIPTOR)?;
        let numbers = [other.as_raw_fd(), end.as_raw_fd()];
        let run = move || keep(Channel::new(other), notes);
        numbers.into_iter().for_each(notes.opened);
        let builder = thread::Builder::new().name("urxe-mirror".into());
        let signals = SignalsBlocked::all_but_faults();
        let spawned = builder.spawn(run);
        drop(signals);
        let thread = spawned.inspect_err(|_| numbers.into_iter().for_each(notes.closing))?;
        let process = std::process::id();
        Ok((own, MirrorThread { thread: Some(thread), end: Kept::new(end), notes, process }))
    }
}

impl Drop for MirrorThread {
    /// Closes whatever it has opened in the program's table: nothing of it is left there.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // In a child of `fork` it is not there.
            std::mem::forget(thread);
        } else if self.end.is_as_it_was() {
            // If the other end is closed, it has ended by that.
            let _ = shutdown(&*self.end.fd, Shutdown::Both);
            let _ = thread.join();
        }
        (self.notes.closing)(self.end.fd.as_raw_fd());
    }
}

impl Mirror {
    /// What [`MirrorThread::begin`] has returned.
    pub fn new(end: OwnedFd) -> Arc<Mirror> {
        Arc::new(Mirror(Mutex::new(Channel::new(end))))
    }

    /// Opens a descriptor of this thread in the program's table as well. Its number changes.
    ///
    /// # Errors
    /// The descriptor as it was, if the program may have no more, or here the number is taken.
    pub fn share(self: &Arc<Mirror>, fd: OwnedFd) -> Result<(OwnedFd, Mirrored), OwnedFd> {
        let opened = {
            let mut orders = self.0.lock();
            let sent = orders.send(&Order::Open, &[fd.as_fd()]);
            sent.and_then(|()| orders.recv::<Opened>())
        };
        let Ok((Ok(number), _)) = opened else { return Err(fd) };
        match move_to(&fd, number) {
            Ok(own) => Ok((own, Mirrored { number, mirror: Arc::clone(self) })),
            Err(_) => {
                self.close(number);
                Err(fd)
            }
        }
    }

    fn close(&self, number: RawFd) {
        // If the other thread is gone, so is what it had open.
        let _ = self.0.lock().send(&Order::Close(number), &[]);
    }
}

impl Drop for Mirrored {
    fn drop(&mut self) {
        self.mirror.close(self.number);
    }
}

/// Opens a descriptor once more, under a number that is free.
fn move_to(fd: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the calls take no pointers. The number is open nowhere in this thread's table, as the
    // first of them says, so that nothing is closed by the second.
    unsafe {
        if libc::fcntl(number, libc::F_GETFD) != -1 {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        match libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            number => Ok(OwnedFd::from_raw_fd(number)),
        }
    }
}

/// What is open in the program's table. Closed with this.
#[derive(Debug)]
struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    file: Option<FileIdentity>,
}

impl Kept {
    fn new(fd: OwnedFd) -> Kept {
        let file = FileIdentity::of(fd.as_raw_fd());
        Kept { fd: ManuallyDrop::new(fd), file }
    }

    /// Whether nobody has closed it: a program may have something else under its number then.
    fn is_as_it_was(&self) -> bool {
        FileIdentity::of(self.fd.as_raw_fd()) == self.file
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // OWN-032
        if self.is_as_it_was() {
            // SAFETY: nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// The thread that has the program's table.
fn keep(mut orders: Channel, notes: TableNotes) {
    let number = orders.as_fd().as_raw_fd();
    let file = FileIdentity::of(number);
    let mut kept = BTreeMap::new();
    while let Ok((order, fds)) = orders.recv_from_own::<Order>() {
        match order {
            Order::Open => {
                let fd = fds.into_iter().next().ok_or(Errno::MFILE);
                let opened =
                    fd.and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, LOWEST_DESCRIPTOR));
                let opened: Opened = opened.map_err(|errno| errno.raw_os_error()).map(|fd| {
                    let number = fd.as_raw_fd();
                    (notes.opened)(number);
                    kept.insert(number, Kept::new(fd));
                    number
                });
                if orders.send(&opened, &[]).is_err() {
                    break;
                }
            }
            Order::Close(number) => {
                (notes.closing)(number);
                kept.remove(&number);
            }
        }
    }
    kept.keys().for_each(|&number| (notes.closing)(number));
    (notes.closing)(number);
    if FileIdentity::of(number) != file {
        // OWN-032
        std::mem::forget(orders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::own_thread;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    /// What is open under a number in this thread's table.
    fn file(number: RawFd) -> Option<std::path::PathBuf> {
        std::fs::read_link(format!("/proc/thread-self/fd/{number}")).ok()
    }

    /// A thread of ours has shared a socket, whose other end it has as well. It says under which
    /// number, and what is open there in its own table, and then does the rest when it is told to.
    fn shared_by_a_thread(
        orders: OwnedFd,
        rest: impl FnOnce(Arc<Mirror>, UnixStream, OwnedFd, Mirrored) + Send + 'static,
    ) -> (RawFd, Option<std::path::PathBuf>, impl FnOnce()) {
        let (tell, told) = mpsc::channel();
        let (proceed, wait) = mpsc::channel::<()>();
        own_thread::spawn("test", [orders], move |[orders]| {
            let mirror = Mirror::new(orders);
            let (other, shared) = UnixStream::pair().unwrap();
            let (shared, mirrored) = mirror.share(shared.into()).unwrap();
            tell.send((mirrored.number, file(shared.as_raw_fd()))).unwrap();
            wait.recv().unwrap();
            rest(mirror, other, shared, mirrored);
            tell.send((0, None)).unwrap();
        })
        .unwrap();
        let (number, in_thread) = told.recv().unwrap();
        let proceed = move || {
            proceed.send(()).unwrap();
            told.recv().unwrap();
        };
        (number, in_thread, proceed)
    }

    #[test]
    fn a_mirrored_descriptor_is_one_file_under_one_number_in_both_tables_until_it_is_dropped() {
        let (orders, _thread) = MirrorThread::begin(TableNotes::NONE).unwrap();
        let rest = |_, mut other: UnixStream, shared, mirrored| {
            drop((shared, mirrored));
            // Nobody has the other end any more.
            assert_eq!(other.read(&mut [0]).unwrap(), 0);
        };
        let (number, in_thread, proceed) = shared_by_a_thread(orders, rest);
        assert!(number >= LOWEST_DESCRIPTOR);
        assert!(in_thread.is_some());
        assert_eq!(file(number), in_thread);
        proceed();
        assert_ne!(file(number), in_thread);
    }

    #[test]
    fn nothing_is_left_in_the_programs_table_when_it_has_ended_the_thread() {
        let (orders, thread) = MirrorThread::begin(TableNotes::NONE).unwrap();
        let rest = |mirror: Arc<Mirror>, _, shared: OwnedFd, _mirrored| {
            // It has its own still, and can have no more in both.
            assert!(file(shared.as_raw_fd()).is_some());
            mirror.share(shared).unwrap_err();
        };
        let (number, in_thread, proceed) = shared_by_a_thread(orders, rest);
        assert_eq!(file(number), in_thread);
        drop(thread);
        assert_ne!(file(number), in_thread);
        proceed();
    }

    /// OWN-032
    #[test]
    fn an_own_file_of_the_program_under_a_number_that_it_has_closed_stays_open() {
        let (end, thread) = MirrorThread::begin(TableNotes::NONE).unwrap();
        let (tell, told) = mpsc::channel();
        own_thread::spawn("test", [end], move |[end]| {
            let mirror = Mirror::new(end);
            let (_, theirs) = UnixStream::pair().unwrap();
            let shared = mirror.share(theirs.into()).unwrap();
            tell.send(shared.1.number).unwrap();
            std::mem::forget((mirror, shared));
        })
        .unwrap();
        let number = told.recv().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the number is taken from who has it for the test, as programs do by mistake.
        assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
        drop(thread);
        assert_eq!(file(number), file(null.as_raw_fd()));
        // SAFETY: it is this test's.
        unsafe { libc::close(number) };
    }
}
