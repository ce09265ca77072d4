//! The work requests that a requester has taken and that have not ended yet.

use super::sges::SgeWalk;
use crate::cause::Cause;
use crate::limits::MAX_SPARE_SENDS;
use std::collections::VecDeque;
use urxe_types::{Extra, Psn, SendOp, SendWqe, WcStatus};

/// A work request under way.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) wqe: SendWqe,
    /// Bytes of the message (of the answer, for a READ or atomic).
    pub(crate) length: u64,
    /// PSNs it takes; for a READ those of the responses. 0 for a local operation, else at least 1.
    pub(crate) packets: u32,
    /// PSNs that one READ request asks for at most; the next one begins where it ends.
    pub(crate) per_request: u32,
    /// Its PSNs begin here; meaningful once `started`.
    pub(crate) first_psn: Psn,
    /// Its PSNs are assigned: something of it was sent. A local operation was done.
    pub(crate) started: bool,
    /// It cannot be done for this reason, and ends the QP when all before it have ended.
    pub(crate) failed: Option<(WcStatus, Cause)>,
    /// The place in its scatter/gather list.
    pub(crate) walk: SgeWalk,
}

impl Pending {
    fn new() -> Pending {
        Pending {
            wqe: SendWqe {
                wr_id: 0,
                op: SendOp::Send(Extra::None),
                fence: false,
                signaled: false,
                solicited: false,
                to: None,
                sges: Vec::new(),
                inline: None,
            },
            length: 0,
            packets: 1,
            per_request: 1,
            first_psn: Psn::new(0),
            started: false,
            failed: None,
            walk: SgeWalk::default(),
        }
    }

    /// The PSN of its last packet.
    pub(crate) fn last_psn(&self) -> Psn {
        self.first_psn + (self.packets - 1)
    }

