//! What client and server of a test tell each other over TCP.

use super::plan::Plan;
use super::report::{Received, Row};
use serde::{Deserialize, Serialize};
use urxe_verbs::{QpEndpoint, RemoteBuf};

/// Changes whenever messages do, so that two versions notice that they do not understand each
/// other before they misunderstand.
pub(super) const VERSION: u32 = 2;

/// One end of a test: its queue pairs, and the memory into which the other end writes or from
/// which it reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) endpoints: Vec<QpEndpoint>,
    pub(super) memory: RemoteBuf,
}

/// Said by either end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Client, first of all: this is to be measured.
    Hello { version: u32, plan: Plan },
    /// Either: these are my queue pairs; the client says it when it is connected to the server's.
    Connect(End),
    /// Client: prepare for messages of this length.
    Begin { size: u32 },
    /// Server: done, go on.
    Ready,
    /// Client: that was this length; so many messages on each queue pair, and this came out.
    Finished { messages: Vec<u64>, row: Row },
    /// Server: has checked what there is to check; this arrived, if messages can be lost.
    Taken(Option<Received>),
    /// Client: that was all.
    Bye,
    /// Either: I cannot go on.
    Failed { reason: String },
    /// Either: wrong data arrived.
    Wrong { reason: String },
}
