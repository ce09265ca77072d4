//! The parameters of commands.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use urxe_types::{AddressVector, PathMtu, Qkey, QpType, Qpn, TimeCode};
use urxe_wire::Flow;
use urxe_wire::mad::{IpCmHeader, PortSpace, Rep, Req, SidrRep, SidrReq, SidrStatus};

/// The path of a connection's messages and packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// The flow label, which also chooses the UDP source port of the connection's packets.
    pub flow_label: u32,
}

/// The hop limit that rdma_cm asks for.
const HOP_LIMIT: u8 = 64;

impl Path {
    /// The path that rdma_cm takes between two sockets.
    pub fn between(src: SocketAddr, dst: SocketAddr, traffic_class: u8) -> Path {
        // CM-007: the kernel's choice, so that a network sees from us what it sees from the kernel.
        let flow_label = (u32::from(src.port()) * 31 + u32::from(dst.port())) & 0xf_ffff;
        let (local, peer) = (src.ip(), dst.ip());
        Path { local, peer, traffic_class, hop_limit: HOP_LIMIT, flow_label }
    }

    /// The reverse of the path that a message came by.
    pub(crate) fn back(flow: &Flow) -> Path {
        Path {
            local: flow.dst,
            peer: flow.src,
            traffic_class: flow.traffic_class,
            hop_limit: HOP_LIMIT,
            flow_label: 0,
        }
    }

    /// As an address vector, if our own address is (still) in the GID table.
    pub fn address_vector(&self, gids: &[Option<IpAddr>]) -> Option<AddressVector> {
        let index = gids.iter().position(|gid| *gid == Some(self.local))?;
        Some(AddressVector {
            dgid: self.peer,
            sgid_index: u8::try_from(index).ok()?,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
        })
    }
}

/// The part of `rdma_conn_param` that describes a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qp {
    pub qpn: Qpn,
    /// READs and atomics that its responder takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that its requester wants to have outstanding.
    pub initiator_depth: u8,
    /// It has end-to-end flow control.
    pub flow_control: bool,
    /// `rnr_retry` of the peer's QP: 0 to 7.
    pub rnr_retry_count: u8,
    /// It receives from an SRQ.
    pub srq: bool,
}

/// `rdma_connect` for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// RC or UC.
    pub qp_type: QpType,
    /// The port space of the destination's port.
    pub space: PortSpace,
    /// Our own address and port.
    pub src: SocketAddr,
    /// The peer's address and port.
    pub dst: SocketAddr,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Largest payload of a packet.
    pub path_mtu: PathMtu,
    pub qp: Qp,
    /// `retry_cnt` of both QPs: 0 to 7.
    pub retry_count: u8,
    /// The ACK timeout of both QPs; by default [`Timing::ack_timeout`](crate::Timing).
    pub ack_timeout: Option<TimeCode>,
    /// Private data for the peer's program; at most [`Connect::PRIVATE_LEN`] bytes.
    pub private_data: &'a [u8],
}

/// `rdma_accept` for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept<'a> {
    pub qp: Qp,
    /// Private data for the peer's program; at most [`Accept::PRIVATE_LEN`] bytes.
    pub private_data: &'a [u8],
}

/// `rdma_connect` for datagrams: looks up the QP of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve<'a> {
    /// The port space of the destination's port.
    pub space: PortSpace,
    /// Our own address and port.
    pub src: SocketAddr,
    /// The peer's address and port.
    pub dst: SocketAddr,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Private data for the peer's program; at most [`Resolve::PRIVATE_LEN`] bytes.
    pub private_data: &'a [u8],
}

/// `rdma_accept` or `rdma_reject` for datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAnswer<'a> {
    /// Whether there is such a service.
    pub status: SidrStatus,
    /// The QP that takes its datagrams.
    pub qpn: Qpn,
    /// The Q_Key of its datagrams.
    pub qkey: Qkey,
    /// Private data for the peer's program; at most [`SidrAnswer::PRIVATE_LEN`] bytes.
    pub private_data: &'a [u8],
}

macro_rules! private_len {
    ($($parameters:ident = $len:expr;)*) => {
        $(impl $parameters<'_> {
            /// Most bytes of private data.
            pub const PRIVATE_LEN: usize = $len;
        })*
    };
}

private_len! {
    Connect = Req::PRIVATE_LEN - IpCmHeader::LEN;
    Accept = Rep::PRIVATE_LEN;
    Resolve = SidrReq::PRIVATE_LEN - IpCmHeader::LEN;
    SidrAnswer = SidrRep::PRIVATE_LEN;
}
