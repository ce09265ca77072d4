//! A whole RoCEv2 packet: what a UDP datagram to port 4791 holds.
//!
//! ```text
//! +-----+------------------+---------+----------+------+
//! | BTH | extended headers | payload | pad 0..3 | ICRC |
//! +-----+------------------+---------+----------+------+
//! ```
//!
//! Which extended headers come, and in which order, follows from the opcode.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, Reth, icrc};
use std::fmt;
use urxe_types::Rkey;

/// Why bytes are not a RoCEv2 packet. None of these is answered; the packet is counted and
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the headers and the ICRC need.
    #[error("{len} bytes are too few: headers and ICRC need {need}")]
    TooShort {
        /// Bytes that came.
        len: usize,
        /// Bytes that there must be at least.
        need: usize,
    },
    /// Not a multiple of four bytes, which payload, pad and everything else add up to.
    #[error("length {len} is not a multiple of 4")]
    Misaligned {
        /// Bytes that came.
        len: usize,
    },
    /// An opcode that is reserved, or of a transport that we do not speak.
    #[error("unknown opcode {opcode:#04x}")]
    UnknownOpcode {
        /// The byte.
        opcode: u8,
    },
    /// A transport version other than 0: the rest cannot be understood.
    #[error("unknown transport version {tver}, expected 0")]
    UnknownVersion {
        /// The four bits.
        tver: u8,
    },
    /// The pad count is larger than all that follows the headers.
    #[error("pad count {pad} with {available} bytes after the headers")]
    PadTooLong {
        /// The BTH's pad count.
        pad: u8,
        /// Bytes between headers and ICRC.
        available: usize,
    },
    /// Payload after the headers of an opcode that has none.
    #[error("{len} bytes after the headers of {opcode}, which has no payload")]
    UnexpectedPayload {
        /// The packet's opcode.
        opcode: Opcode,
        /// Bytes between headers and ICRC.
        len: usize,
    },
}

/// The BTH and the extended headers of a packet.
///
/// The opcode decides which of them are on the wire. [`parse`](Packet::parse) makes exactly those
/// `Some`; who builds `Headers` does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Source QP and Q_Key of a datagram.
    pub deth: Option<Deth>,
    /// What a FLUSH shall reach.
    pub feth: Option<Feth>,
    /// Address, key and length of an RDMA operation.
    pub reth: Option<Reth>,
    /// Address, key and operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// Syndrome and MSN of a response.
    pub aeth: Option<Aeth>,
    /// The value that an atomic found.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data: the four wire bytes as a big-endian number.
    pub imm: Option<u32>,
    /// The rkey that a SEND invalidates.
    pub ieth: Option<Rkey>,
}

impl Headers {
    /// The most bytes that the headers of any opcode take.
    pub const MAX_LEN: usize = {
        let mut max = 0;
        let mut i = 0;
        while i < Opcode::ALL.len() {
            let len = Opcode::ALL[i].header_len();
            if len > max {
                max = len;
            }
            i += 1;
        }
        max
    };

