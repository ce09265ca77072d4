//! Immediate data: four bytes that go straight into the receiver's completion.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                        immediate data                         |
//! +---------------------------------------------------------------+
//! ```

use std::fmt;

/// Immediate data: the four bytes as a big-endian number, which is how `ibv_wc.imm_data` reads.
pub(crate) struct ImmDt;

impl ImmDt {
    pub(crate) const LEN: usize = 4;

    pub(crate) fn parse(bytes: &[u8; ImmDt::LEN]) -> u32 {
        // WIRE-019
        u32::from_be_bytes(*bytes)
    }

    pub(crate) fn emit(imm: &u32) -> [u8; ImmDt::LEN] {
        imm.to_be_bytes()
    }

    pub(crate) fn show(imm: &u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " imm {imm:#010x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;

    #[test]
    fn four_bytes_in_network_order() {
        assert_means([0x0a, 0x0b, 0x0c, 0x0d], 0x0a0b_0c0d, ImmDt::parse, ImmDt::emit);
    }
}
