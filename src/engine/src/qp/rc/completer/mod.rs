//! The completer: responses to completed work requests.
//!
//! Each response speaks for all that the peer did before it: the requests before its PSN were
//! carried out, though answers of theirs may have been lost or overtaken. So every response first
//! acknowledges what lies before its PSN, and then says something about the PSN itself. Answers are
//! put where they belong in whatever order they come; the send queue keeps the score
//! (`send_queue/scoreboard.rs`), and what is missing is sent again: alone, if the peer keeps what
//! comes before its turn, else with all that was sent after it.

mod answers;
mod flight;
mod readiness;
mod retry;

use super::values::{Allowance, Probed, Sent};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::REORDER_TOLERANCE;
use crate::path::{Path, PathId, Peer, RoundTrip, Sample};
use crate::qp::common::{Cx, Failure};
use crate::qp::parameters::{RequesterParameters, Route};
use crate::qp::send_queue::{SendQueue, distance};
use flight::{Untold, settle_flight};
use retry::{Expired, Retry};
use std::time::{Duration, Instant};
use urxe_types::{Psn, RnrTimer, WcStatus};
use urxe_wire::{Aeth, Bth, EarlyBitmap, Headers, NakCode, Packet, Response, Syndrome};

/// The completer of an RC QP.
#[derive(Debug)]
pub(super) struct Completer {
    retry: Retry,
    /// Repairs of single packets one after the other that the peer answered by missing the next:
    /// it may not keep what comes early after all.
    repairs_in_vain: u32,
    /// The peer has refused the oldest packet, or misses it, which is to be sent again. One that
    /// tells what it keeps may keep nothing of what follows, and nothing would tell of that but the
    /// answer to this packet.
    is_oldest_refused: bool,
    /// How long something took that the packet being handled has acknowledged.
    sample: Option<Sample>,
    untold: Untold,
}

impl Completer {
    pub(super) fn new(parameters: RequesterParameters, least_margin: Duration) -> Completer {
        Completer {
            retry: Retry::new(parameters, least_margin),
            repairs_in_vain: 0,
            is_oldest_refused: false,
            sample: None,
            untold: Untold::default(),
        }
    }

    pub(super) fn update(&mut self, parameters: RequesterParameters) {
        self.retry.update(parameters);
    }

    /// What the requester may send.
    pub(super) fn allowance(&self, path: &Path) -> Allowance {
        self.retry.allowance(path)
    }

    /// The requester has sent this.
    pub(super) fn on_sent(&mut self, now: Instant, sent: Sent, round_trip: &RoundTrip) {
        self.retry.on_sent(now, sent, round_trip);
    }

    /// The requester had the turn to repeat what was lost, and `has_repeated` something.
    pub(super) fn on_repeats(
        &mut self,
        now: Instant,
        sq: &SendQueue,
        has_repeated: bool,
        round_trip: &RoundTrip,
    ) {
        if has_repeated {
            self.retry.on_sent_any(now, round_trip);
        } else if sq.outstanding() > 0 {
            self.retry.arm(now, round_trip);
        }
    }

    /// The requester has repeated the oldest packet.
    pub(super) fn on_probed(&mut self, probed: Probed, round_trip: &RoundTrip) {
        self.is_oldest_refused = false;
        self.retry.on_probed(probed);
        self.retry.on_sent_any(probed.at, round_trip);
    }

    /// Everything is to be sent again, on another path.
    pub(super) fn on_other_path(&mut self) {
        self.retry.on_other_path();
    }

    /// Whether the oldest packet is to be sent again because the peer has refused it.
    pub(super) fn is_oldest_refused(&self) -> bool {
        self.is_oldest_refused
    }

