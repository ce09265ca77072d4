//! Malformed and forged packets.

use crate::rng::Rng;
use urxe_types::{Msn, Psn, Qkey, Qpn};
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage};
use urxe_wire::{
    Aeth, Bth, DONT_FRAGMENT, Deth, Flow, Ident, NakCode, Opcode, Outer, Packet, Syndrome, icrc,
};

/// Forges packets, mostly by damaging real ones and correcting their ICRC.
pub struct Forger {
    rng: Rng,
    seen: Vec<(Flow, Vec<u8>)>,
}

/// Real packets that a forger remembers.
const MEMORY: usize = 64;

/// Offset of each field that is worth damaging, and its length.
const FIELDS: [(usize, usize); 14] = [
    (0, 1),  // opcode
    (1, 1),  // solicited, MigReq, pad count, version
    (2, 2),  // P_Key
    (4, 1),  // reserved, FECN, BECN
    (8, 1),  // AckReq
    (9, 3),  // PSN
    (12, 1), // AETH syndrome, or the first byte of an address
    (13, 3), // MSN
    (12, 8), // address
    (20, 4), // rkey
    (24, 4), // length, or half of an atomic's operand
    (12, 4), // immediate data of a SEND
    (28, 4), // immediate data of a WRITE
    (24, 8), // an atomic's operand
];

/// What a responder sends.
const RESPONSES: [Opcode; 7] = [
    Opcode::RC_ACK,
    Opcode::URXE_SELECTIVE_ACK,
    Opcode::URXE_SELECTIVE_ACK,
    Opcode::RC_ATOMIC_ACK,
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_READ_RESPONSE_LAST,
];

impl Forger {
    /// A forger that has seen nothing yet.
    pub fn new(rng: Rng) -> Forger {
        Forger { rng, seen: Vec::new() }
    }

    /// Lets it see a real packet.
    pub fn see(&mut self, flow: &Flow, bytes: &[u8]) {
        let seen = (*flow, bytes.to_vec());
        match self.seen.len() < MEMORY {
            true => self.seen.push(seen),
            false => *self.rng_place() = seen,
        }
    }

    fn rng_place(&mut self) -> &mut (Flow, Vec<u8>) {
        let place = self.rng.index(self.seen.len());
        &mut self.seen[place]
    }

    /// Forges a packet for one of `targets`, or for no QP at all; `flow` is what it comes with
    /// unless it is made from a packet that was seen.
    pub fn forge(&mut self, flow: &Flow, targets: &[Qpn]) -> (Outer, Vec<u8>) {
        let kind = if self.seen.is_empty() { 0 } else { self.rng.range(0..=99) };
        let (flow, mut bytes) = match kind {
            ..15 => (*flow, self.noise()),
            15..40 => self.response(),
            40..50 => (*flow, self.congestion_notification()),
            50..53 => return self.capabilities(flow),
            _ => self.damaged(),
        };
        if bytes.len() >= Bth::LEN {
            let target = match self.rng.percent(95) {
                true => self.rng.pick(targets),
                // QPNs count up from a random one: this is far from all.
                false => Qpn::new(targets[0].get() ^ 0x80_0000),
            };
            bytes[5..8].copy_from_slice(&target.get().to_be_bytes()[1..]);
        }
        let flow = match self.rng.percent(3) {
            true => Flow { src: flow.dst, dst: flow.src, ..flow },
            false => flow,
        };
        if bytes.len() >= Bth::LEN + icrc::LEN && self.rng.percent(90) {
            icrc::stamp(&flow, 0, &mut bytes);
        }
        (Outer { flow, ident: Ident::Known { ident: 0, fragment: DONT_FRAGMENT } }, bytes)
    }

