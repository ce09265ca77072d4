//! The 40 bytes in front of a received datagram.

use crate::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the 40 bytes tell that stand in front of each datagram's data: the path that it came on.
///
/// Over IPv6 they are the IPv6 header; over IPv4 the last 20 of them are the IPv4 header, and the
/// others mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Who sent it.
    pub source: IpAddr,
    /// Where it went: one of our addresses, or a multicast group.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit or time to live, as it arrived.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 with IPv4.
    pub flow_label: u32,
}

impl Grh {
    /// How many bytes there are in front of the data. [`Wc::byte_len`](crate::Wc::byte_len) counts
    /// them.
    pub const LEN: usize = 40;

    /// Makes sense of the bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are neither: then they are not the first bytes of a
    /// received datagram.
    pub fn parse(bytes: &[u8; Grh::LEN]) -> Result<Grh, Error> {
        let v4 = &bytes[20..];
        // The same order as in rdma-core: any bytes may precede an IPv4 header, which its checksum
        // tells apart from the end of an IPv6 header.
        if v4[0] == 0x45 && checksum(v4) == 0xffff {
            let address = |at: usize| Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]);
            return Ok(Grh {
                source: address(12).into(),
                destination: address(16).into(),
                traffic_class: v4[1],
                hop_limit: v4[8],
                flow_label: 0,
            });
        }
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if first >> 28 == 6 {
            let address = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&bytes[at..at + 16]);
                Ipv6Addr::from(octets)
            };
            return Ok(Grh {
                source: address(8).into(),
                destination: address(24).into(),
                traffic_class: (first >> 20) as u8,
                hop_limit: bytes[7],
                flow_label: first & 0xf_ffff,
            });
        }
        let (value, expected) = (format!("{bytes:02x?}"), "an IPv6 header, or an IPv4 header last");
        Err(Error::invalid("the 40 bytes before a datagram", value, expected))
    }
}

/// The sum of 16-bit words that is all ones over a header with a right checksum.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a checksum that books use: 172.16.10.99 to 172.16.10.12.
    const V4: [u8; 20] = [
        0x45, 0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0xb1, 0xe6, 0xac, 0x10, 0x0a,
        0x63, 0xac, 0x10, 0x0a, 0x0c,
    ];

    fn behind(first: u8, header: [u8; 20]) -> [u8; 40] {
        let mut bytes = [first; 40];
        bytes[20..].copy_from_slice(&header);
        bytes
    }

    #[test]
    fn an_ipv4_header_stands_in_the_last_twenty_bytes() {
        // Whatever stands before it.
        for first in [0, 0x60, 0xff] {
            let grh = Grh::parse(&behind(first, V4)).unwrap();
            assert_eq!(grh.source, IpAddr::from([172, 16, 10, 99]));
            assert_eq!(grh.destination, IpAddr::from([172, 16, 10, 12]));
            assert_eq!((grh.traffic_class, grh.hop_limit, grh.flow_label), (0, 64, 0));
        }
    }

    #[test]
    fn a_header_with_a_wrong_checksum_is_none() {
        let mut header = V4;
        header[8] ^= 1;
        let error = Grh::parse(&behind(0, header)).unwrap_err();
        assert!(error.to_string().contains("an IPv4 header last"), "{error}");
    }

    #[test]
    fn an_ipv6_header_takes_all_bytes() {
        let (source, destination) = ("fe80::1", "ff0e::1234");
        let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x61, 0x23, 0x45, 0x67, 0, 20, 17, 63]);
        bytes[8..24].copy_from_slice(&octets(source));
        bytes[24..].copy_from_slice(&octets(destination));
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!(grh.source, source.parse::<IpAddr>().unwrap());
        assert_eq!(grh.destination, destination.parse::<IpAddr>().unwrap());
        assert_eq!((grh.traffic_class, grh.hop_limit, grh.flow_label), (0x12, 63, 0x3_4567));
    }
}
