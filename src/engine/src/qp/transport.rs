//! The send queue of a QP and the service that works on it: what happens is passed on to the
//! service, and what comes of it is seen to here.

use super::Event;
use super::common::{Cx, Failure};
use super::modify::{Change, Step};
use super::notification::Notifier;
use super::parameters::{Parameters, Route};
use super::rc::Rc;
use super::send_queue::SendQueue;
use super::uc::Uc;
use super::ud::Ud;
use crate::attr::DeviceConfig;
use crate::attr::RecvSource;
use crate::cause::Cause;
use crate::counters::Counter;
use crate::device::Tables;
use crate::host::{AsyncEvent, Host, Taken};
use crate::limits::PACKETS_PER_TURN;
use crate::path::{PathId, Paths, Release};
use std::time::Instant;
use urxe_types::{Psn, QpState, QpType, Qpn, RecvWqe, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Body, Outer, Packet, ROCE_PORT};

/// The send queue, and the service that works on it.
#[derive(Debug, Default)]
pub(super) struct Transport {
    sq: SendQueue,
    service: Service,
    notifier: Notifier,
}

/// The transport service of a QP, with all that it keeps.
#[derive(Debug, Default)]
enum Service {
    /// Before RTR.
    #[default]
    None,
    /// Reliable connection.
    Rc(Box<Rc>),
    /// Unreliable connection.
    Uc(Uc),
    /// Unreliable datagram.
    Ud(Ud),
}

impl Transport {
    /// Whether nothing has begun that has not ended, and the program in SQD was told so.
    pub(super) fn is_drained(&self) -> bool {
        self.sq.was_told_drained()
    }

    /// The PSN of the next new request.
    pub(super) fn next_psn(&self) -> Psn {
        self.sq.next_psn()
    }

    /// Leaves from the port that is right for its peer now.
    pub(super) fn follow_guarded_addrs(&mut self, config: &DeviceConfig) {
        if let Some(Route { flow, .. }) = self.service.route_mut()
            && config.guarded_addrs.contains(&flow.dst)
        {
            flow.src_port = ROCE_PORT;
        }
    }

    /// The path to the peer, if it is known.
    pub(super) fn path(&self) -> Option<PathId> {
        match &self.service {
            Service::Rc(rc) => Some(rc.path()),
            Service::None | Service::Uc(_) | Service::Ud(_) => None,
        }
    }

    /// The PSN expected next.
    pub(super) fn expected_psn(&self) -> Psn {
        match &self.service {
            Service::Rc(rc) => rc.expected_psn(),
            Service::Uc(uc) => uc.expected_psn(),
            Service::None | Service::Ud(_) => Psn::default(),
        }
    }

    /// The way to the peer.
    pub(super) fn route(&self) -> Option<&Route> {
        self.service.route()
    }

