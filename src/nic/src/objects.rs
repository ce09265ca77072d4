//! The objects of a data path: one table for each kind, with everything that is known of them here.
//! What the protocol makes of them is the engine's.

use crate::queues::{CompletionQueue, RecvQueue, SendQueue};
use crate::table::Numbered;
use std::collections::BTreeMap;
use std::sync::Arc;
use urxe_engine::{MrSpec, QueueId, RegionId};
use urxe_shm::control::WhyCopied;
use urxe_shm::control::event::EventRecord;
use urxe_shm::memory::process_memory::ProcessMemory;
use urxe_shm::memory::region::Mapping;
use urxe_types::{Qpn, Slab};

/// The owner of an object: a number that the runner of the data path chose, and that means nothing
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerId(pub u64);

/// An event channel: where a program reads of completions, or of asynchronous events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelId(pub u32);

/// Where an object's events go, and what they say.
#[derive(Clone, Copy, Debug)]
pub struct EventTarget {
    /// The channel of its context's asynchronous events.
    pub(crate) channel: ChannelId,
    /// The object's `user_handle` and its handle.
    record: EventRecord,
}

impl EventTarget {
    /// Of an object that its program knows by these two numbers.
    pub fn new(channel: ChannelId, user_handle: u64, handle: u32) -> EventTarget {
        let record = EventRecord { user_handle, object: handle.into(), ..EventRecord::default() };
        EventTarget { channel, record }
    }

    /// An event of this kind.
    pub(crate) fn record(&self, kind: u32) -> EventRecord {
        EventRecord { kind, ..self.record }
    }
}

/// The memory behind an MR.
pub enum Memory {
    /// Shared with the program: loads and stores.
    Shared(Arc<Mapping>),
    /// Of the process that the data path runs in: copies that notice if it is not there.
    Own {
        /// Address of the first byte.
        addr: u64,
    },
    /// Anything else the program has: system calls.
    Process {
        /// The program's memory.
        memory: Arc<ProcessMemory>,
        /// Address of the first byte there.
        addr: u64,
        /// Why it is not shared, for people.
        why: WhyCopied,
    },
}

/// A QP's rings.
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) send: SendQueue,
    /// None if it receives from an SRQ.
    pub(crate) recv: Option<RecvQueue>,
    pub(crate) events: EventTarget,
    pub(crate) owner: OwnerId,
}

/// An SRQ's ring.
pub(crate) struct Srq {
    pub(crate) queue: RecvQueue,
    pub(crate) events: EventTarget,
    pub(crate) owner: OwnerId,
}

/// A memory registration.
pub struct Mr {
    /// What it was registered with.
    pub spec: MrSpec,
    /// Whose it is.
    pub owner: OwnerId,
    /// None of a registration of no bytes.
    pub(crate) memory: Option<Memory>,
}

impl Mr {
    /// Whether it is mapped for its program.
    pub fn is_mapped(&self) -> bool {
        matches!(self.memory, Some(Memory::Shared(_)))
    }

    /// Why it is reached by system calls, if it is.
    pub fn why_copied(&self) -> Option<WhyCopied> {
        match self.memory {
            Some(Memory::Process { why, .. }) => Some(why),
            _ => None,
        }
    }
}

/// All objects of one data path.
#[derive(Default)]
pub(crate) struct Objects {
    /// Protection domains: they have a number and nothing else.
    pub(crate) pds: Slab<()>,
    /// By QPN.
    pub(crate) qps: Numbered<Qp>,
    /// By the engine's number.
    pub(crate) srqs: Numbered<Srq>,
    pub(crate) cqs: Slab<CompletionQueue>,
    /// By lkey, which is the rkey too.
    pub(crate) mrs: Numbered<Mr>,
    /// Owners of windows by that part of their rkeys that stays.
    pub(crate) mws: BTreeMap<u32, OwnerId>,
}

/// A receive queue's number to the engine: the key of its QP or of its SRQ, which this bit tells
/// apart.
const SRQ_BIT: u32 = 1 << 31;

/// The queues, to the engine, of the QP with this key.
pub(crate) fn queue_of_qp(key: u32) -> QueueId {
    QueueId(key)
}

/// The queue, to the engine, of the SRQ with this key.
pub(crate) fn queue_of_srq(key: u32) -> QueueId {
    QueueId(key | SRQ_BIT)
}

impl Objects {
    /// The memory behind an MR, by the number that the engine has it under.
    pub(crate) fn memory(&self, region: RegionId) -> Option<&Memory> {
        self.mrs.by_key(region.0)?.memory.as_ref()
    }

    /// A receive queue by its number, and the QP that it is of alone.
    pub(crate) fn recv_queue(&mut self, queue: QueueId) -> Option<(&mut RecvQueue, Option<Qpn>)> {
        if queue.0 & SRQ_BIT != 0 {
            let srq = self.srqs.by_key_mut(queue.0 & !SRQ_BIT)?;
            return Some((&mut srq.queue, None));
        }
        let qp = self.qps.by_key_mut(queue.0)?;
        Some((qp.recv.as_mut()?, Some(qp.qpn)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_takes_little_memory_beside_its_rings_and_the_engines() {
        let whole = size_of::<Qp>();
        // SHARE-010
        assert!(whole <= 400, "{whole} bytes");
    }
}
