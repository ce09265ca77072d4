//! A program's connection to the daemon: requests, doorbells, and noticing that it is gone.
//!
//! Both kinds of client, the Rust library and the shim under stock libibverbs, stand on this.
//!
//! - [`cancellation`]: threads that are cancelled.
//! - [`file_identity`]: whether a number of ours is still what we have opened.
//! - [`lookout`]: when a program looks whether there is a daemon.
//! - [`own_thread`]: a thread of ours in a program that knows nothing of it.
//! - [`mirror`]: descriptors that it shares with the program.
//! - [`polling_thread`]: what a thread of the program has to have to do work of ours.
//! - [`poll_backoff`]: how a program that polls makes room. [`yield_policy`]: how it and the daemon
//!   take turns where cores are scarce. [`time_slice`]: how long such a turn is.

pub mod cancellation;
pub mod file_identity;
pub mod lookout;
pub mod mirror;
pub mod own_thread;
pub mod poll_backoff;
pub mod polling_thread;
pub mod time_slice;
pub mod yield_policy;

use crate::control::channel::{Channel, ChannelError, renumbered};
use crate::control::peer::Peer;
use crate::control::{ControlError, Reply, Request, RingLocation};
use crate::memory::process::Process;
use crate::memory::process_memory;
use crate::memory::region::Window;
use crate::memory::session_memory::{SessionMemory, WindowError};
use crate::ring::completion_notifier::CompletionWaiter;
use crate::ring::doorbell::DoorbellWriter;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In a program that knows nothing of us our own descriptors are numbered from here on, out of the
/// way of programs that count on low numbers, or close them all.
pub const LOWEST_DESCRIPTOR: RawFd = 512;

/// The name of this program, for [`Connection::new`]: that which it was called by.
pub fn program_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A request was not done.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The daemon refused it, and nothing has changed.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// The daemon is gone, and with it all that the session had.
    #[error("the daemon is gone")]
    Gone,
    /// This process is a fork of the one that connected.
    #[error("the session belongs to process {owner}, of which this one is a fork")]
    Forked {
        /// Process id of the one that connected.
        owner: u32,
    },
    /// The daemon said something that is not understood here.
    #[error("the daemon is not understood: {0}")]
    Protocol(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl CallError {
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> CallError {
        move |source| CallError::System { what, source: source.into() }
    }

    fn nonsense(error: impl std::error::Error) -> CallError {
        CallError::Protocol(error.to_string())
    }
}

impl From<ChannelError> for CallError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Closed => CallError::Gone,
            ChannelError::Os(source) => CallError::System { what: "the control socket", source },
            // CLIENT-065: the daemon sends no more than there may be with a message.
            ChannelError::FdsLost => {
                CallError::System { what: "descriptors of the daemon", source: Errno::MFILE.into() }
            }
            error => CallError::nonsense(error),
        }
    }
}

/// One program's connection to a daemon: a session.
#[derive(Debug)]
pub struct Connection {
    process: Process,
    /// The daemon was found to be gone. Never becomes false again.
    gone: AtomicBool,
    channel: Mutex<Channel>,
    /// The channel's socket once more, to look at without waiting for a request of another thread.
    socket: OwnedFd,
    /// The session's memory: doorbells and rings.
    memory: SessionMemory,
    doorbells: DoorbellWriter,
    waiter: CompletionWaiter,
    /// Wakes the daemon when it sleeps.
    wake: OwnedFd,
}

