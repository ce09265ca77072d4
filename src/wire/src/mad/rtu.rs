//! RTU: the answer to a REP, "ready to use".

use super::CommId;
use super::layout::{at, message};
use std::fmt;

message! {
    /// A confirmation that the REP has come.
    Rtu {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        ..private_data = at(8),
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} peer {}", self.local_comm_id, self.remote_comm_id)
    }
}
