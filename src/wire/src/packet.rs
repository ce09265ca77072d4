//! A whole RoCEv2 packet: what a UDP datagram to port 4791 holds.
//!
//! ```text
//! +-----+------------------+---------+----------+------+
//! | BTH | extended headers | payload | pad 0..3 | ICRC |
//! +-----+------------------+---------+----------+------+
//! ```
//!
//! Which extended headers come, and in which order, follows from the opcode: [`Body`] has them.

use crate::{Body, Bth, Opcode, icrc};
use std::fmt;

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

/// What a packet begins with: the BTH and the extended headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<B = Body> {
    /// Base transport header.
    pub bth: Bth,
    /// What the packet is, with its extended headers; or, where that is known, the kind of packet.
    pub body: B,
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

    /// A packet's headers.
    pub fn new(bth: Bth, body: impl Into<Body>) -> Headers {
        Headers { bth, body: body.into() }
    }

    /// Bytes on the wire.
    #[allow(clippy::len_without_is_empty)] // a BTH is always there
    pub const fn len(&self) -> usize {
        self.body.opcode().header_len()
    }

    /// Writes [`len`](Self::len) bytes to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter.
    pub fn emit(&self, buf: &mut [u8]) {
        let (bth, extended) = buf.split_at_mut(Bth::LEN);
        let opcode = self.body.emit(extended);
        bth.copy_from_slice(&self.bth.emit(opcode));
    }
}

/// A packet that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a, B = Body> {
    /// Base and extended headers.
    pub headers: Headers<B>,
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
        let too_short = |header_len| ParseError::TooShort { len, need: header_len + icrc::LEN };
        let (covered, _icrc) =
            udp_payload.split_last_chunk::<{ icrc::LEN }>().ok_or(too_short(Bth::LEN))?;
        // WIRE-009
        if !len.is_multiple_of(4) {
            return Err(ParseError::Misaligned { len });
        }
        let (bth, mut rest) = covered.split_first_chunk().ok_or(too_short(Bth::LEN))?;
        let (opcode, bth) = Bth::parse(bth)?;
        let body = Body::parse(opcode, &mut rest).ok_or(too_short(opcode.header_len()))?;
        // WIRE-010
        if !body.has_payload() && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload { opcode, len: rest.len() });
        }
        let payload = rest
            .len()
            // WIRE-008
            .checked_sub(usize::from(bth.pad))
            // WIRE-011
            .map(|payload_len| &rest[..payload_len])
            .ok_or(ParseError::PadTooLong { pad: bth.pad, available: rest.len() })?;
        Ok(Packet { headers: Headers { bth, body }, payload })
    }

    /// Bytes that it takes on the wire after the UDP header: headers, payload, pad and ICRC.
    pub fn udp_len(&self) -> usize {
        (self.headers.len() + self.payload.len()).next_multiple_of(4) + icrc::LEN
    }

    /// The packet as one of this kind, which its body says that it is.
    pub fn of_kind<B>(&self, body: B) -> Packet<'a, B> {
        Packet { headers: Headers { bth: self.headers.bth, body }, payload: self.payload }
    }
}

/// One line, as a trace shows it: `RC WRITE ONLY qp 0x000011 psn 0x111100 va 0x7f00 …`.
impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headers { bth, body } = self;
        write!(f, "{} qp {} psn {}", body.opcode(), bth.dest_qp, bth.psn)?;
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
        body.show(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{UNWRITTEN, headers};
    use crate::{Aeth, Datagram, Deth, Part, Request, Response, Reth, Syndrome};
    use proptest::prelude::*;
    use urxe_types::{Msn, Psn, Qkey, Qpn, Rkey};

    /// A packet as it stands on the wire, with nonsense for an ICRC.
    fn built(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![UNWRITTEN; headers.len()];
        headers.emit(&mut packet);
        packet.extend(payload);
        packet.resize(packet.len().next_multiple_of(4), 0);
        packet.extend([0xde, 0xad, 0xbe, 0xef]);
        packet
    }

    fn blank(opcode: Opcode) -> Headers {
        Headers::new(Bth::new(Qpn::new(1), Psn::new(2)), Body::zeroed(opcode))
    }

    fn read_request() -> Headers {
        let reth = Reth { va: 0x1000, rkey: Rkey(0x77), len: 32 };
        Headers::new(Bth::new(Qpn::new(0x12), Psn::new(9)), Request::Read(reth))
    }

    /// Some bytes of payload and the pad count that goes with them.
    fn payload_for(headers: &Headers) -> impl Strategy<Value = Vec<u8>> + use<> {
        let max = if headers.body.has_payload() { 40 } else { 0 };
        proptest::collection::vec(any::<u8>(), 0..=max)
    }

    #[test]
    fn headers_come_in_their_order() {
        let mut bytes = vec![UNWRITTEN; Headers::MAX_LEN];
        let write = Request::Write(Part::Only(Reth { va: 1, rkey: Rkey(2), len: 3 }, Some(4)));
        Headers::new(Bth::new(Qpn::new(5), Psn::new(6)), write).emit(&mut bytes);
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
        let mut headers = blank(Opcode::UC_SEND_ONLY);
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
        let mut headers = blank(Opcode::RC_SEND_LAST);
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
    fn one_line_says_it_all() {
        assert_eq!(
            read_request().to_string(),
            "RC READ REQUEST qp 0x000012 psn 0x000009 va 0x1000 rkey 0x00000077 len 32"
        );
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(3) };
        let ack = Headers::new(Bth::new(Qpn::new(0x11), Psn::new(7)), Response::Ack(aeth));
        assert_eq!(ack.to_string(), "RC ACK qp 0x000011 psn 0x000007 ACK msn 3");
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        let bth = Bth { solicited: true, ..Bth::new(Qpn::GSI, Psn::new(0)) };
        let datagram = Headers::new(bth, Datagram { deth, imm: Some(0xa) });
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
