//! Rings whose daemon is gone: the program's side does what is left to do.
//!
//! What was posted and not completed is completed as flushed, as a QP in the error state does it.
//! The daemon moves the consumer of a send queue when a work request ends, and publishes its
//! completion soon after that, so all that lies between the two indices is outstanding; if it was
//! killed in between, the few work requests that had just ended are not completed at all. Nor is a
//! receive into which a message was coming, for it has left its queue already. Polling fails after
//! what is completed here, so no program waits for them.
//!
//! The caller sees to it that only one thread at a time does this, for it stands in for the one
//! daemon.

use super::queue::{Ring, RingError};
use crate::memory::region::Window;
use crate::ring::cursor::{Indices, take_armed};
use crate::ring::geometry::Geometry;
use crate::ring::layout::CqEntry;
use std::sync::atomic::Ordering;
use urxe_types::{WcOpcode, WcStatus};
use zerocopy::IntoBytes;

/// A completion queue without a daemon.
#[derive(Debug)]
pub struct FlushCq(Ring);

/// What the work requests of a queue are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is an SQ.
    Sends,
    /// It is an RQ.
    Receives,
}

impl FlushCq {
    /// The ring that the daemon made.
    pub fn attach(window: Window, geometry: Geometry) -> Result<FlushCq, RingError> {
        Ring::attach(window, geometry).map(FlushCq)
    }

    /// Completes what is outstanding in a queue of a QP, as far as there is room. Gives back how
    /// many there were.
    pub fn flush(
        &self,
        window: Window,
        geometry: Geometry,
        posted: Posted,
        qpn: u32,
    ) -> Result<u32, RingError> {
        let queue = Ring::attach(window, geometry)?;
        // What stands in shared memory is only ever an index here.
        let mask = geometry.slots() - 1;
        let posted_to = queue.producer().load(Ordering::Acquire) & mask;
        let mut next = queue.consumer().load(Ordering::Acquire) & mask;
        let mut count = 0;
        while next != posted_to {
            let mut wr_id = [0; 8];
            queue.window.load(geometry.element(next), &mut wr_id);
            let opcode = match posted {
                Posted::Sends => WcOpcode::Send,
                Posted::Receives => WcOpcode::Recv,
            };
            let entry = CqEntry {
                wr_id: u64::from_ne_bytes(wr_id),
                // CLIENT-017
                status: WcStatus::WrFlush as u32,
                opcode: opcode as u32,
                qp_num: qpn,
                ..CqEntry::default()
            };
            if !self.push(&entry) {
                break;
            }
            next = (next + 1) & mask;
            queue.consumer().store(next, Ordering::Release);
            count += 1;
        }
        Ok(count)
    }

    /// Whether the program waits for an event of completions that are there now. It is due only
    /// once.
    pub fn take_armed(&self) -> bool {
        let [producer, consumer] =
            [self.0.producer(), self.0.consumer()].map(|index| index.load(Ordering::Acquire));
        producer != consumer && take_armed(self.0.armed(), true)
    }

