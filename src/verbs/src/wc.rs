//! Work completions: `ibv_wc`.

use crate::WcError;
use crate::causes::Causes;
use std::fmt;
use urxe_shm::ring::layout::{self, CqEntry};

/// How a work request ended: `ibv_wc_status`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// `IBV_WC_SUCCESS`.
    Success = 0,
    /// `IBV_WC_LOC_LEN_ERR`: longer than the queue pair or the receive allows.
    LocalLength = 1,
    /// `IBV_WC_LOC_QP_OP_ERR`: the work request made no sense to the queue pair.
    LocalQpOperation = 2,
    /// `IBV_WC_LOC_EEC_OP_ERR`: not used by RoCE.
    LocalEecOperation = 3,
    /// `IBV_WC_LOC_PROT_ERR`: a scatter or gather entry is outside its memory region, or the
    /// region grants too little.
    LocalProtection = 4,
    /// `IBV_WC_WR_FLUSH_ERR`: the queue pair went to the error state before this was done.
    WrFlush = 5,
    /// `IBV_WC_MW_BIND_ERR`: a memory window could not be bound.
    MwBind = 6,
    /// `IBV_WC_BAD_RESP_ERR`: the peer's answer made no sense.
    BadResponse = 7,
    /// `IBV_WC_LOC_ACCESS_ERR`: the receive's memory could not be written.
    LocalAccess = 8,
    /// `IBV_WC_REM_INV_REQ_ERR`: the peer calls the request invalid.
    RemoteInvalidRequest = 9,
    /// `IBV_WC_REM_ACCESS_ERR`: the rkey, the range or the rights are wrong at the peer.
    RemoteAccess = 10,
    /// `IBV_WC_REM_OP_ERR`: the peer could not carry the request out.
    RemoteOperation = 11,
    /// `IBV_WC_RETRY_EXC_ERR`: the peer did not answer, however often it was asked.
    RetryExceeded = 12,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: the peer never had a receive posted.
    RnrRetryExceeded = 13,
    /// `IBV_WC_LOC_RDD_VIOL_ERR`: not used by RoCE.
    LocalRddViolation = 14,
    /// `IBV_WC_REM_INV_RD_REQ_ERR`: not used by RoCE.
    RemoteInvalidRdRequest = 15,
    /// `IBV_WC_REM_ABORT_ERR`: the peer aborted the operation.
    RemoteAborted = 16,
    /// `IBV_WC_INV_EECN_ERR`: not used by RoCE.
    InvalidEecn = 17,
    /// `IBV_WC_INV_EEC_STATE_ERR`: not used by RoCE.
    InvalidEecState = 18,
    /// `IBV_WC_FATAL_ERR`: the device broke.
    Fatal = 19,
    /// `IBV_WC_RESP_TIMEOUT_ERR`: no answer in time.
    ResponseTimeout = 20,
    /// `IBV_WC_GENERAL_ERR`, and any number that verbs does not name.
    General = 21,
}

impl WcStatus {
    const ALL: [WcStatus; 22] = [
        WcStatus::Success,
        WcStatus::LocalLength,
        WcStatus::LocalQpOperation,
        WcStatus::LocalEecOperation,
        WcStatus::LocalProtection,
        WcStatus::WrFlush,
        WcStatus::MwBind,
        WcStatus::BadResponse,
        WcStatus::LocalAccess,
        WcStatus::RemoteInvalidRequest,
        WcStatus::RemoteAccess,
        WcStatus::RemoteOperation,
        WcStatus::RetryExceeded,
        WcStatus::RnrRetryExceeded,
        WcStatus::LocalRddViolation,
        WcStatus::RemoteInvalidRdRequest,
        WcStatus::RemoteAborted,
        WcStatus::InvalidEecn,
        WcStatus::InvalidEecState,
        WcStatus::Fatal,
        WcStatus::ResponseTimeout,
        WcStatus::General,
    ];

    /// The status that has this number in `ibv_wc_status`.
    pub fn from_raw(raw: u32) -> WcStatus {
        Self::ALL.get(raw as usize).copied().unwrap_or(WcStatus::General)
    }

