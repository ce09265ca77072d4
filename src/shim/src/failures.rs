//! Work requests that have failed: what the user is told of them, where the program polls.
//!
//! The completion says which work request of which QP it was, its status and the number of the
//! cause; the daemon says the rest. It is asked only if somebody is to be told, and once for a
//! cause. Who asks is the program's thread, in the midst of a poll that should not wait: so it
//! does not, if another thread is talking to the daemon, or this one is, interrupted by a signal.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::reasons::{self, Level};
use libc::{c_int, c_void};
use urxe_types::{WcOpcode, WcStatus};

/// What every program knows of `struct ibv_wc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct VerbsWc {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// A work request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedWr {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) qp_num: u32,
}

impl FailedWr {
    /// Who wants to know of it. One that was flushed has not failed itself, and of a QP that the
    /// program has taken to ERR it was to be expected.
    fn level(&self, was_ended: bool) -> Level {
        match (WcStatus::from_raw(self.status), was_ended) {
            (WcStatus::WrFlush, true) => Level::Info,
            (WcStatus::WrFlush, false) => Level::Warn,
            _ => Level::Error,
        }
    }

    /// Which it was, and how it has ended.
    fn head(&self) -> String {
        let &FailedWr { wr_id, status, vendor_err, qp_num, .. } = self;
        let name = WcStatus::from_raw(status).name();
        let what = what(self.opcode);
        format!("{what}, wr_id {wr_id}, of QP {qp_num:#08x}: {name}, vendor_err {vendor_err:#x}: ")
    }
}

/// The kind of a work request, by the opcode of its completion.
fn what(opcode: u32) -> &'static str {
    match WcOpcode::from_raw(opcode) {
        Some(WcOpcode::Send) => "SEND",
        Some(WcOpcode::RdmaWrite) => "RDMA WRITE",
        Some(WcOpcode::RdmaRead) => "RDMA READ",
        Some(WcOpcode::CompareSwap) => "COMPARE AND SWAP",
        Some(WcOpcode::FetchAdd) => "FETCH AND ADD",
        Some(WcOpcode::BindMw) => "BIND",
        Some(WcOpcode::LocalInvalidate) => "LOCAL INVALIDATE",
        Some(WcOpcode::Flush) => "FLUSH",
        Some(WcOpcode::AtomicWrite) => "ATOMIC WRITE",
        Some(WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) => "receive",
        None => "work request",
    }
}

/// Whether anybody is told of failures.
#[inline]
pub(crate) fn are_told() -> bool {
    reasons::is_told(Level::Error)
}

/// Tells of those among completions that a poll has found which are failures.
///
/// # Safety
/// `found`, if it is above zero, must be how many `wc` has; and `cq` what `cmd_fd_of` takes.
#[inline]
pub(crate) unsafe fn tell_polled(
    cmd_fd_of: unsafe fn(*mut c_void) -> c_int,
    cq: *mut c_void,
    wc: *const c_void,
    found: c_int,
) {
    if found <= 0 || !are_told() {
        return;
    }
    // SAFETY: the caller's promise.
    let completions = unsafe { std::slice::from_raw_parts(wc.cast::<VerbsWc>(), found as usize) };
    for wc in completions.iter().filter(|wc| wc.status != WcStatus::Success as u32) {
        let &VerbsWc { wr_id, status, opcode, vendor_err, qp_num, .. } = wc;
        let failed = FailedWr { wr_id, status, opcode, vendor_err, qp_num };
        // SAFETY: the caller's promise.
        tell(unsafe { cmd_fd_of(cq) }, &failed);
    }
}

/// Tells of a failure in a CQ of the context that is opened by this descriptor.
#[cold]
pub(crate) fn tell(cmd_fd: c_int, failed: &FailedWr) {
    let Some(Descriptor::Uverbs(context)) = DESCRIPTORS.genuine(cmd_fd) else { return };
    let level = failed.level(context.was_ended(failed.qp_num));
    // WHY-002
    let cause = reasons::key_of(&(failed.status, failed.vendor_err, failed.opcode));
    reasons::say_with(level, cause, || {
        let reason = context.why_failed(failed.qp_num, failed.vendor_err);
        // Where nobody can be asked, the status says something by itself.
        let meaning = || WcStatus::from_raw(failed.status).meaning().to_owned();
        failed.head() + &reason.unwrap_or_else(meaning)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_as_the_headers_of_libibverbs_have_them() {
        assert_eq!(size_of::<VerbsWc>(), 48);
        assert_eq!(std::mem::offset_of!(VerbsWc, qp_num), 28);
    }

    #[test]
    fn a_failure_names_work_request_queue_pair_status_and_number() {
        let failed = FailedWr { wr_id: 7, status: 10, opcode: 1, vendor_err: 6, qp_num: 17 };
        assert_eq!(
            failed.head(),
            "RDMA WRITE, wr_id 7, of QP 0x000011: IBV_WC_REM_ACCESS_ERR, vendor_err 0x6: "
        );
        assert_eq!(failed.level(true), Level::Error);
        let flushed = FailedWr { status: WcStatus::WrFlush as u32, opcode: 200, ..failed };
        assert_eq!((flushed.level(false), flushed.level(true)), (Level::Warn, Level::Info));
        assert!(flushed.head().starts_with("work request, wr_id 7"));
    }
}
