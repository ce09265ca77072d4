//! What either end of a test has: queue pairs, completion queues, and memory with places for
//! messages that go out and for those that come in.

use super::args::{Local, Memory};
use super::message::End;
use super::plan::{Plan, Verb};
use super::verify::Verifier;
use crate::completions::{Completions, PollMode};
use crate::error::Error;
use urxe_verbs::{Access, Context, Mr, Pd, Qp, QpCaps, QpEndpoint, QpInit, RecvWr, RemoteBuf, Sge};

const ACCESS: Access = Access(
    Access::LOCAL_WRITE.0
        | Access::REMOTE_WRITE.0
        | Access::REMOTE_READ.0
        | Access::REMOTE_ATOMIC.0,
);

/// One end of a test.
pub(super) struct Bench {
    pub(super) plan: Plan,
    pub(super) poll: PollMode,
    pub(super) memory_kind: Memory,
    pub(super) context: Context,
    pub(super) sends: Completions,
    pub(super) recvs: Completions,
    pub(super) lanes: Vec<Lane>,
    pub(super) memory: Areas,
    /// The other end's memory.
    pub(super) remote: RemoteBuf,
    /// Checks contents, if that is wanted.
    pub(super) verifier: Option<Verifier>,
}

/// A queue pair, and how far it has come.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) qp: Qp,
    /// Number of the next message to send: how many were sent so far, of all lengths. It decides
    /// about place and contents.
    pub(super) posted: u64,
    /// Number of the first one that is not known to have ended.
    pub(super) completed: u64,
    /// Number of the next message to receive.
    pub(super) received: u64,
    /// Number of the next receive to post.
    receives: u64,
}

/// Memory of one end: an area for messages that go out (and for what READs and atomics bring
/// back), and one for those that come in. Each has as many places for each queue pair.
#[derive(Clone, Debug)]
pub(super) struct Areas {
    pub(super) mr: Mr,
    stride: u64,
    slots: u64,
    area_len: u64,
}

impl Areas {
    /// Where message number `number` of a queue pair goes out, or comes back.
    pub(super) fn outgoing(&self, lane: usize, number: u64) -> usize {
        (self.place(lane, number)) as usize
    }

    /// Where message number `number` of a queue pair comes in. It is the same offset at both
    /// ends.
    pub(super) fn incoming(&self, lane: usize, number: u64) -> usize {
        (self.area_len + self.place(lane, number)) as usize
    }

    /// How many places a queue pair has.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    fn place(&self, lane: usize, number: u64) -> u64 {
        (lane as u64 * self.slots + number % self.slots) * self.stride
    }

    /// `size` bytes at an offset.
    pub(super) fn sge(&self, offset: usize, size: u32) -> Result<Sge, Error> {
        Ok(self.mr.sge(offset..offset + size as usize)?)
    }
}

impl Bench {
    /// Opens the device and makes everything in it.
    pub(super) fn new(plan: Plan, local: &Local) -> Result<Self, Error> {
        let context = Context::open(&local.device)?;
        let pd = context.alloc_pd()?;
        let (window, receives) = (plan.window(), receives(&plan));
        let sends = Completions::new(&context, window * plan.qps, local.poll)?;
        let recvs = Completions::new(&context, (receives * plan.qps).max(1), local.poll)?;
        let caps = QpCaps {
            max_send_wr: window,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline,
        };
        let (send_cq, recv_cq) = (sends.cq(), recvs.cq());
        let init = QpInit { send_cq, recv_cq, caps, ..QpInit::new(send_cq) };
        let lanes = (0..plan.qps).map(|_| {
            let qp = pd.create_qp(&init)?;
            Ok(Lane { qp, posted: 0, completed: 0, received: 0, receives: 0 })
        });
        let lanes = lanes.collect::<Result<Vec<_>, Error>>()?;
        let area_len = plan.area_len();
        let mr = memory(&pd, 2 * area_len as usize, local.memory)?;
        let (stride, slots) = (plan.stride(), plan.slots().into());
        let memory = Areas { mr, stride, slots, area_len };
        let remote = RemoteBuf { addr: 0, rkey: 0, len: 0 };
        let verifier = Verifier::wanted(&plan, &memory);
        let (poll, memory_kind) = (local.poll, local.memory);
        Ok(Bench {
            plan,
            poll,
            memory_kind,
            context,
            sends,
            recvs,
            lanes,
            memory,
            remote,
            verifier,
        })
    }