    /// Something that acknowledges, refuses or answers, with a PSN and a message number that may be
    /// expected.
    fn response(&mut self) -> (Flow, Vec<u8>) {
        let (flow, seen) = self.rng_place().clone();
        let parsed = Packet::parse(&seen).ok();
        let near = parsed.as_ref().map_or(Psn::new(0), |packet| packet.headers.bth.psn);
        let bth = Bth { becn: self.rng.percent(10), ..Bth::new(Qpn::new(0), near) };
        let opcode = self.rng.pick(&RESPONSES);
        let mut bytes = bth.emit(opcode).to_vec();
        let aeth = parsed.and_then(|packet| packet.headers.body.aeth());
        let aeth = aeth.unwrap_or(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) });
        let syndrome = match self.rng.range(0..=3) {
            0 => Syndrome::from_byte(self.rng.next_u64() as u8),
            1 => Syndrome::Nak(NakCode::SequenceError),
            _ => Syndrome::ACK,
        };
        let msn = Msn::new(aeth.msn.get().wrapping_add(self.rng.range(0..=8) as u32));
        if opcode.header_len() > 0 {
            bytes.extend(Aeth { syndrome, msn }.emit());
        }
        let payload = match opcode {
            Opcode::URXE_SELECTIVE_ACK => self.rng.pick(&[0, 4, 8, 64, 256, 300]),
            Opcode::RC_ATOMIC_ACK => 8,
            Opcode::RC_ACK => 0,
            _ => self.rng.pick(&[0, 4, 256, 1024, 4096]),
        };
        bytes.extend(self.rng.bytes(payload));
        bytes.extend([0; icrc::LEN]);
        self.move_psn(&mut bytes);
        (flow, bytes)
    }

    /// A CNP: the marks of the network, and 16 reserved bytes.
    fn congestion_notification(&mut self) -> Vec<u8> {
        let bth = Bth { becn: self.rng.percent(95), ..Bth::new(Qpn::new(0), Psn::new(0)) };
        let mut bytes = bth.emit(Opcode::CNP).to_vec();
        bytes.extend([0; 16]);
        bytes.extend([0; icrc::LEN]);
        bytes
    }

    /// A question about capabilities, or an answer to none.
    fn capabilities(&mut self, flow: &Flow) -> (Outer, Vec<u8>) {
        let bth = Bth::new(Qpn::GSI, Psn::new(self.rng.next_u64() as u32));
        let mut bytes = bth.emit(Opcode::UD_SEND_ONLY).to_vec();
        bytes.extend(Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI }.emit());
        let message = match self.rng.range(0..=2) {
            0 => CapabilityMessage::Get,
            1 => CapabilityMessage::Refused,
            _ => CapabilityMessage::GetResp(Capabilities {
                selective_ack: self.rng.percent(50),
                echoes_marks: self.rng.percent(50),
                answers_in_onlys: self.rng.percent(50),
                takes_ack_first: self.rng.percent(50),
                takes_joined: self.rng.percent(50),
            }),
        };
        // Transactions are counted from 0 or drawn.
        let tid = self.rng.pick(&[self.rng.clone().range(0..=20), u64::MAX]);
        bytes.extend(CapabilityMad { tid, message }.bytes());
        bytes.extend([0; icrc::LEN]);
        icrc::stamp(flow, 0, &mut bytes);
        (Outer { flow: *flow, ident: Ident::Known { ident: 0, fragment: DONT_FRAGMENT } }, bytes)
    }

    /// Random bytes, perhaps with the beginning of a packet.
    fn noise(&mut self) -> Vec<u8> {
        let len = self.rng.range(0..=120) as usize;
        let mut bytes = self.rng.bytes(len);
        if self.rng.percent(80) && len >= Bth::LEN {
            let opcode = self.rng.pick(Opcode::ALL);
            let psn = Psn::new(self.rng.next_u64() as u32);
            bytes[..Bth::LEN].copy_from_slice(&Bth::new(Qpn::new(0), psn).emit(opcode));
            bytes.truncate(len / 4 * 4);
        }
        bytes
    }

    /// A packet that was seen, with something changed in it, or nothing.
    fn damaged(&mut self) -> (Flow, Vec<u8>) {
        let (flow, mut bytes) = self.rng_place().clone();
        for _ in 0..self.rng.range(0..=3) {
            match self.rng.range(0..=9) {
                0 => {
                    let len = self.rng.range(0..=bytes.len() as u64 / 4) as usize * 4;
                    bytes.truncate(len);
                }
                1 => {
                    let more = self.rng.range(1..=80) as usize;
                    bytes.extend(self.rng.bytes(more));
                }
                2 if !bytes.is_empty() => {
                    let at = self.rng.index(bytes.len());
                    bytes[at] ^= 1 << self.rng.range(0..=7);
                }
                3 => self.move_psn(&mut bytes),
                4 if bytes.len() >= Bth::LEN => bytes[0] = self.rng.pick(Opcode::ALL).byte(),
                _ => self.overwrite_field(&mut bytes),
            }
        }
        (flow, bytes)
    }

    fn move_psn(&mut self, bytes: &mut [u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let moved = packet.headers.bth.psn + self.rng.range(0..=40) as u32 - 20;
        bytes[9..12].copy_from_slice(&moved.get().to_be_bytes()[1..]);
    }

    fn overwrite_field(&mut self, bytes: &mut [u8]) {
        let (at, len) = self.rng.pick(&FIELDS);
        let Some(field) = bytes.get_mut(at..at + len) else { return };
        match self.rng.range(0..=3) {
            0 => field.fill(0),
            1 => field.fill(0xff),
            2 => self.rng.fill(field),
            _ => {
                let last = len - 1;
                field[last] = field[last].wrapping_add(self.rng.pick(&[1, 0xff, 4, 8]));
            }
        }
    }
}
