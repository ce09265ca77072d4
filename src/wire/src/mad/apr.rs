//! APR: the answer to a LAP.

use super::CommId;
use super::layout::{at, codes, message};
use std::fmt;

message! {
    /// What becomes of an alternate path.
    Apr {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        /// How many bytes of the information mean something; a peer may claim more than there are.
        information_len: u8 = at(8),
        /// Whether the path was taken, and why not.
        status: AprStatus = at(9),
        /// What belongs to the status.
        information: [u8; Apr::INFORMATION_LEN] = at(12),
        ..private_data = at(84),
    }
}

codes! {
    /// The status of an APR, as far as it matters to somebody who takes no alternate paths.
    pub enum AprStatus {
        /// The path was taken.
        Taken = 0,
        /// There is no connection of this number.
        InvalidCommId = 1,
        /// Alternate paths are not supported.
        Unsupported = 2,
    }
}

impl Apr {
    /// Most bytes of additional information.
    pub const INFORMATION_LEN: usize = 72;
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Apr { local_comm_id, remote_comm_id, status, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id}: {status:?}")
    }
}
