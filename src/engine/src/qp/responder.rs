//! The responder: request packets to memory and acknowledgements.
//!
//! A request passes one check after the other, in the order of the functions below; the first one
//! it fails says how ([`Refusal`]). What has to be answered waits in the order of its PSNs in
//! `replies` until the batch of requests is through, so that many packets share one ACK.

use super::kept_reads::KeptReads;
use super::replay::{AtomicResource, Done, ReadResource, Resource, Resources};
use super::sges::{SgeWalk, Space};
use super::{Cx, Failure, Qp};
use crate::attr::RecvSource;
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{AsyncEvent, Host, MemoryFault, Taken};
use crate::limits::MAX_WAITING_REPLIES;
use crate::memory::Span;
use std::collections::VecDeque;
use urxe_types::{
    Access, Completion, Extra, Msn, Psn, QpState, RecvWqe, Rkey, RnrTimer, WcOpcode, WcStatus,
};
use urxe_wire::{AtomicEth, Headers, NakCode, Packet, Part, Request, Reth, Syndrome};

/// The state of one responder.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN of the next request.
    pub(crate) expected: Psn,
    /// Messages completed.
    pub(crate) msn: Msn,
    /// A NAK asked for `expected`: silence until it comes.
    nak_sent: bool,
    /// What the next packet must go on with.
    pub(super) message: Message,
    /// The receive in use.
    pub(super) recv: RecvWqe,
    recv_walk: SgeWalk,
    recv_in_use: bool,
    pub(crate) replies: VecDeque<Reply>,
    /// The first PSN that no reply sent so far has spoken for.
    pub(crate) unanswered_from: Psn,
    pub(super) resources: Resources,
    /// Answers to READs that were copied before a later request stored something there.
    pub(super) kept: KeptReads,
}

/// The message under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    None,
    Send {
        /// Bytes received.
        received: u64,
    },
    Write {
        /// Where the next byte goes.
        va: u64,
        rkey: Rkey,
        /// The whole message's length.
        length: u32,
        /// Bytes still to come.
        remaining: u32,
    },
}

/// Something to be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Everything up to `psn` is done.
    Ack { psn: Psn, msn: Msn },
    /// A NAK for this PSN.
    Nak { psn: Psn, syndrome: Syndrome },
    /// The rest of a READ's data.
    Read { read: ReadResource, sent: u32 },
    /// An atomic's answer.
    Atomic(AtomicResource),
    /// An ATOMIC WRITE's answer.
    AtomicWrite(Done),
    /// A FLUSH's answer.
    Flush(Done),
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted: the peer shall try again later.
    ReceiverNotReady,
    /// The request breaks the rules (class C, IBTA 9.9.3): NAK, and the QP goes to ERR.
    InvalidRequest,
    /// The key does not open the memory (class C): NAK, and the QP goes to ERR.
    RemoteAccess,
    /// The message is longer than the receive (class C): NAK, the receive fails.
    ReceiveTooShort,
    /// Our own side is at fault (class A): NAK, the receive fails.
    Local(Cause),
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Responder {
        Responder {
            expected,
            msn: Msn::new(0),
            nak_sent: false,
            message: Message::None,
            recv: RecvWqe::default(),
            recv_walk: SgeWalk::default(),
            recv_in_use: false,
            replies: VecDeque::new(),
            unanswered_from: expected,
            resources: Resources::default(),
            kept: KeptReads::default(),
        }
    }

    /// The receive in use, taken out to be completed.
    pub(crate) fn take_recv(&mut self) -> Option<u64> {
        std::mem::take(&mut self.recv_in_use).then_some(self.recv.wr_id)
    }

    /// Queues an ACK of all that is done. An ACK that is already the last thing to be said is
    /// made to say this instead.
    fn queue_ack(&mut self) {
        let ack = Reply::Ack { psn: self.expected.prev(), msn: self.msn };
        match self.replies.back_mut() {
            Some(last @ Reply::Ack { .. }) => *last = ack,
            _ => self.replies.push_back(ack),
        }
    }

    /// What was done since the last reply was lost: the peer is told so, and nothing else.
    pub(crate) fn fail_unacked(&mut self) {
        let syndrome = Syndrome::Nak(NakCode::RemoteOperational);
        self.clear_replies();
        self.replies.push_back(Reply::Nak { psn: self.unanswered_from, syndrome });
    }

    /// Nothing that was to be said is said any more.
    pub(super) fn clear_replies(&mut self) {
        self.replies.clear();
        self.kept.clear();
    }

    /// Whether all data of a READ was sent before.
    pub(super) fn was_answered(&self, read: &ReadResource) -> bool {
        !self.unanswered_from.precedes(read.first_psn + read.packets)
    }

    /// READs, atomics and ATOMIC WRITEs accepted and not answered. An answer that is repeated does
    /// not count: the peer may have had it long ago.
    fn unanswered(&self) -> usize {
        let is_first_answer = |reply: &&Reply| match reply {
            Reply::Read { read, .. } => !self.was_answered(read),
            Reply::Atomic(AtomicResource { psn, .. }) | Reply::AtomicWrite(Done { psn, .. }) => {
                self.unanswered_from.precedes(psn.next())
            }
            Reply::Flush(_) | Reply::Ack { .. } | Reply::Nak { .. } => false,
        };
        self.replies.iter().filter(is_first_answer).count()
    }
}

