//! Invalidate extended transport header: the rkey that a SEND takes back.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             rkey                              |
//! +---------------------------------------------------------------+
//! ```

use std::fmt;
use urxe_types::Rkey;

/// The invalidate extended transport header: the responder's key that becomes invalid.
pub(crate) struct Ieth;

impl Ieth {
    pub(crate) const LEN: usize = 4;

    pub(crate) fn parse(bytes: &[u8; Ieth::LEN]) -> Rkey {
        // WIRE-019
        Rkey(u32::from_be_bytes(*bytes))
    }

    pub(crate) fn emit(rkey: &Rkey) -> [u8; Ieth::LEN] {
        rkey.0.to_be_bytes()
    }

    pub(crate) fn show(rkey: &Rkey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " invalidates {rkey}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;

    #[test]
    fn four_bytes_in_network_order() {
        let rkey = Rkey(0x0a0b_0c0d);
        assert_means([0x0a, 0x0b, 0x0c, 0x0d], rkey, Ieth::parse, Ieth::emit);
    }
}
