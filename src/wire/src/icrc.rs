//! Invariant CRC: the last four bytes of every packet, and what they protect.
//!
//! It is the CRC-32 of Ethernet, little-endian on the wire, over
//!
//! ```text
//! +--------+-----------+------------+-----+------------------------------------+
//! | 8 x ff | IP header | UDP header | BTH | extended headers, payload, padding |
//! +--------+-----------+------------+-----+------------------------------------+
//! ```
//!
//! with everything as ones that may change on the way: type of service, time to live and header
//! checksum (IPv4), traffic class, flow label and hop limit (IPv6), the UDP checksum, and the
//! BTH's byte 4.
//!
//! # The identification
//!
//! The IPv4 identification is under the ICRC, but a plain UDP socket neither sets nor shows it.
//! A sender gets around that by knowing what its kernel writes. A receiver gets around it because
//! a CRC is linear: two packets that differ in some bits have ICRCs that differ by something
//! that depends on those bits and on how many bytes follow, not on the packets. Run backwards
//! over those bytes, the difference between the ICRC that came and the one computed for a guess
//! becomes the difference between guess and truth in the four bytes of identification, flags and
//! fragment offset. *Any* difference becomes *some* change of these 32 bits; a change that
//! touches nothing but the identification, and perhaps "don't fragment", is taken for one.
//!
//! What it costs is strength: of 2^32 possible differences 2^17 are explained away, so that a
//! random corruption gets past this check once in 2^15 times instead of once in 2^32. The link's
//! own checksum and, where the sender fills it in, the UDP checksum still stand. Where the
//! identification is known, and on IPv6, which has none, nothing is given away.

use crate::outer::{DONT_FRAGMENT, MAX_UDP_PAYLOAD};
use crate::{Bth, Flow, Ident, Outer, ROCE_PORT};
use std::net::IpAddr;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// The fewest bytes that have an ICRC: a BTH and the ICRC itself.
const MIN_UDP_PAYLOAD: usize = Bth::LEN + LEN;

/// Bytes of ones that stand where InfiniBand had its own routing header.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// The ICRC of a packet whose UDP payload, without the ICRC, is `covered`.
///
/// `ident` and `fragment` (flags and fragment offset) are the IPv4 header's; IPv6 has neither.
///
/// # Panics
/// If `covered` is shorter than a BTH, or longer than a UDP datagram can be.
pub fn compute(flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
    assert!(covered.len() + LEN <= MAX_UDP_PAYLOAD, "{} bytes in a datagram", covered.len());
    let (bth, rest) = covered.split_first_chunk::<{ Bth::LEN }>().expect("there is a BTH");

    // Ones from the start: a field that may change on the way is one that is not filled in.
    let mut head = [0xff; LRH_LEN + IPV6_LEN + UDP_LEN + Bth::LEN];
    let udp_len = (UDP_LEN + covered.len() + LEN) as u16;
    let udp_at = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut head[LRH_LEN..][..IPV4_LEN];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(IPV4_LEN as u16 + udp_len).to_be_bytes());
            ip[4..6].copy_from_slice(&ident.to_be_bytes());
            ip[6..8].copy_from_slice(&fragment.to_be_bytes());
            ip[9] = PROTOCOL_UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            LRH_LEN + IPV4_LEN
        }
        (src, dst) => {
            let ip = &mut head[LRH_LEN..][..IPV6_LEN];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = PROTOCOL_UDP;
            ip[8..24].copy_from_slice(&ipv6_octets(src));
            ip[24..40].copy_from_slice(&ipv6_octets(dst));
            LRH_LEN + IPV6_LEN
        }
    };
    let udp = &mut head[udp_at..][..UDP_LEN];
    udp[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let masked_bth = &mut head[udp_at + UDP_LEN..][..Bth::LEN];
    masked_bth.copy_from_slice(bth);
    masked_bth[Bth::MUTABLE_BYTE] = 0xff;

    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..udp_at + UDP_LEN + Bth::LEN]);
    crc.update(rest);
    crc.finalize()
}

fn ipv6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// Writes the ICRC into the last four bytes of a packet that is sent with "don't fragment" and
/// identification `ident` (which IPv6 does not have).
///
/// # Panics
/// If `udp_payload` is shorter than a BTH and an ICRC, or longer than a UDP datagram can be.
pub fn stamp(flow: &Flow, ident: u16, udp_payload: &mut [u8]) {
    let (covered, icrc) = udp_payload.split_last_chunk_mut().expect("there is an ICRC");
    *icrc = compute(flow, ident, DONT_FRAGMENT, covered).to_le_bytes();
}

/// Makes the ICRC right for identification `to` if it was right for `from`, and leaves it wrong
/// if it was wrong. The packet is not read.
///
/// # Panics
/// If `udp_payload` is shorter than an ICRC.
pub(crate) fn renumber(flow: &Flow, from: u16, to: u16, udp_payload: &mut [u8]) {
    if from == to || !has_ident(flow) {
        return;
    }
    let [a, b] = (from ^ to).to_be_bytes();
    let change = u32::from_le_bytes([a, b, 0, 0]);
    let bits = register_bits_after_ident(udp_payload.len());
    let icrc = udp_payload.last_chunk_mut().expect("there is an ICRC");
    *icrc =
        (u32::from_le_bytes(*icrc) ^ gf::multiply(change, gf::power(&gf::X, bits))).to_le_bytes();
}

/// What [`Checker::check`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ICRC is right for the outer headers as they are known or guessed.
    Exact,
    /// The ICRC is right if the packet came with this identification, which was not the guess.
    Recovered {
        /// The identification.
        ident: u16,
    },
    /// The ICRC is wrong: the packet was damaged, or was never RoCE.
    Bad,
}

