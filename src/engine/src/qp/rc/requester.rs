//! The requester: work requests to request packets.

use super::turns::Turns;
use super::values::{Allowance, Probed, Sent};
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::{
    FIRST_ACK_PACKETS, MAX_OUTSTANDING, PACKETS_PER_ACK, READS_IN_WINDOW, SHORT_READ_PACKETS,
    UNIFORM_READ_PACKETS,
};
use crate::path::{Direction, Lane, PathId};
use crate::qp::common::Cx;
use crate::qp::parameters::{RequesterParameters, Route};
use crate::qp::send_queue::{Blocked, SendQueue};
use crate::tuning::WireForm;
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
    turns: Turns,
}

impl Requester {
    pub(super) fn new(parameters: RequesterParameters) -> Requester {
        Requester {
            max_rd_atomic: parameters.max_rd_atomic,
            since_ack_req: 0,
            is_to_probe: false,
            turns: Turns::default(),
        }
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

    /// Its turn in a lane has come: it may send so much.
    pub(super) fn on_released(&mut self, direction: Direction, bytes: u64) {
        self.turns.on_released(direction, bytes);
    }

    /// Its turn in a lane has come, and it has no use for it.
    pub(super) fn on_refused(&mut self, direction: Direction) {
        self.turns.on_refused(direction);
    }

    /// What it was released for in a lane goes back.
    pub(super) fn give_back(&mut self, lane: &mut Lane, direction: Direction) -> bool {
        self.turns.give_back(lane, direction)
    }

    /// Its turn is over.
    pub(super) fn end_turn<H>(&mut self, cx: &mut Cx<'_, H>, path: PathId) {
        for direction in [Direction::Outward, Direction::Inward] {
            if self.give_back(cx.paths.get_mut(path).lane_mut(direction), direction) {
                cx.paths.look_at(path);
            }
        }
    }

    /// Puts the current packet of the send queue into the batch, if it may be sent, and moves on.
    pub(super) fn send_current<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        path: PathId,
        route: &Route,
        allowance: Allowance,
    ) -> Result<Sent, Blocked> {
        // RC-REQ-042
        if !allowance.may_send || sq.outstanding() >= MAX_OUTSTANDING {
            return Err(Blocked::Wait);
        }
        sq.start_current();
        let Some((pending, packet)) = sq.current() else { return Err(Blocked::Wait) };
        let (direction, packets) = (pending.direction(), pending.packets());
        let path_now = cx.paths.get_mut(path);
        let is_known = path_now.round_trip.smoothed().is_some();
        let lane = path_now.lane_mut(direction);
        // RC-REQ-011
        let most = self.packets_per_read(route.wire, lane, packets, route.mtu);
        let end = sq.end_of_current(most);
        let Some((pending, _)) = sq.current() else { return Err(Blocked::Wait) };
        let bytes = pending.bytes(packet..end);
        let (now, qpn) = (cx.now, cx.qp.qpn);
        // RC-REQ-029
        if !self.turns.admit(lane, direction, now, qpn, bytes) {
            cx.paths.look_at(path);
            return Err(Blocked::Wait);
        }
        let takes_receive = pending.takes_receive_at(packet);
        self.turns.on_sent(lane, direction, now, bytes, end - packet);
        let packets_per_ack = packets_per_ack(lane, route.mtu);
        // RC-REQ-044: should all that follows be lost, the path is known at least.
        let is_first_of_many = packet == 0 && packets > FIRST_ACK_PACKETS && !is_known;
        let is_held_after = !self.turns.may_follow(lane, direction, now, bytes);
        // RC-REQ-030
        let asks_for_ack = is_held_after
            || self.since_ack_req + 1 >= packets_per_ack
            || (takes_receive && allowance.is_next_the_last)
            || is_first_of_many
            // RC-REQ-001
            || pending.ends_request(packet);
        let sent = pending.put_packet(cx, tx, route, packet..end, asks_for_ack, |r| Some(r.into()));
        let psn = match sent {
            Ok(psn) => psn,
            Err(error) => {
                cx.paths.get_mut(path).lane_mut(direction).forget(bytes);
                sq.refuse_current(error);
                return Err(Blocked::Wait);
            }
        };
        self.since_ack_req = if asks_for_ack { 0 } else { self.since_ack_req + 1 };
        let is_repeated = sq.is_outstanding(psn);
        // COUNT-013
        if is_repeated {
            cx.count(Counter::RetransmittedPackets, 1);
        }
        sq.sent_current(end);
        Ok(Sent { psn, is_repeated, asks_for_ack, takes_receive })
    }

