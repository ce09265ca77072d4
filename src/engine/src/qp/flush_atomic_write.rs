//! FLUSH and ATOMIC WRITE, the memory placement extensions (IBTA 1.5, annex A19), at the responder.
//!
//! Both are answered by a READ response of nothing, as rxe does it.

use super::replay::{Done, Resource};
use super::responder::{Refusal, Reply};
use super::{Cx, Qp};
use crate::cause::Cause;
use crate::host::Host;
use crate::limits::MAX_WAITING_REPLIES;
use urxe_types::{Access, FlushSelectivity, Psn};
use urxe_wire::{Feth, Request, Reth};

/// The rights that a FLUSH of this kind needs; `None` if there is no such kind.
pub(super) fn flush_rights(feth: &Feth) -> Option<Access> {
    match feth.selectivity {
        FlushSelectivity::Range | FlushSelectivity::Mr => feth.placement.access(),
        FlushSelectivity::Reserved(_) => None,
    }
}

impl Qp {
    /// Writes 8 bytes at once.
    pub(super) fn execute_atomic_write<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        reth: &Reth,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let word = payload.try_into().map_err(|_| Refusal::InvalidRequest)?;
        if !reth.va.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        let span = self.check_rkey(cx, reth.rkey, reth.va, 8, Access::REMOTE_WRITE)?;
        let Some(span) = span else { return Err(Refusal::InvalidRequest) };
        self.keep_reads(cx, &span, 8);
        cx.host
            .write_atomic(span.region, span.offset, word)
            .map_err(|_| Refusal::Local(Cause::LocalMemory))?;
        self.dirty = true;
        let done = Done { psn, msn: self.responder.msn.next() };
        self.remember(Resource::AtomicWrite(done));
        self.end_single(cx, Reply::AtomicWrite(done));
        Ok(())
    }

    /// Sees that earlier writes are where they shall be. There is nothing to be done but to check:
    /// no answer is sent before all writes are [visible](Host::sync). The key is checked for a
    /// FLUSH of nothing too, and so is the range, but for one of the whole MR.
    pub(super) fn execute_flush<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        feth: &Feth,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        let rights = flush_rights(feth).ok_or(Refusal::InvalidRequest)?;
        let Reth { va, rkey, len } = *reth;
        let scope = self.key_scope();
        match feth.selectivity {
            FlushSelectivity::Range => cx.keys.remote(rkey.0, scope, va, u64::from(len), rights),
            _ => cx.keys.remote_all(rkey.0, scope, rights),
        }
        .map_err(|_| Refusal::RemoteAccess)?;
        let done = Done { psn, msn: self.responder.msn.next() };
        self.end_single(cx, Reply::Flush(done));
        Ok(())
    }

    /// Whether a request is one FLUSH too many: nothing else bounds how many may wait for their
    /// answers. It is taken for lost.
    pub(super) fn over_reply_limit(&self, request: &Request) -> bool {
        matches!(request, Request::Flush { .. })
            && self.responder.replies.len() >= MAX_WAITING_REPLIES
    }
}
