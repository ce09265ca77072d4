//! What a queue pair is made with and what its transitions set: `ibv_qp_init_attr` and
//! `ibv_qp_attr`, taken apart by transition, so that nothing a transition requires can be
//! forgotten.

use crate::Cq;
use std::net::IpAddr;
use urxe_shm::control::{Access, AddressVector, Gid, QpAttr, QpCaps, QpState, QpType};

/// What a queue pair is made with: `ibv_qp_init_attr`.
#[derive(Clone, Debug)]
pub struct QpInit<'a> {
    /// The transport. Default: reliable connection.
    pub qp_type: QpType,
    /// Where completions of the send queue go.
    pub send_cq: &'a Cq,
    /// Where completions of the receive queue go; may be the same.
    pub recv_cq: &'a Cq,
    /// How much it shall hold, at least; [`Qp::caps`](crate::Qp::caps) tells what was granted.
    /// Default: 128 work requests on either side, 4 entries each, 64 bytes inline.
    pub caps: QpCaps,
    /// Whether every send work request makes a completion, as if it were
    /// [`signaled`](crate::SendWr::signaled): `sq_sig_all`. Default: no.
    pub signal_all: bool,
}

impl<'a> QpInit<'a> {
    /// Both queues complete to `cq`; everything else by default.
    pub fn new(cq: &'a Cq) -> Self {
        let caps = QpCaps {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, caps, signal_all: false }
    }
}

/// What RESET → INIT sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// What the peer may do through this queue pair, where the memory region allows it too.
    pub access: Access,
    /// Index into the P_Key table. Default 0, the only one there is.
    pub pkey_index: u16,
    /// Port number. Default 1, the only one there is.
    pub port: u8,
}

impl InitAttr {
    /// Gives the peer these rights.
    pub fn new(access: Access) -> Self {
        InitAttr { access, pkey_index: 0, port: 1 }
    }
}

impl From<InitAttr> for QpAttr {
    fn from(attr: InitAttr) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            access: Some(attr.access),
            pkey_index: Some(attr.pkey_index),
            port: Some(attr.port),
            ..QpAttr::default()
        }
    }
}

/// What INIT → RTR sets: everything that the responder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair number.
    pub dest_qpn: u32,
    /// First PSN that the peer will send.
    pub rq_psn: u32,
    /// The path to the peer. Default: to its GID, from our GID 0, hop limit 64, traffic class and
    /// flow label 0.
    pub av: AddressVector,
    /// Largest payload of a packet in bytes, the same at both ends: 256, 512, 1,024, 2,048 or
    /// 4,096. Default `None`: the port's active MTU.
    pub path_mtu: Option<u16>,
    /// READs and atomics of the peer that are served at a time; the peer's
    /// [`RtsAttr::max_rd_atomic`] must not be larger. Default 16.
    pub max_dest_rd_atomic: u8,
    /// How long the peer shall wait when it finds no receive posted, as a code from 0 to 31.
    /// Default 12: 0.64 ms.
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    /// Takes requests of queue pair `dest_qpn` at `dgid`, from `rq_psn` on.
    pub fn new(dest_qpn: u32, rq_psn: u32, dgid: IpAddr) -> Self {
        let av = AddressVector {
            dgid: Gid::from(dgid),
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        RtrAttr { dest_qpn, rq_psn, av, path_mtu: None, max_dest_rd_atomic: 16, min_rnr_timer: 12 }
    }
}

impl From<RtrAttr> for QpAttr {
    fn from(attr: RtrAttr) -> QpAttr {
        QpAttr {
            state: Some(QpState::Rtr),
            dest_qpn: Some(attr.dest_qpn),
            rq_psn: Some(attr.rq_psn),
            av: Some(attr.av),
            path_mtu: attr.path_mtu,
            max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            min_rnr_timer: Some(attr.min_rnr_timer),
            ..QpAttr::default()
        }
    }
}

/// What RTR → RTS sets: everything that the requester needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// First PSN that we send; the peer must have it as its [`RtrAttr::rq_psn`].
    pub sq_psn: u32,
    /// How long to wait for an acknowledgement, as a code from 0 to 31: 4.096 us << code; 0 waits
    /// for ever. Default 14: 67 ms.
    pub timeout: u8,
    /// Tries after a timeout or a gap, 0 to 7. Default 7.
    pub retry_cnt: u8,
    /// Tries when the peer has no receive posted, 0 to 6; 7, the default, tries for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be under way at a time. Default 16.
    pub max_rd_atomic: u8,
}

impl RtsAttr {
    /// Sends from `sq_psn` on.
    pub fn new(sq_psn: u32) -> Self {
        RtsAttr { sq_psn, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }
}

impl From<RtsAttr> for QpAttr {
    fn from(attr: RtsAttr) -> QpAttr {
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(attr.sq_psn),
            timeout: Some(attr.timeout),
            retry_cnt: Some(attr.retry_cnt),
            rnr_retry: Some(attr.rnr_retry),
            max_rd_atomic: Some(attr.max_rd_atomic),
            ..QpAttr::default()
        }
    }
}

/// A state as verbs spells it.
pub(crate) const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}