    /// Whether the responder answers it by a response of its own, which no ACK stands for.
    pub(crate) fn expects_response(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// Whether the responder needs a receive when this packet comes.
    pub(crate) fn takes_receive_at(&self, packet: u32) -> bool {
        match self.wqe.op {
            SendOp::Send(_) => packet == 0,
            SendOp::Write { imm, .. } => imm.is_some() && packet + 1 == self.packets,
            _ => false,
        }
    }

    /// Whether it takes one of the responder's places for READs and atomics. A FLUSH takes none:
    /// nothing of it has to be kept for a repeat (rxe counts it on neither side).
    pub(crate) fn takes_resource(&self) -> bool {
        self.expects_response() && !matches!(self.wqe.op, SendOp::Flush { .. })
    }

    /// Where the packet that is sent as number `packet` leads to: the number of the one after it,
    /// which for a READ request is the one after the responses that it asks for.
    pub(crate) fn after(&self, packet: u32) -> u32 {
        match self.is_read() {
            true => (packet - packet % self.per_request + self.per_request).min(self.packets),
            false => (packet + 1).min(self.packets),
        }
    }

    /// Whether it is done here, and nothing is sent.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.wqe.op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. })
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.wqe.op, SendOp::Read { .. })
    }

    /// FLUSH or ATOMIC WRITE: answered, but with nothing.
    pub(crate) fn is_placement(&self) -> bool {
        matches!(self.wqe.op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.wqe.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// The taken work requests, oldest first, with the place of the next packet to be sent.
///
/// The requester appends and moves the place on; the completer takes from the front and, for a
/// retransmission, moves the place back.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pending: VecDeque<Pending>,
    spare: Vec<Pending>,
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
    /// Where the answers to requests that take a resource of the responder end that were sent
    /// since the last rewind and are not answered in full.
    asked: VecDeque<Psn>,
}

impl SendQueue {
    pub(crate) fn new(first: Psn) -> SendQueue {
        SendQueue {
            pending: VecDeque::new(),
            spare: Vec::new(),
            index: 0,
            packet: 0,
            una: first,
            next: first,
            sent: first,
            responses_expected: 0,
            asked: VecDeque::new(),
        }
    }

    /// Work requests taken and not ended.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Oldest PSN not acknowledged.
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// First PSN not assigned to a work request.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Work requests started that have a response of their own to come.
    pub(crate) fn responses_expected(&self) -> u32 {
        self.responses_expected
    }

    /// Requests under way that take a resource of the responder.
    pub(crate) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Whether nothing has begun that has not ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.pending.front().is_none_or(|front| !front.started)
    }

    /// PSNs sent and not acknowledged.
    pub(crate) fn outstanding(&self) -> u32 {
        distance(self.una, self.sent)
    }

    /// Whether `psn` is sent and not acknowledged.
    pub(crate) fn is_outstanding(&self, psn: Psn) -> bool {
        distance(self.una, psn) < self.outstanding()
    }

    /// PSNs between the oldest not acknowledged and the next to be sent: what is in flight, as
    /// far as the requester believes.
    pub(crate) fn in_flight(&self) -> u32 {
        match self.pending.get(self.index) {
            Some(pending) if pending.started => distance(self.una, pending.first_psn + self.packet),
            _ => distance(self.una, self.next),
        }
    }

    /// A record to fill and give to [`push`](Self::push) or [`put_back`](Self::put_back).
    pub(crate) fn blank(&mut self) -> Pending {
        let mut pending = self.spare.pop().unwrap_or_else(Pending::new);
        pending.started = false;
        pending.failed = None;
        pending.walk = SgeWalk::default();
        pending.length = 0;
        pending.packets = 1;
        pending
    }

    pub(crate) fn put_back(&mut self, pending: Pending) {
        if self.spare.len() < MAX_SPARE_SENDS {
            self.spare.push(pending);
        }
    }

    pub(crate) fn push(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    /// The work request that the next packet belongs to, with the packet's number.
    pub(crate) fn current(&mut self) -> Option<(&mut Pending, u32)> {
        let packet = self.packet;
        self.pending.get_mut(self.index).map(|pending| (pending, packet))
    }

    /// Whether the work request that the next packet belongs to is the oldest.
    pub(crate) fn is_current_oldest(&self) -> bool {
        self.index == 0
    }

    /// The oldest work request.
    pub(crate) fn front(&mut self) -> Option<&mut Pending> {
        self.pending.front_mut()
    }

    /// Gives the current work request its PSNs, of which one READ request asks for at most
    /// `per_request`.
    pub(crate) fn start_current(&mut self, per_request: u32) {
        let Some(pending) = self.pending.get_mut(self.index) else { return };
        pending.started = true;
        pending.per_request = per_request;
        pending.first_psn = self.next;
        self.next = self.next + pending.packets;
        self.responses_expected += u32::from(pending.expects_response());
    }

    /// Moves on after the current packet was sent. A READ request stands for all the PSNs that it
    /// asks for.
    pub(crate) fn sent_current(&mut self) {
        let Some(pending) = self.pending.get(self.index) else { return };
        let through = pending.after(self.packet);
        let end = pending.first_psn + through;
        if pending.takes_resource() {
            self.asked.push_back(end);
        }
        if distance(self.una, end) > self.outstanding() {
            self.sent = end;
        }
        if through == pending.packets {
            self.index += 1;
            self.packet = 0;
        } else {
            self.packet = through;
        }
    }

    /// Goes back to the oldest PSN not acknowledged.
    pub(crate) fn rewind(&mut self) {
        self.asked.clear();
        self.index = 0;
        self.packet = match self.pending.front() {
            Some(front) if front.started => distance(front.first_psn, self.una),
            _ => 0,
        };
    }

    /// Everything before `psn` is acknowledged; `psn` lies in the oldest work request, or is the
    /// next PSN if there is none.
    pub(crate) fn acknowledge_before(&mut self, psn: Psn) {
        self.una = psn;
        self.forget_answered();
        if let Some(front) = self.pending.front().filter(|front| front.started)
            && self.index == 0
        {
            self.packet = self.packet.max(distance(front.first_psn, psn));
        }
    }

    /// Ends the oldest work request: takes it out, its PSNs acknowledged.
    pub(crate) fn pop_front(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        if pending.started {
            self.una = pending.first_psn + pending.packets;
            if distance(self.sent, self.una) < distance(self.una, self.sent) {
                self.sent = self.una;
            }
            self.responses_expected -= u32::from(pending.expects_response());
            self.forget_answered();
        }
        match self.index {
            0 => self.packet = 0,
            _ => self.index -= 1,
        }
        Some(pending)
    }

    fn forget_answered(&mut self) {
        while self.asked.front().is_some_and(|end| !self.una.precedes(*end)) {
            self.asked.pop_front();
        }
    }
}

/// How far `to` lies after `from`, counting forward around the 24-bit space.
pub(crate) fn distance(from: Psn, to: Psn) -> u32 {
    (to - from.get()).get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::Rkey;

    fn queue(first: u32, packets: &[u32]) -> SendQueue {
        let mut queue = SendQueue::new(Psn::new(first));
        for &packets in packets {
            let mut pending = queue.blank();
            pending.packets = packets;
            queue.push(pending);
        }
        queue
    }

    fn send_all(queue: &mut SendQueue) -> Vec<u32> {
        let mut psns = Vec::new();
        while let Some((pending, packet)) = queue.current() {
            if !pending.started {
                queue.start_current(1);
            }
            let (pending, _) = queue.current().unwrap();
            psns.push((pending.first_psn + packet).get());
            queue.sent_current();
        }
        psns
    }

    #[test]
    fn psns_run_on_over_the_wrap() {
        let mut queue = queue(0xff_fffe, &[1, 3, 1]);
        assert_eq!(send_all(&mut queue), [0xff_fffe, 0xff_ffff, 0, 1, 2]);
        assert_eq!(queue.outstanding(), 5);
        assert!(queue.is_outstanding(Psn::new(2)));
        assert!(!queue.is_outstanding(Psn::new(3)));
        assert!(!queue.is_outstanding(Psn::new(0xff_fffd)));
    }

    #[test]
    fn a_rewind_resends_exactly_what_is_not_acknowledged() {
        let mut queue = queue(10, &[2, 4]);
        send_all(&mut queue);
        queue.pop_front();
        queue.acknowledge_before(Psn::new(13));
        queue.rewind();
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(send_all(&mut queue), [13, 14, 15]);
        assert_eq!(queue.outstanding(), 3);
    }

    /// Sends as much as `max_asked` READ requests under way allow; each as its first PSN and the
    /// PSNs that it asks for.
    fn ask(queue: &mut SendQueue, per_request: u32, max_asked: usize) -> Vec<(u32, u32)> {
        let mut requests = Vec::new();
        while queue.asked() < max_asked
            && let Some((pending, _)) = queue.current()
        {
            if !pending.started {
                queue.start_current(per_request);
            }
            let (pending, packet) = queue.current().unwrap();
            requests.push(((pending.first_psn + packet).get(), pending.after(packet) - packet));
            queue.sent_current();
        }
        requests
    }

    fn queue_of_read(first: u32, packets: u32) -> SendQueue {
        let mut queue = queue(first, &[packets]);
        queue.front().unwrap().wqe.op = SendOp::Read { remote_addr: 0, rkey: Rkey(0) };
        queue
    }

    #[test]
    fn a_long_read_is_asked_for_in_parts_and_never_more_at_once_than_allowed() {
        let mut queue = queue_of_read(0xff_fffe, 10);
        assert_eq!(ask(&mut queue, 4, 2), [(0xff_fffe, 4), (2, 4)]);
        queue.acknowledge_before(Psn::new(1));
        assert_eq!(ask(&mut queue, 4, 2), []);
        queue.acknowledge_before(Psn::new(2));
        assert_eq!(ask(&mut queue, 4, 2), [(6, 2)]);
        queue.pop_front();
        assert_eq!(queue.asked(), 0);
    }

    #[test]
    fn a_repeated_read_ends_where_a_request_ended_before() {
        let mut queue = queue_of_read(0, 10);
        ask(&mut queue, 4, 8);
        queue.acknowledge_before(Psn::new(3));
        queue.rewind();
        assert_eq!(ask(&mut queue, 1, 8), [(3, 1), (4, 4), (8, 2)]);
    }

    #[test]
    fn an_acknowledgement_during_a_resend_moves_the_place_on() {
        let mut queue = queue(0, &[2, 4]);
        send_all(&mut queue);
        queue.rewind();
        queue.sent_current();
        queue.pop_front();
        queue.acknowledge_before(Psn::new(4));
        assert_eq!(send_all(&mut queue), [4, 5]);
    }
}
