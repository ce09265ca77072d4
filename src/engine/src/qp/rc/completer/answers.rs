//! Answers of their own: to READs and atomics, which bring data, and to what is to be placed.

use super::{Completer, bad_response};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::path::{Direction, PathId};
use crate::qp::common::{Cx, Failure};
use crate::qp::parameters::Route;
use crate::qp::send_queue::SendQueue;
use urxe_types::{Psn, WcStatus};
use urxe_wire::{Bth, Headers, Packet, Response};

impl Completer {
    pub(super) fn on_read_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        route: &Route,
        packet: &Packet<'_, Response>,
    ) -> Result<(), Failure> {
        let Headers { bth: Bth { psn, .. }, body: response } = packet.headers;
        let payload = packet.payload;
        let has_arrived = sq.has_arrived(psn);
        let (begins_part, ends_part) = sq.bounds_of_request(psn);
        let Some((pending, number)) = sq.find(psn) else { return Ok(()) };
        if pending.is_placement() {
            return self.on_placed(cx, sq, path, psn, response, payload);
        }
        // RC-REQ-010
        let offset = u64::from(number) * u64::from(route.mtu);
        let length = pending.length();
        let expected = (length - offset.min(length)).min(u64::from(route.mtu));
        // What was asked for again comes in other parts, and perhaps also as it was.
        let begins_request = number == 0 || begins_part;
        let ends_request = pending.is_last(number) || ends_part;
        let is_as_asked = pending.is_repeated()
            || fault!(ResponseOrderNotChecked)
            // TRAIN-021
            || (pending.may_come_in_onlys() && matches!(response, Response::ReadOnly(_)))
            || (response.begins(), response.ends()) == (begins_request, ends_request);
        let is_of_other_length =
            payload.len() as u64 != expected && !fault!(ResponseLengthNotChecked);
        // RC-COMP-014, RC-COMP-015
        if !pending.is_read() || !is_as_asked || is_of_other_length {
            return bad_response(cx);
        }
        if has_arrived {
            self.on_stale(cx, path, psn, response);
            return Ok(());
        }
        // REPAIR-051: wherever it comes in the order.
        let placed = pending.scatter(cx, offset, payload);
        refuse_unless_placed(sq, psn, placed);
        self.on_answered(cx, sq, path, psn)
    }

    /// An answer has come once more. If it was asked for again because it was late, that was
    /// needless: an answer that was lost comes once.
    pub(super) fn on_stale<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        path: PathId,
        psn: Psn,
        response: Response,
    ) {
        cx.count(Counter::StaleResponses, 1);
        if response.is_read() && self.retry.take_late(psn) {
            cx.count(Counter::NeedlessRepeats, 1);
            let path = cx.paths.get_mut(path);
            path.round_trip.on_needless_repeat(cx.now);
            path.lane_mut(Direction::Inward).congestion.on_not_lost();
        }
    }

    /// The answer to a FLUSH or ATOMIC WRITE: a READ response of nothing, as rxe sends it.
    fn on_placed<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
        response: Response,
        payload: &[u8],
    ) -> Result<(), Failure> {
        // FAW-015
        if !matches!(response, Response::ReadOnly(_)) || !payload.is_empty() {
            return bad_response(cx);
        }
        self.on_answered(cx, sq, path, psn)
    }

    pub(super) fn on_atomic_ack<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
        original: u64,
    ) -> Result<(), Failure> {
        if sq.has_arrived(psn) {
            cx.count(Counter::StaleResponses, 1);
            return Ok(());
        }
        let Some((pending, _)) = sq.find(psn) else { return Ok(()) };
        // RC-COMP-016
        if !pending.is_atomic() && !fault!(AtomicAnswerToAnythingTaken) {
            return bad_response(cx);
        }
        // RC-COMP-003: the program reads it as one of its own numbers.
        let placed = pending.scatter(cx, 0, &original.to_ne_bytes());
        refuse_unless_placed(sq, psn, placed);
        self.on_answered(cx, sq, path, psn)
    }

    /// The answer to `psn` has come, and is where it belongs.
    fn on_answered<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
    ) -> Result<(), Failure> {
        if sq.advance_in_turn(cx, psn)? {
            self.untold.expect_more();
            self.on_progress(cx, sq, path, 1);
        } else {
            if sq.on_arrived_psn(psn) {
                self.retry.restore_tries();
                self.on_progress(cx, sq, path, 0);
            }
            // RC-COMP-002
            self.acknowledge_before(cx, sq, path, psn)?;
        }
        self.end_probe(cx, sq, path, psn, false);
        Ok(())
    }
}

/// An answer has no place: its work request fails when all before it have ended.
fn refuse_unless_placed(sq: &mut SendQueue, psn: Psn, placed: Result<(), Cause>) {
    if let Err(cause) = placed {
        sq.refuse(psn, (WcStatus::LocalProtection, cause));
    }
}
