//! The protocol of a ring's two indices.
//!
//! The producer fills slots and then moves its index with a release store; the consumer loads
//! that index with acquire, uses the slots, and moves its own index with a release store, which
//! the producer loads with acquire before it fills them again. Indices stay in `[0, slots)`, and
//! one slot is always left free.
//!
//! Each side keeps its own index, and the last it saw of the other's, privately: what stands in
//! shared memory is only ever told, and never believed beyond what it can rightly be. An index
//! that is out of range, or that moved where the other side cannot have moved it, breaks the
//! ring for good (until a reset), for there is no telling what else is wrong with it.

use super::sync::{AtomicU32, Ordering, fence};

/// Where a ring's indices live.
pub(crate) trait Indices {
    /// Index of the slot that is filled next.
    fn producer(&self) -> &AtomicU32;
    /// Index of the oldest slot in use.
    fn consumer(&self) -> &AtomicU32;
}

/// One of the two sides of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that fills slots.
    Producer,
    /// The one that empties them.
    Consumer,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Producer => "producer",
            Side::Consumer => "consumer",
        })
    }
}

/// The other side's index is nonsense; the ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is no slot's index.
    #[error("the {side} index is {index}, but the ring has {slots} slots")]
    OutOfRange {
        /// Whose index it is.
        side: Side,
        /// What stands there.
        index: u32,
        /// Number of slots.
        slots: u32,
    },
    /// It moved backwards, or further than there was anything to produce into or consume.
    #[error("the {side} index moved from {from} to {to}, but can have moved {limit} steps at most")]
    Overrun {
        /// Whose index it is.
        side: Side,
        /// Where it was seen last.
        from: u32,
        /// Where it is now.
        to: u32,
        /// How many steps it could have made.
        limit: u32,
    },
}

/// Checks a move of the other side's index.
fn check_move(side: Side, from: u32, to: u32, limit: u32, mask: u32) -> Result<(), IndexError> {
    // HOST-007
    if to > mask {
        return Err(IndexError::OutOfRange { side, index: to, slots: mask + 1 });
    }
    if to.wrapping_sub(from) & mask > limit {
        return Err(IndexError::Overrun { side, from, to, limit });
    }
    Ok(())
}

/// Neighbouring slots of a ring, from the oldest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    mask: u32,
    next: u32,
    left: u32,
}

impl Slots {
    fn between(from: u32, to: u32, mask: u32) -> Self {
        Self { mask, next: from, left: to.wrapping_sub(from) & mask }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.left
    }
}

impl Iterator for Slots {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let after = (self.next + 1) & self.mask;
        Some(std::mem::replace(&mut self.next, after))
    }
}

/// The filling side's view of a ring.
#[derive(Clone, Debug)]
pub(crate) struct ProducerCursor {
    mask: u32,
    /// The slot filled next.
    next: u32,
    /// The producer index as it was last told to the other side.
    published: u32,
    /// The consumer index as it was last seen.
    consumer: u32,
    broken: Option<IndexError>,
}

impl ProducerCursor {
    /// Of an empty ring. `slots` is a power of two.
    pub(crate) fn new(slots: u32) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self { mask: slots - 1, next: 0, published: 0, consumer: 0, broken: None }
    }

    /// Claims the next slot for filling; `None` if the ring is full.
    pub(crate) fn claim(&mut self, shared: &impl Indices) -> Result<Option<u32>, IndexError> {
        let after = (self.next + 1) & self.mask;
        if after == self.consumer {
            self.look(shared)?;
            // CQ-002
            if after == self.consumer {
                return Ok(None);
            }
        }
        Ok(Some(std::mem::replace(&mut self.next, after)))
    }

    /// Shows all claimed slots to the other side. They must have been filled.
    pub(crate) fn publish(&mut self, shared: &impl Indices) {
        if self.published != self.next {
            shared.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Begins anew with an empty ring, whose indices the other side sets back.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.mask + 1);
    }

    /// Of a ring whose first `filled` slots, and no others, are filled and told of. `slots` is a
    /// power of two, and larger than `filled`.
    pub(crate) fn behind(slots: u32, filled: u32) -> Self {
        debug_assert!(filled < slots);
        Self { next: filled, published: filled, ..Self::new(slots) }
    }

    /// The slots that are published, and not released as far as the other side has told.
    pub(crate) fn unread(&mut self, shared: &impl Indices) -> Result<Slots, IndexError> {
        self.look(shared)?;
        Ok(Slots::between(self.consumer, self.published, self.mask))
    }

    fn look(&mut self, shared: &impl Indices) -> Result<(), IndexError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        // Acquire: what the consumer did with the slots is done.
        let consumer = shared.consumer().load(Ordering::Acquire);
        let in_use = self.published.wrapping_sub(self.consumer) & self.mask;
        check_move(Side::Consumer, self.consumer, consumer, in_use, self.mask)
            .inspect_err(|&error| self.broken = Some(error))?;
        self.consumer = consumer;
        Ok(())
    }
}