    /// Whether the requester must keep silent because of an RNR NAK.
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.retry.is_rnr_waiting()
    }

    /// The next time at which a timer runs out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry.deadline()
    }

    /// Whether a timer has run out by `now`.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.retry.is_late(now)
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
        path: PathId,
        route: &Route,
        packet: &Packet<'_, Response>,
    ) -> Result<(), Failure> {
        let Headers { bth: Bth { psn, becn, .. }, body: response } = packet.headers;
        // REPAIR-057: what it tells is of what comes after its PSN.
        let told_of = match response {
            Response::SelectiveAck { .. } => psn.next(),
            _ => psn,
        };
        let is_ghost = !sq.is_outstanding(told_of);
        let psn = match is_ghost && sq.outstanding() > 0 && fault!(GhostAckTaken) {
            true => sq.una() + (sq.outstanding() - 1),
            false => psn,
        };
        if is_ghost && !fault!(GhostAckTaken) {
            match psn.precedes(sq.una()) {
                // RC-COMP-013
                true => self.on_stale(cx, path, psn, response),
                // RC-COMP-012
                false => cx.count(Counter::GhostResponses, 1),
            }
            return Ok(());
        }
        self.retry.on_answered(cx.paths.get(path).silences());
        // CONG-022: an answer that is marked itself tells of the way that answers take.
        let marks = [becn, cx.is_marked];
        if marks != [false; 2] {
            // Those before were not.
            settle_flight(cx, sq, path, &mut self.untold, [false; 2], None);
        }
        self.untold.add();
        let result = match response {
            Response::Ack(aeth) => self.on_ack(cx, sq, path, psn, aeth),
            Response::SelectiveAck { aeth } if is_ack(aeth) => {
                self.on_selective_ack(cx, sq, path, psn, packet.payload)
            }
            // A refusal brings no data.
            _ if response.aeth().is_some_and(|aeth| !is_ack(aeth)) => bad_response(cx),
            Response::SelectiveAck { .. } => Ok(()),
            Response::AtomicAck { original, .. } => self.on_atomic_ack(cx, sq, path, psn, original),
            Response::ReadFirst(_)
            | Response::ReadMiddle
            | Response::ReadLast(_)
            | Response::ReadOnly(_) => self.on_read_response(cx, sq, path, route, packet),
        };
        self.retry.on_losses(|psn| sq.is_lost(psn));
        let tells_more = marks != [false; 2] || self.sample.is_some();
        if tells_more || !self.untold.can_wait(sq) {
            settle_flight(cx, sq, path, &mut self.untold, marks, self.sample.take());
        }
        result
    }

    /// Sees to the timers that have run out. Returns whether the oldest packet is to be repeated,
    /// to draw an answer.
    pub(super) fn handle_timers<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
    ) -> Result<bool, Failure> {
        let (mut result, mut is_to_probe) = (Ok(()), false);
        while let Some(expired) = self.retry.expire(cx.now, round_trip(cx, path)) {
            if expired != Expired::Rnr {
                self.retry.on_late(sq.una());
            }
            if expired == Expired::Probe {
                self.note_silence(cx, path);
            }
            match expired {
                Expired::Rnr => {
                    sq.repeat_after(Counter::RnrNaksReceived);
                    // It may be another one by now.
                    self.repeat_refused(cx, sq, path);
                }
                Expired::Ack => {
                    cx.count(Counter::AckTimeouts, 1);
                    result = self.lose_try(cx, Cause::AckTimeout);
                    if result.is_ok() {
                        match self.is_silent_beside_others(cx, path) {
                            // CONG-036
                            true => {
                                self.rewind(sq, Counter::AckTimeouts);
                                is_to_probe = true;
                            }
                            false => self.go_back(sq, Counter::AckTimeouts),
                        }
                        // RFC 2018: it may have let go what it had.
                        sq.distrust_arrived();
                    }
                }
                Expired::Probe if self.is_all_to_be_repeated(cx, sq, path) => {
                    cx.count(Counter::Probes, 1);
                    self.go_back(sq, Counter::Probes);
                }
                // RC-REQ-028: nothing is told by a lost answer but asking again; where it may only
                // be late, for the oldest alone.
                Expired::Probe => is_to_probe = true,
            }
        }
        settle_flight(cx, sq, path, &mut self.untold, [false; 2], None);
        result.map(|()| is_to_probe)
    }

    /// A probe is due. While the peer answers none, what the QP has in flight keeps others waiting
    /// only as long as nothing is heard of these either, and one of them tries.
    fn note_silence<H>(&mut self, cx: &mut Cx<'_, H>, path: PathId) {
        let path_now = cx.paths.get_mut(path);
        if self.retry.note_silence(path_now.heard()) || path_now.is_silent() {
            let pause = self.retry.probe_interval(&path_now.round_trip) / 2;
            path_now.on_silence(cx.now, pause);
            cx.paths.look_at(path);
        }
    }

    /// Whether the peer leaves probes unanswered, or has no receive.
    pub(super) fn is_kept_waiting(&self) -> bool {
        self.retry.is_kept_waiting()
    }

    /// Whether it does so while others on the path are answered: then nothing but probes is sent.
    pub(super) fn is_silent_beside_others<H>(&self, cx: &Cx<'_, H>, path: PathId) -> bool {
        self.retry.is_silent_beside_others(cx.paths.get(path).heard())
    }

    /// Whether a late answer means that the peer has lost what was under way, and keeps nothing of
    /// what follows: a lone probe would cost a round trip more. Only once in a silence, or a peer
    /// that has gone would be sent a window again and again.
    fn is_all_to_be_repeated<H>(&self, cx: &Cx<'_, H>, sq: &SendQueue, path: PathId) -> bool {
        let path = cx.paths.get(path);
        // REPAIR-101
        self.retry.is_first_probe()
            && path.round_trip.is_lossy()
            && !path.peer.takes_repairs()
            && !sq.awaits_answers_only()
    }

    fn on_ack<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
        aeth: Aeth,
    ) -> Result<(), Failure> {
        let is_stale = match aeth.syndrome {
            Syndrome::Ack { .. } | Syndrome::Reserved(_) => false,
            Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::SequenceError) => sq.is_executed(psn),
            // What has an answer of its own may be refused when it is sent again.
            Syndrome::Nak(_) => sq.is_executed(psn) && !sq.expects_response(psn),
        };
        // RC-COMP-023: it was sent before the peer came so far.
        if is_stale {
            cx.count(Counter::StaleResponses, 1);
            return Ok(());
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                cx.count(Counter::AcksReceived, 1);
                let resent_to = sq.resent_to();
                if fault!(AckStandsForAnswer) {
                    sq.on_arrived_psn(psn);
                }
                // RC-COMP-001: an ACK of a READ's or atomic's own PSN lacks the data.
                self.acknowledge_before(cx, sq, path, psn.next())?;
                self.learn_of_peer(cx, sq, path, resent_to, psn.next());
                self.end_probe(cx, sq, path, psn, false);
                Ok(())
            }
            // RC-COMP-006
            Syndrome::RnrNak { timer } => match self.acknowledge_before(cx, sq, path, psn)? {
                true => self.on_rnr_nak(cx, sq, path, timer),
                // It is probed for when its turn comes. At once it would be refused again, without
                // any wait.
                false => Ok(()),
            },
            Syndrome::Nak(NakCode::SequenceError) => {
                cx.count(Counter::SequenceNaksReceived, 1);
                if fault!(SequenceNakIgnored) {
                    return Ok(());
                }
                if !fault!(SequenceNakAcknowledgesNothing) {
                    self.acknowledge_before(cx, sq, path, psn)?;
                }
                // RC-REQ-015, RC-REQ-021
                self.on_missing(cx, sq, path, psn)
            }
            Syndrome::Nak(code) => {
                cx.count(Counter::FatalNaksReceived, 1);
                if !self.acknowledge_before(cx, sq, path, psn)? {
                    return Ok(());
                }
                let (status, cause) = match code {
                    NakCode::RemoteAccess if fault!(AccessNakAsInvalidRequest) => {
                        (WcStatus::RemoteInvalidRequest, Cause::PeerInvalidRequest)
                    }
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
            Syndrome::Reserved(_) if fault!(ReservedSyndromeAcknowledges) => {
                self.acknowledge_before(cx, sq, path, psn.next()).map(drop)
            }
            Syndrome::Reserved(_) => bad_response(cx),
        }
    }

    /// The peer misses this packet; before it, answers may be missing here.
    fn on_missing<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        missing: Psn,
    ) -> Result<(), Failure> {
        // RC-COMP-007, RC-REQ-021
        if self.retry.is_known_missing(missing) && !fault!(SequenceNakRepeatsForEver) {
            return Ok(());
        }
        let is_next = sq.was_just_repaired(missing);
        self.repairs_in_vain = if is_next { self.repairs_in_vain + 1 } else { 0 };
        if !fault!(SequenceNakRepeatsForEver) {
            self.lose_try(cx, Cause::SequenceRetries)?;
        }
        let peer = &mut cx.paths.get_mut(path).peer;
        if self.repairs_in_vain >= MAX_REPAIRS_IN_VAIN {
            // REPAIR-054
            peer.keeps_early = Some(false);
        }
        // REPAIR-050
        match peer.takes_repairs() {
            true => {
                self.is_oldest_refused = missing == sq.una() && peer.acknowledges_selectively;
                sq.mark_missing(missing);
                sq.repeat_after(Counter::SequenceNaksReceived);
            }
            false => self.go_back(sq, Counter::SequenceNaksReceived),
        }
        self.retry.on_missing(cx.now, missing, round_trip(cx, path));
        Ok(())
    }

    /// The peer says what it has beyond what it has carried out.
    fn on_selective_ack<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
        bitmap: &[u8],
    ) -> Result<(), Failure> {
        cx.count(Counter::SelectiveAcksReceived, 1);
        cx.paths.get_mut(path).peer.acknowledges_selectively = true;
        let missing = psn.next();
        self.acknowledge_before(cx, sq, path, missing)?;
        let (mut last, mut is_news) = (None, false);
        for offset in EarlyBitmap::offsets(bitmap) {
            let early = missing.next() + offset;
            // Whatever it says of what was never sent is nonsense.
            if !sq.is_outstanding(early) {
                break;
            }
            // REPAIR-052: an answer of its own is not there yet.
            is_news |= sq.on_kept(early);
            last = Some(early);
        }
        if is_news {
            self.on_progress(cx, sq, path, 0);
        }
        // REPAIR-059
        let is_oldest_lost =
            last.is_some_and(|last| sq.detect_lost_requests(last, REORDER_TOLERANCE));
        if sq.has_lost() {
            sq.repeat_after(Counter::SelectiveAcksReceived);
        }
        if is_oldest_lost && !self.retry.has_lost_at(sq.una()) {
            self.lose_oldest(cx, sq)?;
        }
        self.end_probe(cx, sq, path, psn, true);
        Ok(())
    }

    fn on_rnr_nak<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
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
        // CONG-032: others may send meanwhile.
        self.repeat_refused(cx, sq, path);
        Ok(())
    }

    /// The oldest packet is to be sent again when the RNR wait is over, and all that follows unless
    /// the peer tells what it keeps of that.
    fn repeat_refused<H>(&mut self, cx: &Cx<'_, H>, sq: &mut SendQueue, path: PathId) {
        match peer(cx, path).acknowledges_selectively {
            true => {
                sq.mark_refused(sq.una());
                self.is_oldest_refused = true;
            }
            false => sq.rewind(),
        }
    }

    /// Takes everything before `psn` as carried out, and ends what is done. Returns whether all
    /// before `psn` is: not if the answer to a READ or atomic is missing, which is asked for again.
    fn acknowledge_before<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
    ) -> Result<bool, Failure> {
        let is_news = sq.on_executed(psn);
        if is_news {
            self.retry.restore_tries();
        }
        let target = distance(sq.una(), psn);
        let progress = sq.advance(cx)?;
        if is_news || progress > 0 {
            self.on_progress(cx, sq, path, progress);
        }
        let is_reached = progress >= target;
        // RC-COMP-004, RC-COMP-005, FAW-014
        if !is_reached && sq.detect_lost_answers(psn) {
            cx.count(Counter::ImpliedNaks, 1);
            sq.repeat_after(Counter::ImpliedNaks);
            self.lose_oldest(cx, sq)?;
        }
        Ok(is_reached)
    }

    /// The peer has done something new, by which so many PSNs more are acknowledged.
    fn on_progress<H>(&mut self, cx: &mut Cx<'_, H>, sq: &SendQueue, path: PathId, psns: u32) {
        if psns > 0 {
            self.retry.on_acknowledged(sq.una());
            self.is_oldest_refused = false;
        }
        self.measure(cx, sq, path);
        self.retry.on_progress(cx.now, sq.outstanding() > 0, round_trip(cx, path));
    }

    /// Takes the time of the packet being timed as soon as it is known to have arrived. What is
    /// acknowledged only with what was missing before it would seem to have taken far longer.
    fn measure<H>(&mut self, cx: &mut Cx<'_, H>, sq: &SendQueue, path: PathId) {
        // RC-REQ-054
        let has_arrived = |psn: Psn| psn.precedes(sq.una()) || sq.has_arrived(psn);
        if let Some(sample) = self.retry.take_sample(cx.now, has_arrived) {
            cx.paths.get_mut(path).round_trip.on_sample(cx.now, sample);
            self.sample = Some(sample);
        }
    }

    /// If `psn` answers a probe: what was sent before the probe and has not arrived was lost.
    /// `tells_all`: the answer names all that the peer has beyond.
    fn end_probe<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        path: PathId,
        psn: Psn,
        tells_all: bool,
    ) {
        let probed = self.retry.take_probed(cx.now, psn, tells_all, round_trip(cx, path));
        let Some(probed) = probed else { return };
        if sq.outstanding() == 0 {
            return;
        }
        match peer(cx, path).takes_repairs() || sq.awaits_answers_only() {
            true => {
                sq.detect_losses_before(probed.sent, probed.repeats_made);
                sq.repeat_after(Counter::Probes);
            }
            false => self.go_back(sq, Counter::Probes),
        }
    }

    /// An ACK beyond what was sent again: the peer keeps what comes before its turn.
    fn learn_of_peer<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &SendQueue,
        path: PathId,
        resent_to: Option<Psn>,
        acknowledged: Psn,
    ) {
        // One more may have come late by itself.
        let is_beyond = resent_to.is_some_and(|resent_to| resent_to.next().precedes(acknowledged));
        if is_beyond && sq.una() == acknowledged {
            // REPAIR-053
            cx.paths.get_mut(path).peer.keeps_early = Some(true);
            self.repairs_in_vain = 0;
        }
    }

    /// The oldest packet, or the answer to it, was lost.
    fn lose_oldest<H>(&mut self, cx: &mut Cx<'_, H>, sq: &SendQueue) -> Result<(), Failure> {
        self.lose_try(cx, Cause::SequenceRetries)?;
        self.retry.on_lost(sq.una());
        Ok(())
    }

    fn lose_try<H>(&mut self, cx: &mut Cx<'_, H>, cause: Cause) -> Result<(), Failure> {
        // RC-REQ-017, RC-REQ-018
        if !self.retry.take_try() {
            cx.count(Counter::RetriesExceeded, 1);
            return Err(Failure::Send(WcStatus::RetryExceeded, cause));
        }
        Ok(())
    }

    /// The oldest packet was lost, and everything is sent again, after this was counted.
    fn go_back(&mut self, sq: &mut SendQueue, counted: Counter) {
        sq.mark_lost(sq.una());
        self.rewind(sq, counted);
    }

    /// Everything is sent again, after this was counted.
    fn rewind(&mut self, sq: &mut SendQueue, counted: Counter) {
        sq.repeat_after(counted);
        sq.rewind();
        self.retry.on_rewind(sq.una());
    }
}

/// Repairs one after the other that were each followed by a sequence error at the next packet,
/// after which a peer is taken for one that keeps nothing.
const MAX_REPAIRS_IN_VAIN: u32 = 4;

fn round_trip<'a, H>(cx: &'a Cx<'_, H>, path: PathId) -> &'a RoundTrip {
    &cx.paths.get(path).round_trip
}

fn peer<H>(cx: &Cx<'_, H>, path: PathId) -> Peer {
    cx.paths.get(path).peer
}

fn bad_response<H>(cx: &mut Cx<'_, H>) -> Result<(), Failure> {
    cx.count(Counter::BadResponses, 1);
    Err(Failure::Send(WcStatus::BadResponse, Cause::BadResponse))
}

fn is_ack(aeth: Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}
