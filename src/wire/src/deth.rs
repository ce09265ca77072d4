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

use crate::u24;
use std::fmt;
use urxe_types::{Qkey, Qpn};

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
        // WIRE-017
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Deth {
            qkey: Qkey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u24::read([q0, q1, q2])),
        }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Deth::LEN] {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [q0, q1, q2] = u24::write(self.src_qp.get());
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deth { qkey, src_qp } = self;
        write!(f, " from qp {src_qp} qkey {qkey}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;
    use proptest::prelude::*;

    #[test]
    fn every_field_at_its_place() {
        assert_means(
            [0x80, 0x01, 0x00, 0x02, 0, 0xab, 0xcd, 0xef],
            Deth { qkey: Qkey(0x8001_0002), src_qp: Qpn::new(0xabcdef) },
            Deth::parse,
            Deth::emit,
        );
    }

    #[test]
    fn all_ones() {
        let deth = Deth { qkey: Qkey(u32::MAX), src_qp: Qpn::MULTICAST };
        assert_eq!(Deth::parse(&[0xff; Deth::LEN]), deth, "the reserved byte is ignored");
        assert_eq!(deth.emit(), [255, 255, 255, 255, 0, 255, 255, 255]);
    }

    proptest! {
        #[test]
        fn nothing_but_the_reserved_byte_is_lost(mut bytes: [u8; Deth::LEN]) {
            let deth = Deth::parse(&bytes);
            bytes[4] = 0;
            prop_assert_eq!(deth.emit(), bytes);
        }
    }
}
