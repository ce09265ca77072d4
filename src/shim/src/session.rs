//! The one connection of this process to its daemon.

use crate::descriptors::{DESCRIPTORS, Descriptor, set_apart};
use crate::lost::{self, Loss};
use crate::own_slot;
use crate::reasons::{Level, say};
use crate::refused::Refused;
use parking_lot::Mutex;
use rustix::io::{DupFlags, Errno};
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use urxe_shm::client::file_identity::FileIdentity;
use urxe_shm::client::{Connection, LOWEST_DESCRIPTOR, program_name};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{CmReply, CmRequest, Reply, Request};
use urxe_shm::memory::remap;
use urxe_slot::OwnSlot;

/// How long a daemon whose pipes have ended may take until its socket does.
const GOING: Duration = Duration::from_secs(1);

/// A session with the daemon. All contexts of the process share it, and it ends with the last.
#[derive(Debug)]
pub(crate) struct Session {
    connection: ManuallyDrop<Connection>,
    /// What the connection keeps open.
    own: [(RawFd, Option<FileIdentity>); 4],
    /// The slot that serves it, if this process runs that itself.
    slot: Option<OwnSlot>,
}

/// The session that the next context will share.
struct Current(UnsafeCell<Mutex<State>>);

struct State {
    session: Weak<Session>,
    is_fork_watched: bool,
}

// SAFETY: what is in the cell is a lock, and it is changed only in a child right after `fork`,
// where no other thread is.
unsafe impl Sync for Current {}

static CURRENT: Current = Current(UnsafeCell::new(Mutex::new(State::new(false))));

impl State {
    const fn new(is_fork_watched: bool) -> State {
        State { session: Weak::new(), is_fork_watched }
    }
}

/// The session of this process: the present one, unless its daemon is gone; else a new one.
/// `ENODEV` if no daemon answers.
pub(crate) fn current() -> Result<Arc<Session>, Refused> {
    // SAFETY: see `Current`.
    let mut current = unsafe { &*CURRENT.0.get() }.lock();
    if let Some(session) = current.session.upgrade()
        && session.is_usable()
    {
        return Ok(session);
    }
    if !current.is_fork_watched {
        // SAFETY: the function is there as long as the process: this library is never unloaded
        // before it, for it was loaded with the program.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        current.is_fork_watched = failed == 0;
    }
    let session = Arc::new(Session::connect()?);
    current.session = Arc::downgrade(&session);
    own_slot::set_present(&session);
    Ok(session)
}

/// What a child does first. Its parent's session is not its own: it forgets it, and lets go of
/// the connection, so that the daemon notices the parent's end though the child lives on.
extern "C" fn after_fork_in_child() {
    DESCRIPTORS.adopt();
    own_slot::forget_present();
    // SAFETY: no other thread is there to look. The lock, which another thread of the parent may
    // have held, is not dropped but overwritten.
    unsafe { CURRENT.0.get().write(Mutex::new(State::new(true))) };
    // A file that is at its end, and that is to be had also where no path leads to one.
    let Ok(pipe) = pipe_with(PipeFlags::CLOEXEC) else { return };
    let [at_end, write_end] = [pipe.0, pipe.1].map(ManuallyDrop::new);
    let mut from = 0;
    while let Some(fd) = DESCRIPTORS.next_from(from) {
        from = fd + 1;
        if let Some(Descriptor::Private) = DESCRIPTORS.genuine(fd) {
            // The number stays taken: the session that it belongs to may yet end, and close it.
            // SAFETY: the number is open and ours; it is not closed by this name.
            let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            let _ = rustix::io::dup3(&*at_end, &mut own, DupFlags::CLOEXEC);
            DESCRIPTORS.insert(fd, Descriptor::Private);
        }
    }
    for fd in [at_end, write_end] {
        // SAFETY: it was opened just now, and nobody else knows it.
        unsafe { rustix::io::close(fd.as_raw_fd()) };
    }
}

impl Session {
    fn connect() -> Result<Session, Refused> {
        let mut channel = connect()?;
        let mut slot = None;
        if own_slot::is_wanted() {
            match OwnSlot::host(channel, set_apart, own_slot::NOTES) {
                Ok(hosted) => (channel, slot) = (hosted.0, Some(hosted.1)),
                Err(error) => {
                    own_slot::report_refusal(&error);
                    channel = connect()?;
                }
            }
        }
        let connection = Connection::new(channel, &program_name(), LOWEST_DESCRIPTOR);
        let connection = connection?;
        let own = connection.descriptors().map(|fd| {
            DESCRIPTORS.insert(fd, Descriptor::Private);
            (fd, FileIdentity::of(fd))
        });
        if let Some(sentence) = remap::why_nothing_is_wished() {
            // WHY-003
            say(Level::Always, &sentence);
        }
        Ok(Session { connection: ManuallyDrop::new(connection), own, slot })
    }

    /// The slot that serves it, if this process runs that itself.
    pub(crate) fn own_slot(&self) -> Option<&OwnSlot> {
        self.slot.as_ref()
    }