    /// What it means, for people.
    pub const fn text(self) -> &'static str {
        match self {
            WcStatus::Success => "success",
            WcStatus::LocalLength => "local length error",
            WcStatus::LocalQpOperation => "local QP operation error",
            WcStatus::LocalEecOperation => "local EE context operation error",
            WcStatus::LocalProtection => "local protection error",
            WcStatus::WrFlush => "work request flushed",
            WcStatus::MwBind => "memory window bind error",
            WcStatus::BadResponse => "bad response error",
            WcStatus::LocalAccess => "local access error",
            WcStatus::RemoteInvalidRequest => "remote invalid request error",
            WcStatus::RemoteAccess => "remote access error",
            WcStatus::RemoteOperation => "remote operation error",
            WcStatus::RetryExceeded => "transport retry counter exceeded",
            WcStatus::RnrRetryExceeded => "RNR retry counter exceeded",
            WcStatus::LocalRddViolation => "local RDD violation error",
            WcStatus::RemoteInvalidRdRequest => "remote invalid RD request",
            WcStatus::RemoteAborted => "remote aborted error",
            WcStatus::InvalidEecn => "invalid EE context number",
            WcStatus::InvalidEecState => "invalid EE context state",
            WcStatus::Fatal => "fatal error",
            WcStatus::ResponseTimeout => "response timeout error",
            WcStatus::General => "general error",
        }
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
    Send = layout::WC_SEND,
    /// A WRITE of any kind was done.
    RdmaWrite = layout::WC_RDMA_WRITE,
    /// A READ was done: the data is there.
    RdmaRead = layout::WC_RDMA_READ,
    /// A COMPARE-AND-SWAP was done: the former value is there.
    CompareSwap = layout::WC_COMPARE_SWAP,
    /// A FETCH-AND-ADD was done: the former value is there.
    FetchAdd = layout::WC_FETCH_ADD,
    /// A memory window was bound.
    BindMw = layout::WC_BIND_MW,
    /// A key was invalidated by its owner.
    LocalInvalidate = layout::WC_LOCAL_INV,
    /// A FLUSH was done.
    Flush = layout::WC_FLUSH,
    /// An ATOMIC WRITE was done.
    AtomicWrite = layout::WC_ATOMIC_WRITE,
    /// A message was received.
    Recv = layout::WC_RECV,
    /// A WRITE with immediate data was received: the data is where the peer wrote it.
    RecvRdmaWithImm = layout::WC_RECV_RDMA_WITH_IMM,
}

impl WcOpcode {
    /// The opcode that has this number in `ibv_wc_opcode`, of those that a device can complete.
    pub fn from_raw(raw: u32) -> Option<WcOpcode> {
        Some(match raw {
            layout::WC_SEND => WcOpcode::Send,
            layout::WC_RDMA_WRITE => WcOpcode::RdmaWrite,
            layout::WC_RDMA_READ => WcOpcode::RdmaRead,
            layout::WC_COMPARE_SWAP => WcOpcode::CompareSwap,
            layout::WC_FETCH_ADD => WcOpcode::FetchAdd,
            layout::WC_BIND_MW => WcOpcode::BindMw,
            layout::WC_LOCAL_INV => WcOpcode::LocalInvalidate,
            layout::WC_FLUSH => WcOpcode::Flush,
            layout::WC_ATOMIC_WRITE => WcOpcode::AtomicWrite,
            layout::WC_RECV => WcOpcode::Recv,
            layout::WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
            _ => return None,
        })
    }

    /// Whether it is of a receive work request.
    pub const fn is_recv(self) -> bool {
        matches!(self, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
    }
}

/// A work completion: `ibv_wc`. How one work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was. Means something only on success, as in verbs.
    pub opcode: WcOpcode,
    /// Bytes received or read, with the 40 in front of a datagram. Means something only on success.
    pub byte_len: u32,
    /// The queue pair that it was posted to.
    pub qpn: u32,
    /// The peer's queue pair, where the transport tells it (datagrams).
    pub src_qpn: u32,
    /// Whether the first 40 bytes received are those that tell of the path, as in every datagram:
    /// [`Grh`](crate::Grh) reads them.
    pub grh: bool,
    /// Immediate data that came with the message, as the number that the peer gave.
    pub imm: Option<u32>,
    /// The rkey that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    /// Why it failed, in the daemon's own numbers; 0 on success.
    pub vendor_err: u32,
    /// The same in words that a person can act on; empty on success.
    pub cause: &'static str,
}

