//! The connection to the daemon: requests, doorbells, and noticing that it is gone.

use crate::Error;
use crate::error::{PostError, PostReason};
use crate::fork::Process;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_shm::channel::{Channel, ChannelError};
use urxe_shm::control::{Reply, Request, RingLocation};
use urxe_shm::doorbell::Bell;
use urxe_shm::process_memory;
use urxe_shm::region::{Mapping, Window};

/// One program's connection to a daemon.
#[derive(Debug)]
pub(crate) struct Session {
    path: Arc<Path>,
    process: Process,
    /// The daemon was found to be gone. Never becomes false again.
    gone: AtomicBool,
    channel: Mutex<Channel>,
    /// The channel's socket once more, to look at without waiting for a request of another thread.
    socket: OwnedFd,
    /// The session's memfd: doorbells and rings.
    memory: Arc<Mapping>,
    bell: Bell,
    /// Wakes the daemon when it sleeps.
    wake: OwnedFd,
}

impl Session {
    pub(crate) fn connect(path: &Path) -> Result<Session, Error> {
        let process = Process::current()?;
        let mut channel = Channel::connect(path)
            .map_err(|source| Error::Connect { path: path.to_owned(), source })?;
        let path = Arc::from(path);
        // Without it only `reg_mr` is refused, and says so; everything else works.
        let own_memory = process_memory::open_own().ok();
        let fds: Vec<_> = own_memory.iter().map(AsFd::as_fd).collect();
        let hello = Request::Hello { program: program_name() };
        let (reply, fds) = channel.call(&hello, &fds).map_err(|error| lost(&path, error))?;
        let Reply::Hello { memory_limit } = accept("hello", reply)? else {
            return Err(unexpected("hello"));
        };
        let [memory, wake] = descriptors("hello", fds)?;
        let memory = usize::try_from(memory_limit)
            .map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM))
            .and_then(|len| Mapping::new(&memory, 0, len))
            .map_err(Error::system("mapping the session's memory"))?;
        let memory = Arc::new(memory);
        let bell = Bell::new(memory.clone()).map_err(nonsense)?;
        let socket = channel
            .as_fd()
            .try_clone_to_owned()
            .map_err(Error::system("duplicating the control socket"))?;
        let (gone, channel) = (AtomicBool::new(false), Mutex::new(channel));
        Ok(Session { path, process, gone, channel, socket, memory, bell, wake })
    }

    /// Asks the daemon for something and waits for the answer. `call` names it in errors.
    pub(crate) fn call(&self, call: &'static str, request: &Request) -> Result<Reply, Error> {
        Ok(self.call_with_fds(call, request, &[])?.0)
    }

    /// The same with descriptors: those to send along, and those that came back.
    pub(crate) fn call_with_fds(
        &self,
        call: &'static str,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        self.check_process()?;
        if self.gone.load(Ordering::Relaxed) {
            return Err(self.daemon_gone());
        }
        let (reply, fds) = self.channel.lock().call(request, fds).map_err(|error| {
            if matches!(error, ChannelError::Closed | ChannelError::Os(_)) {
                self.gone.store(true, Ordering::Relaxed);
                // Nobody can tell any more which reply belongs to which request. If the daemon
                // still lives, this tells it to free everything.
                let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            }
            lost(&self.path, error)
        })?;
        Ok((accept(call, reply)?, fds))
    }

    /// Asks for something that is answered by [`Reply::Done`].
    pub(crate) fn order(&self, call: &'static str, request: &Request) -> Result<(), Error> {
        match self.call(call, request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(call)),
        }
    }

    /// Tells the daemon, from a `Drop`, that an object is no longer needed. A daemon that is gone
    /// has freed it already, and a fork has nothing to say about its parent's objects.
    pub(crate) fn destroy(&self, call: &'static str, request: &Request) {
        let _ = self.order(call, request);
    }

    /// Makes the daemon look at a queue pair.
    pub(crate) fn ring(&self, slot: u32) {
        if self.bell.ring(slot) {
            // An eventfd refuses only when it would overflow, and then it is readable anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Who answers at the other end of the socket.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        let pid = rustix::net::sockopt::socket_peercred(&self.socket).ok()?.pid;
        u32::try_from(pid.as_raw_pid()).ok().filter(|&pid| pid > 0)
    }

    /// The memory of a ring.
    pub(crate) fn window(&self, ring: RingLocation) -> Result<Window, Error> {
        Window::new(self.memory.clone(), ring.offset, u64::from(ring.size)).map_err(nonsense)
    }

    /// Whether work may be posted: two loads, no system call.
    pub(crate) fn check_post(&self) -> Result<(), PostReason> {
        if !self.process.is_this() {
            Err(PostReason::Forked)
        } else if self.gone.load(Ordering::Relaxed) {
            Err(PostReason::DaemonGone { path: self.path.clone() })
        } else {
            Ok(())
        }
    }

    /// The error of a list whose work request `posted`, named by `wr_id`, is bad. A list without
    /// work requests has nothing to complain about.
    #[cold]
    pub(crate) fn refuse_post(
        &self,
        wr_id: Option<u64>,
        posted: usize,
        mut reason: PostReason,
    ) -> Result<(), PostError> {
        let Some(wr_id) = wr_id else { return Ok(()) };
        // A queue that nobody empties any more is full for ever; say so at once.
        if matches!(reason, PostReason::QueueFull { .. }) && self.check_daemon().is_err() {
            reason = self.check_post().err().unwrap_or(reason);
        }
        Err(PostError { posted, wr_id, reason })
    }

    /// Fails in a fork of the process that made the session.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.process.is_this() {
            return Ok(());
        }
        Err(Error::Forked { owner: self.process.pid, child: std::process::id() })
    }

    /// Asks the system, without waiting, whether the daemon is still there.
    pub(crate) fn check_daemon(&self) -> Result<(), Error> {
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(1..) => Err(self.daemon_gone()),
            Ok(0) | Err(_) => Ok(()),
        }
    }

    /// Waits until a descriptor is readable, the time is over, or a signal came: the caller looks
    /// for itself. Fails when the daemon goes away.
    pub(crate) fn wait_readable(
        &self,
        fd: impl AsFd,
        timeout: Option<&Timespec>,
    ) -> Result<(), Error> {
        let mut fds =
            [PollFd::new(&fd, PollFlags::IN), PollFd::new(&self.socket, PollFlags::RDHUP)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) if fds[1].revents().is_empty() => Ok(()),
            Ok(_) => Err(self.daemon_gone()),
            Err(errno) => Err(Error::system("poll")(errno)),
        }
    }

    /// The error that says so, and the note for everybody else.
    pub(crate) fn daemon_gone(&self) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        Error::DaemonGone { path: self.path.clone() }
    }
}

