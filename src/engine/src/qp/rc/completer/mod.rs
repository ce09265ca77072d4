//! The completer: responses to completed work requests.
//!
//! Responses come in PSN order, and each one speaks for all that the peer did before it. So every
//! response first acknowledges what lies before its PSN, and then says something about the PSN
//! itself. A response that skips a READ or atomic means that its data was lost on the way
//! (an implied NAK, IBTA 9.7.5.1.3) and the request is repeated.

mod readiness;
mod retry;

use super::values::{Allowance, Probed, Sent};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::qp::common::{Cx, Failure};
use crate::qp::parameters::RequesterParameters;
use crate::qp::send_queue::{SendQueue, distance};
use retry::{Expired, Retry};
use std::time::{Duration, Instant};
use urxe_types::{Psn, RnrTimer, WcStatus};
use urxe_wire::{Aeth, Bth, Headers, NakCode, Packet, Response, Syndrome};

/// The completer of an RC QP.
#[derive(Debug)]
pub(super) struct Completer {
    retry: Retry,
}

impl Completer {
    pub(super) fn new(parameters: RequesterParameters, mtu: u32, min_probe: Duration) -> Completer {
        Completer { retry: Retry::new(parameters, mtu, min_probe) }
    }

    pub(super) fn update(&mut self, parameters: RequesterParameters) {
        self.retry.update(parameters);
    }

    /// How much the requester may send.
    pub(super) fn allowance(&self) -> Allowance {
        self.retry.allowance()
    }

    /// The requester has sent this.
    pub(super) fn on_sent(&mut self, now: Instant, sent: Sent) {
        self.retry.on_sent(now, sent);
    }

    /// The requester has repeated the oldest packet.
    pub(super) fn on_probed(&mut self, probed: Probed) {
        self.retry.on_probed(probed);
    }

