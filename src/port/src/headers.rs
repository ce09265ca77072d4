//! The IP and UDP headers as bytes, for those who write or see them themselves.

use pnet::packet::ip::IpNextHeaderProtocols;
use pnet::packet::ipv4::{self, Ipv4Packet, MutableIpv4Packet};
use pnet::packet::ipv6::{Ipv6Packet, MutableIpv6Packet};
use pnet::packet::udp::{MutableUdpPacket, UdpPacket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, Outer, ROCE_PORT};

/// Bytes of an IPv4 header without options, which RoCEv2 has none of.
const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// Bytes of the longest IP and UDP headers together.
pub(crate) const MAX_LEN: usize = IPV6_LEN + UDP_LEN;

/// The IP and UDP headers in front of a datagram, and how many bytes they take.
pub(crate) type Headers = ([u8; MAX_LEN], usize);

/// Bytes of the IP and UDP headers together.
pub(crate) const fn len(ipv6: bool) -> usize {
    if ipv6 { IPV6_LEN + UDP_LEN } else { IPV4_LEN + UDP_LEN }
}

/// Builds the headers for a datagram, UDP checksum 0 (none) as kernel rxe has it for both families.
/// `fragment` is IPv4's flags and fragment offset; it and the identification have no place in IPv6.
///
/// The payload is at most 65,507 bytes.
pub(crate) fn emit(flow: &Flow, ident: u16, fragment: u16, payload_len: usize) -> Headers {
    let mut bytes = [0; MAX_LEN];
    let udp_len = UDP_LEN + payload_len;
    let ip_len = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            emit_ipv4(&mut bytes, flow, (ident, fragment), (src, dst), udp_len);
            IPV4_LEN
        }
        (src, dst) => {
            emit_ipv6(&mut bytes, flow, (as_v6(src), as_v6(dst)), udp_len);
            IPV6_LEN
        }
    };
    let mut udp = MutableUdpPacket::new(&mut bytes[ip_len..]).expect("room for both headers");
    udp.set_source(flow.src_port);
    udp.set_destination(ROCE_PORT);
    udp.set_length(udp_len as u16);
    (bytes, ip_len + UDP_LEN)
}

fn emit_ipv4(
    bytes: &mut [u8],
    flow: &Flow,
    (ident, fragment): (u16, u16),
    (src, dst): (Ipv4Addr, Ipv4Addr),
    udp_len: usize,
) {
    let mut ip = MutableIpv4Packet::new(&mut bytes[..IPV4_LEN]).expect("room for a header");
    ip.set_version(4);
    ip.set_header_length((IPV4_LEN / 4) as u8);
    ip.set_dscp(flow.traffic_class >> 2);
    ip.set_ecn(flow.traffic_class & 3);
    ip.set_total_length((IPV4_LEN + udp_len) as u16);
    ip.set_identification(ident);
    ip.set_flags((fragment >> 13) as u8);
    ip.set_fragment_offset(fragment & 0x1fff);
    ip.set_ttl(flow.hop_limit);
    ip.set_next_level_protocol(IpNextHeaderProtocols::Udp);
    ip.set_source(src);
    ip.set_destination(dst);
    ip.set_checksum(ipv4::checksum(&ip.to_immutable()));
}

fn emit_ipv6(bytes: &mut [u8], flow: &Flow, (src, dst): (Ipv6Addr, Ipv6Addr), udp_len: usize) {
    let mut ip = MutableIpv6Packet::new(&mut bytes[..IPV6_LEN]).expect("room for a header");
    ip.set_version(6);
    ip.set_traffic_class(flow.traffic_class);
    ip.set_flow_label(flow.flow_label & 0xf_ffff);
    ip.set_payload_length(udp_len as u16);
    ip.set_next_header(IpNextHeaderProtocols::Udp);
    ip.set_hop_limit(flow.hop_limit);
    ip.set_source(src);
    ip.set_destination(dst);
}

fn as_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// What was found in front of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// The fields that matter.
    pub(crate) outer: Outer,
    /// Where the UDP payload begins in the packet.
    pub(crate) start: usize,
    /// Bytes of UDP payload; all there, and not none.
    pub(crate) len: usize,
}

/// Reads an IP packet with a UDP datagram for port 4791 in it. `None` for anything else: another
/// protocol or port, IP options or a fragment (the ICRC knows neither), lengths that contradict
/// each other.
///
/// The UDP checksum is not looked at: on a local path it is not filled in yet, and the ICRC is the
/// stronger check.
pub(crate) fn parse(packet: &[u8]) -> Option<Parsed> {
    let (mut flow, ident, ip_len, end) = match packet.first()? >> 4 {
        4 => parse_ipv4(packet)?,
        6 => parse_ipv6(packet)?,
        _ => return None,
    };
    let udp = UdpPacket::new(packet.get(ip_len..end)?)?;
    let len = usize::from(udp.get_length()).checked_sub(UDP_LEN)?;
    if udp.get_destination() != ROCE_PORT || len == 0 || ip_len + UDP_LEN + len != end {
        return None;
    }
    flow.src_port = udp.get_source();
    Some(Parsed { outer: Outer { flow, ident }, start: ip_len + UDP_LEN, len })
}

