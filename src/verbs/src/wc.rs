//! Work completions: `ibv_wc`.

use crate::WcError;
use crate::causes::Causes;
use urxe_shm::ring::layout::{self, CqEntry};
use urxe_types::{WcOpcode, WcStatus};

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
