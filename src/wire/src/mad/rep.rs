//! REP: accepts a REQ.
//!
//! EECN belongs to reliable datagrams, which nothing has: it is ignored, and sent as 0.

use super::CommId;
use super::layout::{at, bits, message};
use std::fmt;
use urxe_types::{Psn, Qkey, Qpn, TimeCode};

message! {
    /// An acceptance. "Local" is the sender, the one that was asked.
    Rep {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it, from the REQ.
        remote_comm_id: CommId = at(4),
        /// Q_Key of the sender's QP, where it has one.
        local_qkey: Qkey = at(8),
        /// The sender's QP.
        local_qpn: Qpn = at(12),
        /// First PSN that the receiver's requester is to use.
        starting_psn: Psn = at(20),
        /// READs and atomics that the sender's responder takes at a time.
        responder_resources: u8 = at(24),
        /// READs and atomics that the sender's requester wants to have outstanding.
        initiator_depth: u8 = at(25),
        /// How long the sender may take for an ACK.
        target_ack_delay: TimeCode = bits(26, 0..5),
        /// What became of the alternate path, 2 bits; 0 says that it was accepted.
        failover: u8 = bits(26, 5..7),
        /// The sender has end-to-end flow control; without it, its ACKs tell no credits.
        flow_control: bool = bits(26, 7..8),
        /// Tries after an RNR NAK, 3 bits.
        rnr_retry_count: u8 = bits(27, 0..3),
        /// The sender's QP receives from an SRQ.
        srq: bool = bits(27, 3..4),
        /// Which adapter the sender is.
        local_ca_guid: u64 = at(28),
        ..private_data = at(36),
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rep { local_comm_id, remote_comm_id, local_qpn, starting_psn, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} qp {local_qpn} psn {starting_psn}")
    }
}
