//! The two ends of a send queue.

use super::cursor::{ConsumerCursor, IndexError, ProducerCursor};
use super::entry::{PostError, Taken, take_send};
use super::geometry::Geometry;
use super::layout::SendEntry;
use super::queue::{Ring, RingError};
use crate::memory::region::Window;
use urxe_types::{SendData, SendWqe, SendWr};
use zerocopy::IntoBytes;

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
        let entry = SendEntry::encode(wr, data, &self.ring.geometry)?;
        let Some(slot) = self.cursor.claim(&self.ring)? else {
            // STATE-023
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

    /// Takes the next work request, into `wqe`; of a malformed one, the number alone. Its place is
    /// kept until [`retire`](Self::retire). If its data is inline, `buffer` is taken for it.
    pub fn take(&mut self, wqe: &mut SendWqe, buffer: &mut Vec<u8>) -> Result<Taken, IndexError> {
        let Some(slot) = self.cursor.take(&self.ring)? else { return Ok(Taken::Empty) };
        let Ring { window, geometry } = &self.ring;
        Ok(take_send(window, geometry, slot, self.datagram, wqe, buffer))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::layout::{SEND_INLINE, WR_RDMA_READ};
    use crate::ring::testing::{any_sges, plain_send, send_queue, take, window};
    use proptest::prelude::*;
    use std::mem::offset_of;
    use std::sync::atomic::Ordering;
    use urxe_types::{
        Access, AddressVector, AhId, DatagramPath, Destination, EntryError, Extra, FlushPlacement,
        FlushSelectivity, Gid, Lkey, Qkey, Qpn, Rkey, SendOp, Sge,
    };

    fn any_op() -> impl Strategy<Value = SendOp> {
        let rkey = || any::<u32>().prop_map(Rkey);
        let target = || (any::<u64>(), rkey());
        prop_oneof![
            Just(SendOp::Send(Extra::None)),
            any::<u32>().prop_map(|imm| SendOp::Send(Extra::Imm(imm))),
            rkey().prop_map(|rkey| SendOp::Send(Extra::Invalidate(rkey))),
            (target(), any::<Option<u32>>()).prop_map(|((remote_addr, rkey), imm)| SendOp::Write {
                remote_addr,
                rkey,
                imm
            }),
            target().prop_map(|(remote_addr, rkey)| SendOp::Read { remote_addr, rkey }),
            (target(), any::<[u64; 2]>()).prop_map(|((remote_addr, rkey), [compare, swap])| {
                SendOp::CompareSwap { remote_addr, rkey, compare, swap }
            }),
            (target(), any::<u64>()).prop_map(|((remote_addr, rkey), add)| SendOp::FetchAdd {
                remote_addr,
                rkey,
                add
            }),
            target().prop_map(|(remote_addr, rkey)| SendOp::AtomicWrite { remote_addr, rkey }),
            (target(), any::<(u32, [u8; 2])>()).prop_map(
                |((remote_addr, rkey), (length, [placement, selectivity]))| SendOp::Flush {
                    remote_addr,
                    rkey,
                    length,
                    placement: FlushPlacement::from_bits_retain(placement),
                    selectivity: FlushSelectivity::from_code(selectivity),
                }
            ),
            any::<([u32; 4], [u64; 2])>().prop_map(
                |([mw, new_rkey, mr, access], [addr, length])| SendOp::BindMw {
                    mw: Rkey(mw),
                    new_rkey: Rkey(new_rkey),
                    mr: Lkey(mr),
                    addr,
                    length,
                    access: Access::from_bits_retain(access)
                }
            ),
            any::<u32>().prop_map(|key| SendOp::LocalInvalidate { key: Rkey(key) }),
        ]
    }

    /// Any destination that an entry can say.
    fn any_destination() -> impl Strategy<Value = Destination> {
        let vector = any::<([u8; 16], [u8; 3], u32)>().prop_map(
            |(dgid, [sgid_index, traffic_class, hop_limit], flow_label)| AddressVector {
                dgid: Gid(dgid).to_ip(),
                sgid_index,
                traffic_class,
                hop_limit,
                flow_label,
            },
        );
        let path = prop_oneof![
            (1..=u32::MAX).prop_map(|number| DatagramPath::Handle(AhId(number))),
            vector.prop_map(DatagramPath::Vector),
        ];
        (path, 0..1u32 << 24, any::<u32>()).prop_map(|(path, qpn, qkey)| Destination {
            path,
            qpn: Qpn::new(qpn),
            qkey: Qkey(qkey),
        })
    }

    /// What the daemon takes of a work request that was posted so.
    fn taken(wr: SendWr, sges: &[Sge], inline: Option<&[u8]>) -> (Taken, SendWqe) {
        let inline = inline.map(<[u8]>::to_vec);
        (Taken::Ready, SendWqe { wr, sges: sges.to_vec(), inline })
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

    proptest! {
        /// The daemon takes exactly what the program posted.
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
            producer.push(&wr, SendData::Sges(&sges)).unwrap();
            let inline_result = producer.push(&wr, SendData::Inline(inline_data));
            prop_assert_eq!(inline_result.is_err(), has_no_data);
            prop_assert_eq!(take(&mut consumer).0, Taken::Empty, "not published");
            producer.publish();

            // What an earlier work request left there is gone.
            let (mut wqe, mut buffer) = (SendWqe::default(), vec![9]);
            wqe.sges.push(Sge { addr: 1, length: 2, lkey: Lkey(3) });
            let result = consumer.take(&mut wqe, &mut buffer).unwrap();
            prop_assert_eq!((result, wqe.clone()), taken(wr, &sges, None));
            if !has_no_data {
                let result = consumer.take(&mut wqe, &mut buffer).unwrap();
                prop_assert_eq!((result, wqe), taken(wr, &[], Some(inline_data)));
            }
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
            prop_assert_eq!(take(&mut consumer), taken(wr, &[], None));
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
            let (result, wqe) = take(&mut consumer);
            let inline_len = wqe.inline.as_ref().map(Vec::len);
            match result {
                Taken::Ready => {
                    prop_assert_eq!(wqe.wr.to.is_some(), datagram);
                    let path = wqe.wr.to.map(|to| to.path);
                    prop_assert_ne!(path, Some(DatagramPath::Handle(AhId(0))));
                    match inline_len {
                        Some(len) => prop_assert!(len <= 48 && wqe.sges.is_empty()),
                        None => {
                            prop_assert!(wqe.sges.len() <= 3);
                            prop_assert_eq!(wqe.sges.len(), num_sge as usize);
                        }
                    }
                }
                Taken::Malformed(_) => {
                    prop_assert_eq!(&wqe.wr.wr_id.to_ne_bytes(), &bytes[0][..8]);
                    prop_assert!(wqe.sges.is_empty() && inline_len.is_none());
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
        match take(&mut consumer) {
            (Taken::Malformed(error), wqe) if wqe.wr.wr_id == 77 => error,
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
        let sge = |length| Sge { addr: 0, length, lkey: Lkey(1) };
        producer.push(&plain_send(1), SendData::Sges(&[sge(u32::MAX), sge(2)])).unwrap();
        producer.publish();
        poke(&window, &geometry, offset_of!(SendEntry, dma), 12345);
        let (result, wqe) = take(&mut consumer);
        let length: u64 = wqe.sges.iter().map(|sge| u64::from(sge.length)).sum();
        assert_eq!((result, length), (Taken::Ready, 1 << 32 | 1));
    }

    #[test]
    fn an_atomic_write_brings_its_eight_bytes_as_librxe_posts_it() {
        let geometry = Geometry::send(1, 1, 0).unwrap();
        let (window, mut producer, mut consumer) = send_queue(geometry);
        let op = SendOp::AtomicWrite { remote_addr: 8, rkey: Rkey(1) };
        let wr = SendWr { op, ..plain_send(1) };
        producer.push(&wr, SendData::Inline(b"8 bytes!")).unwrap();
        producer.publish();
        poke(&window, &geometry, offset_of!(SendEntry, send_flags), 0);
        let wr = SendWr { signaled: false, ..wr };
        assert_eq!(take(&mut consumer), taken(wr, &[], Some(b"8 bytes!")));
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
        let (taken, wqe) = take(&mut consumer);
        assert_eq!((taken, wqe.wr.wr_id), (Taken::Ready, 1));
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
            take(&mut consumer);
        }
        assert_eq!(pushed(9), 0, "taken is not retired");
        consumer.retire(2);
        assert_eq!(pushed(9), 2);
        consumer.retire(5);
        assert_eq!(pushed(9), 1, "what was not taken cannot be retired");
    }

    #[test]
    fn a_reset_empties_a_queue_and_heals_it() {
        let (window, mut producer, mut consumer) = send_queue(Geometry::send(3, 1, 0).unwrap());
        producer.push(&plain_send(1), SendData::Sges(&[])).unwrap();
        producer.publish();
        window.atomic_u32(128).store(99, Ordering::Relaxed);
        let broken = consumer.take(&mut SendWqe::default(), &mut Vec::new());
        assert!(matches!(broken, Err(IndexError::OutOfRange { index: 99, slots: 4, .. })));
        consumer.reset();
        producer.reset();
        assert_eq!(take(&mut consumer).0, Taken::Empty);
        producer.push(&plain_send(2), SendData::Sges(&[])).unwrap();
        producer.publish();
        assert_eq!(take(&mut consumer).0, Taken::Ready);
    }
}
