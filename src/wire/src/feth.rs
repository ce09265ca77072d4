//! FLUSH extended transport header: how far earlier writes shall get, and which of them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------+---+-------+
//! |                     reserved                      |sel|  plt  |
//! +---------------------------------------------------+---+-------+
//! ```

/// The FLUSH extended transport header. Its reserved bits are sent as 0 and ignored on receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Selectivity level, 2 bits: 0 the range in the RETH, 1 the whole memory region.
    pub selectivity: u8,
    /// Placement types, 4 bits: 1 globally visible, 2 persistent.
    pub placement: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Feth::LEN]) -> Feth {
        Feth { selectivity: bytes[3] >> 4 & 0x3, placement: bytes[3] & 0xf }
    }

    /// Writes the header. Bits beyond the fields are dropped.
    pub fn emit(&self, bytes: &mut [u8; Feth::LEN]) {
        // WIRE-018
        *bytes = [0, 0, 0, (self.selectivity & 0x3) << 4 | self.placement & 0xf];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_means, emitted};

    #[test]
    fn every_field_at_its_place() {
        let feth = Feth { selectivity: 1, placement: 2 };
        assert_means([0, 0, 0, 0x12], feth, Feth::parse, Feth::emit);
    }

    #[test]
    fn all_ones() {
        let feth = Feth { selectivity: 3, placement: 15 };
        assert_eq!(Feth::parse(&[0xff; Feth::LEN]), feth, "reserved bits are ignored");
        assert_eq!(emitted(&feth, Feth::emit), [0, 0, 0, 0x3f]);
    }

    #[test]
    fn bits_beyond_a_field_do_not_reach_another() {
        let feth = Feth { selectivity: 0xff, placement: 0xf0 };
        assert_eq!(emitted(&feth, Feth::emit), [0, 0, 0, 0x30]);
    }
}
