//! The six ends of the rings.
//!
//! | ring | program | daemon |
//! |------|---------|--------|
//! | SQ   | [`SqProducer`] | [`SqConsumer`] |
//! | RQ   | [`RqProducer`] | [`RqConsumer`] |
//! | CQ   | [`CqConsumer`] | [`CqProducer`] |
//!
//! The daemon's end is made first and writes the header; the program's end checks it. Each end
//! is used by one thread at a time (`&mut self`).

use crate::cursor::{ConsumerCursor, IndexError, Indices, ProducerCursor, arm, take_armed};
use crate::entry::{PostError, RecvWqe, SendData, SendWqe, SendWr, Taken};
use crate::geometry::Geometry;
use crate::layout::{CqEntry, FLAG_RING_AFTER_POST, QueueHeader, RecvEntry, Sge};
use crate::region::Window;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use zerocopy::IntoBytes;

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
}

/// A ring's memory and shape: what the six ends have in common.
#[derive(Debug)]
struct Ring {
    window: Window,
    geometry: Geometry,
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
    fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let ring = Self::new(window, geometry)?;
        ring.window.store(0, &[0; size_of::<QueueHeader>()]);
        for (_, offset, value) in ring.shape() {
            ring.window.atomic_u32(offset).store(value, Ordering::Release);
        }
        Ok(ring)
    }

    /// Finds the ring that the daemon made.
    fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
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

    /// The header fields that never change: name, offset, value.
    fn shape(&self) -> [(&'static str, usize, u32); 2] {
        let log2 = self.geometry.element_size().ilog2();
        let mask = self.geometry.slots() - 1;
        [
            ("log2_elem_size", offset_of!(QueueHeader, log2_elem_size), log2),
            ("index_mask", offset_of!(QueueHeader, index_mask), mask),
        ]
    }

    fn flags(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, flags))
    }

    fn armed(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, armed))
    }
}

/// The program's end of a send queue.
#[derive(Debug)]
pub struct SqProducer {
    ring: Ring,
    cursor: ProducerCursor,
}

impl SqProducer {
    /// The ring that the daemon made. `geometry` comes of the granted capacities.
    pub fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ProducerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::attach(window, geometry)?, cursor })
    }

    /// Writes a work request into the queue. The daemon does not see it before
    /// [`publish`](Self::publish).
    pub fn push(&mut self, wr: &SendWr, data: SendData<'_>) -> Result<(), PostError> {
        let entry = wr.encode(data, &self.ring.geometry)?;
        let Some(slot) = self.cursor.claim(&self.ring)? else {
            return Err(PostError::QueueFull { capacity: self.ring.geometry.capacity() });
        };
        let offset = self.ring.geometry.element(slot);
        self.ring.window.store(offset, entry.as_bytes());
        let data = match data {
            SendData::Sges(sges) => sges.as_bytes(),
            SendData::Inline(data) => data,
        };
        self.ring.window.store(offset + size_of_val(&entry), data);
        Ok(())
    }

    /// Shows the daemon what was pushed. Ring the QP's doorbell afterwards.
    pub fn publish(&mut self) {
        self.cursor.publish(&self.ring);
    }

    /// Work requests that may be pushed now.
    pub fn free(&mut self) -> Result<u32, IndexError> {
        self.cursor.free(&self.ring)
    }

    /// Begins anew. To be called when the QP has gone to RESET.
    pub fn reset(&mut self) {
        self.cursor.reset();
    }
}

/// The daemon's end of a send queue.
#[derive(Debug)]
pub struct SqConsumer {
    ring: Ring,
    cursor: ConsumerCursor,
}

impl SqConsumer {
    /// Makes an empty ring.
    pub fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ConsumerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::create(window, geometry)?, cursor })
    }

    /// Takes the next work request. Its data is appended to `sges`, or to `inline` if it is
    /// inline; of a malformed one, nothing is. Its place is kept until
    /// [`retire`](Self::retire).
    pub fn take(
        &mut self,
        sges: &mut Vec<Sge>,
        inline: &mut Vec<u8>,
    ) -> Result<Taken<SendWqe>, IndexError> {
        let Some(slot) = self.cursor.take(&self.ring)? else { return Ok(Taken::Empty) };
        Ok(SendWqe::decode(&self.ring.window, &self.ring.geometry, slot, sges, inline))
    }

    /// Gives the places of the oldest `count` work requests taken back to the program, after
    /// their completions were published. Never more than were taken.
    pub fn retire(&mut self, count: u32) {
        self.cursor.release(&self.ring, count);
    }

    /// Work requests taken and not retired.
    pub fn held(&self) -> u32 {
        self.cursor.held()
    }

    /// Empties the ring and sets both indices back: the QP goes to RESET.
    pub fn reset(&mut self) {
        self.cursor.reset(&self.ring);
    }
}

/// The program's end of a receive queue.
#[derive(Debug)]
pub struct RqProducer {
    ring: Ring,
    cursor: ProducerCursor,
}

impl RqProducer {
    /// The ring that the daemon made. `geometry` comes of the granted capacities.
    pub fn attach(window: Window, geometry: Geometry) -> Result<Self, RingError> {
        let cursor = ProducerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::attach(window, geometry)?, cursor })
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

    /// Work requests that may be pushed now.
    pub fn free(&mut self) -> Result<u32, IndexError> {
        self.cursor.free(&self.ring)
    }

    /// Begins anew. To be called when the QP has gone to RESET.
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

    /// Takes the next work request. Its SGEs are appended to `sges`; of a malformed one, none
    /// are. Its place is free at once.
    pub fn take(&mut self, sges: &mut Vec<Sge>) -> Result<Taken<RecvWqe>, IndexError> {
        let Some(slot) = self.cursor.take(&self.ring)? else { return Ok(Taken::Empty) };
        let taken = RecvWqe::decode(&self.ring.window, &self.ring.geometry, slot, sges);
        self.cursor.release(&self.ring, 1);
        Ok(taken)
    }

    /// Work requests that may be taken now.
    pub fn available(&mut self) -> Result<u32, IndexError> {
        self.cursor.available(&self.ring)
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

    /// Whether something was pushed and not yet published.
    pub fn has_unpublished(&self) -> bool {
        self.pending
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
