//! The host of the simulated programs: plain vectors and queues.
//!
//! It is also the first checker. It holds the engine to the order that [`Host`] promises
//! (completion before retirement, `sync` before completion), and copies the memory of a work
//! request at the instant at which the program could see its completion.

use crate::simulation::memory::Memory;
use crate::simulation::queues::{Completed, CompletionRing, RecvRing, SendRing};
use std::collections::BTreeMap;
use urxe_engine::{
    AsyncEvent, AtomicOp, CqId, CqOverrun, Host, MemoryFault, QueueId, RegionId, Taken,
};
use urxe_types::{Completion, RecvWqe, SendOp, SendWqe, Sge, WcOpcode, WcStatus};
use urxe_wire::mad::{MAD_LEN, MadSource};

/// One machine's memory, queues and events.
#[derive(Debug, Default)]
pub struct SimHost {
    /// The memory of all programs.
    pub memory: Memory,
    /// The send queues, by number.
    pub sends: Vec<SendRing>,
    /// The receive queues, by number.
    pub recvs: Vec<RecvRing>,
    /// The completion queues, by number.
    pub cqs: Vec<CompletionRing>,
    /// Asynchronous events, in order.
    pub events: Vec<AsyncEvent>,
    /// Management datagrams that arrived, with their sources.
    pub mads: Vec<(MadSource, [u8; MAD_LEN])>,
    /// Completions that had no room.
    pub overruns: u64,
    /// Memory by key: its region and the address of its first byte.
    mrs: BTreeMap<u32, (RegionId, u64)>,
    /// Which send queue a QP's completions are of, and where they go.
    sends_of: BTreeMap<u32, (QueueId, CqId)>,
    /// Where posted work requests let the engine write, by `wr_id`.
    sinks: BTreeMap<u64, Vec<Sge>>,
}

impl SimHost {
    /// Adds a send queue.
    pub fn add_send_queue(&mut self, places: usize) -> QueueId {
        self.sends.push(SendRing::new(places));
        QueueId(self.sends.len() as u32 - 1)
    }

    /// Adds a receive queue.
    pub fn add_recv_queue(&mut self, places: usize) -> QueueId {
        self.recvs.push(RecvRing::new(places));
        QueueId(self.recvs.len() as u32 - 1)
    }

    /// Adds a completion queue.
    pub fn add_cq(&mut self, places: usize) -> CqId {
        self.cqs.push(CompletionRing::new(places));
        CqId(self.cqs.len() as u32 - 1)
    }

    /// A send queue.
    pub fn send_queue(&mut self, queue: QueueId) -> &mut SendRing {
        &mut self.sends[queue.0 as usize]
    }

    /// A receive queue.
    pub fn recv_queue(&mut self, queue: QueueId) -> &mut RecvRing {
        &mut self.recvs[queue.0 as usize]
    }

    /// A completion queue.
    pub fn cq(&mut self, cq: CqId) -> &mut CompletionRing {
        &mut self.cqs[cq.0 as usize]
    }

    /// Remembers what a key opens, so that scatter lists can be followed.
    pub fn learn_mr(&mut self, key: u32, region: RegionId, addr: u64) {
        self.mrs.insert(key, (region, addr));
    }

    /// Remembers which send queue a QP has, and where its completions go.
    pub fn learn_qp(&mut self, qpn: urxe_types::Qpn, send_queue: QueueId, send_cq: CqId) {
        self.sends_of.insert(qpn.get(), (send_queue, send_cq));
    }

    /// Remembers where the work request `wr_id` lets the engine write.
    pub fn learn_sink(&mut self, wr_id: u64, sges: &[Sge]) {
        self.sinks.insert(wr_id, sges.to_vec());
    }

    /// Whether a CQ has overrun, which was reported.
    fn has_failed(&self, cq: CqId) -> bool {
        self.events.contains(&AsyncEvent::CqError(cq))
    }

    /// The ranges of memory of a scatter list.
    pub fn ranges(&self, sges: &[Sge]) -> Vec<(RegionId, usize, usize)> {
        let found = sges.iter().filter(|sge| sge.length > 0).map(|sge| {
            let (region, addr) = self.mrs[&sge.lkey.0];
            (region, (sge.addr - addr) as usize, sge.length as usize)
        });
        found.collect()
    }

