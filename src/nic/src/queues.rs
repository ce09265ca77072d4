//! The daemon's ends of a device's queues: how far each has got, and whether it is still any use.

use crate::limits::TAKES_PER_CALL;
use crate::objects::{EventTarget, Owner};
use urxe_engine::{QpInit, QueueId, RecvSource};
use urxe_shm::memory::region::Window;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::cursor::IndexError;
use urxe_shm::ring::entry::{RecvWqe, SendWqe, Taken};
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::layout::{CqEntry, Sge};
use urxe_shm::ring::{CqError, CqProducer, MoveError, RqConsumer, SqConsumer};
use urxe_types::Qpn;

/// The receive queue that belongs to a QP alone.
pub fn own_recv_queue(init: &QpInit) -> Option<QueueId> {
    match init.recv {
        RecvSource::Own(queue) => Some(queue),
        RecvSource::Shared(_) => None,
    }
}

/// A QP's send queue.
pub struct SendQueue {
    ring: SqConsumer,
    /// The QP that it is of, once there is one.
    pub qpn: Option<Qpn>,
    /// Every send completes with a CQE, whether it says so or not.
    pub all_signaled: bool,
    allowance: Allowance,
    /// Its indices were found to be nonsense, and this was counted.
    pub broken: bool,
}

/// A receive queue: a QP's own, or an SRQ's.
pub struct RecvQueue {
    ring: RqConsumer,
    /// The QP that it is of, once there is one; none has an SRQ's.
    pub qpn: Option<Qpn>,
    allowance: Allowance,
    /// Its indices were found to be nonsense, and this was counted.
    pub broken: bool,
}

/// How many entries may still be taken in this call of the engine. A program that posts as fast
/// as the engine flushes, or has posted a million work requests, would otherwise not let go of it.
#[derive(Default)]
struct Allowance {
    call: u64,
    left: u32,
}

/// What a queue has.
pub enum Next<T> {
    /// This; or the queue is empty.
    Taken(Taken<T>),
    /// Nothing more in this call of the engine.
    Later,
}

/// A completion queue.
pub struct CompletionQueue {
    ring: CqProducer,
    /// Wakes the program's threads that sleep between polls.
    notifier: CompletionNotifier,
    /// Completions that it holds.
    pub cqe: u32,
    pub owner: Owner,
    /// The pipe that its completion events go to.
    pub channel: Option<u32>,
    /// Where its errors are told; and what an event of it says.
    pub events: EventTarget,
    /// QPs that use it, those that use it for both directions once.
    pub qps: u32,
    /// It is in the list of those with completions to publish.
    pub listed: bool,
    /// A completion was lost, and it takes no more.
    pub failed: bool,
}

impl SendQueue {
    pub fn new(ring: SqConsumer, all_signaled: bool) -> SendQueue {
        let allowance = Allowance::default();
        SendQueue { ring, qpn: None, all_signaled, allowance, broken: false }
    }

    /// Takes the next work request, if one may be taken in this call of the engine.
    pub fn take(
        &mut self,
        call: u64,
        sges: &mut Vec<Sge>,
        inline: &mut Vec<u8>,
    ) -> Result<Next<SendWqe>, IndexError> {
        match self.allowance.take(call) {
            true => self.ring.take(sges, inline).map(Next::Taken),
            false => Ok(Next::Later),
        }
    }

    /// Gives the place of the oldest that was taken back.
    pub fn retire(&mut self) {
        self.ring.retire(1);
    }

    /// Empties and rewinds the ring.
    pub fn reset(&mut self) {
        self.ring.reset();
        self.broken = false;
    }
}

impl RecvQueue {
    pub fn new(ring: RqConsumer) -> RecvQueue {
        RecvQueue { ring, qpn: None, allowance: Allowance::default(), broken: false }
    }

    /// Takes the next receive, if one may be taken in this call of the engine.
    pub fn take(&mut self, call: u64, sges: &mut Vec<Sge>) -> Result<Next<RecvWqe>, IndexError> {
        // An SRQ is never flushed. Of one multicast datagram each of its QPs takes a receive, so
        // that many may rightly be taken in one call.
        let is_shared = self.qpn.is_none();
        match is_shared || self.allowance.take(call) {
            true => self.ring.take(sges).map(Next::Taken),
            false => Ok(Next::Later),
        }
    }

    /// Goes on with a new ring, to which what is posted is moved.
    pub fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
        self.ring.move_to(window, geometry)
    }

    /// Receives that are posted and not taken; none of a queue that is broken.
    pub fn posted(&mut self) -> u32 {
        self.ring.available().unwrap_or(0)
    }

    /// Empties and rewinds the ring.
    pub fn reset(&mut self) {
        self.ring.reset();
        self.broken = false;
    }

    /// Asks the program to ring the doorbell after posting, because the QP is in ERR.
    pub fn want_doorbell(&mut self) {
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
    pub fn new(
        ring: CqProducer,
        notifier: CompletionNotifier,
        cqe: u32,
        owner: Owner,
        channel: Option<u32>,
        events: EventTarget,
    ) -> CompletionQueue {
        CompletionQueue {
            ring,
            notifier,
            cqe,
            owner,
            channel,
            events,
            qps: 0,
            listed: false,
            failed: false,
        }
    }

    /// Writes a completion; it is not shown yet.
    pub fn push(&mut self, entry: &CqEntry, solicited: bool) -> Result<(), CqError> {
        self.ring.push(entry, solicited)
    }

    /// Shows the program what was pushed. Returns whether it waits for an event.
    pub fn publish(&mut self) -> bool {
        let is_awaited = self.ring.publish();
        self.notifier.notify();
        is_awaited
    }

    /// Completions that the program has not read.
    pub fn unread(&mut self) -> Result<u32, IndexError> {
        self.ring.unread()
    }

    /// Goes on with a new ring, to which what is unread is moved.
    pub fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
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
    fn gives_all(qpn: Option<Qpn>) -> bool {
        let posted = TAKES_PER_CALL + 1;
        let shape = Geometry::recv(posted, 1).unwrap();
        let mut arena = Arena::new(1 << 20).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let ring = RqConsumer::create(window.clone(), shape).unwrap();
        let mut program = RqProducer::attach(window, shape).unwrap();
        for wr_id in 0..u64::from(posted) {
            program.push(wr_id, &[]).unwrap();
        }
        let _ = program.publish();
        let mut queue = RecvQueue { qpn, ..RecvQueue::new(ring) };
        (0..posted).all(|_| {
            let next = queue.take(1, &mut Vec::new()).unwrap();
            matches!(next, Next::Taken(Taken::Ready(_)))
        })
    }

    #[test]
    fn an_srq_gives_all_its_receives_in_one_call_and_a_queue_that_may_be_flushed_does_not() {
        assert!(gives_all(None));
        assert!(!gives_all(Some(Qpn::new(17))));
    }
}
