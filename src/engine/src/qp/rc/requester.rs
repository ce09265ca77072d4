//! The requester: work requests to request packets.

use super::turns::Turns;
use super::values::{Allowance, Probed, Sent};
use crate::counters::Counter;
use crate::device::Peers;
use crate::host::Host;
use crate::limits::{
    FIRST_ACK_PACKETS, INITIAL_WINDOW, MAX_OUTSTANDING, PACKETS_PER_ACK, READS_IN_WINDOW,
    SHORT_READ_PACKETS, UNIFORM_READ_PACKETS,
};
use crate::path::{Direction, Lane, Path, PathId, Standing};
use crate::qp::common::{Cx, Error};
use crate::qp::parameters::{RequesterParameters, Route};
use crate::qp::send_queue::{Blocked, SendQueue, Unsent};
use crate::tuning::WireForm;
use std::time::Instant;
use urxe_types::{Psn, Qpn};
use urxe_wire::Request;
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

    /// It waits for no turn of its path any more.
    pub(super) fn stop_waiting(&mut self, path: &mut Path, qpn: Qpn) {
        for direction in [Direction::Outward, Direction::Inward] {
            self.turns.stop_waiting(path.lane_mut(direction), direction, qpn);
        }
    }

    /// What it has in flight, by direction, counts no more for its path.
    pub(super) fn set_aside(&mut self, path: &mut Path, in_flight: [u64; 2]) {
        for direction in [Direction::Outward, Direction::Inward] {
            let lane = path.lane_mut(direction);
            self.turns.set_aside(lane, direction, in_flight[direction as usize]);
        }
    }

    /// What it has in flight counts again for its path.
    pub(super) fn count_again(&mut self, path: &mut Path) {
        for direction in [Direction::Outward, Direction::Inward] {
            self.turns.count_again(path.lane_mut(direction), direction);
        }
    }

    /// Whether something that it has in flight does not count for its path.
    pub(super) fn has_set_aside(&self) -> bool {
        self.turns.has_set_aside()
    }

    /// Its turn is over.
    pub(super) fn end_turn<H>(&mut self, cx: &mut Cx<'_, H>, path: PathId) {
        for direction in [Direction::Outward, Direction::Inward] {
            if self.give_back(cx.paths.get_mut(path).lane_mut(direction), direction) {
                cx.paths.look_at(path);
            }
        }
    }

    /// Puts the current packet of the send queue into the batch, if it may be sent, with those
    /// behind it in its message that may go with it, but at most so many; and moves on.
    #[expect(clippy::too_many_arguments, reason = "what a packet depends on, by its owners")]
    pub(super) fn send_current<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        path: PathId,
        route: &Route,
        allowance: Allowance,
        most: u32,
    ) -> Result<Sent, Blocked> {
        let may_follow = MAX_OUTSTANDING.saturating_sub(sq.outstanding());
        // RC-REQ-042
        if !allowance.may_send || may_follow == 0 {
            return Err(Blocked::Wait);
        }
        sq.start_current();
        let is_repeated = sq.is_resending();
        let path_now = cx.paths.get_mut(path);
        let takes_repairs = path_now.peer.takes_repairs();
        let is_known = path_now.round_trip.smoothed().is_some();
        let Some((pending, packet)) = sq.current() else { return Err(Blocked::Wait) };
        let (direction, packets) = (pending.direction(), pending.packets());
        let is_read = pending.is_read();
        let lane = path_now.lane_mut(direction);
        let end = match is_read {
            true => {
                let in_onlys = packets > UNIFORM_READ_PACKETS
                    && may_ask_for_onlys(cx.peers, cx.now, route, lane);
                if in_onlys {
                    pending.ask_for_onlys();
                }
                let is_split = !in_onlys && self.is_to_be_split(route.wire, packets);
                // RC-REQ-011
                let part = self.packets_per_read(lane, route.mtu, is_split);
                sq.end_of_current(match self.turns.is_on_trial(direction) {
                    // CONG-033: all of a trial bring no more than one.
                    true => (part / lane.on_trial()).max(1),
                    false => part,
                })
            }
            false => packet + 1,
        };
        let Some((pending, _)) = sq.current() else { return Err(Blocked::Wait) };
        let bytes = pending.bytes(packet..end);
        let (now, qpn) = (cx.now, cx.qp.qpn);
        // RC-REQ-029
        if !self.turns.admit(lane, direction, now, bytes, qpn, allowance.standing) {
            cx.paths.look_at(path);
            return Err(Blocked::Wait);
        }
        let takes_receive = pending.takes_receive_at(packet);
        let packets_per_ack = packets_per_ack(lane, route.mtu, takes_repairs);
        // RC-REQ-044: should all that follows be lost, the path is known at least.
        let is_first_of_many = packet == 0 && packets > FIRST_ACK_PACKETS && !is_known;
        let is_alone = is_repeated
            || takes_receive
            || is_first_of_many
            || pending.ends_request(packet)
            || lane.is_paced();
        // TRAIN-042: of those that go together, only the last may ask for an acknowledgement.
        let end = match is_alone {
            true => end,
            false => {
                let until_ack = packets_per_ack.saturating_sub(self.since_ack_req);
                let most = most.min(may_follow).min(packets - packet).min(until_ack);
                let room = self.turns.packets_at_once(lane, direction, now, bytes);
                packet + most.min(room).min(tx.room_in_datagrams() as u32).max(1)
            }
        };
        let bytes_together = pending.bytes(packet..end);
        self.turns.on_sent(lane, direction, now, bytes_together, end - packet);
        let is_held_after = !self.turns.may_follow(lane, direction, now, bytes);
        let sent_packets = if is_read { 1 } else { end - packet };
        // RC-REQ-030
        let asks_for_ack = is_held_after
            || self.since_ack_req + sent_packets >= packets_per_ack
            || (takes_receive && allowance.is_next_the_last)
            || is_first_of_many
            // RC-REQ-001
            || (pending.ends_request(end - 1) && !fault!(AckReqMissing));
        let body = |request: Request| Some(request.into());
        let put = match is_read {
            true => pending
                .put_request(cx, tx, route, packet..end, asks_for_ack, body)
                .map_err(|error| Unsent { from: packet, error }),
            false => pending.put_train(cx, tx, route, packet..end, asks_for_ack, body),
        };
        if let Err(Unsent { from, error }) = put {
            let unsent = pending.bytes(from..end);
            cx.paths.get_mut(path).lane_mut(direction).forget(unsent);
            if from > packet {
                sq.sent_current(from);
            }
            sq.refuse_current(error);
            return Err(Blocked::Wait);
        }
        let psn = pending.first_psn() + if is_read { packet } else { end - 1 };
        self.since_ack_req = if asks_for_ack { 0 } else { self.since_ack_req + sent_packets };
        // COUNT-013
        if is_repeated {
            cx.count_repeat(tx, sq.repeats_after());
        }
        sq.sent_current(end);
        Ok(Sent { packets: sent_packets, psn, is_repeated, asks_for_ack, takes_receive })
    }

    /// PSNs that a READ request asks for at most. They come in one burst, which the window is to
    /// bound; and the burst of one request shows that the end of the one before was lost, so
    /// several are under way if the peer allows.
    fn packets_per_read(&self, lane: &Lane, mtu: u32, is_split: bool) -> u32 {
        let at_once = u32::from(self.max_rd_atomic).clamp(1, READS_IN_WINDOW);
        let window = (lane.window() / u64::from(mtu)) as u32;
        let bound = (window / at_once).max(1);
        if is_split { bound.min(UNIFORM_READ_PACKETS) } else { bound }
    }

    /// Whether a READ of so many packets is short, and is asked for in parts whose answers are all
    /// of one size.
    fn is_to_be_split(&self, form: WireForm, packets: u32) -> bool {
        // TRAIN-020
        form == WireForm::Uniform
            && packets <= SHORT_READ_PACKETS
            && u32::from(self.max_rd_atomic) >= READS_IN_WINDOW
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
            let (direction, packets) = (pending.direction(), end - packet);
            let bytes = sq.bytes_of_repeat(psn, psn + packets);
            let lane = cx.paths.get_mut(path).lane_mut(direction);
            // REPAIR-062: they count as in flight, and will not come before it does.
            let holds_up_answers = psn == sq.una() && sq.has_kept();
            if !holds_up_answers && !self.turns.may_repeat(lane, direction, cx.now, bytes) {
                // That it was lost is known by an answer.
                self.turns.wait(lane, direction, cx.qp.qpn, Standing::Answered);
                cx.paths.look_at(path);
                break;
            }
            let after = sq.repeats_after();
            if let Err(error) = repeat(cx, sq, tx, route, psn, end, after) {
                sq.refuse(psn, error);
                break;
            }
            let lane = cx.paths.get_mut(path).lane_mut(direction);
            self.turns.on_sent(lane, direction, cx.now, bytes, packets);
            *budget -= 1;
        }
        false
    }

    /// Repeats the oldest packet that is not acknowledged, if it is time to. If the peer has it,
    /// it acknowledges all that it has; if not, it takes it and the repair begins. Of a READ, what
    /// is missing of one request is asked for again. One that the peer has refused is repeated
    /// whatever the window says: what follows fills it, and the peer may have none of that.
    pub(super) fn send_probe<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        path: PathId,
        route: &Route,
        is_refused: bool,
    ) -> Option<Probed> {
        if !tx.has_room() {
            return None;
        }
        let is_late = std::mem::take(&mut self.is_to_probe);
        // REPAIR-064
        let is_to_repeat = is_refused && sq.is_lost(sq.una());
        // RC-REQ-060: all may have been answered since it was late.
        if (!is_late && !is_to_repeat) || sq.outstanding() == 0 {
            return None;
        }
        let after = if is_late { Counter::Probes } else { sq.repeats_after() };
        let (psn, sent) = (sq.una(), sq.sent_to());
        let end = sq.end_of_repeat_at(psn)?;
        let (pending, packet) = sq.find(psn)?;
        let (direction, packets) = (pending.direction(), end - packet);
        let bytes = sq.bytes_of_repeat(psn, psn + packets);
        if let Err(error) = repeat(cx, sq, tx, route, psn, end, after) {
            // Only memory that has gone can prevent it. What was sent may yet be answered.
            if sent == psn {
                sq.refuse(psn, error);
            }
            return None;
        }
        let lane = cx.paths.get_mut(path).lane_mut(direction);
        self.turns.on_sent_ahead(lane, direction, bytes);
        if is_late {
            cx.count(Counter::Probes, 1);
        }
        Some(Probed { psn, sent, repeats_made: sq.repeats_made(), at: cx.now })
    }
}