/// The emptying side's view of a ring.
///
/// Taking a slot and releasing it are two steps: in between its entry is held, and the producer
/// does not overwrite it.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerCursor {
    mask: u32,
    /// The slot taken next.
    next: u32,
    /// The oldest slot held: the consumer index as it was last told to the other side.
    released: u32,
    /// The producer index as it was last seen.
    producer: u32,
    broken: Option<IndexError>,
}

impl ConsumerCursor {
    /// Of an empty ring. `slots` is a power of two.
    pub(crate) fn new(slots: u32) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self { mask: slots - 1, next: 0, released: 0, producer: 0, broken: None }
    }

    /// Takes the next filled slot; `None` if there is none.
    pub(crate) fn take(&mut self, shared: &impl Indices) -> Result<Option<u32>, IndexError> {
        if self.next == self.producer {
            self.look(shared)?;
            if self.next == self.producer {
                return Ok(None);
            }
        }
        let after = (self.next + 1) & self.mask;
        Ok(Some(std::mem::replace(&mut self.next, after)))
    }

    /// Of a ring whose first `filled` slots, and no others, are filled. `slots` is a power of two,
    /// and larger than `filled`.
    pub(crate) fn before(slots: u32, filled: u32) -> Self {
        debug_assert!(filled < slots);
        Self { producer: filled, ..Self::new(slots) }
    }

    /// The slots that may be taken, as far as the other side has told.
    pub(crate) fn available(&mut self, shared: &impl Indices) -> Result<Slots, IndexError> {
        self.look(shared)?;
        Ok(Slots::between(self.next, self.producer, self.mask))
    }

    /// Slots taken and not released.
    fn held(&self) -> u32 {
        self.next.wrapping_sub(self.released) & self.mask
    }

    /// Gives the oldest `count` slots held back to the other side; never more than are held.
    pub(crate) fn release(&mut self, shared: &impl Indices, count: u32) {
        let count = count.min(self.held());
        if count > 0 {
            self.released = (self.released + count) & self.mask;
            shared.consumer().store(self.released, Ordering::Release);
        }
    }

    /// Begins anew with an empty ring, and sets both indices back. Legal only while the other
    /// side keeps its hands off the ring.
    pub(crate) fn reset(&mut self, shared: &impl Indices) {
        *self = Self::new(self.mask + 1);
        shared.consumer().store(0, Ordering::Release);
        shared.producer().store(0, Ordering::Release);
    }

    fn look(&mut self, shared: &impl Indices) -> Result<(), IndexError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        // Acquire: what the producer put into the slots is there.
        let producer = shared.producer().load(Ordering::Acquire);
        let in_use = self.producer.wrapping_sub(self.released) & self.mask;
        check_move(Side::Producer, self.producer, producer, self.mask - in_use, self.mask)
            .inspect_err(|&error| self.broken = Some(error))?;
        self.producer = producer;
        Ok(())
    }
}

/// Asks for an event with the next entry, or the next solicited one. Whoever arms must look at
/// the ring once more afterwards: an entry published before is no reason for an event.
pub(crate) fn arm(armed: &AtomicU32, solicited_only: bool) {
    if solicited_only {
        // CQ-007: one that waits for anything goes on doing so.
        let _ = armed.compare_exchange(NONE, SOLICITED, Ordering::Relaxed, Ordering::Relaxed);
    } else {
        armed.store(ANY, Ordering::Relaxed);
    }
    // CQ-008: either our next look at the ring sees what was published, or the producer sees us
    // armed.
    fence(Ordering::SeqCst);
}

