//! RC: requester, completer and responder, and the values that go between them.
//!
//! The requester says what it sent ([`Sent`](values::Sent), [`Probed`](values::Probed)), the
//! completer what may be sent ([`Allowance`](values::Allowance)) and when a probe is due; how much,
//! the [path](crate::path) says. Both work on the send queue: the requester moves on in it, and the
//! completer ends work requests and goes back. The responder has nothing to do with either.

mod completer;
mod requester;
mod responder;
mod turns;
mod values;

use super::common::{Cx, Failure};
use super::notification::markable;
use super::parameters::{RequesterParameters, ResponderParameters, Route};
use super::send_queue::{Limits, SendQueue};
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::ACKS_BEFORE_QUESTION;
use crate::path::{Direction, PathId, Paths, Release};
use crate::tuning::{Ecn, WireForm};
use completer::Completer;
use requester::Requester;
use responder::Responder;
use std::time::Instant;
use urxe_types::{Psn, Qpn, SendOp, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Packet, Request, Response};

/// The service of an RC QP.
#[derive(Debug)]
pub(super) struct Rc {
    route: Route,
    path: PathId,
    responder: Responder,
    /// From RTS on.
    sender: Option<Sender>,
    /// Turns in which an ACK went with requests to a peer of which nothing is known.
    acks_with_requests: u8,
    joining: Joining,
}

/// Whether ACKs go in the datagrams of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    /// None has, or the peer has told anew what it understands.
    NotYet,
    /// Some have, and nothing was late since.
    Goes,
    /// Something was late, and the peer has not told since what it understands.
    IsDoubted,
}

/// What sends and what ends work requests.
#[derive(Debug)]
struct Sender {
    requester: Requester,
    completer: Completer,
}

impl Rc {
    /// That of a QP that goes to RTR.
    pub(super) fn new(
        paths: &mut Paths,
        route: Route,
        responder: ResponderParameters,
        rq_psn: Psn,
    ) -> Rc {
        let path = paths.join((&route.flow).into());
        // TRAIN-014
        let wire = match paths.get(path).peer.refuses_parts {
            true => WireForm::Strict,
            false => route.wire,
        };
        let route = Route { wire, ..route };
        let responder = Responder::new(responder, rq_psn);
        Rc { route, path, responder, sender: None, acks_with_requests: 0, joining: Joining::NotYet }
    }

    /// The QP ends, or begins anew.
    pub(super) fn leave(&mut self, paths: &mut Paths, sq: &mut SendQueue) {
        self.abandon(paths, sq);
        paths.leave(self.path);
    }

    /// Nothing more is sent: what is in flight is no matter of the path any more.
    pub(super) fn abandon(&mut self, paths: &mut Paths, sq: &mut SendQueue) {
        sq.rewind();
        let moved = sq.take_moved();
        let path = paths.get_mut(self.path);
        if let Some(sender) = &mut self.sender {
            sender.requester.count_again(path);
        }
        for direction in [Direction::Outward, Direction::Inward] {
            let lane = path.lane_mut(direction);
            let at = direction as usize;
            let left = [moved.delivered, moved.lost, moved.gone.map(u64::from), moved.forgotten];
            lane.forget(left.iter().map(|bytes| bytes[at]).sum());
            if let Some(sender) = &mut self.sender {
                sender.requester.give_back(lane, direction);
            }
        }
        paths.look_at(self.path);
    }

    /// It begins anew, and waits for no turn of its path any more.
    pub(super) fn stop_waiting(&mut self, paths: &mut Paths, qpn: Qpn) {
        if let Some(sender) = &mut self.sender {
            sender.requester.stop_waiting(paths.get_mut(self.path), qpn);
        }
    }

    /// Its turn in a lane has come: it may send so much. Returns whether it has a use for it.
    pub(super) fn on_released(&mut self, release: &Release, may_send: bool) -> bool {
        let &Release { path, direction, bytes, .. } = release;
        // A QP that has gone may have waited on another path, and had the same number.
        let Some(sender) = self.sender.as_mut().filter(|_| path == self.path) else { return false };
        match may_send {
            true => sender.requester.on_released(direction, bytes),
            false => sender.requester.on_refused(direction),
        }
        may_send
    }

    /// Whether the QP waits for an answer of a peer that is silent or has no receive, and not for a
    /// turn.
    pub(super) fn is_answer_awaited(&self, sq: &SendQueue) -> bool {
        // CONG-033, CONG-034: what is sent again waits for its turn once nothing is in flight.
        sq.bytes_in_flight() > 0
            && self.sender.as_ref().is_some_and(|sender| sender.completer.is_kept_waiting())
    }