    /// Whether the requester must keep silent because of an RNR NAK.
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.retry.is_rnr_waiting()
    }

    /// The next time at which a timer runs out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry.deadline()
    }

    /// No timer runs any more.
    pub(super) fn stop_timers(&mut self) {
        self.retry.stop();
    }

    /// A response packet arrived.
    pub(super) fn handle_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        mtu: u32,
        packet: &Packet<'_, Response>,
    ) -> Result<(), Failure> {
        let Headers { bth: Bth { psn, .. }, body: response } = packet.headers;
        if !sq.is_outstanding(psn) {
            let counter = match psn.precedes(sq.una()) {
                // RC-COMP-013
                true => Counter::StaleResponses,
                // RC-COMP-012
                false => Counter::GhostResponses,
            };
            cx.count(counter, 1);
            return Ok(());
        }
        match response {
            Response::Ack(aeth) | Response::SelectiveAck { aeth } => self.on_ack(cx, sq, psn, aeth),
            // A refusal brings no data.
            _ if response.aeth().is_some_and(|aeth| !is_ack(aeth)) => bad_response(cx),
            Response::AtomicAck { original, .. } => self.on_atomic_ack(cx, sq, psn, original),
            Response::ReadFirst(_)
            | Response::ReadMiddle
            | Response::ReadLast(_)
            | Response::ReadOnly(_) => {
                self.on_read_response(cx, sq, mtu, psn, response, packet.payload)
            }
        }
    }

    /// Sees to the timers that have run out. Returns whether the oldest packet is to be repeated,
    /// to draw an answer.
    pub(super) fn handle_timers<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
    ) -> Result<bool, Failure> {
        let (mut result, mut is_to_probe) = (Ok(()), false);
        while let Some(expired) = self.retry.expire(cx.now) {
            match expired {
                Expired::Rnr => sq.rewind(),
                Expired::Ack => {
                    cx.count(Counter::AckTimeouts, 1);
                    result = self.lose_try(cx, sq, Cause::AckTimeout);
                }
                // Nothing is told by a lost READ or atomic response but asking again; where it may
                // only be late, for the oldest alone.
                Expired::Probe => match sq.front() {
                    // RC-REQ-028
                    Some(front) if front.expects_response() && self.retry.knows_path() => {
                        cx.count(Counter::Probes, 1);
                        self.go_back(sq);
                    }
                    _ => is_to_probe = true,
                },
            }
        }
        result.map(|()| is_to_probe)
    }

    fn on_ack<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        psn: Psn,
        aeth: Aeth,
    ) -> Result<(), Failure> {
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                cx.count(Counter::AcksReceived, 1);
                // RC-COMP-001: an ACK of a READ's or atomic's own PSN lacks the data.
                self.acknowledge_before(cx, sq, psn.next())?;
                // RC-REQ-027
                if self.retry.take_probed(psn) && sq.outstanding() > 0 {
                    self.go_back(sq);
                }
                Ok(())
            }
            // RC-COMP-006
            Syndrome::RnrNak { timer } => match self.acknowledge_before(cx, sq, psn)? {
                true => self.on_rnr_nak(cx, sq, timer),
                false => Ok(()),
            },
            Syndrome::Nak(NakCode::SequenceError) => {
                cx.count(Counter::SequenceNaksReceived, 1);
                match self.acknowledge_before(cx, sq, psn)? {
                    // RC-REQ-015, RC-REQ-021
                    true => self.on_loss(cx, sq, Cause::SequenceRetries),
                    false => Ok(()),
                }
            }
            Syndrome::Nak(code) => {
                cx.count(Counter::FatalNaksReceived, 1);
                if !self.acknowledge_before(cx, sq, psn)? {
                    return Ok(());
                }
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
                Err(Failure::Send(status, cause))
            }
            Syndrome::Reserved(_) => bad_response(cx),
        }
    }

    fn on_rnr_nak<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &SendQueue,
        timer: RnrTimer,
    ) -> Result<(), Failure> {
        cx.count(Counter::RnrNaksReceived, 1);
        if self.retry.is_rnr_waiting() {
            return Ok(());
        }
        if !self.retry.take_rnr_try() {
            cx.count(Counter::RnrRetriesExceeded, 1);
            return Err(Failure::Send(WcStatus::RnrRetryExceeded, Cause::RnrRetries));
        }
        self.retry.on_rewind(sq.una());
        self.retry.wait_rnr(cx.now, timer.duration());
        Ok(())
    }

    fn on_read_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        mtu: u32,
        psn: Psn,
        response: Response,
        payload: &[u8],
    ) -> Result<(), Failure> {
        // RC-COMP-002
        if !self.acknowledge_before(cx, sq, psn)? {
            return Ok(());
        }
        let Some(front) = sq.front() else { return Ok(()) };
        if front.is_placement() {
            return self.on_placed(cx, sq, response, payload);
        }
        let number = front.number(psn);
        // RC-REQ-010
        let offset = u64::from(number) * u64::from(mtu);
        let expected = (front.length() - offset.min(front.length())).min(u64::from(mtu));
        let ends_request = number + 1 == front.after(number);
        // RC-COMP-014, RC-COMP-015
        let fits =
            front.is_read() && response.ends() == ends_request && payload.len() as u64 == expected;
        if !fits {
            return bad_response(cx);
        }
        front
            .scatter(cx, offset, payload)
            .map_err(|cause| Failure::Send(WcStatus::LocalProtection, cause))?;
        match front.is_last(number) {
            true => end_front_with_data(cx, sq)?,
            false => sq.acknowledge_before(psn.next()),
        }
        self.on_progress(cx.now, sq, 1);
        Ok(())
    }

    /// The answer to a FLUSH or ATOMIC WRITE: a READ response of nothing, as rxe sends it.
    fn on_placed<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        response: Response,
        payload: &[u8],
    ) -> Result<(), Failure> {
        // FAW-015
        if !matches!(response, Response::ReadOnly(_)) || !payload.is_empty() {
            return bad_response(cx);
        }
        sq.end_front(cx);
        self.on_progress(cx.now, sq, 1);
        Ok(())
    }

    fn on_atomic_ack<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        psn: Psn,
        original: u64,
    ) -> Result<(), Failure> {
        // RC-COMP-002
        if !self.acknowledge_before(cx, sq, psn)? {
            return Ok(());
        }
        let Some(front) = sq.front() else { return Ok(()) };
        // RC-COMP-016
        if !front.is_atomic() {
            return bad_response(cx);
        }
        // RC-COMP-003: the program reads it as one of its own numbers.
        front
            .scatter(cx, 0, &original.to_ne_bytes())
            .map_err(|cause| Failure::Send(WcStatus::LocalProtection, cause))?;
        end_front_with_data(cx, sq)?;
        self.on_progress(cx.now, sq, 1);
        Ok(())
    }

    /// Takes everything before `psn` as done. Returns whether that holds: not if a READ or atomic
    /// before `psn` has no data yet, which is then asked for again.
    fn acknowledge_before<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        psn: Psn,
    ) -> Result<bool, Failure> {
        let before = sq.una();
        let reached = loop {
            let una = sq.una();
            if una == psn {
                break true;
            }
            let Some(front) = sq.front().filter(|front| front.is_started()) else { break true };
            // RC-COMP-004, RC-COMP-005, FAW-014
            if front.expects_response() {
                break false;
            }
            // `psn` is at most one past what was sent, and nothing before `una` is asked about.
            if distance(una, psn) <= distance(una, front.last_psn()) {
                sq.acknowledge_before(psn);
            } else {
                sq.end_front(cx);
            }
        };
        let progress = distance(before, sq.una());
        if progress > 0 {
            self.on_progress(cx.now, sq, progress);
        }
        if !reached {
            cx.count(Counter::ImpliedNaks, 1);
            self.on_loss(cx, sq, Cause::SequenceRetries)?;
        }
        Ok(reached)
    }

    /// The peer has done something new.
    fn on_progress(&mut self, now: Instant, sq: &SendQueue, packets: u32) {
        self.retry.on_acknowledged(now, sq.una(), packets, sq.outstanding() > 0);
    }

    /// A packet at or after the oldest PSN was lost. Repeats from there, once for each loss.
    fn on_loss<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        cause: Cause,
    ) -> Result<(), Failure> {
        // RC-COMP-007
        match self.retry.has_rewound_at(sq.una()) {
            true => Ok(()),
            false => self.lose_try(cx, sq, cause),
        }
    }

    fn lose_try<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        cause: Cause,
    ) -> Result<(), Failure> {
        // RC-REQ-017, RC-REQ-018
        if !self.retry.take_try() {
            cx.count(Counter::RetriesExceeded, 1);
            return Err(Failure::Send(WcStatus::RetryExceeded, cause));
        }
        self.go_back(sq);
        Ok(())
    }

    fn go_back(&mut self, sq: &mut SendQueue) {
        self.retry.on_loss(sq.una());
        sq.rewind();
    }
}

fn bad_response<H>(cx: &mut Cx<'_, H>) -> Result<(), Failure> {
    cx.count(Counter::BadResponses, 1);
    Err(Failure::Send(WcStatus::BadResponse, Cause::BadResponse))
}

/// Ends the oldest work request, whose data has all come: with success if the program can see it,
/// also where that is told by no completion.
fn end_front_with_data<H: Host>(cx: &mut Cx<'_, H>, sq: &mut SendQueue) -> Result<(), Failure> {
    // RC-COMP-018, ORDER-006
    if !cx.sync() {
        return Err(Failure::Send(WcStatus::LocalProtection, Cause::LocalMemory));
    }
    sq.end_front(cx);
    Ok(())
}

fn is_ack(aeth: Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}
