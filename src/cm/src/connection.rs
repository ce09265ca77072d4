//! One connection, or one resolution of a service, and the messages that it sends.

use crate::counters::CmCounter;
use crate::event::{Ending, Event};
use crate::limits::MAX_PEER_TIME;
use crate::listener::ListenerId;
use crate::manager::{ConnId, Cx};
use crate::parameters::Path;
use crate::schedule::Repeats;
use std::time::{Duration, Instant};
use urxe_types::{PathMtu, Psn, Qkey, QpType, Qpn, TimeCode};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::{
    Ari, CommId, Drep, Dreq, Mad, Message, Mra, Reason, Received, Rej, Rejected, ServiceId,
    SidrRep, SidrStatus,
};

/// Where a connection stands. The names of IBTA 12.9.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active: asked for, not answered.
    ReqSent,
    /// Active: accepted by the peer; our program is to say whether it goes on.
    RepReceived,
    /// Passive: asked for; our program is to say whether it accepts.
    ReqReceived,
    /// Passive: accepted; the peer is to say that it goes on.
    RepSent,
    /// Both sides are ready.
    Established,
    /// We disconnected; the peer is to confirm it.
    DreqSent,
    /// It ended; what is still under way may arrive.
    TimeWait,
    /// We asked for the QP of a service.
    SidrReqSent,
    /// A peer asked for the QP of a service; our program is to answer.
    SidrReqReceived,
    /// We gave our last answer, and keep it should the peer ask again.
    Answered,
}

/// A connection, or the resolution of a service.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) state: State,
    /// The listener that it came to; none on the active side.
    pub(crate) listener: Option<ListenerId>,
    /// It has a place in the listener's backlog.
    pub(crate) in_backlog: bool,
    /// A program knows of it, and is to be told what becomes of it.
    pub(crate) owned: bool,
    /// Nothing of it is to be kept.
    pub(crate) gone: bool,
    pub(crate) path: Path,
    /// The peer's QP for management: always 1, but it may say otherwise.
    pub(crate) peer_gsi: Qpn,
    pub(crate) tid: u64,
    pub(crate) service_id: ServiceId,
    /// The peer's number of it; none on the active side before the REP has come.
    pub(crate) remote_id: CommId,
    /// What is agreed on; datagrams have nothing of the kind.
    pub(crate) terms: Option<Terms>,
    /// The message that is repeated, or given again, in this state.
    pub(crate) message: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) repeats: Repeats,
    /// How often either side repeats, as the REQ said.
    pub(crate) max_retries: u8,
    /// Until when the peer has asked for more time, and how often.
    pub(crate) patience: Option<Instant>,
    pub(crate) extensions: u8,
    /// When something is to be done.
    pub(crate) deadline: Option<Instant>,
    pub(crate) books: Books,
}

/// Where the manager has written a connection down.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// The deadline that the queue of deadlines has.
    pub(crate) deadline: Option<Instant>,
    /// Its place among those that no program knows of.
    pub(crate) lingering: Option<u64>,
    /// It is counted as a request without an answer.
    pub(crate) request: bool,
}

/// What the two sides of a connection agree on, piece by piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) qp_type: QpType,
    pub(crate) local_qpn: Qpn,
    /// The peer's QP, once it is known.
    pub(crate) remote_qpn: Option<Qpn>,
    /// Where our requester begins, which the peer says.
    pub(crate) sq_psn: Psn,
    /// Where the peer's begins, which we say.
    pub(crate) rq_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) path_mtu: PathMtu,
    pub(crate) ack_timeout: TimeCode,
}

impl Conn {
    /// The number by which the peer knows it.
    pub(crate) fn local_id(&self) -> CommId {
        CommId(self.id.0)
    }

    /// Whether our program has not answered it yet.
    pub(crate) fn is_request(&self) -> bool {
        matches!(self.state, State::ReqReceived | State::SidrReqReceived)
    }

    pub(crate) fn is_passive(&self) -> bool {
        self.listener.is_some()
    }

    pub(crate) fn remote_qpn(&self) -> Option<Qpn> {
        self.terms.and_then(|terms| terms.remote_qpn)
    }

    /// A message of this connection.
    pub(crate) fn mad(&self, message: impl Into<Message>) -> Box<[u8; MAD_LEN]> {
        Box::new(Mad::new(self.tid, message).bytes())
    }