    /// Goes on with these parameters.
    pub(super) fn update<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        route: Route,
        responder: ResponderParameters,
        requester: Option<RequesterParameters>,
    ) {
        let Cx { config, paths, qp, .. } = cx;
        let path = paths.join((&route.flow).into());
        if path != self.path {
            // ADDR-025: what is in flight is answered on the way that it went.
            self.stop_waiting(paths, qp.qpn);
            self.abandon(paths, sq);
            // CONG-037
            if let Some(sender) = &mut self.sender {
                sender.completer.on_other_path();
            }
        }
        paths.leave(self.path);
        self.path = path;
        // A message that has begun goes on in its form.
        self.route = Route { wire: self.route.wire, ..route };
        self.responder.update(responder);
        let Some(parameters) = requester else { return };
        match &mut self.sender {
            Some(Sender { requester, completer }) => {
                requester.update(parameters);
                completer.update(parameters);
            }
            None => {
                self.sender = Some(Sender {
                    requester: Requester::new(parameters),
                    completer: Completer::new(parameters, config.min_probe),
                });
            }
        }
    }

    /// The way to the peer.
    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    pub(super) fn route_mut(&mut self) -> &mut Route {
        &mut self.route
    }

    /// The path to the peer.
    pub(super) fn path(&self) -> PathId {
        self.path
    }

    /// The PSN of the next request.
    pub(super) fn expected_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// The next time at which a timer runs out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sender.as_ref()?.completer.deadline()
    }

    /// No timer runs any more.
    pub(super) fn stop_timers(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.completer.stop_timers();
        }
    }

    /// Whether something is owed to the peer.
    pub(super) fn owes_replies(&self) -> bool {
        self.responder.owes_replies()
    }

    /// Whether there may be a request to send.
    pub(super) fn may_send(&self, sq: &SendQueue) -> bool {
        self.sender.as_ref().is_some_and(|Sender { requester, completer }| {
            !completer.is_rnr_waiting()
                && (requester.is_to_probe() || sq.has_lost() || sq.may_have_work())
        })
    }

    /// Whether an ACK is all that there is to send.
    pub(super) fn owes_only_an_ack(&self, sq: &SendQueue) -> bool {
        self.responder.owes_only_an_ack() && !self.may_send(sq)
    }

    /// What was done since the last reply was lost: the peer is told so, and nothing else.
    pub(super) fn fail_unacked(&mut self) {
        // RC-RESP-048, RC-RESP-053
        self.responder.fail_unacked();
    }

    /// Forgets the requests that came before their turn.
    pub(super) fn forget_early(&mut self, early_bytes: &mut usize) {
        self.responder.forget_early(early_bytes);
    }

    /// Takes the receive in use out to be completed: its `wr_id`.
    pub(super) fn end_receive(&mut self) -> Option<u64> {
        self.responder.end_receive()
    }

    /// Whether the peer has agreed to tell of marks in its replies, and to look for them in ours.
    pub(super) fn has_agreed<H>(&self, cx: &Cx<'_, H>) -> bool {
        cx.peers.capabilities(self.route.flow.dst).is_some_and(|peer| peer.echoes_marks)
    }

    /// A request came that was marked. Returns whether it is told by acknowledgements, or will be
    /// soon.
    pub(super) fn on_marked<H>(&mut self, cx: &mut Cx<'_, H>) -> bool {
        // CONG-022
        if self.has_agreed(cx) {
            self.responder.on_marked();
            return true;
        }
        ask_peer(cx, &self.route);
        // CONG-026
        cx.peers.is_about_to_answer(cx.now, self.route.flow.dst)
    }

    /// The peer has sent a congestion notification.
    pub(super) fn on_notification<H>(&self, cx: &mut Cx<'_, H>) {
        let lane = cx.paths.get_mut(self.path).lane_mut(Direction::Outward);
        // CONG-010
        if let Some(cause) = lane.congestion.on_cnp(cx.now) {
            cx.count(cause.counter(), 1);
        }
    }

    /// The way to the peer for what is sent now: switches may mark it where marks are heard of.
    fn route_now<H>(&self, cx: &Cx<'_, H>) -> Route {
        let ecn = cx.config.tuning.congestion.parameters().map_or(Ecn::Off, |p| p.ecn);
        // CONG-024
        let is_markable = match ecn {
            Ecn::Off => false,
            Ecn::Agreed => self.has_agreed(cx),
            Ecn::On => true,
        };
        let mut route = self.route;
        if is_markable {
            route.flow.traffic_class = markable(route.flow.traffic_class);
        }
        route
    }

    /// A packet with a reserved opcode arrived.
    pub(super) fn handle_reserved_opcode<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
    ) -> Result<(), Failure> {
        self.responder.handle_reserved_opcode(cx, psn)
    }

    /// A request packet arrived, from this UDP source port.
    pub(super) fn handle_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        src_port: u16,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Failure> {
        self.responder.handle_request(cx, &self.route, src_port, packet)
    }

    /// A response packet arrived: an ACK, a NAK, or data.
    pub(super) fn handle_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        packet: &Packet<'_, Response>,
    ) -> Result<(), Failure> {
        match &mut self.sender {
            // STATE-002, STATE-014
            Some(sender) if cx.qp.may_send() => {
                sender.count_again(cx, self.path);
                let result =
                    sender.completer.handle_response(cx, sq, self.path, &self.route, packet);
                sender.set_aside(cx, sq, self.path);
                if sq.has_lost() {
                    ask_peer(cx, &self.route);
                }
                if let Err(Failure::Send(WcStatus::RemoteInvalidRequest, _)) = result {
                    self.on_invalid_request(cx, sq);
                }
                result
            }
            _ => {
                // COUNT-009
                cx.count(Counter::DropQpNotReady, 1);
                Ok(())
            }
        }
    }

    /// The peer calls the oldest packet an invalid request. It has nothing against the WRITE whose
    /// first part it took, nor against its key, of which it would say so: it minds the form.
    fn on_invalid_request<H>(&self, cx: &mut Cx<'_, H>, sq: &mut SendQueue) {
        let una = sq.una();
        let is_later_part = sq.front().is_some_and(|front| {
            matches!(front.wqe().wr.op, SendOp::Write { imm: None, .. }) && front.number(una) > 0
        });
        let peer = &mut cx.paths.get_mut(self.path).peer;
        if self.route.wire == WireForm::Uniform && is_later_part && !peer.refuses_parts {
            peer.refuses_parts = true;
            cx.count(Counter::UniformFormGivenUp, 1);
        }
    }

    /// A timer may have run out.
    pub(super) fn handle_timers<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
    ) -> Result<(), Failure> {
        let Some(sender) = &mut self.sender else { return Ok(()) };
        if sender.completer.is_late(cx.now) && self.joining == Joining::Goes {
            // TRAIN-028
            cx.peers.doubt_joined(cx.now, &self.route.flow);
            self.joining = Joining::IsDoubted;
        }
        sender.count_again(cx, self.path);
        if sender.completer.handle_timers(cx, sq, self.path)? {
            sender.requester.probe_next();
        }
        sender.set_aside(cx, sq, self.path);
        Ok(())
    }

    /// Sends what is owed to the peer, then what may be sent: programs that wait for events rely on
    /// an ACK that comes before the answer to what it acknowledges. To a peer that keeps this order
    /// itself, an ACK goes last. Returns whether there is more, held up only by the batch's room or
    /// the end of this QP's turn.
    pub(super) fn transmit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        let route = self.route_now(cx);
        let ack_place = self.ack_place(cx, sq, tx, *budget);
        if ack_place != AckPlace::First {
            let before = tx.len();
            // TRAIN-009: whatever is sent, there is room for the ACK.
            let mut for_requests = (*budget - 1).min(tx.room_in_datagrams() as u32 - 1);
            *budget -= for_requests;
            let requests = self.transmit_requests(cx, sq, tx, &route, &mut for_requests);
            *budget += for_requests;
            let more = self.transmit_replies(cx, tx, &route, budget);
            // TRAIN-027
            if ack_place == AckPlace::InTheDatagram && tx.len() == before + 2 && tx.join_ack() {
                self.joining = Joining::Goes;
            }
            return Ok(more | requests?);
        }
        if self.transmit_replies(cx, tx, &route, budget) {
            return Ok(true);
        }
        self.transmit_requests(cx, sq, tx, &route, budget)
    }

    /// Where the ACK goes that is owed to the peer. Behind the requests of this turn if it is all
    /// that is owed: it is shorter than they are, so that it ends their segmented send, and would
    /// be one by itself before them.
    fn ack_place<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &SendQueue,
        tx: &TxBatch,
        budget: u32,
    ) -> AckPlace {
        let may_go_together = self.route.wire == WireForm::Uniform
            && tx.limits().max_segments > 1
            && budget > 1
            && tx.room_in_datagrams() > 1
            && self.responder.owes_only_an_ack()
            && self.may_send(sq);
        if !may_go_together {
            return AckPlace::First;
        }
        match cx.peers.capabilities(self.route.flow.dst) {
            // TRAIN-008
            Some(peer) if peer.takes_ack_first && peer.takes_joined => AckPlace::InTheDatagram,
            Some(peer) if peer.takes_ack_first => {
                // TRAIN-029
                let is_doubted = self.joining == Joining::IsDoubted;
                if is_doubted && !cx.peers.ask_until_answered(cx.now, &self.route.flow) {
                    self.joining = Joining::NotYet;
                }
                AckPlace::Last
            }
            Some(_) => AckPlace::First,
            None => {
                self.acks_with_requests = self.acks_with_requests.saturating_add(1);
                // TRAIN-025
                if self.acks_with_requests >= ACKS_BEFORE_QUESTION {
                    cx.peers.ask(cx.now, &self.route.flow);
                }
                AckPlace::First
            }
        }
    }

    fn transmit_replies<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        route: &Route,
        budget: &mut u32,
    ) -> bool {
        loop {
            match self.responder.transmit(cx, route, tx, budget) {
                Ok(more) => return more,
                // The peer is still to be told.
                failed => cx.note(failed.map(drop)),
            }
        }
    }

    fn transmit_requests<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        route: &Route,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        let path = self.path;
        let Some(sender) = &mut self.sender else { return Ok(false) };
        sender.count_again(cx, path);
        let Sender { requester, completer } = sender;
        // STATE-002, RC-REQ-022
        let result = if !cx.qp.may_send() || completer.is_rnr_waiting() {
            Ok(false)
        } else {
            let is_refused = completer.is_oldest_refused();
            if let Some(probed) = requester.send_probe(cx, sq, tx, path, route, is_refused) {
                completer.on_probed(probed, &cx.paths.get(path).round_trip);
            }
            let is_held = completer.is_silent_beside_others(cx, path);
            let repeats_before = sq.repeats_made();
            // RC-REQ-060: the batch had no room for the probe.
            let is_cut_short = requester.is_to_probe()
                || (!is_held && requester.send_repeats(cx, sq, tx, path, route, budget));
            let has_repeated = sq.repeats_made() != repeats_before;
            completer.on_repeats(cx.now, sq, has_repeated, &cx.paths.get(path).round_trip);
            if is_held || is_cut_short {
                Ok(is_cut_short)
            } else {
                let limits = Limits { mtu: route.mtu, max_rd_atomic: requester.max_rd_atomic() };
                sq.transmit(cx, tx, budget, limits, |sq, cx, tx, most| {
                    let allowance = completer.allowance(cx.paths.get(path));
                    let sent = requester.send_current(cx, sq, tx, path, route, allowance, most)?;
                    completer.on_sent(cx.now, sent, &cx.paths.get(path).round_trip);
                    Ok(sent.packets)
                })
            }
        };
        requester.end_turn(cx, path);
        sender.set_aside(cx, sq, path);
        result
    }
}

