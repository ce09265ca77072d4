//! Why commands fail.

use crate::connection::State;
use crate::limits::{MAX_CONNECTIONS, MAX_LISTENERS};
use crate::manager::ConnId;
use std::net::IpAddr;
use urxe_wire::mad::ServiceId;

/// Why [`listen`](crate::Manager::listen) fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// There is a listener already.
    #[error("{0}: somebody listens on this address and port already")]
    AddressInUse(ServiceId),
    /// The manager has no room for another.
    #[error("the device has {MAX_LISTENERS} listeners, and can have no more")]
    TooMany,
}

/// Why [`connect`](crate::Manager::connect) and [`resolve`](crate::Manager::resolve) fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Source and destination are not of one family.
    #[error("{dst} cannot be reached from {src}, which is of another address family")]
    FamilyMismatch {
        src: IpAddr,
        /// The peer's.
        dst: IpAddr,
    },
    /// The wildcard, or a multicast address.
    #[error("{0}: is not the address of a host")]
    NotAHost(IpAddr),
    /// A UD QP.
    #[error("datagram QPs have no connections; a service is resolved for them")]
    Datagrams,
    /// The private data is too long.
    #[error("{len} bytes of private data; there is room for {max}")]
    PrivateData {
        /// How much there is.
        len: usize,
        /// How much there may be.
        max: usize,
    },
    /// The manager has no room for another.
    #[error("the device has {MAX_CONNECTIONS} connections, and can have no more")]
    TooMany,
}

/// Why a command on a connection fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It is over, or never was.
    #[error("connection {0}: does not exist; it ended, and its last event said so")]
    NoSuchConnection(ConnId),
    /// Its state does not allow it.
    #[error("connection {conn}: cannot {command} in the state {state:?}")]
    WrongState {
        /// The connection.
        conn: ConnId,
        command: &'static str,
        state: State,
    },
    /// The private data is too long.
    #[error("{len} bytes of private data; there is room for {max}")]
    PrivateData {
        /// How much there is.
        len: usize,
        /// How much there may be.
        max: usize,
    },
}
