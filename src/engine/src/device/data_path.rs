//! Packets in, packets out, timers; and the one way into a QP.

use super::{Device, Sender, management};
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::{IDLE_TURNS, TIMERS_PER_CALL, TX_BYTES, TX_PACKETS};
use crate::qp::Event;
use crate::seeded;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use urxe_types::{Pkey, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::Verdict;
use urxe_wire::mad::CapabilityMad;
use urxe_wire::{Bth, Outer, Packet, ParseError, ROCE_PORT};

/// Whether the peer had better begin with what is in the batch while more is made.
fn is_worth_sending(tx: &TxBatch) -> bool {
    tx.len() >= TX_PACKETS && tx.used() >= TX_BYTES
}

impl Device {
    /// Says that the program has posted sends, or has posted anything to a QP in ERR.
    pub fn ring_doorbell(&mut self, qpn: Qpn) {
        if let Some(scheduled) = self.qps.get_mut(&qpn.get())
            && scheduled.qp.on_doorbell()
        {
            self.schedule.give_turn(qpn, scheduled);
        }
    }

    /// Takes in one datagram: a UDP payload, and what it came with.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        bytes: &[u8],
    ) {
        let packet = match self.accept(outer, bytes) {
            Ok(packet) => packet,
            Err(counter) => {
                self.tables.counters.add(counter, 1);
                if counter == Counter::DropUnknownOpcode {
                    self.handle_unknown_opcode(now, host, outer, bytes);
                }
                return;
            }
        };
        match packet.headers.bth.dest_qp {
            qpn if qpn == self.management.qpn() => self.handle_mad(now, host, outer, &packet),
            Qpn::MULTICAST => self.handle_multicast(now, host, outer, &packet),
            qpn => self.deliver(now, host, qpn, outer, &packet),
        }
    }

    /// The checks that need no QP.
    fn accept<'a>(&mut self, outer: &Outer, bytes: &'a [u8]) -> Result<Packet<'a>, Counter> {
        // COUNT-002
        if bytes.len() < Bth::LEN + urxe_wire::icrc::LEN {
            return Err(Counter::DropTooShort);
        }
        // HOSTILE-010, COUNT-020
        if outer.flow.src_port != ROCE_PORT && self.is_guarded(outer.flow.src) {
            return Err(Counter::DropForgedLocal);
        }
        // COUNT-001
        if self.icrc.check(outer, bytes) == Verdict::Bad && !fault!(IcrcNotChecked) {
            return Err(Counter::DropBadIcrc);
        }
        let packet = Packet::parse(bytes).map_err(|error| match error {
            ParseError::TooShort { .. } => Counter::DropTooShort,
            // COUNT-003
            ParseError::UnknownOpcode { .. } => Counter::DropUnknownOpcode,
            // COUNT-004, HOST-024
            _ => Counter::DropMalformed,
        })?;
        let pkey = packet.headers.bth.pkey;
        let is_ours = (pkey.matches(Pkey::DEFAULT) || fault!(PkeyNotChecked))
            && (pkey.is_full_member() || !fault!(LimitedMemberDropped));
        match is_ours {
            true => Ok(seeded::parsed(packet, bytes)),
            // COUNT-005, UD-018
            false => Err(Counter::DropBadPkey),
        }
    }

    /// Whether nobody but this daemon sends from an address. Of the one that is asked for again and
    /// again it is known without a search.
    fn is_guarded(&mut self, src: IpAddr) -> bool {
        if self.unguarded == Some(src) {
            return false;
        }
        let is_guarded = self.tables.config.guarded_addrs.contains(&src);
        if !is_guarded {
            self.unguarded = Some(src);
        }
        is_guarded
    }

    /// Whether nothing is missed if all packets from a source are dropped unseen for a while, since
    /// none was of use: it is not where this daemon sends from, and no QP's peer is there.
    pub fn may_refuse(&self, source: SocketAddr) -> bool {
        match self.tables.config.guarded_addrs.contains(&source.ip()) {
            true => source.port() != ROCE_PORT,
            false => !self.tables.paths.has_users_to(source.ip()),
        }
    }

    /// A packet with an opcode that we do not know: if it is one of reliable connections, its QP
    /// may have to say so.
    fn handle_unknown_opcode(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        bytes: &[u8],
    ) {
        let bth = bytes.first_chunk().and_then(Bth::parse_reserved_rc);
        let Some(bth) = bth.filter(|bth| bth.pkey.matches(Pkey::DEFAULT)) else { return };
        self.begin_for(now, host, bth.dest_qp);
        self.run(now, host, bth.dest_qp, Event::ReservedOpcode(outer, &bth));
    }

    /// A packet for QP1, or for what a slot has in its place.
    fn handle_mad(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        packet: &Packet<'_>,
    ) {
        let counters = &mut self.tables.counters;
        match management::parse(outer, packet) {
            Ok((from, mad)) => {
                counters.add(Counter::ReceivedPackets, 1);
                counters.add(Counter::ReceivedBytes, mad.len() as u64);
                counters.add(Counter::MadsReceived, 1);
                match CapabilityMad::parse(mad) {
                    Some(mad) => self.handle_capability_mad(now, &from, &mad),
                    None => host.mad(&from, mad),
                }
            }
            Err(counter) => counters.add(counter, 1),
        }
    }

    /// A packet for the multicast QPN: every QP of the group that it was addressed to gets it.
    fn handle_multicast(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        packet: &Packet<'_>,
    ) {
        let group = outer.flow.dst;
        let mut shares = 0;
        while let Some((share, members)) = self.multicast.share(group, shares) {
            let copies = self.schedule.shares.take_copies(share, members);
            // MCAST-001, MCAST-002: what one member does with its copy is its own affair.
            for member in 0..copies {
                let Some(qpn) = self.multicast.member(group, shares, member) else { break };
                self.deliver(now, host, qpn, outer, packet);
                if fault!(MulticastToOne) {
                    return;
                }
            }
            let left_out = (members - copies) as u64;
            self.tables.counters.add(Counter::DropMulticastShare, left_out);
            shares += 1;
        }
        if shares == 0 {
            // MCAST-003
            self.tables.counters.add(Counter::DropNoMulticastMember, 1);
        }
    }

    /// Gives a packet to a QP.
    fn deliver(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        qpn: Qpn,
        outer: &Outer,
        packet: &Packet<'_>,
    ) {
        // SHARE-134
        if !host.takes_packets(qpn) {
            self.tables.counters.add(Counter::DropMemoryStalls, 1);
            return;
        }
        self.begin_for(now, host, qpn);
        if !self.run(now, host, qpn, Event::Packet(outer, packet)) {
            let counter = match self.tables.config.slot.gets(qpn) {
                // COUNT-006, HOST-022
                true => Counter::DropUnknownQp,
                // SLOT-058
                false => Counter::DropOtherSlot,
            };
            self.tables.counters.add(counter, 1);
        }
    }

    /// What comes now is for this QP.
    fn begin_for(&mut self, now: Instant, host: &mut impl Host, qpn: Qpn) {
        // HOSTILE-009: what nobody has ends no batch.
        if self.open_batch.is_some_and(|open| open != qpn) && self.qps.contains_key(&qpn.get()) {
            // What came for another QP is a batch of its own: it answers for its own memory.
            self.end_open_batch(now, host);
        }
    }

    /// Says that a receive batch is through: its writes become visible, and what it acknowledges
    /// may be acknowledged.
    pub fn end_of_batch(&mut self, now: Instant, host: &mut impl Host) {
        self.schedule.shares.begin_batch();
        self.end_open_batch(now, host);
    }

    fn end_open_batch(&mut self, now: Instant, host: &mut impl Host) {
        if let Some(qpn) = self.open_batch.take() {
            self.run(now, host, qpn, Event::EndOfBatch);
        }
    }

    /// Whether an ACK of one QP is all that there is to send: if it waits for a moment, nothing
    /// else does.
    pub fn owes_only_an_ack(&self) -> bool {
        let only = self.schedule.only_turn().and_then(|qpn| self.qps.get(&qpn.get()));
        only.is_some_and(|scheduled| scheduled.qp.owes_only_an_ack())
            && !self.management.is_waiting()
            && !self.tables.peers.has_questions()
    }

    /// Puts packets into a batch until it is full or nothing is left to send. Returns whether
    /// there is more: then send the batch, which may even be empty after much work of another kind,
    /// and call again.
    pub fn poll_transmit(&mut self, now: Instant, host: &mut impl Host, tx: &mut TxBatch) -> bool {
        if let Some(senders) = &mut self.senders {
            senders.clear();
        }
        if let Some(repeats) = &mut self.tables.repeats {
            repeats.clear();
        }
        self.send_questions();
        if self.management.transmit(&mut self.tables.counters, tx) {
            return true;
        }
        let mut idle_turns = 0;
        while let Some(qpn) = self.schedule.next_turn() {
            if !tx.has_room() || is_worth_sending(tx) || idle_turns == IDLE_TURNS {
                self.schedule.put_back_turn(qpn);
                return true;
            }
            let before = tx.len();
            self.run(now, host, qpn, Event::Turn(tx));
            let packets = tx.len() - before;
            if let Some(senders) = &mut self.senders
                && packets > 0
            {
                senders.push(Sender { qpn, datagrams: before..before + packets });
            }
            self.schedule.shares.charge(packets);
            idle_turns += u32::from(packets == 0);
        }
        false
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None` if nothing is waited for. May
    /// be early, never late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.schedule.next_timer(), self.tables.paths.poll_timeout()].into_iter().flatten().min()
    }

    /// Sees to timers that have run out: as many as may be at a time, and
    /// [`poll_timeout`](Self::poll_timeout) says whether there are more.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        self.tables.paths.handle_timeout(now);
        self.release_held(now);
        for _ in 0..TIMERS_PER_CALL {
            // SHARE-005
            let Some((at, qpn)) = self.schedule.take_expired(now) else { break };
            if self.qps.get_mut(&qpn.get()).is_some_and(|scheduled| scheduled.take_timer(at)) {
                self.run(now, host, qpn, Event::Timer);
            }
        }
    }

    /// Lets something happen to a QP, and to others what follows for them: those of a CQ that has
    /// failed go to ERR. What that flushes may be too much for another CQ, and so on. Returns
    /// whether the QP is there.
    pub(super) fn run(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        qpn: Qpn,
        event: Event<'_>,
    ) -> bool {
        let is_there = self.run_one(now, host, qpn, event);
        while let Some(users) = self.tables.cqs.take_failed() {
            for qpn in users {
                // CQ-018, CQ-022: a flush of one of them may fail the next CQ.
                self.run_one(now, host, qpn, Event::CqFailed);
            }
        }
        is_there
    }

    /// Lets something happen to this QP. All that is to be done about it then is done here; what
    /// follows from packets, when their batch ends.
    fn run_one(&mut self, now: Instant, host: &mut impl Host, qpn: Qpn, event: Event<'_>) -> bool {
        let Some(scheduled) = self.qps.get_mut(&qpn.get()) else { return false };
        let is_amid_batch = matches!(event, Event::Packet(..));
        if let Event::Turn(_) = event {
            scheduled.take_turn();
        }
        let wants_turn = scheduled.qp.handle(now, host, &mut self.tables, event);
        if is_amid_batch || scheduled.qp.is_dirty() {
            self.open_batch = Some(qpn);
        }
        if is_amid_batch {
            return true;
        }
        if wants_turn {
            self.schedule.give_turn(qpn, scheduled);
        }
        if let Some(at) = scheduled.qp.deadline() {
            self.schedule.set_timer(qpn, scheduled, at);
        }
        self.release_held(now);
        true
    }

    /// Gives a turn to the QPs that were held by their path and are not any more.
    pub(super) fn release_held(&mut self, now: Instant) {
        while let Some(release) = self.tables.paths.next_release(now) {
            if let Some(scheduled) = self.qps.get_mut(&release.qpn.get())
                && scheduled.qp.on_released(&release)
            {
                self.schedule.give_turn(release.qpn, scheduled);
            } else {
                self.tables.paths.give_back(release);
            }
        }
    }
}
