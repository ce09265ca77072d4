//! FLUSH extended transport header: how far earlier writes shall get, and which of them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------+---+-------+
//! |                     reserved                      |sel|  plt  |
//! +---------------------------------------------------+---+-------+
//! ```

use std::fmt;
use urxe_types::{FlushPlacement, FlushSelectivity};

/// The FLUSH extended transport header. Its reserved bits are sent as 0 and ignored on receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Selectivity level, 2 bits: which writes.
    pub selectivity: FlushSelectivity,
    /// Placement types, 4 bits: how far they shall get.
    pub placement: FlushPlacement,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Feth::LEN]) -> Feth {
        Feth {
            selectivity: FlushSelectivity::from_code(bytes[3] >> 4 & 0x3),
            placement: FlushPlacement::from_bits_retain(bytes[3] & 0xf),
        }
    }

    /// Writes the header. Bits beyond the fields are dropped.
    pub fn emit(&self) -> [u8; Feth::LEN] {
        // WIRE-018
        [0, 0, 0, (self.selectivity.code() & 0x3) << 4 | self.placement.bits() & 0xf]
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (selectivity, placement) = (self.selectivity.code(), self.placement.bits());
        write!(f, " selectivity {selectivity} placement {placement}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;

    fn feth(selectivity: u8, placement: u8) -> Feth {
        Feth {
            selectivity: FlushSelectivity::from_code(selectivity),
            placement: FlushPlacement::from_bits_retain(placement),
        }
    }

    #[test]
    fn every_field_at_its_place() {
        let feth =
            Feth { selectivity: FlushSelectivity::Mr, placement: FlushPlacement::PERSISTENT };
        assert_means([0, 0, 0, 0x12], feth, Feth::parse, Feth::emit);
    }

    #[test]
    fn all_ones() {
        let feth = feth(3, 15);
        assert_eq!(Feth::parse(&[0xff; Feth::LEN]), feth, "reserved bits are ignored");
        assert_eq!(feth.emit(), [0, 0, 0, 0x3f]);
    }

    #[test]
    fn bits_beyond_a_field_do_not_reach_another() {
        assert_eq!(feth(0xff, 0xf0).emit(), [0, 0, 0, 0x30]);
    }
}
