//! Queues for the tests of their ends.

use super::entry::Taken;
use super::geometry::Geometry;
use super::layout::CqEntry;
use super::{CqConsumer, CqProducer, RqConsumer, RqProducer, SqConsumer, SqProducer};
use crate::memory::region::{Mapping, Window, create_memfd};
use proptest::prelude::*;
use std::sync::Arc;
use urxe_types::{Lkey, SendWqe, SendWr, Sge};

pub(super) fn window(len: u32) -> Window {
    let fd = create_memfd("ring", len.into()).unwrap();
    let mapping = Arc::new(Mapping::new(&fd, 0, len as usize).unwrap());
    Window::new(mapping, 0, len.into()).unwrap()
}

pub(super) fn send_queue(geometry: Geometry) -> (Window, SqProducer, SqConsumer) {
    let window = window(geometry.size());
    let consumer = SqConsumer::create(window.clone(), geometry, false).unwrap();
    (window.clone(), SqProducer::attach(window, geometry).unwrap(), consumer)
}

pub(super) fn recv_queue(geometry: Geometry) -> (Window, RqProducer, RqConsumer) {
    let window = window(geometry.size());
    let consumer = RqConsumer::create(window.clone(), geometry).unwrap();
    (window.clone(), RqProducer::attach(window, geometry).unwrap(), consumer)
}

pub(super) fn completion_queue(cqe: u32) -> (Window, CqConsumer, CqProducer) {
    let geometry = Geometry::completion(cqe).unwrap();
    let window = window(geometry.size());
    let producer = CqProducer::create(window.clone(), geometry).unwrap();
    (window.clone(), CqConsumer::attach(window, geometry).unwrap(), producer)
}

pub(super) fn plain_send(wr_id: u64) -> SendWr {
    SendWr { wr_id, signaled: true, ..SendWr::default() }
}

/// What the daemon finds next in a send queue.
pub(super) fn take(consumer: &mut SqConsumer) -> (Taken, SendWqe) {
    let mut wqe = SendWqe::default();
    let taken = consumer.take(&mut wqe, &mut Vec::new()).unwrap();
    (taken, wqe)
}

pub(super) fn any_sges(max: usize) -> impl Strategy<Value = Vec<Sge>> {
    let sge = any::<(u64, u32, u32)>();
    let sge = sge.prop_map(|(addr, length, lkey)| Sge { addr, length, lkey: Lkey(lkey) });
    prop::collection::vec(sge, 0..=max)
}

pub(super) fn completion(wr_id: u64) -> CqEntry {
    CqEntry { wr_id, qp_num: 17, byte_len: 5, wc_flags: 2, ..CqEntry::default() }
}
