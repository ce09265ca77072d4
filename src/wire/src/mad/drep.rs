//! DREP: the answer to a DREQ.

use super::CommId;
use super::layout::{at, message};
use std::fmt;

message! {
    /// A confirmation that the connection has ended.
    Drep {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        ..private_data = at(8),
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} peer {}", self.local_comm_id, self.remote_comm_id)
    }
}