impl Default for Wc {
    /// What to fill an array with, before a poll fills it.
    fn default() -> Wc {
        Wc::from_entry(&CqEntry::default(), Causes::default())
    }
}

impl Wc {
    pub(crate) fn from_entry(entry: &CqEntry, causes: Causes) -> Wc {
        let has = |flag| entry.wc_flags & flag != 0;
        let status = WcStatus::from_raw(entry.status);
        let failed = status != WcStatus::Success;
        Wc {
            wr_id: entry.wr_id,
            status,
            opcode: WcOpcode::from_raw(entry.opcode).unwrap_or(WcOpcode::Send),
            byte_len: entry.byte_len,
            qpn: entry.qp_num,
            src_qpn: entry.src_qp,
            grh: has(layout::WC_GRH),
            imm: has(layout::WC_WITH_IMM).then(|| u32::from_be(entry.imm_or_rkey)),
            invalidated_rkey: has(layout::WC_WITH_INV).then_some(entry.imm_or_rkey),
            vendor_err: entry.vendor_err,
            cause: if failed { causes.text(entry.vendor_err) } else { "" },
        }
    }

    /// Itself if it succeeded, else what happened as an error.
    ///
    /// # Errors
    /// [`WcError`] if [`status`](Self::status) is not [`WcStatus::Success`].
    pub fn check(&self) -> Result<&Wc, WcError> {
        if self.status == WcStatus::Success {
            return Ok(self);
        }
        let Wc { wr_id, qpn, status, vendor_err, cause, .. } = *self;
        Err(WcError { wr_id, qpn, status, vendor_err, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_ibv_wc_status() {
        for (number, status) in WcStatus::ALL.into_iter().enumerate() {
            assert_eq!((status as usize, WcStatus::from_raw(number as u32)), (number, status));
        }
        assert_eq!(WcStatus::from_raw(12), WcStatus::RetryExceeded);
        assert_eq!(WcStatus::from_raw(22), WcStatus::General);
        assert_eq!(WcStatus::from_raw(u32::MAX), WcStatus::General);
    }

    #[test]
    fn immediate_data_is_the_number_that_was_sent() {
        let imm_or_rkey = 0x0102_0304u32.to_be();
        let mut entry =
            CqEntry { imm_or_rkey, wc_flags: layout::WC_WITH_IMM, ..Default::default() };
        let wc = Wc::from_entry(&entry, Causes::default());
        assert_eq!((wc.imm, wc.invalidated_rkey), (Some(0x0102_0304), None));
        entry.wc_flags = layout::WC_WITH_INV;
        let wc = Wc::from_entry(&entry, Causes::default());
        assert_eq!((wc.imm, wc.invalidated_rkey), (None, Some(imm_or_rkey)));
        entry.wc_flags = 0;
        let wc = Wc::from_entry(&entry, Causes::default());
        assert_eq!((wc.imm, wc.invalidated_rkey), (None, None));
    }

    #[test]
    fn a_failure_names_work_request_queue_pair_status_and_cause() {
        let causes = Causes::intern(vec![(2, "The peer did not answer.".into())]);
        let mut entry = CqEntry { wr_id: 7, qp_num: 17, status: 12, ..Default::default() };
        entry.vendor_err = 2;
        let wc = Wc::from_entry(&entry, causes);
        assert_eq!(
            wc.check().unwrap_err().to_string(),
            "work request 7 of QP 0x000011: transport retry counter exceeded: The peer did not \
             answer."
        );
        // A daemon newer than its own table.
        entry.vendor_err = 99;
        let text = Wc::from_entry(&entry, causes).check().unwrap_err().to_string();
        assert!(text.ends_with("exceeded: cause 99"), "{text}");
        entry.status = 0;
        let wc = Wc::from_entry(&entry, causes);
        assert!(wc.check().is_ok() && wc.cause.is_empty());
        assert!(Wc::default().check().is_ok());
    }
}
