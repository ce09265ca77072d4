//! Receive queues, and the places of their messages.

use super::bench::{Areas, wr_id};
use crate::error::Error;
use urxe_verbs::{Qp, RecvWr, Sge, Srq};

/// Receives posted as one list.
const LIST: usize = 32;

/// Receives of one queue pair, or those that all of them share.
#[derive(Debug)]
pub(super) struct Receives {
    queue: Queue,
    /// Its index, which is in the `wr_id`s.
    index: usize,
    /// How many should be posted at a time.
    wanted: u32,
    /// How many were posted so far, and how many of them were consumed.
    posted: u64,
    taken: u64,
}

#[derive(Debug)]
enum Queue {
    Own(Qp),
    Shared(Srq),
}

impl Receives {
    pub(super) fn of_qp(index: usize, qp: &Qp, wanted: u32) -> Self {
        Receives { queue: Queue::Own(qp.clone()), index, wanted, posted: 0, taken: 0 }
    }

    pub(super) fn shared(srq: Srq, wanted: u32) -> Self {
        Receives { queue: Queue::Shared(srq), index: 0, wanted, posted: 0, taken: 0 }
    }

    /// Offset of the message that consumed receive `number`.
    pub(super) fn place(&self, memory: &Areas, number: u64) -> usize {
        match self.queue {
            Queue::Own(_) => memory.incoming(self.index, number),
            Queue::Shared(_) => memory.incoming_shared(number),
        }
    }

    /// A receive was consumed.
    pub(super) fn take(&mut self) {
        self.taken += 1;
    }

    /// Posts as many as are missing, if that is `least` or more. Each has room for `len` bytes.
    pub(super) fn refill(&mut self, memory: &Areas, len: u32, least: u32) -> Result<(), Error> {
        let missing = u64::from(self.wanted).saturating_sub(self.posted - self.taken);
        if missing < u64::from(least.min(self.wanted)) {
            return Ok(());
        }
        let mut left = missing as usize;
        while left > 0 {
            let count = left.min(LIST);
            let mut sges = [[Sge::default()]; LIST];
            for (number, sge) in (self.posted..).zip(&mut sges[..count]) {
                *sge = [memory.sge(self.place(memory, number), len)?];
            }
            let wrs: [RecvWr<'_>; LIST] = std::array::from_fn(|i| {
                RecvWr::new(wr_id(self.index, self.posted + i as u64), &sges[i])
            });
            match &self.queue {
                Queue::Own(qp) => qp.post_recv(&wrs[..count])?,
                Queue::Shared(srq) => srq.post_recv(&wrs[..count])?,
            }
            self.posted += count as u64;
            left -= count;
        }
        Ok(())
    }
}
