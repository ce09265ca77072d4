//! Completions: `ibv_wc`.

use crate::{Extra, Qpn};

/// How a work request ended: `ibv_wc_status`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the verbs' own; `text` explains each
pub enum WcStatus {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    WrFlush = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAborted = 16,
    Fatal = 19,
    General = 21,
}

/// What kind of work request a completion is of: `ibv_wc_opcode`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the verbs' own
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// What stands in the 40 bytes before a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrhKind {
    /// An IPv4 header, in the last 20.
    Ipv4,
    /// An IPv6 header.
    Ipv6,
}

/// A completion: `ibv_wc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was. Only meaningful on success, as in verbs.
    pub opcode: WcOpcode,
    /// Why, when `status` is an error: the number of the engine's `Cause`.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data or invalidated key that came with a receive.
    pub extra: Extra,
    /// The QP it belongs to.
    pub qpn: Qpn,
    /// The QP that sent, for a receive; 0 where verbs leaves it undefined.
    pub src_qpn: Qpn,
    /// UD: the first 40 bytes received are a GRH, and of which kind. Always so with RoCE.
    pub grh: Option<GrhKind>,
    /// The receive was of a message with the solicited bit, or the completion is an error: wakes
    /// a CQ that was armed for solicited events only.
    pub solicited: bool,
}
