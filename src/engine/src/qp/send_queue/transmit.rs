//! Takes work requests off the program's queue, and has them sent one packet after the other.

use super::SendQueue;
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{Host, Taken};
use crate::limits::{MAX_MESSAGE, MAX_TAKEN_SENDS};
use crate::qp::common::{Cx, Error, Failure};
use crate::qp::message::flush_rights;
use crate::qp::sges;
use urxe_types::{Extra, QpState, QpType, SendOp, SendWqe, WcStatus};
use urxe_wire::Feth;
use urxe_wire::batch::TxBatch;

/// Why the next packet is not sent now.
pub(in crate::qp) enum Blocked {
    /// Something that will come (an acknowledgement, a doorbell, a timer) must come first.
    Wait,
    /// The batch or this QP's turn is full.
    Full,
    /// The program's queue cannot be read any more.
    Broken,
}

/// What the service allows.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Limits {
    /// The largest payload of a packet.
    pub(in crate::qp) mtu: u32,
    /// READs, atomics and ATOMIC WRITEs that may be outstanding.
    pub(in crate::qp) max_rd_atomic: u8,
}

impl SendQueue {
    /// Has `send` send what may be sent now: each time, the current packet and those of its message
    /// that may go with it, as many as it is told at most; it returns how many. Returns whether
    /// there is more, held up only by the batch's room or the end of this QP's turn.
    pub(in crate::qp) fn transmit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        budget: &mut u32,
        limits: Limits,
        mut send: impl FnMut(&mut Self, &mut Cx<'_, H>, &mut TxBatch, u32) -> Result<u32, Blocked>,
    ) -> Result<bool, Failure> {
        loop {
            match self.transmit_one(cx, tx, budget, limits, &mut send) {
                Ok(()) => {}
                Err(Blocked::Wait) => return Ok(false),
                Err(Blocked::Full) => return Ok(true),
                Err(Blocked::Broken) => return Err(Failure::BrokenQueue),
            }
        }
    }

    /// As [`transmit`](Self::transmit), for a service whose requests no peer answers: nothing is
    /// waited for, and what cannot be sent fails.
    pub(in crate::qp) fn transmit_unanswered<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        budget: &mut u32,
        mtu: u32,
        mut send: impl FnMut(&mut Self, &mut Cx<'_, H>, &mut TxBatch, u32) -> Result<u32, Error>,
    ) -> Result<bool, Failure> {
        self.transmit(cx, tx, budget, Limits { mtu, max_rd_atomic: 0 }, |sq, cx, tx, most| {
            sq.start_current();
            send(sq, cx, tx, most).map_err(|error| {
                sq.refuse_current(error);
                Blocked::Wait
            })
        })
    }

    fn transmit_one<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        budget: &mut u32,
        limits: Limits,
        send: &mut impl FnMut(&mut Self, &mut Cx<'_, H>, &mut TxBatch, u32) -> Result<u32, Blocked>,
    ) -> Result<(), Blocked> {
        if cx.qp.failure.is_some() {
            return Err(Blocked::Wait);
        }
        self.skip_arrived();
        if self.current().is_none() {
            self.take(cx, limits)?;
        }
        self.check_may_start(cx.qp.state, limits)?;
        if *budget == 0 || !tx.has_room() {
            return Err(Blocked::Full);
        }
        if self.current().is_some_and(|(pending, _)| pending.is_local()) {
            *budget -= 1;
            return self.do_current_locally(cx);
        }
        *budget -= send(self, cx, tx, *budget)?;
        Ok(())
    }

    /// Takes the next work request off the program's queue and judges it.
    fn take<H: Host>(&mut self, cx: &mut Cx<'_, H>, limits: Limits) -> Result<(), Blocked> {
        // STATE-008
        let may_take = (cx.qp.state == QpState::Rts || fault!(SqdBeginsAnew))
            && !self.is_exhausted
            && self.pending.len() < MAX_TAKEN_SENDS;
        if !may_take {
            return Err(Blocked::Wait);
        }
        let mut pending = cx.spare_sends.take();
        let taken = cx.host.next_send(cx.qp.init.send_queue, &mut pending.wqe);
        if taken == Taken::Ready {
            // HISTORY-008
            cx.count(Counter::of_posted(pending.wqe.wr.op), 1);
        }
        match taken {
            Taken::Ready => match validate(cx, &pending.wqe, limits) {
                Ok(length) => {
                    pending.length = length;
                    pending.mtu = limits.mtu;
                    pending.packets = match pending.is_local() {
                        // MW-031
                        true => 0,
                        // RC-REQ-001, RC-REQ-003, RC-REQ-007
                        false => (length.div_ceil(u64::from(limits.mtu)) as u32).max(1),
                    };
                    if pending.packets > 1 && cx.qp.init.qp_type == QpType::Ud {
                        // UD-005
                        pending.failed = Some((WcStatus::LocalLength, Cause::DatagramTooLong));
                    }
                }
                // RC-REQ-032, RC-REQ-033: it fails in its turn.
                Err(failed) => pending.failed = Some(failed),
            },
            Taken::Malformed => {
                pending.failed = Some((WcStatus::LocalQpOperation, Cause::MalformedEntry));
            }
            Taken::Empty => {
                self.is_exhausted = true;
                cx.spare_sends.put_back(pending);
                return Err(Blocked::Wait);
            }
            Taken::Broken => {
                cx.spare_sends.put_back(pending);
                return Err(Blocked::Broken);
            }
        }
        self.push(pending);
        Ok(())
    }

