//! The two ends of a completion queue.

use super::cursor::{ConsumerCursor, IndexError, ProducerCursor, arm, take_armed};
use super::geometry::Geometry;
use super::layout::CqEntry;
use super::queue::{MoveError, Ring, RingError};
use crate::memory::region::Window;
use zerocopy::IntoBytes;

/// A completion could not be put on a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CqError {
    /// There is no room. What was pushed before is unharmed; this completion is lost.
    #[error("the completion queue is full: {capacity} completions")]
    Overrun {
        /// What it holds.
        capacity: u32,
    },
    /// The program's side of the ring is broken.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// The daemon's end of a completion queue.
#[derive(Debug)]
pub struct CqProducer {
    ring: Ring,
    cursor: ProducerCursor,
    /// Whether something solicited, or an error, was pushed and not yet published.
    solicited: bool,
    /// Whether anything was.
    pending: bool,
}

impl CqProducer {
    /// Makes an empty ring.
    pub fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ProducerCursor::new(geometry.slots());
        let ring = Ring::create(window, geometry)?;
        Ok(Self { ring, cursor, solicited: false, pending: false })
    }

    /// Writes a completion into the queue. The program does not see it before
    /// [`publish`](Self::publish). `solicited` says whether it is an error, or of a receive with
    /// the solicited bit: that it wakes a CQ which is armed for such only.
    pub fn push(&mut self, entry: &CqEntry, solicited: bool) -> Result<(), CqError> {
        let Some(slot) = self.cursor.claim(&self.ring)? else {
            return Err(CqError::Overrun { capacity: self.ring.geometry.capacity() });
        };
        let offset = self.ring.geometry.element(slot);
        self.ring.window.store(offset, entry.as_bytes());
        self.solicited |= solicited;
        self.pending = true;
        Ok(())
    }

    /// Shows the program what was pushed. If the answer is `true`, the CQ was armed and is not
    /// any more: an event has to be written to its channel.
    #[must_use = "an armed CQ needs its event written"]
    pub fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.pending) {
            return false;
        }
        self.cursor.publish(&self.ring);
        take_armed(self.ring.armed(), std::mem::take(&mut self.solicited))
    }

    /// Completions that are published and that the program has not read, as far as it has told.
    pub fn unread(&mut self) -> Result<u32, IndexError> {
        self.cursor.unread(&self.ring).map(|slots| slots.len())
    }

    /// Goes on with a new ring, to which the unread completions are moved; it is armed if the old
    /// one was. The old one is not touched any more.
    pub fn move_to(&mut self, window: Window, geometry: Geometry) -> Result<(), MoveError> {
        self.cursor.publish(&self.ring);
        let unread = self.cursor.unread(&self.ring)?;
        self.ring = self.ring.moved(unread, window, geometry)?;
        self.cursor = ProducerCursor::behind(geometry.slots(), unread.len());
        Ok(())
    }
}

/// The program's end of a completion queue.
#[derive(Debug)]
pub struct CqConsumer {
    ring: Ring,
    cursor: ConsumerCursor,
}

