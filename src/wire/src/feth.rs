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
    /// Placement type, 4 bits: 1 globally visible, 2 persistent.
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
        *bytes = [0, 0, 0, (self.selectivity & 0x3) << 4 | self.placement & 0xf];
    }
}