    /// Sends a message now, once.
    pub(crate) fn send(&self, cx: &mut Cx<'_>, message: impl Into<Message>) {
        cx.send(self.path, self.peer_gsi, &self.mad(message));
    }

    /// Sends the kept message once more.
    pub(crate) fn send_again(&self, cx: &mut Cx<'_>, counter: CmCounter) {
        if let Some(message) = &self.message {
            cx.counters.add(counter, 1);
            cx.send(self.path, self.peer_gsi, message);
        }
    }

    /// Sends a message until it is answered, or too often.
    pub(crate) fn ask(&mut self, cx: &mut Cx<'_>, state: State, message: impl Into<Message>) {
        let message = self.mad(message);
        cx.send(self.path, self.peer_gsi, &message);
        self.state = state;
        self.message = Some(message);
        self.repeats = Repeats::new(&cx.config.timing, self.max_retries);
        self.patience = None;
        self.extensions = 0;
        self.deadline = Some(cx.now + self.repeats.wait());
    }

    /// Gives the last answer, and keeps it for a while. No program hears of this any more.
    pub(crate) fn answer_and_keep(&mut self, cx: &mut Cx<'_>, message: impl Into<Message>) {
        let message = self.mad(message);
        cx.send(self.path, self.peer_gsi, &message);
        self.state = State::Answered;
        self.message = Some(message);
        self.owned = false;
        self.deadline = Some(cx.now + cx.config.timing.keep_answer());
    }

    /// Waits for what the program says, or the peer.
    pub(crate) fn rest(&mut self, state: State) {
        self.state = state;
        self.message = None;
        self.deadline = None;
    }

    pub(crate) fn enter_time_wait(&mut self, cx: &mut Cx<'_>) {
        self.rest(State::TimeWait);
        // CM-018
        let wait = self.terms.map_or(Duration::ZERO, |terms| at_most(terms.ack_timeout));
        self.deadline = Some(cx.now + wait);
    }

    pub(crate) fn disconnected(&mut self, cx: &mut Cx<'_>, by: Ending) {
        cx.counters.add(CmCounter::Disconnected, 1);
        self.tell(cx, Event::Disconnected { conn: self.id, by });
        self.enter_time_wait(cx);
    }

    /// The connection comes to nothing. On the passive side the peer's number of it is kept for a
    /// while, lest a late REQ be taken for a new one.
    pub(crate) fn fail(&mut self, cx: &mut Cx<'_>, event: Event) {
        self.tell(cx, event);
        self.owned = false;
        self.rest(State::Answered);
        self.gone = !self.is_passive();
        self.deadline = Some(cx.now + cx.config.timing.keep_answer());
    }

    pub(crate) fn tell(&self, cx: &mut Cx<'_>, event: Event) {
        if self.owned {
            cx.events.push_back(event);
        }
    }

    /// A rejection by our side.
    pub(crate) fn rej(&self, rejected: Rejected, reason: Reason) -> Rej {
        Rej {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            rejected,
            reason,
            ari: Ari::NONE,
            private_data: [0; Rej::PRIVATE_LEN],
        }
    }

    /// Tells the peer that we do not wait any longer, should it still be there.
    fn timeout_rej(&self, cx: &Cx<'_>) -> Rej {
        let rej = self.rej(Rejected::Nothing, Reason::Timeout);
        Rej { ari: Ari::guid(cx.config.guid), ..rej }
    }

    /// Asks the peer to wait for our program.
    pub(crate) fn ask_for_time(&self, cx: &mut Cx<'_>, received: Received) {
        cx.counters.add(CmCounter::MoreTimeAsked, 1);
        let mra = Mra {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            received,
            service_timeout: cx.config.timing.service_timeout,
            private_data: [0; Mra::PRIVATE_LEN],
        };
        self.send(cx, mra);
    }

    /// The peer asks us to wait for its program. We go on asking, lest its last word be lost, but
    /// do not count how often; it may ask as often as we might have repeated.
    pub(crate) fn give_time(&mut self, cx: &mut Cx<'_>, mra: &Mra) {
        let waiting = self.patience.is_some_and(|until| cx.now < until);
        // CM-011
        if waiting || self.extensions >= self.max_retries {
            return cx.counters.add(CmCounter::DropDuplicate, 1);
        }
        cx.counters.add(CmCounter::MoreTimeGiven, 1);
        self.extensions += 1;
        self.patience = Some(cx.now + at_most(mra.service_timeout));
        self.deadline = Some(cx.now + cx.config.timing.response_timeout.duration());
    }