    /// The next time at which a timer runs out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.service {
            Service::Rc(rc) => rc.deadline(),
            Service::None | Service::Uc(_) | Service::Ud(_) => None,
        }
    }

    /// The QP ends, or begins anew.
    pub(super) fn leave(&mut self, tables: &mut Tables) {
        if let Service::Rc(rc) = &mut self.service {
            rc.leave(&mut tables.paths, &mut self.sq);
            rc.forget_early(&mut tables.early_bytes);
        }
    }

    /// The QP waits for no turn of its path any more.
    pub(super) fn stop_waiting(&mut self, tables: &mut Tables, qpn: Qpn) {
        if let Service::Rc(rc) = &mut self.service {
            rc.stop_waiting(&mut tables.paths, qpn);
        }
    }

    /// The QP's turn in a lane of its path has come. Returns whether it has a use for it.
    pub(super) fn on_released(&mut self, release: &Release, may_send: bool) -> bool {
        match &mut self.service {
            Service::Rc(rc) => rc.on_released(release, may_send && !rc.is_answer_awaited(&self.sq)),
            Service::None | Service::Uc(_) | Service::Ud(_) => false,
        }
    }

    /// The queues are worth a look.
    pub(super) fn on_doorbell(&mut self) {
        self.sq.wake();
    }

    /// Whether something is owed to the peer.
    fn owes_replies(&self) -> bool {
        matches!(&self.service, Service::Rc(rc) if rc.owes_replies())
    }

    /// Whether an ACK is all that there is to send.
    pub(super) fn owes_only_an_ack(&self) -> bool {
        !self.notifier.is_due()
            && matches!(&self.service, Service::Rc(rc) if rc.owes_only_an_ack(&self.sq))
    }

    /// Whether something may be posted that is to be flushed.
    fn is_to_flush(&self, state: QpState) -> bool {
        // STATE-027
        matches!(state, QpState::Sqe | QpState::Err) && self.sq.is_awake()
    }

    /// Whether a turn may find something to do.
    pub(super) fn may_transmit(&self, state: QpState) -> bool {
        self.owes_replies()
            || self.notifier.is_due()
            || match state {
                QpState::Rts | QpState::Sqd => match &self.service {
                    Service::Rc(rc) => rc.may_send(&self.sq),
                    _ => self.sq.may_have_work(),
                },
                _ => self.is_to_flush(state),
            }
    }

    /// Lets something happen. Returns whether there is something to send that only waits for its
    /// turn; amid a batch that is not asked.
    pub(super) fn handle<H: Host>(&mut self, cx: &mut Cx<'_, H>, event: Event<'_>) -> bool {
        match event {
            Event::Packet(outer, packet) => {
                let result = self.handle_packet(cx, outer, packet);
                cx.note(result);
                self.process_failures(cx);
                return false;
            }
            Event::ReservedOpcode(outer, bth) => {
                // RC-RESP-062: that of the peer, and nobody else's.
                if let Service::Rc(rc) = &mut self.service
                    && rc.route().is_way_of(outer)
                {
                    let result = rc.handle_reserved_opcode(cx, bth.psn);
                    cx.note(result);
                }
            }
            Event::EndOfBatch => {
                cx.sync();
                cx.hear();
            }
            Event::Timer => {
                if let Service::Rc(rc) = &mut self.service {
                    let result = rc.handle_timers(cx, &mut self.sq);
                    cx.note(result);
                }
            }
            Event::Turn(tx) => return self.transmit(cx, tx),
            Event::CqFailed => {
                // CQ-032
                if !matches!(cx.qp.state, QpState::Reset | QpState::Err) {
                    cx.qp.failure.get_or_insert(Failure::CqOverrun);
                }
            }
            Event::Modify(change) => self.modify(cx, change),
        }
        self.process_failures(cx);
        self.may_transmit(cx.qp.state)
    }

    /// Takes in a packet that carries this QP's number.
    fn handle_packet<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        outer: &Outer,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let of_type = match packet.headers.body {
            Body::RcRequest(_) | Body::RcResponse(_) => QpType::Rc,
            Body::Uc(_) => QpType::Uc,
            Body::Ud(_) => QpType::Ud,
            Body::Cnp => {
                self.handle_notification(cx, outer);
                return Ok(());
            }
        };
        let dropped = match (&mut self.service, packet.headers.body) {
            // COUNT-007, UD-022, UC-019
            _ if of_type != cx.qp.init.qp_type => Counter::DropWrongTransport,
            (Service::Ud(ud), Body::Ud(datagram)) => {
                return ud.handle_datagram(cx, outer, packet, &datagram);
            }
            // COUNT-008, MCAST-008
            (Service::Rc(rc), _) if !rc.route().is_way_of(outer) => Counter::DropWrongAddress,
            // COUNT-008, MCAST-008, UC-019
            (Service::Uc(uc), _) if !uc.route().is_way_of(outer) => Counter::DropWrongAddress,
            (Service::Rc(rc), Body::RcRequest(request)) => {
                cx.count_received(outer, packet);
                if cx.is_marked && !rc.on_marked(cx) {
                    self.notifier.on_marked(cx);
                }
                let src_port = outer.flow.src_port;
                return rc.handle_request(cx, src_port, &packet.of_kind(request));
            }
            (Service::Rc(rc), Body::RcResponse(response)) => {
                cx.count_received(outer, packet);
                // CONG-022: what the queue of answers tells is of no use to who waits for them.
                if cx.is_marked && !packet.payload.is_empty() && !rc.has_agreed(cx) {
                    self.notifier.on_marked(cx);
                }
                return rc.handle_response(cx, &mut self.sq, &packet.of_kind(response));
            }
            (Service::Uc(uc), Body::Uc(request)) => {
                cx.count_received(outer, packet);
                if cx.is_marked {
                    self.notifier.on_marked(cx);
                }
                return uc.handle_request(cx, &packet.of_kind(request.into()));
            }
            // COUNT-009
            _ => Counter::DropQpNotReady,
        };
        cx.count(dropped, 1);
        Ok(())
    }

    /// Takes in a congestion notification.
    fn handle_notification<H>(&mut self, cx: &mut Cx<'_, H>, outer: &Outer) {
        if self.route().is_some_and(|route| !route.is_way_of(outer)) {
            // COUNT-008, CONG-025
            return cx.count(Counter::DropWrongAddress, 1);
        }
        // COUNT-016
        cx.count(Counter::CnpsReceived, 1);
        if let Service::Rc(rc) = &self.service {
            rc.on_notification(cx);
        }
    }

    /// Puts what is owed to the peer and what may be sent into the batch. Returns whether there
    /// is more, held up only by the batch's room or the end of this QP's turn.
    fn transmit<H: Host>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBatch) -> bool {
        if self.is_to_flush(cx.qp.state) {
            self.flush(cx);
        }
        let mut budget = PACKETS_PER_TURN;
        if let Some(route) = self.service.route() {
            self.notifier.transmit(cx, route, tx);
        }
        let result = match &mut self.service {
            Service::Rc(rc) => rc.transmit(cx, &mut self.sq, tx, &mut budget),
            Service::Uc(uc) if cx.qp.may_send() => uc.transmit(cx, &mut self.sq, tx, &mut budget),
            Service::Ud(ud) if cx.qp.may_send() => ud.transmit(cx, &mut self.sq, tx, &mut budget),
            Service::None | Service::Uc(_) | Service::Ud(_) => Ok(false),
        };
        let more = result.unwrap_or_else(|failure| {
            cx.note(Err(failure));
            false
        });
        self.process_failures(cx);
        more || self.owes_replies() || self.is_to_flush(cx.qp.state)
    }

    /// Makes a change that was checked; one to RESET does not come here.
    fn modify<H>(&mut self, cx: &mut Cx<'_, H>, change: Change) {
        let Change { to, attr, step } = change;
        if to == QpState::Err {
            return cx.note(Err(Failure::Requested));
        }
        if (cx.qp.state, to) == (QpState::Rts, QpState::Sqd) {
            self.sq.begin_draining();
        }
        if std::mem::replace(&mut cx.qp.state, to) != to {
            cx.note_state(None);
        }
        cx.qp.attr = attr;
        match step {
            Step::None => {}
            Step::StartResponder(parameters, rq_psn) => {
                self.service = Service::new(cx.paths, parameters, rq_psn);
            }
            Step::StartRequester(parameters, sq_psn) => {
                self.sq = SendQueue::new(sq_psn);
                self.service.update(cx, &mut self.sq, parameters);
            }
            Step::Update(parameters) => self.service.update(cx, &mut self.sq, parameters),
        }
    }

    /// Sees to what went wrong: failed work requests whose turn it is, failures; and to an SQ that
    /// has drained.
    fn process_failures<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if std::mem::take(&mut cx.qp.writes_lost)
            && let Service::Rc(rc) = &mut self.service
        {
            cx.count(Counter::RemoteOperationalNaksSent, 1);
            rc.fail_unacked();
        }
        if cx.qp.failure.is_none()
            && let Some((status, cause)) = self.sq.failed_front(cx.qp.state)
        {
            cx.qp.failure = Some(Failure::Send(status, cause));
        }
        if let Some(failure) = cx.qp.failure.take() {
            self.fail(cx, failure);
        }
        // STATE-005, STATE-006
        if cx.qp.state == QpState::Sqd && self.sq.take_drained() && !fault!(SqdDrainedNotTold) {
            cx.host.event(AsyncEvent::SqDrained(cx.qp.qpn));
        }
    }

    /// Takes the QP to ERR: what failed is completed with its error, everything else flushed. A
    /// send that fails on our own side takes only the send queue of a UC or UD QP with it (SQE):
    /// the peer knows nothing of it, and what it sends is as good as before.
    fn fail<H: Host>(&mut self, cx: &mut Cx<'_, H>, failure: Failure) {
        if cx.qp.state == QpState::Err {
            // CQ-032
            if failure == Failure::CqOverrun {
                cx.tell_fatal();
            }
            return;
        }
        let reliable = cx.qp.init.qp_type == QpType::Rc;
        cx.qp.state = match failure {
            // STATE-026, STATE-028, UD-034
            Failure::Send(..) if !reliable => QpState::Sqe,
            _ => QpState::Err,
        };
        cx.qp.flush_cause = match failure {
            // CQ-034: no completion has told, or can tell.
            Failure::CqOverrun => Cause::CqOverrun,
            Failure::BrokenQueue => Cause::BrokenQueue,
            _ => Cause::Flushed,
        };
        cx.note_state(failure.cause());
        if let Service::Rc(rc) = &mut self.service {
            rc.stop_timers();
            rc.abandon(cx.paths, &mut self.sq);
            // REPAIR-014
            rc.forget_early(cx.early_bytes);
        }
        match failure {
            Failure::Send(status, cause) => {
                if !is_told_by_peer(status) && !self.sq.is_empty() {
                    cx.count(Counter::LocalErrors, 1);
                }
                self.sq.fail_front(cx, status, cause);
            }
            Failure::Receive { status, cause, event } => {
                if let Some(wr_id) = self.service.end_receive() {
                    cx.count(Counter::LocalErrors, 1);
                    cx.fail_recv(wr_id, status, cause);
                }
                match event {
                    Some(AsyncEvent::QpFatal(_)) => cx.tell_fatal(),
                    Some(event) => cx.host.event(event),
                    None => {}
                }
            }
            // CQ-013
            Failure::BrokenQueue | Failure::CqOverrun => {
                cx.count(Counter::LocalErrors, 1);
                cx.tell_fatal();
            }
            Failure::Requested => {}
        }
        match failure {
            // Very many QPs may use a CQ: each is flushed when it has its turn.
            // CQ-020
            Failure::CqOverrun => {
                self.flush_receive_in_use(cx);
                self.sq.wake();
            }
            _ => self.flush(cx),
        }
        // SRQ-009
        if cx.qp.state == QpState::Err && cx.qp.init.srq().is_some() && !fault!(LastWqeNotTold) {
            // SRQ-007
            cx.host.event(AsyncEvent::LastWqeReached(cx.qp.qpn));
        }
    }

    /// Ends everything that is posted with a flush error: in SQE the sends, in ERR the receives
    /// as well. Those of an SRQ are not the QP's own, but for the one it has taken.
    fn flush<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        self.sq.flush(cx);
        // STATE-026
        if cx.qp.state == QpState::Sqe || fault!(ReceivesNotFlushed) {
            return;
        }
        // STATE-011, SRQ-008
        self.flush_receive_in_use(cx);
        // SRQ-008: a shared queue is the others', too.
        let RecvSource::Own(queue) = cx.qp.init.recv else { return };
        let mut recv = RecvWqe::default();
        while let Taken::Ready | Taken::Malformed = cx.host.next_recv(queue, &mut recv) {
            flush_recv(cx, recv.wr_id);
        }
    }

    fn flush_receive_in_use<H: Host>(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(wr_id) = self.service.end_receive() {
            flush_recv(cx, wr_id);
        }
    }
}

