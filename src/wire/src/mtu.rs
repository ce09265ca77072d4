//! Path MTU: the largest payload of one packet, headers not counted.

/// A path MTU. The discriminant is `ibv_mtu`'s and the CM's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

    /// The largest MTU that fits a link whose IP packets have at most `link_mtu` bytes, whatever
    /// RoCE headers a packet carries; `None` if not even 256 fits.
    ///
    /// A 1500-byte link carries 1024, a 9000-byte one 4096, as kernel rxe computes it too.
    pub fn largest_for_link(link_mtu: u32, ipv6: bool) -> Option<PathMtu> {
        let ip_and_udp = if ipv6 { 40 + 8 } else { 20 + 8 };
        let overhead = ip_and_udp + (crate::Headers::MAX_LEN + crate::icrc::LEN) as u32;
        let room = link_mtu.checked_sub(overhead)? as usize;
        PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
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
    }

    #[test]
    fn the_links_that_people_have() {
        for ipv6 in [false, true] {
            let largest = |link_mtu| PathMtu::largest_for_link(link_mtu, ipv6);
            assert_eq!(largest(1500), Some(PathMtu::Mtu1024));
            assert_eq!(largest(9000), Some(PathMtu::Mtu4096));
            assert_eq!(largest(65536), Some(PathMtu::Mtu4096));
            assert_eq!(largest(1280), Some(PathMtu::Mtu1024));
            assert_eq!(largest(u32::MAX), Some(PathMtu::Mtu4096));
            assert_eq!(largest(256), None);
            assert_eq!(largest(0), None);
        }
    }

    #[test]
    fn every_header_has_room_beside_the_payload() {
        // IP, UDP, the longest RoCE headers, ICRC.
        let ipv4 = 20 + 8 + 40 + 4;
        let ipv6 = 40 + 8 + 40 + 4;
        for mtu in PathMtu::ALL {
            let bytes = mtu.bytes() as u32;
            assert_eq!(PathMtu::largest_for_link(bytes + ipv4, false), Some(mtu));
            assert_ne!(PathMtu::largest_for_link(bytes + ipv4 - 1, false), Some(mtu));
            assert_eq!(PathMtu::largest_for_link(bytes + ipv6, true), Some(mtu));
            assert_ne!(PathMtu::largest_for_link(bytes + ipv6 - 1, true), Some(mtu));
        }
    }
}
