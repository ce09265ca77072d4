//! Invalidate extended transport header: the rkey that a SEND takes back.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             rkey                              |
//! +---------------------------------------------------------------+
//! ```

use urxe_types::Rkey;

/// The invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The responder's key that becomes invalid.
    pub rkey: Rkey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Ieth::LEN]) -> Ieth {
        // WIRE-019
        Ieth { rkey: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Ieth::LEN]) {
        *bytes = self.rkey.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;

    #[test]
    fn four_bytes_in_network_order() {
        let ieth = Ieth { rkey: Rkey(0x0a0b_0c0d) };
        assert_means([0x0a, 0x0b, 0x0c, 0x0d], ieth, Ieth::parse, Ieth::emit);
    }
}
