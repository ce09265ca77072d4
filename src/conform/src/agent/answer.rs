//! What a program answers.

use super::command::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use urxe_types::{WcOpcode, WcStatus};

/// The device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name.
    pub device: String,
    /// Its addresses, with their places in its table.
    pub gids: BTreeMap<IpAddr, u8>,
    /// The largest path MTU of its link, in bytes.
    pub mtu: u32,
    /// Whether it does atomics, if the program tells.
    #[serde(default)]
    pub atomics: Option<bool>,
    /// What it runs on.
    #[serde(default)]
    pub system: String,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The first byte's address.
    pub addr: u64,
    /// What peers name it by.
    pub rkey: u32,
    /// What the program itself names it by.
    pub lkey: u32,
}

/// A QP that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its number.
    pub qpn: u32,
}

/// Sends that were posted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The new keys of the windows that are bound by them, in order.
    #[serde(default)]
    pub rkeys: Vec<u32>,
}

/// Completions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completed {
    /// In the order in which they were polled.
    pub wcs: Vec<Wc>,
}

/// A completion. Only the number, the status and the vendor's error have a meaning if it failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wc {
    /// The work request's number.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was, as `ibv_wc_opcode` without `IBV_WC_`.
    #[serde(default)]
    pub op: String,
    /// The QP.
    #[serde(default)]
    pub qpn: u32,
    /// Bytes that were received.
    #[serde(default)]
    pub len: u32,
    /// Who sent.
    #[serde(default)]
    pub src_qpn: u32,
    /// `ibv_wc_flags`.
    #[serde(default)]
    pub flags: u32,
    /// Immediate data, if the completion says that there is some.
    #[serde(default)]
    pub imm: Option<u32>,
    /// The key that was invalidated, if the completion says that one was.
    #[serde(default)]
    pub inv: Option<u32>,
    /// What the vendor says of an error.
    #[serde(default)]
    pub vendor_err: u32,
}

/// How a work request ended: `ibv_wc_status` without `IBV_WC_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// It was done.
    Success,
    /// Local length error.
    LocLenErr,
    /// Local QP operation error.
    LocQpOpErr,
    /// Local protection error.
    LocProtErr,
    /// Flushed.
    WrFlushErr,
    /// A window was not bound.
    MwBindErr,
    /// The peer's response makes no sense.
    BadRespErr,
    /// Local access error.
    LocAccessErr,
    /// The peer calls it invalid.
    RemInvReqErr,
    /// The peer does not allow it.
    RemAccessErr,
    /// The peer could not do it.
    RemOpErr,
    /// The peer did not answer.
    RetryExcErr,
    /// The peer never had a receive.
    RnrRetryExcErr,
    /// Any other.
    #[serde(other)]
    Other,
}

impl Status {
    /// The status with this number in `ibv_wc_status`.
    pub fn from_number(number: u32) -> Status {
        use Status::*;
        match number {
            0 => Success,
            1 => LocLenErr,
            2 => LocQpOpErr,
            4 => LocProtErr,
            5 => WrFlushErr,
            6 => MwBindErr,
            7 => BadRespErr,
            8 => LocAccessErr,
            9 => RemInvReqErr,
            10 => RemAccessErr,
            11 => RemOpErr,
            12 => RetryExcErr,
            13 => RnrRetryExcErr,
            _ => Other,
        }
    }
}

impl From<WcStatus> for Status {
    fn from(status: WcStatus) -> Status {
        match status {
            WcStatus::Success => Status::Success,
            WcStatus::LocalLength => Status::LocLenErr,
            WcStatus::LocalQpOperation => Status::LocQpOpErr,
            WcStatus::LocalProtection => Status::LocProtErr,
            WcStatus::WrFlush => Status::WrFlushErr,
            WcStatus::MwBind => Status::MwBindErr,
            WcStatus::BadResponse => Status::BadRespErr,
            WcStatus::LocalAccess => Status::LocAccessErr,
            WcStatus::RemoteInvalidRequest => Status::RemInvReqErr,
            WcStatus::RemoteAccess => Status::RemAccessErr,
            WcStatus::RemoteOperation => Status::RemOpErr,
            WcStatus::RetryExceeded => Status::RetryExcErr,
            WcStatus::RnrRetryExceeded => Status::RnrRetryExcErr,
            _ => Status::Other,
        }
    }
}

/// The name of a completion's opcode in `ibv_wc_opcode`, without `IBV_WC_`.
pub fn opcode_name(opcode: WcOpcode) -> &'static str {
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

/// What a QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Its state.
    pub state: State,
    /// The PSN of its next request.
    #[serde(default)]
    pub sq_psn: Option<u32>,
    /// The PSN that it expects.
    #[serde(default)]
    pub rq_psn: Option<u32>,
}

/// Asynchronous events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// In the order in which they came.
    pub events: Vec<Event>,
}

/// An asynchronous event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub event: EventKind,
    /// The name of what it happened to, if that was given one.
    #[serde(default)]
    pub name: Option<String>,
}

/// What can happen: `ibv_event_type` without `IBV_EVENT_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EventKind {
    /// The QP has failed.
    QpFatal,
    /// An invalid request came.
    QpReqErr,
    /// A request violated access rights.
    QpAccessErr,
    /// The first packet came.
    CommEst,
    /// The send queue has drained.
    SqDrained,
    /// The QP takes no more from its shared receive queue.
    QpLastWqeReached,
    /// The completion queue has failed.
    CqErr,
    /// The shared receive queue has failed.
    SrqErr,
    /// Few receives are left in the shared receive queue.
    SrqLimitReached,
    /// Any other.
    #[serde(other)]
    Other,
}
