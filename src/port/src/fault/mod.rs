//! Fault injection around any port.

mod rule;
mod spec;

pub use rule::{Packets, Rule};
pub use spec::{Action, Direction, FaultSpec, FaultSpecError};

use crate::delay_line::{DelayLine, Path};
use crate::impairment::{self, Impairments};
use crate::rng::Rng;
use crate::{Port, PortCounters, RxBatch, SendOutcome, Wrapper};
use bytes::Bytes;
use std::io;
use std::time::{Duration, Instant};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Flow, Outer};

/// Bytes of the batch that what survives is laid into.
const OUTGOING_CAPACITY: usize = 1 << 20;

/// Bytes of memory that a direction's delayed datagrams take at most: 2 s at 1 Gbit/s. A network
/// whose buffer is full drops what comes as well.
const MAX_HELD: usize = 256 << 20;

/// When to try again after sending was blocked.
const BLOCKED_RETRY: Duration = Duration::from_micros(50);

/// A port whose datagrams are lost, doubled, delayed, reordered and damaged as a [`FaultSpec`]
/// says.
///
/// What is sent is laid into new runs, so that what the port below sends is consistent: the ICRC of
/// a datagram that was wrong before is right then, and only those that corruption chose are wrong.
pub struct Fault<P> {
    inner: P,
    spec: FaultSpec,
    tx: DirectionState<Outgoing>,
    rx: DirectionState<Outer>,
    outgoing: TxBatch,
    incoming: RxBatch,
    /// Set while sending is blocked: the caller's batch may be empty then, and give no reason to
    /// call again.
    retry_at: Option<Instant>,
    counters: PortCounters,
}

/// The state of one direction.
struct DirectionState<H> {
    applies: bool,
    rng: Rng,
    /// How many packets each rule has counted.
    seen: Vec<u64>,
    path: Path,
    held: DelayLine<Held<H>>,
    /// Bytes of memory that these take.
    held_bytes: usize,
    /// And may take.
    max_held: usize,
}

/// A datagram that is held back, and what goes with it.
struct Held<H> {
    with: H,
    bytes: Bytes,
}

impl<H> Held<H> {
    /// Bytes of memory that a datagram takes which is held.
    fn size(datagram: &[u8]) -> usize {
        size_of::<Self>() + datagram.len()
    }
}

/// What goes with a datagram that is to be sent.
struct Outgoing {
    flow: Flow,
    /// To be damaged when the ICRC is in.
    corrupt: bool,
}

impl<H> DirectionState<H> {
    fn new(spec: &FaultSpec, other: Direction, seed: u64) -> Self {
        DirectionState {
            applies: spec.direction != other,
            rng: Rng::new(seed),
            seen: vec![0; spec.rules.len()],
            path: Path::default(),
            held: DelayLine::new(),
            held_bytes: 0,
            max_held: MAX_HELD,
        }
    }

    /// What happens to the next datagram.
    fn decide(
        &mut self,
        spec: &FaultSpec,
        datagram: &[u8],
        counters: &mut PortCounters,
    ) -> Impairments {
        if !self.applies {
            return Impairments::default();
        }
        let mut impairments = spec.impairment.decide(&mut self.rng);
        for (rule, seen) in spec.rules.iter().zip(&mut self.seen) {
            if !rule.packets.contain(datagram) {
                continue;
            }
            *seen += 1;
            if rule.which.contains(seen) {
                match rule.action {
                    Action::Drop => impairments.drop = true,
                    Action::Duplicate => impairments.duplicate = true,
                    Action::Corrupt => impairments.corrupt = true,
                    Action::Reorder => {
                        impairments.reorder = Some(impairment::reorder_extra(&mut self.rng));
                    }
                }
            }
        }
        if impairments.drop {
            counters.fault_dropped += 1;
        } else {
            counters.fault_duplicated += u64::from(impairments.duplicate);
            counters.fault_corrupted += u64::from(impairments.corrupt);
            counters.fault_reordered += u64::from(impairments.reorder.is_some());
            counters.fault_delayed += u64::from(impairments.delay > Duration::ZERO);
        }
        impairments
    }

    /// Holds a datagram back until it is due. If it is due now and nothing is before it, gives back
    /// what goes with it.
    fn hold(
        &mut self,
        now: Instant,
        with: H,
        datagram: &[u8],
        impairments: &Impairments,
        counters: &mut PortCounters,
    ) -> Option<H> {
        let arrival = self.path.arrival(now, impairments.delay, impairments.reorder);
        if arrival <= now && self.held.peek_due(now).is_none() {
            return Some(with);
        }
        self.keep(arrival, with, datagram, counters);
        None
    }

