//! The messages between client and server of a test, over TCP.

use super::plan::Plan;
use super::report::{Received, Row};
use serde::{Deserialize, Serialize};
use urxe_verbs::{QpEndpoint, RemoteBuf};

/// Changes whenever messages do, so that two versions detect that they differ.
pub(super) const VERSION: u32 = 2;

/// One end of a test: its queue pairs, and the memory into which the other end writes or from
/// which it reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) endpoints: Vec<QpEndpoint>,
    pub(super) memory: RemoteBuf,
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Client, first: the plan.
    Hello { version: u32, plan: Plan },
    /// Either: its queue pairs; the client sends them when it has connected to the server's.
    Connect(End),
    /// Client: prepare for messages of this length.
    Begin { size: u32 },
    /// Server: prepared.
    Ready,
    /// Client: this length is finished, with so many messages on each queue pair.
    Finished { messages: Vec<u64>, row: Row },
    /// Server: has received and checked everything; what arrived, on unreliable transports.
    Taken(Option<Received>),
    /// Client: the end.
    Bye,
    /// Either: an error.
    Failed { reason: String },
    /// Either: wrong data arrived.
    Wrong { reason: String },
}
