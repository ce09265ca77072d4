//! What the ICRC covers up to the BTH's end, with ones for everything that may change on the way.
//!
//! The rest of a packet is taken from where it lies, but these bytes must be made for each one.
//! They have one length for both families: IPv4's begin with zeros. A CRC does not notice zeros as
//! long as its register is zero, so its initial value, which is ones, must be taken into account
//! before. It is: the first four bytes are ones, which added to the initial value leave zero.
//! They are not written down.

use super::LEN;
use crate::outer::OuterHeaders;
use crate::{Bth, Flow};

/// Bytes of the head.
pub(super) const HEAD: usize = ONES + OuterHeaders::MAX_LEN + Bth::LEN;

/// Ones that stand where InfiniBand had its own routing header: eight bytes, of which the first
/// four are in the CRC's initial value.
const ONES: usize = 8 - 4;

/// Where the BTH stands.
const BTH_AT: usize = ONES + OuterHeaders::MAX_LEN;
/// Where an IPv4 header stands.
const IPV4_AT: usize = BTH_AT - OuterHeaders::len(false);

/// The head of a packet, and the rest.
///
/// The head is four numbers, the first bytes lowest, because bytes that were written to memory a
/// few at a time are slow to read back many at a time. Inlined, it never is in memory.
///
/// # Panics
/// If `covered` is shorter than a BTH.
#[inline(always)]
pub(super) fn split<'a>(
    flow: &Flow,
    ident: u16,
    fragment: u16,
    covered: &'a [u8],
) -> ([u128; HEAD / 16], &'a [u8]) {
    let (bth, rest) = covered.split_first_chunk::<{ Bth::LEN }>().expect("there is a BTH");
    let mut head = [0; HEAD];
    match super::has_ident(flow) {
        true => head[IPV4_AT - ONES..IPV4_AT].fill(0xff),
        false => head[..ONES].fill(0xff),
    }
    let outer = head[ONES..].first_chunk_mut().expect("room for the longest headers");
    // WIRE-026: what is filled in here is covered.
    OuterHeaders::write_masked(outer, flow, ident, fragment, covered.len() + LEN);
    head[BTH_AT..].copy_from_slice(bth);
    // WIRE-025
    head[BTH_AT + Bth::MUTABLE_BYTE] = 0xff;
    let lanes = head.as_chunks().0;
    ([0, 1, 2, 3].map(|i| u128::from_le_bytes(lanes[i])), rest)
}