/// Sends the packets of a work request from `psn` up to packet `end` again, as one request, after
/// this was counted.
fn repeat<H: Host>(
    cx: &mut Cx<'_, H>,
    sq: &mut SendQueue,
    tx: &mut TxBatch,
    route: &Route,
    psn: Psn,
    end: u32,
    after: Counter,
) -> Result<(), Error> {
    let Some((pending, packet)) = sq.find(psn) else { return Ok(()) };
    pending.put_request(cx, tx, route, packet..end, true, |r| Some(r.into()))?;
    sq.on_repeated(psn, psn + (end - packet));
    cx.count_repeat(tx, after);
    Ok(())
}

/// Whether the peer answers a READ in packets of one size if it is asked to. One of which that is
/// not known, and from which much is read, is asked that first.
fn may_ask_for_onlys(peers: &mut Peers, now: Instant, route: &Route, lane: &Lane) -> bool {
    if route.wire == WireForm::Strict {
        return false;
    }
    match peers.capabilities(route.flow.dst) {
        Some(peer) => peer.answers_in_onlys,
        None => {
            // TRAIN-024
            if lane.window() > INITIAL_WINDOW {
                peers.ask(now, &route.flow);
            }
            false
        }
    }
}

/// Packets after which an acknowledgement is asked for: several times in a window.
fn packets_per_ack(lane: &Lane, mtu: u32, takes_repairs: bool) -> u32 {
    // REPAIR-061
    let per_window = match (lane.congestion.has_losses(), takes_repairs) {
        (true, false) => ACKS_WHERE_ALL_IS_REPEATED,
        (true, true) => ACKS_WHERE_PACKETS_ARE_LOST,
        (false, _) => ACKS_PER_WINDOW,
    };
    // A window that is large is not to be divided for each message.
    match lane.window() {
        window if window >= PACKETS_PER_ACK * per_window * u64::from(mtu) => PACKETS_PER_ACK as u32,
        window => (window / u64::from(mtu) / per_window).max(1) as u32,
    }
}

/// Acknowledgements that are asked for in a window: the fewer, the larger a window fills the path.
/// Where losses cut it to what the path needs, that is to be little more; and least where one loss
/// has all of a window repeated.
const ACKS_PER_WINDOW: u64 = 4;
const ACKS_WHERE_PACKETS_ARE_LOST: u64 = 8;
const ACKS_WHERE_ALL_IS_REPEATED: u64 = 16;
