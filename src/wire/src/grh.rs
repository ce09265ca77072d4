//! The 40 bytes in front of every datagram that a program receives.
//!
//! InfiniBand puts its global routing header there. RoCEv2 puts the IP header that stands in its
//! place: an IPv6 header is as long, an IPv4 header is the last 20 bytes.

use crate::outer::{DONT_FRAGMENT, OuterHeaders};
use crate::{Ident, Outer};

/// Bytes in front of a datagram.
pub const GRH_LEN: usize = 40;

impl Outer {
    /// The IP header that a packet of `udp_len` bytes (UDP payload) came with, as a program finds
    /// it in front of a datagram. An IPv4 identification that is not known is shown as 0; the
    /// checksum is right for what is shown.
    pub fn grh(&self, udp_len: usize) -> [u8; GRH_LEN] {
        let (ident, fragment) = match self.ident {
            Ident::Known { ident, fragment } => (ident, fragment),
            Ident::Hidden { .. } => (0, DONT_FRAGMENT),
        };
        let headers = OuterHeaders::new(&self.flow, ident, fragment, udp_len);
        let mut grh = [0; GRH_LEN];
        // UD-011, UD-012: an IPv6 header fills all of it, an IPv4 header its end.
        grh[GRH_LEN - headers.ip().len()..].copy_from_slice(headers.ip());
        grh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flow;

    fn outer(src: &str, dst: &str, ident: Ident) -> Outer {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let flow = Flow {
            src,
            dst,
            src_port: 0xc000,
            traffic_class: 0x2a,
            hop_limit: 63,
            flow_label: 0x54321,
        };
        Outer { flow, ident }
    }

    #[test]
    fn ipv4_stands_in_the_last_20_bytes_with_a_valid_checksum() {
        let ident = Ident::Known { ident: 0x1234, fragment: DONT_FRAGMENT };
        let grh = outer("10.0.0.2", "10.0.0.1", ident).grh(36);
        assert_eq!(grh[..20], [0; 20]);
        let header: [u8; 20] = grh[20..].try_into().unwrap();
        let checksum = [header[10], header[11]];
        #[rustfmt::skip]
        assert_eq!(header, [
            0x45, 0x2a, 0, 64,  0x12, 0x34, 0x40, 0,  63, 17, checksum[0], checksum[1],
            10, 0, 0, 2,  10, 0, 0, 1,
        ]);
        let checked = etherparse::Ipv4Header::from_slice(&header).unwrap().0;
        assert_eq!(checked.header_checksum, checked.calc_header_checksum());
    }

    #[test]
    fn an_ipv4_checksum_that_is_known() {
        // From RFC 1071's rule, worked out by hand for a header of few bits.
        let ident = Ident::Hidden { guess: 7 };
        let mut outer = outer("0.0.0.1", "0.0.0.2", ident);
        outer.flow.traffic_class = 0;
        let header = &outer.grh(0)[20..];
        // 4500 + 001c + 0000 + 4000 + 3f11 + 0001 + 0002 = c430.
        assert_eq!(header[10..12], (!0xc430_u16).to_be_bytes());
    }

    #[test]
    fn ipv6_is_the_header_itself() {
        let grh = outer("fe80::2", "fe80::1", Ident::Hidden { guess: 0 }).grh(36);
        assert_eq!(grh[..8], [0x62, 0xa5, 0x43, 0x21, 0, 44, 17, 63]);
        assert_eq!((grh[8], grh[9], grh[23]), (0xfe, 0x80, 2));
        assert_eq!((grh[24], grh[25], grh[39]), (0xfe, 0x80, 1));
    }
}
