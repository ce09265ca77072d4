//! Taps: copies of packets, with what became of them, for programs that look on.
//!
//! A tap writes records into a pipe, a batch at a time. Nothing here waits: what the pipe has no
//! room for stays in a buffer that was made with the tap, and what that has no room for is not
//! captured, and counted. As long as there is no tap, packets pass by one question per batch.

use crate::limits::{TAP_BUFFER, TAP_FLUSH};
use crate::objects::{Objects, OwnerId};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Instant, SystemTime};
use urxe_engine::{Counter, Counters, Device};
use urxe_port::capture::{
    Captured, Clock, Filter, MAX_COUNTED, PacketDirection, Record, identification,
};
use urxe_types::Qpn;
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::Checker;
use urxe_wire::{Bth, DONT_FRAGMENT, Flow, Outer, Packet};

/// Whose packets a tap sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// All packets, also those of QP1 and those that are for no QP.
    All,
    /// Those of QPs of these owners.
    Of(BTreeSet<OwnerId>),
}

/// What a tap begins with.
#[derive(Debug)]
pub struct TapSpec {
    /// By which it is known.
    pub number: u64,
    /// Whose packets.
    pub owners: Owners,
    /// Which of them.
    pub filter: Filter,
    /// How many bytes of each, from its BTH on.
    pub snaplen: usize,
    /// Where they go: the end of a pipe that does not block.
    pub pipe: OwnedFd,
}

/// One tap.
struct Tap {
    spec: TapSpec,
    clock: Clock,
    /// Records, of which the pipe has taken the first `taken` bytes.
    buffer: Vec<u8>,
    taken: usize,
    /// Packets that were not captured since the last record.
    lost: u64,
    /// When to try the pipe again.
    again: Option<Instant>,
    /// Nobody reads any more.
    is_over: bool,
}

/// The taps of a data path.
#[derive(Default)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    /// What was counted before the packet that is being handled.
    before: Counters,
    checker: Option<Checker>,
    /// What the last packet of this batch that no tap takes is known by. Others like it are not
    /// looked at: between two batches, QPs may come and go.
    untaken: Option<Glance>,
}

/// What is seen of a packet without a look at its headers: [`Tap::may_take`] knows no more.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Glance {
    dest: Option<Qpn>,
    /// The QP on this side that sends it.
    sender: Option<Qpn>,
    opcode: Option<u8>,
    flow: Flow,
}

impl Glance {
    fn of(flow: &Flow, sender: Option<Qpn>, bytes: &[u8]) -> Glance {
        let (dest, opcode) = (Bth::dest_qp_in(bytes), bytes.first().copied());
        Glance { dest, sender, opcode, flow: *flow }
    }
}

/// What is told of a packet.
struct Seen<'a> {
    now: Instant,
    direction: PacketDirection,
    flow: &'a Flow,
    ident: u16,
    fragment: u16,
    /// The QP on this side.
    qpn: Option<Qpn>,
    counted: &'a [u8],
    bytes: &'a [u8],
}

impl Taps {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Begins a tap.
    pub(crate) fn add(&mut self, spec: TapSpec) {
        let clock = Clock::new(Instant::now(), SystemTime::now());
        let buffer = Vec::with_capacity(TAP_BUFFER);
        let (taken, lost, again, is_over) = (0, 0, None, false);
        self.taps.push(Tap { spec, clock, buffer, taken, lost, again, is_over });
        self.checker.get_or_insert_with(Checker::new);
    }

    /// Ends a tap.
    pub(crate) fn remove(&mut self, number: u64) {
        self.taps.retain(|tap| tap.spec.number != number);
    }

    /// Has a tap see the packets of another owner.
    pub(crate) fn admit(&mut self, number: u64, owner: OwnerId) {
        for tap in self.taps.iter_mut().filter(|tap| tap.spec.number == number) {
            if let Owners::Of(owners) = &mut tap.spec.owners {
                owners.insert(owner);
            }
        }
    }

    /// Nothing is left of an owner.
    pub(crate) fn forget(&mut self, owner: OwnerId) {
        for tap in &mut self.taps {
            if let Owners::Of(owners) = &mut tap.spec.owners {
                owners.remove(&owner);
            }
        }
    }

