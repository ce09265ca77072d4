//! What two programs tell each other of their queue pairs.

use crate::{Qkey, Qp};
use urxe_shm::control::CmConnParam;

/// The Q_Key of datagrams whose queue pairs meet through the connection manager, unless a server
/// says otherwise, and of multicast groups: `RDMA_UDP_QKEY`.
pub const UDP_QKEY: u32 = 0x0123_4567;

/// What a program says when it connects or accepts: `rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// READs and atomics of the peer that are served at a time. Default 16; an acceptance never
    /// says more than the peer wants.
    pub responder_resources: u8,
    /// READs and atomics of our own that may be under way at a time. Default 16; an acceptance
    /// never says more than the peer serves.
    pub initiator_depth: u8,
    /// Who connects decides for both: tries after a timeout or a gap, 0 to 7. Default 7.
    pub retry_count: u8,
    /// Tries of the peer when we have no receive posted, 0 to 6; 7, the default, tries for ever.
    pub rnr_retry_count: u8,
    /// What the peer's program is told: at most 56 bytes with a request, 196 with an acceptance.
    /// What came from a peer has the length that the message has room for, with zeroes behind what
    /// its program said.
    pub private_data: Vec<u8>,
}

impl Default for ConnParam {
    fn default() -> Self {
        ConnParam {
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: Vec::new(),
        }
    }
}

impl ConnParam {
    /// With what is to be said of the queue pair.
    pub(super) fn of(&self, qp: &Qp) -> CmConnParam {
        CmConnParam {
            qpn: qp.qpn(),
            qkey: Qkey(0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: false,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: qp.srq().is_some(),
            private_data: self.private_data.clone(),
        }
    }

    /// What the peer said, turned around: what it wants to have outstanding is what our responder
    /// shall serve.
    pub(super) fn from_peer(param: CmConnParam) -> ConnParam {
        ConnParam {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            private_data: param.private_data,
        }
    }

    /// An answer that promises and wants no more than was asked for.
    pub(super) fn within(&self, offered: &ConnParam) -> ConnParam {
        ConnParam {
            responder_resources: self.responder_resources.min(offered.responder_resources),
            initiator_depth: self.initiator_depth.min(offered.initiator_depth),
            ..self.clone()
        }
    }
}
