//! The two ends of a receive queue, a QP's own or shared.

use super::cursor::{ConsumerCursor, IndexError, ProducerCursor};
use super::entry::{PostError, Taken, take_recv};
use super::geometry::Geometry;
use super::layout::{FLAG_RING_AFTER_POST, RecvEntry};
use super::queue::{MoveError, Ring, RingError};
use crate::memory::region::Window;
use std::sync::atomic::{Ordering, fence};
use urxe_types::{RecvWqe, Sge};
use zerocopy::IntoBytes;

/// The program's end of a receive queue.
#[derive(Debug)]
pub struct RqProducer {
    ring: Ring,
    cursor: ProducerCursor,
}

impl RqProducer {
    /// The ring that the daemon made, maybe with receives in front that it moved there.
    /// `geometry` comes of the granted capacities.
    pub fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let ring = Ring::attach(window, geometry)?;
        let moved = ConsumerCursor::new(geometry.slots()).available(&ring)?.len();
        Ok(Self { ring, cursor: ProducerCursor::behind(geometry.slots(), moved) })
    }

    /// Writes a work request into the queue. The daemon does not see it before
    /// [`publish`](Self::publish).
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let entry = RecvEntry::encode(wr_id, sges, &self.ring.geometry)?;
        let Some(slot) = self.cursor.claim(&self.ring)? else {
            return Err(PostError::QueueFull { capacity: self.ring.geometry.capacity() });
        };
        let offset = self.ring.geometry.element(slot);
        self.ring.window.store(offset, entry.as_bytes());
        self.ring.window.store(offset + size_of_val(&entry), sges.as_bytes());
        Ok(())
    }

    /// Shows the daemon what was pushed. Receives have no doorbell, for it is a packet that
    /// makes the daemon look at them; but if the answer is `true`, the QP is in the error state,
    /// and its doorbell has to be rung.
    #[must_use = "a QP in the error state needs its doorbell rung"]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.ring);
        // Either we see the flag, or the daemon, which raises it and then flushes the queue,
        // sees what we published.
        fence(Ordering::SeqCst);
        self.ring.flags().load(Ordering::Relaxed) & FLAG_RING_AFTER_POST != 0
    }

    /// Begins anew. To be called when the QP has gone to RESET; nothing may be pushed between the
    /// request and this, or the daemon takes old entries for new ones.
    pub fn reset(&mut self) {
        self.cursor.reset();
    }
}

/// The daemon's end of a receive queue.
#[derive(Debug)]
pub struct RqConsumer {
    ring: Ring,
    cursor: ConsumerCursor,
}

