//! Reading the IP and UDP headers in front of a datagram.

use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, UdpHeaderSlice};
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, Outer, ROCE_PORT};

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
    let datagram = packet.get(ip_len..end)?;
    let udp = UdpHeaderSlice::from_slice(datagram).ok()?;
    let len = datagram.len() - udp.slice().len();
    if udp.destination_port() != ROCE_PORT
        || usize::from(udp.length()) != datagram.len()
        || len == 0
    {
        return None;
    }
    flow.src_port = udp.source_port();
    Some(Parsed { outer: Outer { flow, ident }, start: end - len, len })
}

/// The flow but for its port, the identification, the header's length and the packet's end.
fn parse_ipv4(packet: &[u8]) -> Option<(Flow, Ident, usize, usize)> {
    let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
    // As the ICRC covers them, with the bit that is reserved.
    let fragment = u16::from_be_bytes([ip.slice()[6], ip.slice()[7]]);
    if !ip.options().is_empty() || ip.protocol() != IpNumber::UDP || fragment & !DONT_FRAGMENT != 0
    {
        return None;
    }
    let flow = Flow {
        src: ip.source_addr().into(),
        dst: ip.destination_addr().into(),
        src_port: 0,
        traffic_class: ip.dcp().value() << 2 | ip.ecn().value(),
        hop_limit: ip.ttl(),
        flow_label: 0,
    };
    let ident = Ident::Known { ident: ip.identification(), fragment };
    Some((flow, ident, ip.slice().len(), ip.total_len().into()))
}

fn parse_ipv6(packet: &[u8]) -> Option<(Flow, Ident, usize, usize)> {
    let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
    if ip.next_header() != IpNumber::UDP {
        return None;
    }
    let flow = Flow {
        src: ip.source_addr().into(),
        dst: ip.destination_addr().into(),
        src_port: 0,
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit(),
        flow_label: ip.flow_label().value(),
    };
    let ident = Ident::Known { ident: 0, fragment: 0 };
    let len = ip.slice().len();
    Some((flow, ident, len, len + usize::from(ip.payload_length())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use urxe_wire::OuterHeaders;

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

    /// A whole packet with a payload of `len` bytes.
    fn packet(flow: &Flow, ident: u16, len: usize) -> Vec<u8> {
        let mut packet = OuterHeaders::new(flow, ident, DONT_FRAGMENT, len).as_bytes().to_vec();
        packet.resize(packet.len() + len, 0xa5);
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
        for (index, value, what) in [
            (0, 0x46, "options"),
            (6, 0x20, "a first fragment"),
            (7, 0x01, "a later fragment"),
            (9, 6, "TCP"),
            (3, 47, "an IP length that is not the UDP length"),
            (22, 0x13, "another port"),
            (25, 8, "an empty datagram"),
        ] {
            let mut bytes = good.clone();
            bytes[index] = value;
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
            prop_assert_eq!((parsed.start, parsed.len), (OuterHeaders::len(v6), len));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(parsed) = parse(&bytes) {
                prop_assert!(parsed.start + parsed.len <= bytes.len());
            }
        }
    }
}
