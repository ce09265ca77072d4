//! Completions: `ibv_wc`.

use crate::{Extra, Qpn};
use std::fmt;

macro_rules! statuses {
    ($($variant:ident = $number:literal, $name:literal, $text:literal, $meaning:literal;)*) => {
        /// How a work request ended: `ibv_wc_status`, with the same numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum WcStatus {
            $(#[doc = concat!("`", $name, "`: ", $meaning)] $variant = $number,)*
        }

        impl WcStatus {
            /// All of them, in the order of their numbers, which begin with 0.
            pub const ALL: &[WcStatus] = &[$(WcStatus::$variant),*];

            /// The name in `ibv_wc_status`.
            pub const fn name(self) -> &'static str {
                match self { $(WcStatus::$variant => $name),* }
            }

            /// What it is called, for people.
            pub const fn text(self) -> &'static str {
                match self { $(WcStatus::$variant => $text),* }
            }

            /// What it means, in a sentence. Of many the cause (`vendor_err`) says more.
            pub const fn meaning(self) -> &'static str {
                match self { $(WcStatus::$variant => $meaning),* }
            }
        }
    };
}

statuses! {
    Success = 0, "IBV_WC_SUCCESS", "success", "The work request was done.";
    LocalLength = 1, "IBV_WC_LOC_LEN_ERR", "local length error", "The message is longer than the queue pair or the receive allows.";
    LocalQpOperation = 2, "IBV_WC_LOC_QP_OP_ERR", "local QP operation error", "The work request made no sense to the queue pair: its opcode, its flags, or its address handle.";
    LocalEecOperation = 3, "IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error", "Not used by RoCE.";
    LocalProtection = 4, "IBV_WC_LOC_PROT_ERR", "local protection error", "An entry of the scatter/gather list is outside of its memory region, or the region grants too little.";
    WrFlush = 5, "IBV_WC_WR_FLUSH_ERR", "work request flushed", "The queue pair went to the error state before this was done: the first error of that queue pair is the one to look at.";
    MwBind = 6, "IBV_WC_MW_BIND_ERR", "memory window bind error", "A memory window could not be bound.";
    BadResponse = 7, "IBV_WC_BAD_RESP_ERR", "bad response error", "The peer's answer made no sense.";
    LocalAccess = 8, "IBV_WC_LOC_ACCESS_ERR", "local access error", "The receive's memory could not be written.";
    RemoteInvalidRequest = 9, "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error", "The peer calls the request invalid.";
    RemoteAccess = 10, "IBV_WC_REM_ACCESS_ERR", "remote access error", "The rkey, the range or the rights are wrong at the peer.";
    RemoteOperation = 11, "IBV_WC_REM_OP_ERR", "remote operation error", "The peer could not carry the request out.";
    RetryExceeded = 12, "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded", "The peer did not answer, however often it was asked.";
    RnrRetryExceeded = 13, "IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded", "The peer never had a receive posted.";
    LocalRddViolation = 14, "IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation error", "Not used by RoCE.";
    RemoteInvalidRdRequest = 15, "IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request", "Not used by RoCE.";
    RemoteAborted = 16, "IBV_WC_REM_ABORT_ERR", "remote aborted error", "The peer aborted the operation.";
    InvalidEecn = 17, "IBV_WC_INV_EECN_ERR", "invalid EE context number", "Not used by RoCE.";
    InvalidEecState = 18, "IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state", "Not used by RoCE.";
    Fatal = 19, "IBV_WC_FATAL_ERR", "fatal error", "The device broke.";
    ResponseTimeout = 20, "IBV_WC_RESP_TIMEOUT_ERR", "response timeout error", "No answer came in time.";
    General = 21, "IBV_WC_GENERAL_ERR", "general error", "An error that verbs has no number for.";
}

impl WcStatus {
    /// The status that has this number in `ibv_wc_status`.
    pub fn from_raw(raw: u32) -> WcStatus {
        Self::ALL.get(raw as usize).copied().unwrap_or(WcStatus::General)
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What kind of work request a completion is of: `ibv_wc_opcode`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// A SEND of any kind was done.
    Send = 0,
    /// A WRITE of any kind was done.
    RdmaWrite = 1,
    /// A READ was done: the data is there.
    RdmaRead = 2,
    /// A COMPARE-AND-SWAP was done: the former value is there.
    CompareSwap = 3,
    /// A FETCH-AND-ADD was done: the former value is there.
    FetchAdd = 4,
    /// A memory window was bound.
    BindMw = 5,
    /// A key was invalidated by its owner.
    LocalInvalidate = 6,
    /// A FLUSH was done.
    Flush = 8,
    /// An ATOMIC WRITE was done.
    AtomicWrite = 9,
    /// A message was received.
    Recv = 128,
    /// A WRITE with immediate data was received: the data is where the peer wrote it.
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// The opcode that has this number in `ibv_wc_opcode`, of those that a device can complete.
    pub fn from_raw(raw: u32) -> Option<WcOpcode> {
        Some(match raw {
            0 => WcOpcode::Send,
            1 => WcOpcode::RdmaWrite,
            2 => WcOpcode::RdmaRead,
            3 => WcOpcode::CompareSwap,
            4 => WcOpcode::FetchAdd,
            5 => WcOpcode::BindMw,
            6 => WcOpcode::LocalInvalidate,
            8 => WcOpcode::Flush,
            9 => WcOpcode::AtomicWrite,
            128 => WcOpcode::Recv,
            129 => WcOpcode::RecvRdmaWithImm,
            _ => return None,
        })
    }

    /// Whether it is of a receive work request.
    pub const fn is_recv(self) -> bool {
        matches!(self, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_ibv_wc_status() {
        for (number, &status) in WcStatus::ALL.iter().enumerate() {
            assert_eq!((status as usize, WcStatus::from_raw(number as u32)), (number, status));
        }
        assert_eq!(WcStatus::from_raw(12), WcStatus::RetryExceeded);
        assert_eq!(WcStatus::from_raw(22), WcStatus::General);
        assert_eq!(WcStatus::from_raw(u32::MAX), WcStatus::General);
    }

    #[test]
    fn an_opcode_is_the_number_that_it_is_made_of() {
        let opcodes = (0..256).filter_map(|raw| Some((raw, WcOpcode::from_raw(raw)?)));
        assert!(opcodes.clone().all(|(raw, opcode)| opcode as u32 == raw));
        assert_eq!(opcodes.count(), 11);
    }
}
