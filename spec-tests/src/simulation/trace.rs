//! The record of a run: a hash always, and a line for each event when a single run is printed.

use std::fmt;
use std::time::{Duration, Instant};
use urxe_types::Completion;
use urxe_wire::{Packet, ParseError, Request};

/// The record of one run.
#[derive(Clone, Debug)]
pub struct Trace {
    start: Instant,
    hash: u64,
    prints: bool,
}

/// The direction of a datagram.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// Out of the node.
    Out,
    /// Into it.
    In,
}

impl Trace {
    /// A record that begins at `start`, and prints a line for each event if `prints`.
    pub fn new(start: Instant, prints: bool) -> Trace {
        Trace { start, hash: 0xcbf2_9ce4_8422_2325, prints }
    }

    /// Two runs with the same hash sent, received and completed the same at the same times.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// A datagram left a node or arrived. Its ICRC stands for its content.
    pub fn datagram(&mut self, now: Instant, node: usize, direction: Direction, bytes: &[u8]) {
        self.mix(now, node);
        self.mix_number(direction as u64);
        self.mix_number(bytes.len() as u64);
        let (head, tail) = (bytes.len().min(12), bytes.len().saturating_sub(4));
        let mut ends = [0; 16];
        ends[..head].copy_from_slice(&bytes[..head]);
        ends[12..12 + bytes.len() - tail].copy_from_slice(&bytes[tail..]);
        let ends = u128::from_le_bytes(ends);
        self.mix_number(ends as u64);
        self.mix_number((ends >> 64) as u64);
        if self.prints {
            let arrow = match direction {
                Direction::Out => "->",
                Direction::In => "<-",
            };
            self.line(now, node, format_args!("{arrow} {}", PacketLine(Packet::parse(bytes))));
        }
    }

    /// A completion was polled.
    pub fn completion(&mut self, now: Instant, node: usize, completion: &Completion) {
        self.mix(now, node);
        self.mix_number(completion.wr_id);
        self.mix_number(completion.status as u64);
        self.mix_number(u64::from(completion.byte_len));
        if self.prints {
            let Completion { wr_id, status, opcode, byte_len, qpn, .. } = completion;
            self.line(
                now,
                node,
                format_args!("!! {qpn} {wr_id:#x} {opcode:?} {status:?} {byte_len} bytes"),
            );
        }
    }

    /// A program did something.
    pub fn note(&self, now: Instant, node: usize, note: fmt::Arguments<'_>) {
        self.line(now, node, note);
    }

    /// How long the run has lasted at `now`, in virtual time.
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    fn line(&self, now: Instant, node: usize, text: fmt::Arguments<'_>) {
        if self.prints {
            let micros = self.elapsed(now).as_nanos() as f64 / 1e3;
            eprintln!("{micros:>12.3} us  node {node}  {text}");
        }
    }

    fn mix(&mut self, now: Instant, node: usize) {
        self.mix_number(self.elapsed(now).as_nanos() as u64);
        self.mix_number(node as u64);
    }

    /// One round of FNV-1a, over 64 bits at once.
    fn mix_number(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        self.hash ^= self.hash >> 29;
    }
}

/// A packet in one line.
struct PacketLine<'a>(Result<Packet<'a>, ParseError>);

impl fmt::Display for PacketLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = match &self.0 {
            Ok(packet) => packet,
            Err(error) => return write!(f, "({error})"),
        };
        let bth = &packet.headers.bth;
        let body = &packet.headers.body;
        write!(f, "{} qp {} psn {}", body.opcode(), bth.dest_qp, bth.psn)?;
        if body.has_payload() {
            write!(f, " {} bytes", packet.payload.len())?;
        }
        if let Some(reth) = body.request().as_ref().and_then(Request::reth) {
            write!(f, " reth {:#x}+{}", reth.va, reth.len)?;
        }
        if let Some(aeth) = body.aeth() {
            write!(f, " {:?} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if bth.ack_req {
            write!(f, " ack!")?;
        }
        Ok(())
    }
}
