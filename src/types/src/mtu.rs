//! Path MTU: the largest payload of one packet, headers not counted.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes that is no path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected 256, 512, 1024, 2048 or 4096 bytes")]
pub struct NoPathMtu(pub u16);

/// A path MTU. The discriminant is `ibv_mtu`'s and the CM's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes of payload.
    Mtu256 = 1,
    /// 512 bytes of payload.
    Mtu512 = 2,
    /// 1024 bytes of payload.
    Mtu1024 = 3,
    /// 2048 bytes of payload.
    Mtu2048 = 4,
    /// 4096 bytes of payload: the largest there is.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Payload bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// `ibv_mtu`'s code, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of `ibv_mtu`'s code `code`.
    pub fn from_code(code: u8) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The MTU of exactly `bytes` payload bytes.
    pub fn from_bytes(bytes: u32) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() as u32 == bytes)
    }
}

impl TryFrom<u16> for PathMtu {
    type Error = NoPathMtu;

    /// The MTU of exactly so many payload bytes.
    fn try_from(bytes: u16) -> Result<PathMtu, NoPathMtu> {
        PathMtu::from_bytes(bytes.into()).ok_or(NoPathMtu(bytes))
    }
}

impl From<PathMtu> for u16 {
    /// Payload bytes.
    fn from(mtu: PathMtu) -> u16 {
        mtu.bytes() as u16
    }
}

impl fmt::Display for PathMtu {
    /// Payload bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_verbs() {
        let by_code = [256, 512, 1024, 2048, 4096];
        for (mtu, (code, bytes)) in PathMtu::ALL.into_iter().zip((1u8..).zip(by_code)) {
            assert_eq!((mtu.code(), mtu.bytes()), (code, bytes));
            assert_eq!(PathMtu::from_code(code), Some(mtu));
            assert_eq!(PathMtu::from_bytes(bytes as u32), Some(mtu));
        }
    }

    #[test]
    fn anything_else_is_no_mtu() {
        for code in [0, 6, 255] {
            assert_eq!(PathMtu::from_code(code), None);
        }
        for bytes in [0, 255, 1500, 8192, u32::MAX] {
            assert_eq!(PathMtu::from_bytes(bytes), None);
        }
        let refused = PathMtu::try_from(1500).unwrap_err().to_string();
        assert!(refused.starts_with("1500: expected"), "{refused}");
    }
}
