//! What a queue pair is made with and what its transitions set: `ibv_qp_init_attr` and
//! `ibv_qp_attr`, taken apart by transition, so that nothing a transition requires can be
//! forgotten.

use crate::{Cq, Error, Srq};
use std::net::IpAddr;
use urxe_shm::control::{QpCaps, SrqAttr};
use urxe_types::{Access, AddressVector, PathMtu, Qkey, QpAttr, QpState, QpType};

/// What a queue pair is made with: `ibv_qp_init_attr`.
#[derive(Clone, Debug)]
pub struct QpInit<'a> {
    /// The transport. Default: reliable connection.
    pub qp_type: QpType,
    /// Where completions of the send queue go.
    pub send_cq: &'a Cq,
    /// Where completions of the receive queue go; may be the same.
    pub recv_cq: &'a Cq,
    /// Where it takes its receives from, in place of a receive queue of its own. Default: none.
    pub srq: Option<&'a Srq>,
    /// How much it shall hold, at least; [`Qp::caps`](crate::Qp::caps) tells what was granted.
    /// Default: 128 work requests on either side, 4 entries each, 64 bytes inline. With an SRQ, the
    /// two numbers of receives mean nothing.
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
        QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, signal_all: false }
    }
}

/// What a shared receive queue is made with: `ibv_srq_init_attr`.
///
/// ```
/// use urxe_verbs::SrqInit;
///
/// let init = SrqInit { max_wr: 1000, limit: 100, ..SrqInit::default() };
/// assert_eq!(init.max_sge, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Work requests that it shall hold, at least. Default: 128.
    pub max_wr: u32,
    /// Entries of each, at least. Default: 4.
    pub max_sge: u32,
    /// When fewer work requests than this are left,
    /// [`AsyncEvent::SrqLimit`](crate::AsyncEvent::SrqLimit) says so, once. Default: 0, never.
    pub limit: u32,
}

impl Default for SrqInit {
    fn default() -> Self {
        SrqInit { max_wr: 128, max_sge: 4, limit: 0 }
    }
}

impl From<SrqInit> for SrqAttr {
    fn from(init: SrqInit) -> SrqAttr {
        SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge, limit: init.limit }
    }
}

/// What RESET → INIT sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// RC and UC: what the peer may do through this queue pair, where the memory region allows it
    /// too.
    pub access: Access,
    /// UD: what a datagram must carry to be received here. Those from 0x8000_0000 on are for
    /// programs of root (`EPERM`).
    pub qkey: u32,
    /// Index into the P_Key table. Default 0, the only one there is.
    pub pkey_index: u16,
    /// Port number. Default 1, the only one there is.
    pub port: u8,
}

impl InitAttr {
    /// RC and UC: gives the peer these rights.
    pub fn new(access: Access) -> Self {
        InitAttr { access, qkey: 0, pkey_index: 0, port: 1 }
    }

    /// UD: takes datagrams with this Q_Key.
    pub fn datagram(qkey: u32) -> Self {
        InitAttr { qkey, ..InitAttr::new(Access::default()) }
    }

    /// The attributes that this transport has.
    pub(crate) fn of(self, qp_type: QpType) -> QpAttr {
        let is_datagram = qp_type == QpType::Ud;
        QpAttr {
            state: Some(QpState::Init),
            access: (!is_datagram).then_some(self.access),
            qkey: is_datagram.then_some(Qkey(self.qkey)),
            pkey_index: Some(self.pkey_index),
            port: Some(self.port),
            ..QpAttr::default()
        }
    }
}

/// What INIT → RTR sets on RC and UC: everything that the responder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair number.
    pub dest_qpn: u32,
    /// First PSN that the peer will send.
    pub rq_psn: u32,
    /// The path to the peer. Default: to its GID, from our GID 0, hop limit 64, traffic class and
    /// flow label 0.
    pub av: AddressVector,
    /// Largest payload of a packet, the same at both ends. Default `None`: the port's active MTU.
    pub path_mtu: Option<PathMtu>,
    /// RC: READs and atomics of the peer that are served at a time; the peer's
    /// [`RtsAttr::max_rd_atomic`] must not be larger. Default 16.
    pub max_dest_rd_atomic: u8,
    /// RC: how long the peer shall wait when it finds no receive posted, as a code from 0 to 31.
    /// Default 12: 0.64 ms.
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    /// Takes requests of queue pair `dest_qpn` at `dgid`, from `rq_psn` on.
    pub fn new(dest_qpn: u32, rq_psn: u32, dgid: IpAddr) -> Self {
        RtrAttr {
            dest_qpn,
            rq_psn,
            av: AddressVector::to(dgid),
            path_mtu: None,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
        }
    }

    /// The attributes that this transport has.
    pub(crate) fn of(self, qp_type: QpType) -> Result<QpAttr, Error> {
        let is_reliable = qp_type == QpType::Rc;
        Ok(QpAttr {
            state: Some(QpState::Rtr),
            dest_qpn: Some(within_24_bits("dest_qpn", self.dest_qpn)?),
            rq_psn: Some(within_24_bits("rq_psn", self.rq_psn)?),
            av: Some(self.av),
            path_mtu: self.path_mtu,
            max_dest_rd_atomic: is_reliable.then_some(self.max_dest_rd_atomic),
            min_rnr_timer: is_reliable.then_some(self.min_rnr_timer),
            ..QpAttr::default()
        })
    }
}

/// What RTR → RTS sets: everything that the requester needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// First PSN that we send. On RC and UC the peer must have it as its [`RtrAttr::rq_psn`].
    pub sq_psn: u32,
    /// RC: how long to wait for an acknowledgement, as a code from 0 to 31: 4.096 us << code, but
    /// no less than 4 ms or, within bounds, four round trips; 0 waits for ever. Default 14: 67 ms.
    pub timeout: u8,
    /// RC: tries after a timeout or a gap, 0 to 7. Default 7.
    pub retry_cnt: u8,
    /// RC: tries when the peer has no receive posted, 0 to 6; 7, the default, tries for ever.
    pub rnr_retry: u8,
    /// RC: READs and atomics that may be under way at a time. Default 16.
    pub max_rd_atomic: u8,
}

impl RtsAttr {
    /// Sends from `sq_psn` on.
    pub fn new(sq_psn: u32) -> Self {
        RtsAttr { sq_psn, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }

    /// The attributes that this transport has.
    pub(crate) fn of(self, qp_type: QpType) -> Result<QpAttr, Error> {
        let reliable = |value: u8| (qp_type == QpType::Rc).then_some(value);
        Ok(QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(within_24_bits("sq_psn", self.sq_psn)?),
            timeout: reliable(self.timeout),
            retry_cnt: reliable(self.retry_cnt),
            rnr_retry: reliable(self.rnr_retry),
            max_rd_atomic: reliable(self.max_rd_atomic),
            ..QpAttr::default()
        })
    }
}

/// A QPN or PSN that a program has of a peer.
fn within_24_bits<T: TryFrom<u32>>(name: &'static str, value: u32) -> Result<T, Error> {
    T::try_from(value)
        .map_err(|_| Error::invalid(name, format!("{value:#x}"), "a number of 24 bits"))
}