    /// Holds a datagram back until then, or drops it if too many are held.
    fn keep(&mut self, until: Instant, with: H, datagram: &[u8], counters: &mut PortCounters) {
        let size = Held::<H>::size(datagram);
        if self.held_bytes + size > self.max_held {
            counters.fault_dropped += 1;
            return;
        }
        self.held_bytes += size;
        self.held.push(until, Held { with, bytes: Bytes::copy_from_slice(datagram) });
    }

    /// The datagram that has been due for longest, if any is due.
    fn pop_due(&mut self, now: Instant) -> Option<Held<H>> {
        let held = self.held.pop_due(now)?;
        self.held_bytes -= Held::<H>::size(&held.bytes);
        Some(held)
    }
}

impl<P: Port> Fault<P> {
    /// Puts faults around a port.
    pub fn new(inner: P, spec: FaultSpec) -> Self {
        let mut seeds = Rng::new(spec.seed);
        Fault {
            tx: DirectionState::new(&spec, Direction::Rx, seeds.next_u64()),
            rx: DirectionState::new(&spec, Direction::Tx, seeds.next_u64()),
            outgoing: TxBatch::new(inner.caps().tx_limits, OUTGOING_CAPACITY),
            incoming: RxBatch::default(),
            retry_at: None,
            counters: PortCounters::default(),
            inner,
            spec,
        }
    }

    /// Takes all of the batch in, as far as there is room, and sends what is not held back.
    fn send_on(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        while let Some(held) = self.tx.held.peek_due(now) {
            if self.outgoing.room() < held.bytes.len()
                && self.inner.send(now, &mut self.outgoing)? == SendOutcome::Blocked
            {
                return Ok(SendOutcome::Blocked);
            }
            if let Some(held) = self.tx.pop_due(now) {
                push_outgoing(&mut self.outgoing, &mut self.tx.rng, &held.with, &held.bytes);
            }
        }
        while !batch.is_empty() {
            let Some(run) = batch.runs().next() else { break };
            // All of it could be doubled.
            if self.outgoing.room() < 2 * run.bytes.len()
                && self.inner.send(now, &mut self.outgoing)? == SendOutcome::Blocked
            {
                return Ok(SendOutcome::Blocked);
            }
            for datagram in run.datagrams() {
                let impairments = self.tx.decide(&self.spec, datagram.bytes, &mut self.counters);
                for _ in 0..impairments.copies() {
                    let with = Outgoing { flow: *datagram.flow, corrupt: impairments.corrupt };
                    let counters = &mut self.counters;
                    let with = self.tx.hold(now, with, datagram.bytes, &impairments, counters);
                    if let Some(with) = with {
                        push_outgoing(&mut self.outgoing, &mut self.tx.rng, &with, datagram.bytes);
                    }
                }
            }
            batch.advance(1);
        }
        self.inner.send(now, &mut self.outgoing)
    }
}

impl<P: Port> Wrapper for Fault<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn wrap_send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        let outcome = self.send_on(now, batch);
        let blocked = matches!(outcome, Ok(SendOutcome::Blocked));
        self.retry_at = blocked.then(|| now + BLOCKED_RETRY);
        outcome
    }

    fn wrap_recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        while let Some(held) = self.rx.held.peek_due(now) {
            if !rx.push(&held.with, &held.bytes) {
                return Ok(rx.len());
            }
            self.rx.pop_due(now);
        }
        let released = rx.len();
        let received = self.inner.recv(now, &mut self.incoming)?;
        while let Some((outer, bytes)) = self.incoming.next_datagram() {
            let impairments = self.rx.decide(&self.spec, bytes, &mut self.counters);
            if impairments.corrupt {
                impairment::corrupt(&mut self.rx.rng, bytes);
            }
            for _ in 0..impairments.copies() {
                let counters = &mut self.counters;
                let outer = self.rx.hold(now, *outer, bytes, &impairments, counters);
                let Some(outer) = outer else { continue };
                if !rx.push(&outer, bytes) {
                    // The caller's batch is full: the next one begins with this.
                    self.rx.keep(now, outer, bytes, &mut self.counters);
                }
            }
        }
        Ok((released + received).max(rx.len()))
    }

    fn own_timeout(&self) -> Option<Instant> {
        let own = [self.retry_at, self.tx.held.next_due(), self.rx.held.next_due()];
        own.into_iter().flatten().min()
    }

    fn own_counters(&self) -> PortCounters {
        self.counters
    }
}

/// Lays a datagram into the batch that is sent, and damages it there if it is to be.
fn push_outgoing(outgoing: &mut TxBatch, rng: &mut Rng, with: &Outgoing, datagram: &[u8]) {
    let bytes = outgoing.push_raw(&with.flow, datagram);
    if with.corrupt {
        impairment::corrupt(rng, bytes);
    }
}

#[cfg(test)]
mod tests;