    /// Shows the program a completion; `false` if there is no room.
    fn push(&self, entry: &CqEntry) -> bool {
        let ring = &self.0;
        let mask = ring.geometry.slots() - 1;
        let slot = ring.producer().load(Ordering::Relaxed) & mask;
        let after = (slot + 1) & mask;
        if after == ring.consumer().load(Ordering::Acquire) & mask {
            return false;
        }
        ring.window.store(ring.geometry.element(slot), entry.as_bytes());
        ring.producer().store(after, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use crate::ring::{CqConsumer, CqProducer, RqConsumer, RqProducer, SqConsumer, SqProducer};
    use urxe_types::{SendData, SendWqe, SendWr};

    struct Session {
        arena: Arena,
    }

    impl Session {
        fn window(&mut self, geometry: Geometry) -> Window {
            self.arena.alloc(geometry.size().into()).unwrap().1
        }
    }

    fn session() -> Session {
        Session { arena: Arena::new(1 << 24).unwrap() }
    }

    fn post(queue: &mut SqProducer, wr_id: u64) {
        let wr = SendWr { wr_id, ..SendWr::default() };
        queue.push(&wr, SendData::Sges(&[])).unwrap();
        queue.publish();
    }

    fn poll(cq: &mut CqConsumer) -> Vec<(u64, u32, u32, u32)> {
        let mut found = Vec::new();
        let each = |it: &CqEntry| found.push((it.wr_id, it.status, it.opcode, it.qp_num));
        cq.poll(1000, each).unwrap();
        found
    }

    #[test]
    fn outstanding_work_is_completed_once_and_what_was_completed_is_not() {
        let mut session = session();
        let [of_cq, of_sq, of_rq] = [
            Geometry::completion(100).unwrap(),
            Geometry::send(15, 1, 0).unwrap(),
            Geometry::recv(15, 1).unwrap(),
        ];
        let [cq, sq, rq] = [of_cq, of_sq, of_rq].map(|geometry| session.window(geometry));
        let _daemon = CqProducer::create(cq.clone(), of_cq).unwrap();
        let mut daemon_sq = SqConsumer::create(sq.clone(), of_sq, false).unwrap();
        let _daemon_rq = RqConsumer::create(rq.clone(), of_rq).unwrap();
        let mut program = CqConsumer::attach(cq.clone(), of_cq).unwrap();
        let mut sends = SqProducer::attach(sq.clone(), of_sq).unwrap();
        let mut receives = RqProducer::attach(rq.clone(), of_rq).unwrap();
        for wr_id in 0..5 {
            post(&mut sends, wr_id);
            receives.push(10 + wr_id, &[]).unwrap();
        }
        let _ = receives.publish();
        for _ in 0..3 {
            daemon_sq.take(&mut SendWqe::default(), &mut Vec::new()).unwrap();
        }
        daemon_sq.retire(2);

        program.arm(true);
        let flush = FlushCq::attach(cq, of_cq).unwrap();
        let both = || {
            let sends = flush.flush(sq.clone(), of_sq, Posted::Sends, 7).unwrap();
            [sends, flush.flush(rq.clone(), of_rq, Posted::Receives, 7).unwrap()]
        };
        assert_eq!(both(), [3, 5]);
        assert!(flush.take_armed() && !flush.take_armed());
        assert_eq!(both(), [0, 0]);
        let of = |ids: std::ops::Range<u64>, opcode| ids.map(move |id| (id, 5, opcode, 7));
        let expected: Vec<_> =
            of(2..5, WcOpcode::Send as u32).chain(of(10..15, WcOpcode::Recv as u32)).collect();
        assert_eq!(poll(&mut program), expected);
        // And what is posted later.
        post(&mut sends, 99);
        assert_eq!(both(), [1, 0]);
        assert_eq!(poll(&mut program), [(99, 5, WcOpcode::Send as u32, 7)]);
    }

    #[test]
    fn completions_beyond_the_queue_follow_when_there_is_room() {
        let mut session = session();
        let [of_cq, of_sq] = [Geometry::completion(3).unwrap(), Geometry::send(15, 1, 0).unwrap()];
        let [cq, sq] = [of_cq, of_sq].map(|geometry| session.window(geometry));
        let _daemon = CqProducer::create(cq.clone(), of_cq).unwrap();
        let _daemon_sq = SqConsumer::create(sq.clone(), of_sq, false).unwrap();
        let mut program = CqConsumer::attach(cq.clone(), of_cq).unwrap();
        let mut sends = SqProducer::attach(sq.clone(), of_sq).unwrap();
        (0..8).for_each(|wr_id| post(&mut sends, wr_id));
        let flush = FlushCq::attach(cq, of_cq).unwrap();
        let mut found = Vec::new();
        for expected in [3, 3, 2, 0] {
            assert_eq!(flush.flush(sq.clone(), of_sq, Posted::Sends, 7), Ok(expected));
            found.extend(poll(&mut program).into_iter().map(|(wr_id, ..)| wr_id));
        }
        assert_eq!(found, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn nonsense_in_the_indices_costs_a_bounded_number_of_completions() {
        let mut session = session();
        let [of_cq, of_sq] =
            [Geometry::completion(100).unwrap(), Geometry::send(15, 1, 0).unwrap()];
        let [cq, sq] = [of_cq, of_sq].map(|geometry| session.window(geometry));
        let _daemon = CqProducer::create(cq.clone(), of_cq).unwrap();
        let _daemon_sq = SqConsumer::create(sq.clone(), of_sq, false).unwrap();
        let flush = FlushCq::attach(cq.clone(), of_cq).unwrap();
        for value in [u32::MAX, 1 << 31, 77] {
            for window in [&cq, &sq] {
                window.atomic_u32(128).store(value, Ordering::Relaxed);
                window.atomic_u32(256).store(!value, Ordering::Relaxed);
            }
            assert!(flush.flush(sq.clone(), of_sq, Posted::Sends, 7).unwrap() < of_sq.slots());
        }
    }
}
