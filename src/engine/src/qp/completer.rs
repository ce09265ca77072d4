//! The completer: responses to completed work requests.
//!
//! Responses come in PSN order, and each one speaks for all that the peer did before it. So every
//! response first acknowledges what lies before its PSN, and then says something about the PSN
//! itself. A response that skips a READ or atomic means that its data was lost on the way
//! (an implied NAK, IBTA 9.7.5.1.3) and the request is repeated.

use super::send_queue::{Pending, distance};
use super::sges::Space;
use super::{Cx, Failure, Qp};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use urxe_types::{Completion, Extra, Psn, QpState, Qpn, RnrTimer, SendOp, WcOpcode, WcStatus};
use urxe_wire::{Aeth, Bth, Headers, NakCode, Packet, Response, Syndrome};

impl Qp {
    /// A response packet arrived: an ACK, a NAK, or data.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Response>,
    ) {
        // STATE-014
        // STATE-002
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            // COUNT-009
            return self.count(cx, Counter::DropQpNotReady, 1);
        }
        let Headers { bth: Bth { psn, .. }, body: response } = packet.headers;
        if !self.sq.is_outstanding(psn) {
            let counter = match psn.precedes(self.sq.una()) {
                // RC-COMP-013
                true => Counter::StaleResponses,
                // RC-COMP-012
                false => Counter::GhostResponses,
            };
            return self.count(cx, counter, 1);
        }
        match response {
            Response::Ack(aeth) => self.on_ack(cx, psn, aeth),
            // A refusal brings no data.
            _ if response.aeth().is_some_and(|aeth| !is_ack(aeth)) => self.bad_response(cx),
            Response::AtomicAck { original, .. } => self.on_atomic_ack(cx, psn, original),
            Response::ReadFirst(_)
            | Response::ReadMiddle
            | Response::ReadLast(_)
            | Response::ReadOnly(_) => self.on_read_response(cx, psn, response, packet.payload),
        }
    }

    /// What to do when a timer of the requester has run out.
    pub(crate) fn handle_timers<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        use super::retry::Expired;
        let timeout = self.ack_timeout();
        while let Some(expired) = self.retry.expire(cx.now, timeout) {
            match expired {
                Expired::Rnr => {
                    self.retry.rewound_at = None;
                    self.sq.rewind();
                }
                Expired::Ack => {
                    self.count(cx, Counter::AckTimeouts, 1);
                    self.lose_try(cx, Cause::AckTimeout);
                }
                // Nothing is told by a lost READ or atomic response but asking again; where it may
                // only be late, for the oldest alone.
                Expired::Probe => match self.sq.front() {
                    // RC-REQ-028
                    Some(front) if front.expects_response() && self.retry.knows_path() => {
                        self.count(cx, Counter::Probes, 1);
                        self.go_back();
                    }
                    _ => self.requester.probe = true,
                },
            }
        }
    }

    fn on_ack<H: Host>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.count(cx, Counter::AcksReceived, 1);
                // RC-COMP-001: an ACK of a READ's or atomic's own PSN lacks the data.
                self.acknowledge_before(cx, psn.next());
                // RC-REQ-027
                if self.retry.take_probed(psn) && self.sq.outstanding() > 0 {
                    self.go_back();
                }
            }
            Syndrome::RnrNak { timer } => {
                // RC-COMP-006
                if self.acknowledge_before(cx, psn) {
                    self.on_rnr_nak(cx, timer);
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.count(cx, Counter::SequenceNaksReceived, 1);
                if self.acknowledge_before(cx, psn) {
                    self.on_loss(cx, Cause::SequenceRetries);
                }
            }
            Syndrome::Nak(code) => {
                self.count(cx, Counter::FatalNaksReceived, 1);
                if self.acknowledge_before(cx, psn) {
                    let (status, cause) = match code {
                        NakCode::InvalidRequest => {
                            // RC-COMP-008
                            (WcStatus::RemoteInvalidRequest, Cause::PeerInvalidRequest)
                        }
                        // RC-COMP-009
                        NakCode::RemoteAccess => (WcStatus::RemoteAccess, Cause::PeerRemoteAccess),
                        NakCode::RemoteOperational => {
                            // RC-COMP-010
                            (WcStatus::RemoteOperation, Cause::PeerRemoteOperation)
                        }
                        // RC-COMP-017
                        _ => (WcStatus::BadResponse, Cause::BadResponse),
                    };
                    self.failure = Some(Failure::Send(status, cause));
                }
            }
            Syndrome::Reserved(_) => self.bad_response(cx),
        }
    }

    fn on_rnr_nak<H: Host>(&mut self, cx: &mut Cx<'_, H>, timer: RnrTimer) {
        self.count(cx, Counter::RnrNaksReceived, 1);
        if self.retry.is_rnr_waiting() {
            return;
        }
        // RC-REQ-039: the peer is there: only its silence uses up the other tries.
        self.retry.tries = self.attr.retry_cnt.unwrap_or(0);
        match self.retry.rnr_tries {
            0 => {
                self.count(cx, Counter::RnrRetriesExceeded, 1);
                self.failure = Some(Failure::Send(WcStatus::RnrRetryExceeded, Cause::RnrRetries));
                return;
            }
            // RC-REQ-024
            7 => {}
            // RC-REQ-023
            _ => self.retry.rnr_tries -= 1,
        }
        self.retry.on_rewind(self.sq.una());
        let wait = self.retry.readiness.on_refused(timer.duration());
        self.retry.wait_rnr(cx.now, wait);
    }

    fn on_read_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        response: Response,
        payload: &[u8],
    ) {
        if !self.acknowledge_before(cx, psn) {
            return;
        }
        let mtu = u64::from(self.path().mtu);
        let pd = self.init.pd;
        let Some(front) = self.sq.front() else { return };
        if front.is_placement() {
            return self.on_placed(cx, response, payload);
        }
        let number = distance(front.first_psn, psn);
        // RC-REQ-010
        let offset = u64::from(number) * mtu;
        let is_last = number + 1 == front.packets;
        let expected = (front.length - offset.min(front.length)).min(mtu);
        let ends_request = number + 1 == front.after(number);
        let fits =
            front.is_read() && response.ends() == ends_request && payload.len() as u64 == expected;
        if !fits {
            return self.bad_response(cx);
        }
        // A copy that fails may have written a part.
        self.dirty = true;
        let mut space = Space { keys: cx.keys, pd, host: cx.host };
        let Pending { wqe, walk, .. } = front;
        if let Err(cause) = space.scatter(walk, &wqe.sges, offset, payload) {
            self.failure = Some(Failure::Send(WcStatus::LocalProtection, cause));
            return;
        }
        match is_last {
            true => self.end_front_with_data(cx),
            false => self.sq.acknowledge_before(psn.next()),
        }
        self.on_progress(cx, 1);
    }

    /// The answer to a FLUSH or ATOMIC WRITE: a READ response of nothing, as rxe sends it.
    fn on_placed<H: Host>(&mut self, cx: &mut Cx<'_, H>, response: Response, payload: &[u8]) {
        if !matches!(response, Response::ReadOnly(_)) || !payload.is_empty() {
            return self.bad_response(cx);
        }
        self.end_front(cx);
        self.on_progress(cx, 1);
    }

    fn on_atomic_ack<H: Host>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, original: u64) {
        if !self.acknowledge_before(cx, psn) {
            return;
        }
        let pd = self.init.pd;
        let Some(front) = self.sq.front() else { return };
        // RC-COMP-016
        if !front.is_atomic() {
            return self.bad_response(cx);
        }
        // A copy that fails may have written a part.
        self.dirty = true;
        let mut space = Space { keys: cx.keys, pd, host: cx.host };
        let Pending { wqe, walk, .. } = front;
        // The program reads it as one of its own numbers.
        let value = original.to_ne_bytes();
        if let Err(cause) = space.scatter(walk, &wqe.sges, 0, &value) {
            self.failure = Some(Failure::Send(WcStatus::LocalProtection, cause));
            return;
        }
        self.end_front_with_data(cx);
        self.on_progress(cx, 1);
    }

    /// Takes everything before `psn` as done. Returns whether that holds: not if a READ or atomic
    /// before `psn` has no data yet, which is then asked for again.
    fn acknowledge_before<H: Host>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> bool {
        let before = self.sq.una();
        let reached = loop {
            let una = self.sq.una();
            if una == psn {
                break true;
            }
            let Some(front) = self.sq.front().filter(|front| front.started) else { break true };
            // RC-COMP-004, RC-COMP-005, FAW-014
            if front.expects_response() {
                break false;
            }
            // `psn` is at most one past what was sent, and nothing before `una` is asked about.
            if distance(una, psn) <= distance(una, front.last_psn()) {
                self.sq.acknowledge_before(psn);
            } else {
                self.end_front(cx);
            }
        };
        let progress = distance(before, self.sq.una());
        if progress > 0 {
            self.on_progress(cx, progress);
        }
        if !reached {
            self.count(cx, Counter::ImpliedNaks, 1);
            self.on_loss(cx, Cause::SequenceRetries);
        }
        reached
    }

    /// The peer has done something new.
    fn on_progress<H>(&mut self, cx: &mut Cx<'_, H>, packets: u32) {
        let una = self.sq.una();
        if self.retry.timed_psn().is_some_and(|timed| timed.precedes(una)) {
            self.retry.on_timed_acknowledged(cx.now);
        }
        // RC-REQ-019
        self.retry.tries = self.attr.retry_cnt.unwrap_or(0);
        self.retry.rnr_tries = self.attr.rnr_retry.unwrap_or(0);
        self.retry.window.on_acknowledged(packets);
        self.retry.readiness.on_acknowledged(una);
        let waiting = self.sq.outstanding() > 0;
        let timeout = self.ack_timeout();
        self.retry.on_progress(cx.now, waiting, timeout, cx.config.min_probe);
    }

    /// A packet at or after the oldest PSN was lost. Repeats from there, once for each loss.
    fn on_loss<H>(&mut self, cx: &mut Cx<'_, H>, cause: Cause) {
        // RC-COMP-007
        if self.retry.rewound_at != Some(self.sq.una()) {
            self.lose_try(cx, cause);
        }
    }

    fn lose_try<H>(&mut self, cx: &mut Cx<'_, H>, cause: Cause) {
        match self.retry.tries.checked_sub(1) {
            // RC-REQ-017, RC-REQ-018
            Some(left) => {
                self.retry.tries = left;
                self.go_back();
            }
            None => {
                self.count(cx, Counter::RetriesExceeded, 1);
                self.failure = Some(Failure::Send(WcStatus::RetryExceeded, cause));
            }
        }
    }

    fn go_back(&mut self) {
        self.retry.window.on_loss();
        self.retry.on_rewind(self.sq.una());
        self.sq.rewind();
    }

    fn bad_response<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.count(cx, Counter::BadResponses, 1);
        self.failure = Some(Failure::Send(WcStatus::BadResponse, Cause::BadResponse));
    }

    /// Ends the oldest work request, whose data has all come: with success if the program can see
    /// it, also where that is told by no completion.
    fn end_front_with_data<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        // RC-COMP-018, ORDER-006
        match self.sync(cx) {
            true => self.end_front(cx),
            false => {
                self.failure = Some(Failure::Send(WcStatus::LocalProtection, Cause::LocalMemory));
            }
        }
    }

    /// Ends the oldest work request successfully, and the local operations after it that were
    /// done long ago.
    pub(crate) fn end_front<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        // RC-REQ-014
        while let Some(pending) = self.sq.pop_front() {
            self.count(cx, Counter::SentMessages, 1);
            // RC-REQ-041
            cx.host.retire_send(self.init.send_queue);
            // RC-REQ-009
            if pending.wqe.signaled {
                self.complete_send(cx, &pending, WcStatus::Success, Cause::None);
            }
            self.sq.put_back(pending);
            if !self.sq.front().is_some_and(|next| next.is_local() && next.started) {
                return;
            }
        }
    }

    /// Puts a send completion on the CQ.
    pub(crate) fn complete_send<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        pending: &Pending,
        status: WcStatus,
        cause: Cause,
    ) {
        let opcode = match pending.wqe.op {
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
            wr_id: pending.wqe.wr_id,
            status,
            opcode,
            vendor_err: cause as u32,
            // RC-COMP-021
            byte_len: pending.length as u32,
            extra: Extra::None,
            qpn: self.qpn,
            src_qpn: Qpn::new(0),
            grh: None,
            solicited: status != WcStatus::Success,
        };
        self.complete(cx, self.init.send_cq, &completion);
    }
}

fn is_ack(aeth: Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}
