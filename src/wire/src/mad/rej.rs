//! REJ: refuses or gives up a connection.
//!
//! ```text
//!   0  local communication ID               9  length of the ARI (7 bits)
//!   4  remote communication ID             10  reason (2)
//!   8  message rejected (2 bits)           12  additional rejection information, ARI (72)
//!                                          84  private data (148)
//! ```

use super::body::Body;
use super::{CommId, Reason};
use std::fmt;

/// What a REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// No message: the sender gives up waiting.
    Nothing,
    /// The code that means nothing, 3.
    Reserved,
}

/// A rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's number of the connection; none if it never gave one.
    pub local_comm_id: CommId,
    /// The receiver's number of it; none if the sender does not know it.
    pub remote_comm_id: CommId,
    /// What is rejected.
    pub rejected: Rejected,
    /// Why.
    pub reason: Reason,
    /// What belongs to the reason.
    pub ari: Ari,
    /// What the service makes of it.
    pub private_data: [u8; Rej::PRIVATE_LEN],
}

/// Additional rejection information: what it means depends on the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ari {
    /// How many of the bytes mean something, 7 bits; a peer may claim more than there are.
    pub len: u8,
    /// The bytes.
    pub bytes: [u8; Ari::LEN],
}

impl Ari {
    /// Most bytes of it.
    pub const LEN: usize = 72;

    /// Nothing more to say.
    pub const NONE: Ari = Ari { len: 0, bytes: [0; Ari::LEN] };

    /// The GUID of the sender: what [`Reason::Timeout`] comes with.
    pub fn guid(guid: u64) -> Ari {
        Ari::of(&guid.to_be_bytes())
    }

    /// The largest path MTU that would be taken, by its code: what [`Reason::InvalidPathMtu`]
    /// comes with.
    pub fn path_mtu(code: u8) -> Ari {
        Ari::of(&[code << 4])
    }

    fn of(information: &[u8]) -> Ari {
        let mut ari = Ari { len: information.len() as u8, ..Ari::NONE };
        ari.bytes[..information.len()].copy_from_slice(information);
        ari
    }

    /// The bytes that mean something.
    pub fn information(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(Ari::LEN)]
    }
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;

    pub(super) fn parse(body: &Body) -> Rej {
        Rej {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            rejected: match body.bits(8, 0, 2) {
                0 => Rejected::Req,
                1 => Rejected::Rep,
                2 => Rejected::Nothing,
                _ => Rejected::Reserved,
            },
            ari: Ari { len: body.bits(9, 0, 7), bytes: body.bytes(12) },
            reason: Reason::from_code(body.u16(10)),
            private_data: body.bytes(84),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_bits(8, 0, 2, self.rejected as u8);
        body.put_bits(9, 0, 7, self.ari.len);
        body.put_u16(10, self.reason.code());
        body.put(12, &self.ari.bytes);
        body.put(84, &self.private_data);
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rej { local_comm_id, remote_comm_id, rejected, reason, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} of {rejected:?}: {reason}")
    }
}
