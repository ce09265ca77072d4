//! The engine's view of the programs: their memory, their queues, their completions.
//!
//! The engine does no I/O; whatever lies outside of it is an argument, and this trait is the
//! largest one. In the daemon it stands for shared-memory rings and mapped regions, in the
//! simulation for plain vectors.

use crate::ids::{CqId, QueueId, RegionId, SrqId};
use urxe_types::{Completion, Qpn, RecvWqe, SendWqe};
use urxe_wire::mad::{MAD_LEN, MadSource};

/// Registered memory could not be reached: the program unmapped it, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault;

/// The CQ had no room for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqOverrun;

/// What [`Host::next_send`] and [`Host::next_recv`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The queue is empty.
    Empty,
    /// The work request was filled in and taken off the queue.
    Ready,
    /// An entry was taken, but what stands in it is no work request. `wr_id` was filled in; the
    /// QP fails with a local QP operation error.
    Malformed,
    /// The queue itself cannot be read any more (its cursors are nonsense); nothing was taken.
    Broken,
}

/// What an atomic does to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// If it equals `compare`, it becomes `swap`.
    CompareSwap {
        /// What it is compared with.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// This is added, wrapping.
    FetchAdd(u64),
}

impl AtomicOp {
    /// What a number becomes.
    pub fn apply(self, was: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } if was == compare => swap,
            AtomicOp::CompareSwap { .. } => was,
            AtomicOp::FetchAdd(add) => was.wrapping_add(add),
        }
    }
}

/// Something happened to an object that no completion can tell: `ibv_async_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// `IBV_EVENT_QP_FATAL`: the QP failed and may not have been able to say so in a CQE.
    QpFatal(Qpn),
    /// `IBV_EVENT_QP_REQ_ERR`: an invalid request arrived, the QP is in ERR.
    QpRequestError(Qpn),
    /// `IBV_EVENT_QP_ACCESS_ERR`: a request violated access rights, the QP is in ERR.
    QpAccessError(Qpn),
    /// `IBV_EVENT_COMM_EST`: a packet arrived on a QP still in RTR.
    CommunicationEstablished(Qpn),
    /// `IBV_EVENT_SQ_DRAINED`: a QP in SQD has nothing outstanding any more.
    SqDrained(Qpn),
    /// `IBV_EVENT_CQ_ERR`: the CQ was full, and takes no more; its QPs are in ERR.
    CqError(CqId),
    /// `IBV_EVENT_SRQ_ERR`: the SRQ cannot be read any more.
    SrqError(SrqId),
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: fewer receives are posted than its limit, which is disarmed
    /// by this.
    SrqLimit(SrqId),
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`: the QP is in ERR and takes no more from its SRQ.
    LastWqeReached(Qpn),
}

/// What the engine needs of the world in which its QPs' programs live.
///
/// All offsets are into the region, 0 being the MR's first byte; the engine has checked them
/// against the MR before it asks.
pub trait Host {
    /// Copies from a region.
    fn read(&mut self, region: RegionId, offset: u64, buf: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies into a region. The host may hold the bytes back until [`sync`](Self::sync), as long
    /// as its own reads see them, and may join them with others, but it shows them in the order
    /// of these calls as far as [`write_barrier`](Self::write_barrier) says.
    fn write(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Orders what programs that poll their memory see of it: everything written so far, atomics
    /// included, becomes visible before anything that is written after this call; and of the last
    /// [`write`](Self::write), the last bytes (those in its last aligned 8-byte word) become
    /// visible last. The engine calls it at the end of every RDMA WRITE. An atomic needs none: it
    /// becomes visible after all that was written before it, and before all that comes after.
    fn write_barrier(&mut self);

    /// Makes every write so far visible to the program. The engine calls it before anything
    /// acknowledges or completes these writes.
    fn sync(&mut self) -> Result<(), MemoryFault>;

    /// Says that the next reads will walk through these bytes, so that a host which pays per
    /// access can fetch them at once. Purely a hint.
    fn read_ahead(&mut self, _region: RegionId, _offset: u64, _len: u64) {}

    /// Atomically, towards all other atomics of this device: changes the 8 bytes at `offset` (a
    /// number in the program's byte order). Returns what was there. As what is
    /// [written](Self::write), it may be held back until [`sync`](Self::sync), but keeps its place
    /// among the other writes ([`write_barrier`](Self::write_barrier)).
    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault>;

    /// Atomically, as [`atomic`](Self::atomic): puts 8 bytes at `offset`. The address that the
    /// peer named is a multiple of 8.
    fn write_atomic(
        &mut self,
        region: RegionId,
        offset: u64,
        data: [u8; 8],
    ) -> Result<(), MemoryFault>;

    /// Whether packets that come for a QP are taken. They are dropped where its program may not
    /// have the data path for a while, and an RC peer repeats them.
    fn takes_packets(&self, _qpn: Qpn) -> bool {
        true
    }

    /// Takes the next work request off a send queue.
    fn next_send(&mut self, queue: QueueId, wqe: &mut SendWqe) -> Taken;

    /// Says that the oldest work request taken from a send queue has ended, so that the program
    /// may use its place again. Comes before its completion: a program that has seen that can post
    /// another, however short its queue is.
    fn retire_send(&mut self, queue: QueueId);

    /// Takes the next work request off a receive queue; its place is free at once.
    fn next_recv(&mut self, queue: QueueId, wqe: &mut RecvWqe) -> Taken;

    /// How many receives are posted on a queue and not taken.
    fn posted_recvs(&mut self, queue: QueueId) -> u32;

    /// Puts a completion on a CQ, if there is room.
    ///
    /// Where there is none, the host only says so; the engine does the rest. It tells the program
    /// [`AsyncEvent::CqError`], once, and takes every QP that uses the CQ (but those in RESET) to
    /// ERR, each with [`AsyncEvent::QpFatal`]. It puts nothing on that CQ any more, whatever room
    /// there may be later, until the host has destroyed it and said so
    /// ([`Device::release_cq`](crate::Device::release_cq)). What was completed before stays there
    /// to be polled; what is lost is counted under
    /// [`CqOverruns`](crate::Counter::CqOverruns).
    ///
    /// # Errors
    /// If there is no room, or the CQ's ring cannot be written any more.
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqOverrun>;

    /// Tells the program of something that no completion can tell.
    fn event(&mut self, event: AsyncEvent);

    /// Takes a management datagram that came to QP1. A host without a connection manager ignores
    /// them.
    fn mad(&mut self, _from: &MadSource, _mad: &[u8; MAD_LEN]) {}
}
