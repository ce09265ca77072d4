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
    /// The whole pages of it are shared; what lies before and behind them takes system calls.
    WholePages {
        /// These pages.
        pages: Arc<Mapping>,
        /// Bytes before them.
        before: u64,
        /// The program's memory.
        memory: Arc<ProcessMemory>,
        /// Address of the first byte there.
        addr: u64,
    },
}

/// A place in memory, by the way in which it is reached.
pub(crate) enum MemoryPlace<'a> {
    Mapped { mapping: &'a Mapping, at: u64 },
    Own { addr: u64 },
    Copied { memory: &'a Arc<ProcessMemory>, addr: u64 },
}

impl Memory {
    /// A place in it, and how many bytes from there on are reached in the same way; where it ends
    /// is for others to know.
    #[inline]
    fn place(&self, at: u64) -> (MemoryPlace<'_>, usize) {
        match self {
            Memory::Shared(mapping) => (MemoryPlace::Mapped { mapping, at }, usize::MAX),
            &Memory::Own { addr } => (MemoryPlace::Own { addr: addr.wrapping_add(at) }, usize::MAX),
            Memory::Process { memory, addr, .. } => {
                (MemoryPlace::Copied { memory, addr: addr.wrapping_add(at) }, usize::MAX)
            }
            Memory::WholePages { pages, before, memory, addr } => {
                let copied = MemoryPlace::Copied { memory, addr: addr.wrapping_add(at) };
                let Some(at) = at.checked_sub(*before) else {
                    return (copied, usize::try_from(before - at).unwrap_or(usize::MAX));
                };
                match usize::try_from(at).ok().and_then(|at| pages.len().checked_sub(at)) {
                    None | Some(0) => (copied, usize::MAX),
                    Some(left) => (MemoryPlace::Mapped { mapping: pages, at }, left),
                }
            }
        }
    }

    /// Whether some of these bytes are reached by system calls.
    pub(crate) fn is_copied(&self, at: u64, len: usize) -> bool {
        let (place, same) = self.place(at);
        len > 0 && (matches!(place, MemoryPlace::Copied { .. }) || same < len)
    }

    /// Whether it is mapped for its program, or some of it.
    pub fn is_mapped(&self) -> bool {
        matches!(self, Memory::Shared(_) | Memory::WholePages { .. })
    }
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
    /// Whether it is mapped for its program, or some of it.
    pub fn is_mapped(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_mapped)
    }

    /// Why it is reached by system calls, if any of it is.
    pub fn why_copied(&self) -> Option<WhyCopied> {
        match self.memory {
            Some(Memory::Process { why, .. }) => Some(why),
            Some(Memory::WholePages { .. }) => Some(WhyCopied::PartialPages),
            Some(Memory::Shared(_) | Memory::Own { .. }) | None => None,
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

    /// A place in the memory behind an MR, and how many bytes from there on are reached as it is.
    #[inline]
    pub(crate) fn place(&self, region: RegionId, at: u64) -> Option<(MemoryPlace<'_>, usize)> {
        Some(self.memory(region)?.place(at))
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