impl RqConsumer {
    /// Makes an empty ring.
    pub fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ConsumerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::create(window, geometry)?, cursor })
    }

    /// Takes the next work request, into `wqe`; of a malformed one, the number alone. Its place is
    /// free at once.
    pub fn take(&mut self, wqe: &mut RecvWqe) -> Result<Taken, IndexError> {
        let Some(slot) = self.cursor.take(&self.ring)? else { return Ok(Taken::Empty) };
        let taken = take_recv(&self.ring.window, &self.ring.geometry, slot, wqe);
        self.cursor.release(&self.ring, 1);
        Ok(taken)
    }

    /// Work requests that may be taken now.
    pub fn available(&mut self) -> Result<u32, IndexError> {
        self.cursor.available(&self.ring).map(|slots| slots.len())
    }

    /// Goes on with a new ring, to which the posted receives are moved. The old one is not
    /// touched any more.
    pub fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
        let posted = self.cursor.available(&self.ring)?;
        self.ring = self.ring.moved(posted, window, geometry)?;
        self.cursor = ConsumerCursor::before(geometry.slots(), posted.len());
        Ok(())
    }

    /// Tells the program whether to ring the doorbell after posting. To be raised when the QP
    /// goes to the error state, *before* the queue is flushed.
    pub fn set_ring_after_post(&mut self, ring: bool) {
        let flags = if ring { FLAG_RING_AFTER_POST } else { 0 };
        self.ring.flags().store(flags, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Empties the ring and sets both indices back: the QP goes to RESET.
    pub fn reset(&mut self) {
        self.cursor.reset(&self.ring);
        self.set_ring_after_post(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::testing::{any_sges, recv_queue, window};
    use proptest::prelude::*;
    use std::mem::offset_of;
    use urxe_types::Lkey;

    proptest! {
        #[test]
        fn a_receive_arrives_as_it_was_posted(wr_id: u64, sges in any_sges(3)) {
            let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(1, 3).unwrap());
            producer.push(wr_id, &sges).unwrap();
            prop_assert!(!producer.publish());
            let mut wqe = RecvWqe::default();
            prop_assert_eq!(consumer.take(&mut wqe), Ok(Taken::Ready));
            prop_assert_eq!(wqe, RecvWqe { wr_id, sges });
        }
    }

    /// What is checked is what is used, though the program writes on into its entries.
    #[test]
    fn an_entry_that_changes_while_it_is_taken_is_consistent_in_itself() {
        const MAX_SGE: usize = 3;
        let geometry = Geometry::recv(1, MAX_SGE as u32).unwrap();
        let (window, mut producer, mut consumer) = recv_queue(geometry);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let num_sge = offset_of!(RecvEntry, dma) + 12;
                let length = size_of::<RecvEntry>() + 8;
                for value in (0..8).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    for slot in 0..geometry.slots() {
                        let at = geometry.element(slot);
                        window.atomic_u32(at + num_sge).store(value, Ordering::Relaxed);
                        window.atomic_u32(at + length).store(value, Ordering::Relaxed);
                    }
                }
            });
            for wr_id in 0..20_000 {
                producer.push(wr_id, &[Sge::default()]).unwrap();
                assert!(!producer.publish());
                let mut wqe = RecvWqe::default();
                match consumer.take(&mut wqe).unwrap() {
                    Taken::Ready => {
                        assert_eq!(wqe.wr_id, wr_id);
                        assert!(wqe.sges.len() <= MAX_SGE, "{wqe:?}");
                    }
                    Taken::Malformed(_) => assert!(wqe.sges.is_empty(), "{wqe:?}"),
                    Taken::Empty => panic!("one was posted"),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_receive_frees_its_place_at_once() {
        let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(1, 1).unwrap());
        producer.push(1, &[]).unwrap();
        assert_eq!(producer.push(2, &[]), Err(PostError::QueueFull { capacity: 1 }));
        assert!(!producer.publish());
        assert_eq!(consumer.available(), Ok(1));
        consumer.take(&mut RecvWqe::default()).unwrap();
        producer.push(2, &[]).unwrap();
    }

    #[test]
    fn a_receive_posted_to_a_qp_in_error_rings() {
        let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(3, 1).unwrap());
        consumer.set_ring_after_post(true);
        producer.push(1, &[]).unwrap();
        assert!(producer.publish());
        consumer.reset();
        producer.reset();
        assert!(!producer.publish(), "not after a reset");
    }

    proptest! {
        /// The same of the receives posted to a queue that gets another size, whose program then
        /// posts behind them.
        #[test]
        fn a_receive_queue_of_another_size_has_lost_nothing(
            max_wr in 1..20u32, new_max_wr in 1..40u32, before in 0..60u64, left in 0..20usize,
        ) {
            let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(max_wr, 2).unwrap());
            let sges = |wr_id| [Sge { addr: wr_id, length: 7, lkey: Lkey(9) }; 2];
            let mut expected = std::collections::VecDeque::new();
            let mut taken = RecvWqe::default();
            for wr_id in 0..before {
                if producer.push(wr_id, &sges(wr_id)).is_ok() {
                    expected.push_back(wr_id);
                }
                prop_assert!(!producer.publish());
                while expected.len() > left {
                    consumer.take(&mut taken).unwrap();
                    expected.pop_front();
                }
            }
            let geometry = Geometry::recv(new_max_wr, 2).unwrap();
            let other = window(geometry.size());
            let result = consumer.move_to(other.clone(), geometry);
            let (entries, capacity) = (expected.len() as u32, geometry.capacity());
            if entries > capacity {
                prop_assert_eq!(result, Err(MoveError::TooSmall { entries, capacity }));
            } else {
                prop_assert_eq!(result, Ok(()));
                producer = RqProducer::attach(other, geometry).unwrap();
            }
            if producer.push(1000, &sges(1000)).is_ok() {
                expected.push_back(1000);
                prop_assert!(!producer.publish());
            }
            for wr_id in expected {
                prop_assert_eq!(consumer.take(&mut taken), Ok(Taken::Ready));
                prop_assert_eq!(&taken, &RecvWqe { wr_id, sges: sges(wr_id).to_vec() });
            }
            prop_assert_eq!(consumer.take(&mut taken), Ok(Taken::Empty));
        }
    }

    #[test]
    fn entries_of_another_size_cannot_be_moved() {
        let (_, _, mut consumer) = recv_queue(Geometry::recv(3, 1).unwrap());
        let geometry = Geometry::recv(3, 4).unwrap();
        assert_eq!(
            consumer.move_to(window(geometry.size()), geometry),
            Err(RingError::Header { field: "log2_elem_size", actual: 7, expected: 6 }.into())
        );
    }
}
