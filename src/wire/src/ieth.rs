//! Invalidate extended transport header: the rkey that a SEND takes back.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             rkey                              |
//! +---------------------------------------------------------------+
//! ```

use crate::Rkey;

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
        Ieth { rkey: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Ieth::LEN]) {
        *bytes = self.rkey.0.to_be_bytes();
    }
}
