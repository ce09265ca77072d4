//! REJ: refuses or gives up a connection.

use super::layout::{at, bits, fields, message, numbers};
use super::{CommId, Reason};
use std::fmt;
use urxe_types::PathMtu;

/// What a REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    Req,
    Rep,
    /// No message: the sender gives up waiting.
    Nothing,
    /// The code that means nothing, 3.
    Reserved,
}

numbers! {
    Rejected: 2, |code| {
        use Rejected::{Nothing, Rep, Req, Reserved};
        [Req, Rep, Nothing, Reserved][code as usize]
    }, |rejected| rejected as u128;
}

message! {
    /// A rejection.
    Rej {
        /// The sender's number of the connection; none if it never gave one.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it; none if the sender does not know it.
        remote_comm_id: CommId = at(4),
        /// What is rejected.
        rejected: Rejected = bits(8, 0..2),
        /// What belongs to the reason.
        ari: Ari = at(9),
        /// Why.
        reason: Reason = at(10),
        ..private_data = at(84),
    }
}

fields! {
    /// Additional rejection information: what it means depends on the reason, which stands between
    /// its length and its bytes.
    pub struct Ari {
        /// How many of the bytes mean something, 7 bits; a peer may claim more than there are.
        len: u8 = bits(0, 0..7),
        /// The bytes.
        bytes: [u8; Ari::LEN] = at(3),
    }
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

    /// The largest path MTU that would be taken: what [`Reason::InvalidPathMtu`] comes with.
    pub fn path_mtu(largest: PathMtu) -> Ari {
        Ari::of(&[largest.code() << 4])
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

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rej { local_comm_id, remote_comm_id, rejected, reason, .. } = self;
        write!(f, "id {local_comm_id} peer {remote_comm_id} of {rejected:?}: {reason}")
    }
}