impl Qp {
    /// A request packet arrived.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) {
        if !self.may_receive() {
            return self.count(cx, Counter::DropQpNotReady, 1);
        }
        self.establish(cx);
        let Headers { bth, body: request } = &packet.headers;
        if self.over_reply_limit(request) {
            return self.count(cx, Counter::FlushesHeldBack, 1);
        }
        match bth.psn.diff(self.responder.expected) {
            0 => self.responder.nak_sent = false,
            ..0 => return self.on_duplicate(cx, bth.psn, request),
            1.. => return self.on_gap(cx),
        }
        let result = self
            .check_sequence(request)
            .and_then(|()| self.check_enabled(request))
            .and_then(|()| self.check_length(packet))
            .and_then(|()| self.check_invalidate(cx, request))
            .and_then(|()| self.check_resources(cx, request))
            .and_then(|()| self.execute(cx, packet));
        match result {
            // It was lost again before it could be told; the peer is not to hear otherwise.
            Ok(()) if self.failure.is_some() => {}
            Ok(()) if bth.ack_req && matches!(request, Request::Send(_) | Request::Write(_)) => {
                self.responder.queue_ack();
            }
            Ok(()) => {}
            Err(refusal) => self.refuse(cx, refusal),
        }
    }

    /// Whether the responder works.
    pub(super) fn may_receive(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// The peer is there. A program that waits in RTR for word of its peer is told once.
    pub(super) fn establish<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if self.state == QpState::Rtr
            && !std::mem::replace(&mut self.communication_established, true)
        {
            cx.host.event(AsyncEvent::CommunicationEstablished(self.qpn));
        }
    }

    /// A request ahead of the expected one: one NAK asks for what is missing.
    fn on_gap<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.count(cx, Counter::OutOfSequence, 1);
        if !std::mem::replace(&mut self.responder.nak_sent, true) {
            let syndrome = Syndrome::Nak(NakCode::SequenceError);
            self.queue_nak(cx, Counter::SequenceNaksSent, syndrome);
        }
    }

    /// Queues a NAK for the expected PSN. One that ends the QP is the last, and has room always.
    fn queue_nak<H>(&mut self, cx: &mut Cx<'_, H>, counter: Counter, syndrome: Syndrome) {
        let ends_qp = matches!(syndrome, Syndrome::Nak(code) if code != NakCode::SequenceError);
        if !ends_qp && self.responder.replies.len() >= MAX_WAITING_REPLIES {
            return self.count(cx, Counter::NaksHeldBack, 1);
        }
        self.count(cx, counter, 1);
        let psn = self.responder.expected;
        self.responder.replies.push_back(Reply::Nak { psn, syndrome });
    }

    /// A request that was here before: SENDs and WRITEs are acknowledged, READs and atomics
    /// answered again (IBTA 9.7.5.1.4).
    fn on_duplicate<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, request: &Request) {
        self.count(cx, Counter::DuplicateRequests, 1);
        let again = match request {
            Request::Send(_) | Request::Write(_) => return self.responder.queue_ack(),
            Request::Read(reth) => return self.on_read_again(cx, psn, reth),
            Request::CompareSwap(_) | Request::FetchAdd(_) => {
                let atomic = self.responder.resources.find_atomic(psn);
                atomic.map(|atomic| (Reply::Atomic(atomic), Counter::AtomicsReplayed))
            }
            Request::AtomicWrite(_) => {
                let done = self.responder.resources.find_atomic_write(psn);
                done.map(|done| (Reply::AtomicWrite(done), Counter::AtomicsReplayed))
            }
            // Everything before the expected PSN is done, and visible before the answer is sent.
            Request::Flush { .. } => {
                let msn = self.responder.msn;
                Some((Reply::Flush(Done { psn, msn }), Counter::FlushesReplayed))
            }
        };
        let Some((reply, counter)) = again else {
            return self.count(cx, Counter::DropUnknownDuplicate, 1);
        };
        self.count(cx, counter, 1);
        if !self.responder.replies.contains(&reply) {
            self.responder.replies.push_back(reply);
        }
    }

    fn on_read_again<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, reth: &Reth) {
        let mtu = self.path().mtu;
        let rest = read_resource(psn, reth, mtu, self.responder.msn);
        match self.responder.resources.find_read(&rest, mtu) {
            Some(original) => {
                self.count(cx, Counter::ReadsReplayed, 1);
                self.replay_read(original, rest);
            }
            None => self.count(cx, Counter::DropUnknownDuplicate, 1),
        }
    }

    /// Answers a READ again from `rest` on. If an answer to the same READ is still being sent, it
    /// is taken back there: the peer has said where it stands, and two answers at once would let
    /// it make us send without bound.
    fn replay_read(&mut self, original: ReadResource, rest: ReadResource) {
        let again = Reply::Read { read: rest, sent: 0 };
        let same = |reply: &&mut Reply| match reply {
            Reply::Read { read, .. } => {
                let end = |read: &ReadResource| read.first_psn + read.packets;
                end(read) == end(&original)
            }
            _ => false,
        };
        match self.responder.replies.iter_mut().find(same) {
            Some(reply) => *reply = again,
            None => self.responder.replies.push_back(again),
        }
    }

    /// A receive for what consumes one, a place for the answer of a READ or atomic.
    pub(super) fn check_resources<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        request: &Request,
    ) -> Result<(), Refusal> {
        match request {
            Request::Read(_)
            | Request::CompareSwap(_)
            | Request::FetchAdd(_)
            | Request::AtomicWrite(_) => {
                let limit = usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0));
                match self.responder.unanswered() < limit {
                    true => Ok(()),
                    false => Err(Refusal::InvalidRequest),
                }
            }
            Request::Send(part) if part.starts() => self.take_recv(cx),
            Request::Write(part) if matches!(part.end(), Some(Some(_))) => self.take_recv(cx),
            Request::Send(_) | Request::Write(_) | Request::Flush { .. } => Ok(()),
        }
    }

    /// Makes sure that a receive is in use: the one that a dropped message left, or the next. Its
    /// entries are checked as far as the message reaches, when that is put there.
    pub(super) fn take_recv<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Refusal> {
        self.responder.recv_walk = SgeWalk::default();
        if self.responder.recv_in_use {
            return Ok(());
        }
        let recv = &mut self.responder.recv;
        let taken = match self.init.recv {
            RecvSource::Own(queue) => cx.host.next_recv(queue, recv),
            RecvSource::Shared(srq) => cx.srqs.take(cx.host, srq, recv),
        };
        match taken {
            Taken::Ready => {
                self.responder.recv_in_use = true;
                Ok(())
            }
            Taken::Malformed => {
                self.responder.recv_in_use = true;
                Err(Refusal::Local(Cause::MalformedEntry))
            }
            Taken::Empty => Err(Refusal::ReceiverNotReady),
            Taken::Broken => Err(Refusal::Local(Cause::BrokenQueue)),
        }
    }

    /// Does what a request asks for that has passed all checks but those of memory.
    pub(super) fn execute<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Refusal> {
        let Packet { headers: Headers { bth, body: request }, payload } = packet;
        // What the last packet of a message brings for the receive, if that is consumed.
        let ended = match request {
            Request::Send(part) => {
                self.execute_send(cx, payload)?;
                part.end().map(|extra| Some(*extra))
            }
            Request::Write(part) => {
                self.execute_write(cx, part, payload)?;
                part.end().map(|imm| imm.map(Extra::Imm))
            }
            Request::Read(reth) => return self.execute_read(cx, bth.psn, reth),
            Request::CompareSwap(eth) => {
                return self.execute_atomic(cx, bth.psn, eth, |host, span| {
                    host.compare_swap(span.region, span.offset, eth.compare, eth.swap_or_add)
                });
            }
            Request::FetchAdd(eth) => {
                return self.execute_atomic(cx, bth.psn, eth, |host, span| {
                    host.fetch_add(span.region, span.offset, eth.swap_or_add)
                });
            }
            Request::AtomicWrite(reth) => {
                return self.execute_atomic_write(cx, bth.psn, reth, payload);
            }
            Request::Flush { feth, reth } => return self.execute_flush(cx, bth.psn, feth, reth),
        };
        self.responder.expected = self.responder.expected.next();
        if let Some(extra) = ended {
            self.end_message(cx, bth.solicited, extra);
        }
        Ok(())
    }

    fn execute_send<H: Host>(&mut self, cx: &mut Cx<'_, H>, payload: &[u8]) -> Result<(), Refusal> {
        let offset = match self.responder.message {
            Message::Send { received } => received,
            _ => 0,
        };
        self.put(cx, offset, payload)?;
        let received = offset + payload.len() as u64;
        self.responder.message = Message::Send { received };
        Ok(())
    }

    /// Puts data into the receive in use.
    pub(super) fn put<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refusal> {
        // A copy that fails may have written a part.
        self.dirty = true;
        let mut space = Space { keys: cx.keys, pd: self.recv_pd, host: cx.host };
        let Responder { recv, recv_walk, .. } = &mut self.responder;
        space.scatter(recv_walk, &recv.sges, offset, data).map_err(|cause| match cause {
            Cause::ReceiveTooShort => Refusal::ReceiveTooShort,
            cause => Refusal::Local(cause),
        })
    }

    fn execute_write<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        part: &Part<Reth, Option<u32>>,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let (va, rkey, length, remaining) = match (part.start(), self.responder.message) {
            (Some(reth), _) => {
                // The whole range is checked at once, so that nothing of a write that reaches
                // outside is done.
                self.check_rkey(cx, reth.rkey, reth.va, reth.len, Access::REMOTE_WRITE)?;
                (reth.va, reth.rkey, reth.len, reth.len)
            }
            (None, Message::Write { va, rkey, length, remaining }) => (va, rkey, length, remaining),
            (None, _) => return Err(Refusal::InvalidRequest),
        };
        let len = payload.len() as u32;
        if len > 0 {
            let span = self.check_rkey(cx, rkey, va, len, Access::REMOTE_WRITE)?;
            let Some(span) = span else { return Err(Refusal::InvalidRequest) };
            self.keep_reads(cx, &span, u64::from(len));
            cx.host
                .write(span.region, span.offset, payload)
                .map_err(|_| Refusal::Local(Cause::LocalMemory))?;
            self.dirty = true;
        }
        if part.ends() {
            cx.host.write_barrier();
        }
        let va = va.wrapping_add(u64::from(len));
        self.responder.message = Message::Write { va, rkey, length, remaining: remaining - len };
        Ok(())
    }

    fn execute_read<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        self.check_rkey(cx, reth.rkey, reth.va, reth.len, Access::REMOTE_READ)?;
        // The request is a message done (IBTA C9-148), though its data is still to be sent.
        let msn = self.responder.msn.next();
        let read = read_resource(psn, reth, self.path().mtu, msn);
        self.remember(Resource::Read(read));
        let responder = &mut self.responder;
        responder.replies.push_back(Reply::Read { read, sent: 0 });
        responder.expected = responder.expected + read.packets;
        responder.msn = msn;
        self.count(cx, Counter::ReceivedMessages, 1);
        Ok(())
    }

    fn execute_atomic<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        eth: &AtomicEth,
        operate: impl FnOnce(&mut H, Span) -> Result<u64, MemoryFault>,
    ) -> Result<(), Refusal> {
        if !eth.va.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        let span = self.check_rkey(cx, eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC)?;
        let Some(span) = span else { return Err(Refusal::InvalidRequest) };
        self.keep_reads(cx, &span, 8);
        let original = operate(cx.host, span).map_err(|_| Refusal::Local(Cause::LocalMemory))?;
        self.dirty = true;
        let msn = self.responder.msn.next();
        let atomic = AtomicResource { psn, original, msn };
        self.remember(Resource::Atomic(atomic));
        self.end_single(cx, Reply::Atomic(atomic));
        Ok(())
    }

    /// Keeps what was done for a repeat.
    pub(super) fn remember(&mut self, resource: Resource) {
        let limit = usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0));
        self.responder.resources.remember(resource, limit);
    }

    /// A request of one packet, which this reply answers, is done.
    pub(super) fn end_single<H>(&mut self, cx: &mut Cx<'_, H>, reply: Reply) {
        let responder = &mut self.responder;
        responder.replies.push_back(reply);
        responder.expected = responder.expected.next();
        responder.msn = responder.msn.next();
        self.count(cx, Counter::ReceivedMessages, 1);
    }

    /// The last packet of a SEND or WRITE is done. `extra` is what it brings for the receive, if
    /// the message consumes one.
    fn end_message<H: Host>(&mut self, cx: &mut Cx<'_, H>, solicited: bool, extra: Option<Extra>) {
        if extra.is_some() && !self.sync(cx) {
            return;
        }
        let message = std::mem::replace(&mut self.responder.message, Message::None);
        self.responder.msn = self.responder.msn.next();
        self.count(cx, Counter::ReceivedMessages, 1);
        if let Some(Extra::Invalidate(rkey)) = extra {
            cx.keys.unbind(rkey.0);
            self.count(cx, Counter::KeysInvalidated, 1);
        }
        let Some(extra) = extra else { return };
        let Some(wr_id) = self.responder.take_recv() else { return };
        let (opcode, byte_len) = match message {
            Message::Write { length, .. } => (WcOpcode::RecvRdmaWithImm, length),
            Message::Send { received } => (WcOpcode::Recv, received as u32),
            Message::None => (WcOpcode::Recv, 0),
        };
        let completion = Completion {
            opcode,
            byte_len,
            extra,
            src_qpn: self.path().dest_qpn,
            solicited,
            ..self.received(wr_id)
        };
        self.complete(cx, self.init.recv_cq, &completion);
    }

    /// Answers a request that is not executed.
    fn refuse<H>(&mut self, cx: &mut Cx<'_, H>, refusal: Refusal) {
        let (counter, syndrome) = match refusal {
            Refusal::ReceiverNotReady => {
                let timer = RnrTimer::new(self.attr.min_rnr_timer.unwrap_or(0));
                (Counter::RnrNaksSent, Syndrome::RnrNak { timer })
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
        self.queue_nak(cx, counter, syndrome);
        // What follows was sent before the peer saw the NAK.
        self.responder.nak_sent = true;
        self.fail_receive(refusal);
    }

    /// What a refusal does to our own side.
    pub(super) fn fail_receive(&mut self, refusal: Refusal) {
        let qpn = self.qpn;
        let (status, cause, event) = match refusal {
            Refusal::ReceiverNotReady => return,
            Refusal::InvalidRequest => {
                let event = AsyncEvent::QpRequestError(qpn);
                (WcStatus::LocalQpOperation, Cause::RequestRefused, Some(event))
            }
            Refusal::RemoteAccess => {
                let event = AsyncEvent::QpAccessError(qpn);
                (WcStatus::LocalAccess, Cause::RequestRefused, Some(event))
            }
            Refusal::ReceiveTooShort => (WcStatus::LocalLength, Cause::ReceiveTooShort, None),
            Refusal::Local(cause) => {
                let status = match cause {
                    Cause::MalformedEntry | Cause::LocalMemory | Cause::BrokenQueue => {
                        WcStatus::LocalQpOperation
                    }
                    _ => WcStatus::LocalProtection,
                };
                // Without a receive there is no completion that tells of it.
                let untold = !self.responder.recv_in_use;
                (status, cause, untold.then_some(AsyncEvent::QpFatal(qpn)))
            }
        };
        self.failure = Some(Failure::Receive { status, cause, event });
    }
}

/// The READ that a request asks for.
fn read_resource(first_psn: Psn, reth: &Reth, mtu: u32, msn: Msn) -> ReadResource {
    let packets = reth.len.div_ceil(mtu).max(1);
    ReadResource { first_psn, packets, va: reth.va, rkey: reth.rkey, len: reth.len, msn }
}
