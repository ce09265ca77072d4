//! A host without memory: what is read from it is zeros, and of what is written to it, only how
//! much and when is known. What the bytes must be, the simulation of [`crate::simulation`] checks.

use crate::simulation::host::RECV_WR_ID;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use urxe_engine::{
    AsyncEvent, AtomicOp, CqId, CqOverrun, Host, MemoryFault, QueueId, RegionId, Taken,
};
use urxe_types::{Completion, RecvWqe, SendWqe, Sge, WcStatus};

/// Receives that a receive queue always has.
const POSTED_RECEIVES: u32 = 1 << 10;

/// The queues of one machine's programs, and what was written to their memory.
#[derive(Debug)]
pub struct LoadHost {
    /// The time of what the engine does now.
    pub now: Instant,
    sends: Vec<VecDeque<SendWqe>>,
    /// The one receive that each receive queue has any number of; none after a failed one.
    recvs: Vec<Option<Sge>>,
    written: Vec<Progress>,
    completed: Vec<Completion>,
}

/// What was written to a region.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub bytes: u64,
    last: Instant,
    longest_gap: Duration,
}

impl Progress {
    /// Nothing was written yet, and from now on it is awaited.
    fn new(now: Instant) -> Progress {
        Progress { bytes: 0, last: now, longest_gap: Duration::ZERO }
    }

    /// The longest time in which nothing was written, up to `now`.
    pub fn longest_gap(&self, now: Instant) -> Duration {
        self.longest_gap.max(now.saturating_duration_since(self.last))
    }

    fn add(&mut self, now: Instant, bytes: usize) {
        self.longest_gap = self.longest_gap(now);
        self.last = now;
        self.bytes += bytes as u64;
    }
}

impl LoadHost {
    pub fn new(now: Instant) -> LoadHost {
        LoadHost {
            now,
            sends: Vec::new(),
            recvs: Vec::new(),
            written: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// Adds memory.
    pub fn add_region(&mut self) -> RegionId {
        self.written.push(Progress::new(self.now));
        RegionId(self.written.len() as u32 - 1)
    }

    /// From now on something should be written to this region.
    pub fn await_writes(&mut self, region: RegionId) {
        self.written[region.0 as usize].last = self.now;
    }

    /// What was written to a region.
    pub fn written(&self, region: RegionId) -> Progress {
        self.written[region.0 as usize]
    }

    /// Adds a send queue.
    pub fn add_send_queue(&mut self) -> QueueId {
        self.sends.push(VecDeque::new());
        QueueId(self.sends.len() as u32 - 1)
    }

    /// Adds a receive queue of which every receive is put here.
    pub fn add_recv_queue(&mut self, sge: Sge) -> QueueId {
        self.recvs.push(Some(sge));
        QueueId(self.recvs.len() as u32 - 1)
    }

    /// Posts a send.
    pub fn post(&mut self, queue: QueueId, wqe: SendWqe) {
        self.sends[queue.0 as usize].push_back(wqe);
    }

    /// The sends that have completed since the last call.
    pub fn take_completed(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completed)
    }
}

impl Host for LoadHost {
    fn read(&mut self, _: RegionId, _: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        buf.fill(0);
        Ok(())
    }

    fn write(&mut self, region: RegionId, _: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let now = self.now;
        self.written[region.0 as usize].add(now, data.len());
        Ok(())
    }

    fn write_barrier(&mut self) {}

    fn sync(&mut self) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn atomic(&mut self, _: RegionId, _: u64, _: AtomicOp) -> Result<u64, MemoryFault> {
        Ok(0)
    }

    fn write_atomic(&mut self, _: RegionId, _: u64, _: [u8; 8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn next_send(&mut self, queue: QueueId, wqe: &mut SendWqe) -> Taken {
        match self.sends[queue.0 as usize].pop_front() {
            Some(posted) => {
                *wqe = posted;
                Taken::Ready
            }
            None => Taken::Empty,
        }
    }

    fn retire_send(&mut self, _: QueueId) {}

    fn next_recv(&mut self, queue: QueueId, wqe: &mut RecvWqe) -> Taken {
        let Some(sge) = self.recvs[queue.0 as usize] else { return Taken::Empty };
        wqe.wr_id = RECV_WR_ID | u64::from(queue.0);
        wqe.sges.clear();
        wqe.sges.push(sge);
        Taken::Ready
    }

    fn posted_recvs(&mut self, _: QueueId) -> u32 {
        POSTED_RECEIVES
    }

    fn complete(&mut self, _: CqId, completion: &Completion) -> Result<(), CqOverrun> {
        let queue = completion.wr_id & !RECV_WR_ID;
        if queue == completion.wr_id {
            self.completed.push(completion.clone());
        } else if completion.status != WcStatus::Success {
            self.recvs[queue as usize] = None;
        }
        Ok(())
    }

    fn event(&mut self, _: AsyncEvent) {}
}
