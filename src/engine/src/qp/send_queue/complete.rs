//! Work requests end: with success, with an error, or flushed.

use super::{Pending, SendQueue, distance};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{Host, Taken};
use crate::qp::common::{Cx, Failure};
use urxe_types::{Completion, Extra, Psn, Qpn, SendOp, WcOpcode, WcStatus};

impl SendQueue {
    /// Ends the work requests that are done, oldest first: with success if the program can see
    /// their data, also where that is told by no completion. Returns how many PSNs more are
    /// acknowledged.
    pub(in crate::qp) fn advance<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> Result<u32, Failure> {
        let before = self.una;
        while let Some(front) = self.pending.front().filter(|front| front.started) {
            if front.failed.is_some() {
                break;
            }
            let to = self.done_to(front);
            let ends_early = to != self.una && fault!(PartEndsMessage);
            if to != front.first_psn + front.packets && !ends_early {
                if to != self.una {
                    self.advance_una(to);
                }
                break;
            }
            self.end_done(cx)?;
        }
        Ok(distance(before, self.una))
    }

    /// The answer to `psn` has arrived. If it is one to a READ and [in its
    /// turn](Self::is_answer_in_turn), moves on behind it; otherwise nothing is done. Returns
    /// whether it was.
    pub(in crate::qp) fn advance_in_turn<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
    ) -> Result<bool, Failure> {
        if !self.is_answer_in_turn(psn) {
            return Ok(false);
        }
        match self.pending.front().is_some_and(|front| front.is_last(front.number(psn))) {
            true => self.end_done(cx)?,
            false => self.advance_una(psn.next()),
        }
        Ok(true)
    }

    /// Ends the oldest work request successfully, if the program can see its data.
    fn end_done<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Failure> {
        // RC-COMP-018, ORDER-006
        if self.pending.front().is_some_and(|front| front.expects_response()) && !cx.sync() {
            return Err(Failure::Send(WcStatus::LocalProtection, Cause::LocalMemory));
        }
        self.end_front(cx);
        Ok(())
    }

    /// Ends the oldest work request successfully, and the local operations after it that were
    /// done long ago.
    pub(in crate::qp) fn end_front<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        // RC-REQ-014
        while let Some(pending) = self.pop_front() {
            cx.count(Counter::SentMessages, 1);
            cx.qp.history.done(pending.length);
            // RC-REQ-041
            cx.host.retire_send(cx.qp.init.send_queue);
            // RC-REQ-009
            if pending.wqe.wr.signaled || fault!(UnsignaledCompletes) {
                complete(cx, &pending, WcStatus::Success, Cause::None);
            }
            cx.spare_sends.put_back(pending);
            if !self.front().is_some_and(|next| next.is_local() && next.started) {
                return;
            }
        }
    }

    /// Ends the oldest work request with an error.
    pub(in crate::qp) fn fail_front<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        status: WcStatus,
        cause: Cause,
    ) {
        if let Some(pending) = self.pop_front() {
            cx.host.retire_send(cx.qp.init.send_queue);
            // RC-COMP-011
            if pending.wqe.wr.signaled || !fault!(UnsignaledErrorNotTold) {
                complete(cx, &pending, status, cause);
            }
        }
    }

    /// Ends everything that is posted with a flush error.
    pub(in crate::qp) fn flush<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        loop {
            let pending = match self.pop_front() {
                Some(pending) => pending,
                None => {
                    let mut pending = cx.spare_sends.take();
                    match cx.host.next_send(cx.qp.init.send_queue, &mut pending.wqe) {
                        Taken::Ready | Taken::Malformed => pending,
                        Taken::Empty | Taken::Broken => break,
                    }
                }
            };
            cx.count(Counter::FlushedRequests, 1);
            cx.host.retire_send(cx.qp.init.send_queue);
            // STATE-009, STATE-033
            if pending.wqe.wr.signaled || !fault!(UnsignaledNotFlushed) {
                complete(cx, &pending, WcStatus::WrFlush, cx.qp.flush_cause);
            }
            cx.spare_sends.put_back(pending);
        }
        self.is_exhausted = true;
    }
}

/// Puts the completion of a work request on the CQ.
fn complete<H: Host>(cx: &mut Cx<'_, H>, pending: &Pending, status: WcStatus, cause: Cause) {
    let opcode = match pending.wqe.wr.op {
        SendOp::Send(_) => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
        SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
    };
    let completion = Completion {
        wr_id: pending.wqe.wr.wr_id,
        status,
        opcode,
        // CQ-017
        vendor_err: cause as u32,
        // RC-COMP-021
        byte_len: pending.length as u32,
        extra: Extra::None,
        qpn: cx.qp.qpn,
        src_qpn: Qpn::new(0),
        grh: None,
        solicited: status != WcStatus::Success,
    };
    cx.complete(cx.qp.init.send_cq, &completion);
}