impl Sender {
    /// What a peer has not answered that is silent, or has no receive, counts no more for the path,
    /// unless that is silent as well: others are not to wait for it.
    fn set_aside<H>(&mut self, cx: &mut Cx<'_, H>, sq: &SendQueue, path: PathId) {
        // CONG-033, CONG-034
        if self.completer.is_kept_waiting() {
            self.requester.set_aside(cx.paths.get_mut(path), sq.in_flight());
            cx.paths.look_at(path);
        }
    }

    /// It counts again, as it does for the QP itself.
    fn count_again<H>(&mut self, cx: &mut Cx<'_, H>, path: PathId) {
        if self.requester.has_set_aside() {
            self.requester.count_again(cx.paths.get_mut(path));
        }
    }
}

/// Where an ACK stands among the requests of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AckPlace {
    /// Before them.
    First,
    /// Behind them, as the end of their segmented send.
    Last,
    /// Behind them, and of a lone short request in its datagram.
    InTheDatagram,
}

/// Asks the peer what it understands beside the standard, if need be. Only where something was lost
/// or marked, so that a quiet network sees no question.
fn ask_peer<H>(cx: &mut Cx<'_, H>, route: &Route) {
    // REPAIR-055
    if route.wire == WireForm::Uniform {
        cx.peers.ask(cx.now, &route.flow);
    }
}
