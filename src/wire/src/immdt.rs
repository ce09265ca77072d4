//! Immediate data: four bytes that go straight into the receiver's completion.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                        immediate data                         |
//! +---------------------------------------------------------------+
//! ```

/// Immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The four bytes as a big-endian number, which is how `ibv_wc.imm_data` reads.
    pub data: u32,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; ImmDt::LEN]) -> ImmDt {
        // WIRE-019
        ImmDt { data: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; ImmDt::LEN]) {
        *bytes = self.data.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;

    #[test]
    fn four_bytes_in_network_order() {
        let imm = ImmDt { data: 0x0a0b_0c0d };
        assert_means([0x0a, 0x0b, 0x0c, 0x0d], imm, ImmDt::parse, ImmDt::emit);
    }
}
