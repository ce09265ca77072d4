//! The kernel's uverbs device, as far as stock rdma-core sees it.
//!
//! Data takes one way: [`Context::write`] gets the bytes of a command; [`frame`] takes its framing
//! apart, [`command`] decodes it, [`context`] does it, by requests to the daemon, and [`reply`]
//! lays the answer out for the program. All but [`context`] is pure. A doorbell leaves this way at
//! once ([`doorbells`]); [`events`] go the other way.
//!
//! - [`abi`]: the kernel's structures. [`method`]: which commands there are, and their lengths.
//! - [`attr`], [`device`]: the kernel's numbers for what the daemon says in ours.

<<<<<<< HEAD
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
=======
mod abi;
mod attr;
mod command;
mod context;
mod device;
mod doorbells;
mod events;
mod frame;
mod method;
mod reply;

pub(crate) use command::Registration;
pub(crate) use context::Context;
pub(crate) use events::{AsyncEvents, CompletionEvents};
>>>>>>> cdfaff0 (shim: the kernel's commands: framing, decoding, doing and answering them)
