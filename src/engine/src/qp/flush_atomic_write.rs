//! FLUSH and ATOMIC WRITE, the memory placement extensions (IBTA 1.5, annex A19), at the responder.
//!
//! Both are answered by a READ response of nothing, as rxe does it.

use super::replay::{Done, Resource};
use super::responder::{Refusal, Reply};
use super::{Cx, Qp};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::MAX_WAITING_REPLIES;
use urxe_types::Access;
use urxe_wire::{Feth, Headers, Operation, Packet, Reth};

const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 2;
const RANGE: u8 = 0;
const WHOLE_MR: u8 = 1;

/// The rights that a FLUSH of this kind needs; `None` if there is no such kind.
pub(super) fn flush_rights(feth: &Feth) -> Option<Access> {
    let is_kind = matches!(feth.selectivity, RANGE | WHOLE_MR);
    match feth.placement {
        GLOBAL if is_kind => Some(Access::FLUSH_GLOBAL),
        PERSISTENT if is_kind => Some(Access::FLUSH_PERSISTENT),
        3 if is_kind => Some(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT),
        _ => None,
    }
}

impl Qp {
    /// Writes 8 bytes at once.
    pub(super) fn execute_atomic_write<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_>,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        let word = packet.payload.try_into().map_err(|_| Refusal::InvalidRequest)?;
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
        let done = self.done(packet);
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
        packet: &Packet<'_>,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        let Headers { feth: Some(feth), .. } = packet.headers else {
            return Err(Refusal::InvalidRequest);
        };
        let rights = flush_rights(&feth).ok_or(Refusal::InvalidRequest)?;
        let Reth { va, rkey, len } = *reth;
        let scope = self.key_scope();
        match feth.selectivity {
            RANGE => cx.keys.remote(rkey.0, scope, va, u64::from(len), rights),
            _ => cx.keys.remote_all(rkey.0, scope, rights),
        }
        .map_err(|_| Refusal::RemoteAccess)?;
        let done = self.done(packet);
        self.end_single(cx, Reply::Flush(done));
        Ok(())
    }

    /// A repeated ATOMIC WRITE is answered from what was kept. A repeated FLUSH is answered always:
    /// everything before the expected PSN is done, and visible before the answer is sent.
    pub(super) fn on_placed_again<H>(&mut self, cx: &mut Cx<'_, H>, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let (reply, counter) = match packet.headers.bth.opcode.operation() {
            Operation::Flush => {
                let msn = self.responder.msn;
                (Reply::Flush(Done { psn, msn }), Counter::FlushesReplayed)
            }
            _ => match self.responder.resources.find_atomic_write(psn) {
                Some(done) => (Reply::AtomicWrite(done), Counter::AtomicsReplayed),
                None => return self.count(cx, Counter::DropUnknownDuplicate, 1),
            },
        };
        self.count(cx, counter, 1);
        if !self.responder.replies.contains(&reply) {
            self.responder.replies.push_back(reply);
        }
    }

    /// Whether a request is one FLUSH too many: nothing else bounds how many may wait for their
    /// answers. It is taken for lost.
    pub(super) fn over_reply_limit(&self, packet: &Packet<'_>) -> bool {
        packet.headers.bth.opcode.operation() == Operation::Flush
            && self.responder.replies.len() >= MAX_WAITING_REPLIES
    }

    /// The request in this packet, as done.
    fn done(&self, packet: &Packet<'_>) -> Done {
        Done { psn: packet.headers.bth.psn, msn: self.responder.msn.next() }
    }
}
