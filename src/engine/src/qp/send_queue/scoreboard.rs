//! What has become of the packets that were sent: which have arrived, which were lost, and how many
//! bytes are in flight.
//!
//! Two things are told by a peer: up to where it has carried out all requests, and (with an answer
//! to a READ, an atomic, or a selective acknowledgement) that single ones have arrived. Packets
//! arrive in the order in which they were sent, or nearly so: one that is missing while later ones
//! have arrived was lost.

use super::psn_set::PsnSet;
use super::{Pending, SendQueue, distance};
use crate::path::Direction;
use std::collections::VecDeque;
use urxe_types::Psn;

/// What has become of the packets from the oldest not acknowledged on.
#[derive(Debug)]
pub(super) struct Scoreboard {
    /// All requests before it were carried out. What is missing before it are answers.
    executed: Psn,
    /// Those that were answered, that were carried out while an answer before them is missing, or
    /// that the peer said to have.
    pub(super) arrived: PsnSet,
    /// Those of requests that the peer said to have, and that it answers when what is before them
    /// has come.
    kept: PsnSet,
    /// Those that are to be sent again.
    pub(super) lost: PsnSet,
    /// Those that were sent again because they were lost, in the order of that.
    repeats: VecDeque<Repeat>,
    /// How many there have been of those.
    repeats_made: u64,
    /// Whatever is missing before it was taken for lost once.
    examined: Psn,
    /// Bytes in flight, by direction.
    pub(super) in_flight: [u64; 2],
    moved: Moved,
}

/// Packets that were sent again.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    first: Psn,
    end: Psn,
    /// The PSN after the highest that was sent before.
    sent: Psn,
}

/// Bytes that have left the flight since this was last asked, by direction.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::qp) struct Moved {
    /// They have arrived.
    pub(in crate::qp) delivered: [u64; 2],
    /// They were lost.
    pub(in crate::qp) lost: [u64; 2],
    /// They tell nothing of the path: answers that never were on their way, since what asked for
    /// them was lost, and requests that have come and were refused.
    pub(in crate::qp) gone: [u32; 2],
    /// They will be sent again with what was lost before them, or never.
    pub(in crate::qp) forgotten: [u64; 2],
}

impl Moved {
    /// What was counted as lost since then was not lost on the way.
    fn discount_losses(&mut self, direction: Direction, before: [u64; 2]) {
        let at = direction as usize;
        let lost = std::mem::replace(&mut self.lost[at], before[at]) - before[at];
        // It is no more than a window.
        self.gone[at] += lost as u32;
    }
}

impl Scoreboard {
    pub(super) fn new(first: Psn) -> Scoreboard {
        Scoreboard {
            executed: first,
            arrived: PsnSet::new(first),
            kept: PsnSet::new(first),
            lost: PsnSet::new(first),
            repeats: VecDeque::new(),
            repeats_made: 0,
            examined: first,
            in_flight: [0; 2],
            moved: Moved::default(),
        }
    }

    fn deliver(&mut self, direction: Direction, bytes: u64) {
        self.in_flight[direction as usize] -= bytes;
        self.moved.delivered[direction as usize] += bytes;
    }

    fn lose(&mut self, direction: Direction, bytes: u64) {
        self.in_flight[direction as usize] -= bytes;
        self.moved.lost[direction as usize] += bytes;
    }
}

impl SendQueue {
    /// Bytes that have left the flight since this was last asked.
    pub(in crate::qp) fn take_moved(&mut self) -> Moved {
        std::mem::take(&mut self.scoreboard.moved)
    }

    /// Bytes that have arrived since [`take_moved`](Self::take_moved).
    pub(in crate::qp) fn delivered_since_told(&self) -> u64 {
        self.scoreboard.moved.delivered.iter().sum()
    }

    /// Bytes in flight, by direction.
    pub(in crate::qp) fn in_flight(&self) -> [u64; 2] {
        self.scoreboard.in_flight
    }

    /// Bytes in flight, in both directions.
    pub(in crate::qp) fn bytes_in_flight(&self) -> u64 {
        self.scoreboard.in_flight.iter().sum()
    }

    /// Whether packets are known to be lost that were not sent again.
    pub(in crate::qp) fn has_lost(&self) -> bool {
        !self.scoreboard.lost.is_empty()
    }

    /// Whether the peer has requests that it does not answer because one before them is missing.
    pub(in crate::qp) fn has_kept(&self) -> bool {
        !self.scoreboard.kept.is_empty()
    }

    /// The first PSN that is to be sent again.
    pub(in crate::qp) fn first_lost(&self) -> Option<Psn> {
        self.scoreboard.lost.first()
    }

