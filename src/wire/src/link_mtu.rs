//! What path MTU a link carries.

use crate::{Headers, OuterHeaders, icrc};
use urxe_types::PathMtu;

/// The largest MTU that fits a link whose IP packets have at most `link_mtu` bytes, whatever
/// RoCE headers a packet carries; `None` if not even 256 fits.
///
/// A 1500-byte link carries 1024, a 9000-byte one 4096, as kernel rxe computes it too.
pub fn largest_path_mtu(link_mtu: u32, ipv6: bool) -> Option<PathMtu> {
    // WIRE-031
    let overhead = OuterHeaders::len(ipv6) + Headers::MAX_LEN + icrc::LEN;
    let room = (link_mtu as usize).checked_sub(overhead)?;
    PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_that_people_have() {
        for ipv6 in [false, true] {
            let largest = |link_mtu| largest_path_mtu(link_mtu, ipv6);
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
            assert_eq!(largest_path_mtu(bytes + ipv4, false), Some(mtu));
            assert_ne!(largest_path_mtu(bytes + ipv4 - 1, false), Some(mtu));
            assert_eq!(largest_path_mtu(bytes + ipv6, true), Some(mtu));
            assert_ne!(largest_path_mtu(bytes + ipv6 - 1, true), Some(mtu));
        }
    }
}
