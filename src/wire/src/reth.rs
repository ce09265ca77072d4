//! RDMA extended transport header: where in the responder's memory, and how much.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                                                               |  0
//! +                        virtual address                        +
//! |                                                               |  4
//! +---------------------------------------------------------------+
//! |                             rkey                              |  8
//! +---------------------------------------------------------------+
//! |                          DMA length                           | 12
//! +---------------------------------------------------------------+
//! ```

use std::fmt;
use urxe_types::Rkey;

/// The RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address at the responder, in the terms of the memory region's `iova`.
    pub va: u64,
    /// Names the memory region or window.
    pub rkey: Rkey,
    /// Length of the whole message in bytes, not of this packet; at most 2^31.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Reth::LEN]) -> Reth {
        // WIRE-014
        let word = u128::from_be_bytes(*bytes);
        Reth { va: (word >> 64) as u64, rkey: Rkey((word >> 32) as u32), len: word as u32 }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Reth::LEN] {
        let word = u128::from(self.va) << 64 | u128::from(self.rkey.0) << 32 | u128::from(self.len);
        word.to_be_bytes()
    }

    /// Lets a header that has been written name an address that is further by so many bytes.
    pub(crate) fn advance(header: &mut [u8], bytes: u64) {
        let va = header.first_chunk_mut().expect("there is an address");
        *va = u64::from_be_bytes(*va).wrapping_add(bytes).to_be_bytes();
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reth { va, rkey, len } = self;
        write!(f, " va {va:#x} rkey {rkey} len {len}")
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
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
            Reth { va: 0x0102_0304_0506_0708, rkey: Rkey(0x090a_0b0c), len: 0x0d0e_0f10 },
            Reth::parse,
            Reth::emit,
        );
    }

    #[test]
    fn all_ones() {
        assert_means(
            [0xff; Reth::LEN],
            Reth { va: u64::MAX, rkey: Rkey(u32::MAX), len: u32::MAX },
            Reth::parse,
            Reth::emit,
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost(bytes: [u8; Reth::LEN]) {
            prop_assert_eq!(Reth::parse(&bytes).emit(), bytes);
        }
    }
}
