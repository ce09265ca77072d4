//! What came from the device.

use crate::packet::is_response;
use std::fmt;
use std::time::Instant;
use urxe_wire::{Bth, Flow, NakCode, Opcode, Outer, Packet, Syndrome};

/// A datagram that came, byte for byte.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// When.
    pub at: Instant,
    /// The outer headers, as far as the port shows them.
    pub outer: Outer,
    /// The UDP payload, ICRC included.
    pub bytes: Vec<u8>,
    /// Whether the ICRC is right.
    pub icrc_is_right: bool,
}

impl Arrived {
    /// Its addresses and the like.
    pub fn flow(&self) -> &Flow {
        &self.outer.flow
    }

    /// The opcode's byte.
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// Solicited event, MigReq, pad count and transport version.
    pub fn flags(&self) -> u8 {
        self.bytes[1]
    }

    /// Whether the solicited event bit is set.
    pub fn solicited(&self) -> bool {
        self.flags() & 0x80 != 0
    }

    /// Zero bytes after the payload.
    pub fn pad(&self) -> u8 {
        self.flags() >> 4 & 3
    }

    /// The partition.
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// FECN, BECN and the six reserved bits.
    pub fn congestion(&self) -> u8 {
        self.bytes[4]
    }

    /// The QP that it is for.
    pub fn dest_qp(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    /// Whether it wants an acknowledgement.
    pub fn ack_req(&self) -> bool {
        self.bytes[8] & 0x80 != 0
    }

    /// The seven reserved bits beside AckReq.
    pub fn reserved(&self) -> u8 {
        self.bytes[8] & 0x7f
    }

    /// The PSN.
    pub fn psn(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes[9], self.bytes[10], self.bytes[11]])
    }

    /// Whether it answers a request.
    pub fn is_response(&self) -> bool {
        is_response(self.opcode())
    }

    /// Whether it is the last packet of a request, or all of it.
    pub fn ends_message(&self) -> bool {
        let kind = Opcode::from_byte(self.opcode()).map(|opcode| opcode.to_string());
        let begins = |kind: &str| kind.contains("FIRST") || kind.contains("MIDDLE");
        !self.is_response() && kind.is_some_and(|kind| !begins(&kind))
    }

    /// Whether it is to be answered by an ACK, as READs, atomics and their kin are not.
    pub fn asks_for_an_ack(&self) -> bool {
        let kind = Opcode::from_byte(self.opcode()).map(|opcode| opcode.to_string());
        let is_such = |kind: String| kind.starts_with("RC SEND") || kind.starts_with("RC WRITE");
        self.ack_req() && kind.is_some_and(is_such)
    }

    /// What stands after the BTH, up to the ICRC.
    pub fn body(&self) -> &[u8] {
        &self.bytes[Bth::LEN..self.bytes.len() - urxe_wire::icrc::LEN]
    }

    /// The packet in its parts; `None` if it makes no sense.
    pub fn parsed(&self) -> Option<Packet<'_>> {
        Packet::parse(&self.bytes).ok()
    }

    /// The payload without padding; empty if the packet makes no sense.
    pub fn payload(&self) -> &[u8] {
        self.parsed().map_or(&[], |packet| packet.payload)
    }

    /// The syndrome and the MSN, of an answer that has them.
    pub fn aeth(&self) -> Option<(Syndrome, u32)> {
        let aeth = self.parsed()?.headers.body.aeth()?;
        Some((aeth.syndrome, aeth.msn.get()))
    }

    /// Its address, key and length, of a request that has them.
    pub fn reth(&self) -> Option<(u64, u32, u32)> {
        let packet = self.parsed()?;
        let reth = packet.headers.body.request()?.reth().copied()?;
        Some((reth.va, reth.rkey.0, reth.len))
    }

    /// Its immediate data, of a packet that has it.
    pub fn immediate(&self) -> Option<u32> {
        let opcode = Opcode::from_byte(self.opcode())?;
        let at = opcode.to_string().contains("IMM").then_some(opcode.header_len() - 4)?;
        let bytes = self.bytes.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// Why the device refuses, if that is what it does.
    pub fn nak(&self) -> Option<NakCode> {
        match self.aeth()?.0 {
            Syndrome::Nak(code) if self.opcode() == Opcode::RC_ACK as u8 => Some(code),
            _ => None,
        }
    }
}

/// As a capture has it: opcode, numbers, what the AETH says, length.
impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parsed() {
            Some(packet) => write!(f, "{}, {} bytes", packet.headers, packet.payload.len()),
            None => write!(f, "opcode {:#04x}, PSN {}", self.opcode(), self.psn()),
        }?;
        if self.icrc_is_right { Ok(()) } else { write!(f, ", wrong ICRC") }
    }
}