/// Checks ICRCs. Keeps what it worked out for the lengths that it met last.
#[derive(Clone, Debug)]
pub struct Checker {
    /// By packet length, each length having one place: hostile lengths can only evict.
    backwards: Box<[Backwards; Checker::PLACES]>,
}

impl Checker {
    /// Lengths remembered; a conversation has about five.
    const PLACES: usize = 32;

    /// A checker that has met nothing yet.
    pub fn new() -> Checker {
        Checker { backwards: Box::new([Backwards::NOTHING; Checker::PLACES]) }
    }

    /// Whether the last four of these bytes are the ICRC of the rest. Takes any bytes.
    pub fn check(&mut self, outer: &Outer, udp_payload: &[u8]) -> Verdict {
        if !(MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD).contains(&udp_payload.len()) {
            return Verdict::Bad;
        }
        let (covered, icrc) = udp_payload.split_last_chunk().expect("long enough");
        let (ident, fragment) = match outer.ident {
            Ident::Known { ident, fragment } => (ident, fragment),
            Ident::Hidden { guess } => (guess, DONT_FRAGMENT),
        };
        let difference = u32::from_le_bytes(*icrc) ^ compute(&outer.flow, ident, fragment, covered);
        match outer.ident {
            _ if difference == 0 => Verdict::Exact,
            Ident::Hidden { guess } if has_ident(&outer.flow) => {
                self.explain(difference, guess, udp_payload.len())
            }
            _ => Verdict::Bad,
        }
    }

    /// Whether another identification explains the difference.
    fn explain(&mut self, difference: u32, guess: u16, len: usize) -> Verdict {
        let place = &mut self.backwards[len / 4 % Checker::PLACES];
        if place.len != len {
            *place = Backwards::over(len);
        }
        let [i0, i1, f0, f1] = place.run(difference).to_le_bytes();
        match u16::from_be_bytes([f0, f1]) {
            0 | DONT_FRAGMENT => Verdict::Recovered { ident: guess ^ u16::from_be_bytes([i0, i1]) },
            _ => Verdict::Bad,
        }
    }
}

impl Default for Checker {
    fn default() -> Checker {
        Checker::new()
    }
}

/// Whether the outer headers have an identification: IPv4.
fn has_ident(flow: &Flow) -> bool {
    flow.src.is_ipv4() && flow.dst.is_ipv4()
}

/// How many bits the CRC register is shifted from when the identification, flags and fragment
/// offset have been added to it to the end of a packet of `len` bytes of UDP payload.
fn register_bits_after_ident(len: usize) -> u32 {
    const IDENT_AT: usize = 4;
    // A UDP payload's length is a 16-bit number, so its bits are far from overflowing 32.
    8 * (IPV4_LEN - IDENT_AT + UDP_LEN + len - LEN) as u32
}

/// The CRC register run backwards from the end of a packet to the identification, as a matrix.
#[derive(Clone, Debug)]
struct Backwards {
    /// Of the UDP payload in bytes; 0 while the place is empty.
    len: usize,
    /// What bit `i` of the register becomes.
    columns: [u32; 32],
}

impl Backwards {
    const NOTHING: Backwards = Backwards { len: 0, columns: [0; 32] };

    fn over(len: usize) -> Backwards {
        let mut column = gf::power(&gf::X_INVERSE, register_bits_after_ident(len));
        let mut columns = [0; 32];
        // Bit 31 of the register is the polynomial 1, and every bit below has one more x.
        for place in columns.iter_mut().rev() {
            *place = column;
            column = gf::times_x(column);
        }
        Backwards { len, columns }
    }

    fn run(&self, register: u32) -> u32 {
        let mut result = 0;
        for (i, column) in self.columns.iter().enumerate() {
            result ^= column & (register >> i & 1).wrapping_neg();
        }
        result
    }
}

/// Polynomials over GF(2) modulo the CRC's, in the CRC register's own order: bit 31 is 1, bit 0
/// is x^31.
mod gf {
    /// The CRC's polynomial, without x^32.
    const MODULUS: u32 = 0xedb8_8320;

    /// x, x^2, x^4, x^8 ...
    pub(super) static X: [u32; 32] = squares(times_x(ONE));
    /// x^-1, x^-2, x^-4, x^-8 ...
    pub(super) static X_INVERSE: [u32; 32] = squares(ONE ^ MODULUS << 1);

    const ONE: u32 = 1 << 31;

    /// `a` times x: what a bit of zero does to the register.
    pub(super) const fn times_x(a: u32) -> u32 {
        a >> 1 ^ MODULUS & (a & 1).wrapping_neg()
    }

    /// The product of two polynomials.
    pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        let mut power = 0;
        while power < 32 {
            product ^= b & (a >> (31 - power) & 1).wrapping_neg();
            b = times_x(b);
            power += 1;
        }
        product
    }

    const fn squares(first: u32) -> [u32; 32] {
        let mut squares = [first; 32];
        let mut i = 1;
        while i < 32 {
            squares[i] = multiply(squares[i - 1], squares[i - 1]);
            i += 1;
        }
        squares
    }

    /// The power of the polynomial whose repeated squares these are.
    pub(super) fn power(squares: &[u32; 32], exponent: u32) -> u32 {
        let factors = squares.iter().enumerate().filter(|(i, _)| exponent >> i & 1 == 1);
        factors.fold(ONE, |product, (_, square)| multiply(product, *square))
    }
}