/// Whether an event is due for what has just been published; if so, it is due only once.
pub(crate) fn take_armed(armed: &AtomicU32, solicited: bool) -> bool {
    fence(Ordering::SeqCst);
    match armed.load(Ordering::Relaxed) {
        NONE => false,
        // CQ-005
        SOLICITED if !solicited => false,
        // CQ-004
        _ => armed.swap(NONE, Ordering::Relaxed) != NONE,
    }
}

// The values of `layout::QueueHeader::armed`, which is not built under loom.
const NONE: u32 = 0;
const ANY: u32 = 1;
const SOLICITED: u32 = 2;
#[cfg(not(loom))]
const _: () = {
    use crate::ring::layout::{ARMED_ANY, ARMED_NONE, ARMED_SOLICITED};
    assert!(NONE == ARMED_NONE && ANY == ARMED_ANY && SOLICITED == ARMED_SOLICITED);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Default)]
    struct Shared {
        producer: AtomicU32,
        consumer: AtomicU32,
    }

    impl Indices for Shared {
        fn producer(&self) -> &AtomicU32 {
            &self.producer
        }
        fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Publish,
        Take,
        Release(u32),
        AskAvailable,
        Reset,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => Just(Op::Push),
            4 => Just(Op::Publish),
            6 => Just(Op::Take),
            4 => (0..5u32).prop_map(Op::Release),
            1 => Just(Op::AskAvailable),
            1 => Just(Op::Reset),
        ]
    }

    proptest! {
        /// Both cursors together behave as one bounded queue would, in which entries are first
        /// hidden, then visible, then held.
        #[test]
        fn cursors_agree_with_a_plain_queue(
            log2 in 0..4u32,
            ops in prop::collection::vec(op(), 0..300),
        ) {
            let slots = 1 << log2;
            let capacity = slots as usize - 1;
            let shared = Shared::default();
            let mut producer = ProducerCursor::new(slots);
            let mut consumer = ConsumerCursor::new(slots);
            let mut ring = vec![0; slots as usize];
            let (mut hidden, mut visible) = (VecDeque::new(), VecDeque::new());
            let mut held = 0;
            let mut next_value = 0;

            for op in ops {
                let in_use = hidden.len() + visible.len() + held;
                match op {
                    Op::Push => match producer.claim(&shared).unwrap() {
                        Some(slot) => {
                            prop_assert!(in_use < capacity);
                            next_value += 1;
                            ring[slot as usize] = next_value;
                            hidden.push_back(next_value);
                        }
                        None => prop_assert_eq!(in_use, capacity),
                    },
                    Op::Publish => {
                        producer.publish(&shared);
                        visible.append(&mut hidden);
                    }
                    Op::Take => {
                        let taken = consumer.take(&shared).unwrap().map(|slot| ring[slot as usize]);
                        prop_assert_eq!(taken, visible.pop_front());
                        held += usize::from(taken.is_some());
                    }
                    Op::Release(count) => {
                        consumer.release(&shared, count);
                        held -= held.min(count as usize);
                    }
                    Op::AskAvailable => {
                        let available: Vec<i32> = consumer
                            .available(&shared)
                            .unwrap()
                            .map(|slot| ring[slot as usize])
                            .collect();
                        prop_assert_eq!(&available[..], &*visible.make_contiguous());
                        let unread = producer.unread(&shared).unwrap();
                        prop_assert_eq!(unread.len() as usize, visible.len() + held);
                    }
                    Op::Reset => {
                        consumer.reset(&shared);
                        producer.reset();
                        hidden.clear();
                        visible.clear();
                        held = 0;
                    }
                }
                prop_assert_eq!(consumer.held() as usize, held);
            }
        }

        /// Whatever a hostile program writes, the daemon's consumer never takes more than a
        /// ring holds, and never a slot that does not exist.
        #[test]
        fn a_hostile_producer_gains_nothing(
            log2 in 0..4u32,
            indices in prop::collection::vec(prop_oneof![0..9u32, any::<u32>()], 0..100),
        ) {
            let slots = 1 << log2;
            let shared = Shared::default();
            let mut consumer = ConsumerCursor::new(slots);
            for index in indices {
                shared.producer.store(index, Ordering::Relaxed);
                for _ in 0..=slots {
                    match consumer.take(&shared) {
                        Ok(Some(slot)) => prop_assert!(slot < slots),
                        _ => break,
                    }
                }
                prop_assert!(consumer.held() < slots);
            }
        }

        /// Nor does the daemon's producer ever overwrite what it has not seen consumed.
        #[test]
        fn a_hostile_consumer_gains_nothing(
            log2 in 0..4u32,
            indices in prop::collection::vec(prop_oneof![0..9u32, any::<u32>()], 0..100),
        ) {
            let slots = 1 << log2;
            let shared = Shared::default();
            let mut producer = ProducerCursor::new(slots);
            for index in indices {
                shared.consumer.store(index, Ordering::Relaxed);
                for _ in 0..=slots {
                    match producer.claim(&shared) {
                        Ok(Some(slot)) => prop_assert!(slot < slots),
                        _ => break,
                    }
                }
                producer.publish(&shared);
                prop_assert!(shared.producer.load(Ordering::Relaxed) < slots);
            }
        }
    }

    #[test]
    fn an_index_out_of_range_breaks_the_ring_until_it_is_reset() {
        let shared = Shared::default();
        let mut consumer = ConsumerCursor::new(4);
        let broken = IndexError::OutOfRange { side: Side::Producer, index: 4, slots: 4 };
        shared.producer.store(4, Ordering::Relaxed);
        assert_eq!(consumer.take(&shared), Err(broken));
        shared.producer.store(1, Ordering::Relaxed);
        assert_eq!(consumer.take(&shared), Err(broken), "it stays broken");
        consumer.reset(&shared);
        assert_eq!(consumer.take(&shared), Ok(None));
        shared.producer.store(1, Ordering::Relaxed);
        assert_eq!(consumer.take(&shared), Ok(Some(0)));
    }

    #[test]
    fn a_producer_that_moves_backwards_breaks_the_ring() {
        let shared = Shared::default();
        let mut consumer = ConsumerCursor::new(8);
        shared.producer.store(3, Ordering::Relaxed);
        assert_eq!(consumer.take(&shared), Ok(Some(0)));
        assert_eq!(consumer.available(&shared).map(|slots| slots.len()), Ok(2));
        shared.producer.store(2, Ordering::Relaxed);
        assert_eq!(
            consumer.available(&shared),
            Err(IndexError::Overrun { side: Side::Producer, from: 3, to: 2, limit: 4 })
        );
    }

    #[test]
    fn a_producer_cannot_claim_slots_that_are_still_held() {
        let shared = Shared::default();
        let mut consumer = ConsumerCursor::new(4);
        shared.producer.store(3, Ordering::Relaxed);
        assert_eq!(consumer.take(&shared), Ok(Some(0)));
        assert_eq!(consumer.available(&shared).map(|slots| slots.len()), Ok(2));
        shared.producer.store(0, Ordering::Relaxed);
        assert_eq!(
            consumer.available(&shared),
            Err(IndexError::Overrun { side: Side::Producer, from: 3, to: 0, limit: 0 })
        );
    }

    #[test]
    fn a_consumer_cannot_take_what_was_not_published() {
        let shared = Shared::default();
        let mut producer = ProducerCursor::new(4);
        assert_eq!(producer.claim(&shared), Ok(Some(0)));
        assert_eq!(producer.claim(&shared), Ok(Some(1)));
        producer.publish(&shared);
        assert_eq!(producer.claim(&shared), Ok(Some(2)));
        shared.consumer.store(3, Ordering::Relaxed);
        let overrun = IndexError::Overrun { side: Side::Consumer, from: 0, to: 3, limit: 2 };
        assert_eq!(producer.claim(&shared), Err(overrun));
        producer.reset();
        shared.consumer.store(0, Ordering::Relaxed);
        assert_eq!(producer.claim(&shared), Ok(Some(0)));
    }

    #[test]
    fn a_consumer_armed_for_anything_stays_so_when_armed_for_solicited() {
        let armed = AtomicU32::new(NONE);
        arm(&armed, false);
        arm(&armed, true);
        assert!(take_armed(&armed, false));
        assert!(!take_armed(&armed, true), "an event is due only once");
    }

    #[test]
    fn a_consumer_armed_for_solicited_sleeps_through_the_rest() {
        let armed = AtomicU32::new(NONE);
        arm(&armed, true);
        assert!(!take_armed(&armed, false));
        assert!(take_armed(&armed, true));
    }
}
