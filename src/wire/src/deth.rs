//! Datagram extended transport header: in every UD packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             Q_Key                             |  0
//! +---------------+-----------------------------------------------+
//! |   reserved    |                   source QP                   |  4
//! +---------------+-----------------------------------------------+
//! ```

use crate::{Qkey, Qpn, u24};

/// The datagram extended transport header. Its reserved byte is sent as 0 and ignored on receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must be the receiving QP's, or the datagram is dropped.
    pub qkey: Qkey,
    /// The QP that sent it: where an answer goes.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Deth::LEN]) -> Deth {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Deth {
            qkey: Qkey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u24::read([q0, q1, q2])),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Deth::LEN]) {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [q0, q1, q2] = u24::write(self.src_qp.get());
        *bytes = [k0, k1, k2, k3, 0, q0, q1, q2];
    }
}
