//! A ring's memory and shape: what the ends have in common.

use super::cursor::{IndexError, Indices, Slots};
use super::geometry::Geometry;
use super::layout::QueueHeader;
use crate::memory::region::Window;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries that are moved to another ring at a time, in bytes: whoever moves them serves nobody
/// meanwhile, and every page of the new ring has to be found first.
const MAX_MOVED_BYTES: u32 = 512 * 1024;

/// A ring cannot be put into, or is not found in, the memory given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The memory is too short.
    #[error("a ring of {expected} bytes does not fit into {actual} bytes of shared memory")]
    TooShort {
        /// Bytes that the ring takes.
        expected: u32,
        /// Bytes there are.
        actual: usize,
    },
    /// What stands in the header is not the shape that was agreed on.
    #[error("the ring's {field} is {actual}, expected {expected}")]
    Header {
        /// The header's field.
        field: &'static str,
        /// What stands there.
        actual: u32,
        /// What was agreed on.
        expected: u32,
    },
    /// Its indices are nonsense.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// A ring's entries cannot be moved to another ring. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// There are more of them than the new ring holds.
    #[error("the queue has {entries} entries, and the new ring holds {capacity}")]
    TooSmall {
        /// Entries in the queue.
        entries: u32,
        /// What the new ring holds.
        capacity: u32,
    },
    /// There are more of them than are moved at a time.
    #[error("the queue has {entries} entries, and no more than {most} are moved to another ring")]
    TooMany {
        /// Entries in the queue.
        entries: u32,
        /// How many there may be.
        most: u32,
    },
    /// The new ring is of another element size, or does not fit; or the old one is broken.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl From<IndexError> for MoveError {
    fn from(error: IndexError) -> Self {
        MoveError::Ring(error.into())
    }
}

/// A ring's memory and shape: what the six ends have in common.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) window: Window,
    pub(super) geometry: Geometry,
}

impl Indices for Ring {
    fn producer(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, producer))
    }
    fn consumer(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, consumer))
    }
}