/// The name that people who look at the daemon see.
fn program_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A refusal becomes an error.
fn accept(call: &'static str, reply: Reply) -> Result<Reply, Error> {
    match reply {
        Reply::Error(error) => {
            Err(Error::Refused { call, errno: error.errno, reason: error.message })
        }
        reply => Ok(reply),
    }
}

/// Just as many descriptors as expected.
pub(crate) fn descriptors<const N: usize>(
    call: &'static str,
    fds: Vec<OwnedFd>,
) -> Result<[OwnedFd; N], Error> {
    fds.try_into().map_err(|fds: Vec<OwnedFd>| {
        Error::Protocol(format!("{call} brought {} descriptors, expected {N}", fds.len()))
    })
}

/// The daemon answered something else.
pub(crate) fn unexpected(call: &'static str) -> Error {
    Error::Protocol(format!("another kind of reply to {call}"))
}

/// The daemon's numbers do not fit together.
pub(crate) fn nonsense(error: impl std::error::Error) -> Error {
    Error::Protocol(error.to_string())
}

fn lost(path: &Arc<Path>, error: ChannelError) -> Error {
    match error {
        ChannelError::Closed => Error::DaemonGone { path: path.clone() },
        ChannelError::Os(source) => Error::System { call: "the control socket", source },
        error => Error::Protocol(error.to_string()),
    }
}
