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

use crate::Rkey;

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
    pub fn emit(&self, bytes: &mut [u8; AtomicEth::LEN]) {
        bytes[0..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// The atomic ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What was in memory before.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub fn parse(bytes: &[u8; AtomicAckEth::LEN]) -> AtomicAckEth {
        AtomicAckEth { original: u64::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; AtomicAckEth::LEN]) {
        *bytes = self.original.to_be_bytes();
    }
}
