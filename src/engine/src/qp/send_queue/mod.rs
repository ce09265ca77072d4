//! The send queue: the work requests that were taken off it and have not ended yet.
//!
//! `transmit.rs` takes work requests and has them sent, `packet.rs` makes packets of them,
//! `local_ops.rs` does those that are done here, and `complete.rs` ends them.

mod complete;
mod local_ops;
mod packet;
mod pending;
mod psn_set;
mod scoreboard;
mod spare;
mod transmit;

pub(super) use packet::Unsent;
pub(super) use pending::Pending;
pub(super) use scoreboard::Moved;
pub(crate) use spare::SpareSends;
pub(super) use transmit::{Blocked, Limits};

use super::common::Error;
use crate::counters::Counter;
use scoreboard::Scoreboard;
use std::collections::VecDeque;
use urxe_types::{Psn, QpState};

/// The taken work requests, oldest first, with the place of the next packet to be sent.
///
/// The requester appends and moves the place on; the completer takes from the front and, for a
/// retransmission, moves the place back.
#[derive(Debug)]
pub(in crate::qp) struct SendQueue {
    /// The program's queue ran empty: a doorbell must come before it is looked at again.
    is_exhausted: bool,
    /// It had drained in SQD, and the program was told.
    told_drained: bool,
    pending: VecDeque<Box<Pending>>,
    /// The work request that the next packet belongs to; the length of `pending` if all are sent.
    index: usize,
    /// The number of that packet within its work request.
    packet: u32,
    /// Oldest PSN not acknowledged.
    una: Psn,
    /// First PSN not assigned to a work request.
    next: Psn,
    /// The PSN after the highest one ever sent.
    sent: Psn,
    /// Work requests started that have a response of their own to come.
    responses_expected: u32,
    /// The requests under way that take a resource of the responder, in the order of their PSNs.
    asked: VecDeque<Asked>,
    scoreboard: Scoreboard,
    /// What was counted when it was last learned that packets must be sent again.
    repeats_after: Counter,
}

/// A request under way that takes a resource of the responder.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Its own PSN.
    first: Psn,
    /// The PSN after the last of its answers.
    end: Psn,
    /// It is the beginning of one that was repeated in part.
    is_part: bool,
}

impl Default for SendQueue {
    fn default() -> SendQueue {
        SendQueue::new(Psn::default())
    }
}

impl SendQueue {
    /// An empty one, whose first request gets this PSN.
    pub(in crate::qp) fn new(first: Psn) -> SendQueue {
        SendQueue {
            is_exhausted: false,
            told_drained: false,
            pending: VecDeque::new(),
            index: 0,
            packet: 0,
            una: first,
            next: first,
            sent: first,
            responses_expected: 0,
            asked: VecDeque::new(),
            scoreboard: Scoreboard::new(first),
            repeats_after: Counter::AckTimeouts,
        }
    }

    /// What was counted when it was last learned that packets must be sent again.
    pub(in crate::qp) fn repeats_after(&self) -> Counter {
        self.repeats_after
    }

    /// With this it was learned that packets must be sent again.
    pub(in crate::qp) fn repeat_after(&mut self, counted: Counter) {
        self.repeats_after = counted;
    }

    /// Whether nothing is taken that has not ended.
    pub(in crate::qp) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The program rang the doorbell, or its queue is to be flushed.
    pub(in crate::qp) fn wake(&mut self) {
        self.is_exhausted = false;
    }

    /// Whether the program's queue is worth a look.
    pub(in crate::qp) fn is_awake(&self) -> bool {
        !self.is_exhausted
    }

    /// Whether there may be something to send.
    pub(in crate::qp) fn may_have_work(&self) -> bool {
        self.is_awake() || self.index < self.pending.len()
    }

    /// The QP goes to SQD.
    pub(in crate::qp) fn begin_draining(&mut self) {
        self.told_drained = false;
    }

    /// Whether it has drained, and the program was told so.
    pub(in crate::qp) fn was_told_drained(&self) -> bool {
        self.told_drained
    }

    /// Whether it has drained now, which the program is to be told.
    pub(in crate::qp) fn take_drained(&mut self) -> bool {
        // STATE-031, STATE-036
        let is_drained = self.pending.front().is_none_or(|front| !front.started);
        is_drained && !std::mem::replace(&mut self.told_drained, true)
    }

    /// Oldest PSN not acknowledged.
    pub(in crate::qp) fn una(&self) -> Psn {
        self.una
    }

    /// First PSN not assigned to a work request.
    pub(in crate::qp) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Whether so many requests are under way that take a resource of the responder, or more.
    pub(in crate::qp) fn has_asked(&self, requests: usize) -> bool {
        // Of few it is known without a look at each.
        self.asked.len() >= requests
            && self.asked.iter().filter(|asked| !asked.is_part).count() >= requests
    }

    /// PSNs sent and not acknowledged.
    pub(in crate::qp) fn outstanding(&self) -> u32 {
        distance(self.una, self.sent)
    }

