//! The program of our responder: the memory and the receives that the engine uses.

use crate::memory::{Bytes, Key};
use crate::survey::Outcome;
use std::collections::{HashMap, VecDeque};
use urxe_engine::{
    AsyncEvent, AtomicOp, CqId, CqOverrun, Host, MemoryFault, QueueId, RegionId, Taken,
};
use urxe_types::{Completion, Lkey, RecvWqe, Rkey, SendWqe, Sge, WcStatus};

/// Memory for received messages, whose content is not compared.
pub(crate) const SINK: RegionId = RegionId(0);
/// Memory of which every access fails.
pub(crate) const GONE: RegionId = RegionId(1);
/// The first of the regions of keys.
const FIRST_KEYED: u32 = 2;

/// Bytes of the sink: no message is longer.
pub(crate) const SINK_LEN: u32 = 1 << 31;

/// A program that behaves as the survey of the capture says.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// By region, from [`FIRST_KEYED`] on.
    regions: Vec<Region>,
    region_of: HashMap<Rkey, RegionId>,
    /// The keys of [`SINK`] and [`GONE`].
    pub(crate) sink: Lkey,
    pub(crate) gone: Lkey,
    /// What happened to the packet that is being handled.
    pub(crate) outcome: Option<Outcome>,
    /// Its number, the first packet's being 1.
    pub(crate) now: usize,
    /// Work requests for the send queue that is read next: binds of windows.
    pub(crate) sends: VecDeque<SendWqe>,
    /// Whether a receive is posted. Each packet has one: a QP in ERR flushes all that there are.
    pub(crate) receive_posted: bool,
    /// Receives that completed successfully.
    pub(crate) received: u64,
}

#[derive(Debug)]
struct Region {
    /// The address of its first byte.
    first: u64,
    bytes: Bytes,
}

impl Program {
    /// Adds the memory of a key.
    pub(crate) fn add(&mut self, rkey: Rkey, key: &Key) -> RegionId {
        let region = RegionId(FIRST_KEYED + self.regions.len() as u32);
        self.regions.push(Region { first: key.first, bytes: key.bytes.clone() });
        self.region_of.insert(rkey, region);
        region
    }

    /// The memory of a key of the capture.
    pub(crate) fn bytes(&mut self, rkey: Rkey) -> Option<&mut Bytes> {
        let region = *self.region_of.get(&rkey)?;
        Some(&mut self.region(region).ok()?.bytes)
    }

    fn region(&mut self, region: RegionId) -> Result<&mut Region, MemoryFault> {
        if self.outcome == Some(Outcome::Failed) {
            return Err(MemoryFault);
        }
        let number = region.0.checked_sub(FIRST_KEYED).ok_or(MemoryFault)?;
        self.regions.get_mut(number as usize).ok_or(MemoryFault)
    }
}

impl Host for Program {
    fn read(&mut self, region: RegionId, offset: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        let Region { first, bytes } = self.region(region)?;
        bytes.read(first.wrapping_add(offset), buf);
        Ok(())
    }

    fn write(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        if region == SINK {
            return Ok(());
        }
        let now = self.now;
        let Region { first, bytes } = self.region(region)?;
        bytes.write(first.wrapping_add(offset), data, now);
        Ok(())
    }

    // No program polls this memory.
    fn write_barrier(&mut self) {}

    fn sync(&mut self) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.read(region, offset, &mut word)?;
        let was = u64::from_ne_bytes(word);
        self.write(region, offset, &op.apply(was).to_ne_bytes())?;
        Ok(was)
    }

    fn write_atomic(
        &mut self,
        region: RegionId,
        offset: u64,
        data: [u8; 8],
    ) -> Result<(), MemoryFault> {
        self.write(region, offset, &data)
    }

    fn next_send(&mut self, _: QueueId, wqe: &mut SendWqe) -> Taken {
        match self.sends.pop_front() {
            Some(next) => {
                *wqe = next;
                Taken::Ready
            }
            None => Taken::Empty,
        }
    }

    fn retire_send(&mut self, _: QueueId) {}

    fn next_recv(&mut self, _: QueueId, wqe: &mut RecvWqe) -> Taken {
        if !std::mem::take(&mut self.receive_posted) {
            return Taken::Empty;
        }
        let enough = Sge { addr: 0, length: SINK_LEN, lkey: self.sink };
        wqe.sges.clear();
        match self.outcome {
            Some(Outcome::NoReceive) => return Taken::Empty,
            Some(Outcome::ReceiveTooShort(bytes)) => wqe.sges.push(Sge { length: bytes, ..enough }),
            Some(Outcome::ReceiveFailed(bytes)) => {
                wqe.sges.push(Sge { length: bytes, ..enough });
                wqe.sges.push(Sge { lkey: self.gone, ..enough });
            }
            _ => wqe.sges.push(enough),
        }
        Taken::Ready
    }

    fn posted_recvs(&mut self, _: QueueId) -> u32 {
        self.receive_posted.into()
    }

    fn complete(&mut self, _: CqId, completion: &Completion) -> Result<(), CqOverrun> {
        self.received += u64::from(completion.status == WcStatus::Success);
        Ok(())
    }

    fn event(&mut self, _: AsyncEvent) {}
}
