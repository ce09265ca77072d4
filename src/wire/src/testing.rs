//! What the tests of several files share.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Flow, Headers, Opcode, Reth, Syndrome,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Debug;
use std::net::{Ipv4Addr, Ipv6Addr};
use urxe_types::{Msn, Pkey, Psn, Qkey, Qpn, Rkey};

/// What fresh buffers hold: a byte that nobody wrote shows.
pub(crate) const UNWRITTEN: u8 = 0xa5;

/// These bytes mean this header, both ways, and every byte is written.
#[track_caller]
pub(crate) fn assert_means<const N: usize, H: PartialEq + Debug>(
    bytes: [u8; N],
    header: H,
    parse: impl Fn(&[u8; N]) -> H,
    emit: impl Fn(&H, &mut [u8; N]),
) {
    assert_eq!(parse(&bytes), header);
    assert_eq!(emitted(&header, emit), bytes);
}

/// A header as it is written into a buffer that held something else.
pub(crate) fn emitted<const N: usize, H>(header: &H, emit: impl Fn(&H, &mut [u8; N])) -> [u8; N] {
    let mut bytes = [UNWRITTEN; N];
    emit(header, &mut bytes);
    bytes
}

fn bth() -> impl Strategy<Value = Bth> {
    let flags = any::<[bool; 5]>();
    let small = (0u8..4, 0u8..64, 0u8..128);
    (select(Opcode::ALL), any::<u16>(), any::<u32>(), any::<u32>(), flags, small).prop_map(
        |(opcode, pkey, qpn, psn, [solicited, migreq, fecn, becn, ack_req], small)| Bth {
            opcode,
            solicited,
            migreq,
            pad: small.0,
            pkey: Pkey(pkey),
            fecn,
            becn,
            resv6a: small.1,
            dest_qp: Qpn::new(qpn),
            ack_req,
            resv7: small.2,
            psn: Psn::new(psn),
        },
    )
}

/// The headers of any packet: those that its opcode has.
pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    (bth(), any::<[u64; 3]>(), any::<[u32; 3]>(), any::<[u8; 3]>()).prop_map(
        |(bth, [va, x, y], [key, len, n], [syndrome, sel, plt])| {
            let opcode = bth.opcode;
            Headers {
                bth,
                deth: opcode.has_deth().then_some(Deth { qkey: Qkey(key), src_qp: Qpn::new(n) }),
                feth: opcode
                    .has_feth()
                    .then_some(Feth { selectivity: sel & 0x3, placement: plt & 0xf }),
                reth: opcode.has_reth().then_some(Reth { va, rkey: Rkey(key), len }),
                atomic: opcode.has_atomic_eth().then_some(AtomicEth {
                    va,
                    rkey: Rkey(key),
                    swap_or_add: x,
                    compare: y,
                }),
                aeth: opcode
                    .has_aeth()
                    .then_some(Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(n) }),
                atomic_ack: opcode.has_atomic_ack_eth().then_some(AtomicAckEth { original: x }),
                imm: opcode.has_imm().then_some(n),
                ieth: opcode.has_ieth().then_some(Rkey(key)),
            }
        },
    )
}

/// Some flow, IPv4 or IPv6.
pub(crate) fn flow() -> impl Strategy<Value = Flow> {
    prop_oneof![ipv4_flow(), ipv6_flow()]
}

/// Some IPv4 flow.
pub(crate) fn ipv4_flow() -> impl Strategy<Value = Flow> {
    (any::<[u32; 2]>(), any::<u16>(), any::<[u8; 2]>()).prop_map(
        |([src, dst], src_port, [traffic_class, hop_limit])| Flow {
            src: Ipv4Addr::from(src).into(),
            dst: Ipv4Addr::from(dst).into(),
            src_port,
            traffic_class,
            hop_limit,
            flow_label: 0,
        },
    )
}

/// Some IPv6 flow.
pub(crate) fn ipv6_flow() -> impl Strategy<Value = Flow> {
    (any::<[u128; 2]>(), any::<u16>(), any::<[u8; 2]>(), 0u32..1 << 20).prop_map(
        |([src, dst], src_port, [traffic_class, hop_limit], flow_label)| Flow {
            src: Ipv6Addr::from(src).into(),
            dst: Ipv6Addr::from(dst).into(),
            src_port,
            traffic_class,
            hop_limit,
            flow_label,
        },
    )
}
