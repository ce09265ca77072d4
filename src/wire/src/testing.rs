//! What the tests of several files share.

use crate::{Body, Bth, Flow, Headers, Opcode};
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Debug;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What fresh buffers hold: a byte that nobody wrote shows.
pub(crate) const UNWRITTEN: u8 = 0xa5;

/// These bytes mean this header, both ways, and every byte is written.
#[track_caller]
pub(crate) fn assert_means<const N: usize, H: PartialEq + Debug>(
    bytes: [u8; N],
    header: H,
    parse: impl Fn(&[u8; N]) -> H,
    emit: impl Fn(&H) -> [u8; N],
) {
    assert_eq!(parse(&bytes), header);
    assert_eq!(emit(&header), bytes);
}

/// A header as it is written into a buffer that held something else.
pub(crate) fn emitted<const N: usize, H>(header: &H, emit: impl Fn(&H, &mut [u8; N])) -> [u8; N] {
    let mut bytes = [UNWRITTEN; N];
    emit(header, &mut bytes);
    bytes
}

/// The headers of any packet.
pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    (select(Opcode::ALL), any::<[u8; Headers::MAX_LEN]>()).prop_map(|(opcode, mut bytes)| {
        bytes[0] = opcode.byte();
        bytes[1] &= 0xf0;
        let (bth, mut extended) = bytes.split_first_chunk().unwrap();
        let (_, bth) = Bth::parse(bth).unwrap();
        Headers { bth, body: Body::parse(opcode, &mut extended).unwrap() }
    })
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
