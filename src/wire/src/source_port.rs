//! The UDP source port: what a network spreads flows by.
//!
//! Any port will do for the receiver. These are the choices of kernel rxe, so that a network sees
//! from us what it sees from rxe: always the upper quarter of all ports, the two ends of a
//! connection the same one.

use urxe_types::Qpn;

/// The lowest port of those used.
const BASE: u16 = 0xc000;
/// How many bits of a port are free above [`BASE`].
const BITS: u32 = 14;

/// The source port of a connection: from the flow label, or from both QPNs if that is 0.
pub fn flow_source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = if flow_label == 0 {
        let mut mixed = u64::from(local.get()) * u64::from(remote.get());
        // WIRE-030
        mixed ^= mixed >> 20;
        mixed ^= mixed >> 40;
        mixed as u32 & 0xf_ffff
    } else {
        flow_label & 0xf_ffff
    };
    BASE | ((label & 0x3fff) ^ (label >> BITS)) as u16
}

/// The source port of a QP that has no connection (UD, and QP1 for the CM): from its own QPN, as
/// the kernel's `hash_32` makes 14 bits of it.
pub fn datagram_source_port(local: Qpn) -> u16 {
    BASE | (local.get().wrapping_mul(0x61c8_8647) >> (32 - BITS)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_those_that_kernel_rxe_was_seen_to_use() {
        let qpn = Qpn::new;
        assert_eq!(flow_source_port(0, qpn(0x11), qpn(0x11)), 49441);
        assert_eq!(flow_source_port(0xb9d62, qpn(0x11), qpn(0x11)), 56652);
        assert_eq!(datagram_source_port(qpn(1)), 55410);
    }

    #[test]
    fn both_ends_of_a_connection_use_the_same_port() {
        let (a, b) = (Qpn::new(0xfedcba), Qpn::new(0x123456));
        assert_eq!(flow_source_port(0, a, b), flow_source_port(0, b, a));
    }
}