    /// Asks the daemon for something and waits for the answer. What it refuses has the errno that
    /// the kernel would give; a fork's parent's session is `EIO`, and so is a daemon that is gone,
    /// unless something is to be destroyed: that is done then.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, Refused> {
        Ok(self.call_with_fds(request, &[])?.0)
    }

    /// The same with descriptors.
    pub(crate) fn call_with_fds(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Refused> {
        self.connection.check_process()?;
        if !self.has_its_descriptors() {
            self.note_lost(Loss::Descriptors);
            return without_daemon(request);
        }
        self.connection.call(request, fds).or_else(|error| {
            if !self.connection.is_gone() {
                return Err(error.into());
            }
            self.note_lost(Loss::Daemon);
            without_daemon(request)
        })
    }

    /// Asks the daemon, unless another request is under way.
    pub(crate) fn call_if_free(&self, request: &Request) -> Option<Reply> {
        self.has_its_descriptors().then(|| self.connection.call_if_free(request)).flatten()
    }

    /// Whether the daemon is gone, and with it all that this process has of the session: asks the
    /// system. In a fork of the process that it belongs to it is not.
    pub(crate) fn is_lost(&self) -> bool {
        if self.connection.check_process().is_err() {
            return false;
        }
        if !self.has_its_descriptors() {
            self.note_lost(Loss::Descriptors);
        } else if !self.connection.is_gone() && self.connection.look_for_daemon().is_ok() {
            return false;
        } else {
            self.note_lost(Loss::Daemon);
        }
        true
    }

    /// The same after a pipe of the daemon's has ended: where it is just going, its socket may be
    /// the last to go.
    pub(crate) fn is_lost_soon(&self) -> bool {
        if self.connection.check_process().is_ok() && self.has_its_descriptors() {
            self.connection.wait_gone(GOING);
        }
        self.is_lost()
    }

    fn note_lost(&self, loss: Loss<'_>) {
        self.connection.note_gone();
        let why_ended = self.slot.as_ref().and_then(OwnSlot::why_ended);
        lost::report(why_ended.map_or(loss, Loss::OwnSlot));
    }

    /// The connection: memory, doorbells, and whether it is this process's own.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether the daemon still answers.
    fn is_usable(&self) -> bool {
        self.has_its_descriptors()
            && self.connection.check_process().is_ok()
            && !self.connection.is_gone()
            && self.connection.look_for_daemon().is_ok()
    }

    /// Whether nobody has closed what is ours behind our back. The numbers may be a stranger's
    /// by now, who gets nothing from us and is not closed by us.
    fn has_its_descriptors(&self) -> bool {
        self.own.iter().all(|&(fd, file)| FileIdentity::of(fd) == file)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a child the numbers stand for other files than they did.
        let is_intact = self.has_its_descriptors() || self.connection.check_process().is_err();
        for (fd, _) in self.own {
            DESCRIPTORS.remove(fd);
        }
        if is_intact {
            // SAFETY: this is the end; nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.connection) };
        }
    }
}

/// Connects to the daemon. `ENODEV` if none answers.
pub(crate) fn connect() -> Result<Channel, Refused> {
    let path = urxe_shm::socket_path();
    Channel::connect(&path).map_err(|error| unreachable(&path, &error))
}

/// The error of a daemon that does not answer.
fn unreachable(socket: &Path, error: &io::Error) -> Refused {
    let errno = match Errno::from_io_error(error) {
        // There is no daemon, or no more: so there is no device.
        Some(Errno::NOENT | Errno::CONNREFUSED) => Errno::NODEV,
        errno => errno.unwrap_or(Errno::IO),
    };
    let socket = socket.display();
    let reason = format!("no urxed answers at {socket}: {error}; start one, or see URXE_SOCKET");
    Refused::new(errno, reason)
}

/// What a request comes to when no daemon is there. All that the session had is gone with it, so
/// whatever is to be destroyed is; nobody is waited for, for no event of it will be told any more.
fn without_daemon(request: &Request) -> Result<(Reply, Vec<OwnedFd>), Refused> {
    let reply = match request {
        Request::CloseDevice { .. }
        | Request::DeallocPd { .. }
        | Request::DeregMr { .. }
        | Request::DestroyCompChannel { .. }
        | Request::DestroyCq { .. }
        | Request::DestroyQp { .. }
        | Request::DestroySrq { .. }
        | Request::DestroyAh { .. }
        | Request::DeallocMw { .. }
        | Request::DetachMcast { .. }
        | Request::Cm(CmRequest::DestroyChannel { .. }) => Reply::Done,
        Request::Cm(CmRequest::DestroyId { .. } | CmRequest::LeaveMulticast { .. }) => {
            Reply::Cm(CmReply::Events(0))
        }
        _ => return Err(Refused::new(Errno::IO, "the daemon, or this session, has ended")),
    };
    Ok((reply, Vec::new()))
}
