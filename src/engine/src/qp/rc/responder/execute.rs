//! Does what a request asks for that has passed all checks but those of memory.
//!
//! FLUSH and ATOMIC WRITE, the memory placement extensions (IBTA 1.5, annex A19), are answered by a
//! READ response of nothing, as rxe does it.

use super::replay::{AtomicResource, Done, ReadResource, Resource};
use super::{Reply, Responder};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{AtomicOp, Host};
use crate::memory::Span;
use crate::qp::common::{Cx, Failure};
use crate::qp::message::{check_range, check_rkey, flush_rights};
use crate::qp::parameters::Route;
use crate::qp::receive::Refusal;
use urxe_types::{Access, Extra, FlushSelectivity, Psn, Rkey};
use urxe_wire::{AtomicEth, Bth, Feth, Headers, Packet, Request, Reth};

impl Responder {
    /// Executes a request.
    pub(super) fn execute<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Refusal> {
        let Packet { headers: Headers { bth, body: request }, payload } = packet;
        let goes_on = self.incoming.goes_on(request, bth.ack_req, payload.len(), route.mtu);
        // What the last packet of a message brings for the receive, if that is consumed.
        let ended = match request {
            Request::Send(part) => {
                self.incoming.put(cx, payload)?;
                part.end().map(|extra| Some(*extra))
            }
            Request::Write(part) => {
                let target = self.incoming.check_write(cx, part, payload)?;
                if let Some(span) = &target.span
                    && !fault!(ReadSeesLaterWrites)
                {
                    self.keep_reads(cx, route.mtu, span, payload.len() as u64);
                }
                self.incoming.store(cx, target, payload, part.ends() && !goes_on)?;
                // RC-RESP-009
                part.end().map(|imm| imm.map(Extra::Imm))
            }
            Request::Read(reth) => return self.execute_read(cx, route.mtu, bth, reth),
            Request::CompareSwap(eth) => {
                // RC-RESP-023
                let op = match fault!(CompareSwapSwapsOperands) {
                    true => AtomicOp::CompareSwap { compare: eth.swap_or_add, swap: eth.compare },
                    false => AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
                };
                return self.execute_atomic(cx, route.mtu, bth.psn, eth, op);
            }
            Request::FetchAdd(eth) => {
                // RC-RESP-024
                let adds = if fault!(FetchAddOf32Bits) { u64::from(u32::MAX) } else { u64::MAX };
                let op = AtomicOp::FetchAdd(eth.swap_or_add & adds);
                return self.execute_atomic(cx, route.mtu, bth.psn, eth, op);
            }
            Request::AtomicWrite(reth) => {
                return self.execute_atomic_write(cx, route.mtu, bth.psn, reth, payload);
            }
            Request::Flush { feth, reth } => return self.execute_flush(cx, bth.psn, feth, reth),
        };
        self.expected = self.expected.next();
        if fault!(MsnCountsPackets) && ended.is_none() {
            self.msn = self.msn.next();
        }
        if let Some(extra) = ended
            && self.incoming.end(cx, route.dest_qpn, bth.solicited, extra)
        {
            self.msn = self.msn.next();
        }
        Ok(())
    }

