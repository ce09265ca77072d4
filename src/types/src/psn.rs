//! Packet sequence number: a 24-bit serial number.
//!
//! PSNs wrap, so "earlier" and "later" only mean something between numbers less than half the
//! range apart. That comparison lives here and nowhere else; there is deliberately no `Ord`.

use crate::TooManyBits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};

/// A packet sequence number: 24 bits, wrapping.
#[derive(Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(try_from = "u32")]
pub struct Psn(u32);

impl Psn {
    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN after this one.
    pub const fn next(self) -> Psn {
        Psn::new(self.0.wrapping_add(1))
    }

    /// The PSN before this one.
    pub const fn prev(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// `self - other` as a signed serial difference, from -2^23 to 2^23 - 1: how many packets
    /// `self` is ahead of `other`, negative when it is behind.
    pub const fn diff(self, other: Psn) -> i32 {
        // WIRE-020: up into the top 24 bits and back down again, where the shift extends the sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Whether `self` comes strictly before `other`.
    ///
    /// Two PSNs exactly 2^23 apart each precede the other; no window is that large.
    pub const fn precedes(self, other: Psn) -> bool {
        self.diff(other) < 0
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;
    fn sub(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }
}

impl TryFrom<u32> for Psn {
    type Error = TooManyBits;

    fn try_from(value: u32) -> Result<Psn, TooManyBits> {
        if value > 0xff_ffff { Err(TooManyBits(value)) } else { Ok(Psn(value)) }
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: u32 = 1 << 23;

    #[test]
    fn only_24_bits_are_kept() {
        assert_eq!(Psn::new(0xff00_0001), Psn::new(1));
        assert_eq!(Psn::new(u32::MAX).get(), 0xff_ffff);
    }

    #[test]
    fn the_next_after_the_last_is_zero() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), last);
        assert_eq!(last + 3, Psn::new(2));
        assert_eq!(Psn::new(2) - 3, last);
    }

    #[test]
    fn order_holds_across_the_wrap() {
        let before = Psn::new(0xff_fffe);
        let after = Psn::new(1);
        assert!(before.precedes(after));
        assert!(!after.precedes(before));
        assert!(!before.precedes(before));
        assert_eq!(after.diff(before), 3);
        assert_eq!(before.diff(after), -3);
    }

    #[test]
    fn half_the_range_away_is_as_far_as_it_gets() {
        let zero = Psn::new(0);
        assert_eq!(Psn::new(HALF - 1).diff(zero), HALF as i32 - 1);
        assert_eq!(Psn::new(HALF).diff(zero), -(HALF as i32));
        assert_eq!(zero.diff(Psn::new(HALF)), -(HALF as i32));
    }

    proptest! {
        #[test]
        fn diff_undoes_add(start: u32, ahead in 0..HALF) {
            let start = Psn::new(start);
            prop_assert_eq!((start + ahead).diff(start), ahead as i32);
            prop_assert_eq!(start.diff(start + ahead), -(ahead as i32));
            prop_assert_eq!(start.precedes(start + ahead), ahead != 0);
            prop_assert_eq!(start + ahead - ahead, start);
        }

        #[test]
        fn diff_is_below_half_the_range(a: u32, b: u32) {
            let diff = Psn::new(a).diff(Psn::new(b));
            prop_assert!((-(HALF as i32)..HALF as i32).contains(&diff));
            prop_assert_eq!(Psn::new(b) + diff as u32, Psn::new(a));
        }
    }
}
