//! Programs that keep one QP busy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use urxe_engine::{QueueId, RegionId};
use urxe_types::{Extra, Qpn, Rkey, SendOp, SendWqe, SendWr, Sge};

/// What a program does, all day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Write,
    Send,
    Read,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 3] = [Operation::Write, Operation::Send, Operation::Read];

    /// As engineers write it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Write => "WRITE",
            Operation::Send => "SEND",
            Operation::Read => "READ",
        }
    }
}

/// A connection and what its program does with it.
#[derive(Clone, Copy, Debug)]
pub struct FlowSpec {
    /// The node that posts.
    pub from: usize,
    pub to: usize,
    pub operation: Operation,
    /// Bytes of a message.
    pub len: usize,
    /// Messages under way at once.
    pub depth: u64,
    /// Messages in all; `None`: without end.
    pub count: Option<u64>,
    /// When it begins.
    pub start: Duration,
    /// Whose it is: a number of the program.
    pub program: u64,
}

/// A flow of messages on a QP.
#[derive(Debug)]
pub struct Flow {
    pub spec: FlowSpec,
    /// At the node that posts.
    pub qpn: Qpn,
    pub(super) queue: QueueId,
    pub(super) op: SendOp,
    pub(super) sge: Sge,
    /// Where the bytes arrive: the node and its memory.
    pub(super) sink: (usize, RegionId),
    posted: u64,
    /// Messages that have completed.
    pub completed: u64,
    /// A message has failed.
    pub failed: bool,
    /// When its last message completed.
    pub ended: Option<Instant>,
    /// When those under way were posted, oldest first.
    under_way: VecDeque<Instant>,
    /// How long each took.
    pub latencies: Vec<Duration>,
}

impl Flow {
    pub(super) fn new(
        spec: FlowSpec,
        (qpn, queue): (Qpn, QueueId),
        (remote_addr, rkey): (u64, Rkey),
        sge: Sge,
        sink: (usize, RegionId),
    ) -> Flow {
        let op = match spec.operation {
            Operation::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Operation::Send => SendOp::Send(Extra::None),
            Operation::Read => SendOp::Read { remote_addr, rkey },
        };
        Flow {
            spec,
            qpn,
            queue,
            op,
            sge,
            sink,
            posted: 0,
            completed: 0,
            failed: false,
            ended: None,
            under_way: VecDeque::new(),
            latencies: Vec::new(),
        }
    }

    /// All messages have completed.
    pub fn is_done(&self) -> bool {
        self.spec.count == Some(self.completed)
    }

    /// The next message, if it is to be posted now.
    pub(super) fn next(&mut self, now: Instant, wr_id: u64) -> Option<SendWqe> {
        let all_posted = self.spec.count == Some(self.posted);
        if self.failed || all_posted || self.under_way.len() as u64 == self.spec.depth {
            return None;
        }
        self.posted += 1;
        self.under_way.push_back(now);
        let wr = SendWr { wr_id, op: self.op, signaled: true, ..SendWr::default() };
        Some(SendWqe { wr, sges: vec![self.sge], inline: None })
    }

    /// The oldest message under way has completed.
    pub(super) fn on_completion(&mut self, now: Instant, success: bool) {
        let posted = self.under_way.pop_front().expect("what completes was posted");
        if !success {
            self.failed = true;
            return;
        }
        self.completed += 1;
        self.latencies.push(now.saturating_duration_since(posted));
        if self.is_done() {
            self.ended = Some(now);
        }
    }
}
