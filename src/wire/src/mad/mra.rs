//! MRA: "your message has come, its answer takes more time".
//!
//! ```text
//!   0  local communication ID               8  message received (2 bits)
//!   4  remote communication ID              9  service timeout (5 bits)
//!                                          10  private data (222)
//! ```

use super::CommId;
use super::body::Body;
use std::fmt;
use urxe_types::TimeCode;

/// What an MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP.
    Lap,
    /// The code that means nothing, 3.
    Reserved,
}

/// A message receipt acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it.
    pub remote_comm_id: CommId,
    /// What was received.
    pub received: Received,
    /// How much longer the answer takes.
    pub service_timeout: TimeCode,
    /// What the service makes of it.
    pub private_data: [u8; Mra::PRIVATE_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 222;

    pub(super) fn parse(body: &Body) -> Mra {
        Mra {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            received: match body.bits(8, 0, 2) {
                0 => Received::Req,
                1 => Received::Rep,
                2 => Received::Lap,
                _ => Received::Reserved,
            },
            service_timeout: TimeCode::new(body.bits(9, 0, 5)),
            private_data: body.bytes(10),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_bits(8, 0, 2, self.received as u8);
        body.put_bits(9, 0, 5, self.service_timeout.code());
        body.put(10, &self.private_data);
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mra { local_comm_id, remote_comm_id, received, service_timeout, .. } = self;
        let time = service_timeout.duration();
        write!(f, "id {local_comm_id} peer {remote_comm_id} of {received:?}, {time:?} more")
    }
}
