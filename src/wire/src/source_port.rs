//! The UDP source port: what a network spreads flows by.
//!
//! Any port will do for the receiver. These are the choices of kernel rxe, so that a network sees
//! from us what it sees from rxe: always the upper quarter of all ports, the two ends of a
//! connection the same one. Where not all of these can be had, [`SourcePorts`] says which can.

use urxe_types::Qpn;

/// The lowest port of those used.
pub const FIRST_SOURCE_PORT: u16 = 0xc000;
/// How many bits of a port are free above [`FIRST_SOURCE_PORT`].
const BITS: u32 = 14;

/// The UDP source ports that datagrams can leave from. The ICRC covers the port, so a flow has to
/// name one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// Any.
    All,
    /// Always this one.
    Fixed(u16),
    /// `count` ports from `first` on.
    Pool {
        /// The lowest.
        first: u16,
        /// How many; 0 is taken for 1.
        count: u8,
    },
}

impl SourcePorts {
    /// The port of a flow that would have the port `wanted` if it could choose: the same one for
    /// the same wish, so that the packets of a flow stay in order.
    pub fn of_flow(self, wanted: u16) -> u16 {
        match self {
            SourcePorts::All => wanted,
            SourcePorts::Fixed(port) => port,
            // WIRE-033: the lower bits of a product of QPNs are far from even, those of this
            // product (by the golden ratio) are not.
            SourcePorts::Pool { first, count } => {
                let spread = u32::from(wanted).wrapping_mul(0x9e37_79b1) >> 16;
                first.wrapping_add(((spread * u32::from(count)) >> 16) as u16)
            }
        }
    }
}

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
    FIRST_SOURCE_PORT | ((label & 0x3fff) ^ (label >> BITS)) as u16
}

/// The source port of a QP that has no connection (UD, and QP1 for the CM): from its own QPN, as
/// the kernel's `hash_32` makes 14 bits of it.
pub fn datagram_source_port(local: Qpn) -> u16 {
    FIRST_SOURCE_PORT | (local.get().wrapping_mul(0x61c8_8647) >> (32 - BITS)) as u16
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

    #[test]
    fn a_pool_has_about_as_many_flows_on_each_port() {
        let pool = SourcePorts::Pool { first: FIRST_SOURCE_PORT, count: 16 };
        // Two programs that make their QPs in step, and QPNs that count from anywhere.
        for (local, remote) in [(0x11, 0x11), (0x8000, 0x23), (0xabcdef, 0x123456)] {
            let mut flows = [0; 16];
            for n in 0..1600 {
                let (local, remote) = (Qpn::new(local + n), Qpn::new(remote + n));
                let port = pool.of_flow(flow_source_port(0, local, remote));
                flows[usize::from(port - FIRST_SOURCE_PORT)] += 1;
            }
            assert!(flows.iter().all(|flows| (50..200).contains(flows)), "{flows:?}");
        }
    }

    #[test]
    fn the_port_of_a_flow_is_one_that_can_be_had() {
        for wanted in (0..=u16::MAX).step_by(17) {
            assert_eq!(SourcePorts::All.of_flow(wanted), wanted);
            assert_eq!(SourcePorts::Fixed(4791).of_flow(wanted), 4791);
            for count in [0, 1, 3, 255] {
                let port = SourcePorts::Pool { first: 50_000, count }.of_flow(wanted);
                assert!((50_000..50_000 + u16::from(count.max(1))).contains(&port), "{port}");
            }
        }
    }
}
