//! The packets of a check, to be looked at afterwards.

use super::management::mad_in;
use std::fmt;
use std::time::Instant;
use urxe_wire::icrc::{self, Verdict};
use urxe_wire::{Bth, DONT_FRAGMENT, Flow, Ident, Outer, Packet};

/// What was sent and received, in order.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The packets.
    pub records: Vec<Record>,
    /// How many more there were.
    pub left_out: usize,
}

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the device.
    Out,
    /// From the device.
    In,
}

/// One packet.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which way it went.
    pub way: Direction,
    /// When.
    pub at: Instant,
    /// Its outer headers.
    pub flow: Flow,
    /// The IPv4 identification; of a sent packet 0, whatever the port then makes of it.
    pub ident: u16,
    /// IPv4's flags and fragment offset.
    pub fragment: u16,
    /// Its UDP payload, with an ICRC that belongs to this identification.
    pub bytes: Vec<u8>,
    /// Whether the ICRC is right.
    pub icrc_is_right: bool,
}

/// Packets that are kept of one check; what is beyond is counted.
const MOST: usize = 10_000;

impl Evidence {
    /// A packet that is sent, whose ICRC becomes right but for the bits of `damage`.
    pub(super) fn sent(&mut self, at: Instant, flow: &Flow, bytes: &[u8], damage: u32) {
        let mut bytes = bytes.to_vec();
        if bytes.len() >= Bth::LEN + icrc::LEN {
            icrc::stamp(flow, 0, &mut bytes);
        }
        if let Some(icrc) = bytes.last_chunk_mut() {
            *icrc = (u32::from_le_bytes(*icrc) ^ damage).to_le_bytes();
        }
        self.push(Record {
            way: Direction::Out,
            at,
            flow: *flow,
            ident: 0,
            fragment: DONT_FRAGMENT,
            bytes,
            icrc_is_right: damage == 0,
        });
    }

    /// A packet that came, and what its ICRC tells.
    pub(super) fn received(&mut self, at: Instant, outer: &Outer, bytes: &[u8], icrc: Verdict) {
        let (ident, fragment) = match (outer.ident, icrc) {
            (Ident::Known { ident, fragment }, _) => (ident, fragment),
            (_, Verdict::Recovered { ident }) => (ident, DONT_FRAGMENT),
            (Ident::Hidden { guess }, _) => (guess, DONT_FRAGMENT),
        };
        self.push(Record {
            way: Direction::In,
            at,
            flow: outer.flow,
            ident,
            fragment,
            bytes: bytes.to_vec(),
            icrc_is_right: icrc != Verdict::Bad,
        });
    }

    fn push(&mut self, record: Record) {
        if self.records.len() < MOST {
            self.records.push(record);
        } else {
            self.left_out += 1;
        }
    }
}

/// As a capture has it: opcode, numbers, what the AETH says, length.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(&self.bytes) {
            Ok(packet) => {
                write!(f, "{}, {} bytes", packet.headers, packet.payload.len())?;
                if let Some(mad) = mad_in(&packet) {
                    write!(f, ": {mad}")?;
                }
            }
            Err(_) => {
                let opcode = self.bytes.first().copied().unwrap_or(0);
                write!(f, "opcode {opcode:#04x}, malformed, {} bytes", self.bytes.len())?;
            }
        }
        if self.icrc_is_right { Ok(()) } else { write!(f, ", wrong ICRC") }
    }
}
