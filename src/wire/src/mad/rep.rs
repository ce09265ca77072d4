//! REP: accepts a REQ.
//!
//! ```text
//!   0  local communication ID              24  responder resources
//!   4  remote communication ID             25  initiator depth
//!   8  local Q_Key                         26  target ACK delay (5 bits), failover accepted (2),
//!  12  local QPN (3)                           flow control (1)
//!  16  local EECN (3)                      27  RNR retry count (3 bits), SRQ (1)
//!  20  starting PSN (3)                    28  local CA GUID (8)
//!                                          36  private data (196)
//! ```
//!
//! EECN belongs to reliable datagrams, which nothing has: it is ignored, and sent as 0.

use super::CommId;
use super::body::Body;
use std::fmt;
use urxe_types::{Psn, Qkey, Qpn, TimeCode};

/// An acceptance. "Local" is the sender, the one that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it, from the REQ.
    pub remote_comm_id: CommId,
    /// Q_Key of the sender's QP, where it has one.
    pub local_qkey: Qkey,
    /// The sender's QP.
    pub local_qpn: Qpn,
    /// First PSN that the receiver's requester is to use.
    pub starting_psn: Psn,
    /// READs and atomics that the sender's responder takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender's requester wants to have outstanding.
    pub initiator_depth: u8,
    /// How long the sender may take for an ACK.
    pub target_ack_delay: TimeCode,
    /// What became of the alternate path, 2 bits; 0 says that it was accepted.
    pub failover: u8,
    /// The sender's requester obeys credits.
    pub flow_control: bool,
    /// Tries after an RNR NAK, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's QP receives from an SRQ.
    pub srq: bool,
    /// Which adapter the sender is.
    pub local_ca_guid: u64,
    /// What the service makes of it.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;

    pub(super) fn parse(body: &Body) -> Rep {
        Rep {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            local_qkey: Qkey(body.u32(8)),
            local_qpn: Qpn::new(body.u24(12)),
            starting_psn: Psn::new(body.u24(20)),
            responder_resources: body.u8(24),
            initiator_depth: body.u8(25),
            target_ack_delay: TimeCode::new(body.bits(26, 0, 5)),
            failover: body.bits(26, 5, 2),
            flow_control: body.flag(26, 7),
            rnr_retry_count: body.bits(27, 0, 3),
            srq: body.flag(27, 3),
            local_ca_guid: body.u64(28),
            private_data: body.bytes(36),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_u32(8, self.local_qkey.0);
        body.put_u24(12, self.local_qpn.get());
        body.put_u24(20, self.starting_psn.get());
        body.put_u8(24, self.responder_resources);
        body.put_u8(25, self.initiator_depth);
        body.put_bits(26, 0, 5, self.target_ack_delay.code());
        body.put_bits(26, 5, 2, self.failover);
        body.put_flag(26, 7, self.flow_control);
        body.put_bits(27, 0, 3, self.rnr_retry_count);
        body.put_flag(27, 3, self.srq);
        body.put_u64(28, self.local_ca_guid);
        body.put(36, &self.private_data);
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rep { local_comm_id, remote_comm_id, local_qpn, starting_psn, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} qp {local_qpn} psn {starting_psn}")
    }
}
