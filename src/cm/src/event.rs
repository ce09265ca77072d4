//! Events for programs.

use crate::listener::ListenerId;
use crate::manager::ConnId;
use crate::parameters::Qp;
use std::net::SocketAddr;
use urxe_types::{Qkey, QpType, Qpn};
use urxe_wire::mad::{
    Ari, Drep, Dreq, IpCmHeader, Reason, Rej, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus,
};

/// An event for a program: `rdma_cm_event`.
///
/// Private data has the length that it has on the wire, with zeroes behind what the peer's program
/// said. `Unreachable`, `Rejected`, `TimewaitExit` and `SidrReply` are the last event of a
/// connection: its [`ConnId`] is not valid any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Events are rare, and live shortly.
pub enum Event {
    /// `CONNECT_REQUEST`: a REQ came.
    ConnectRequest {
        /// The listener that it came to.
        listener: ListenerId,
        /// The new connection, to be accepted or rejected.
        conn: ConnId,
        /// Its parameters.
        request: ConnectRequest,
    },
    /// `CONNECT_RESPONSE`: a REP came; the program sets its QP to RTS and establishes or rejects.
    ConnectResponse {
        /// The connection.
        conn: ConnId,
        /// The parameters of the REP.
        response: ConnectResponse,
    },
    /// `ESTABLISHED`, on the passive side: the RTU came, or what stands for it.
    Established {
        /// The connection.
        conn: ConnId,
        /// The private data of the RTU; zeroes if that was lost, and data or a DREQ came.
        private_data: [u8; Rtu::PRIVATE_LEN],
    },
    /// `REJECTED`: a REJ came.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// The reason; [`Reason::text`] is its sentence.
        reason: Reason,
        /// What comes with the reason.
        ari: Ari,
        private_data: [u8; Rej::PRIVATE_LEN],
    },
    /// `UNREACHABLE`: no answer to any of the retries.
    Unreachable {
        /// The connection, or the resolution.
        conn: ConnId,
    },
    /// `DISCONNECTED`: the QP is to be taken to ERR.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// How it ended.
        cause: DisconnectCause,
    },
    /// `TIMEWAIT_EXIT`: no packet of the connection can still arrive.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// `CONNECT_REQUEST` for datagrams: a SIDR REQ came.
    SidrRequest {
        /// The listener that it came to.
        listener: ListenerId,
        /// The request, to be answered.
        conn: ConnId,
        /// Its parameters.
        request: SidrRequest,
    },
    /// `ESTABLISHED`, or `UNREACHABLE` if its status is not [`SidrStatus::Valid`]: a SIDR REP came.
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
pub enum DisconnectCause {
    /// The peer sent a DREQ.
    Peer { private_data: [u8; Dreq::PRIVATE_LEN] },
    /// The peer answered our DREQ.
    Confirmed { private_data: [u8; Drep::PRIVATE_LEN] },
    /// The peer did not answer our DREQ, or does not know the connection.
    Unconfirmed,
}

/// The parameters of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// RC or UC.
    pub qp_type: QpType,
    /// The peer's address and port.
    pub src: SocketAddr,
    /// Our own address and port.
    pub dst: SocketAddr,
    /// The peer's QP, seen from our side: its initiator depth is what our responder shall take.
    pub offered: Qp,
    /// `retry_cnt` of both QPs.
    pub retry_count: u8,
    /// What the peer's program said.
    pub private_data: [u8; Req::PRIVATE_LEN - IpCmHeader::LEN],
}

/// The parameters of a REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The peer's QP, seen from our side.
    pub offered: Qp,
    /// What the peer's program said.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

/// The parameters of a SIDR REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// The peer's address and port.
    pub src: SocketAddr,
    /// Our own address and port.
    pub dst: SocketAddr,
    /// What the peer's program said.
    pub private_data: [u8; SidrReq::PRIVATE_LEN - IpCmHeader::LEN],
}

/// The parameters of a SIDR REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// Whether there is such a service.
    pub status: SidrStatus,
    /// The QP that takes its datagrams.
    pub qpn: Qpn,
    /// The Q_Key of its datagrams.
    pub qkey: Qkey,
    /// What the peer's program said.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}
