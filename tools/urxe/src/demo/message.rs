//! What the two programs of the demo tell each other over their pipes.

use serde::{Deserialize, Serialize};
use urxe_verbs::{QpEndpoint, RemoteBuf};

/// The operations that the demo shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
    CompareAndSwap,
    FetchAndAdd,
}

impl Operation {
    /// All of them, in the order in which they are shown.
    pub(super) const ALL: [Operation; 7] = [
        Operation::Send,
        Operation::SendWithImm,
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAndAdd,
    ];

    /// Its name for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::SendWithImm => "SEND with immediate",
            Operation::Write => "WRITE",
            Operation::WriteWithImm => "WRITE with immediate",
            Operation::Read => "READ",
            Operation::CompareAndSwap => "COMPARE-AND-SWAP",
            Operation::FetchAndAdd => "FETCH-AND-ADD",
        }
    }

    /// Whether it is an atomic.
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// Whether the partner gets a completion for it, and must post a receive.
    pub(super) const fn is_received(self) -> bool {
        matches!(self, Operation::Send | Operation::SendWithImm | Operation::WriteWithImm)
    }
}

/// Some messages of one kind and size, checked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) operation: Operation,
    /// Length of a message in bytes.
    pub(super) size: u32,
    /// How many messages.
    pub(super) count: u32,
    /// Number of the first one, among all of the demo. It decides what the messages contain.
    pub(super) first: u64,
}

/// Said by either side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Partner: this is my queue pair and my memory.
    Hello {
        endpoint: QpEndpoint,
        /// Where messages come in.
        incoming: RemoteBuf,
        /// Where messages can be read.
        outgoing: RemoteBuf,
    },
    /// Requester: this is my queue pair; connect to it.
    Connect { endpoint: QpEndpoint },
    /// Requester: prepare memory, and receives if need be, for a round.
    Prepare(Round),
    /// Requester: the round is over; check what you got.
    Check,
    /// Partner: done as asked, and all is well.
    Done,
    /// Partner: the check failed.
    Wrong { reason: String },
    /// Partner: I cannot go on.
    Failed { reason: String },
    /// Requester: that was all.
    Finish,
}