/// The flow but for its port, the identification, the header's length and the packet's end.
fn parse_ipv4(packet: &[u8]) -> Option<(Flow, Ident, usize, usize)> {
    let ip = Ipv4Packet::new(packet)?;
    let fragment = u16::from(ip.get_flags()) << 13 | ip.get_fragment_offset();
    if usize::from(ip.get_header_length()) * 4 != IPV4_LEN
        || ip.get_next_level_protocol() != IpNextHeaderProtocols::Udp
        || fragment & !DONT_FRAGMENT != 0
    {
        return None;
    }
    let flow = Flow {
        src: ip.get_source().into(),
        dst: ip.get_destination().into(),
        src_port: 0,
        traffic_class: ip.get_dscp() << 2 | ip.get_ecn(),
        hop_limit: ip.get_ttl(),
        flow_label: 0,
    };
    let ident = Ident::Known { ident: ip.get_identification(), fragment };
    Some((flow, ident, IPV4_LEN, usize::from(ip.get_total_length())))
}

fn parse_ipv6(packet: &[u8]) -> Option<(Flow, Ident, usize, usize)> {
    let ip = Ipv6Packet::new(packet)?;
    if ip.get_next_header() != IpNextHeaderProtocols::Udp {
        return None;
    }
    let flow = Flow {
        src: ip.get_source().into(),
        dst: ip.get_destination().into(),
        src_port: 0,
        traffic_class: ip.get_traffic_class(),
        hop_limit: ip.get_hop_limit(),
        flow_label: ip.get_flow_label(),
    };
    let ident = Ident::Known { ident: 0, fragment: 0 };
    Some((flow, ident, IPV6_LEN, IPV6_LEN + usize::from(ip.get_payload_length())))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let (bytes, len) = emit(&flow("10.77.0.1", "10.77.0.2"), 0x1234, DONT_FRAGMENT, 16);
        let known = [
            0x45, 0x69, 0x00, 0x2c, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x13, 0x88, 10, 77, 0, 1,
            10, 77, 0, 2, 0xc1, 0x21, 0x12, 0xb7, 0x00, 0x18, 0x00, 0x00,
        ];
        assert_eq!(bytes[..len], known);
    }

    #[test]
    fn an_ipv6_header_is_the_one_of_the_standard_byte_for_byte() {
        let flow = Flow { flow_label: 0xabcde, ..flow("fd77::1", "fd77::2") };
        let (bytes, len) = emit(&flow, 0x1234, DONT_FRAGMENT, 16);
        assert_eq!(len, 48);
        assert_eq!(bytes[..8], [0x66, 0x9a, 0xbc, 0xde, 0, 24, 17, 64]);
        assert_eq!(bytes[8..10], [0xfd, 0x77]);
        assert_eq!((bytes[23], bytes[39]), (1, 2));
        assert_eq!(bytes[40..], [0xc1, 0x21, 0x12, 0xb7, 0, 24, 0, 0]);
    }

    /// A whole packet with a payload of `len` bytes.
    fn packet(flow: &Flow, ident: u16, len: usize) -> Vec<u8> {
        let (bytes, header_len) = emit(flow, ident, DONT_FRAGMENT, len);
        let mut packet = bytes[..header_len].to_vec();
        packet.resize(header_len + len, 0xa5);
        packet
    }

    #[test]
    fn bytes_behind_the_packet_are_padding_and_missing_ones_an_error() {
        let mut bytes = packet(&flow("10.77.0.1", "10.77.0.2"), 1, 20);
        let whole = parse(&bytes);
        assert_eq!(whole.as_ref().map(|p| (p.start, p.len)), Some((28, 20)));
        bytes.extend([0; 6]);
        assert_eq!(parse(&bytes), whole);
        assert_eq!(parse(&bytes[..47]), None);
    }

    #[test]
    fn packets_without_a_known_icrc_are_refused() {
        let good = packet(&flow("10.77.0.1", "10.77.0.2"), 1, 20);
        for (place, value, what) in [
            (0, 0x46, "options"),
            (6, 0x20, "a first fragment"),
            (7, 0x01, "a later fragment"),
            (9, 6, "TCP"),
            (3, 47, "an IP length that is not the UDP length"),
            (22, 0x13, "another port"),
            (25, 8, "an empty datagram"),
        ] {
            let mut bytes = good.clone();
            bytes[place] = value;
            assert_eq!(parse(&bytes), None, "{what}");
        }
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(
            v6: bool, src: u128, dst: u128, src_port: u16, traffic_class: u8, hop_limit: u8,
            label in 0u32..0x10_0000, ident: u16, len in 1usize..5000,
        ) {
            let addr = |bits: u128| match v6 {
                true => IpAddr::from(Ipv6Addr::from(bits)),
                false => IpAddr::from(Ipv4Addr::from(bits as u32)),
            };
            let flow_label = if v6 { label } else { 0 };
            let (src, dst) = (addr(src), addr(dst));
            let flow = Flow { src, dst, src_port, traffic_class, hop_limit, flow_label };
            let fragment = if v6 { 0 } else { DONT_FRAGMENT };
            let ident = if v6 { 0 } else { ident };
            let parsed = parse(&packet(&flow, ident, len)).unwrap();
            prop_assert_eq!(parsed.outer, Outer { flow, ident: Ident::Known { ident, fragment } });
            prop_assert_eq!((parsed.start, parsed.len), (super::len(v6), len));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(parsed) = parse(&bytes) {
                prop_assert!(parsed.start + parsed.len <= bytes.len());
            }
        }
    }
}