    /// A batch of datagrams is going to be handled.
    pub(crate) fn begin_batch(&mut self) {
        self.untaken = None;
    }

    /// A datagram is going to be handled. Returns whether a tap is to see it, so that
    /// [`handled`](Self::handled) is to be called.
    pub(crate) fn before_handling(
        &mut self,
        device: &Device,
        objects: &Objects,
        outer: &Outer,
        bytes: &[u8],
    ) -> bool {
        let glance = Glance::of(&outer.flow, None, bytes);
        if self.untaken == Some(glance) {
            return false;
        }
        let (qpn, group) = target(outer, bytes);
        let mut may_take = false;
        let is_wanted = self.taps.iter().any(|tap| {
            let may =
                tap.may_take(&outer.flow, None, bytes) && tap.sees(device, objects, qpn, group);
            may_take |= may;
            may && tap.takes(&outer.flow, None, bytes)
        });
        if !may_take {
            self.untaken = Some(glance);
        }
        if is_wanted {
            self.before.clone_from(device.counters());
        }
        is_wanted
    }

    /// A datagram was handled, which came at `now`.
    pub(crate) fn handled(
        &mut self,
        now: Instant,
        device: &Device,
        objects: &Objects,
        outer: &Outer,
        bytes: &[u8],
    ) {
        // TAP-003
        let (mut counted, mut count) = ([0; MAX_COUNTED], 0);
        for (place, &counter) in (0u8..).zip(Counter::ALL) {
            let is_told = !counter.is_ordinary() && count < MAX_COUNTED;
            if is_told && device.counters().get(counter) != self.before.get(counter) {
                counted[count] = place;
                count += 1;
            }
        }
        let (qpn, group) = target(outer, bytes);
        let Some(checker) = &mut self.checker else { return };
        let (ident, fragment) = identification(checker, outer, bytes);
        let (direction, counted) = (PacketDirection::Inbound, &counted[..count]);
        let flow = &outer.flow;
        let seen = Seen { now, direction, flow, ident, fragment, qpn, counted, bytes };
        for tap in &mut self.taps {
            if tap.may_take(flow, None, bytes) && tap.sees(device, objects, qpn, group) {
                tap.record(&seen);
            }
        }
    }

    /// What is in the batch is going to be sent.
    pub(crate) fn sending(&mut self, device: &Device, objects: &Objects, tx: &TxBatch) {
        // TAP-006: it is sent after this, and received after that.
        let now = Instant::now();
        let mut senders = device.senders().iter().peekable();
        let mut repeats = device.repeats().iter().peekable();
        self.begin_batch();
        for (index, datagram) in tx.datagrams().enumerate() {
            while senders.next_if(|sender| sender.datagrams.end <= index).is_some() {}
            let sender = senders.peek().filter(|sender| sender.datagrams.contains(&index));
            let qpn = sender.map(|sender| sender.qpn);
            let repeat = repeats.next_if(|repeat| repeat.datagram == index);
            let glance = Glance::of(datagram.flow, qpn, datagram.bytes);
            if self.untaken == Some(glance) {
                continue;
            }
            // TAP-007
            let counted = repeat.map(|repeat| [Counter::RetransmittedPackets, repeat.after]);
            let counted = counted.map(|counted| counted.map(place));
            let seen = Seen {
                now,
                direction: PacketDirection::Outbound,
                flow: datagram.flow,
                ident: datagram.ident,
                fragment: DONT_FRAGMENT,
                qpn,
                counted: counted.as_ref().map_or(&[], |counted| counted),
                bytes: datagram.bytes,
            };
            let mut may_take = false;
            for tap in &mut self.taps {
                if tap.may_take(datagram.flow, qpn, datagram.bytes)
                    && tap.sees(device, objects, qpn, None)
                {
                    may_take = true;
                    tap.record(&seen);
                }
            }
            if !may_take {
                self.untaken = Some(glance);
            }
        }
    }