impl Ring {
    /// Writes the header of an empty ring.
    pub(super) fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let ring = Self::new(window, geometry)?;
        ring.window.store(0, &[0; size_of::<QueueHeader>()]);
        for (_, offset, value) in ring.shape() {
            ring.window.atomic_u32(offset).store(value, Ordering::Release);
        }
        Ok(ring)
    }

    /// Finds the ring that the daemon made.
    pub(super) fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let ring = Self::new(window, geometry)?;
        for (field, offset, expected) in ring.shape() {
            let actual = ring.window.atomic_u32(offset).load(Ordering::Acquire);
            if actual != expected {
                return Err(RingError::Header { field, actual, expected });
            }
        }
        Ok(ring)
    }

    fn new(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let (expected, actual) = (geometry.size(), window.len());
        if actual < expected as usize {
            return Err(RingError::TooShort { expected, actual });
        }
        Ok(Self { window, geometry })
    }

    /// Makes a new ring that begins with the entries in these slots, and is flagged and armed as
    /// this one was.
    pub(super) fn moved(
        &self,
        slots: Slots,
        window: Window,
        geometry: Geometry,
    ) -> Result<Self, MoveError> {
        let (entries, capacity) = (slots.len(), geometry.capacity());
        if entries > capacity {
            return Err(MoveError::TooSmall { entries, capacity });
        }
        let [ours, theirs] = [self.geometry.element_size(), geometry.element_size()];
        if ours != theirs {
            let (actual, expected) = (theirs.ilog2(), ours.ilog2());
            return Err(RingError::Header { field: "log2_elem_size", actual, expected }.into());
        }
        // SHARE-133
        let most = MAX_MOVED_BYTES / ours;
        if entries > most {
            return Err(MoveError::TooMany { entries, most });
        }
        let ring = Self::create(window, geometry)?;
        let mut entry = vec![0; ours as usize];
        // CQ-023
        for (to, from) in (0..).zip(slots) {
            self.window.load(self.geometry.element(from), &mut entry);
            ring.window.store(geometry.element(to), &entry);
        }
        ring.flags().store(self.flags().load(Ordering::Relaxed), Ordering::Relaxed);
        // CQ-024
        ring.armed().store(self.armed().load(Ordering::Relaxed), Ordering::Relaxed);
        ring.producer().store(entries, Ordering::Release);
        Ok(ring)
    }

    /// The header fields that never change: name, offset, value.
    fn shape(&self) -> [(&'static str, usize, u32); 2] {
        let log2 = self.geometry.element_size().ilog2();
        let mask = self.geometry.slots() - 1;
        [
            ("log2_elem_size", offset_of!(QueueHeader, log2_elem_size), log2),
            ("index_mask", offset_of!(QueueHeader, index_mask), mask),
        ]
    }

    pub(super) fn flags(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, flags))
    }

    pub(super) fn armed(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, armed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::entry::Taken;
    use crate::ring::testing::{
        completion, completion_queue, plain_send, send_queue, take, window,
    };
    use crate::ring::{CqProducer, SqProducer};
    use urxe_types::{SendData, SendWqe};

    #[test]
    fn the_header_is_what_librxe_expects() {
        let geometry = Geometry::send(5, 1, 0).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        for wr_id in 0..3 {
            producer.push(&plain_send(wr_id), SendData::Sges(&[])).unwrap();
        }
        producer.publish();
        take(&mut consumer);
        consumer.retire(1);
        let mut header = [0; size_of::<QueueHeader>()];
        window.load(0, &mut header);
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(128), word(256)], [8, 7, 3, 1]);
    }

    #[test]
    fn a_ring_of_another_shape_is_refused() {
        let geometry = Geometry::send(7, 1, 0).unwrap();
        let (window, ..) = send_queue(geometry);
        assert_eq!(
            SqProducer::attach(window.clone(), Geometry::send(3, 1, 0).unwrap()).unwrap_err(),
            RingError::Header { field: "index_mask", actual: 7, expected: 3 }
        );
        assert_eq!(
            SqProducer::attach(window.clone(), Geometry::recv(7, 1).unwrap()).unwrap_err(),
            RingError::Header { field: "log2_elem_size", actual: 8, expected: 6 }
        );
        let large = Geometry::completion(1 << 16).unwrap();
        assert!(matches!(
            CqProducer::create(window, large),
            Err(RingError::TooShort { expected, .. }) if expected == large.size()
        ));
    }

    /// SHARE-133
    #[test]
    fn no_more_entries_than_so_many_are_moved_at_a_time() {
        let geometry = Geometry::completion(20_000).unwrap();
        let most = MAX_MOVED_BYTES / geometry.element_size();
        let (_, mut consumer, mut producer) = completion_queue(20_000);
        (0..=u64::from(most)).for_each(|wr_id| producer.push(&completion(wr_id), false).unwrap());
        let other = window(geometry.size());
        let error = MoveError::TooMany { entries: most + 1, most };
        assert_eq!(producer.move_to(other.clone(), geometry), Err(error));
        assert_eq!(consumer.poll(1, |_| ()), Ok(1));
        producer.move_to(other, geometry).unwrap();
    }

    /// Two threads push a hundred thousand sends through a small queue, and as many completions
    /// back; each arrives once, in order, whole.
    #[test]
    fn work_and_completions_flow_between_threads() {
        const COUNT: u64 = 100_000;
        let (_, mut sq, mut daemon_sq) = send_queue(Geometry::send(10, 1, 64).unwrap());
        let (_, mut cq, mut daemon_cq) = completion_queue(5);
        let daemon = std::thread::spawn(move || {
            let (mut wqe, mut buffer) = (SendWqe::default(), Vec::new());
            let mut next = 0;
            while next < COUNT {
                match daemon_sq.take(&mut wqe, &mut buffer).unwrap() {
                    Taken::Ready => {
                        assert_eq!(wqe.wr.wr_id, next);
                        assert_eq!(wqe.inline.as_deref(), Some(&[next as u8; 40][..]));
                        while daemon_cq.push(&completion(next), false).is_err() {
                            std::thread::yield_now();
                        }
                        next += 1;
                        daemon_sq.retire(1);
                    }
                    Taken::Empty => std::thread::yield_now(),
                    Taken::Malformed(error) => panic!("{error}"),
                }
                let _ = daemon_cq.publish();
            }
        });
        let (mut posted, mut completed) = (0, 0);
        while completed < COUNT {
            while posted < COUNT
                && sq.push(&plain_send(posted), SendData::Inline(&[posted as u8; 40])).is_ok()
            {
                posted += 1;
            }
            sq.publish();
            let daemon_ended = daemon.is_finished();
            let polled = cq.poll(4, |entry| {
                assert_eq!(*entry, completion(completed));
                completed += 1;
            });
            if polled == Ok(0) {
                assert!(!daemon_ended, "it ended early");
                std::thread::yield_now();
            }
        }
        daemon.join().unwrap();
    }
}
