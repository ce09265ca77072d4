//! The IP and UDP headers around a packet: what a QP decides of them, and what a receiver saw.
//!
//! Sockets write and read these headers, but the ICRC covers most of their fields, so both ends
//! have to know them. [`OuterHeaders`] is the one place where they become bytes: for raw sockets
//! and captures, for the IP header that a program finds in front of a datagram, and, with ones in
//! the fields that may change on the way, for the ICRC. That last one is made for every packet, so
//! it is written by hand, into an array; the tests read it with a library.

use std::net::{IpAddr, Ipv6Addr};

/// The UDP destination port of every RoCEv2 packet.
pub const ROCE_PORT: u16 = 4791;

/// The most bytes that follow one UDP header, whether as one datagram or as a run that is cut
/// into segments: an IPv4 packet's 65,535 less its two headers. (IPv6 would carry 20 more.)
pub const MAX_UDP_PAYLOAD: usize = 65_535 - OuterHeaders::len(false);

/// The IPv4 flags and fragment offset of every packet that RoCEv2 allows: "don't fragment", and
/// not a fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// Everything about the outer headers that a QP decides.
///
/// Both addresses are of one family. Should they not be, the IPv4 one counts as its IPv4-mapped
/// IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address.
    pub dst: IpAddr,
    /// UDP source port: gives the network something to spread connections by.
    pub src_port: u16,
    /// Traffic class, or IPv4 type of service, with the two ECN bits lowest. Not under the ICRC.
    pub traffic_class: u8,
    /// Hop limit, or IPv4 time to live. Not under the ICRC.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 on IPv4. Not under the ICRC.
    pub flow_label: u32,
}

/// The outer headers that a received datagram came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Addresses, source port and the rest; the sender is `src`.
    pub flow: Flow,
    /// The IPv4 identification, as far as it is known. Means nothing on IPv6.
    pub ident: Ident,
}

/// What a receiver knows of the IPv4 identification, which the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ident {
    /// A raw socket showed the header.
    Known {
        /// The identification.
        ident: u16,
        /// The two bytes after it, flags and fragment offset: [`DONT_FRAGMENT`] as a rule.
        fragment: u16,
    },
    /// A plain UDP socket keeps it to itself.
    Hidden {
        /// The likeliest identification: the index within the received segmentation buffer for a
        /// sender that numbers so, one more than the last for a sender that counts. It may be
        /// anything: to be wrong costs the checker a few nanoseconds.
        guess: u16,
    },
}

/// Bytes of an IPv4 header without options, which RoCEv2 has none of.
const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// The IP protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;
/// Where an IPv4 header has its identification, with flags and fragment offset behind it.
pub(crate) const IPV4_IDENT_AT: usize = 4;
/// Where an IPv4 header has its checksum.
const IPV4_CHECKSUM: std::ops::Range<usize> = 10..12;
/// Where the UDP header stands in the longest headers.
const UDP_AT: usize = IPV6_LEN;
/// Where an IPv4 header stands in as many bytes.
const IPV4_AT: usize = UDP_AT - IPV4_LEN;

/// The IP and UDP headers of a packet as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaders {
    /// They end where this ends.
    bytes: [u8; OuterHeaders::MAX_LEN],
    ip_len: usize,
}

impl OuterHeaders {
    /// Bytes of the longest IP and UDP headers together.
    pub const MAX_LEN: usize = IPV6_LEN + UDP_LEN;

    /// Bytes of the IP and UDP headers together.
    pub const fn len(ipv6: bool) -> usize {
        if ipv6 { IPV6_LEN + UDP_LEN } else { IPV4_LEN + UDP_LEN }
    }

    /// The headers of a datagram with so many bytes of UDP payload, at most [`MAX_UDP_PAYLOAD`].
    /// `fragment` is IPv4's flags and fragment offset; it and the identification have no place in
    /// IPv6. The UDP checksum is 0 (none), as kernel rxe has it for both families.
    pub fn new(flow: &Flow, ident: u16, fragment: u16, udp_payload: usize) -> OuterHeaders {
        let mut bytes = [0; OuterHeaders::MAX_LEN];
        let ip_len = write(&mut bytes, flow, ident, fragment, udp_payload, 0);
        if ip_len == IPV4_LEN {
            let ip = &mut bytes[IPV4_AT..UDP_AT];
            let checksum = !ones_complement_sum(ip);
            ip[IPV4_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        }
        OuterHeaders { bytes, ip_len }
    }

    /// The IP header alone.
    pub fn ip(&self) -> &[u8] {
        &self.as_bytes()[..self.ip_len]
    }

    /// Both headers.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[OuterHeaders::MAX_LEN - UDP_LEN - self.ip_len..]
    }

    /// The headers as the ICRC covers them, written to the end of `bytes`: with ones for
    /// everything that may change on the way.
    #[inline(always)]
    pub(crate) fn write_masked(
        bytes: &mut [u8; OuterHeaders::MAX_LEN],
        flow: &Flow,
        ident: u16,
        fragment: u16,
        udp_payload: usize,
    ) {
        // WIRE-025
        let masked = Flow { traffic_class: 0xff, hop_limit: 0xff, flow_label: 0xf_ffff, ..*flow };
        write(bytes, &masked, ident, fragment, udp_payload, 0xffff);
    }
}

