//! What the IPv4 identification does to an ICRC, forwards and backwards.
//!
//! The CRC takes in bytes at the low end of its register, the first one lowest. So four bytes in
//! wire order are a register as `from_le_bytes` reads them: here the identification and, after
//! it, flags and fragment offset.

use super::{LEN, gf2};
use crate::outer::{IPV4_IDENT_AT, OuterHeaders};

/// How many bits go through the CRC register from where these four bytes have been added to it to
/// the end of a packet of `len` bytes of UDP payload.
fn register_bits_after_ident(len: usize) -> u32 {
    // A UDP payload's length is a 16-bit number, so its bits are far from overflowing 32.
    8 * (OuterHeaders::len(false) - IPV4_IDENT_AT + len - LEN) as u32
}

/// What the ICRC of a packet of `len` bytes changes by when the bits of `change` are flipped in its
/// identification. The packet itself does not matter.
pub(super) fn effect(change: u16, len: usize) -> u32 {
    let [a, b] = change.to_be_bytes();
    let register = u32::from_le_bytes([a, b, 0, 0]);
    gf2::multiply(register, gf2::power(&gf2::X, register_bits_after_ident(len)))
}

/// The CRC register run backwards from the end of a packet to the identification, as a matrix.
#[derive(Clone, Debug)]
pub(super) struct Backwards {
    /// Of the UDP payload in bytes; 0 while the place is empty.
    len: usize,
    /// What bit `i` of the register becomes.
    columns: [u32; 32],
}

impl Backwards {
    /// An empty place.
    pub(super) const NOTHING: Backwards = Backwards { len: 0, columns: [0; 32] };

    /// For packets of `len` bytes of UDP payload.
    pub(super) fn over(len: usize) -> Backwards {
        let mut column = gf2::power(&gf2::X_INVERSE, register_bits_after_ident(len));
        let mut columns = [0; 32];
        // Bit 31 of the register is the polynomial 1, and every bit below has one more x.
        for place in columns.iter_mut().rev() {
            *place = column;
            column = gf2::times_x(column);
        }
        Backwards { len, columns }
    }

    /// Whether this is for packets of `len` bytes.
    pub(super) fn is_over(&self, len: usize) -> bool {
        self.len == len
    }

    /// The change of identification that changes an ICRC by `difference`; `None` if no such change
    /// does.
    pub(super) fn explain(&self, difference: u32) -> Option<u16> {
        match self.run(difference).to_le_bytes() {
            [a, b, 0, 0] => Some(u16::from_be_bytes([a, b])),
            _ => None,
        }
    }

    fn run(&self, register: u32) -> u32 {
        let mut result = 0;
        for (i, column) in self.columns.iter().enumerate() {
            result ^= column & (register >> i & 1).wrapping_neg();
        }
        result
    }
}
