//! The requester: work requests to request packets.

use super::values::{Allowance, Probed, Sent};
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::READS_IN_WINDOW;
use crate::qp::common::Cx;
use crate::qp::parameters::{RequesterParameters, Route};
use crate::qp::send_queue::{Blocked, SendQueue};
use urxe_wire::batch::TxBatch;

/// The requester of an RC QP.
#[derive(Debug)]
pub(super) struct Requester {
    /// READs, atomics and ATOMIC WRITEs that may be outstanding.
    max_rd_atomic: u8,
    /// Packets sent since one asked for an acknowledgement.
    since_ack_req: u32,
    /// One packet is to be sent again, to draw an answer.
    is_to_probe: bool,
}

impl Requester {
    pub(super) fn new(parameters: RequesterParameters) -> Requester {
        let max_rd_atomic = parameters.max_rd_atomic;
        Requester { max_rd_atomic, since_ack_req: 0, is_to_probe: false }
    }

    pub(super) fn update(&mut self, parameters: RequesterParameters) {
        self.max_rd_atomic = parameters.max_rd_atomic;
    }

    pub(super) fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic
    }

    /// An answer is late: the oldest packet is sent again with the next turn.
    pub(super) fn probe_next(&mut self) {
        self.is_to_probe = true;
    }

    pub(super) fn is_to_probe(&self) -> bool {
        self.is_to_probe
    }

    /// Puts the current packet of the send queue into the batch, if it may be sent, and moves on.
    pub(super) fn send_current<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        route: &Route,
        allowance: Allowance,
    ) -> Result<Sent, Blocked> {
        let Allowance { window, is_next_the_last, .. } = allowance;
        let in_flight = sq.in_flight();
        check_window(sq, in_flight, allowance)?;
        // RC-REQ-011
        sq.start_current(self.per_read_request(window));
        let Some((pending, packet)) = sq.current() else { return Err(Blocked::Wait) };
        let takes_receive = pending.takes_receive_at(packet);
        // RC-REQ-030
        let asks_for_ack = in_flight + 1 >= window
            || self.since_ack_req + 1 >= (window / 4).max(1)
            || (takes_receive && is_next_the_last)
            // RC-REQ-001
            || pending.ends_request(packet);
        let sent = pending.put_packet(cx, tx, route, packet, asks_for_ack, |r| Some(r.into()));
        let psn = sent.map_err(|error| {
            sq.refuse_current(error);
            Blocked::Wait
        })?;
        self.since_ack_req = if asks_for_ack { 0 } else { self.since_ack_req + 1 };
        let is_repeated = sq.is_outstanding(psn);
        // COUNT-013
        if is_repeated {
            cx.count(Counter::RetransmittedPackets, 1);
        }
        sq.sent_current();
        Ok(Sent { psn, is_repeated, asks_for_ack, takes_receive })
    }

    /// PSNs that a READ request asks for at most. They come in one burst, which the window is to
    /// bound; and the burst of one request shows that the end of the one before was lost, so
    /// several are under way if the peer allows.
    fn per_read_request(&self, window: u32) -> u32 {
        let at_once = u32::from(self.max_rd_atomic).clamp(1, READS_IN_WINDOW);
        (window / at_once).max(1)
    }

    /// Repeats the oldest packet that is not acknowledged, if it is time to. If the peer has it,
    /// it acknowledges all that it has; if not, it takes it and the repair begins.
    pub(super) fn send_probe<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        route: &Route,
    ) -> Option<Probed> {
        if !std::mem::take(&mut self.is_to_probe) || !tx.has_room() {
            return None;
        }
        let psn = sq.una();
        let front = sq.front().filter(|front| front.is_started())?;
        let packet = front.number(psn);
        // Only memory that has gone can prevent it, which shows elsewhere.
        front.put_packet(cx, tx, route, packet, true, |request| Some(request.into())).ok()?;
        cx.count(Counter::Probes, 1);
        cx.count(Counter::RetransmittedPackets, 1);
        Some(Probed { psn, sent: psn + sq.outstanding() })
    }
}

/// A READ request counts with all its responses: they are in flight towards us. The first thing in
/// flight may always go. Nothing goes behind what a peer may have no receive for.
fn check_window(sq: &mut SendQueue, in_flight: u32, allowance: Allowance) -> Result<(), Blocked> {
    // RC-REQ-042
    if !allowance.may_send {
        return Err(Blocked::Wait);
    }
    let Some((pending, packet)) = sq.current() else { return Err(Blocked::Wait) };
    let needs = pending.after(packet) - packet;
    // RC-REQ-029
    match in_flight == 0 || in_flight.saturating_add(needs) <= allowance.window {
        true => Ok(()),
        false => Err(Blocked::Wait),
    }
}
