//! DREP: the answer to a DREQ.
//!
//! ```text
//!   0  local communication ID               8  private data (224)
//!   4  remote communication ID
//! ```

use super::CommId;
use super::body::Body;
use std::fmt;

/// A confirmation that the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it.
    pub remote_comm_id: CommId,
    /// What the service makes of it.
    pub private_data: [u8; Drep::PRIVATE_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;

    pub(super) fn parse(body: &Body) -> Drep {
        Drep {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            private_data: body.bytes(8),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put(8, &self.private_data);
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} peer {}", self.local_comm_id, self.remote_comm_id)
    }
}