    /// The PSN after all that was sent since the last rewind, except again.
    pub(in crate::qp) fn sent_to(&self) -> Psn {
        let current = self.pending.get(self.index).filter(|pending| pending.started);
        current.map_or(self.sent, |pending| pending.first_psn + self.packet)
    }

    /// Whether `psn` is sent and not acknowledged.
    pub(in crate::qp) fn is_outstanding(&self, psn: Psn) -> bool {
        distance(self.una, psn) < self.outstanding()
    }

    fn push(&mut self, pending: Box<Pending>) {
        self.pending.push_back(pending);
    }

    /// The work request that the next packet belongs to, with the packet's number.
    pub(in crate::qp) fn current(&mut self) -> Option<(&mut Pending, u32)> {
        let packet = self.packet;
        self.pending.get_mut(self.index).map(|pending| (&mut **pending, packet))
    }

    /// Whether the work request that the next packet belongs to is the oldest.
    pub(in crate::qp) fn is_current_oldest(&self) -> bool {
        self.index == 0
    }

    /// The oldest work request.
    pub(in crate::qp) fn front(&mut self) -> Option<&mut Pending> {
        self.pending.front_mut().map(|front| &mut **front)
    }

    /// Gives the current work request its PSNs, unless it has them.
    pub(in crate::qp) fn start_current(&mut self) {
        let Some(pending) = self.pending.get_mut(self.index).filter(|pending| !pending.started)
        else {
            return;
        };
        pending.started = true;
        pending.first_psn = self.next;
        // STATE-029: all of them at once, so one that is broken off leaves a gap.
        let is_one = pending.is_read() && fault!(ReadRequestTakesOnePsn);
        let psns = if is_one { 1 } else { pending.packets };
        self.next = self.next + psns + u32::from(fault!(PsnSkipped));
        self.responses_expected += u32::from(pending.expects_response());
    }

    /// Where the request ends that the current packet is sent with: right after it, or, for a READ,
    /// after the last answer that it asks for, of which there are at most `most`.
    pub(in crate::qp) fn end_of_current(&self, most: u32) -> u32 {
        let Some(pending) = self.pending.get(self.index) else { return 0 };
        match pending.is_read() {
            false => self.packet + 1,
            true if self.is_resending() => self.end_of_repeat(self.index, self.packet),
            true => pending.packets.min(self.packet + most.max(1)),
        }
    }

    /// Where the request ends that a packet is sent again with. The responder may never have seen
    /// the one that it was sent with, so that a READ none of whose answers has come is asked for as
    /// it was; and it remembers each as one, so that none reaches beyond its end.
    fn end_of_repeat(&self, index: usize, packet: u32) -> u32 {
        let pending = &self.pending[index];
        let psn = pending.first_psn + packet;
        let Some(asked) = self.request_of(psn).filter(|_| pending.is_read()) else {
            return packet + 1;
        };
        let left = distance(psn, asked.end);
        let missing = match self.scoreboard.arrived.is_empty() {
            true => left,
            false => (1..left).find(|&after| self.has_arrived(psn + after)).unwrap_or(left),
        };
        let is_known = asked.first != psn || missing < left;
        let repeated = match is_known && self.has_lost() {
            true => self.scoreboard.lost.run(psn, missing).max(1),
            false => missing,
        };
        packet + repeated
    }

    /// The same for a packet with this PSN.
    pub(in crate::qp) fn end_of_repeat_at(&self, psn: Psn) -> Option<u32> {
        let (index, packet) = self.locate(psn)?;
        Some(self.end_of_repeat(index, packet))
    }

    /// The request under way that a PSN belongs to.
    fn request_of(&self, psn: Psn) -> Option<&Asked> {
        let at = distance(self.una, psn);
        self.asked.iter().find(|asked| distance(self.una, asked.end) > at)
    }

    /// Whether a request under way begins, and ends, with this packet, as far as it takes a
    /// resource.
    pub(in crate::qp) fn bounds_of_request(&self, psn: Psn) -> (bool, bool) {
        let asked = self.request_of(psn);
        asked.map_or((false, false), |asked| (asked.first == psn, asked.end == psn.next()))
    }

    /// A request that was asked for again, as far as `end`, is maybe one of its own now.
    fn split_request(&mut self, end: Psn) {
        let at = distance(self.una, end);
        let index = self.asked.partition_point(|asked| distance(self.una, asked.end) < at);
        if let Some(asked) = self.asked.get_mut(index)
            && asked.end != end
            && asked.first.precedes(end)
        {
            let first = std::mem::replace(&mut asked.first, end);
            // It counts until its end is answered.
            self.asked.insert(index, Asked { first, end, is_part: true });
        }
    }

