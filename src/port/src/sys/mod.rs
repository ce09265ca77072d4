//! System calls that no crate wraps as we need them: the only `unsafe` of this crate.

mod control;
mod errors;
mod message;
mod name;
pub(crate) mod option;
pub(crate) mod packet;
mod recv;
mod send;

pub(crate) use errors::{ErrorQueue, QueuedError};
pub(crate) use recv::{Received, Receiver};
pub(crate) use send::{Message, SEND_MAX, Sender};

/// Gives this thread a network of its own: no interface but a loopback that is down.
#[cfg(test)]
pub(crate) fn unshare_network() -> std::io::Result<()> {
    // SAFETY: the call takes no pointer, and a network namespace is a matter of sockets made from
    // now on by this thread, not of memory.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
