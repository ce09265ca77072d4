//! The commands, as they stand on a line.

use crate::image::Image;
use serde::Deserialize;
use std::net::IpAddr;
use urxe_verbs::PathMtu;
use urxe_verbs::{WcOpcode, WcStatus};

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Command {
    Hello,
    RegMr {
        name: String,
        len: usize,
        access: u32,
    },
    Fill(Image),
    Check(Image),
    Read {
        mr: String,
        off: usize,
        len: usize,
    },
    CreateCq {
        name: String,
    },
    CreateSrq {
        name: String,
    },
    CreateQp {
        name: String,
        #[serde(rename = "type")]
        qp_type: String,
        cq: String,
        srq: Option<String>,
    },
    Connect {
        qp: String,
        access: u32,
        mtu: PathMtu,
        dqpn: u32,
        sq_psn: u32,
        rq_psn: u32,
        #[serde(flatten)]
        path: Path,
    },
    StartDatagrams {
        qp: String,
        qkey: u32,
        sq_psn: u32,
    },
    CreateAh {
        name: String,
        #[serde(flatten)]
        path: Path,
    },
    AttachMcast {
        qp: String,
        gid: IpAddr,
    },
    DetachMcast {
        qp: String,
        gid: IpAddr,
    },
    PostRecv {
        to: String,
        mr: String,
        wrs: Vec<Receive>,
    },
    PostSend {
        qp: String,
        mr: String,
        wrs: Vec<Send>,
    },
    Poll {
        cq: String,
        count: usize,
        timeout: f64,
    },
    AllocMw {
        name: String,
        #[serde(rename = "type")]
        mw_type: u8,
    },
    BindMw {
        qp: String,
        id: u64,
        mw: String,
        window: Window,
    },
    Close {
        names: Vec<String>,
    },
}

#[derive(Deserialize)]
pub(crate) struct Path {
    pub(crate) dgid: IpAddr,
    pub(crate) gid_index: u8,
}

#[derive(Deserialize)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) sges: Vec<(usize, usize)>,
}

/// What of a memory region a window opens.
#[derive(Deserialize)]
pub(crate) struct Window {
    pub(crate) of: String,
    pub(crate) off: usize,
    pub(crate) len: usize,
    pub(crate) access: u32,
}

#[derive(Deserialize)]
pub(crate) struct Send {
    pub(crate) op: String,
    pub(crate) id: u64,
    #[serde(default)]
    pub(crate) sges: Vec<(usize, usize)>,
    #[serde(default)]
    pub(crate) inline: bool,
    #[serde(default)]
    pub(crate) imm: u32,
    #[serde(default)]
    pub(crate) inv: u32,
    #[serde(default)]
    pub(crate) rkey: u32,
    #[serde(default)]
    pub(crate) raddr: u64,
    /// Of a FLUSH.
    #[serde(default)]
    pub(crate) len: u64,
    /// 64-bit numbers stand in hex, since JSON has none.
    #[serde(default)]
    pub(crate) operand: String,
    #[serde(default)]
    pub(crate) swap: String,
    /// Of an ATOMIC WRITE, in hex.
    #[serde(default)]
    pub(crate) data: String,
    pub(crate) mw: Option<String>,
    pub(crate) window: Option<Window>,
    pub(crate) ah: Option<String>,
    #[serde(default)]
    pub(crate) dqpn: u32,
    #[serde(default)]
    pub(crate) qkey: u32,
}

/// The name in `ibv_wc_opcode`.
pub(crate) fn opcode(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "RDMA_WRITE",
        WcOpcode::RdmaRead => "RDMA_READ",
        WcOpcode::CompareSwap => "COMP_SWAP",
        WcOpcode::FetchAdd => "FETCH_ADD",
        WcOpcode::BindMw => "BIND_MW",
        WcOpcode::LocalInvalidate => "LOCAL_INV",
        WcOpcode::Flush => "FLUSH",
        WcOpcode::AtomicWrite => "ATOMIC_WRITE",
        WcOpcode::Recv => "RECV",
        WcOpcode::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
    }
}

/// The name in `ibv_wc_status`, of those that a test waits for; others in words.
pub(crate) fn status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RemoteAccess => "REM_ACCESS_ERR",
        WcStatus::WrFlush => "WR_FLUSH_ERR",
        other => other.text(),
    }
}