    /// Moves on after the current packet was sent, and, if it is a READ request, all the packets
    /// before `end` that it asks for.
    pub(in crate::qp) fn sent_current(&mut self, end: u32) {
        let Some(pending) = self.pending.get(self.index) else { return };
        let (packets, end_psn) = (pending.packets, pending.first_psn + end);
        let (pending_psn, takes_resource) =
            (pending.first_psn + self.packet, pending.takes_resource());
        if end > self.packet {
            self.on_sent(self.index, self.packet..end);
        }
        if distance(self.una, end_psn) > self.outstanding() {
            self.sent = end_psn;
            if takes_resource {
                let first = pending_psn;
                self.asked.push_back(Asked { first, end: end_psn, is_part: false });
            }
        } else {
            self.split_request(end_psn);
            self.pending[self.index].is_repeated = true;
        }
        if end == packets {
            self.index += 1;
            self.packet = 0;
        } else {
            self.packet = end;
        }
    }

    /// Whether what was sent before is sent again from here on.
    pub(in crate::qp) fn is_resending(&self) -> bool {
        self.pending.get(self.index).is_some_and(|pending| {
            pending.started
                && distance(self.una, pending.first_psn + self.packet) < self.outstanding()
        })
    }

    /// After a rewind: what has arrived nevertheless is not sent again.
    fn skip_arrived(&mut self) {
        while !self.scoreboard.arrived.is_empty()
            && let Some(pending) = self.pending.get(self.index).filter(|pending| pending.started)
            && pending.packets > 0
            && self.has_arrived(pending.first_psn + self.packet)
        {
            self.packet += 1;
            if self.packet == pending.packets {
                self.index += 1;
                self.packet = 0;
            }
        }
    }

    /// The work request that a PSN was given to, by its place in the queue, and the number of its
    /// packet.
    fn locate(&self, psn: Psn) -> Option<(usize, u32)> {
        let front = self.pending.front().filter(|front| front.started)?;
        let (first, at) = (front.first_psn, front.number(psn));
        // What is answered is the oldest as a rule.
        if at < front.packets {
            return Some((0, at));
        }
        let behind = self
            .pending
            .partition_point(|pending| pending.started && distance(first, pending.first_psn) <= at);
        let index = behind.checked_sub(1)?;
        let packet = self.pending[index].number(psn);
        (packet < self.pending[index].packets).then_some((index, packet))
    }

    /// The work request that a PSN was given to, and the number of its packet.
    pub(in crate::qp) fn find(&mut self, psn: Psn) -> Option<(&mut Pending, u32)> {
        let (index, packet) = self.locate(psn)?;
        self.pending.get_mut(index).map(|pending| (&mut **pending, packet))
    }

    /// Whether a packet has an answer of its own to come.
    pub(in crate::qp) fn expects_response(&self, psn: Psn) -> bool {
        self.locate(psn).is_some_and(|(index, _)| self.pending[index].expects_response())
    }

    /// Whether all that was sent and is not done waits for an answer of its own.
    pub(in crate::qp) fn awaits_answers_only(&self) -> bool {
        let mut started = self.pending.iter().take_while(|pending| pending.started);
        started.all(|pending| pending.expects_response() || pending.is_local())
    }

    /// While what was sent before is sent again: up to which PSN that has come.
    pub(in crate::qp) fn resent_to(&self) -> Option<Psn> {
        let pending = self.pending.get(self.index).filter(|_| self.is_resending())?;
        Some(pending.first_psn + self.packet)
    }

    /// Ends the oldest work request: takes it out, its PSNs acknowledged.
    fn pop_front(&mut self) -> Option<Box<Pending>> {
        let pending = self.pending.front()?;
        if pending.started {
            let end = pending.first_psn + pending.packets;
            self.responses_expected -= u32::from(pending.expects_response());
            self.advance_una(end);
            if distance(self.sent, self.una) < distance(self.una, self.sent) {
                self.sent = self.una;
            }
        }
        let pending = self.pending.pop_front()?;
        match self.index {
            0 => self.packet = 0,
            _ => self.index -= 1,
        }
        Some(pending)
    }

    /// The current work request cannot be done.
    pub(in crate::qp) fn refuse_current(&mut self, error: Error) {
        if let Some(pending) = self.pending.get_mut(self.index) {
            pending.failed = Some(error);
        }
    }

    /// A packet cannot be sent again.
    pub(in crate::qp) fn refuse(&mut self, psn: Psn, error: Error) {
        if let Some((pending, _)) = self.find(psn) {
            pending.failed = Some(error);
        }
    }

    /// How the oldest work request has failed, if it is its turn to end.
    pub(in crate::qp) fn failed_front(&self, state: QpState) -> Option<Error> {
        let front = self.pending.front()?;
        // STATE-035
        front.failed.filter(|_| front.started || state != QpState::Sqd)
    }

    fn forget_answered(&mut self) {
        while self.asked.front().is_some_and(|asked| !self.una.precedes(asked.end)) {
            self.asked.pop_front();
        }
    }
}

/// How far `to` lies after `from`, counting forward around the 24-bit space.
pub(in crate::qp) fn distance(from: Psn, to: Psn) -> u32 {
    (to - from.get()).get()
}

#[cfg(test)]
mod tests;
