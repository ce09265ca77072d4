//! Base transport header: the one that every packet begins with.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-+-+---+-------+-------------------------------+
//! |    opcode     |S|M|pad| tver  |             P_Key             |  0
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B|  resv6a   |              destination QP                   |  4
//! +-+-+-----------+-----------------------------------------------+
//! |A|    resv7    |                     PSN                       |  8
//! +-+-------------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M MigReq, F FECN, B BECN, A AckReq. Byte 4 may change on the way (a switch
//! marks FECN), so the ICRC takes it as all ones.

use crate::{Opcode, ParseError, Transport, u24};
use urxe_types::{Pkey, Psn, Qpn};

/// The base transport header.
///
/// The opcode is not here: it follows from the packet's [body](crate::Body). Nor is the transport
/// version: it is 0, and a packet with another one is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Solicited event: the receiver's completion shall wake its waiter.
    pub solicited: bool,
    /// MigReq: set in the migrated state, which is where every QP without alternate paths is.
    pub migreq: bool,
    /// Zero bytes after the payload, 0 to 3, that fill it up to a multiple of 4.
    pub pad: u8,
    /// The sender's partition.
    pub pkey: Pkey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// Reserved, 6 bits: sent as 0, ignored on receipt.
    pub resv6a: u8,
    /// The QP that the packet is for.
    pub dest_qp: Qpn,
    /// The sender wants an acknowledgement.
    pub ack_req: bool,
    /// Reserved, 7 bits: sent as 0, ignored on receipt.
    pub resv7: u8,
    /// The packet's sequence number.
    pub psn: Psn,
}

