//! The connection to the daemon: requests, doorbells, and noticing that it is gone.

use crate::Error;
use crate::error::{PostError, PostReason};
use rustix::event::Timespec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "in-process")]
use urxe_shm::client::mirror::TableNotes;
use urxe_shm::client::{CallError, Connection, program_name};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Reply, Request, RingLocation};
use urxe_shm::memory::region::Window;
use urxe_shm::memory::session_memory::WindowError;
use urxe_shm::ring::completion_notifier::CompletionWaiter;
#[cfg(feature = "in-process")]
use urxe_slot::OwnSlot;

/// One program's connection to a daemon.
#[derive(Debug)]
pub(crate) struct Session {
    path: Arc<Path>,
    connection: Connection,
    /// The slot that serves it, if this process runs that itself.
    #[cfg(feature = "in-process")]
    slot: Option<OwnSlot>,
}

impl Session {
    /// Begins a session with the daemon at a socket, or, if none is named, with the first that
    /// answers at a usual one.
    pub(crate) fn connect(socket: Option<&Path>) -> Result<Session, Error> {
        let (path, channel) = urxe_shm::connect_to_daemon(socket)?;
        Session::begin(path.into(), channel)
    }

    /// The same in a slot of this process.
    #[cfg(feature = "in-process")]
    pub(crate) fn connect_in_process(socket: Option<&Path>) -> Result<Session, Error> {
        let (path, channel) = urxe_shm::connect_to_daemon(socket)?;
        let path = Arc::from(path);
        let (channel, slot) = OwnSlot::host(channel, || (), TableNotes::NONE)
            .map_err(|error| explain(&path, "open in process", error))?;
        Ok(Session { slot: Some(slot), ..Session::begin(path, channel)? })
    }

    fn begin(path: Arc<Path>, channel: Channel) -> Result<Session, Error> {
        let connection = Connection::new(channel, &program_name(), 0)
            .map_err(|error| explain(&path, "hello", error))?;
        Ok(Session {
            path,
            connection,
            #[cfg(feature = "in-process")]
            slot: None,
        })
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
        self.connection.call(request, fds).map_err(|error| self.explain(call, error))
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
        self.connection.ring(slot);
    }

    /// Nothing was found in a queue: where this process runs its slot itself, the thread does what
    /// there is to do there. Returns whether there may be something now.
    pub(crate) fn polled_in_vain(&self) -> bool {
        #[cfg(feature = "in-process")]
        if let Some(slot) = &self.slot {
            return slot.turns().take(|| self.connection.wake());
        }
        false
    }

    /// Whether threads that poll do what there is to do in this process's own slot.
    pub(crate) fn turns_are_taken(&self) -> bool {
        #[cfg(feature = "in-process")]
        return self.slot.as_ref().is_some_and(|slot| slot.turns().are_taken());
        #[cfg(not(feature = "in-process"))]
        false
    }

    /// The program is about to wait otherwise than by polling.
    pub(crate) fn about_to_wait(&self) {
        #[cfg(feature = "in-process")]
        if let Some(slot) = &self.slot {
            slot.turns().give_back(|| self.connection.wake());
        }
    }

    /// What tells of completions.
    pub(crate) fn waiter(&self) -> &CompletionWaiter {
        self.connection.waiter()
    }

    /// The socket that the daemon is reached by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Who answers at the other end of the socket.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.connection.daemon_pid()
    }

    /// The memory of a ring.
    pub(crate) fn window(&self, ring: RingLocation) -> Result<Window, Error> {
        self.connection.window(ring).map_err(|error| match error {
            WindowError::Os { source, .. } => Error::System { call: "mapping a ring", source },
            WindowError::Access(error) => nonsense(error),
        })
    }

    /// Whether work may be posted: two loads, no system call.
    pub(crate) fn check_post(&self) -> Result<(), PostReason> {
        // CLIENT-009
        if !self.connection.process().is_this() {
            Err(PostReason::Forked)
        } else if self.connection.is_gone() {
            // CLIENT-008
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
        self.connection.check_process().map_err(|error| self.explain("fork", error))
    }

    /// Asks the system, without waiting, whether the daemon is still there.
    pub(crate) fn check_daemon(&self) -> Result<(), Error> {
        self.connection.look_for_daemon().map_err(|error| self.explain("poll", error))
    }

    /// Waits until a descriptor is readable, the time is over, or a signal came: the caller looks
    /// for itself. Fails when the daemon goes away.
    pub(crate) fn wait_readable(
        &self,
        fd: impl AsFd,
        timeout: Option<&Timespec>,
    ) -> Result<(), Error> {
        let waited = self.connection.wait_readable(fd, timeout);
        waited.map_err(|error| self.explain("poll", error))
    }

    /// The error that says so, and the note for everybody else.
    pub(crate) fn daemon_gone(&self) -> Error {
        self.connection.note_gone();
        self.gone()
    }

    fn gone(&self) -> Error {
        #[cfg(not(feature = "in-process"))]
        let reason = None;
        #[cfg(feature = "in-process")]
        let reason = self.slot.as_ref().and_then(OwnSlot::why_ended).map(str::to_owned);
        Error::DaemonGone { path: self.path.clone(), reason }
    }

    /// What went wrong, with why this process's own slot ended, if that was it.
    fn explain(&self, call: &'static str, error: CallError) -> Error {
        match error {
            CallError::Gone => self.gone(),
            error => explain(&self.path, call, error),
        }
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

/// What went wrong, with the daemon's socket or the call that people know.
fn explain(path: &Arc<Path>, call: &'static str, error: CallError) -> Error {
    match error {
        CallError::Refused(error) => {
            Error::Refused { call, errno: error.errno, reason: error.message }
        }
        CallError::Gone => Error::DaemonGone { path: path.clone(), reason: None },
        CallError::Forked { owner } => Error::Forked { owner, child: std::process::id() },
        CallError::Protocol(what) => Error::Protocol(what),
        CallError::System { what, source } => Error::System { call: what, source },
    }
}
