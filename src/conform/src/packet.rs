//! What a check sends: any packet, right or wrong.
//!
//! A [`Packet`] begins as a sound one of its opcode, and each method changes one field. Nothing is
//! refused: what no sound sender would do is what many checks are about.

use urxe_types::PathMtu;
use urxe_wire::{Bth, NakCode, Opcode, Syndrome};

/// A packet for the QP that the script is connected with.
///
/// PSNs are counted from where a connection begins: [`at`](Self::at)`(0)` is the first PSN that the
/// device expects, in a request, and the first that it sends, in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The opcode's byte.
    pub opcode: u8,
    /// Where it stands in the sequence.
    pub psn: Sequence,
    /// Who it is for, if not the QP at the other end.
    pub dest_qp: Option<u32>,
    /// Solicited event.
    pub solicited: bool,
    /// MigReq: set in most packets, since there is no alternate path.
    pub migreq: bool,
    /// The pad count, if not what the payload needs.
    pub pad: Option<u8>,
    /// Transport version, 4 bits.
    pub version: u8,
    /// The partition.
    pub pkey: u16,
    /// The byte with FECN, BECN and six reserved bits.
    pub congestion: u8,
    /// The sender wants an acknowledgement.
    pub ack_req: bool,
    /// Seven reserved bits.
    pub reserved: u8,
    /// The extended headers.
    pub extended: Vec<u8>,
    /// What they are followed by.
    pub payload: Vec<u8>,
    /// Bits to invert in the ICRC.
    pub icrc_damage: u32,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
}

/// A PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// So many after the connection's first, in the direction of the requests that it belongs to.
    At(i32),
    /// This number.
    Absolute(u32),
}

/// BECN in [`Packet::congestion`].
pub const BECN: u8 = 0x40;
/// FECN in [`Packet::congestion`].
pub const FECN: u8 = 0x80;

impl Packet {
    /// A packet with this opcode, without extended headers and payload, at PSN 0.
    pub fn new(opcode: u8) -> Packet {
        Packet {
            opcode,
            psn: Sequence::At(0),
            dest_qp: None,
            solicited: false,
            migreq: true,
            pad: None,
            version: 0,
            pkey: 0xffff,
            congestion: 0,
            ack_req: false,
            reserved: 0,
            extended: Vec::new(),
            payload: Vec::new(),
            icrc_damage: 0,
            ecn: 0,
        }
    }

    /// So many PSNs after the first.
    pub fn at(mut self, psn: i32) -> Packet {
        self.psn = Sequence::At(psn);
        self
    }

    /// At this very PSN.
    pub fn at_absolute(mut self, psn: u32) -> Packet {
        self.psn = Sequence::Absolute(psn);
        self
    }

    /// For a QP of this number.
    pub fn to(mut self, qpn: u32) -> Packet {
        self.dest_qp = Some(qpn);
        self
    }

    /// With this payload.
    pub fn payload(mut self, payload: &[u8]) -> Packet {
        self.payload = payload.to_vec();
        self
    }

    /// Asks for an acknowledgement.
    pub fn ack_req(mut self) -> Packet {
        self.ack_req = true;
        self
    }

    /// With the solicited event bit.
    pub fn solicited(mut self) -> Packet {
        self.solicited = true;
        self
    }

    /// With another partition than the default one.
    pub fn pkey(mut self, pkey: u16) -> Packet {
        self.pkey = pkey;
        self
    }

    /// With an RDMA extended header (RETH).
    pub fn reth(mut self, addr: u64, rkey: u32, len: u32) -> Packet {
        self.extended.extend(addr.to_be_bytes());
        self.extended.extend(rkey.to_be_bytes());
        self.extended.extend(len.to_be_bytes());
        self
    }

