//! The daemon's ends of a device's queues: how far each has got, and whether it is still any use.

use crate::limits::TAKES_PER_CALL;
use crate::objects::{ChannelId, EventTarget, OwnerId};
use crate::verbs::{CqSpec, CqStatus, Ring};
use urxe_shm::memory::region::Window;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::cursor::IndexError;
use urxe_shm::ring::entry::Taken;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::layout::CqEntry;
use urxe_shm::ring::{CqError, CqProducer, MoveError, RqConsumer, SqConsumer};
use urxe_types::{RecvWqe, SendWqe};

/// A QP's send queue.
pub(crate) struct SendQueue {
    ring: SqConsumer,
    pub(crate) shape: Geometry,
    /// Every send completes with a CQE, whether it says so or not.
    pub(crate) all_signaled: bool,
    allowance: Allowance,
    /// Its indices were found to be nonsense, and this was counted.
    pub(crate) broken: bool,
}

/// A receive queue: a QP's own, or an SRQ's.
pub(crate) struct RecvQueue {
    ring: RqConsumer,
    pub(crate) shape: Geometry,
    /// An SRQ has none: it is never flushed, and of one multicast datagram each of its QPs takes a
    /// receive, so that many may rightly be taken in one call.
    allowance: Option<Allowance>,
    /// Its indices were found to be nonsense, and this was counted.
    pub(crate) broken: bool,
}

/// How many entries may still be taken in this call of the engine. A program that posts as fast
/// as the engine flushes, or has posted a million work requests, would otherwise not let go of it.
#[derive(Default)]
struct Allowance {
    call: u64,
    left: u32,
}

/// What a queue has.
pub(crate) enum Next {
    /// This; or the queue is empty.
    Taken(Taken),
    /// Nothing more in this call of the engine.
    Later,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    ring: CqProducer,
    /// Wakes the program's threads that sleep between polls.
    notifier: CompletionNotifier,
    /// Completions that it holds.
    pub(crate) cqe: u32,
    pub(crate) owner: OwnerId,
    /// The channel that its completion events go to.
    pub(crate) channel: Option<ChannelId>,
    /// Where its errors are told; and what an event of it says.
    pub(crate) events: EventTarget,
    /// QPs that use it, those that use it for both directions once.
    pub(crate) qps: u32,
    /// It is in the list of those with completions to publish.
    pub(crate) listed: bool,
    /// A completion was lost, and it takes no more.
    pub(crate) failed: bool,
}

impl SendQueue {
    pub(crate) fn new(ring: SqConsumer, shape: Geometry, all_signaled: bool) -> SendQueue {
        SendQueue { ring, shape, all_signaled, allowance: Allowance::default(), broken: false }
    }

    /// Takes the next work request, if one may be taken in this call of the engine.
    pub(crate) fn take(
        &mut self,
        call: u64,
        wqe: &mut SendWqe,
        buffer: &mut Vec<u8>,
    ) -> Result<Next, IndexError> {
        if !self.allowance.take(call) {
            return Ok(Next::Later);
        }
        let taken = self.ring.take(wqe, buffer)?;
        // STATE-039
        wqe.wr.signaled |= self.all_signaled;
        Ok(Next::Taken(taken))
    }

    /// Gives the place of the oldest that was taken back.
    pub(crate) fn retire(&mut self) {
        self.ring.retire(1);
    }

    /// Empties and rewinds the ring.
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.broken = false;
    }
}

impl RecvQueue {
    /// Of a QP alone.
    pub(crate) fn of_qp(ring: RqConsumer, shape: Geometry) -> RecvQueue {
        RecvQueue { ring, shape, allowance: Some(Allowance::default()), broken: false }
    }

    /// An SRQ's.
    pub(crate) fn of_srq(ring: RqConsumer, shape: Geometry) -> RecvQueue {
        RecvQueue { ring, shape, allowance: None, broken: false }
    }

    /// Takes the next receive, if one may be taken in this call of the engine.
    pub(crate) fn take(&mut self, call: u64, wqe: &mut RecvWqe) -> Result<Next, IndexError> {
        match self.allowance.as_mut().is_none_or(|allowance| allowance.take(call)) {
            true => self.ring.take(wqe).map(Next::Taken),
            false => Ok(Next::Later),
        }
    }

    /// Goes on with a new ring, to which what is posted is moved.
    pub(crate) fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
        self.ring.move_to(window, geometry)?;
        self.shape = geometry;
        Ok(())
    }

    /// Receives that are posted and not taken; none of a queue that is broken.
    pub(crate) fn posted(&mut self) -> u32 {
        self.ring.available().unwrap_or(0)
    }

    /// Empties and rewinds the ring.
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.broken = false;
    }

    /// Asks the program to ring the doorbell after posting, because the QP is in ERR.
    pub(crate) fn want_doorbell(&mut self) {
        self.ring.set_ring_after_post(true);
    }
}

impl Allowance {
    /// Whether one more may be taken in this call.
    fn take(&mut self, call: u64) -> bool {
        if self.call != call {
            self.call = call;
            self.left = TAKES_PER_CALL;
        }
        // STATE-042
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

impl CompletionQueue {
    pub(crate) fn new(spec: CqSpec) -> CompletionQueue {
        let CqSpec { ring: Ring { ring, shape }, notifier, channel, events, owner } = spec;
        let cqe = shape.capacity();
        let (qps, listed, failed) = (0, false, false);
        CompletionQueue { ring, notifier, cqe, owner, channel, events, qps, listed, failed }
    }

    /// Its state.
    pub(crate) fn status(&mut self) -> CqStatus {
        let unread = self.ring.unread();
        CqStatus { cqe: self.cqe, unread, qps: self.qps, failed: self.failed, owner: self.owner }
    }

    /// Writes a completion; it is not shown yet.
    pub(crate) fn push(&mut self, entry: &CqEntry, solicited: bool) -> Result<(), CqError> {
        self.ring.push(entry, solicited)
    }

    /// Shows the program what was pushed. Returns whether it waits for an event.
    pub(crate) fn publish(&mut self) -> bool {
        let is_awaited = self.ring.publish();
        // A queue that is broken shows when something is pushed.
        self.notifier.notify(|| self.ring.unread().unwrap_or(u32::MAX));
        is_awaited
    }

    /// Goes on with a new ring, to which what is unread is moved.
    pub(crate) fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
        self.ring.move_to(window, geometry)?;
        self.cqe = geometry.capacity();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::memory::arena::Arena;
    use urxe_shm::ring::RqProducer;

    /// Whether all of more receives than one call may flush can be taken in one call.
    fn gives_all(new: fn(RqConsumer, Geometry) -> RecvQueue) -> bool {
        let posted = TAKES_PER_CALL + 1;
        let shape = Geometry::recv(posted, 1).unwrap();
        let mut arena = Arena::new(1 << 20).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let mut queue = new(RqConsumer::create(window.clone(), shape).unwrap(), shape);
        let mut program = RqProducer::attach(window, shape).unwrap();
        for wr_id in 0..u64::from(posted) {
            program.push(wr_id, &[]).unwrap();
        }
        let _ = program.publish();
        (0..posted).all(|_| {
            let next = queue.take(1, &mut RecvWqe::default()).unwrap();
            matches!(next, Next::Taken(Taken::Ready))
        })
    }

    #[test]
    fn an_srq_gives_all_its_receives_in_one_call_and_a_queue_that_may_be_flushed_does_not() {
        assert!(gives_all(RecvQueue::of_srq));
        assert!(!gives_all(RecvQueue::of_qp));
    }
}