    /// What the other end must know.
    pub(super) fn end(&self) -> Result<End, Error> {
        let active_mtu = self.context.query_port(1)?.active_mtu;
        let wanted = self.plan.mtu.unwrap_or(active_mtu);
        if wanted > active_mtu {
            let device = &self.context.device().name;
            return Err(Error::Usage(format!(
                "--mtu is {wanted}, expected at most {active_mtu}, which is what the link of \
                 {device} carries"
            )));
        }
        let endpoints =
            self.lanes.iter().map(|lane| Ok(QpEndpoint { mtu: wanted, ..lane.qp.endpoint()? }));
        let endpoints = endpoints.collect::<Result<_, Error>>()?;
        Ok(End { endpoints, memory: self.memory.mr.remote_buf(..)? })
    }

    /// Connects all queue pairs, and posts the first receives.
    pub(super) fn connect(&mut self, remote: &End) -> Result<(), Error> {
        if remote.endpoints.len() != self.lanes.len() {
            return Err(Error::Failed(format!(
                "the other end has {} QPs, expected {}",
                remote.endpoints.len(),
                self.lanes.len()
            )));
        }
        for (lane, endpoint) in self.lanes.iter().zip(&remote.endpoints) {
            lane.qp.connect(endpoint, ACCESS)?;
        }
        self.remote = remote.memory;
        let receives = receives(&self.plan);
        (0..self.lanes.len()).try_for_each(|lane| self.post_receives(lane, receives))
    }

    /// Posts receives for the next `count` messages of a queue pair, of any length.
    pub(super) fn post_receives(&mut self, lane: usize, count: u32) -> Result<(), Error> {
        /// Receives posted as one list.
        const LIST: usize = 32;
        let size = self.plan.max_size();
        let mut left = count as usize;
        while left > 0 {
            let len = left.min(LIST);
            let first = self.lanes[lane].receives;
            let mut sges = [[Sge::default()]; LIST];
            for (number, sge) in (first..).zip(&mut sges[..len]) {
                *sge = [self.memory.sge(self.memory.incoming(lane, number), size)?];
            }
            let wrs: [RecvWr<'_>; LIST] =
                std::array::from_fn(|i| RecvWr::new(wr_id(lane, first + i as u64), &sges[i]));
            self.lanes[lane].qp.post_recv(&wrs[..len])?;
            self.lanes[lane].receives += len as u64;
            left -= len;
        }
        Ok(())
    }

    /// How many receives fewer than wanted are posted on a queue pair.
    pub(super) fn receives_missing(&self, lane: usize) -> u32 {
        let Lane { received, receives: posted, .. } = self.lanes[lane];
        let under_way = posted.saturating_sub(received);
        u64::from(receives(&self.plan)).saturating_sub(under_way) as u32
    }

    /// Wipes the place where a ping-pong of WRITEs looks for its messages.
    pub(super) fn forget_last_message(&self) -> Result<(), Error> {
        let (place, len) = (self.memory.incoming(0, 0), self.memory.stride as usize);
        match (self.plan.test.verb(), self.plan.test.is_latency()) {
            (Verb::Write, true) => Ok(self.memory.mr.fill(place..place + len, 0)?),
            _ => Ok(()),
        }
    }
}

/// Receives that a queue pair needs posted.
fn receives(plan: &Plan) -> u32 {
    if plan.test.verb() == Verb::Send { plan.receives() } else { 0 }
}

/// Bits of a work request's number that count messages; those above are the queue pair's.
const NUMBER_BITS: u32 = 48;

/// The number of a work request: which queue pair, which message.
pub(super) fn wr_id(lane: usize, number: u64) -> u64 {
    (lane as u64) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

/// The queue pair and the message that a work request is of.
pub(super) fn of_wr_id(wr_id: u64) -> (usize, u64) {
    ((wr_id >> NUMBER_BITS) as usize, wr_id & ((1 << NUMBER_BITS) - 1))
}

/// Registers memory of the kind that is wanted.
fn memory(pd: &Pd, len: usize, kind: Memory) -> Result<Mr, Error> {
    match kind {
        Memory::Shared => Ok(pd.alloc_mr(len, ACCESS)?),
        Memory::Process => {
            // Given up for good: a test lives as long as its process.
            let memory = Vec::leak(vec![0u64; len.div_ceil(size_of::<u64>())]);
            // SAFETY: the memory is never freed, and writable. The only reference to it ends with
            // this call, for it is turned into a pointer here; from then on nobody uses it but
            // through the `Mr`.
            Ok(unsafe { pd.reg_mr(memory.as_mut_ptr().cast(), len, ACCESS)? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_work_request_tells_queue_pair_and_message() {
        for (lane, number) in [(0, 0), (1, 2), (1023, (1 << NUMBER_BITS) - 1)] {
            assert_eq!(of_wr_id(wr_id(lane, number)), (lane, number));
        }
    }
}