/// Writes an IP and a UDP header to the end of `bytes`, with `checksum` for the checksum of either,
/// and returns how many bytes the IP header takes.
///
/// Everything has a place that does not depend on anything else: inlined, these are a few numbers
/// in registers, which the ICRC takes as they are.
#[inline(always)]
fn write(
    bytes: &mut [u8; OuterHeaders::MAX_LEN],
    flow: &Flow,
    ident: u16,
    fragment: u16,
    udp_payload: usize,
    checksum: u16,
) -> usize {
    let udp_len = (UDP_LEN + udp_payload) as u16;
    let (ip, udp) = bytes.split_at_mut(UDP_AT);
    udp[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut ip[IPV4_AT..];
            ip[0] = 0x45;
            ip[1] = flow.traffic_class;
            ip[2..4].copy_from_slice(&(IPV4_LEN as u16 + udp_len).to_be_bytes());
            ip[4..6].copy_from_slice(&ident.to_be_bytes());
            ip[6..8].copy_from_slice(&fragment.to_be_bytes());
            ip[8] = flow.hop_limit;
            ip[9] = PROTOCOL_UDP;
            ip[IPV4_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            IPV4_LEN
        }
        (src, dst) => {
            let class_and_label = u32::from(flow.traffic_class) << 20 | flow.flow_label & 0xf_ffff;
            ip[0..4].copy_from_slice(&(6 << 28 | class_and_label).to_be_bytes());
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = PROTOCOL_UDP;
            ip[7] = flow.hop_limit;
            ip[8..24].copy_from_slice(&as_ipv6(src).octets());
            ip[24..40].copy_from_slice(&as_ipv6(dst).octets());
            IPV6_LEN
        }
    }
}

fn as_ipv6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The sum of the 16-bit words, carries added back in (RFC 1071).
fn ones_complement_sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
    use proptest::prelude::*;

    fn flow(src: &str, dst: &str) -> Flow {
        Flow {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 49441,
            traffic_class: 0x69,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    #[test]
    fn an_ipv4_header_is_the_one_of_the_standard_byte_for_byte() {
        let headers = OuterHeaders::new(&flow("10.77.0.1", "10.77.0.2"), 0x1234, DONT_FRAGMENT, 16);
        let known = [
            0x45, 0x69, 0x00, 0x2c, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x13, 0x88, 10, 77, 0, 1,
            10, 77, 0, 2, 0xc1, 0x21, 0x12, 0xb7, 0x00, 0x18, 0x00, 0x00,
        ];
        assert_eq!(headers.as_bytes(), known);
    }

    #[test]
    fn an_ipv6_header_is_the_one_of_the_standard_byte_for_byte() {
        let flow = Flow { flow_label: 0xabcde, ..flow("fd77::1", "fd77::2") };
        let headers = OuterHeaders::new(&flow, 0x1234, DONT_FRAGMENT, 16);
        let bytes = headers.as_bytes();
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[..8], [0x66, 0x9a, 0xbc, 0xde, 0, 24, 17, 64]);
        assert_eq!(bytes[8..10], [0xfd, 0x77]);
        assert_eq!((bytes[23], bytes[39]), (1, 2));
        assert_eq!(bytes[40..], [0xc1, 0x21, 0x12, 0xb7, 0, 24, 0, 0]);
    }

    proptest! {
        #[test]
        fn another_implementation_reads_the_same_fields(
            flow in testing::flow(), ident: u16, udp_payload in 0..MAX_UDP_PAYLOAD,
        ) {
            let headers = OuterHeaders::new(&flow, ident, DONT_FRAGMENT, udp_payload);
            prop_assert_eq!(headers.as_bytes().len(), OuterHeaders::len(flow.src.is_ipv6()));
            let mut packet = headers.as_bytes().to_vec();
            packet.resize(packet.len() + udp_payload, 0);
            let read = PacketHeaders::from_ip_slice(&packet).unwrap();
            match read.net.unwrap() {
                NetHeaders::Ipv4(ip, _) => {
                    prop_assert_eq!(IpAddr::from(ip.source), flow.src);
                    prop_assert_eq!(IpAddr::from(ip.destination), flow.dst);
                    prop_assert_eq!(ip.dscp.value() << 2 | ip.ecn.value(), flow.traffic_class);
                    prop_assert_eq!((ip.time_to_live, ip.identification), (flow.hop_limit, ident));
                    prop_assert!(ip.dont_fragment && !ip.is_fragmenting_payload());
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                }
                NetHeaders::Ipv6(ip, _) => {
                    prop_assert_eq!(IpAddr::from(ip.source), flow.src);
                    prop_assert_eq!(IpAddr::from(ip.destination), flow.dst);
                    prop_assert_eq!(ip.traffic_class, flow.traffic_class);
                    prop_assert_eq!(ip.flow_label.value(), flow.flow_label);
                    prop_assert_eq!(ip.hop_limit, flow.hop_limit);
                }
                NetHeaders::Arp(_) => prop_assert!(false),
            }
            let Some(TransportHeader::Udp(udp)) = read.transport else { panic!() };
            prop_assert_eq!((udp.source_port, udp.destination_port), (flow.src_port, ROCE_PORT));
            prop_assert_eq!((usize::from(udp.length), udp.checksum), (UDP_LEN + udp_payload, 0));
        }
    }
}
