//! The ways of a port through memory: to itself, and to other ports of its process.
//!
//! Programs of one daemon that talk to each other do so from an address of a device to one of the
//! same or of another. The kernel would carry that over its loopback interface: a system call each
//! way, two copies of the bytes, and a queue that may overflow. Here they are copied once, and
//! nothing is lost that a slot sends itself. They are the same bytes: what looks at packets or
//! breaks them around the port does so as ever, and each ICRC is checked.

use super::UdpPort;
use super::inboxes::Put;
use crate::RxBatch;
use std::net::IpAddr;
use std::time::Instant;
use urxe_wire::batch::TxBatch;
use urxe_wire::{Ident, Outer};

/// Buffers of 64 KiB of what a slot has sent itself and not received yet; who sends more waits
/// until it was.
const BUFFERS: usize = 16;

/// What was sent to ourselves, and is to be received.
pub(super) struct Loopback {
    waiting: RxBatch,
    /// Since when it waits.
    since: Option<Instant>,
}

impl Loopback {
    pub(super) fn new() -> Loopback {
        Loopback { waiting: RxBatch::new(BUFFERS), since: None }
    }

    /// Since when something waits to be received.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Receives what waits. Returns how many datagrams that is.
    pub(super) fn receive(&mut self, rx: &mut RxBatch) -> usize {
        if self.since.take().is_none() {
            return 0;
        }
        rx.take_all(&mut self.waiting);
        rx.len()
    }
}

impl UdpPort {
    /// Takes out of a batch what can go through memory. Returns whether there was room for all of
    /// it that is for ourselves.
    pub(super) fn loop_back(&mut self, now: Instant, batch: &mut TxBatch) -> bool {
        let UdpPort { loopback: Some(loopback), inbox, sockets, options, counters, .. } = self
        else {
            return true;
        };
        let has = |addr: IpAddr| !addr.is_multicast() && sockets.position(addr).is_some();
        let mut is_short = false;
        batch.take_runs(|run| {
            if is_short || !has(run.flow.src) {
                return false;
            }
            let outer = Outer { flow: *run.flow, ident: Ident::Hidden { guess: run.first_ident } };
            // Two packets in one datagram are found in it.
            let segment = if run.is_joined { run.bytes.len() } else { run.segment_len };
            let (datagrams, bytes) = (run.segments as u64, run.bytes.len() as u64);
            let is_own = has(run.flow.dst);
            if is_own && run.slot == options.slot {
                // WIRE-201
                is_short = !loopback.waiting.push_run(&outer, run.bytes, segment);
                if is_short {
                    return false;
                }
                loopback.since.get_or_insert(now);
                counters.rx_datagrams += datagrams;
                counters.rx_bytes += bytes;
            } else {
                // WIRE-202
                let Some(inbox) = inbox else { return false };
                match inbox.put((run.slot, is_own), &outer, run.bytes, segment) {
                    Put::Taken => {}
                    Put::NoRoom => counters.loopback_overflow += datagrams,
                    Put::NoReceiver => return false,
                }
            }
            counters.loopback_datagrams += datagrams;
            counters.tx_datagrams += datagrams;
            counters.tx_bytes += bytes;
            true
        });
        counters.tx_blocked += u64::from(is_short);
        if let Some(inbox) = inbox {
            inbox.wake_others();
        }
        !is_short
    }
}
