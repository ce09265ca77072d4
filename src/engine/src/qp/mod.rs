//! One QP. Requester, responder and completer share it and never call each other: each leaves its
//! marks (`failure`, `dirty`, queued replies, the place in the send queue), and the
//! [device](crate::Device) sees to them.

mod checks;
mod completer;
mod datagram;
mod flush_atomic_write;
mod kept_reads;
mod local_ops;
mod modify;
mod readiness;
mod replay;
mod requester;
mod responder;
mod response;
mod retry;
mod send_queue;
mod sges;
mod state;
mod unreliable;

pub(crate) use modify::Change;
pub use modify::ModifyQpError;
pub use state::Attribute;

use crate::attr::{DeviceConfig, PdId, QpInfo, QpInit, RecvSource};
use crate::cause::Cause;
use crate::counters::{Counter, Counters};
use crate::device::{AhTable, Cqs, SrqTable, Tables};
use crate::host::{AsyncEvent, CqId, Host, Taken};
use crate::limits::PACKETS_PER_TURN;
use crate::memory::KeyTable;
use requester::Requester;
use responder::Responder;
use retry::Retry;
use send_queue::SendQueue;
use std::time::Instant;
use urxe_types::{
    Completion, Extra, Psn, QpAttr, QpState, QpType, Qpn, RecvWqe, WcOpcode, WcStatus,
};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Body, Flow, Outer, Packet};

/// The two lowest bits of the traffic class (RFC 3168).
const ECN_MASK: u8 = 0b11;
/// What a congested switch makes of them.
const ECN_CONGESTION_EXPERIENCED: u8 = 0b11;

/// The world of a QP while the device works on it.
pub(crate) struct Cx<'a, H> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut H,
    pub(crate) keys: &'a mut KeyTable,
    pub(crate) srqs: &'a mut SrqTable,
    pub(crate) ahs: &'a AhTable,
    pub(crate) cqs: &'a mut Cqs,
    pub(crate) counters: &'a mut Counters,
    pub(crate) config: &'a DeviceConfig,
}

impl<'a, H> Cx<'a, H> {
    pub(crate) fn new(now: Instant, host: &'a mut H, tables: &'a mut Tables) -> Self {
        let Tables { config, keys, srqs, ahs, cqs, counters } = tables;
        Cx { now, host, keys, srqs, ahs, cqs, counters, config }
    }
}

/// What may happen to a QP.
pub(crate) enum Event<'a> {
    /// A packet came that carries its number.
    Packet(&'a Outer, &'a Packet<'a>),
    /// The batch of packets is through.
    EndOfBatch,
    /// A timer may have run out.
    Timer,
    /// It is its turn to send.
    Turn(&'a mut TxBatch),
    /// A CQ that it uses takes no more completions.
    CqFailed,
    /// The program changes it.
    Modify(Change),
}

/// The way to the peer, settled when the QP goes to RTR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) flow: Flow,
    pub(crate) mtu: u32,
    pub(crate) dest_qpn: Qpn,
}

