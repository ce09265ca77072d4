//! Queue pair number.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number that is to be a QPN or PSN and has more than their 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:#x}: expected a number of 24 bits")]
pub struct TooManyBits(pub u32);

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(try_from = "u32")]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface: the QP that connection management talks to.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of multicast packets.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Qpn {
    type Error = TooManyBits;

    fn try_from(value: u32) -> Result<Qpn, TooManyBits> {
        if value > 0xff_ffff { Err(TooManyBits(value)) } else { Ok(Qpn(value)) }
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_24_bits_are_kept() {
        assert_eq!(Qpn::new(u32::MAX), Qpn::MULTICAST);
        assert_eq!(Qpn::new(0x0100_0001), Qpn::GSI);
    }

    #[test]
    fn a_number_that_is_not_cut_has_24_bits() {
        assert_eq!(Qpn::try_from(0xff_ffff), Ok(Qpn::MULTICAST));
        let refused = Qpn::try_from(0x100_0001).unwrap_err();
        assert_eq!(refused.to_string(), "0x1000001: expected a number of 24 bits");
    }
}
