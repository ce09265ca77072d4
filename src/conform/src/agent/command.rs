//! What a program is told to do.

use super::wr::{RecvWr, SendWr, Window};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use urxe_types::{PathMtu, QpType};

/// One thing to do. As JSON it is an object whose `do` is the name in snake case:
/// `{"do": "query_qp", "qp": "qp3"}`. What is made gets the name that the command gives it.
///
/// The answer is an empty object where nothing else is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// What the device is: [`Hello`](super::Hello).
    Hello,
    /// Registers memory of zeros: [`Key`](super::Key).
    RegMr {
        /// Its name.
        name: String,
        /// Bytes.
        len: usize,
        /// Rights, as `ibv_access_flags`.
        access: u32,
    },
    /// Puts bytes into memory.
    Write {
        /// The memory.
        mr: String,
        /// Where in it.
        off: usize,
        /// The bytes, in hex.
        hex: String,
    },
    /// What stands in memory: `{"hex": ...}`.
    Read {
        /// The memory.
        mr: String,
        /// Where in it.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Makes a completion queue.
    CreateCq {
        /// Its name.
        name: String,
    },
    /// Makes a shared receive queue.
    CreateSrq {
        /// Its name.
        name: String,
    },
    /// Arms the limit event of a shared receive queue.
    ModifySrq {
        /// The queue.
        srq: String,
        /// The limit.
        limit: u32,
    },
    /// Makes a QP: [`Made`](super::Made).
    CreateQp {
        /// Its name.
        name: String,
        /// `RC`, `UC` or `UD`.
        #[serde(rename = "type", with = "TransportName")]
        transport: QpType,
        /// Where sends and receives complete.
        cq: String,
        /// Where it receives from, if not from a queue of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        srq: Option<String>,
    },
    /// Takes a QP of RC or UC from RESET to RTS, or to [`Connect::until`].
    Connect(Connect),
    /// Takes a QP of UD from RESET to RTS.
    StartDatagrams {
        /// The QP.
        qp: String,
        /// Its Q_Key.
        qkey: u32,
        /// Its first PSN.
        sq_psn: u32,
    },
    /// Changes a QP: the attributes that are given, and with the state those that it needs.
    ModifyQp(ModifyQp),
    /// Tells of a QP: [`QpInfo`](super::QpInfo).
    QueryQp {
        /// The QP.
        qp: String,
    },
    /// Makes an address handle.
    CreateAh {
        /// Its name.
        name: String,
        /// Where it leads.
        #[serde(flatten)]
        path: Path,
    },
    /// Attaches a QP of UD to a multicast group.
    AttachMcast {
        /// The QP.
        qp: String,
        /// The group.
        gid: IpAddr,
    },
    /// Detaches it.
    DetachMcast {
        /// The QP.
        qp: String,
        /// The group.
        gid: IpAddr,
    },
    /// Posts receives.
    PostRecv {
        /// A QP or a shared receive queue.
        to: String,
        /// The memory that their entries are in.
        mr: String,
        /// The receives.
        wrs: Vec<RecvWr>,
    },
    /// Posts sends, all at once: [`Bound`](super::Bound).
    PostSend {
        /// The QP.
        qp: String,
        /// The memory that their entries are in.
        mr: String,
        /// The sends.
        wrs: Vec<SendWr>,
    },
    /// As many completions, or as many as come in time: [`Completed`](super::Completed).
    Poll {
        /// The completion queue.
        cq: String,
        /// How many at most.
        count: usize,
        /// How long it waits, in seconds.
        timeout: f64,
    },
    /// The asynchronous events that have come and were not told of: [`Events`](super::Events).
    Events,
    /// Allocates a memory window: `{"rkey": ...}`.
    AllocMw {
        /// Its name.
        name: String,
        /// 1 or 2.
        #[serde(rename = "type")]
        kind: u8,
    },
    /// Binds a window of type 1: `{"rkey": ...}`.
    BindMw {
        /// The QP.
        qp: String,
        /// The completion's number.
        id: u64,
        /// The window.
        mw: String,
        /// What it opens.
        window: Window,
    },
    /// Connects a new QP by the connection manager, and disconnects it when it is closed.
    CmConnect {
        /// Its name.
        name: String,
        /// To whom.
        to: IpAddr,
        /// The port, of the port space of TCP.
        port: u16,
    },
    /// Destroys things in this order; what is not there is no error.
    Close {
        /// Their names.
        names: Vec<String>,
    },
}

impl Command {
    /// What `do` says.
    pub fn name(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value["do"].as_str().unwrap_or_default().to_string()
    }

    /// The name of what it makes.
    pub fn makes(&self) -> Option<&str> {
        match self {
            Command::RegMr { name, .. }
            | Command::CreateCq { name }
            | Command::CreateSrq { name }
            | Command::CreateQp { name, .. }
            | Command::CreateAh { name, .. }
            | Command::AllocMw { name, .. }
            | Command::CmConnect { name, .. } => Some(name),
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "QpType", rename_all = "UPPERCASE")]
enum TransportName {
    Rc,
    Uc,
    Ud,
}

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// The address.
    pub dgid: IpAddr,
    /// Which of the device's own addresses they come from.
    pub gid_index: u8,
}

/// A connection. Who has no use for an attribute (UC) leaves it out; who sets timers and limits
/// itself, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    /// The QP.
    pub qp: String,
    /// What the peer may do, as `ibv_access_flags`.
    pub access: u32,
    /// The path MTU, in bytes.
    pub mtu: PathMtu,
    /// The peer's QP.
    pub dqpn: u32,
    /// The first PSN that is sent.
    pub sq_psn: u32,
    /// The first PSN that is expected.
    pub rq_psn: u32,
    /// Where the peer is.
    #[serde(flatten)]
    pub path: Path,
    /// Code of the ACK timeout.
    #[serde(default)]
    pub timeout: u8,
    /// Tries after a timeout.
    #[serde(default)]
    pub retry_cnt: u8,
    /// Tries after an RNR NAK.
    #[serde(default)]
    pub rnr_retry: u8,
    /// Code of the wait that an RNR NAK asks for.
    #[serde(default)]
    pub min_rnr_timer: u8,
    /// READs and atomics that it may have outstanding.
    #[serde(default)]
    pub max_rd_atomic: u8,
    /// READs and atomics that its peer may have outstanding.
    #[serde(default)]
    pub max_dest_rd_atomic: u8,
    /// The last state that it goes to: `INIT`, `RTR` or `RTS`.
    #[serde(default)]
    pub until: State,
}

/// A change of a QP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModifyQp {
    /// The QP.
    pub qp: String,
    /// The state to go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// What the peer may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<u32>,
    /// The Q_Key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkey: Option<u32>,
    /// The first PSN that is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sq_psn: Option<u32>,
    /// Code of the ACK timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u8>,
    /// Tries after a timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_cnt: Option<u8>,
    /// Tries after an RNR NAK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rnr_retry: Option<u8>,
    /// READs and atomics that it may have outstanding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rd_atomic: Option<u8>,
    /// Code of the wait that an RNR NAK asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rnr_timer: Option<u8>,
}

/// The state of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Does nothing.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    #[default]
    Rts,
    /// The send queue drains, or is drained.
    Sqd,
    /// The send queue has failed.
    Sqe,
    /// Everything is flushed.
    Err,
}
