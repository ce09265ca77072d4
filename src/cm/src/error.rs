//! What programs cannot do.

use crate::connection::State;
use crate::limits::{MAX_CONNECTIONS, MAX_LISTENERS};
use crate::manager::ConnId;
use std::net::IpAddr;
use urxe_wire::mad::ServiceId;

/// Why nothing listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there already.
    #[error("{0}: somebody listens on this address and port already")]
    AddressInUse(ServiceId),
    /// The manager has no room for another.
    #[error("the device has {MAX_LISTENERS} listeners, and can have no more")]
    TooMany,
}

/// Why nothing was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Not of one address family.
    #[error("{dst} cannot be reached from {src}, which is of another address family")]
    FamilyMismatch {
        /// Our own address.
        src: IpAddr,
        /// The peer's.
        dst: IpAddr,
    },
    /// Not a host.
    #[error("{0}: is not the address of a host")]
    NotAHost(IpAddr),
    /// A datagram QP.
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

/// Why something cannot be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It is gone, or never was.
    #[error("connection {0}: does not exist; it ended, and its last event said so")]
    NoSuchConnection(ConnId),
    /// It is not at that point.
    #[error("connection {conn}: cannot {command} in the state {state:?}")]
    WrongState {
        /// The connection.
        conn: ConnId,
        /// What was asked for.
        command: &'static str,
        /// Where it stands.
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
