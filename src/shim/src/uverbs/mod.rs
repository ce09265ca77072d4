//! The kernel's uverbs device, as far as stock rdma-core sees it.
//!
//! Data takes one way: [`Context::write`] gets the bytes of a command; `frame` takes its framing
//! apart, `command` decodes it, `context` does it, by requests to the daemon, and `reply` writes
//! the answer to where the program wants it.

use crate::session::Session;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;

/// An opened uverbs device: `ibv_context` as the kernel knows it.
#[derive(Debug)]
pub(crate) struct Context {
    session: Arc<Session>,
    /// N of `/dev/infiniband/uverbsN`, and of the daemon's list of devices.
    device: u32,
}

impl Context {
    /// What `open("/dev/infiniband/uverbsN")` makes. Nothing is asked of the daemon before the
    /// first command.
    pub(crate) fn open(session: Arc<Session>, device: u32) -> Context {
        Context { session, device }
    }

    /// N of `/dev/infiniband/uverbsN`.
    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// `write(2)`: one command. Gives back the number of bytes taken.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let _ = (&self.session, self.device, bytes);
        Err(Errno::NOSYS)
    }
}

/// The CQ events of a completion channel.
#[derive(Debug)]
pub(crate) struct CompletionEvents;

impl CompletionEvents {
    /// `read(2)`: one event.
    pub(crate) fn read(&self, _fd: RawFd, _buf: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }
}

/// The asynchronous events of a context.
#[derive(Debug)]
pub(crate) struct AsyncEvents;

impl AsyncEvents {
    /// `read(2)`: one event.
    pub(crate) fn read(&self, _fd: RawFd, _buf: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }
}
