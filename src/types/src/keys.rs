//! The keys that packets and work requests carry: rkey, lkey, P_Key, Q_Key.

use serde::{Deserialize, Serialize};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Remote key: lets a peer name a memory region or window of ours.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rkey(pub u32);

/// Local key: lets our own work requests name a memory region.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Lkey(pub u32);

/// Queue key: a datagram is taken only if it shows the receiving QP's.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The Q_Key of QP 1, fixed by the specification.
    pub const GSI: Qkey = Qkey(0x8001_0000);

    /// Whether this is a controlled Q_Key: in a work request it stands for the QP's own one.
    pub const fn is_controlled(self) -> bool {
        // WIRE-023
        self.0 & 0x8000_0000 != 0
    }
}

/// Partition key: 15 bits name the partition, the top bit says "full member".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// Full membership of the default partition: the only P_Key that RoCE devices usually have.
    pub const DEFAULT: Pkey = Pkey(0xffff);

    /// Whether the top bit claims full membership.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether two ends with these P_Keys may talk: the same partition, which is not the invalid
    /// partition 0, and at least one of them a full member.
    pub const fn matches(self, other: Pkey) -> bool {
        // WIRE-022
        let partition = self.0 & 0x7fff;
        partition != 0
            && partition == other.0 & 0x7fff
            && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for Pkey {
    fn default() -> Pkey {
        Pkey::DEFAULT
    }
}

macro_rules! hex_format {
    ($($key:ident $digits:literal),*) => {$(
        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $digits, "x}"), self.0)
            }
        }
        impl fmt::Debug for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($key), "({})"), self)
            }
        }
    )*};
}

hex_format!(Rkey 10, Lkey 10, Qkey 10, Pkey 6);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkeys_match_within_a_partition_unless_both_are_limited() {
        let full = Pkey(0x8001);
        let limited = Pkey(0x0001);
        let elsewhere = Pkey(0x8002);
        assert!(full.matches(full));
        assert!(full.matches(limited));
        assert!(limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(elsewhere));
        assert!(Pkey::DEFAULT.matches(Pkey(0x7fff)));
    }

    #[test]
    fn the_invalid_partition_matches_nothing() {
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)));
        assert!(!Pkey(0x0000).matches(Pkey(0x8000)));
    }

    #[test]
    fn the_top_bit_makes_a_qkey_controlled() {
        assert!(Qkey::GSI.is_controlled());
        assert!(!Qkey(0x7fff_ffff).is_controlled());
    }

    #[test]
    fn keys_print_as_they_stand_in_a_trace() {
        assert_eq!(Rkey(0x264).to_string(), "0x00000264");
        assert_eq!(format!("{:?}", Pkey::DEFAULT), "Pkey(0xffff)");
    }
}
