//! The responder: request packets to memory and acknowledgements.
//!
//! A request passes one check after the other, in the order of [`Responder::handle_request`]; the
//! first one it fails says how ([`Refusal`]). What has to be answered waits in the order of its
//! PSNs in `replies` until the batch of requests is through, so that many packets share one ACK.
//! `execute.rs` does what is asked for, `response.rs` puts the answers into packets, `replay.rs`
//! remembers what may be asked for again, `kept_reads.rs` keeps READs in their place among the
//! requests, and `early.rs` keeps requests that came before their turn.

mod early;
mod execute;
mod kept_reads;
mod replay;
mod response;

use crate::counters::Counter;
use crate::host::Host;
use crate::limits::{FOREIGN_NAK_INTERVAL, MAX_WAITING_REPLIES};
use crate::qp::common::{Cx, Failure};
use crate::qp::message::{Incoming, check_enabled};
use crate::qp::parameters::{ResponderParameters, Route};
use crate::qp::rc::ask_peer;
use crate::qp::receive::Refusal;
use crate::seeded;
use early::{Arrival, Early};
use kept_reads::KeptReads;
use replay::{AtomicResource, Done, ReadResource, Resources};
use std::collections::VecDeque;
use std::time::Instant;
use urxe_types::{Msn, Psn, RnrTimer};
use urxe_wire::{Bth, Headers, NakCode, Packet, Request, Reth, Syndrome};

/// The responder of an RC QP.
#[derive(Debug)]
pub(super) struct Responder {
    parameters: ResponderParameters,
    /// The PSN of the next request.
    expected: Psn,
    /// Messages completed.
    msn: Msn,
    /// The peer was told that `expected` is missing or was refused: silence until it comes.
    is_asked_for: bool,
    /// Requests behind `expected`.
    early: Early,
    /// The UDP source port that requests come from: of the last one that came in its turn, or
    /// before the first of these, of the first that came early.
    port: Option<u16>,
    /// When `expected` was last asked for because of a request from another port.
    foreign_asked_at: Option<Instant>,
    /// A request came with a congestion mark since the last reply was sent.
    was_marked: bool,
    incoming: Incoming,
    replies: VecDeque<Reply>,
    /// The first PSN that no reply sent so far has spoken for.
    unanswered_from: Psn,
    resources: Resources,
    /// Answers to READs that were copied before a later request stored something there.
    kept: KeptReads,
}

/// Something to be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// Everything up to `psn` is done.
    Ack {
        psn: Psn,
        msn: Msn,
    },
    Nak {
        psn: Psn,
        syndrome: Syndrome,
    },
    /// The rest of a READ's data.
    Read {
        read: ReadResource,
        sent: u32,
    },
    /// An atomic's answer.
    Atomic(AtomicResource),
    /// An ATOMIC WRITE's answer.
    AtomicWrite(Done),
    /// A FLUSH's answer.
    Flush(Done),
}

impl Responder {
    pub(super) fn new(parameters: ResponderParameters, rq_psn: Psn) -> Responder {
        Responder {
            parameters,
            expected: rq_psn,
            msn: Msn::new(0),
            is_asked_for: false,
            early: Early::default(),
            port: None,
            foreign_asked_at: None,
            was_marked: false,
            incoming: Incoming::default(),
            replies: VecDeque::new(),
            unanswered_from: rq_psn,
            resources: Resources::default(),
            kept: KeptReads::default(),
        }
    }

    pub(super) fn update(&mut self, parameters: ResponderParameters) {
        self.parameters = parameters;
    }

    /// The PSN of the next request.
    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Takes the receive in use out to be completed: its `wr_id`.
    pub(super) fn end_receive(&mut self) -> Option<u64> {
        self.incoming.end_receive()
    }

    /// What was done since the last reply was lost: the peer is told so, and nothing else.
    pub(super) fn fail_unacked(&mut self) {
        let syndrome = Syndrome::Nak(NakCode::RemoteOperational);
        self.reply_only(Reply::Nak { psn: self.unanswered_from, syndrome });
    }

    /// A request came with a congestion mark.
    pub(super) fn on_marked(&mut self) {
        self.was_marked = true;
    }