    /// Whether a packet is to be sent again alone.
    pub(in crate::qp) fn is_lost(&self, psn: Psn) -> bool {
        self.scoreboard.lost.contains(psn)
    }

    /// Bytes that packets from `psn` to `end` will add to the flight when they are sent again.
    pub(in crate::qp) fn bytes_of_repeat(&self, psn: Psn, end: Psn) -> u64 {
        let Some((index, packet)) = self.locate(psn) else { return 0 };
        let lost = |after: &u32| self.scoreboard.lost.contains(psn + *after);
        let bytes = |after| self.pending[index].bytes(packet + after..packet + after + 1);
        (0..distance(psn, end)).filter(lost).map(bytes).sum()
    }

    /// Whether a packet has arrived, as far as is known.
    pub(in crate::qp) fn has_arrived(&self, psn: Psn) -> bool {
        self.scoreboard.arrived.contains(psn)
    }

    /// A packet with this PSN, and whatever else of its work request up to packet `end`, is sent
    /// for the first time since the last rewind.
    pub(super) fn on_sent(&mut self, index: usize, packets: std::ops::Range<u32>) {
        let pending = &self.pending[index];
        self.scoreboard.in_flight[pending.direction() as usize] += pending.bytes(packets);
    }

    /// Packets from `psn` to `end` were sent again. Those that were lost are in flight again.
    pub(in crate::qp) fn on_repeated(&mut self, psn: Psn, end: Psn) {
        let Some((index, packet)) = self.locate(psn) else { return };
        for after in 0..distance(psn, end) {
            if self.scoreboard.lost.remove(psn + after) {
                self.on_sent(index, packet + after..packet + after + 1);
            }
        }
        self.pending[index].is_repeated = true;
        // What was asked for with them is under way again as well.
        let (first, last) = (distance(self.una, psn), distance(self.una, end));
        if (first..last).contains(&distance(self.una, self.scoreboard.examined)) {
            self.scoreboard.examined = end;
        }
        self.split_request(end);
        self.scoreboard.repeats.push_back(Repeat { first: psn, end, sent: self.sent });
        self.scoreboard.repeats_made += 1;
    }

    /// Whether this request is known to be carried out.
    pub(in crate::qp) fn is_executed(&self, psn: Psn) -> bool {
        distance(self.una, psn) < distance(self.una, self.scoreboard.executed)
    }

    /// All requests before `psn` were carried out. What has no answer of its own is done. Returns
    /// whether that was not known.
    pub(in crate::qp) fn on_executed(&mut self, psn: Psn) -> bool {
        let una = self.una;
        if distance(una, psn) <= distance(una, self.scoreboard.executed) {
            return false;
        }
        let mut from = std::mem::replace(&mut self.scoreboard.executed, psn);
        // What the answer to a READ holds up is done all the same.
        let mut is_held_up = from != una;
        while distance(una, from) < distance(una, psn)
            && let Some((index, packet)) = self.locate(from)
        {
            let pending = &self.pending[index];
            let end = pending.packets.min(packet + distance(from, psn));
            if pending.expects_response() {
                is_held_up = true;
            } else if is_held_up {
                for packet in packet..end {
                    self.on_arrived(index, packet);
                }
            }
            from = from + (end - packet);
        }
        true
    }

    /// A packet has arrived. Returns whether that was not known.
    pub(in crate::qp) fn on_arrived_psn(&mut self, psn: Psn) -> bool {
        let Some((index, packet)) = self.locate(psn) else { return false };
        self.on_arrived(index, packet)
    }

    /// Whether `psn` is of the oldest packet, of a READ, and nothing is missing or came early: what
    /// the answers to READs mostly are.
    pub(super) fn is_answer_in_turn(&self, psn: Psn) -> bool {
        psn == self.una
            && self.scoreboard.arrived.is_empty()
            && self.scoreboard.lost.is_empty()
            && self.pending.front().is_some_and(|front| front.is_read() && front.failed.is_none())
    }

    fn on_arrived(&mut self, index: usize, packet: u32) -> bool {
        let pending = &self.pending[index];
        let psn = pending.first_psn + packet;
        if !self.scoreboard.arrived.insert(psn) {
            return false;
        }
        let was_sent = (index, packet) < (self.index, self.packet);
        if was_sent && !self.scoreboard.lost.remove(psn) {
            let pending = &self.pending[index];
            self.scoreboard.deliver(pending.direction(), pending.bytes(packet..packet + 1));
        }
        true
    }

    /// The peer has said that it has this packet. One without an answer of its own has arrived.
    /// Returns whether that was not known.
    pub(in crate::qp) fn on_kept(&mut self, psn: Psn) -> bool {
        match self.expects_response(psn) {
            false => self.on_arrived_psn(psn),
            true if self.has_arrived(psn) || self.is_executed(psn) => false,
            true => self.scoreboard.kept.insert(psn),
        }
    }