// WIRE-002
const SOLICITED: u8 = 0x80;
const MIGREQ: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const PAD_MASK: u8 = 0x30;
const TVER_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const RESV6A_MASK: u8 = 0x3f;
const ACK_REQ: u8 = 0x80;
const RESV7_MASK: u8 = 0x7f;
/// Offset of the byte that holds `resv7`.
const RESV7_AT: usize = 8;

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// What [`resv7`](Bth::resv7) of a READ request says to a responder that is known to understand
    /// it: each packet of the answer may be a READ RESPONSE ONLY, so that all are of one size. Any
    /// other responder ignores it.
    pub const ANSWER_IN_ONLYS: u8 = 0x75;

    /// What [`resv7`](Bth::resv7) of a request says to a receiver that is known to understand it:
    /// an ACK [follows in the same datagram](crate::joined).
    pub const ACK_BEHIND: u8 = 0x4a;

    /// Offset of the byte that may change on the way, which the ICRC takes as all ones.
    pub(crate) const MUTABLE_BYTE: usize = 4;

    /// A header as most packets have it: default partition, MigReq set (as hardware sends it),
    /// everything else clear.
    pub const fn new(dest_qp: Qpn, psn: Psn) -> Bth {
        Bth {
            solicited: false,
            // WIRE-003: there is no alternate path.
            migreq: true,
            pad: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            resv6a: 0,
            dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// Reads the header and its opcode; fails on an opcode or a transport version that we do not
    /// know.
    #[inline] // for every packet: 12 ns less than a call that returns by memory
    pub fn parse(bytes: &[u8; Bth::LEN]) -> Result<(Opcode, Bth), ParseError> {
        let [op, flags, ..] = *bytes;
        // WIRE-005
        let opcode = Opcode::from_byte(op).ok_or(ParseError::UnknownOpcode { opcode: op })?;
        // WIRE-004
        if flags & TVER_MASK != 0 {
            return Err(ParseError::UnknownVersion { tver: flags & TVER_MASK });
        }
        Ok((opcode, Bth::fields(bytes)))
    }

    /// Reads the header of a packet whose opcode is reserved, among those of reliable connections;
    /// `None` if it is another one.
    pub fn parse_reserved_rc(bytes: &[u8; Bth::LEN]) -> Option<Bth> {
        let [op, flags, ..] = *bytes;
        let is_reserved = op >> 5 == Transport::Rc as u8 && Opcode::from_byte(op).is_none();
        (is_reserved && flags & TVER_MASK == 0).then(|| Bth::fields(bytes))
    }

    /// The QP that the datagram with these first bytes is for, whatever else they are; `None`: they
    /// are too few to say.
    pub fn dest_qp_in(udp_payload: &[u8]) -> Option<Qpn> {
        let [_, _, _, _, _, q0, q1, q2, ..] = *udp_payload else { return None };
        Some(Qpn::new(u24::read([q0, q1, q2])))
    }

    #[inline]
    fn fields(bytes: &[u8; Bth::LEN]) -> Bth {
        // WIRE-001
        let [_, flags, p0, p1, ecn, q0, q1, q2, ack, n0, n1, n2] = *bytes;
        Bth {
            solicited: flags & SOLICITED != 0,
            migreq: flags & MIGREQ != 0,
            pad: (flags & PAD_MASK) >> PAD_SHIFT,
            pkey: Pkey(u16::from_be_bytes([p0, p1])),
            fecn: ecn & FECN != 0,
            becn: ecn & BECN != 0,
            resv6a: ecn & RESV6A_MASK,
            dest_qp: Qpn::new(u24::read([q0, q1, q2])),
            ack_req: ack & ACK_REQ != 0,
            resv7: ack & RESV7_MASK,
            psn: Psn::new(u24::read([n0, n1, n2])),
        }
    }

    /// Writes the header with this opcode. Bits of `pad`, `resv6a` and `resv7` beyond their fields
    /// are dropped.
    #[inline]
    pub fn emit(&self, opcode: Opcode) -> [u8; Bth::LEN] {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let [q0, q1, q2] = u24::write(self.dest_qp.get());
        let [n0, n1, n2] = u24::write(self.psn.get());
        [
            opcode.byte(),
            flag(self.solicited, SOLICITED)
                | flag(self.migreq, MIGREQ)
                | (self.pad << PAD_SHIFT & PAD_MASK),
            p0,
            p1,
            flag(self.fecn, FECN) | flag(self.becn, BECN) | (self.resv6a & RESV6A_MASK),
            q0,
            q1,
            q2,
            flag(self.ack_req, ACK_REQ) | (self.resv7 & RESV7_MASK),
            n0,
            n1,
            n2,
        ]
    }

    /// [`resv7`](Bth::resv7) of a packet, if it is long enough.
    pub(crate) fn resv7_in(packet: &[u8]) -> Option<u8> {
        packet.get(RESV7_AT).map(|byte| byte & RESV7_MASK)
    }

    /// Overwrites [`resv7`](Bth::resv7) in a packet whose BTH has been written.
    pub(crate) fn emit_resv7(packet: &mut [u8], resv7: u8) {
        packet[RESV7_AT] = packet[RESV7_AT] & !RESV7_MASK | resv7 & RESV7_MASK;
    }

    /// Makes the PSN of a packet whose BTH has been written the next one.
    pub(crate) fn advance_psn(packet: &mut [u8]) {
        let [.., n0, n1, n2] = packet.first_chunk_mut::<{ Bth::LEN }>().expect("there is a BTH");
        let next = Psn::new(u24::read([*n0, *n1, *n2])).next();
        [*n0, *n1, *n2] = u24::write(next.get());
    }

    /// Overwrites whether an acknowledgement is asked for, in a packet whose BTH has been written.
    pub(crate) fn emit_ack_req(packet: &mut [u8], ack_req: bool) {
        packet[RESV7_AT] = packet[RESV7_AT] & !ACK_REQ | if ack_req { ACK_REQ } else { 0 };
    }

    /// Overwrites the pad count, 0 to 3, in a packet whose BTH has been written.
    pub(crate) fn emit_pad(packet: &mut [u8], pad: u8) {
        packet[1] = packet[1] & !PAD_MASK | pad << PAD_SHIFT & PAD_MASK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;
    use proptest::prelude::*;

    fn parse(bytes: &[u8; Bth::LEN]) -> (Opcode, Bth) {
        Bth::parse(bytes).unwrap()
    }

    fn emit((opcode, bth): &(Opcode, Bth)) -> [u8; Bth::LEN] {
        bth.emit(*opcode)
    }

    #[test]
    fn every_field_at_its_place() {
        assert_means(
            [0x0a, 0xf0, 0x12, 0x34, 0xaa, 0x56, 0x78, 0x9a, 0x81, 0xbc, 0xde, 0xf0],
            (
                Opcode::RC_WRITE_ONLY,
                Bth {
                    solicited: true,
                    migreq: true,
                    pad: 3,
                    pkey: Pkey(0x1234),
                    fecn: true,
                    becn: false,
                    resv6a: 0x2a,
                    dest_qp: Qpn::new(0x56789a),
                    ack_req: true,
                    resv7: 1,
                    psn: Psn::new(0xbcdef0),
                },
            ),
            parse,
            emit,
        );
    }

    #[test]
    fn each_flag_is_one_bit() {
        let clear = Bth { migreq: false, ..Bth::new(Qpn::new(0), Psn::new(0)) };
        let differs = |bth: Bth| {
            let (before, after) = (clear.emit(Opcode::CNP), bth.emit(Opcode::CNP));
            let changed: Vec<(usize, u8)> =
                (0..Bth::LEN).map(|i| (i, before[i] ^ after[i])).filter(|(_, x)| *x != 0).collect();
            changed
        };
        assert_eq!(differs(Bth { solicited: true, ..clear }), [(1, 0x80)]);
        assert_eq!(differs(Bth { migreq: true, ..clear }), [(1, 0x40)]);
        assert_eq!(differs(Bth { fecn: true, ..clear }), [(4, 0x80)]);
        assert_eq!(differs(Bth { becn: true, ..clear }), [(4, 0x40)]);
        assert_eq!(differs(Bth { ack_req: true, ..clear }), [(8, 0x80)]);
    }

    #[test]
    fn a_new_header_is_an_ordinary_one() {
        let bth = Bth::new(Qpn::new(0x11), Psn::new(7));
        assert_eq!(
            bth.emit(Opcode::RC_ACK),
            [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 7],
            "MigReq set, default partition, the rest clear"
        );
    }

    #[test]
    fn all_ones_is_refused_for_its_opcode() {
        let unknown = ParseError::UnknownOpcode { opcode: 0xff };
        assert_eq!(Bth::parse(&[0xff; Bth::LEN]), Err(unknown));
    }

    #[test]
    fn another_transport_version_is_refused() {
        let mut bytes = [0; Bth::LEN];
        for tver in 1..16 {
            bytes[1] = 0xf0 | tver;
            assert_eq!(Bth::parse(&bytes), Err(ParseError::UnknownVersion { tver }));
        }
    }

    #[test]
    fn reserved_opcodes_of_reliable_connections_are_read() {
        let bth = Bth::new(Qpn::new(0x11), Psn::new(7));
        let mut bytes = bth.emit(Opcode::RC_ACK);
        for op in 0..=255 {
            bytes[0] = op;
            let is_reserved = matches!(op, 0x15 | 0x18..=0x1b | 0x1e | 0x1f);
            assert_eq!(Bth::parse_reserved_rc(&bytes), is_reserved.then_some(bth), "{op:#04x}");
        }
        (bytes[0], bytes[1]) = (0x15, bytes[1] | 1);
        assert_eq!(Bth::parse_reserved_rc(&bytes), None);
    }

    #[test]
    fn the_pad_count_can_be_changed_in_place() {
        let before = Bth { pad: 1, ..Bth::new(Qpn::GSI, Psn::new(1)) };
        let mut bytes = before.emit(Opcode::UD_SEND_ONLY);
        for pad in 0..4 {
            Bth::emit_pad(&mut bytes, pad);
            assert_eq!(parse(&bytes), (Opcode::UD_SEND_ONLY, Bth { pad, ..before }));
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(mut bytes: [u8; Bth::LEN]) {
            bytes[1] &= 0xf0;
            if let Ok((opcode, bth)) = Bth::parse(&bytes) {
                prop_assert_eq!(bth.emit(opcode), bytes);
            } else {
                prop_assert_eq!(Opcode::from_byte(bytes[0]), None);
            }
        }
    }
}
