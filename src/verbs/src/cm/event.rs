//! Events for programs.

use super::{ConnectRequest, Connection, Membership, Service, ServiceRequest};
use crate::Error;
use std::net::SocketAddr;
use urxe_shm::control::{CmEvent, CmEventKind, CmEventParam, CmIdHandle};

/// What happened: `rdma_cm_event`, without the kinds that the library deals with itself.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks a [`Listener`](super::Listener) for a connection.
    ConnectRequest(ConnectRequest),
    /// A peer asks a listener where to send datagrams.
    ServiceRequest(ServiceRequest),
    /// The connection is established.
    Established(Connection),
    /// The connection could not be made: [`Error::Rejected`], [`Error::Unreachable`], or what kept
    /// the queue pair from being made ready. That is in the error state, unless it is in RESET.
    ConnectFailed(Connection, Error),
    /// The connection is over: the peer ended it, or we did and the peer knows or is silent. The
    /// queue pair is in the error state.
    Disconnected(Connection),
    /// No packet of the connection can still arrive: `RDMA_CM_EVENT_TIMEWAIT_EXIT`. From now
    /// on the queue pair can be connected again, after
    /// [`Qp::to_reset`](crate::Qp::to_reset); before, peers would take it for the old connection's
    /// and refuse. (A new queue pair need not wait.)
    TimewaitExit(Connection),
    /// The queue pair of a service is known.
    ServiceFound(Service),
    /// It is not to be had: [`Error::NoService`] or [`Error::Unreachable`].
    ServiceFailed(Service, Error),
    /// The group is joined.
    Joined(Membership),
    /// The group could not be joined, or is lost.
    MulticastFailed(Membership, Error),
}

/// An event that waits to be taken by the program.
#[derive(Debug)]
pub(super) struct PendingEvent {
    /// The number of its object.
    pub(super) token: u64,
    pub(super) kind: EventKind,
}

/// What happened to the object.
#[derive(Debug)]
pub(super) enum EventKind {
    /// A peer's request to a listener. Its id is to be destroyed if the program does not take it.
    Request(CmIdHandle, CmEventParam),
    /// What was requested is there.
    Done,
    /// It is not, or is no longer.
    Failed(Error),
    /// A connection is over.
    Disconnected,
    /// No packet of it can still arrive.
    TimewaitExit,
}

/// The error that an event of the daemon reports.
pub(super) fn failure(peer: SocketAddr, event: CmEvent) -> Error {
    let private_data = match event.param {
        CmEventParam::None => Vec::new(),
        CmEventParam::Conn(param) => param.private_data,
        CmEventParam::Ud(param) => param.private_data,
    };
    match (event.kind, event.status) {
        (CmEventKind::Rejected, reason) => Error::Rejected { peer, reason, private_data },
        // Errors are negative, what a service answers is not.
        (CmEventKind::Unreachable, status @ 1..) => Error::NoService { peer, status, private_data },
        (_, status @ ..=-1) => Error::Unreachable { peer, errno: status.saturating_neg() },
        _ => Error::Unreachable { peer, errno: libc::EHOSTUNREACH },
    }
}
