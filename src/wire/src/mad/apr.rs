//! APR: the answer to a LAP.
//!
//! ```text
//!   0  local communication ID               9  status
//!   4  remote communication ID             12  additional information (72)
//!   8  length of the additional info       84  private data (148)
//! ```

use super::CommId;
use super::body::Body;
use std::fmt;

/// What becomes of an alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apr {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it.
    pub remote_comm_id: CommId,
    /// Whether the path was taken, and why not.
    pub status: AprStatus,
    /// How many bytes of the information mean something; a peer may claim more than there are.
    pub information_len: u8,
    /// What belongs to the status.
    pub information: [u8; Apr::INFORMATION_LEN],
    /// What the service makes of it.
    pub private_data: [u8; Apr::PRIVATE_LEN],
}

/// The status of an APR, as far as it matters to somebody who takes no alternate paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AprStatus {
    /// The path was taken.
    Taken,
    /// There is no connection of this number.
    InvalidCommId,
    /// Alternate paths are not supported.
    Unsupported,
    /// Something else.
    Other(u8),
}

impl AprStatus {
    /// The status of a code.
    pub const fn from_code(code: u8) -> AprStatus {
        match code {
            0 => AprStatus::Taken,
            1 => AprStatus::InvalidCommId,
            2 => AprStatus::Unsupported,
            other => AprStatus::Other(other),
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            AprStatus::Taken => 0,
            AprStatus::InvalidCommId => 1,
            AprStatus::Unsupported => 2,
            AprStatus::Other(code) => code,
        }
    }
}

impl Apr {
    /// Most bytes of additional information.
    pub const INFORMATION_LEN: usize = 72;

    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;

    pub(super) fn parse(body: &Body) -> Apr {
        Apr {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            information_len: body.u8(8),
            status: AprStatus::from_code(body.u8(9)),
            information: body.bytes(12),
            private_data: body.bytes(84),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_u8(8, self.information_len);
        body.put_u8(9, self.status.code());
        body.put(12, &self.information);
        body.put(84, &self.private_data);
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Apr { local_comm_id, remote_comm_id, status, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id}: {status:?}")
    }
}
