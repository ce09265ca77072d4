//! The way of a port to itself, through memory.
//!
//! Programs of one slot that talk to each other do so from an address of their device to one of the
//! same device. The kernel would carry that over its loopback interface: a system call each way,
//! two copies of the bytes, and a queue that may overflow. Here they are copied once, and nothing
//! is lost. They are the same bytes: what looks at packets or breaks them around the port does so
//! as ever, and each ICRC is checked.

use super::UdpPort;
use crate::RxBatch;
use std::net::IpAddr;
use std::time::Instant;
use urxe_wire::batch::{Run, TxBatch};
use urxe_wire::{Ident, Outer};

/// Buffers of 64 KiB of what was sent and not received yet; who sends more waits until it was.
const BUFFERS: usize = 16;

/// What was sent to ourselves, and is to be received.
pub(super) struct Loopback {
    waiting: RxBatch,
    /// Since when it waits.
    since: Option<Instant>,
    /// The network is asked before any more of it is received: what comes from there, for another
    /// program perhaps, is not to wait for all that QPs of this slot send each other.
    is_networks_turn: bool,
}

impl Loopback {
    pub(super) fn new() -> Loopback {
        Loopback { waiting: RxBatch::new(BUFFERS), since: None, is_networks_turn: false }
    }

    /// Takes out of a batch what is for ourselves, as far as there is room.
    fn take(
        &mut self,
        now: Instant,
        batch: &mut TxBatch,
        is_own: impl Fn(&Run<'_>) -> bool,
    ) -> Taken {
        let mut taken = Taken::default();
        batch.take_runs(|run| {
            if taken.is_short || !is_own(&run) {
                return false;
            }
            let outer = Outer { flow: *run.flow, ident: Ident::Hidden { guess: run.first_ident } };
            // Two packets in one datagram are found in it.
            let segment = if run.is_joined { run.bytes.len() } else { run.segment_len };
            if !self.waiting.push_run(&outer, run.bytes, segment) {
                taken.is_short = true;
                return false;
            }
            taken.datagrams += run.segments as u64;
            taken.bytes += run.bytes.len() as u64;
            true
        });
        if taken.datagrams > 0 {
            self.since.get_or_insert(now);
        }
        taken
    }

    /// Since when something waits to be received.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether that comes next, before anything from the network.
    pub(super) fn is_next(&self) -> bool {
        self.since.is_some() && !self.is_networks_turn
    }

    /// So many datagrams have come from the network. Receives what waits here if that is none;
    /// returns how many there are.
    pub(super) fn after_network(&mut self, received: usize, rx: &mut RxBatch) -> usize {
        self.is_networks_turn = false;
        if received > 0 { received } else { self.receive(rx) }
    }

    /// Receives what waits. Returns how many datagrams that is.
    pub(super) fn receive(&mut self, rx: &mut RxBatch) -> usize {
        if self.since.take().is_none() {
            return 0;
        }
        self.is_networks_turn = true;
        rx.take_all(&mut self.waiting);
        rx.len()
    }
}

/// What was taken out of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    datagrams: u64,
    bytes: u64,
    /// There was no room for more of it.
    is_short: bool,
}

impl UdpPort {
    /// Takes out of a batch what is for ourselves. Returns whether there was room for all of it.
    pub(super) fn loop_back(&mut self, now: Instant, batch: &mut TxBatch) -> bool {
        let Some(loopback) = &mut self.loopback else { return true };
        let (sockets, slot) = (&self.sockets, self.options.slot);
        let has = |addr: IpAddr| !addr.is_multicast() && sockets.position(addr).is_some();
        // WIRE-201
        let taken = loopback
            .take(now, batch, |run| run.slot == slot && has(run.flow.dst) && has(run.flow.src));
        self.counters.loopback_datagrams += taken.datagrams;
        self.counters.tx_datagrams += taken.datagrams;
        self.counters.tx_bytes += taken.bytes;
        self.counters.rx_datagrams += taken.datagrams;
        self.counters.rx_bytes += taken.bytes;
        self.counters.tx_blocked += u64::from(taken.is_short);
        !taken.is_short
    }
}
