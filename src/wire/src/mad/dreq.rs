//! DREQ: ends a connection.

use super::CommId;
use super::layout::{at, message};
use std::fmt;
use urxe_types::Qpn;

message! {
    /// A request to disconnect.
    Dreq {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        /// The receiver's QP.
        remote_qpn: Qpn = at(8),
        ..private_data = at(12),
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dreq { local_comm_id, remote_comm_id, remote_qpn, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} qp {remote_qpn}")
    }
}