impl Connection {
    /// Begins a session on a channel that is connected just now. `program` is a name for people
    /// who look at the daemon. What the session keeps open are descriptors from `lowest` on, or,
    /// where the limits of this process do not allow that, any.
    pub fn new(channel: Channel, program: &str, lowest: RawFd) -> Result<Self, CallError> {
        let process =
            Process::current().map_err(CallError::system("making a page that is wiped on fork"))?;
        let mut channel = channel.renumbered(lowest);
        // Without it only the registration of ordinary memory is refused, and says so.
        let own_memory = process_memory::open_own().ok();
        let fds: Vec<_> = own_memory.iter().map(AsFd::as_fd).collect();
        let hello = Request::Hello { program: program.to_owned() };
        let (reply, fds) = channel.call(&hello, &fds)?;
        let memory_limit = match reply {
            Reply::Hello { memory_limit } => memory_limit,
            Reply::Error(error) => return Err(error.into()),
            _ => return Err(CallError::Protocol("another kind of reply to hello".into())),
        };
        let [memfd, wake] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            let count = fds.len();
            CallError::Protocol(format!("hello brought {count} descriptors, expected 2"))
        })?;
        let [memfd, wake] = [memfd, wake].map(|fd| renumbered(fd, lowest));
        let memory = SessionMemory::new(memfd, memory_limit)
            .map_err(CallError::system("mapping the session's memory"))?;
        let doorbells =
            DoorbellWriter::new(memory.doorbells().clone()).map_err(CallError::nonsense)?;
        let waiter =
            CompletionWaiter::new(memory.doorbells().clone()).map_err(CallError::nonsense)?;
        let socket = rustix::io::fcntl_dupfd_cloexec(&channel, lowest)
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&channel, 0))
            .map_err(CallError::system("duplicating the control socket"))?;
        let (gone, channel) = (AtomicBool::new(false), Mutex::new(channel));
        Ok(Connection { process, gone, channel, socket, memory, doorbells, waiter, wake })
    }

    /// Asks the daemon for something and waits for the answer, with descriptors: those to send
    /// along, and those that came back. A refusal is an error.
    pub fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        self.check_process()?;
        if self.is_gone() {
            return Err(CallError::Gone);
        }
        let answer = self.channel.lock().call(request, fds).inspect_err(|error| {
            self.note_failed(error);
        })?;
        match answer {
            (Reply::Error(error), _) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    /// The same, without descriptors, for who must not wait for a request of another thread, or for
    /// one of this thread that a signal handler has interrupted: `None` if there is one.
    pub fn call_if_free(&self, request: &Request) -> Option<Reply> {
        if self.check_process().is_err() || self.is_gone() {
            return None;
        }
        let answer = self.channel.try_lock()?.call(request, &[]).inspect_err(|error| {
            self.note_failed(error);
        });
        answer.ok().map(|(reply, _)| reply)
    }

    /// Makes the daemon look at a queue pair. No system call, unless the daemon sleeps.
    pub fn ring(&self, slot: u32) {
        if self.doorbells.ring(slot) {
            self.wake();
        }
    }

    /// Wakes the daemon, if it sleeps.
    pub fn wake(&self) {
        // An eventfd refuses only when it would overflow, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What tells of completions.
    pub fn waiter(&self) -> &CompletionWaiter {
        &self.waiter
    }

    /// The memory of a ring.
    pub fn window(&self, ring: RingLocation) -> Result<Window, WindowError> {
        self.memory.window(ring.offset, u64::from(ring.size))
    }

    /// The session's memfd, in which rings lie at their [`RingLocation::offset`].
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memory.memfd()
    }

    /// The numbers of everything that the session keeps open.
    pub fn descriptors(&self) -> [RawFd; 4] {
        let channel = self.channel.lock().as_fd().as_raw_fd();
        let [socket, wake] = [&self.socket, &self.wake].map(AsRawFd::as_raw_fd);
        [channel, socket, self.memory.memfd().as_raw_fd(), wake]
    }

    /// The process that connected.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Fails in a fork of the process that connected.
    pub fn check_process(&self) -> Result<(), CallError> {
        if self.process.is_this() {
            return Ok(());
        }
        Err(CallError::Forked { owner: self.process.pid() })
    }

    /// A request has failed in a way that may mean the end.
    fn note_failed(&self, error: &ChannelError) {
        if matches!(error, ChannelError::Closed | ChannelError::Os(_)) {
            self.note_gone();
            // Nobody can tell any more which reply belongs to which request. If the daemon
            // still lives, this tells it to free everything.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// Whether the daemon was found to be gone; one load.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Takes note that it is.
    pub fn note_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Asks the system, without waiting, whether the daemon is still there.
    pub fn look_for_daemon(&self) -> Result<(), CallError> {
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(1..) => {
                self.note_gone();
                Err(CallError::Gone)
            }
            Ok(0) | Err(_) => Ok(()),
        }
    }

    /// Waits until the daemon is gone, or the time is over.
    pub fn wait_gone(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        // The caller looks for itself.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::RDHUP)], timeout.as_ref());
    }

    /// Waits until a descriptor is readable, the time is over, or a signal came: the caller looks
    /// for itself. Fails when the daemon goes away.
    pub fn wait_readable(
        &self,
        fd: impl AsFd,
        timeout: Option<&Timespec>,
    ) -> Result<(), CallError> {
        let mut fds =
            [PollFd::new(&fd, PollFlags::IN), PollFd::new(&self.socket, PollFlags::RDHUP)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) if fds[1].revents().is_empty() => Ok(()),
            Ok(_) => {
                self.note_gone();
                Err(CallError::Gone)
            }
            Err(errno) => Err(CallError::system("poll")(errno)),
        }
    }

    /// Process id of whoever answers at the other end of the socket, if it can be seen from here.
    pub fn daemon_pid(&self) -> Option<u32> {
        Peer::of(&self.socket).ok()?.pid
    }
}
