//! The six ends of the rings.
//!
//! | ring | program | daemon |
//! |------|---------|--------|
//! | SQ   | [`SqProducer`] | [`SqConsumer`] |
//! | RQ   | [`RqProducer`] | [`RqConsumer`] |
//! | CQ   | [`CqConsumer`] | [`CqProducer`] |
//!
//! An SRQ is an RQ that belongs to no QP. The daemon's end is made first and writes the header;
//! the program's end checks it. Each end is used by one thread at a time (`&mut self`).
//!
//! When the daemon is gone, the program stands in for it: [`FlushCq`](super::FlushCq).
//!
//! A CQ and an SRQ can get another size: the daemon moves what is in the ring to a new one, and
//! the program attaches to that. Meanwhile the program keeps its hands off the old ring.

use crate::memory::region::Window;
use crate::ring::cursor::{
    ConsumerCursor, IndexError, Indices, ProducerCursor, Slots, arm, take_armed,
};
use crate::ring::entry::{PostError, RecvWqe, SendData, SendWqe, SendWr, Taken};
use crate::ring::geometry::Geometry;
use crate::ring::layout::{CqEntry, FLAG_RING_AFTER_POST, QueueHeader, RecvEntry, Sge};
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
    fn create(window: Window, geometry: Geometry) -> Result<Self, RingError> {
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
    fn moved(&self, slots: Slots, window: Window, geometry: Geometry) -> Result<Self, MoveError> {
        let (entries, capacity) = (slots.len(), geometry.capacity());
        if entries > capacity {
            return Err(MoveError::TooSmall { entries, capacity });
        }
        let [ours, theirs] = [self.geometry.element_size(), geometry.element_size()];
        if ours != theirs {
            let (actual, expected) = (theirs.ilog2(), ours.ilog2());
            return Err(RingError::Header { field: "log2_elem_size", actual, expected }.into());
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

    fn flags(&self) -> &AtomicU32 {
        self.window.atomic_u32(offset_of!(QueueHeader, flags))
    }

    pub(super) fn armed(&self) -> &AtomicU32 {
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

    /// Begins anew. To be called when the QP has gone to RESET; nothing may be pushed between the
    /// request and this, or the daemon takes old entries for new ones.
    pub fn reset(&mut self) {
        self.cursor.reset();
    }
}

/// The daemon's end of a send queue.
#[derive(Debug)]
pub struct SqConsumer {
    ring: Ring,
    cursor: ConsumerCursor,
    /// The QP is UD: its entries say where they go.
    datagram: bool,
}

impl SqConsumer {
    /// Makes an empty ring; `datagram` says that the QP is UD, whose entries say where they go.
    pub fn create(window: Window, geometry: Geometry, datagram: bool) -> Result<Self, RingError> {
        let cursor = ConsumerCursor::new(geometry.slots());
        Ok(Self { ring: Ring::create(window, geometry)?, cursor, datagram })
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
        Ok(SendWqe::decode(
            &self.ring.window,
            &self.ring.geometry,
            slot,
            self.datagram,
            sges,
            inline,
        ))
    }

    /// Gives the places of the oldest `count` work requests taken back to the program, before
    /// their completions are published. Never more than were taken.
    pub fn retire(&mut self, count: u32) {
        self.cursor.release(&self.ring, count);
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
    use crate::control::{AddressVector, Gid};
    use crate::memory::region::{Mapping, create_memfd};
    use crate::ring::entry::{DatagramPath, Destination, EntryError, Extra, SendOp};
    use crate::ring::layout::{
        ARMED_ANY, ARMED_SOLICITED, RecvEntry, SEND_INLINE, SendEntry, WR_RDMA_READ,
    };
    use proptest::prelude::*;
    use std::mem::size_of;
    use std::sync::Arc;

    fn window(len: u32) -> Window {
        let fd = create_memfd("ring", len.into()).unwrap();
        let mapping = Arc::new(Mapping::new(&fd, 0, len as usize).unwrap());
        Window::new(mapping, 0, len.into()).unwrap()
    }

    fn send_queue(geometry: Geometry) -> (Window, SqProducer, SqConsumer) {
        let window = window(geometry.size());
        let consumer = SqConsumer::create(window.clone(), geometry, false).unwrap();
        (window.clone(), SqProducer::attach(window, geometry).unwrap(), consumer)
    }

    fn recv_queue(geometry: Geometry) -> (Window, RqProducer, RqConsumer) {
        let window = window(geometry.size());
        let consumer = RqConsumer::create(window.clone(), geometry).unwrap();
        (window.clone(), RqProducer::attach(window, geometry).unwrap(), consumer)
    }

    fn completion_queue(cqe: u32) -> (Window, CqConsumer, CqProducer) {
        let geometry = Geometry::completion(cqe).unwrap();
        let window = window(geometry.size());
        let producer = CqProducer::create(window.clone(), geometry).unwrap();
        (window.clone(), CqConsumer::attach(window, geometry).unwrap(), producer)
    }

    fn plain_send(wr_id: u64) -> SendWr {
        let op = SendOp::Send(Extra::None);
        SendWr { wr_id, op, to: None, fence: false, signaled: true, solicited: false }
    }

    fn any_op() -> impl Strategy<Value = SendOp> {
        let target = (any::<u64>(), any::<u32>());
        prop_oneof![
            Just(SendOp::Send(Extra::None)),
            any::<u32>().prop_map(|imm| SendOp::Send(Extra::Imm(imm))),
            any::<u32>().prop_map(|rkey| SendOp::Send(Extra::Invalidate(rkey))),
            (target, any::<Option<u32>>()).prop_map(|((remote_addr, rkey), imm)| SendOp::Write {
                remote_addr,
                rkey,
                imm
            }),
            target.prop_map(|(remote_addr, rkey)| SendOp::Read { remote_addr, rkey }),
            (target, any::<[u64; 2]>()).prop_map(|((remote_addr, rkey), [compare, swap])| {
                SendOp::CompareSwap { remote_addr, rkey, compare, swap }
            }),
            (target, any::<u64>()).prop_map(|((remote_addr, rkey), add)| SendOp::FetchAdd {
                remote_addr,
                rkey,
                add
            }),
            target.prop_map(|(remote_addr, rkey)| SendOp::AtomicWrite { remote_addr, rkey }),
            (target, any::<(u32, [u8; 2])>()).prop_map(
                |((remote_addr, rkey), (length, [placement, selectivity]))| SendOp::Flush {
                    remote_addr,
                    rkey,
                    length,
                    placement,
                    selectivity
                }
            ),
            any::<([u32; 4], [u64; 2])>().prop_map(
                |([mw, new_rkey, mr, access], [addr, length])| SendOp::BindMw {
                    mw,
                    new_rkey,
                    mr,
                    addr,
                    length,
                    access
                }
            ),
            any::<u32>().prop_map(|key| SendOp::LocalInvalidate { key }),
        ]
    }

    /// Any destination that an entry can say.
    fn any_destination() -> impl Strategy<Value = Destination> {
        let vector = any::<([u8; 16], [u8; 3], u32)>().prop_map(
            |(dgid, [sgid_index, traffic_class, hop_limit], flow_label)| AddressVector {
                dgid: Gid(dgid),
                sgid_index,
                traffic_class,
                hop_limit,
                flow_label,
            },
        );
        let path = prop_oneof![
            (1..=u32::MAX).prop_map(DatagramPath::Handle),
            vector.prop_map(DatagramPath::Vector),
        ];
        (path, 0..1u32 << 24, any::<u32>()).prop_map(|(path, qpn, qkey)| Destination {
            path,
            qpn,
            qkey,
        })
    }

    fn any_wr() -> impl Strategy<Value = SendWr> {
        (any::<u64>(), any_op(), any::<[bool; 3]>()).prop_map(
            |(wr_id, op, [fence, signaled, solicited])| SendWr {
                wr_id,
                op,
                to: None,
                fence,
                signaled,
                solicited,
            },
        )
    }

    fn any_sges(max: usize) -> impl Strategy<Value = Vec<Sge>> {
        let sge = any::<(u64, u32, u32)>();
        let sge = sge.prop_map(|(addr, length, lkey)| Sge { addr, length, lkey });
        prop::collection::vec(sge, 0..=max)
    }

    proptest! {
        /// The daemon takes exactly what the program posted, behind what the caller had.
        #[test]
        fn a_send_arrives_as_it_was_posted(
            wr in any_wr(), sges in any_sges(4), data: [u8; 64], inline_len in 0..=64usize,
        ) {
            let (_, mut producer, mut consumer) = send_queue(Geometry::send(3, 4, 64).unwrap());
            let inline_data = &data[..inline_len];
            let has_no_data = matches!(
                wr.op,
                SendOp::Read { .. }
                    | SendOp::CompareSwap { .. }
                    | SendOp::FetchAdd { .. }
                    | SendOp::Flush { .. }
            );
            let before = Sge { addr: 1, length: 2, lkey: 3 };
            let (mut taken_sges, mut taken_inline) = (vec![before], vec![9]);

            producer.push(&wr, SendData::Sges(&sges)).unwrap();
            let inline_result = producer.push(&wr, SendData::Inline(inline_data));
            prop_assert_eq!(inline_result.is_err(), has_no_data);
            prop_assert_eq!(
                consumer.take(&mut taken_sges, &mut taken_inline), Ok(Taken::Empty), "not published"
            );
            producer.publish();

            let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
            prop_assert_eq!(
                consumer.take(&mut taken_sges, &mut taken_inline),
                Ok(Taken::Ready(SendWqe { wr, inline: false, length }))
            );
            prop_assert_eq!((taken_sges[0], &taken_sges[1..]), (before, &sges[..]));
            if !has_no_data {
                let length = inline_len as u64;
                prop_assert_eq!(
                    consumer.take(&mut taken_sges, &mut taken_inline),
                    Ok(Taken::Ready(SendWqe { wr, inline: true, length }))
                );
                prop_assert_eq!((taken_inline[0], &taken_inline[1..]), (9, inline_data));
            }
            prop_assert_eq!(taken_sges.len(), sges.len() + 1);
        }

        #[test]
        fn a_datagram_arrives_with_its_destination(
            wr in any_wr(), to in any_destination(),
            extra in prop_oneof![Just(Extra::None), any::<u32>().prop_map(Extra::Imm)],
        ) {
            let wr = SendWr { op: SendOp::Send(extra), to: Some(to), ..wr };
            let geometry = Geometry::send(1, 1, 0).unwrap();
            let window = window(geometry.size());
            let mut consumer = SqConsumer::create(window.clone(), geometry, true).unwrap();
            let mut producer = SqProducer::attach(window, geometry).unwrap();
            producer.push(&wr, SendData::Sges(&[])).unwrap();
            producer.publish();
            prop_assert_eq!(
                consumer.take(&mut Vec::new(), &mut Vec::new()),
                Ok(Taken::Ready(SendWqe { wr, inline: false, length: 0 }))
            );
        }

        #[test]
        fn a_receive_arrives_as_it_was_posted(wr_id: u64, sges in any_sges(3)) {
            let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(1, 3).unwrap());
            producer.push(wr_id, &sges).unwrap();
            prop_assert!(!producer.publish());
            let mut taken = Vec::new();
            let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
            prop_assert_eq!(consumer.take(&mut taken), Ok(Taken::Ready(RecvWqe { wr_id, length })));
            prop_assert_eq!(taken, sges);
        }

        /// Whatever bytes stand in a slot, the daemon makes something of them: a work request
        /// within the queue's capacities, or a named error that adds nothing.
        #[test]
        fn any_bytes_are_decoded(
            mut bytes: [[u8; 32]; 8],
            opcode in 0..20u32,
            num_sge in prop_oneof![0..6u32, any::<u32>()],
            flags in 0..16u32,
            length in prop_oneof![0..80u32, any::<u32>()],
            datagram: bool,
        ) {
            let geometry = Geometry::send(1, 3, 0).unwrap();
            let entry = bytes.as_flattened_mut();
            let mut put = |at: usize, value: u32| {
                entry[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            };
            put(12, opcode);
            put(16, flags);
            put(184, length);
            put(196, num_sge);
            let window = window(geometry.size());
            let mut consumer = SqConsumer::create(window.clone(), geometry, datagram).unwrap();
            let mut producer = SqProducer::attach(window.clone(), geometry).unwrap();
            producer.push(&plain_send(0), SendData::Sges(&[])).unwrap();
            producer.publish();
            window.store(geometry.element(0), bytes.as_flattened());
            let (mut sges, mut inline) = (Vec::new(), Vec::new());
            let taken = consumer.take(&mut sges, &mut inline).unwrap();
            if let Taken::Ready(wqe) = taken {
                prop_assert_eq!(wqe.wr.to.is_some(), datagram);
                prop_assert!(wqe.wr.to.is_none_or(|to| to.qpn < 1 << 24));
                let path = wqe.wr.to.map(|to| to.path);
                prop_assert_ne!(path, Some(DatagramPath::Handle(0)));
            }
            match taken {
                Taken::Ready(wqe) if wqe.inline => {
                    prop_assert!(inline.len() <= 48 && inline.len() as u64 == wqe.length);
                    prop_assert!(sges.is_empty());
                }
                Taken::Ready(_) => {
                    prop_assert!(sges.len() <= 3 && sges.len() == num_sge as usize);
                    prop_assert!(inline.is_empty());
                }
                Taken::Malformed { wr_id, .. } => {
                    prop_assert_eq!(&wr_id.to_ne_bytes(), &bytes[0][..8]);
                    prop_assert!(sges.is_empty() && inline.is_empty());
                }
                Taken::Empty => prop_assert!(false, "an entry was published"),
            }
        }
    }

    /// Writes one 32-bit field of the first entry.
    fn poke(window: &Window, geometry: &Geometry, field: usize, value: u32) {
        window.atomic_u32(geometry.element(0) + field).store(value, Ordering::Relaxed);
    }

    /// What the daemon says of a send whose field was overwritten.
    fn malformed(field: usize, value: u32, flags: u32) -> EntryError {
        let geometry = Geometry::send(1, 2, 32).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        producer.push(&plain_send(77), SendData::Sges(&[])).unwrap();
        producer.publish();
        poke(&window, &geometry, offset_of!(SendEntry, send_flags), flags);
        poke(&window, &geometry, field, value);
        match consumer.take(&mut Vec::new(), &mut Vec::new()) {
            Ok(Taken::Malformed { wr_id: 77, error }) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_of_an_entry_are_named() {
        let opcode = offset_of!(SendEntry, opcode);
        let (length, num_sge) = (offset_of!(SendEntry, dma), offset_of!(SendEntry, dma) + 12);
        for unknown in [10, 11, 13, 16, u32::MAX] {
            assert_eq!(malformed(opcode, unknown, 0), EntryError::Opcode { opcode: unknown });
        }
        assert_eq!(malformed(num_sge, 3, 0), EntryError::TooManySges { num_sge: 3, max_sge: 2 });
        assert_eq!(
            malformed(length, 33, SEND_INLINE),
            EntryError::InlineTooLong { length: 33, max_inline: 32 }
        );
        assert_eq!(
            malformed(opcode, WR_RDMA_READ, SEND_INLINE),
            EntryError::InlineNotAllowed { opcode: WR_RDMA_READ }
        );
    }

    #[test]
    fn the_length_of_a_scatter_list_is_summed_whatever_the_entry_says() {
        let geometry = Geometry::send(1, 2, 0).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        let sge = |length| Sge { addr: 0, length, lkey: 1 };
        producer.push(&plain_send(1), SendData::Sges(&[sge(u32::MAX), sge(2)])).unwrap();
        producer.publish();
        poke(&window, &geometry, offset_of!(SendEntry, dma), 12345);
        match consumer.take(&mut Vec::new(), &mut Vec::new()) {
            Ok(Taken::Ready(wqe)) => assert_eq!(wqe.length, 1 << 32 | 1),
            other => panic!("{other:?}"),
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
                let mut sges = Vec::new();
                match consumer.take(&mut sges).unwrap() {
                    Taken::Ready(wqe) => {
                        let sum: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                        assert_eq!((wqe.wr_id, wqe.length), (wr_id, sum));
                        assert!(sges.len() <= MAX_SGE, "{sges:?}");
                    }
                    Taken::Malformed { .. } => assert!(sges.is_empty(), "{sges:?}"),
                    Taken::Empty => panic!("one was posted"),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn an_atomic_write_brings_its_eight_bytes_as_librxe_posts_it() {
        let geometry = Geometry::send(1, 1, 0).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        let op = SendOp::AtomicWrite { remote_addr: 8, rkey: 1 };
        let wr = SendWr { op, ..plain_send(1) };
        producer.push(&wr, SendData::Inline(b"8 bytes!")).unwrap();
        producer.publish();
        poke(&window, &geometry, offset_of!(SendEntry, send_flags), 0);
        let mut inline = Vec::new();
        let taken = consumer.take(&mut Vec::new(), &mut inline);
        let wr = SendWr { signaled: false, ..wr };
        assert_eq!(taken, Ok(Taken::Ready(SendWqe { wr, inline: true, length: 8 })));
        assert_eq!(inline, b"8 bytes!");
    }

    #[test]
    fn requests_that_do_not_fit_are_not_posted() {
        let (_, mut producer, mut consumer) = send_queue(Geometry::send(1, 1, 0).unwrap());
        let sges = [Sge::default(); 2];
        assert_eq!(
            producer.push(&plain_send(1), SendData::Sges(&sges)),
            Err(PostError::Entry(EntryError::TooManySges { num_sge: 2, max_sge: 1 }))
        );
        assert_eq!(
            producer.push(&plain_send(1), SendData::Inline(&[0; 17])),
            Err(PostError::Entry(EntryError::InlineTooLong { length: 17, max_inline: 16 }))
        );
        producer.push(&plain_send(1), SendData::Inline(&[0; 16])).unwrap();
        assert_eq!(
            producer.push(&plain_send(2), SendData::Sges(&[])),
            Err(PostError::QueueFull { capacity: 1 })
        );
        producer.publish();
        let taken = consumer.take(&mut Vec::new(), &mut Vec::new());
        assert!(matches!(taken, Ok(Taken::Ready(SendWqe { wr: SendWr { wr_id: 1, .. }, .. }))));
    }

    #[test]
    fn a_send_keeps_its_place_until_it_is_retired() {
        let (_, mut producer, mut consumer) = send_queue(Geometry::send(3, 1, 0).unwrap());
        let mut pushed = |count| {
            let push = |wr_id| producer.push(&plain_send(wr_id), SendData::Sges(&[])).is_ok();
            let pushed = (0..count).map(push).filter(|&pushed| pushed).count();
            producer.publish();
            pushed
        };
        assert_eq!(pushed(9), 3);
        for _ in 0..3 {
            consumer.take(&mut Vec::new(), &mut Vec::new()).unwrap();
        }
        assert_eq!(pushed(9), 0, "taken is not retired");
        consumer.retire(2);
        assert_eq!(pushed(9), 2);
        consumer.retire(5);
        assert_eq!(pushed(9), 1, "what was not taken cannot be retired");
    }

    #[test]
    fn a_receive_frees_its_place_at_once() {
        let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(1, 1).unwrap());
        producer.push(1, &[]).unwrap();
        assert_eq!(producer.push(2, &[]), Err(PostError::QueueFull { capacity: 1 }));
        assert!(!producer.publish());
        assert_eq!(consumer.available(), Ok(1));
        consumer.take(&mut Vec::new()).unwrap();
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

    #[test]
    fn a_reset_empties_a_queue_and_heals_it() {
        let (window, mut producer, mut consumer) = send_queue(Geometry::send(3, 1, 0).unwrap());
        producer.push(&plain_send(1), SendData::Sges(&[])).unwrap();
        producer.publish();
        window.atomic_u32(128).store(99, Ordering::Relaxed);
        let broken = consumer.take(&mut Vec::new(), &mut Vec::new());
        assert!(matches!(broken, Err(IndexError::OutOfRange { index: 99, slots: 4, .. })));
        consumer.reset();
        producer.reset();
        assert_eq!(consumer.take(&mut Vec::new(), &mut Vec::new()), Ok(Taken::Empty));
        producer.push(&plain_send(2), SendData::Sges(&[])).unwrap();
        producer.publish();
        assert!(matches!(consumer.take(&mut Vec::new(), &mut Vec::new()), Ok(Taken::Ready(_))));
    }

    #[test]
    fn the_header_is_what_librxe_expects() {
        let geometry = Geometry::send(5, 1, 0).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        for wr_id in 0..3 {
            producer.push(&plain_send(wr_id), SendData::Sges(&[])).unwrap();
        }
        producer.publish();
        consumer.take(&mut Vec::new(), &mut Vec::new()).unwrap();
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

    fn completion(wr_id: u64) -> CqEntry {
        CqEntry { wr_id, qp_num: 17, byte_len: 5, wc_flags: 2, ..CqEntry::default() }
    }

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

        /// The same of the receives posted to a queue that gets another size, whose program then
        /// posts behind them.
        #[test]
        fn a_receive_queue_of_another_size_has_lost_nothing(
            max_wr in 1..20u32, new_max_wr in 1..40u32, before in 0..60u64, left in 0..20usize,
        ) {
            let (_, mut producer, mut consumer) = recv_queue(Geometry::recv(max_wr, 2).unwrap());
            let sges = |wr_id| [Sge { addr: wr_id, length: 7, lkey: 9 }; 2];
            let mut expected = std::collections::VecDeque::new();
            let mut taken = Vec::new();
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
                taken.clear();
                let wqe = RecvWqe { wr_id, length: 14 };
                prop_assert_eq!(consumer.take(&mut taken), Ok(Taken::Ready(wqe)));
                prop_assert_eq!(&taken[..], &sges(wr_id));
            }
            prop_assert_eq!(consumer.take(&mut taken), Ok(Taken::Empty));
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

    #[test]
    fn entries_of_another_size_cannot_be_moved() {
        let (_, _, mut consumer) = recv_queue(Geometry::recv(3, 1).unwrap());
        let geometry = Geometry::recv(3, 4).unwrap();
        assert_eq!(
            consumer.move_to(window(geometry.size()), geometry),
            Err(RingError::Header { field: "log2_elem_size", actual: 7, expected: 6 }.into())
        );
    }

    /// Two threads push a hundred thousand sends through a small queue, and as many completions
    /// back; each arrives once, in order, whole.
    #[test]
    fn work_and_completions_flow_between_threads() {
        const COUNT: u64 = 100_000;
        let (_, mut sq, mut daemon_sq) = send_queue(Geometry::send(10, 1, 64).unwrap());
        let (_, mut cq, mut daemon_cq) = completion_queue(5);
        let daemon = std::thread::spawn(move || {
            let (mut sges, mut inline) = (Vec::new(), Vec::new());
            let mut next = 0;
            while next < COUNT {
                inline.clear();
                match daemon_sq.take(&mut sges, &mut inline).unwrap() {
                    Taken::Ready(wqe) => {
                        assert_eq!(wqe.wr.wr_id, next);
                        assert_eq!(inline, [next as u8; 40]);
                        while daemon_cq.push(&completion(next), false).is_err() {
                            std::thread::yield_now();
                        }
                        next += 1;
                        daemon_sq.retire(1);
                    }
                    Taken::Empty => std::thread::yield_now(),
                    Taken::Malformed { error, .. } => panic!("{error}"),
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