    /// What must wait: one that failed; one with a fence, an invalidation, a READ or atomic beyond
    /// the peer's resources for work requests before it; one that has not begun for the end of SQD.
    fn check_may_start(&mut self, state: QpState, limits: Limits) -> Result<(), Blocked> {
        let responses_expected = self.responses_expected;
        let is_resending = self.is_resending();
        let takes_resource = self.current().is_some_and(|(pending, _)| pending.takes_resource());
        // RC-REQ-012, FAW-021
        let beyond = takes_resource
            && !is_resending
            && self.has_asked(limits.max_rd_atomic.into())
            && !fault!(MaxRdAtomicExceeded);
        let is_oldest = self.is_current_oldest();
        let Some((pending, _)) = self.current() else { return Err(Blocked::Wait) };
        let fenced = !pending.started
            && match pending.wqe.wr.op {
                // MW-032: what is before it may still need the key (IBTA 10.6.5.1; rxe waits
                // always).
                SendOp::LocalInvalidate { .. } => !is_oldest,
                // RC-REQ-013, FAW-013
                _ => pending.wqe.wr.fence && responses_expected > 0 && !fault!(FenceIgnored),
            };
        // STATE-005, STATE-030, MW-035
        let draining = !pending.started && state == QpState::Sqd && !fault!(SqdBeginsAnew);
        match pending.failed.is_some() || fenced || beyond || draining {
            true => Err(Blocked::Wait),
            false => Ok(()),
        }
    }
}

/// Whether a work request can be done as far as our own side is concerned; its length.
fn validate<H>(cx: &Cx<'_, H>, wqe: &SendWqe, limits: Limits) -> Result<u64, Error> {
    if !exists_on(cx.qp.init.qp_type, wqe.wr.op) {
        return Err((WcStatus::LocalQpOperation, Cause::NotOfThisTransport));
    }
    let (writes_here, is_atomic) = match wqe.wr.op {
        SendOp::Send(_) | SendOp::Write { .. } => (false, false),
        SendOp::Read { .. } => (true, false),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (true, true),
        SendOp::AtomicWrite { .. } => (false, true),
        // FAW-011
        SendOp::Flush { length, placement, selectivity, .. } => {
            return validate_flush(length, &Feth { selectivity, placement });
        }
        // They are judged when they are done.
        SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. } => return Ok(0),
    };
    // RC-REQ-036
    if (writes_here || is_atomic) && limits.max_rd_atomic == 0 {
        return Err((WcStatus::LocalQpOperation, Cause::NoReadsAllowed));
    }
    if writes_here && wqe.inline.is_some() {
        return Err((WcStatus::LocalQpOperation, Cause::MalformedEntry));
    }
    let inline = wqe.inline.as_ref().map(|data| data.len() as u64);
    let length = inline.unwrap_or_else(|| sges::total(&wqe.sges));
    // RC-REQ-035, RC-REQ-038, FAW-023
    if length > MAX_MESSAGE || (is_atomic && length != 8) {
        return Err((WcStatus::LocalLength, Cause::LocalLength));
    }
    // RC-REQ-008, RC-REQ-034: where the answer goes is checked when it is placed there, as rxe
    // and hardware do: the peer's refusal is told before our own, and an atomic is executed all
    // the same.
    if inline.is_some() || writes_here {
        return Ok(length);
    }
    sges::check(cx.keys, cx.qp.init.pd, &wqe.sges)
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
    Ok(length)
}

/// Whether a transport service has an operation.
fn exists_on(qp_type: QpType, op: SendOp) -> bool {
    let is_send = matches!(op, SendOp::Send(Extra::None | Extra::Imm(_)));
    let is_local = matches!(op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. });
    match qp_type {
        QpType::Rc => true,
        // UC-004, MW-036
        QpType::Uc => is_send || is_local || matches!(op, SendOp::Write { .. }),
        // UD-010, MW-036
        QpType::Ud => is_send,
    }
}

/// Whether a FLUSH can be asked for. It has no data, so its length is 0.
fn validate_flush(length: u32, feth: &Feth) -> Result<u64, Error> {
    if u64::from(length) > MAX_MESSAGE {
        return Err((WcStatus::LocalLength, Cause::LocalLength));
    }
    match flush_rights(feth) {
        Some(_) => Ok(0),
        // FAW-006
        None => Err((WcStatus::LocalQpOperation, Cause::FlushKind)),
    }
}