    fn execute_read<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        mtu: u32,
        bth: &Bth,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        check_range(cx, reth, Access::REMOTE_READ)?;
        // RC-RESP-055: the request is a message done (IBTA C9-148), though its data is still to be
        // sent.
        let read = ReadResource::new(bth, reth, mtu, self.msn.next());
        self.remember(Resource::Read(read));
        // RC-RESP-018
        let psns = if fault!(ReadTakesOnePsn) { 1 } else { read.packets };
        self.end_single(cx, Reply::Read { read, sent: 0 }, psns);
        Ok(())
    }

    fn execute_atomic<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        mtu: u32,
        psn: Psn,
        eth: &AtomicEth,
        op: AtomicOp,
    ) -> Result<(), Refusal> {
        let Span { region, offset } =
            self.check_word(cx, mtu, eth.rkey, eth.va, Access::REMOTE_ATOMIC)?;
        let original = cx.host.atomic(region, offset, op);
        let mut original = original.map_err(|_| Refusal::Local(Cause::LocalMemory))?;
        if fault!(AtomicReturnsNewValue) {
            original = op.apply(original);
        }
        cx.qp.dirty = true;
        let atomic = AtomicResource { psn, original, msn: self.msn.next() };
        self.remember(Resource::Atomic(atomic));
        self.end_single(cx, Reply::Atomic(atomic), 1);
        Ok(())
    }

    /// Writes 8 bytes at once.
    fn execute_atomic_write<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        mtu: u32,
        psn: Psn,
        reth: &Reth,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let word = payload.try_into().map_err(|_| Refusal::InvalidRequest)?;
        // FAW-019
        let Span { region, offset } =
            self.check_word(cx, mtu, reth.rkey, reth.va, Access::REMOTE_WRITE)?;
        cx.host
            // FAW-016
            .write_atomic(region, offset, word)
            // FAW-022
            .map_err(|_| Refusal::Local(Cause::LocalMemory))?;
        cx.qp.dirty = true;
        let done = Done { psn, msn: self.msn.next() };
        self.remember(Resource::AtomicWrite(done));
        self.end_single(cx, Reply::AtomicWrite(done), 1);
        Ok(())
    }

    /// Finds the 8 bytes that are to be changed at once.
    fn check_word<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        mtu: u32,
        rkey: Rkey,
        va: u64,
        access: Access,
    ) -> Result<Span, Refusal> {
        // RC-RESP-025, FAW-018
        if !va.is_multiple_of(8) && !fault!(AtomicMisalignedTaken) {
            return Err(Refusal::InvalidRequest);
        }
        let span = check_rkey(cx, rkey, va, 8, access)?;
        self.keep_reads(cx, mtu, &span, 8);
        Ok(span)
    }

    /// Sees that earlier writes are where they shall be. There is nothing to be done but to check:
    /// no answer is sent before all writes are [visible](Host::sync). The key is checked for a
    /// FLUSH of nothing too, and so is the range, but for one of the whole MR.
    fn execute_flush<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        feth: &Feth,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        // FAW-006
        let rights = flush_rights(feth).ok_or(Refusal::InvalidRequest)?;
        let Reth { va, rkey, len } = *reth;
        let scope = cx.qp.key_scope();
        match feth.selectivity {
            // FAW-002, FAW-003, FAW-004, FAW-007
            FlushSelectivity::Range => cx.keys.remote(rkey, scope, va, u64::from(len), rights),
            _ => cx.keys.remote_all(rkey, scope, rights),
        }
        .map(drop)
        .or_else(|_| {
            if fault!(FlushKeyNotChecked) { Ok(()) } else { Err(Refusal::RemoteAccess) }
        })?;
        self.end_single(cx, Reply::Flush(Done { psn, msn: self.msn.next() }), 1);
        Ok(())
    }

    /// Executes a request that was executed before, as only a faulty responder does.
    pub(super) fn do_again<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Failure> {
        let expected = self.expected;
        self.incoming
            .check_receive(cx, &packet.headers.body)
            .and_then(|()| self.execute(cx, route, packet))
            .or_else(|refusal| self.refuse(cx, refusal))?;
        self.expected = expected;
        Ok(())
    }

    /// Keeps what was done for a repeat.
    fn remember(&mut self, resource: Resource) {
        self.resources.remember(resource, usize::from(self.parameters.max_dest_rd_atomic));
    }

    /// A request of one packet, which this reply answers, is done. The answer takes so many PSNs.
    fn end_single<H>(&mut self, cx: &mut Cx<'_, H>, reply: Reply, psns: u32) {
        self.replies.push_back(reply);
        self.expected = self.expected + psns;
        if !fault!(MsnWithoutSingles) {
            self.msn = self.msn.next();
        }
        cx.count(Counter::ReceivedMessages, 1);
    }
}