    /// The peer has `psn`, and lacks what it has not named that was sent more than `tolerance`
    /// packets before it. Returns whether the oldest packet is among what is lost now.
    pub(in crate::qp) fn detect_lost_requests(&mut self, psn: Psn, tolerance: u32) -> bool {
        let before = self.scoreboard.moved.lost;
        let is_oldest_lost = self.detect_losses(psn, tolerance);
        // REPAIR-063
        self.scoreboard.moved.discount_losses(Direction::Inward, before);
        is_oldest_lost
    }

    /// `psn` has arrived: what was sent more than `tolerance` packets before it and has not was
    /// lost. Returns whether the oldest packet is among what is lost now.
    pub(in crate::qp) fn detect_losses(&mut self, psn: Psn, tolerance: u32) -> bool {
        let una = self.una;
        if psn.precedes(una) {
            return false;
        }
        let reach = distance(una, psn).min(self.outstanding()).saturating_sub(tolerance);
        let mut is_oldest_lost = false;
        let mut at = distance(una, self.scoreboard.examined);
        while at < reach {
            let is_kept = self.scoreboard.kept.contains(una + at);
            is_oldest_lost |= !is_kept && self.mark_lost(una + at) && at == 0;
            at += 1;
        }
        self.scoreboard.examined = una + at;
        while let Some(repeat) = self.scoreboard.repeats.front().copied() {
            if !self.is_past(&repeat) && distance(una, repeat.sent) >= reach {
                break;
            }
            self.scoreboard.repeats.pop_front();
            is_oldest_lost |= self.lose_repeat(&repeat);
        }
        is_oldest_lost
    }

    /// What was sent before something that has arrived, and has not arrived itself, was lost:
    /// everything before `sent`, and so many repeats as had been [made](Self::repeats_made) then.
    pub(in crate::qp) fn detect_losses_before(&mut self, sent: Psn, repeats_made: u64) {
        let board = &self.scoreboard;
        // REPAIR-102
        let gone = board.repeats_made - board.repeats.len() as u64;
        for _ in gone..repeats_made {
            if let Some(repeat) = self.scoreboard.repeats.pop_front() {
                self.lose_repeat(&repeat);
            }
        }
        let una = self.una;
        if sent.precedes(una) {
            return;
        }
        let mut sent_since = PsnSet::new(una);
        for at in self.scoreboard.repeats.iter().flat_map(|repeat| self.left_of(repeat)) {
            sent_since.insert(una + at);
        }
        // REPAIR-065: also what was examined before it was sent again after a rewind.
        let reach = distance(una, sent).min(self.outstanding());
        for psn in (0..reach).map(|at| una + at) {
            if !self.scoreboard.kept.contains(psn) && !sent_since.contains(psn) {
                self.mark_lost(psn);
            }
        }
        if distance(una, self.scoreboard.examined) < reach {
            self.scoreboard.examined = una + reach;
        }
    }

    /// How many times packets that were lost have been sent again.
    pub(in crate::qp) fn repeats_made(&self) -> u64 {
        self.scoreboard.repeats_made
    }

    /// Whether everything of a repeat is acknowledged.
    fn is_past(&self, repeat: &Repeat) -> bool {
        let end = distance(self.una, repeat.end);
        end > self.outstanding() || end == 0
    }

    /// What of a repeat is not acknowledged, counted from the oldest packet on.
    fn left_of(&self, repeat: &Repeat) -> std::ops::Range<u32> {
        if self.is_past(repeat) {
            return 0..0;
        }
        let (first, end) = (distance(self.una, repeat.first), distance(self.una, repeat.end));
        if first > end { 0..end } else { first..end }
    }

    /// What of a repeat has not arrived was lost once more. Returns whether the oldest packet is
    /// among it.
    fn lose_repeat(&mut self, repeat: &Repeat) -> bool {
        let una = self.una;
        let mut is_oldest_lost = false;
        for at in self.left_of(repeat) {
            is_oldest_lost |= self.mark_lost(una + at) && at == 0;
        }
        is_oldest_lost
    }

    /// The peer has answered `psn`, or carried out all before it: what it has not answered before
    /// that was lost. Returns whether the oldest packet is among what is lost now.
    pub(in crate::qp) fn detect_lost_answers(&mut self, psn: Psn) -> bool {
        let mut is_oldest_lost = false;
        // REPAIR-062
        while let Some(first) = self.scoreboard.kept.first().filter(|first| first.precedes(psn)) {
            self.scoreboard.kept.remove(first);
            is_oldest_lost |= self.mark_lost(first) && first == self.una;
        }
        self.detect_losses(psn, 0) || is_oldest_lost
    }

