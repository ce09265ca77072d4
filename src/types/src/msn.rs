//! Message sequence number: how many messages a responder has completed, modulo 2^24.

use std::fmt;

/// A message sequence number, as an AETH carries it: 24 bits, wrapping.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Msn {
        // WIRE-021
        Msn(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The MSN after one more completed message.
    pub const fn next(self) -> Msn {
        Msn::new(self.0.wrapping_add(1))
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msn({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
        assert_eq!(Msn::new(0x0100_0005).get(), 5);
    }
}
