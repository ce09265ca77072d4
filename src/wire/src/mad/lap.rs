//! LAP: asks for another alternate path.

use super::layout::{at, bits, message};
use super::path::LapPath;
use super::{CmPath, CommId};
use std::fmt;
use urxe_types::{Qpn, TimeCode};

message! {
    /// A request to load an alternate path.
    Lap {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        /// The receiver's QP.
        remote_qpn: Qpn = at(12),
        /// In which time the receiver shall answer.
        remote_response_timeout: TimeCode = bits(15, 0..5),
        /// The path.
        alternate: CmPath = LapPath { byte: 20 },
        ..private_data = at(64),
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} peer {}", self.local_comm_id, self.remote_comm_id)
    }
}
