//! Sockets that other threads of the process may use as well, although their descriptors are
//! others.

use socket2::Socket;
use std::fmt::Debug;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Opens sockets in another table of descriptors too, under the same number.
pub trait ShareSockets: Debug + Send + Sync {
    /// What is open in both, or the socket as it was if that cannot be.
    ///
    /// # Errors
    /// If it cannot be shared.
    fn share(&self, socket: OwnedFd) -> Result<(OwnedFd, Mirrored), OwnedFd>;
}

/// The socket in the other table. To drop it closes that.
pub type Mirrored = Box<dyn Send>;

/// A socket that may be shared.
pub(crate) struct SharedSocket {
    socket: Socket,
    /// Dropped after the socket of this table.
    mirrored: Option<Mirrored>,
}

impl SharedSocket {
    /// Shares a socket, if there is a way.
    pub(crate) fn new(socket: Socket, share: Option<&Arc<dyn ShareSockets>>) -> SharedSocket {
        let Some(share) = share else { return SharedSocket { socket, mirrored: None } };
        match share.share(socket.into()) {
            Ok((socket, mirrored)) => {
                SharedSocket { socket: socket.into(), mirrored: Some(mirrored) }
            }
            Err(socket) => SharedSocket { socket: socket.into(), mirrored: None },
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.mirrored.is_some()
    }
}

impl Deref for SharedSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for SharedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