impl CqConsumer {
    /// The ring that the daemon made. `geometry` comes of the granted capacity.
    pub fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ConsumerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::attach(window, geometry)?, cursor })
    }

    /// Takes up to `max` completions, gives each to `each`, and returns how many there were.
    pub fn poll(
        &mut self,
        max: usize,
        mut each: impl FnMut(&CqEntry),
    ) -> Result<usize, IndexError> {
        let mut count = 0;
        // CQ-009
        while count < max {
            let Some(slot) = self.cursor.take(&self.ring)? else { break };
            let mut entry = CqEntry::default();
            let offset = self.ring.geometry.element(slot);
            self.ring.window.load(offset, entry.as_mut_bytes());
            each(&entry);
            count += 1;
        }
        self.cursor.release(&self.ring, count as u32);
        Ok(count)
    }

    /// Asks for an event with the next completion, or with the next one that is solicited or an
    /// error: `ibv_req_notify_cq`. Poll once more afterwards, for what is already there causes
    /// no event.
    pub fn arm(&mut self, solicited_only: bool) {
        arm(self.ring.armed(), solicited_only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::layout::{ARMED_ANY, ARMED_SOLICITED};
    use crate::ring::testing::{completion, completion_queue, window};
    use proptest::prelude::*;

    #[test]
    fn completions_appear_when_published() {
        let (_, mut consumer, mut producer) = completion_queue(3);
        let mut seen = Vec::new();
        producer.push(&completion(1), false).unwrap();
        producer.push(&completion(2), false).unwrap();
        assert_eq!(consumer.poll(9, |_| panic!("not published")), Ok(0));
        assert!(!producer.publish());
        assert_eq!(consumer.poll(1, |entry| seen.push(*entry)), Ok(1));
        assert_eq!(consumer.poll(9, |entry| seen.push(*entry)), Ok(1));
        assert_eq!(seen, [completion(1), completion(2)]);
    }

    #[test]
    fn a_full_completion_queue_says_so_and_keeps_what_it_has() {
        let (_, mut consumer, mut producer) = completion_queue(3);
        for wr_id in 0..3 {
            producer.push(&completion(wr_id), false).unwrap();
        }
        assert_eq!(producer.push(&completion(3), false), Err(CqError::Overrun { capacity: 3 }));
        assert!(!producer.publish());
        assert_eq!(consumer.poll(2, |_| {}), Ok(2));
        producer.push(&completion(4), false).unwrap();
        assert!(!producer.publish());
        let mut seen = Vec::new();
        consumer.poll(9, |entry| seen.push(entry.wr_id)).unwrap();
        assert_eq!(seen, [2, 4]);
    }

    #[test]
    fn an_armed_completion_queue_wants_one_event_for_a_batch() {
        let (_, mut consumer, mut producer) = completion_queue(7);
        consumer.arm(false);
        assert!(!producer.publish(), "nothing happened");
        producer.push(&completion(1), false).unwrap();
        producer.push(&completion(2), false).unwrap();
        assert!(producer.publish());
        producer.push(&completion(3), true).unwrap();
        assert!(!producer.publish());
    }

    #[test]
    fn a_completion_queue_armed_for_solicited_waits_for_one() {
        let (_, mut consumer, mut producer) = completion_queue(7);
        consumer.arm(true);
        producer.push(&completion(1), false).unwrap();
        assert!(!producer.publish());
        producer.push(&completion(2), true).unwrap();
        producer.push(&completion(3), false).unwrap();
        assert!(producer.publish());
    }

    proptest! {
        /// A CQ that gets another size goes on as if nothing had happened: what was unread comes
        /// in order and once, then what is pushed after; and it wakes whom it would have woken.
        #[test]
        fn a_completion_queue_of_another_size_has_lost_nothing(
            cqe in 1..20u32, new_cqe in 1..40u32, before in 0..60u64, left in 0..20usize,
            hidden in 0..3u64, armed in 0..3u32,
        ) {
            let (_, mut consumer, mut producer) = completion_queue(cqe);
            let mut expected = std::collections::VecDeque::new();
            for wr_id in 0..before {
                if producer.push(&completion(wr_id), false).is_ok() {
                    expected.push_back(wr_id);
                }
                prop_assert!(!producer.publish());
                while expected.len() > left {
                    let next = expected.pop_front();
                    consumer.poll(1, |entry| assert_eq!(Some(entry.wr_id), next)).unwrap();
                }
            }
            for wr_id in before..before + hidden {
                if producer.push(&completion(wr_id), false).is_ok() {
                    expected.push_back(wr_id);
                }
            }
            match armed {
                ARMED_ANY => consumer.arm(false),
                ARMED_SOLICITED => consumer.arm(true),
                _ => {}
            }
            let has_hidden = producer.pending;
            let geometry = Geometry::completion(new_cqe).unwrap();
            let larger = window(geometry.size());
            let result = producer.move_to(larger.clone(), geometry);
            let (entries, capacity) = (expected.len() as u32, geometry.capacity());
            if entries > capacity {
                prop_assert_eq!(result, Err(MoveError::TooSmall { entries, capacity }));
            } else {
                prop_assert_eq!(result, Ok(()));
                consumer = CqConsumer::attach(larger, geometry).unwrap();
                prop_assert_eq!(producer.unread(), Ok(entries));
            }
            prop_assert_eq!(producer.publish(), has_hidden && armed == ARMED_ANY);
            if producer.push(&completion(1000), true).is_ok() {
                expected.push_back(1000);
                prop_assert_eq!(
                    producer.publish(),
                    armed == ARMED_SOLICITED || armed == ARMED_ANY && !has_hidden
                );
            }
            let mut seen = Vec::new();
            consumer.poll(99, |entry| seen.push(entry.wr_id)).unwrap();
            prop_assert_eq!(seen, Vec::from(expected));
        }

        /// Whatever a program has written into the old ring, moving it ends in an error that
        /// changes nothing, or in a ring that is in order.
        #[test]
        fn a_scribbled_ring_is_moved_or_refused(
            header in prop::collection::vec(prop_oneof![0..9u32, any::<u32>()], 96),
            pushed in 0..4u64,
        ) {
            let geometry = Geometry::completion(3).unwrap();
            let (old, _, mut producer) = completion_queue(3);
            for wr_id in 0..pushed.min(3) {
                producer.push(&completion(wr_id), false).unwrap();
            }
            let _ = producer.publish();
            old.store(0, header.as_bytes());
            let new = window(geometry.size());
            if producer.move_to(new.clone(), geometry).is_ok() {
                let mut consumer = CqConsumer::attach(new, geometry).unwrap();
                let moved = consumer.poll(9, |_| ()).unwrap();
                prop_assert!(moved as u64 <= pushed);
                producer.push(&completion(9), false).unwrap();
            }
        }
    }
}
