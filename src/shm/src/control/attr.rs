//! Attributes of devices, ports and queue pairs, in the words of the verbs.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use urxe_types::{PathMtu, QpAttr};

/// A device, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its name, such as `urxe0`.
    pub name: String,
    /// Its EUI-64, in network byte order.
    pub node_guid: [u8; 8],
    /// Address of its port.
    pub address: IpAddr,
}

/// What a device can do: those parts of `ibv_device_attr` that it has anything to say about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAttr {
    /// Version of the daemon.
    pub fw_ver: String,
    /// EUI-64, in network byte order.
    pub node_guid: [u8; 8],
    /// Largest memory registration, in bytes.
    pub max_mr_size: u64,
    /// QPs that may exist.
    pub max_qp: u32,
    /// Work requests that an SQ or an RQ may hold.
    pub max_qp_wr: u32,
    /// SGEs that a work request may have.
    pub max_sge: u32,
    /// Inline bytes that a send may have.
    pub max_inline_data: u32,
    /// CQs that may exist.
    pub max_cq: u32,
    /// Completions that a CQ may hold.
    pub max_cqe: u32,
    /// Memory registrations that may exist.
    pub max_mr: u32,
    /// Protection domains that may exist.
    pub max_pd: u32,
    /// READs and atomics that a QP may have outstanding as their responder.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a QP may have outstanding as their requester.
    pub max_qp_init_rd_atom: u8,
    /// SRQs that may exist.
    pub max_srq: u32,
    /// Work requests that an SRQ may hold.
    pub max_srq_wr: u32,
    /// SGEs that a work request of an SRQ may have.
    pub max_srq_sge: u32,
    /// Memory windows that may exist.
    pub max_mw: u32,
    /// Address handles that may exist.
    pub max_ah: u32,
    /// Multicast groups that may be attached to.
    pub max_mcast_grp: u32,
    /// QPs that may be attached to one of them.
    pub max_mcast_qp_attach: u32,
    /// On-demand paging: what each transport does with memory registered for it.
    pub odp_caps: OdpCaps,
    pub num_comp_vectors: u32,
    pub phys_port_cnt: u8,
}

/// What the transports do with memory that is not pinned: the bits of
/// `ibv_odp_transport_cap_bits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OdpCaps {
    /// Reliable connection.
    pub rc: u32,
    /// Unreliable connection.
    pub uc: u32,
    /// Unreliable datagram.
    pub ud: u32,
}

impl OdpCaps {
    /// Sends from it.
    pub const SEND: u32 = 1;
    /// Receives into it.
    pub const RECV: u32 = 1 << 1;
    /// RDMA WRITEs from it and into it.
    pub const WRITE: u32 = 1 << 2;
    /// RDMA READs from it and into it.
    pub const READ: u32 = 1 << 3;
    /// Atomics on it.
    pub const ATOMIC: u32 = 1 << 4;
    /// Receives of an SRQ into it.
    pub const SRQ_RECV: u32 = 1 << 5;
}

/// State of a port: those parts of `ibv_port_attr` that RoCEv2 has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAttr {
    /// Whether it is up: `IBV_PORT_ACTIVE`, else `IBV_PORT_DOWN`.
    pub active: bool,
    /// Largest path MTU that it could have.
    pub max_mtu: PathMtu,
    /// Largest path MTU that its link carries now.
    pub active_mtu: PathMtu,
    /// Length of the GID table.
    pub gid_tbl_len: u32,
    /// Length of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Largest message, in bytes.
    pub max_msg_sz: u32,
    /// Name of the network interface that holds its address, if there is one.
    pub interface: Option<String>,
    /// Speed of the link in Mbit/s, if known; [`LinkRate`](super::LinkRate) has it in the terms of
    /// the verbs.
    pub speed_mbps: Option<u32>,
}

/// What a QP's queues hold: `ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCaps {
    /// Work requests in the SQ.
    pub max_send_wr: u32,
    /// Work requests in the RQ.
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline_data: u32,
}

/// What a shared receive queue holds, and when it warns: `ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqAttr {
    pub max_wr: u32,
    /// SGEs of each.
    pub max_sge: u32,
    /// When fewer are posted there is one `IBV_EVENT_SRQ_LIMIT_REACHED`, which disarms it. 0:
    /// disarmed.
    pub limit: u32,
}

/// A QP's present attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpQueried {
    /// Attributes; those never set are `None`, the state is always there.
    pub attr: QpAttr,
    /// What its queues hold.
    pub caps: QpCaps,
    /// Whether every send completes with a CQE.
    pub sq_sig_all: bool,
    /// In SQD: work that had begun has not ended yet.
    pub sq_draining: bool,
}
