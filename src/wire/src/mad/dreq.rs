//! DREQ: ends a connection.
//!
//! ```text
//!   0  local communication ID               8  QPN of the receiver (3)
//!   4  remote communication ID             12  private data (220)
//! ```

use super::CommId;
use super::body::Body;
use std::fmt;
use urxe_types::Qpn;

/// A request to disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it.
    pub remote_comm_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// What the service makes of it.
    pub private_data: [u8; Dreq::PRIVATE_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;

    pub(super) fn parse(body: &Body) -> Dreq {
        Dreq {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            remote_qpn: Qpn::new(body.u24(8)),
            private_data: body.bytes(12),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_u24(8, self.remote_qpn.get());
        body.put(12, &self.private_data);
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dreq { local_comm_id, remote_comm_id, remote_qpn, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} qp {remote_qpn}")
    }
}
