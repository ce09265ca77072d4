//! Packet sequence number: a 24-bit serial number.
//!
//! PSNs wrap, so "earlier" and "later" only mean something between numbers less than half the
//! range apart. That comparison lives here and nowhere else; there is deliberately no `Ord`.

use crate::u24;
use std::fmt;
use std::ops::{Add, Sub};

/// A packet sequence number: 24 bits, wrapping.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(u24::truncate(value))
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
        // Up into the top 24 bits and back down again: the shift back extends the sign.
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