    /// With an atomic extended header (AtomicETH).
    pub fn atomic(mut self, addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Packet {
        self.extended.extend(addr.to_be_bytes());
        self.extended.extend(rkey.to_be_bytes());
        self.extended.extend(swap_or_add.to_be_bytes());
        self.extended.extend(compare.to_be_bytes());
        self
    }

    /// With a datagram extended header (DETH).
    pub fn deth(mut self, qkey: u32, src_qp: u32) -> Packet {
        self.extended.extend(qkey.to_be_bytes());
        self.extended.extend(src_qp.to_be_bytes());
        self
    }

    /// With an ACK extended header (AETH).
    pub fn aeth(mut self, syndrome: u8, msn: u32) -> Packet {
        self.extended.push(syndrome);
        self.extended.extend(&msn.to_be_bytes()[1..]);
        self
    }

    /// With immediate data.
    pub fn imm(mut self, imm: u32) -> Packet {
        self.extended.extend(imm.to_be_bytes());
        self
    }

    /// With a key to invalidate (IETH).
    pub fn invalidate(mut self, rkey: u32) -> Packet {
        self.extended.extend(rkey.to_be_bytes());
        self
    }

    /// With the kind of FLUSH and its range (FETH).
    pub fn feth(mut self, feth: u32) -> Packet {
        self.extended.extend(feth.to_be_bytes());
        self
    }

    /// With a wrong ICRC.
    pub fn wrong_icrc(mut self) -> Packet {
        self.icrc_damage = 1;
        self
    }

    /// Whether it is an answer to a request of the device.
    pub fn is_response(&self) -> bool {
        is_response(self.opcode)
    }

    /// Bytes of the UDP payload, with room for the ICRC.
    pub fn to_bytes(&self, dest_qp: u32, psn: u32) -> Vec<u8> {
        let needed = self.payload.len().next_multiple_of(4) - self.payload.len();
        let pad = self.pad.unwrap_or(needed as u8);
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit(self.solicited, 0x80) | bit(self.migreq, 0x40);
        let mut bytes = vec![self.opcode, flags | (pad & 3) << 4 | self.version & 15];
        bytes.extend(self.pkey.to_be_bytes());
        bytes.push(self.congestion);
        bytes.extend(&self.dest_qp.unwrap_or(dest_qp).to_be_bytes()[1..]);
        bytes.push(bit(self.ack_req, 0x80) | self.reserved & 0x7f);
        bytes.extend(&psn.to_be_bytes()[1..]);
        debug_assert_eq!(bytes.len(), Bth::LEN);
        bytes.extend(&self.extended);
        bytes.extend(&self.payload);
        bytes.extend(std::iter::repeat_n(0, pad.into()));
        bytes.extend([0; urxe_wire::icrc::LEN]);
        bytes
    }
}

/// Whether packets of this opcode answer requests, and so count in the requests' sequence.
pub fn is_response(opcode: u8) -> bool {
    matches!(
        Opcode::from_byte(opcode),
        Some(
            Opcode::RC_READ_RESPONSE_FIRST
                | Opcode::RC_READ_RESPONSE_MIDDLE
                | Opcode::RC_READ_RESPONSE_LAST
                | Opcode::RC_READ_RESPONSE_ONLY
                | Opcode::RC_ACK
                | Opcode::RC_ATOMIC_ACK
                | Opcode::URXE_SELECTIVE_ACK
        )
    )
}

/// A packet of an opcode that we have a name for.
pub fn packet(opcode: Opcode) -> Packet {
    Packet::new(opcode as u8)
}

/// An acknowledgement of the device's request at this PSN.
pub fn positive_ack(psn: i32, msn: u32) -> Packet {
    packet(Opcode::RC_ACK).at(psn).aeth(Syndrome::ACK.byte(), msn)
}

/// A refusal of the device's request at this PSN.
pub fn refusal(code: NakCode, psn: i32, msn: u32) -> Packet {
    packet(Opcode::RC_ACK).at(psn).aeth(Syndrome::Nak(code).byte(), msn)
}

/// "Receiver not ready" for the device's request at this PSN, with a timer code.
pub fn not_ready(timer: u8, psn: i32, msn: u32) -> Packet {
    packet(Opcode::RC_ACK).at(psn).aeth(0x20 | timer & 0x1f, msn)
}

/// The packets of a message in parts of the path MTU: SEND FIRST, MIDDLE ..., LAST, or ONLY. The
/// last asks for an acknowledgement.
pub fn send_message(psn: i32, data: &[u8], mtu: PathMtu) -> Vec<Packet> {
    use Opcode::{RC_SEND_FIRST, RC_SEND_LAST, RC_SEND_MIDDLE, RC_SEND_ONLY};
    message([RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST, RC_SEND_ONLY], psn, data, mtu, |p| p)
}

/// The packets of a WRITE to an address, as [`send_message`].
pub fn write_message(psn: i32, addr: u64, rkey: u32, data: &[u8], mtu: PathMtu) -> Vec<Packet> {
    use Opcode::{RC_WRITE_FIRST, RC_WRITE_LAST, RC_WRITE_MIDDLE, RC_WRITE_ONLY};
    let opcodes = [RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST, RC_WRITE_ONLY];
    let len = data.len() as u32;
    message(opcodes, psn, data, mtu, |first| first.reth(addr, rkey, len))
}

/// The answer to a READ in parts of the path MTU: FIRST, MIDDLE ..., LAST, or ONLY.
pub fn read_responses(psn: i32, data: &[u8], mtu: PathMtu, msn: u32) -> Vec<Packet> {
    use Opcode::{
        RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE,
        RC_READ_RESPONSE_ONLY,
    };
    let opcodes = [
        RC_READ_RESPONSE_FIRST,
        RC_READ_RESPONSE_MIDDLE,
        RC_READ_RESPONSE_LAST,
        RC_READ_RESPONSE_ONLY,
    ];
    let mut parts = message(opcodes, psn, data, mtu, |first| first);
    for part in &mut parts {
        part.ack_req = false;
        if part.opcode != RC_READ_RESPONSE_MIDDLE as u8 {
            *part = part.clone().aeth(Syndrome::ACK.byte(), msn);
        }
    }
    parts
}

/// The answer to an atomic of the device at this PSN.
pub fn atomic_response(psn: i32, msn: u32, original: u64) -> Packet {
    let mut answer = packet(Opcode::RC_ATOMIC_ACK).at(psn).aeth(Syndrome::ACK.byte(), msn);
    answer.extended.extend(original.to_be_bytes());
    answer
}

/// The packets of a message; `begin` adds to the first what only the first has.
pub fn message(
    [first, middle, last, only]: [Opcode; 4],
    psn: i32,
    data: &[u8],
    mtu: PathMtu,
    begin: impl Fn(Packet) -> Packet,
) -> Vec<Packet> {
    let parts: Vec<&[u8]> = match data.is_empty() {
        true => vec![data],
        false => data.chunks(mtu.bytes()).collect(),
    };
    let ends = parts.len() - 1;
    let part = |(i, part): (usize, &&[u8])| {
        let opcode = match (i == 0, i == ends) {
            (true, true) => only,
            (true, false) => first,
            (false, true) => last,
            (false, false) => middle,
        };
        let made = packet(opcode).at(psn + i as i32).payload(part);
        let made = if i == 0 { begin(made) } else { made };
        if i == ends { made.ack_req() } else { made }
    };
    parts.iter().enumerate().map(part).collect()
}