impl Service {
    /// The service of a QP that goes to RTR.
    fn new(paths: &mut Paths, parameters: Parameters, rq_psn: Psn) -> Service {
        match parameters {
            Parameters::Rc { route, responder, requester: _ } => {
                Service::Rc(Box::new(Rc::new(paths, route, responder, rq_psn)))
            }
            Parameters::Uc { route, access } => Service::Uc(Uc::new(route, access, rq_psn)),
            Parameters::Ud { qkey } => Service::Ud(Ud::new(qkey)),
        }
    }

    /// The way to the peer.
    fn route(&self) -> Option<&Route> {
        match self {
            Service::Rc(rc) => Some(rc.route()),
            Service::Uc(uc) => Some(uc.route()),
            Service::None | Service::Ud(_) => None,
        }
    }

    fn route_mut(&mut self) -> Option<&mut Route> {
        match self {
            Service::Rc(rc) => Some(rc.route_mut()),
            Service::Uc(uc) => Some(uc.route_mut()),
            Service::None | Service::Ud(_) => None,
        }
    }

    /// Goes on with these parameters.
    fn update<H>(&mut self, cx: &mut Cx<'_, H>, sq: &mut SendQueue, parameters: Parameters) {
        match (self, parameters) {
            (Service::Rc(rc), Parameters::Rc { route, responder, requester }) => {
                rc.update(cx, sq, route, responder, requester);
            }
            (Service::Uc(uc), Parameters::Uc { route, access }) => uc.update(route, access),
            (Service::Ud(ud), Parameters::Ud { qkey }) => ud.update(qkey),
            // They were resolved for the QP's own type.
            _ => {}
        }
    }

    /// Takes the receive in use out to be completed: its `wr_id`.
    fn end_receive(&mut self) -> Option<u64> {
        match self {
            Service::None => None,
            Service::Rc(rc) => rc.end_receive(),
            Service::Uc(uc) => uc.end_receive(),
            Service::Ud(ud) => ud.end_receive(),
        }
    }
}

fn flush_recv<H: Host>(cx: &mut Cx<'_, H>, wr_id: u64) {
    cx.count(Counter::FlushedRequests, 1);
    cx.fail_recv(wr_id, WcStatus::WrFlush, cx.qp.flush_cause);
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
