//! The headers of atomics: AtomicETH in the request, AtomicAckETH in the answer.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                       virtual address                         |  0
//! |                                                               |  4
//! +---------------------------------------------------------------+
//! |                             rkey                              |  8
//! +---------------------------------------------------------------+
//! |                    swap data, or add data                     | 12
//! |                                                               | 16
//! +---------------------------------------------------------------+
//! |                         compare data                          | 20
//! |                                                               | 24
//! +---------------------------------------------------------------+
//!
//! +---------------------------------------------------------------+
//! |                     original remote data                      |  0
//! |                                                               |  4
//! +---------------------------------------------------------------+
//! ```

use std::fmt;
use urxe_types::Rkey;

/// The atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address at the responder, a multiple of 8.
    pub va: u64,
    /// Names the memory region.
    pub rkey: Rkey,
    /// COMPARE AND SWAP: the value to put there. FETCH AND ADD: the value to add.
    pub swap_or_add: u64,
    /// COMPARE AND SWAP: the value that must be there. FETCH AND ADD: unused.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub fn parse(bytes: &[u8; AtomicEth::LEN]) -> AtomicEth {
        // WIRE-015
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, data @ ..] = *bytes;
        let data = u128::from_be_bytes(data);
        AtomicEth {
            va: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: Rkey(u32::from_be_bytes([k0, k1, k2, k3])),
            swap_or_add: (data >> 64) as u64,
            compare: data as u64,
        }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; AtomicEth::LEN] {
        let mut bytes = [0; AtomicEth::LEN];
        bytes[0..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AtomicEth { va, rkey, swap_or_add, compare } = self;
        write!(f, " va {va:#x} rkey {rkey} data {swap_or_add:#x} compare {compare:#x}")
    }
}

/// The atomic ACK extended transport header: what was in memory before.
pub(crate) struct AtomicAckEth;

impl AtomicAckEth {
    pub(crate) const LEN: usize = 8;

    pub(crate) fn parse(bytes: &[u8; AtomicAckEth::LEN]) -> u64 {
        u64::from_be_bytes(*bytes)
    }

    pub(crate) fn emit(original: &u64) -> [u8; AtomicAckEth::LEN] {
        original.to_be_bytes()
    }

    pub(crate) fn show(original: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " original {original:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;
    use proptest::prelude::*;

    #[test]
    fn every_field_of_a_request_at_its_place() {
        assert_means(
            std::array::from_fn(|i| i as u8 + 1),
            AtomicEth {
                va: 0x0102_0304_0506_0708,
                rkey: Rkey(0x090a_0b0c),
                swap_or_add: 0x0d0e_0f10_1112_1314,
                compare: 0x1516_1718_191a_1b1c,
            },
            AtomicEth::parse,
            AtomicEth::emit,
        );
    }

    #[test]
    fn all_ones() {
        assert_means(
            [0xff; AtomicEth::LEN],
            AtomicEth {
                va: u64::MAX,
                rkey: Rkey(u32::MAX),
                swap_or_add: u64::MAX,
                compare: u64::MAX,
            },
            AtomicEth::parse,
            AtomicEth::emit,
        );
    }

    #[test]
    fn the_answer_is_one_number() {
        assert_means(
            [1, 2, 3, 4, 5, 6, 7, 8],
            0x0102_0304_0506_0708,
            AtomicAckEth::parse,
            AtomicAckEth::emit,
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost(request: [u8; AtomicEth::LEN], answer: [u8; AtomicAckEth::LEN]) {
            prop_assert_eq!(AtomicEth::parse(&request).emit(), request);
            prop_assert_eq!(AtomicAckEth::emit(&AtomicAckEth::parse(&answer)), answer);
        }
    }
}