/// Why a QP goes to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The oldest send work request ends with this.
    Send(WcStatus, Cause),
    /// The responder gave up; the receive in use, if any, ends with this.
    Receive { status: WcStatus, cause: Cause, event: Option<AsyncEvent> },
    /// The send queue cannot be read any more.
    BrokenQueue,
    /// A CQ had no room for a completion, of this QP or of another.
    CqOverrun,
    /// The program asked for it.
    Requested,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    qpn: Qpn,
    init: QpInit,
    /// The protection domain of its receives: that of the SRQ if it has one.
    recv_pd: PdId,
    state: QpState,
    /// The attributes as they were set.
    attr: QpAttr,
    path: Option<Path>,
    sq: SendQueue,
    requester: Requester,
    retry: Retry,
    responder: Responder,
    communication_established: bool,
    /// Program memory was written and the host not yet told to [`sync`](Host::sync).
    dirty: bool,
    /// Something went wrong for good; [`process_failures`](Qp::process_failures) sees to it.
    failure: Option<Failure>,
    /// The program was told [`QpFatal`](AsyncEvent::QpFatal).
    told_fatal: bool,
    /// Why what is flushed is flushed.
    flush_cause: Cause,
    counters: Counters,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: QpInit, recv_pd: PdId) -> Qp {
        Qp {
            qpn,
            init,
            recv_pd,
            state: QpState::Reset,
            attr: QpAttr::default(),
            path: None,
            sq: SendQueue::new(Psn::new(0)),
            requester: Requester::default(),
            retry: Retry::new(0, 0, 1024),
            responder: Responder::new(Psn::new(0)),
            communication_established: false,
            dirty: false,
            failure: None,
            told_fatal: false,
            flush_cause: Cause::Flushed,
            counters: Counters::default(),
        }
    }

    /// Counts for the QP and for its device.
    fn count<H>(&mut self, cx: &mut Cx<'_, H>, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
        cx.counters.add(counter, amount);
    }

    /// The way to the peer of a connected QP.
    ///
    /// Only states from RTR on come here, and no RC or UC QP gets there without a path.
    fn path(&self) -> &Path {
        self.path.as_ref().expect("a connected QP in RTR or later has a path")
    }

    /// The largest payload of its packets: that of its path, or of the link if it is UD.
    fn mtu(&self, config: &DeviceConfig) -> u32 {
        self.path.as_ref().map_or(config.active_mtu.bytes() as u32, |path| path.mtu)
    }

    /// What an rkey must be of to open anything here: our protection domain and, if it is of a
    /// type 2 window, this QP.
    fn key_scope(&self) -> (PdId, Qpn) {
        (self.init.pd, self.qpn)
    }

    /// What `query_qp` tells.
    pub(crate) fn info(&self) -> QpInfo {
        QpInfo {
            state: self.state,
            attr: self.attr.clone(),
            init: self.init.clone(),
            sq_draining: self.state == QpState::Sqd && !self.requester.drained,
            sq_psn: self.sq.next_psn(),
            rq_psn: self.responder.expected,
        }
    }

    /// What it was created with.
    pub(crate) fn init(&self) -> &QpInit {
        &self.init
    }

    /// What it has counted.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether program memory was written that is not visible yet.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Lets something happen to the QP. Returns whether it has something to send that only waits
    /// for its turn.
    pub(crate) fn handle<H: Host>(&mut self, cx: &mut Cx<'_, H>, event: Event<'_>) -> bool {
        match event {
            Event::Packet(outer, packet) => self.handle_packet(cx, outer, packet),
            Event::EndOfBatch => {
                self.sync(cx);
            }
            Event::Timer => self.handle_timers(cx),
            Event::Turn(tx) => return self.transmit(cx, tx, PACKETS_PER_TURN),
            Event::CqFailed => self.on_cq_failed(),
            Event::Modify(change) => self.apply(cx.config, change),
        }
        self.process_failures(cx);
        self.may_transmit()
    }

    /// Takes in a packet that carries this QP's number.
    fn handle_packet<H: Host>(&mut self, cx: &mut Cx<'_, H>, outer: &Outer, packet: &Packet<'_>) {
        match (self.init.qp_type, packet.headers.body) {
            (QpType::Rc, Body::RcRequest(request)) => {
                if self.is_from_peer(cx, outer, packet) {
                    self.handle_request(cx, &packet.of_kind(request));
                }
            }
            (QpType::Rc, Body::RcResponse(response)) => {
                if self.is_from_peer(cx, outer, packet) {
                    self.handle_response(cx, &packet.of_kind(response));
                }
            }
            (QpType::Uc, Body::Uc(request)) => {
                if self.is_from_peer(cx, outer, packet) {
                    self.handle_unreliable_request(cx, &packet.of_kind(request.into()));
                }
            }
            (QpType::Ud, Body::Ud(datagram)) => self.handle_datagram(cx, outer, packet, &datagram),
            (_, Body::Cnp) => self.count(cx, Counter::CnpsReceived, 1),
            _ => self.count(cx, Counter::DropWrongTransport, 1),
        }
    }

    /// Whether a packet came from the QP that this one is connected to. It is counted as received,
    /// or as dropped.
    fn is_from_peer<H>(&mut self, cx: &mut Cx<'_, H>, outer: &Outer, packet: &Packet<'_>) -> bool {
        let dropped = match &self.path {
            None => Counter::DropQpNotReady,
            Some(path) if (path.flow.src, path.flow.dst) != (outer.flow.dst, outer.flow.src) => {
                Counter::DropWrongAddress
            }
            Some(_) => {
                self.count_received(cx, outer, packet);
                return true;
            }
        };
        self.count(cx, dropped, 1);
        false
    }

    /// Counts a packet that belongs to this QP.
    fn count_received<H>(&mut self, cx: &mut Cx<'_, H>, outer: &Outer, packet: &Packet<'_>) {
        self.count(cx, Counter::ReceivedPackets, 1);
        self.count(cx, Counter::ReceivedBytes, packet.payload.len() as u64);
        if outer.flow.traffic_class & ECN_MASK == ECN_CONGESTION_EXPERIENCED {
            self.count(cx, Counter::EcnMarked, 1);
        }
    }

    /// The program rang the doorbell: its queues are worth a look. Returns whether it has
    /// something to send that only waits for its turn.
    pub(crate) fn on_doorbell(&mut self) -> bool {
        self.requester.queue_empty = false;
        self.may_transmit()
    }

    /// Whether [`transmit`](Self::transmit) may find something to do.
    fn may_transmit(&mut self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => {
                self.owes_replies()
                    || (!self.retry.is_rnr_waiting()
                        && (self.requester.may_have_work() || self.sq.current().is_some()))
            }
            QpState::Sqe | QpState::Err => self.owes_replies() || self.is_to_flush(),
            _ => self.owes_replies(),
        }
    }

    /// Puts what is owed to the peer and what may be sent into the batch. Returns whether there
    /// is more, held up only by the batch's room or the end of this QP's turn.
    fn transmit<H: Host>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBatch, mut budget: u32) -> bool {
        if self.is_to_flush() {
            self.flush(cx);
        }
        let more = self.transmit_replies(cx, tx, &mut budget)
            || self.transmit_requests(cx, tx, &mut budget);
        self.process_failures(cx);
        more || self.owes_replies() || self.is_to_flush()
    }

    /// Whether something may be posted that is to be flushed.
    fn is_to_flush(&self) -> bool {
        matches!(self.state, QpState::Sqe | QpState::Err) && !self.requester.queue_empty
    }

    /// The next time at which a timer of this QP runs out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retry.deadline()
    }

    /// Makes the writes to program memory visible, and returns whether they are; if not, the QP
    /// fails.
    fn sync<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> bool {
        if !std::mem::take(&mut self.dirty) || cx.host.sync().is_ok() {
            return true;
        }
        if self.failure.is_none() {
            if self.init.qp_type == QpType::Rc {
                self.count(cx, Counter::RemoteOperationalNaksSent, 1);
                self.responder.fail_unacked();
            }
            self.failure = Some(Failure::Receive {
                status: WcStatus::LocalProtection,
                cause: Cause::LocalMemory,
                event: Some(AsyncEvent::QpFatal(self.qpn)),
            });
        }
        false
    }

    /// Sees to the marks: failed work requests whose turn it is, failures, a drained SQ.
    fn process_failures<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if self.failure.is_none()
            && let Some(front) = self.sq.front()
            && let Some((status, cause)) = front.failed
            && (front.started || self.state != QpState::Sqd)
        {
            self.failure = Some(Failure::Send(status, cause));
        }
        if let Some(failure) = self.failure.take() {
            self.fail(cx, failure);
        }
        if self.state == QpState::Sqd && !self.requester.drained && self.sq.is_drained() {
            self.requester.drained = true;
            cx.host.event(AsyncEvent::SqDrained(self.qpn));
        }
    }

    /// Takes the QP to ERR: what failed is completed with its error, everything else flushed. A
    /// send that fails on our own side takes only the send queue of a UC or UD QP with it (SQE):
    /// the peer knows nothing of it, and what it sends is as good as before.
    fn fail<H: Host>(&mut self, cx: &mut Cx<'_, H>, failure: Failure) {
        if self.state == QpState::Err {
            if failure == Failure::CqOverrun {
                self.tell_fatal(cx);
            }
            return;
        }
        let reliable = self.init.qp_type == QpType::Rc;
        self.state = match failure {
            Failure::Send(..) if !reliable => QpState::Sqe,
            _ => QpState::Err,
        };
        self.flush_cause = match failure {
            // No completion has told, or can tell.
            Failure::CqOverrun => Cause::CqOverrun,
            Failure::BrokenQueue => Cause::BrokenQueue,
            _ => Cause::Flushed,
        };
        self.retry.stop();
        match failure {
            Failure::Send(status, cause) => {
                if let Some(pending) = self.sq.pop_front() {
                    if !is_told_by_peer(status) {
                        self.count(cx, Counter::LocalErrors, 1);
                    }
                    cx.host.retire_send(self.init.send_queue);
                    self.complete_send(cx, &pending, status, cause);
                }
            }
            Failure::Receive { status, cause, event } => {
                if let Some(wr_id) = self.responder.take_recv() {
                    self.count(cx, Counter::LocalErrors, 1);
                    self.complete_recv(cx, wr_id, status, cause);
                }
                match event {
                    Some(AsyncEvent::QpFatal(_)) => self.tell_fatal(cx),
                    Some(event) => cx.host.event(event),
                    None => {}
                }
            }
            Failure::BrokenQueue | Failure::CqOverrun => {
                self.count(cx, Counter::LocalErrors, 1);
                self.tell_fatal(cx);
            }
            Failure::Requested => {}
        }
        match failure {
            // Very many QPs may use a CQ: each is flushed when it has its turn.
            Failure::CqOverrun => {
                self.flush_recv_in_use(cx);
                self.requester.queue_empty = false;
            }
            _ => self.flush(cx),
        }
        if self.state == QpState::Err && self.init.srq().is_some() {
            cx.host.event(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Tells the program, once, that the QP has failed in a way that no completion may have told.
    fn tell_fatal<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if !std::mem::replace(&mut self.told_fatal, true) {
            cx.host.event(AsyncEvent::QpFatal(self.qpn));
        }
    }

    /// A CQ that it uses takes no more completions.
    fn on_cq_failed(&mut self) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            self.failure.get_or_insert(Failure::CqOverrun);
        }
    }

    /// Ends everything that is posted with a flush error: in SQE the sends, in ERR the receives
    /// as well. Those of an SRQ are not the QP's own, but for the one it has taken.
    fn flush<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        loop {
            let pending = match self.sq.pop_front() {
                Some(pending) => pending,
                None => {
                    let mut pending = self.sq.blank();
                    match cx.host.next_send(self.init.send_queue, &mut pending.wqe) {
                        Taken::Ready | Taken::Malformed => pending,
                        Taken::Empty | Taken::Broken => break,
                    }
                }
            };
            self.count(cx, Counter::FlushedRequests, 1);
            cx.host.retire_send(self.init.send_queue);
            self.complete_send(cx, &pending, WcStatus::WrFlush, self.flush_cause);
            self.sq.put_back(pending);
        }
        self.requester.queue_empty = true;
        if self.state == QpState::Sqe {
            return;
        }
        self.flush_recv_in_use(cx);
        let RecvSource::Own(queue) = self.init.recv else { return };
        let mut recv = RecvWqe::default();
        while let Taken::Ready | Taken::Malformed = cx.host.next_recv(queue, &mut recv) {
            self.count(cx, Counter::FlushedRequests, 1);
            self.complete_recv(cx, recv.wr_id, WcStatus::WrFlush, self.flush_cause);
        }
    }

    fn flush_recv_in_use<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(wr_id) = self.responder.take_recv() {
            self.count(cx, Counter::FlushedRequests, 1);
            self.complete_recv(cx, wr_id, WcStatus::WrFlush, self.flush_cause);
        }
    }

    /// Puts a receive that failed on the CQ.
    fn complete_recv<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        wr_id: u64,
        status: WcStatus,
        cause: Cause,
    ) {
        let completion = Completion {
            status,
            vendor_err: cause as u32,
            solicited: true,
            ..self.received(wr_id)
        };
        self.complete(cx, self.init.recv_cq, &completion);
    }

    /// The completion of a receive of nothing in particular.
    fn received(&self, wr_id: u64) -> Completion {
        Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: Cause::None as u32,
            byte_len: 0,
            extra: Extra::None,
            qpn: self.qpn,
            src_qpn: Qpn::new(0),
            grh: None,
            solicited: false,
        }
    }

    /// Puts a completion on a CQ. Where it is of a success that stands for memory, the memory has
    /// been [made visible](Self::sync) before.
    fn complete<H: Host>(&mut self, cx: &mut Cx<'_, H>, cq: CqId, completion: &Completion) {
        if !cx.cqs.has_failed(cq) && cx.host.complete(cq, completion).is_ok() {
            return;
        }
        self.count(cx, Counter::CqOverruns, 1);
        if cx.cqs.fail(cq) {
            cx.host.event(AsyncEvent::CqError(cq));
        }
        self.failure.get_or_insert(Failure::CqOverrun);
    }
}

/// Whether an error is about the peer or the way to it, and not about our own side.
fn is_told_by_peer(status: WcStatus) -> bool {
    matches!(
        status,
        WcStatus::RemoteInvalidRequest
            | WcStatus::RemoteAccess
            | WcStatus::RemoteOperation
            | WcStatus::RetryExceeded
            | WcStatus::RnrRetryExceeded
            | WcStatus::BadResponse
    )
}
