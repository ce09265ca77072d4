//! What a connection manager tells programs.

use crate::listener::ListenerId;
use crate::manager::ConnId;
use crate::parameters::Qp;
use std::net::SocketAddr;
use urxe_types::{Qkey, QpType, Qpn};
use urxe_wire::mad::SidrStatus;
use urxe_wire::mad::{Ari, Drep, Dreq, IpCmHeader, Reason, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Something that a program is to be told: `rdma_cm_event`.
///
/// Private data has the length that it has on the wire, which does not tell how much of it the
/// peer filled. After `Unreachable`, `Rejected`, `TimewaitExit` and `SidrReply` the connection is
/// gone and its [`ConnId`] means nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Events are rare, and live shortly.
pub enum Event {
    /// `CONNECT_REQUEST`: somebody wants to connect.
    ConnectRequest {
        /// Whom it was for.
        listener: ListenerId,
        /// The new connection, to be accepted or rejected.
        conn: ConnId,
        /// What is asked for.
        request: ConnectRequest,
    },
    /// `CONNECT_RESPONSE`: the peer accepted; the QP is to be made ready, and the connection to be
    /// established or rejected.
    ConnectResponse {
        /// The connection.
        conn: ConnId,
        /// What the peer said.
        response: ConnectResponse,
    },
    /// `ESTABLISHED`, on the passive side: the peer is ready too.
    Established {
        /// The connection.
        conn: ConnId,
        /// What the peer said; zeroes if its word was lost, and its data or its DREQ came.
        private_data: [u8; Rtu::PRIVATE_LEN],
    },
    /// `REJECTED`.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Why; [`Reason::text`] says it in a sentence.
        reason: Reason,
        /// What belongs to the reason.
        ari: Ari,
        /// What the peer said.
        private_data: [u8; Rej::PRIVATE_LEN],
    },
    /// `UNREACHABLE`: nobody answered in time.
    Unreachable {
        /// The connection, or the resolution.
        conn: ConnId,
    },
    /// `DISCONNECTED`: the QP is to be taken to ERR.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Who ended it.
        by: Ending,
    },
    /// `TIMEWAIT_EXIT`: nothing of the connection can still be under way.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// `CONNECT_REQUEST` for datagrams: somebody wants to know the QP of a service.
    SidrRequest {
        /// Whom it was for.
        listener: ListenerId,
        /// The request, to be answered.
        conn: ConnId,
        /// What is asked for.
        request: SidrRequest,
    },
    /// `ESTABLISHED`, or `UNREACHABLE` if its status is not [`SidrStatus::Valid`]: the answer.
    SidrReply {
        /// The request.
        conn: ConnId,
        /// The answer.
        reply: SidrReply,
    },
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // As events.
pub enum Ending {
    /// The peer disconnected.
    Peer {
        /// What it said.
        private_data: [u8; Dreq::PRIVATE_LEN],
    },
    /// We did, and the peer confirmed it.
    Confirmed {
        /// What it said.
        private_data: [u8; Drep::PRIVATE_LEN],
    },
    /// We did, and the peer was silent, or knew nothing of the connection.
    Unconfirmed,
}

/// What comes with a request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// RC or UC.
    pub qp_type: QpType,
    /// Who connects.
    pub src: SocketAddr,
    /// To which of our addresses.
    pub dst: SocketAddr,
    /// What the peer said of its QP, turned around: what it wants to have outstanding is what our
    /// responder shall take.
    pub offered: Qp,
    /// How often to try after a timeout or a sequence error.
    pub retry_count: u8,
    /// What the peer said.
    pub private_data: [u8; Req::PRIVATE_LEN - IpCmHeader::LEN],
}

/// What comes with an acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// What the peer said of its QP, turned around.
    pub offered: Qp,
    /// What the peer said.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

/// What comes with a question for the QP of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// Who asks.
    pub src: SocketAddr,
    /// At which of our addresses.
    pub dst: SocketAddr,
    /// What the peer said.
    pub private_data: [u8; SidrReq::PRIVATE_LEN - IpCmHeader::LEN],
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// Whether the service is to be had.
    pub status: SidrStatus,
    /// The QP that takes its datagrams.
    pub qpn: Qpn,
    /// What they must carry.
    pub qkey: Qkey,
    /// What the peer said.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}