    /// A packet with a reserved opcode arrived. In the place of the next request it is an invalid
    /// one; elsewhere it is nothing.
    pub(super) fn handle_reserved_opcode<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
    ) -> Result<(), Failure> {
        // RC-RESP-062
        match cx.qp.may_receive() && psn == self.expected && !fault!(ReservedOpcodeDropped) {
            true => self.refuse(cx, Refusal::InvalidRequest),
            false => Ok(()),
        }
    }

    /// A request packet arrived, from this UDP source port.
    pub(super) fn handle_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        src_port: u16,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Failure> {
        if !cx.qp.may_receive() {
            cx.count(Counter::DropQpNotReady, 1);
            return Ok(());
        }
        cx.establish();
        let Headers { bth, body: request } = &packet.headers;
        if self.over_reply_limit(request) {
            cx.count(Counter::FlushesHeldBack, 1);
            return Ok(());
        }
        let ahead = match fault!(PsnWithoutWrap) {
            true => bth.psn.get() as i32 - self.expected.get() as i32,
            false => bth.psn.diff(self.expected),
        };
        match ahead {
            -1 if fault!(PsnBeforeDropped) => Ok(()),
            0 => {
                // HOSTILE-007: who kept to the order is the peer, and what others had kept here is
                // not the peer's.
                if self.port.replace(src_port).is_some_and(|port| port != src_port) {
                    self.early.clear(cx.early_bytes);
                }
                self.handle_expected(cx, route, packet)?;
                self.execute_early(cx, route)
            }
            ..0 if seeded::does_again(request) => self.do_again(cx, route, packet),
            ..0 => {
                self.on_duplicate(cx, route, bth, request);
                Ok(())
            }
            0x40_0000.. if fault!(PsnWindowQuarter) => {
                self.on_duplicate(cx, route, bth, request);
                Ok(())
            }
            1.. => {
                self.on_early(cx, route, src_port, packet);
                Ok(())
            }
        }
    }

    /// The request whose turn it is.
    fn handle_expected<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Failure> {
        let Headers { bth, body: request } = &packet.headers;
        self.is_asked_for = self.is_asked_for && fault!(NextGapNotTold);
        if !request.starts() && !self.incoming.is_under_way() && fault!(PartWithoutFirstTaken) {
            self.expected = self.expected.next();
            self.queue_ack();
            return Ok(());
        }
        let result = self
            .incoming
            .check_sequence(request)
            .and_then(|()| check_enabled(self.parameters.access, request))
            .and_then(|()| self.incoming.check_length(packet, route.mtu))
            .and_then(|()| check_invalidate(cx, request))
            .and_then(|()| self.check_resources(request))
            .and_then(|()| self.incoming.check_receive(cx, request))
            .and_then(|()| self.execute(cx, route, packet));
        match result {
            // CQ-021: it was lost again before it could be told; the peer is not to hear otherwise.
            Ok(()) if cx.qp.failure.is_some() => Ok(()),
            Ok(()) => {
                // RC-RESP-037
                let is_asked = bth.ack_req
                    && !fault!(AckMissing)
                    && (request.ends() || !fault!(AckMissingAmidMessage));
                if is_asked && (is_acknowledged(request) || fault!(AckBesideAnswer)) {
                    self.queue_ack();
                }
                Ok(())
            }
            Err(refusal) => self.refuse(cx, refusal),
        }
    }

    /// Whether a request is one FLUSH too many: nothing else bounds how many may wait for their
    /// answers. It is taken for lost.
    fn over_reply_limit(&self, request: &Request) -> bool {
        // FAW-009
        matches!(request, Request::Flush { .. }) && self.replies.len() >= MAX_WAITING_REPLIES
    }

    /// A place for the answer of a READ or atomic.
    fn check_resources(&self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Read(_)
            | Request::CompareSwap(_)
            | Request::FetchAdd(_)
            | Request::AtomicWrite(_)
                // RC-RESP-020, FAW-021
                if self.has_unanswered(self.parameters.max_dest_rd_atomic.into())
                    && !fault!(ReadsBeyondLimitTaken) =>
            {
                Err(Refusal::InvalidRequest)
            }
            _ => Ok(()),
        }
    }

    /// Whether so many READs, atomics and ATOMIC WRITEs are accepted and not answered, or more. An
    /// answer that is repeated does not count: the peer may have had it long ago.
    fn has_unanswered(&self, requests: usize) -> bool {
        let is_first_answer = |reply: &&Reply| match reply {
            // RC-RESP-021
            Reply::Read { read, .. } => !self.was_answered(read),
            Reply::Atomic(AtomicResource { psn, .. }) | Reply::AtomicWrite(Done { psn, .. }) => {
                self.unanswered_from.precedes(psn.next())
            }
            // FAW-010
            Reply::Flush(_) | Reply::Ack { .. } | Reply::Nak { .. } => false,
        };
        // Of few it is known without a look at each.
        self.replies.len() >= requests
            && self.replies.iter().filter(is_first_answer).count() >= requests
    }

    /// Whether all data of a READ was sent before.
    fn was_answered(&self, read: &ReadResource) -> bool {
        !self.unanswered_from.precedes(read.end())
    }

    /// Executes the requests that came before their turn as far as it is theirs now, and asks for
    /// what is missing then.
    fn execute_early<H: Host>(&mut self, cx: &mut Cx<'_, H>, route: &Route) -> Result<(), Failure> {
        if self.early.is_empty() {
            return Ok(());
        }
        let mut early = std::mem::take(&mut self.early);
        let mut result = Ok(());
        let mut is_to_ack = false;
        // REPAIR-019
        while result.is_ok()
            && cx.qp.failure.is_none()
            // RC-RESP-061: what stands behind a request that found no receive waits for its repeat.
            && !self.is_asked_for
            && let Some(packet) = early.take(self.expected, cx.early_bytes)
        {
            if self.over_reply_limit(&packet.headers.body) {
                cx.count(Counter::FlushesHeldBack, 1);
                break;
            }
            is_to_ack = is_acknowledged(&packet.headers.body);
            result = self.handle_expected(cx, route, &packet);
        }
        early.settle(self.expected, cx.early_bytes);
        self.early = early;
        if result.is_err() || cx.qp.failure.is_some() {
            return result;
        }
        // RC-RESP-052: the peer is told how far it is done now, unless a NAK or an answer does so.
        if is_to_ack && !self.is_asked_for {
            self.queue_ack();
        }
        if !self.early.is_empty() {
            self.ask_for_expected(cx, route);
        }
        Ok(())
    }

    /// A request ahead of the expected one: it is kept, and the peer asked for what is missing.
    fn on_early<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        src_port: u16,
        packet: &Packet<'_, Request>,
    ) {
        cx.count(Counter::OutOfSequence, 1);
        // HOSTILE-007: a stranger hits some PSN ahead far more easily than the expected one.
        if *self.port.get_or_insert(src_port) != src_port {
            cx.count(Counter::EarlyForeign, 1);
            return self.ask_for_foreign(cx, route);
        }
        let limits = &cx.config.tuning.early;
        let arrival = self.early.keep(packet, self.expected, route.mtu, limits, cx.early_bytes);
        let counter = match arrival {
            Arrival::Kept { .. } => Counter::EarlyKept,
            // REPAIR-013
            Arrival::Known => Counter::EarlyDuplicates,
            Arrival::NoRoom => Counter::EarlyDropped,
        };
        cx.count(counter, 1);
        if self.early.is_empty() || !acknowledges_selectively(cx, route) {
            return self.ask_for_expected(cx, route);
        }
        // REPAIR-016
        let tells_more = matches!(arrival, Arrival::Kept { at_a_hole: true } | Arrival::Known);
        if tells_more || packet.headers.bth.ack_req {
            self.queue_ack();
        }
    }

    /// The same when only a request from another port says that the expected one is missing.
    fn ask_for_foreign<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route) {
        if self.is_asked_for {
            return;
        }
        // HOSTILE-011
        let since = self.foreign_asked_at.map(|at| cx.now.duration_since(at));
        if since.is_some_and(|since| since < FOREIGN_NAK_INTERVAL) {
            return cx.count(Counter::ForeignNaksHeldBack, 1);
        }
        self.foreign_asked_at = Some(cx.now);
        self.ask_for_expected(cx, route);
    }

    /// Sees that the peer knows that the expected request is missing.
    fn ask_for_expected<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route) {
        // RC-RESP-033
        let is_told = std::mem::replace(&mut self.is_asked_for, true);
        if (is_told && !fault!(SequenceNakRepeated)) || fault!(GapNotTold) {
            return;
        }
        match !self.early.is_empty() && acknowledges_selectively(cx, route) {
            // REPAIR-015
            true => self.queue_ack(),
            false => {
                if !self.early.is_empty() {
                    ask_peer(cx, route);
                }
                let syndrome = Syndrome::Nak(NakCode::SequenceError);
                self.queue_nak(cx, Counter::SequenceNaksSent, syndrome);
            }
        }
    }

    /// Forgets the requests that came before their turn.
    pub(super) fn forget_early(&mut self, early_bytes: &mut usize) {
        self.early.clear(early_bytes);
    }

    /// A request that was here before: SENDs and WRITEs are acknowledged, READs and atomics
    /// answered again (IBTA 9.7.5.1.4).
    fn on_duplicate<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route, bth: &Bth, request: &Request) {
        cx.count(Counter::DuplicateRequests, 1);
        self.answer_again(cx, route, bth, request);
        // REPAIR-017
        if bth.ack_req && !self.early.is_empty() && acknowledges_selectively(cx, route) {
            self.queue_ack();
        }
    }

    fn answer_again<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route, bth: &Bth, request: &Request) {
        let psn = bth.psn;
        let again = match request {
            // RC-RESP-026, RC-RESP-027, ORDER-007: it is not carried out.
            Request::Send(_) | Request::Write(_) if fault!(DuplicateNotAcknowledged) => return,
            Request::Send(_) | Request::Write(_) => return self.queue_ack(),
            Request::Read(reth) => return self.on_read_again(cx, route, bth, reth),
            Request::CompareSwap(_) | Request::FetchAdd(_) => {
                // RC-RESP-028
                let atomic = self.resources.find_atomic(psn);
                let atomic = atomic.filter(|_| !fault!(DuplicateAtomicNotAnswered));
                let newest = fault!(DuplicateAtomicNewMsn).then_some(self.msn);
                let atomic = atomic
                    .map(|atomic| AtomicResource { msn: newest.unwrap_or(atomic.msn), ..atomic });
                atomic.map(|atomic| (Reply::Atomic(atomic), Counter::AtomicsReplayed))
            }
            Request::AtomicWrite(_) => {
                // FAW-020
                let done = self.resources.find_atomic_write(psn);
                done.map(|done| (Reply::AtomicWrite(done), Counter::AtomicsReplayed))
            }
            // FAW-008: everything before the expected PSN is done, and visible before the answer is
            // sent; nothing has to be remembered.
            Request::Flush { .. } => {
                Some((Reply::Flush(Done { psn, msn: self.msn }), Counter::FlushesReplayed))
            }
        };
        let Some((reply, counter)) = again else {
            return cx.count(Counter::DropUnknownDuplicate, 1);
        };
        cx.count(counter, 1);
        if !self.replies.contains(&reply) {
            self.replies.push_back(reply);
        }
    }

    fn on_read_again<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route, bth: &Bth, reth: &Reth) {
        let mtu = route.mtu;
        let rest = ReadResource::new(bth, reth, mtu, self.msn);
        match self.resources.find_read(&rest, mtu) {
            Some(_) if fault!(DuplicateReadNotAnswered) => {}
            Some(original) => {
                cx.count(Counter::ReadsReplayed, 1);
                ask_peer(cx, route);
                // RC-RESP-029
                let rest = if fault!(DuplicateReadFromItsStart) { original } else { rest };
                self.replay_read(original, rest);
            }
            None => cx.count(Counter::DropUnknownDuplicate, 1),
        }
    }

    /// Answers a READ again from `rest` on. If an answer to the same READ is still being sent, it
    /// is taken back there: the peer has said where it stands, and two answers at once would let
    /// it make us send without bound.
    fn replay_read(&mut self, original: ReadResource, rest: ReadResource) {
        let again = Reply::Read { read: rest, sent: 0 };
        let end = original.end();
        let same =
            |reply: &&mut Reply| matches!(reply, Reply::Read { read, .. } if read.end() == end);
        match self.replies.iter_mut().find(same) {
            // RC-RESP-031
            Some(reply) => *reply = again,
            None => self.replies.push_back(again),
        }
    }

    /// Answers a request that is not executed.
    fn refuse<H>(&mut self, cx: &mut Cx<'_, H>, refusal: Refusal) -> Result<(), Failure> {
        let (counter, syndrome) = match refusal {
            Refusal::ReceiverNotReady if fault!(RnrNotTold) => return Ok(()),
            Refusal::ReceiverNotReady => {
                let timer = match fault!(RnrTimerOfItsOwn) {
                    true => RnrTimer::new(1),
                    false => self.parameters.min_rnr_timer,
                };
                // RC-RESP-006
                (Counter::RnrNaksSent, Syndrome::RnrNak { timer })
            }
            Refusal::RemoteAccess if fault!(AccessErrorAsInvalidRequest) => {
                (Counter::RemoteAccessNaksSent, Syndrome::Nak(NakCode::InvalidRequest))
            }
            Refusal::InvalidRequest if fault!(InvalidRequestAsOperational) => {
                (Counter::InvalidRequestNaksSent, Syndrome::Nak(NakCode::RemoteOperational))
            }
            Refusal::InvalidRequest | Refusal::ReceiveTooShort => {
                (Counter::InvalidRequestNaksSent, Syndrome::Nak(NakCode::InvalidRequest))
            }
            Refusal::RemoteAccess => {
                (Counter::RemoteAccessNaksSent, Syndrome::Nak(NakCode::RemoteAccess))
            }
            Refusal::Local(_) => {
                (Counter::RemoteOperationalNaksSent, Syndrome::Nak(NakCode::RemoteOperational))
            }
        };
        if fault!(MsnCountsRefused) {
            self.msn = self.msn.next();
        }
        self.queue_nak(cx, counter, syndrome);
        if fault!(RnrConsumesMessage) && refusal == Refusal::ReceiverNotReady {
            self.expected = self.expected.next();
        }
        // RC-RESP-046: what follows was sent before the peer saw the NAK.
        self.is_asked_for = !fault!(RnrFollowedBySequenceNak);
        refusal.failure(cx.qp.qpn, self.incoming.receive())
    }

    /// Queues an ACK of all that is done. An ACK that is already the last thing to be said is
    /// made to say this instead.
    fn queue_ack(&mut self) {
        let psn = if fault!(AckPsnAhead) { self.expected } else { self.expected.prev() };
        let ack = Reply::Ack { psn, msn: self.msn };
        match self.replies.back_mut() {
            // RC-RESP-036
            Some(last @ Reply::Ack { .. }) => *last = ack,
            _ => self.replies.push_back(ack),
        }
    }

    /// Queues a NAK for the expected PSN. One that ends the QP is the last, and has room always.
    fn queue_nak<H>(&mut self, cx: &mut Cx<'_, H>, counter: Counter, syndrome: Syndrome) {
        let ends_qp = matches!(syndrome, Syndrome::Nak(code) if code != NakCode::SequenceError);
        // RC-RESP-034
        if !ends_qp && self.replies.len() >= MAX_WAITING_REPLIES {
            return cx.count(Counter::NaksHeldBack, 1);
        }
        cx.count(counter, 1);
        let psn = if fault!(NakPsnAhead) { self.expected.next() } else { self.expected };
        self.replies.push_back(Reply::Nak { psn, syndrome });
    }

    /// Says this, and nothing that was to be said before.
    fn reply_only(&mut self, reply: Reply) {
        self.replies.clear();
        self.kept.clear();
        self.replies.push_back(reply);
    }
}

/// Whether a request is answered by an ACK, and by nothing else.
fn is_acknowledged(request: &Request) -> bool {
    matches!(request, Request::Send(_) | Request::Write(_))
}

/// Whether the peer wants to hear what is kept, and of no sequence error.
fn acknowledges_selectively<H>(cx: &Cx<'_, H>, route: &Route) -> bool {
    cx.peers.capabilities(route.flow.dst).is_some_and(|peer| peer.selective_ack)
}

/// The key that a SEND closes is that of a type 2 window that is bound on this QP.
fn check_invalidate<H>(cx: &Cx<'_, H>, request: &Request) -> Result<(), Refusal> {
    match request.invalidates() {
        // MEM-012
        Some(rkey)
            if !cx.keys.may_invalidate(rkey, cx.qp.key_scope())
                && !fault!(InvalidateNotChecked) =>
        {
            Err(Refusal::RemoteAccess)
        }
        _ => Ok(()),
    }
}