    /// Writes what the pipes take. Returns whether there is still a tap.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        self.taps.iter_mut().for_each(|tap| tap.flush(now));
        self.taps.retain(|tap| !tap.is_over);
        !self.taps.is_empty()
    }

    /// When a pipe that was full is to be tried again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.taps.iter().filter_map(|tap| tap.again).min()
    }
}

/// The QP that a datagram is for, or the multicast group.
fn target(outer: &Outer, bytes: &[u8]) -> (Option<Qpn>, Option<IpAddr>) {
    let qpn = Bth::dest_qp_in(bytes);
    (qpn, (qpn == Some(Qpn::MULTICAST)).then_some(outer.flow.dst))
}

/// Where a counter stands among all.
fn place(counter: Counter) -> u8 {
    counter as u8
}

impl Tap {
    /// Whether it may see a packet of a QP, or to a multicast group.
    fn sees(
        &self,
        device: &Device,
        objects: &Objects,
        qpn: Option<Qpn>,
        group: Option<IpAddr>,
    ) -> bool {
        // TAP-001
        let Owners::Of(owners) = &self.spec.owners else { return true };
        let is_theirs = |qpn: Qpn| {
            objects.qps.by_number(qpn.get()).is_some_and(|qp| owners.contains(&qp.owner))
        };
        match group {
            Some(group) => device.mcast_members(group).any(is_theirs),
            None => qpn.is_some_and(is_theirs),
        }
    }

    /// Whether a packet with these first bytes may be one that was asked for; with the QP on this
    /// side that sends it.
    fn may_take(&self, flow: &Flow, sender: Option<Qpn>, bytes: &[u8]) -> bool {
        let filter = &self.spec.filter;
        filter.has_addresses(flow)
            && (filter.asks_for_no_header() || filter.may_take(bytes, sender))
    }

    /// Whether one that [may be](Self::may_take) is one that was asked for.
    fn takes(&self, flow: &Flow, sender: Option<Qpn>, bytes: &[u8]) -> bool {
        let filter = &self.spec.filter;
        filter.asks_for_no_header()
            || Packet::parse(bytes).is_ok_and(|packet| filter.takes(flow, &packet.headers, sender))
    }

    /// Puts a packet that it [may take](Self::may_take) behind the others, if it does and there is
    /// room.
    fn record(&mut self, seen: &Seen<'_>) {
        let sender = seen.qpn.filter(|_| seen.direction == PacketDirection::Outbound);
        if !self.takes(seen.flow, sender, seen.bytes) {
            return;
        }
        let bytes = &seen.bytes[..seen.bytes.len().min(self.spec.snaplen)];
        let captured = Captured {
            time: self.clock.nanoseconds(seen.now),
            direction: seen.direction,
            qpn: seen.qpn,
            flow: *seen.flow,
            ident: seen.ident,
            fragment: seen.fragment,
            length: seen.bytes.len(),
            counted: seen.counted,
            bytes,
        };
        let need = captured.record_len() + Record::LOST_LEN;
        // A pipe that was full is not asked again for each packet.
        if self.buffer.len() + need > TAP_BUFFER && self.again.is_none() {
            self.flush(seen.now);
        }
        // TAP-002
        if self.buffer.len() + need > TAP_BUFFER {
            self.lost += 1;
            return;
        }
        self.tell_lost();
        captured.write(&mut self.buffer);
    }

    /// Says how many are missing.
    fn tell_lost(&mut self) {
        if self.lost > 0 {
            Record::write_lost(std::mem::take(&mut self.lost), &mut self.buffer);
        }
    }

    /// Writes what the pipe takes.
    fn flush(&mut self, now: Instant) {
        self.again = None;
        while self.taken < self.buffer.len() {
            match rustix::io::write(&self.spec.pipe, &self.buffer[self.taken..]) {
                Ok(len) => self.taken += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.again = Some(now + TAP_FLUSH);
                    break;
                }
                Err(_) => {
                    // TAP-004
                    self.is_over = true;
                    self.taken = self.buffer.len();
                }
            }
        }
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.is_empty() && self.lost > 0 {
            self.tell_lost();
            self.again = Some(now);
        }
    }
}