    pub(crate) fn drep(&self) -> Drep {
        Drep {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            private_data: [0; Drep::PRIVATE_LEN],
        }
    }

    /// The deadline has come.
    pub(crate) fn on_deadline(&mut self, cx: &mut Cx<'_>) {
        self.deadline = None;
        match self.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrReqSent => {
                let patient = self.patience.is_some_and(|until| cx.now < until);
                // CM-009
                if patient || self.repeats.next() {
                    let wait = match patient {
                        true => cx.config.timing.response_timeout.duration(),
                        false => self.repeats.wait(),
                    };
                    self.deadline = Some(cx.now + wait);
                    return self.send_again(cx, CmCounter::Repeats);
                }
                cx.counters.add(CmCounter::GivenUp, 1);
                self.give_up(cx);
            }
            State::TimeWait => {
                self.tell(cx, Event::TimewaitExit { conn: self.id });
                self.gone = true;
            }
            State::Answered => self.gone = true,
            State::ReqReceived
            | State::RepReceived
            | State::Established
            | State::SidrReqReceived => {}
        }
    }

    fn give_up(&mut self, cx: &mut Cx<'_>) {
        let unreachable = Event::Unreachable { conn: self.id };
        match self.state {
            State::DreqSent => self.disconnected(cx, Ending::Unconfirmed),
            State::RepSent => {
                self.tell(cx, unreachable);
                self.answer_and_keep(cx, self.timeout_rej(cx));
            }
            state => {
                if state == State::ReqSent {
                    self.send(cx, self.timeout_rej(cx));
                }
                self.fail(cx, unreachable);
            }
        }
    }

    /// Our program refuses, or went away before it had agreed.
    pub(crate) fn refuse(&mut self, cx: &mut Cx<'_>, private_data: [u8; Rej::PRIVATE_LEN]) {
        cx.counters.add(CmCounter::RefusedByProgram, 1);
        let rejected = match self.state {
            State::ReqReceived => Rejected::Req,
            State::RepReceived => Rejected::Rep,
            _ => Rejected::Nothing,
        };
        let rej = self.rej(rejected, Reason::Consumer);
        self.answer_and_keep(cx, Rej { private_data, ..rej });
    }

    /// Our program refuses, or went away.
    pub(crate) fn refuse_sidr(
        &mut self,
        cx: &mut Cx<'_>,
        private_data: [u8; SidrRep::PRIVATE_LEN],
    ) {
        cx.counters.add(CmCounter::RefusedByProgram, 1);
        let rep = sidr_rep(self.remote_id, self.service_id, SidrStatus::Rejected);
        self.answer_and_keep(cx, SidrRep { private_data, ..rep });
    }

    pub(crate) fn disconnect(&mut self, cx: &mut Cx<'_>, private_data: [u8; Dreq::PRIVATE_LEN]) {
        let dreq = Dreq {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            remote_qpn: self.remote_qpn().unwrap_or_default(),
            private_data,
        };
        self.ask(cx, State::DreqSent, dreq);
    }

    /// The program that it belongs to wants no more of it.
    pub(crate) fn abandon(&mut self, cx: &mut Cx<'_>) {
        match self.state {
            State::ReqSent => {
                self.send(cx, self.timeout_rej(cx));
                self.gone = true;
            }
            State::SidrReqSent => self.gone = true,
            // CM-019
            State::ReqReceived | State::RepReceived | State::RepSent => {
                self.refuse(cx, [0; Rej::PRIVATE_LEN]);
            }
            State::SidrReqReceived => self.refuse_sidr(cx, [0; SidrRep::PRIVATE_LEN]),
            State::Established => self.disconnect(cx, [0; Dreq::PRIVATE_LEN]),
            State::DreqSent | State::TimeWait | State::Answered => {}
        }
        self.owned = false;
    }
}

/// A time that the peer chose, but not just any.
fn at_most(time: TimeCode) -> Duration {
    time.min(TimeCode::new(MAX_PEER_TIME)).duration()
}

/// An answer that names no QP.
pub(crate) fn sidr_rep(request_id: CommId, service_id: ServiceId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        qpn: Qpn::default(),
        service_id,
        qkey: Qkey::default(),
        information_len: 0,
        information: [0; SidrRep::INFORMATION_LEN],
        private_data: [0; SidrRep::PRIVATE_LEN],
    }
}