    /// A BTH without extended headers.
    pub const fn new(bth: Bth) -> Headers {
        Headers {
            bth,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Bytes on the wire.
    #[allow(clippy::len_without_is_empty)] // a BTH is always there
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Reads the headers off the front of `bytes`, and gives the rest.
    fn parse(bytes: &[u8]) -> Result<(Headers, &[u8]), ParseError> {
        let too_short = |need| ParseError::TooShort { len: bytes.len() + icrc::LEN, need };
        let (bth, mut rest) = bytes.split_first_chunk().ok_or(too_short(Bth::LEN + icrc::LEN))?;
        let mut headers = Headers::new(Bth::parse(bth)?);
        let opcode = headers.bth.opcode;
        if !opcode.has_extended_headers() {
            return Ok((headers, rest));
        }
        // WIRE-006, WIRE-007: the order of the headers is that of the lines.
        let missing = too_short(opcode.header_len() + icrc::LEN);

        if opcode.has_deth() {
            headers.deth = Some(Deth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_feth() {
            headers.feth = Some(Feth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_reth() {
            headers.reth = Some(Reth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_atomic_eth() {
            headers.atomic = Some(AtomicEth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_aeth() {
            headers.aeth = Some(Aeth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_atomic_ack_eth() {
            headers.atomic_ack = Some(AtomicAckEth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_imm() {
            headers.imm = Some(ImmDt::parse(take(&mut rest).ok_or(missing)?).data);
        }
        if opcode.has_ieth() {
            headers.ieth = Some(Ieth::parse(take(&mut rest).ok_or(missing)?).rkey);
        }
        Ok((headers, rest))
    }

    /// Writes the headers that the opcode has to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`len`](Self::len), or a header that the opcode has is `None`.
    pub fn emit(&self, buf: &mut [u8]) {
        let opcode = self.bth.opcode;
        let mut rest = &mut buf[..opcode.header_len()];
        self.bth.emit(put(&mut rest));
        if !opcode.has_extended_headers() {
            return;
        }
        if opcode.has_deth() {
            self.deth.expect("a datagram carries a DETH").emit(put(&mut rest));
        }
        if opcode.has_feth() {
            self.feth.expect("a FLUSH carries a FETH").emit(put(&mut rest));
        }
        if opcode.has_reth() {
            self.reth.expect("the start of an RDMA request carries a RETH").emit(put(&mut rest));
        }
        if opcode.has_atomic_eth() {
            self.atomic.expect("an atomic carries an AtomicETH").emit(put(&mut rest));
        }
        if opcode.has_aeth() {
            self.aeth.expect("a response carries an AETH").emit(put(&mut rest));
        }
        if opcode.has_atomic_ack_eth() {
            self.atomic_ack.expect("an ATOMIC ACK carries a value").emit(put(&mut rest));
        }
        if opcode.has_imm() {
            let data = self.imm.expect("WITH IMMEDIATE carries immediate data");
            ImmDt { data }.emit(put(&mut rest));
        }
        if opcode.has_ieth() {
            let rkey = self.ieth.expect("WITH INVALIDATE carries an rkey");
            Ieth { rkey }.emit(put(&mut rest));
        }
    }
}

/// Takes `N` bytes off the front of what is still to be read.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (header, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(header)
}

/// Takes `N` bytes off the front of what is still to be written.
fn put<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (header, tail) = std::mem::take(rest)
        .split_first_chunk_mut()
        .expect("header_len is the sum of what is emitted");
    *rest = tail;
    header
}

/// A packet that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base and extended headers: those that the opcode has are `Some`.
    pub headers: Headers,
    /// What follows them, without pad and ICRC.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet from the bytes of a UDP datagram, the ICRC being the last four.
    ///
    /// The ICRC itself is not looked at: that takes the outer headers, and is
    /// [`icrc::Checker`]'s business. Whether the packet makes sense to its
    /// QP (the length of the payload among other things) is the engine's.
    pub fn parse(udp_payload: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let len = udp_payload.len();
        let (covered, _icrc) = udp_payload
            .split_last_chunk::<{ icrc::LEN }>()
            .ok_or(ParseError::TooShort { len, need: Bth::LEN + icrc::LEN })?;
        // WIRE-009
        if !len.is_multiple_of(4) {
            return Err(ParseError::Misaligned { len });
        }
        let (headers, rest) = Headers::parse(covered)?;
        let Bth { opcode, pad, .. } = headers.bth;
        // WIRE-010
        if !opcode.has_payload() && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload { opcode, len: rest.len() });
        }
        let payload = rest
            .len()
            // WIRE-008
            .checked_sub(usize::from(pad))
            // WIRE-011
            .map(|payload_len| &rest[..payload_len])
            .ok_or(ParseError::PadTooLong { pad, available: rest.len() })?;
        Ok(Packet { headers, payload })
    }
}

impl Packet<'_> {
    /// Bytes that it takes on the wire after the UDP header: headers, payload, pad and ICRC.
    pub fn udp_len(&self) -> usize {
        (self.headers.len() + self.payload.len()).next_multiple_of(4) + icrc::LEN
    }
}

/// One line, as a trace shows it: `RC WRITE ONLY qp 0x000011 psn 0x111100 va 0x7f00 …`.
impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        for (set, name) in [
            (bth.ack_req, " ack-req"),
            (bth.solicited, " solicited"),
            (bth.fecn, " fecn"),
            (bth.becn, " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        if let Some(Deth { qkey, src_qp }) = self.deth {
            write!(f, " from qp {src_qp} qkey {qkey}")?;
        }
        if let Some(Feth { selectivity, placement }) = self.feth {
            write!(f, " selectivity {selectivity} placement {placement}")?;
        }
        if let Some(Reth { va, rkey, len }) = self.reth {
            write!(f, " va {va:#x} rkey {rkey} len {len}")?;
        }
        if let Some(AtomicEth { va, rkey, swap_or_add, compare }) = self.atomic {
            write!(f, " va {va:#x} rkey {rkey} data {swap_or_add:#x} compare {compare:#x}")?;
        }
        if let Some(Aeth { syndrome, msn }) = self.aeth {
            write!(f, " {syndrome} msn {msn}")?;
        }
        if let Some(AtomicAckEth { original }) = self.atomic_ack {
            write!(f, " original {original:#x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {imm:#010x}")?;
        }
        if let Some(rkey) = self.ieth {
            write!(f, " invalidates {rkey}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Syndrome;
    use crate::testing::{UNWRITTEN, headers};
    use proptest::prelude::*;
    use urxe_types::{Msn, Psn, Qkey, Qpn};

    /// A packet as it stands on the wire, with nonsense for an ICRC.
    fn built(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![UNWRITTEN; headers.len()];
        headers.emit(&mut packet);
        packet.extend(payload);
        packet.resize(packet.len().next_multiple_of(4), 0);
        packet.extend([0xde, 0xad, 0xbe, 0xef]);
        packet
    }

    fn read_request() -> Headers {
        Headers {
            reth: Some(Reth { va: 0x1000, rkey: Rkey(0x77), len: 32 }),
            ..Headers::new(Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(0x12), Psn::new(9)))
        }
    }

    /// Some bytes of payload and the pad count that goes with them.
    fn payload_for(headers: &Headers) -> impl Strategy<Value = Vec<u8>> + use<> {
        let max = if headers.bth.opcode.has_payload() { 40 } else { 0 };
        proptest::collection::vec(any::<u8>(), 0..=max)
    }

    #[test]
    fn headers_come_in_their_order() {
        let mut bytes = vec![UNWRITTEN; Headers::MAX_LEN];
        Headers {
            reth: Some(Reth { va: 1, rkey: Rkey(2), len: 3 }),
            imm: Some(4),
            ..Headers::new(Bth::new(Opcode::RC_WRITE_ONLY_IMM, Qpn::new(5), Psn::new(6)))
        }
        .emit(&mut bytes);
        #[rustfmt::skip]
        assert_eq!(bytes, [
            0x0b, 0x40, 0xff, 0xff,  0, 0, 0, 5,  0, 0, 0, 6,
            0, 0, 0, 0, 0, 0, 0, 1,  0, 0, 0, 2,  0, 0, 0, 3,
            0, 0, 0, 4,
            UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN,
            UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN,
        ], "and nothing is written beyond them");
    }

    #[test]
    fn payload_stops_before_pad_and_icrc() {
        let mut headers = Headers::new(Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(1), Psn::new(2)));
        headers.bth.pad = 3;
        let bytes = built(&headers, b"hello");
        assert_eq!(Packet::parse(&bytes), Ok(Packet { headers, payload: b"hello" }));
    }

    #[test]
    fn every_opcode_says_how_many_bytes_it_needs() {
        for opcode in Opcode::ALL {
            let need = opcode.header_len() + icrc::LEN;
            for len in (0..need).filter(|len| len % 4 == 0) {
                let mut bytes = vec![0; len];
                if let Some(first) = bytes.first_mut() {
                    *first = opcode.byte();
                }
                let needed = if len < Bth::LEN + icrc::LEN { Bth::LEN + icrc::LEN } else { need };
                let too_short = ParseError::TooShort { len, need: needed };
                assert_eq!(Packet::parse(&bytes), Err(too_short), "{opcode}");
            }
            let mut bytes = vec![0; need];
            bytes[0] = opcode.byte();
            assert!(Packet::parse(&bytes).is_ok(), "{opcode} without payload");
        }
    }

    #[test]
    fn a_length_that_is_no_multiple_of_4_is_refused() {
        let bytes = built(&read_request(), b"");
        let len = bytes.len() - 1;
        assert_eq!(Packet::parse(&bytes[..len]), Err(ParseError::Misaligned { len }));
    }

    #[test]
    fn pad_without_payload_is_refused() {
        let mut headers = Headers::new(Bth::new(Opcode::RC_SEND_LAST, Qpn::new(1), Psn::new(2)));
        headers.bth.pad = 1;
        let too_long = ParseError::PadTooLong { pad: 1, available: 0 };
        assert_eq!(Packet::parse(&built(&headers, b"")), Err(too_long));
    }

    #[test]
    fn payload_where_there_is_none_is_refused() {
        let unexpected = ParseError::UnexpectedPayload { opcode: Opcode::RC_READ_REQUEST, len: 4 };
        assert_eq!(Packet::parse(&built(&read_request(), b"1234")), Err(unexpected));
    }

    #[test]
    fn all_ones_of_any_length_are_refused() {
        for len in 0..128 {
            assert!(Packet::parse(&vec![0xff; len]).is_err());
        }
    }

    #[test]
    fn errors_name_the_value_and_what_was_expected() {
        let text = |error: ParseError| error.to_string();
        assert_eq!(
            text(ParseError::TooShort { len: 3, need: 16 }),
            "3 bytes are too few: headers and ICRC need 16"
        );
        assert_eq!(text(ParseError::UnknownOpcode { opcode: 0xff }), "unknown opcode 0xff");
        assert_eq!(
            text(ParseError::UnexpectedPayload { opcode: Opcode::RC_ACK, len: 8 }),
            "8 bytes after the headers of RC ACK, which has no payload"
        );
    }

    #[test]
    #[should_panic(expected = "carries a RETH")]
    fn a_missing_header_is_not_papered_over() {
        let headers = Headers { reth: None, ..read_request() };
        headers.emit(&mut [0; Headers::MAX_LEN]);
    }

    #[test]
    fn one_line_says_it_all() {
        assert_eq!(
            read_request().to_string(),
            "RC READ REQUEST qp 0x000012 psn 0x000009 va 0x1000 rkey 0x00000077 len 32"
        );
        let mut ack = Headers::new(Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(7)));
        ack.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(3) });
        assert_eq!(ack.to_string(), "RC ACK qp 0x000011 psn 0x000007 ACK msn 3");
        let mut datagram = Headers::new(Bth::new(Opcode::UD_SEND_ONLY_IMM, Qpn::GSI, Psn::new(0)));
        datagram.bth.solicited = true;
        datagram.deth = Some(Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI });
        datagram.imm = Some(0xa);
        assert_eq!(
            datagram.to_string(),
            "UD SEND ONLY WITH IMMEDIATE qp 0x000001 psn 0x000000 solicited \
             from qp 0x000001 qkey 0x80010000 imm 0x0000000a"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn a_known_opcode_before_any_bytes_is_a_packet_or_an_error(
            opcode in proptest::sample::select(Opcode::ALL),
            flags in 0u8..16,
            tail in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes: Vec<u8> = [opcode.byte(), flags << 4].into_iter().chain(tail).collect();
            match Packet::parse(&bytes) {
                Ok(packet) => {
                    let pad = usize::from(packet.headers.bth.pad);
                    let parts = packet.headers.len() + packet.payload.len() + pad + icrc::LEN;
                    prop_assert_eq!(parts, bytes.len());
                }
                Err(ParseError::UnknownOpcode { .. } | ParseError::UnknownVersion { .. }) => {
                    prop_assert!(false, "both were right");
                }
                Err(_) => {}
            }
        }

        #[test]
        fn written_frames_are_read_again(
            (mut headers, payload) in
                headers().prop_flat_map(|headers| (Just(headers), payload_for(&headers))),
        ) {
            headers.bth.pad = (payload.len().next_multiple_of(4) - payload.len()) as u8;
            let bytes = built(&headers, &payload);
            prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { headers, payload: &payload }));
        }
    }
}