    /// What the program sees in the memory of a scatter list.
    pub fn program_gather(&self, sges: &[Sge]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (region, at, len) in self.ranges(sges) {
            bytes.extend_from_slice(&self.memory.program(region)[at..at + len]);
        }
        bytes
    }

    /// The program writes to the memory of a scatter list, which `data` fills.
    pub fn program_scatter(&mut self, sges: &[Sge], data: &[u8]) {
        let mut done = 0;
        for (region, at, len) in self.ranges(sges) {
            self.memory.program_write(region, at, &data[done..done + len]);
            done += len;
        }
    }
}

impl Host for SimHost {
    fn read(&mut self, region: RegionId, offset: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        self.memory.read(region, offset, buf)
    }

    fn write(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.memory.write(region, offset, data)
    }

    fn write_barrier(&mut self) {
        self.memory.barrier();
    }

    fn sync(&mut self) -> Result<(), MemoryFault> {
        self.memory.sync()
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.memory.atomic(region, offset, |was| op.apply(was))
    }

    fn write_atomic(
        &mut self,
        region: RegionId,
        offset: u64,
        data: [u8; 8],
    ) -> Result<(), MemoryFault> {
        self.memory.atomic(region, offset, |_| u64::from_ne_bytes(data)).map(|_| ())
    }

    fn posted_recvs(&mut self, queue: QueueId) -> u32 {
        self.recv_queue(queue).posted() as u32
    }

    fn next_send(&mut self, queue: QueueId, wqe: &mut SendWqe) -> Taken {
        self.send_queue(queue).take(wqe)
    }

    fn retire_send(&mut self, queue: QueueId) {
        self.send_queue(queue).retire();
    }

    fn next_recv(&mut self, queue: QueueId, wqe: &mut RecvWqe) -> Taken {
        self.recv_queue(queue).take(wqe)
    }

    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqOverrun> {
        let data = match (completion.status, self.sinks.remove(&completion.wr_id)) {
            (WcStatus::Success, Some(sges)) => self.program_gather(&sges),
            _ => Vec::new(),
        };
        if is_of_send_queue(completion.wr_id) {
            let (queue, _) = self.sends_of[&completion.qpn.get()];
            self.send_queue(queue).completed(completion.wr_id);
        }
        assert!(!self.has_failed(cq), "no completion is pushed to a CQ that has overrun");
        let completed = Completed { completion: completion.clone(), data };
        match self.cq(cq).push(completed) {
            true => Ok(()),
            false => {
                self.overruns += 1;
                Err(CqOverrun)
            }
        }
    }

    fn mad(&mut self, from: &MadSource, mad: &[u8; MAD_LEN]) {
        self.mads.push((*from, *mad));
    }

    fn event(&mut self, event: AsyncEvent) {
        assert!(!self.events.contains(&event) || may_recur(event), "{event:?} comes once");
        self.events.push(event);
        if let AsyncEvent::CqError(failed) = event {
            let queues = self.sends_of.values().filter(|(_, cq)| *cq == failed);
            for (queue, _) in queues.copied().collect::<Vec<_>>() {
                self.send_queue(queue).lose_completions();
            }
        }
    }
}

/// Whether an event may come several times. QPs keep their events when they are reset, so an event
/// that ends a QP comes once.
fn may_recur(event: AsyncEvent) -> bool {
    use AsyncEvent::{CommunicationEstablished, SqDrained, SrqLimit};
    matches!(event, SqDrained(_) | CommunicationEstablished(_) | SrqLimit(_))
}

/// Set in the `wr_id` of every receive: the opcode of a completion only says so on success.
pub const RECV_WR_ID: u64 = 1 << 63;

fn is_of_send_queue(wr_id: u64) -> bool {
    wr_id & RECV_WR_ID == 0
}

/// Whether a send work request lets the engine write to its scatter list.
pub fn has_sink(op: &SendOp) -> bool {
    matches!(op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
}

/// The opcode that the completion of a send work request has.
pub fn completion_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send(_) => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
        SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
    }
}
