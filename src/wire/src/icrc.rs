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
//! fragment offset. *Any* difference becomes *some* change of these 32 bits; one that touches
//! only the identification is taken for just that.
//!
//! What it costs is strength: of 2^32 differences 2^16 are explained away, so that one random
//! corruption in 2^16 gets past this check instead of one in 2^32. A single flipped bit never
//! does, in a packet of any length that RoCEv2 has. (It would if flags were to be guessed too:
//! with "don't fragment" in doubt, bit 3 of byte 173 looks like another identification. So a
//! sender that leaves that flag out, which none should, is only understood where the headers are
//! seen.) The link's own checksum and, where the sender fills it in, the UDP checksum still
//! stand. Where the identification is known, and on IPv6, which has none, nothing is given away.
//!
//! # The computation
//!
//! It is most of what a large packet costs, so it goes in one pass over headers and payload, with
//! the widest multiplications that the processor has; `crc32fast` is for processors without any.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that not every processor has")]
mod clmul;
mod gf2;
mod head;
mod ident;

#[cfg(target_arch = "x86_64")]
use self::clmul::Kernel;
use self::ident::Backwards;
use crate::outer::{DONT_FRAGMENT, MAX_UDP_PAYLOAD};
use crate::{Bth, Flow, Ident, Outer};

/// Bytes on the wire.
pub const LEN: usize = 4;

/// The fewest bytes that have an ICRC: a BTH and the ICRC itself.
const MIN_UDP_PAYLOAD: usize = Bth::LEN + LEN;

/// The ICRC of a packet whose UDP payload, without the ICRC, is `covered`.
///
/// `ident` and `fragment` (flags and fragment offset) are the IPv4 header's; IPv6 has neither.
///
/// # Panics
/// If `covered` is shorter than a BTH, or longer than a UDP datagram can be.
pub fn compute(flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
    assert!(covered.len() + LEN <= MAX_UDP_PAYLOAD, "{} bytes in a datagram", covered.len());
    // WIRE-024
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = Kernel::widest() {
        return kernel.compute(flow, ident, fragment, covered);
    }
    compute_plain(flow, ident, fragment, covered)
}

