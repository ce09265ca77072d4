//! The one connection of this process to its daemon.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use urxe_shm::client::{self, CallError, ConnectError, Connection};
use urxe_shm::control::{Reply, Request};

/// Our own descriptors are numbered from here on, out of the way of programs that count on low
/// numbers, or close them all.
const LOWEST_DESCRIPTOR: RawFd = 512;

/// A session with the daemon. All contexts of the process share it.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
}

static CURRENT: Mutex<Option<Arc<Session>>> = Mutex::new(None);

/// The session of this process: the present one, unless its daemon is gone or it is a fork's
/// parent's; else a new one. `EIO` and the like if no daemon can be talked to.
pub(crate) fn current() -> Result<Arc<Session>, Errno> {
    let mut current = CURRENT.lock();
    if let Some(session) = &*current
        && session.connection.check_process().is_ok()
        && session.connection.look_for_daemon().is_ok()
    {
        return Ok(session.clone());
    }
    let session = Arc::new(Session::connect()?);
    *current = Some(session.clone());
    Ok(session)
}

impl Session {
    fn connect() -> Result<Session, Errno> {
        let path = urxe_shm::socket_path();
        let connection = client::connect(&path, &program_name(), LOWEST_DESCRIPTOR);
        let connection = connection.map_err(|error| match error {
            ConnectError::Unreachable(error) => Errno::from_io_error(&error).unwrap_or(Errno::IO),
            ConnectError::Hello(error) => errno_of(&error),
        })?;
        for fd in connection.descriptors() {
            DESCRIPTORS.insert(fd, Descriptor::Private);
        }
        Ok(Session { connection })
    }

    /// Asks the daemon for something and waits for the answer. What it refuses has the errno that
    /// the kernel would give; a daemon that is gone, or a fork's parent's session, is `EIO`.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, Errno> {
        Ok(self.call_with_fds(request, &[])?.0)
    }

    /// The same with descriptors.
    pub(crate) fn call_with_fds(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.connection.call(request, fds).map_err(|error| errno_of(&error))
    }

    /// The connection: memory, doorbells, and whether it is this process's own.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for fd in self.connection.descriptors() {
            DESCRIPTORS.remove(fd);
        }
    }
}

fn errno_of(error: &CallError) -> Errno {
    match error {
        CallError::Refused(error) => Errno::from_raw_os_error(error.errno),
        CallError::System { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
        CallError::Gone | CallError::Forked { .. } | CallError::Protocol(_) => Errno::IO,
    }
}

/// The name that people who look at the daemon see.
fn program_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
