//! The packets of a check, to be looked at afterwards.

use std::time::Instant;
use urxe_wire::Flow;

/// What was sent and received, in order.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The packets.
    pub records: Vec<Record>,
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
    /// Its UDP payload.
    pub bytes: Vec<u8>,
}

/// Packets that are kept of one check; what is beyond is not.
const MOST: usize = 10_000;

impl Evidence {
    pub(super) fn push(&mut self, way: Direction, at: Instant, flow: &Flow, bytes: &[u8]) {
        if self.records.len() < MOST {
            self.records.push(Record { way, at, flow: *flow, bytes: bytes.to_vec() });
        }
    }
}