    /// A packet that was sent and is not known to have arrived was lost. Returns whether that is
    /// news.
    pub(in crate::qp) fn mark_lost(&mut self, psn: Psn) -> bool {
        if self.scoreboard.arrived.contains(psn) || self.scoreboard.lost.contains(psn) {
            return false;
        }
        let Some((index, packet)) = self.locate(psn) else { return false };
        if (index, packet) >= (self.index, self.packet) {
            return false;
        }
        let pending = &self.pending[index];
        if !pending.expects_response() && self.is_executed(psn) {
            return false;
        }
        self.scoreboard.lose(pending.direction(), pending.bytes(packet..packet + 1));
        self.scoreboard.lost.insert(psn)
    }

    /// Whether the packet before this one is the last that was sent again alone.
    pub(in crate::qp) fn was_just_repaired(&self, psn: Psn) -> bool {
        self.scoreboard.repeats.back().is_some_and(|repeat| repeat.end == psn)
    }

    /// How far the oldest work request is done: the PSN after the last that is, without a gap.
    pub(super) fn done_to(&self, front: &Pending) -> Psn {
        let left = distance(self.una, front.first_psn + front.packets);
        // REPAIR-056: what has only arrived may still be refused.
        let done = match front.expects_response() {
            true => self.scoreboard.arrived.run(self.una, left),
            false => distance(self.una, self.scoreboard.executed).min(left),
        };
        self.una + done
    }

    /// The peer has said that it lacks this packet, whatever it said before.
    pub(in crate::qp) fn mark_missing(&mut self, psn: Psn) {
        let was_sent = self.locate(psn).is_some_and(|at| at < (self.index, self.packet));
        if !self.scoreboard.arrived.remove(psn) {
            self.mark_lost(psn);
        } else if was_sent {
            self.scoreboard.lost.insert(psn);
        }
    }

    /// The peer has this packet, and refuses it for now: no matter of the path.
    pub(in crate::qp) fn mark_refused(&mut self, psn: Psn) {
        let before = self.scoreboard.moved.lost;
        self.mark_missing(psn);
        // CONG-034
        self.scoreboard.moved.discount_losses(Direction::Outward, before);
    }

    /// The peer may not have any more what it has not carried out.
    pub(in crate::qp) fn distrust_arrived(&mut self) {
        for after in 0..self.outstanding() {
            let psn = self.una + after;
            if self.has_arrived(psn) && !self.expects_response(psn) {
                self.scoreboard.arrived.remove(psn);
            }
        }
    }

    /// Everything before `to` is done, which lies in the oldest work request or is its end.
    pub(super) fn advance_una(&mut self, to: Psn) {
        let Some(front) = self.pending.front() else { return };
        let direction = front.direction();
        let (from, end) = (front.number(self.una), front.number(to));
        let position = if self.index == 0 { self.packet } else { front.packets };
        let board = &mut self.scoreboard;
        let bytes = if board.arrived.is_empty() && board.lost.is_empty() {
            front.bytes(from.min(position)..end.min(position))
        } else {
            let mut in_flight = 0;
            for packet in from..end {
                let psn = front.first_psn + packet;
                let is_settled = board.arrived.remove(psn) | board.lost.remove(psn);
                if !is_settled && packet < position {
                    in_flight += front.bytes(packet..packet + 1);
                }
            }
            in_flight
        };
        board.deliver(direction, bytes);
        if self.index == 0 {
            self.packet = self.packet.max(end);
        }
        let (was, una) = (self.una, to);
        self.una = una;
        let board = &mut self.scoreboard;
        board.arrived.advance(una);
        board.kept.advance(una);
        board.lost.advance(una);
        for mark in [&mut board.executed, &mut board.examined] {
            if distance(was, *mark) < distance(was, una) {
                *mark = una;
            }
        }
        self.forget_answered();
    }

    /// Goes back to the oldest packet: everything is sent again but what is known to have arrived.
    pub(in crate::qp) fn rewind(&mut self) {
        let board = &mut self.scoreboard;
        for (forgotten, in_flight) in board.moved.forgotten.iter_mut().zip(&mut board.in_flight) {
            *forgotten += std::mem::take(in_flight);
        }
        board.lost.clear();
        board.kept.clear();
        board.repeats.clear();
        board.examined = self.una;
        // Answers of what was asked for may still come, in other parts than what is asked for now.
        for pending in self.pending.iter_mut().take_while(|pending| pending.started) {
            pending.is_repeated = true;
        }
        self.index = 0;
        self.packet = match self.pending.front() {
            // RC-REQ-016
            Some(front) if front.started => distance(front.first_psn, self.una),
            _ => 0,
        };
    }
}
