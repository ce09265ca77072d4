//! The messages between the two programs of the demo, over pipes.

use serde::{Deserialize, Serialize};
use urxe_verbs::{QpEndpoint, QpType, RemoteBuf};

/// The operations of the demo, on a reliable connection unless their names say otherwise.
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
    AtomicWrite,
    WriteAndFlush,
    #[serde(rename = "write_through_window_1")]
    WriteThroughWindow1,
    #[serde(rename = "write_through_window_2b")]
    WriteThroughWindow2,
    SendWithInvalidate,
    SendToSrq,
    UcSend,
    UcWriteWithImm,
    UdSend,
    UdSendWithImm,
    UdMulticast,
}

impl Operation {
    /// All of them, in the order in which they are shown.
    pub(super) const ALL: [Operation; 18] = [
        Operation::Send,
        Operation::SendWithImm,
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAndAdd,
        Operation::AtomicWrite,
        Operation::WriteAndFlush,
        Operation::WriteThroughWindow1,
        Operation::WriteThroughWindow2,
        Operation::SendWithInvalidate,
        Operation::SendToSrq,
        Operation::UcSend,
        Operation::UcWriteWithImm,
        Operation::UdSend,
        Operation::UdSendWithImm,
        Operation::UdMulticast,
    ];

    /// Its name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::SendWithImm => "SEND with immediate",
            Operation::Write => "WRITE",
            Operation::WriteWithImm => "WRITE with immediate",
            Operation::Read => "READ",
            Operation::CompareAndSwap => "COMPARE-AND-SWAP",
            Operation::FetchAndAdd => "FETCH-AND-ADD",
            Operation::AtomicWrite => "ATOMIC WRITE",
            Operation::WriteAndFlush => "WRITE and FLUSH",
            Operation::WriteThroughWindow1 => "WRITE through a window of type 1",
            Operation::WriteThroughWindow2 => "WRITE through a window of type 2B",
            Operation::SendWithInvalidate => "SEND with invalidate",
            Operation::SendToSrq => "SEND to an SRQ of two QPs",
            Operation::UcSend => "UC SEND",
            Operation::UcWriteWithImm => "UC WRITE with immediate",
            Operation::UdSend => "UD SEND",
            Operation::UdSendWithImm => "UD SEND with immediate",
            Operation::UdMulticast => "UD SEND to a multicast group",
        }
    }

    /// The transport that it is shown on.
    pub(super) const fn transport(self) -> QpType {
        match self {
            Operation::UcSend | Operation::UcWriteWithImm => QpType::Uc,
            Operation::UdSend | Operation::UdSendWithImm | Operation::UdMulticast => QpType::Ud,
            _ => QpType::Rc,
        }
    }

    /// Whether its messages can be lost.
    pub(super) fn is_lossy(self) -> bool {
        self.transport() != QpType::Rc
    }

    /// Whether it returns the number that was there before.
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// Whether the partner gets a completion for each message, in their order.
    pub(super) const fn is_received(self) -> bool {
        matches!(
            self,
            Operation::Send
                | Operation::SendWithImm
                | Operation::WriteWithImm
                | Operation::SendWithInvalidate
        )
    }

    /// Whether messages carry immediate data.
    pub(super) const fn has_immediate(self) -> bool {
        matches!(
            self,
            Operation::SendWithImm
                | Operation::WriteWithImm
                | Operation::UcWriteWithImm
                | Operation::UdSendWithImm
        )
    }

    /// Sizes of its messages in bytes, on a path with this MTU.
    pub(super) fn sizes(self, mtu: u16) -> Vec<u32> {
        match self {
            Operation::Send
            | Operation::SendWithImm
            | Operation::Write
            | Operation::WriteWithImm
            | Operation::Read => vec![0, 1, 64, 4 << 10, 64 << 10, 1 << 20],
            Operation::CompareAndSwap | Operation::FetchAndAdd | Operation::AtomicWrite => vec![8],
            operation if operation.transport() == QpType::Ud => vec![64, mtu.into()],
            _ => vec![64, 64 << 10],
        }
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
    /// Number of the first one, among all of the demo. The contents of messages depend on it.
    pub(super) first: u64,
}

/// The queue pairs of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Endpoints {
    pub(super) rc: QpEndpoint,
    pub(super) uc: QpEndpoint,
    pub(super) ud: QpEndpoint,
    /// Those that share their receives.
    pub(super) shared: [QpEndpoint; 2],
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Partner: its queue pairs and its memory.
    Hello {
        endpoints: Endpoints,
        /// For incoming messages.
        incoming: RemoteBuf,
        /// For messages that are read.
        outgoing: RemoteBuf,
    },
    /// Requester: its queue pairs, to connect to.
    Connect { endpoints: Endpoints },
    /// Requester: prepare memory, and receives if need be, for a round.
    Prepare(Round),
    /// Requester: the round is over; check it.
    Check,
    /// Partner: done.
    Done,
    /// Partner: prepared, and these are the keys of windows on the memory for incoming messages.
    Bound { rkeys: Vec<u32> },
    /// Partner: what arrived is right; `lost` messages did not arrive.
    Checked { lost: u32 },
    /// Partner: the check failed.
    Wrong { reason: String },
    /// Partner: an error.
    Failed { reason: String },
    /// Requester: the end.
    Finish,
}