    /// PSNs that a READ request asks for at most. They come in one burst, which the window is to
    /// bound; and the burst of one request shows that the end of the one before was lost, so
    /// several are under way if the peer allows. A short READ is asked for in parts whose answers
    /// are all of one size.
    fn packets_per_read(&self, form: WireForm, lane: &Lane, packets: u32, mtu: u32) -> u32 {
        let at_once = u32::from(self.max_rd_atomic).clamp(1, READS_IN_WINDOW);
        let window = (lane.window() / u64::from(mtu)) as u32;
        let bound = (window / at_once).max(1);
        let is_split = form == WireForm::Uniform
            && packets <= SHORT_READ_PACKETS
            && u32::from(self.max_rd_atomic) >= READS_IN_WINDOW;
        // TRAIN-020
        if is_split { bound.min(UNIFORM_READ_PACKETS) } else { bound }
    }

    /// Sends packets again that were lost, as far as there is room for them. Returns whether there
    /// are more, held up only by the batch's room or the end of this QP's turn.
    pub(super) fn send_repeats<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        path: PathId,
        route: &Route,
        budget: &mut u32,
    ) -> bool {
        while let Some(psn) = sq.first_lost() {
            if *budget == 0 || !tx.has_room() {
                return true;
            }
            let Some(end) = sq.end_of_repeat_at(psn) else { break };
            let Some((pending, packet)) = sq.find(psn) else { break };
            let (direction, end_psn) = (pending.direction(), psn + (end - packet));
            let bytes = sq.bytes_of_repeat(psn, end_psn);
            let lane = cx.paths.get_mut(path).lane_mut(direction);
            if !self.turns.may_repeat(lane, direction, cx.now, bytes) {
                self.turns.wait(lane, direction, cx.qp.qpn);
                cx.paths.look_at(path);
                break;
            }
            let Some((pending, _)) = sq.find(psn) else { break };
            let sent = pending.put_packet(cx, tx, route, packet..end, true, |r| Some(r.into()));
            if let Err(error) = sent {
                sq.refuse(psn, error);
                break;
            }
            sq.on_repeated(psn, end_psn);
            let lane = cx.paths.get_mut(path).lane_mut(direction);
            self.turns.on_sent(lane, direction, cx.now, bytes, end - packet);
            cx.count(Counter::RetransmittedPackets, 1);
            *budget -= 1;
        }
        false
    }

    /// Repeats the oldest packet that is not acknowledged, if it is time to. If the peer has it,
    /// it acknowledges all that it has; if not, it takes it and the repair begins. Of a READ, what
    /// is missing of one request is asked for again.
    pub(super) fn send_probe<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        path: PathId,
        route: &Route,
    ) -> Option<Probed> {
        if !std::mem::take(&mut self.is_to_probe) || !tx.has_room() {
            return None;
        }
        let (psn, sent) = (sq.una(), sq.una() + sq.outstanding());
        let now = cx.now;
        let end = sq.end_of_repeat_at(psn)?;
        let (pending, packet) = sq.find(psn)?;
        // Only memory that has gone can prevent it, which shows elsewhere.
        pending.put_packet(cx, tx, route, packet..end, true, |r| Some(r.into())).ok()?;
        let bytes = sq.bytes_of_repeat(psn, psn + (end - packet));
        let direction = sq.find(psn)?.0.direction();
        sq.on_repeated(psn, psn + (end - packet));
        let lane = cx.paths.get_mut(path).lane_mut(direction);
        self.turns.on_sent(lane, direction, now, bytes, end - packet);
        cx.count(Counter::Probes, 1);
        cx.count(Counter::RetransmittedPackets, 1);
        Some(Probed { psn, sent, at: now })
    }
}

/// Packets after which an acknowledgement is asked for: several times in a window.
fn packets_per_ack(lane: &Lane, mtu: u32) -> u32 {
    let window = lane.window() / u64::from(mtu);
    (window / 4).clamp(1, PACKETS_PER_ACK) as u32
}