/// As [`compute`], with no instructions but those that the library knows how to use.
fn compute_plain(flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
    let (head, rest) = head::split(flow, ident, fragment, covered);
    // A register of zeros is that of a CRC of ones.
    let mut crc = crc32fast::Hasher::new_with_initial(!0);
    crc.update(head.map(u128::to_le_bytes).as_flattened());
    crc.update(rest);
    crc.finalize()
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

/// Whether a datagram is long enough for a BTH and an ICRC.
pub(crate) fn has_room_in(udp_payload: &[u8]) -> bool {
    udp_payload.len() >= Bth::LEN + LEN
}

/// Makes the ICRC right for identification `to` if it was right for `from`, and leaves it wrong
/// if it was wrong. The packet is not read. One that is too short for an ICRC stays as it is.
pub(crate) fn renumber(flow: &Flow, from: u16, to: u16, udp_payload: &mut [u8]) {
    if from == to || !has_ident(flow) || !has_room_in(udp_payload) {
        return;
    }
    let effect = ident::effect(from ^ to, udp_payload.len());
    let icrc = udp_payload.last_chunk_mut().expect("there is an ICRC");
    *icrc = (u32::from_le_bytes(*icrc) ^ effect).to_le_bytes();
}

/// Makes the ICRC right for the flow `to` if it was right for `from`, and leaves it wrong if it was
/// wrong. A packet that is too short for an ICRC stays as it is.
///
/// # Panics
/// If `udp_payload` is longer than a UDP datagram can be.
pub(crate) fn reroute(from: &Flow, to: &Flow, ident: u16, udp_payload: &mut [u8]) {
    if !has_room_in(udp_payload) {
        return;
    }
    let (covered, icrc) = udp_payload.split_last_chunk_mut().expect("there is an ICRC");
    let of = |flow| compute(flow, ident, DONT_FRAGMENT, covered);
    *icrc = (u32::from_le_bytes(*icrc) ^ of(from) ^ of(to)).to_le_bytes();
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
        if !place.is_over(len) {
            *place = Backwards::over(len);
        }
        // WIRE-027
        match place.explain(difference) {
            Some(change) => Verdict::Recovered { ident: guess ^ change },
            None => Verdict::Bad,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OuterHeaders;
    use crate::testing::{UNWRITTEN, flow, ipv4_flow, ipv6_flow};
    use proptest::prelude::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    fn v4(src: &str, dst: &str, src_port: u16) -> Flow {
        Flow {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    fn known(flow: Flow, ident: u16) -> Outer {
        Outer { flow, ident: Ident::Known { ident, fragment: DONT_FRAGMENT } }
    }

    fn hidden(flow: Flow, guess: u16) -> Outer {
        Outer { flow, ident: Ident::Hidden { guess } }
    }

    /// Numbers that look random and are the same in every run.
    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        let mut rng = SplitMix64::seed_from_u64(seed);
        std::iter::repeat_with(move || rng.next_u64())
    }

    /// `len` bytes of noise, the last four being the ICRC.
    fn stamped(flow: &Flow, ident: u16, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = noise(len as u64).map(|x| x as u8).take(len).collect();
        stamp(flow, ident, &mut packet);
        packet
    }

    // Packets of hardware and of an independent implementation: scapy's RoCE tests hold them.

    /// A UC SEND ONLY of 18 bytes and 2 of padding, without its ICRC.
    #[rustfmt::skip]
    const UC_SEND: [u8; 32] = [
        0x24, 0x60, 0xff, 0xff,  0, 0, 0, 211,  0, 0xcf, 0x17, 0x10,
        0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a,
        0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e, 0x50, 0x00, 0x00,
    ];

    #[test]
    fn known_answer_ipv4() {
        let flow = v4("192.168.0.7", "192.168.0.7", 49152);
        let icrc = compute(&flow, 1144, DONT_FRAGMENT, &UC_SEND);
        assert_eq!(icrc.to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn known_answer_ipv6() {
        let flow = Flow {
            traffic_class: 226,
            hop_limit: 255,
            flow_label: 0x1face,
            ..v4("2022::1023", "2023::1024", 49152)
        };
        let icrc = compute(&flow, 0, 0, &UC_SEND);
        assert_eq!(icrc.to_le_bytes(), [0x3e, 0x5b, 0x74, 0x3b]);
    }

    #[test]
    fn known_answer_of_a_connectx_4_cnp() {
        let mut packet = [0; 32];
        packet[..8].copy_from_slice(&[0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18]);
        packet[28..].copy_from_slice(&[0x82, 0xfd, 0x00, 0x2a]);
        let flow = Flow { traffic_class: 0xc2, ..v4("10.0.17.1", "10.0.18.1", 0) };
        let mut checker = Checker::new();
        assert_eq!(checker.check(&known(flow, 0x718c), &packet), Verdict::Exact);
        let recovered = Verdict::Recovered { ident: 0x718c };
        assert_eq!(checker.check(&hidden(flow, 0), &packet), recovered);
    }

    #[test]
    fn fields_that_may_change_on_the_way_are_not_covered() {
        for flow in [v4("10.0.0.1", "10.0.0.2", 49152), v4("fd00::1", "fd00::2", 49152)] {
            let mut packet = stamped(&flow, 7, 64);
            packet[4] = 0x80; // a switch has marked FECN
            let changed = Flow { traffic_class: 3, hop_limit: 1, flow_label: 0xfffff, ..flow };
            assert_eq!(Checker::new().check(&known(changed, 7), &packet), Verdict::Exact);
        }
    }

    #[test]
    fn the_rest_of_the_outer_headers_is_covered() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        let packet = stamped(&flow, 7, 64);
        let verdict = |outer: Outer| Checker::new().check(&outer, &packet);
        assert_eq!(verdict(known(flow, 7)), Verdict::Exact);
        assert_eq!(verdict(known(flow, 8)), Verdict::Bad);
        assert_eq!(verdict(known(Flow { src: flow.dst, ..flow }, 7)), Verdict::Bad);
        assert_eq!(verdict(known(Flow { dst: flow.src, ..flow }, 7)), Verdict::Bad);
        assert_eq!(verdict(known(Flow { src_port: 49153, ..flow }, 7)), Verdict::Bad);
        let fragmentable = Ident::Known { ident: 7, fragment: 0 };
        assert_eq!(verdict(Outer { flow, ident: fragmentable }), Verdict::Bad);
    }

    #[test]
    fn every_identification_is_recovered() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        let mut packet = stamped(&flow, 0, 20);
        let mut checker = Checker::new();
        for ident in 1..=u16::MAX {
            stamp(&flow, ident, &mut packet);
            let recovered = Verdict::Recovered { ident };
            assert_eq!(checker.check(&hidden(flow, 0), &packet), recovered);
        }
    }

    #[test]
    fn every_length_has_its_own_way_back() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        // Many lengths share a place in the checker, so this walks over evictions too.
        let mut checker = Checker::new();
        for len in MIN_UDP_PAYLOAD..4300 {
            let packet = stamped(&flow, 0x1234, len);
            let recovered = Verdict::Recovered { ident: 0x1234 };
            assert_eq!(checker.check(&hidden(flow, 0xffff), &packet), recovered, "{len} bytes");
        }
    }

    #[test]
    fn other_flags_and_offsets_are_no_explanation() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        let mut packet = stamped(&flow, 0, 300);
        for fragment in [0, 0x2000, 0xc000, 0x4001, 0x40ff] {
            let (covered, icrc) = packet.split_last_chunk_mut().unwrap();
            *icrc = compute(&flow, 0, fragment, covered).to_le_bytes();
            let mut checker = Checker::new();
            assert_eq!(checker.check(&hidden(flow, 0), &packet), Verdict::Bad);
            let seen = Outer { flow, ident: Ident::Known { ident: 0, fragment } };
            assert_eq!(checker.check(&seen, &packet), Verdict::Exact);
        }
    }

    #[test]
    fn a_hidden_identification_lets_one_corruption_in_65536_pass() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        let mut packet = stamped(&flow, 0x5555, 128);
        let mut checker = Checker::new();
        let mut passed = 0;
        for damage in noise(1).take(1 << 19) {
            packet[64..72].copy_from_slice(&damage.to_le_bytes());
            assert_eq!(checker.check(&known(flow, 0x5555), &packet), Verdict::Bad);
            passed += u32::from(checker.check(&hidden(flow, 0), &packet) != Verdict::Bad);
        }
        assert!((1..=20).contains(&passed), "{passed} passed, 8 are expected");
    }

    #[test]
    fn a_single_flipped_bit_is_always_noticed() {
        let flow = v4("10.0.0.1", "10.0.0.2", 49152);
        let mut packet = stamped(&flow, 0x5555, crate::batch::MAX_DATAGRAM);
        let mut checker = Checker::new();
        for bit in 0..8 * packet.len() {
            if bit / 8 == Bth::MUTABLE_BYTE {
                continue;
            }
            packet[bit / 8] ^= 1 << (bit % 8);
            for outer in [known(flow, 0x5555), hidden(flow, 0x5555), hidden(flow, 0)] {
                assert_eq!(checker.check(&outer, &packet), Verdict::Bad, "bit {bit}");
            }
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn mixed_families_count_as_ipv6() {
        let mixed = v4("10.0.0.1", "fd00::2", 49152);
        let mapped = v4("::ffff:10.0.0.1", "fd00::2", 49152);
        let packet = stamped(&mixed, 0, 64);
        assert_eq!(Checker::new().check(&hidden(mapped, 9), &packet), Verdict::Exact);
    }

    #[test]
    #[should_panic(expected = "there is a BTH")]
    fn stamping_less_than_a_bth_is_our_own_mistake() {
        stamp(&v4("10.0.0.1", "10.0.0.2", 0), 0, &mut [UNWRITTEN; MIN_UDP_PAYLOAD - 1]);
    }

    /// The ICRC from its definition, of bytes in one piece.
    fn defined(flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
        let outer = OuterHeaders::new(flow, ident, fragment, covered.len() + LEN);
        let mut bytes = [&[0xff; 8], outer.as_bytes(), covered].concat();
        let masked: &[usize] = match outer.ip().len() {
            20 => &[1, 8, 10, 11, 26, 27, 28 + Bth::MUTABLE_BYTE],
            _ => &[1, 2, 3, 7, 46, 47, 48 + Bth::MUTABLE_BYTE],
        };
        masked.iter().for_each(|at| bytes[8 + at] = 0xff);
        if outer.ip().len() == 40 {
            bytes[8] |= 0x0f; // the traffic class begins within a byte
        }
        crc32fast::hash(&bytes)
    }

    /// Whether all ways to compute an ICRC that there are here agree with its definition.
    fn check_all_ways(
        flow: &Flow,
        ident: u16,
        fragment: u16,
        covered: &[u8],
    ) -> Result<(), TestCaseError> {
        let defined = defined(flow, ident, fragment, covered);
        prop_assert_eq!(compute(flow, ident, fragment, covered), defined);
        prop_assert_eq!(compute_plain(flow, ident, fragment, covered), defined);
        #[cfg(target_arch = "x86_64")]
        for (i, kernel) in Kernel::available().enumerate() {
            let computed = kernel.compute(flow, ident, fragment, covered);
            prop_assert_eq!(computed, defined, "kernel {} of those that there are", i);
        }
        Ok(())
    }

    #[test]
    fn every_short_packet_has_the_icrc_of_the_definition() {
        let bytes: Vec<u8> = noise(2).map(|x| x as u8).take(1200).collect();
        for flow in [v4("10.0.0.1", "10.0.0.2", 49152), v4("fd00::1", "fd00::2", 49152)] {
            for len in Bth::LEN..=bytes.len() {
                check_all_ways(&flow, 7, DONT_FRAGMENT, &bytes[..len]).unwrap();
            }
        }
    }

    proptest! {
        #[test]
        fn any_packet_anywhere_has_the_icrc_of_the_definition(
            flow in flow(),
            ident: u16,
            fragment: u16,
            seed: u64,
            offset in 0usize..64,
            len in Bth::LEN..9100,
        ) {
            let bytes: Vec<u8> = noise(seed).map(|x| x as u8).take(offset + len).collect();
            check_all_ways(&flow, ident, fragment, &bytes[offset..])?;
        }

        #[test]
        fn any_bytes_of_any_length_get_a_verdict(
            flow in flow(),
            guess: u16,
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            len in 0usize..70_000,
        ) {
            let mut checker = Checker::new();
            checker.check(&hidden(flow, guess), &bytes);
            checker.check(&known(flow, guess), &bytes);
            checker.check(&hidden(flow, guess), &vec![0xff; len]);
        }

        #[test]
        fn a_stamped_icrc_is_right(flow in flow(), ident: u16, len in MIN_UDP_PAYLOAD..2000) {
            let packet = stamped(&flow, ident, len);
            let mut checker = Checker::new();
            prop_assert_eq!(checker.check(&known(flow, ident), &packet), Verdict::Exact);
            prop_assert_eq!(checker.check(&hidden(flow, ident), &packet), Verdict::Exact);
        }

        #[test]
        fn a_wrong_guess_leads_to_the_identification(
            flow in ipv4_flow(),
            ident: u16,
            wrong in 1u16..,
            len in MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD,
        ) {
            let packet = stamped(&flow, ident, len);
            let verdict = Checker::new().check(&hidden(flow, ident ^ wrong), &packet);
            prop_assert_eq!(verdict, Verdict::Recovered { ident });
        }

        #[test]
        fn ipv6_is_exact_whatever_the_guess(flow in ipv6_flow(), guess: u16, damage in 1u32..) {
            let mut packet = stamped(&flow, 0, 128);
            let mut checker = Checker::new();
            prop_assert_eq!(checker.check(&hidden(flow, guess), &packet), Verdict::Exact);
            packet[100..104].iter_mut().zip(damage.to_be_bytes()).for_each(|(b, d)| *b ^= d);
            prop_assert_eq!(checker.check(&hidden(flow, guess), &packet), Verdict::Bad);
        }

        #[test]
        fn ipv6_has_no_identification_to_recover(flow in ipv6_flow(), change in 1u16..) {
            let mut packet = stamped(&flow, 0, 128);
            let ipv4 = v4("10.0.0.1", "10.0.0.2", 49152);
            renumber(&ipv4, 0, change, &mut packet);
            let verdict = Checker::new().check(&hidden(flow, 0), &packet);
            prop_assert_eq!(verdict, Verdict::Bad);
        }

        #[test]
        fn renumbering_is_stamping_anew(
            flow in flow(), from: u16, to: u16, len in MIN_UDP_PAYLOAD..3000,
        ) {
            let mut packet = stamped(&flow, from, len);
            renumber(&flow, from, to, &mut packet);
            prop_assert_eq!(packet, stamped(&flow, to, len));
        }

        #[test]
        fn renumbering_heals_nothing(flow in flow(), from: u16, to: u16, damage in 1u8..) {
            let mut packet = stamped(&flow, from, 100);
            packet[50] ^= damage;
            renumber(&flow, from, to, &mut packet);
            prop_assert_eq!(Checker::new().check(&known(flow, to), &packet), Verdict::Bad);
        }
    }
}
