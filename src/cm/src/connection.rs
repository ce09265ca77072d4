//! One connection, or one resolution of a service: its state, its timer, what it sends, and what is
//! kept to be sent again.

use crate::counters::CmCounter;
use crate::event::{DisconnectCause, Event};
use crate::limits::MAX_PEER_TIME;
use crate::listener::ListenerId;
use crate::manager::{ConnId, Context};
use crate::parameters::Path;
use crate::saved::{CommIdAsNumber, ServiceIdAsNumber, saved_message};
use crate::timing::Retries;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use urxe_types::{PathMtu, Psn, Qkey, QpType, Qpn, TimeCode};
use urxe_wire::mad::{
    Ari, CommId, Drep, Dreq, MAD_LEN, Mad, Message, Mra, Reason, Received, Rej, Rejected,
    ServiceId, SidrRep, SidrStatus,
};

/// A QPN that no QP of a connection has: the subnet management interface's.
const NO_QP: Qpn = Qpn::new(0);

/// The state of a connection, with the names of IBTA 12.9.5, or of a resolution (12.11).
///
/// IBTA's "MRA sent" and "MRA received" are not among them: an MRA only lengthens the wait in
/// REQ-SENT and REP-SENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// REQ sent (active side); waits for a REP or REJ.
    ReqSent,
    /// REP received (active side); waits for the program to establish or reject.
    RepReceived,
    /// REQ received (passive side); waits for the program to accept or reject.
    ReqReceived,
    /// REP sent (passive side); waits for an RTU or REJ.
    RepSent,
    /// Established: both QPs may send.
    Established,
    /// DREQ sent; waits for a DREP.
    DreqSent,
    /// TIMEWAIT: ended; packets of the connection may still arrive.
    TimeWait,
    /// SIDR REQ sent; waits for a SIDR REP.
    SidrReqSent,
    /// SIDR REQ received; waits for the program to answer.
    SidrReqReceived,
    /// Not IBTA's: over for the program. A duplicate of what was replied to last gets the same
    /// reply, and is no new request.
    Lingering,
}

/// A connection, or the resolution of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) state: State,
    /// The listener that it came to; none on the active side.
    pub(crate) listener: Option<ListenerId>,
    /// It has a place in the listener's backlog.
    pub(crate) in_backlog: bool,
    /// A program has it, and gets its events.
    pub(crate) owned: bool,
    /// To be removed from the manager.
    pub(crate) gone: bool,
    pub(crate) path: Path,
    /// The QP that the peer's messages come from: 1, unless the peer uses another.
    pub(crate) peer_gsi: Qpn,
    pub(crate) tid: u64,
    #[serde(with = "ServiceIdAsNumber")]
    pub(crate) service_id: ServiceId,
    /// The peer's communication ID; none on the active side before the REP.
    #[serde(with = "CommIdAsNumber")]
    pub(crate) remote_id: CommId,
    /// What was negotiated; none for SIDR.
    pub(crate) terms: Option<Terms>,
    /// The message that is sent again in this state: when the timer expires, or as the reply to a
    /// duplicate.
    #[serde(with = "saved_message")]
    pub(crate) message: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) retries: Retries,
    /// The max CM retries of the REQ: for both sides.
    pub(crate) max_retries: u8,
    /// Until when the peer asked us to wait with its last MRA. Retries until then do not count.
    #[serde(skip)]
    pub(crate) mra_deadline: Option<Instant>,
    pub(crate) mras_received: u8,
    /// When the peer was last asked whether it has lost the connection.
    #[serde(skip)]
    pub(crate) asked_whether_lost: Option<Instant>,
    /// When the timer expires.
    #[serde(skip)]
    pub(crate) deadline: Option<Instant>,
    #[serde(skip)]
    pub(crate) indexed: Indexed,
}

/// What the manager's indexes hold of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexed {
    /// Its entry among the deadlines.
    pub(crate) deadline: Option<Instant>,
    /// Its entry among the connections that no program has.
    pub(crate) lingering: Option<u64>,
    /// It is counted as a pending request.
    pub(crate) request: bool,
}

/// What the two sides of a connection negotiate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) qp_type: QpType,
    pub(crate) local_qpn: Qpn,
    /// The peer's QP, once it is known.
    pub(crate) remote_qpn: Option<Qpn>,
    /// First PSN of our requester, chosen by the peer.
    pub(crate) sq_psn: Psn,
    /// First PSN of the peer's requester, chosen by us.
    pub(crate) rq_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) path_mtu: PathMtu,
    pub(crate) ack_timeout: TimeCode,
}

impl Conn {
    /// Our communication ID.
    pub(crate) fn local_id(&self) -> CommId {
        CommId(self.id.0)
    }

    /// Whether it waits for the program to accept, answer or reject.
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
    pub(crate) fn send(&self, cx: &mut Context<'_>, message: impl Into<Message>) {
        cx.send(self.path, self.peer_gsi, &self.mad(message));
    }

    /// Sends the last message once more.
    pub(crate) fn send_again(&self, cx: &mut Context<'_>, counter: CmCounter) {
        if let Some(message) = &self.message {
            cx.counters.add(counter, 1);
            cx.send(self.path, self.peer_gsi, message);
        }
    }

    /// Answers a question that has come again, which anybody may have sent.
    pub(crate) fn answer_again(&self, cx: &mut Context<'_>) {
        if cx.may_repeat(self.path.peer) {
            self.send_again(cx, CmCounter::AnsweredAgain);
        }
    }

    /// Sends a message, again and again until its answer comes or the retries are used up.
    pub(crate) fn send_with_retries(
        &mut self,
        cx: &mut Context<'_>,
        state: State,
        message: impl Into<Message>,
    ) {
        let message = self.mad(message);
        cx.send(self.path, self.peer_gsi, &message);
        self.state = state;
        self.message = Some(message);
        // CM-009
        let timing = &cx.config.timing;
        self.retries = Retries::for_peer(timing, self.max_retries, self.retries.longest());
        self.mra_deadline = None;
        self.mras_received = 0;
        self.deadline = Some(cx.now + self.retries.wait());
    }

    /// Sends the last reply and keeps it for duplicates. The connection is over for the program.
    pub(crate) fn reply_and_linger(&mut self, cx: &mut Context<'_>, message: impl Into<Message>) {
        let message = self.mad(message);
        cx.send(self.path, self.peer_gsi, &message);
        self.state = State::Lingering;
        self.message = Some(message);
        self.owned = false;
        self.deadline = Some(cx.now + cx.config.timing.linger());
    }

    /// Enters a state without a timer, and without a message to send again.
    pub(crate) fn idle(&mut self, state: State) {
        self.state = state;
        self.message = None;
        self.deadline = None;
    }

    pub(crate) fn enter_time_wait(&mut self, cx: &mut Context<'_>) {
        self.idle(State::TimeWait);
        // CM-018
        let wait = self.terms.map_or(Duration::ZERO, |terms| capped(terms.ack_timeout));
        self.deadline = Some(cx.now + wait);
    }

    pub(crate) fn disconnected(&mut self, cx: &mut Context<'_>, cause: DisconnectCause) {
        cx.counters.add(CmCounter::Disconnected, 1);
        self.push_event(cx, Event::Disconnected { conn: self.id, cause });
        self.enter_time_wait(cx);
    }

    /// Ends a connection that was not established. The passive side remembers the peer's
    /// communication ID for a while, lest a late duplicate of the REQ be taken for a new one.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, event: Event) {
        self.push_event(cx, event);
        self.owned = false;
        self.idle(State::Lingering);
        self.gone = !self.is_passive();
        self.deadline = Some(cx.now + cx.config.timing.linger());
    }

    pub(crate) fn push_event(&self, cx: &mut Context<'_>, event: Event) {
        if self.owned {
            cx.events.push_back(event);
        }
    }

    /// A REJ of this connection.
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

    /// The REJ of a side that gives up waiting.
    fn timeout_rej(&self, cx: &Context<'_>) -> Rej {
        let rej = self.rej(Rejected::Nothing, Reason::Timeout);
        Rej { ari: Ari::guid(cx.config.guid), ..rej }
    }

    /// Asks the peer to wait until our program has decided.
    pub(crate) fn send_mra(&self, cx: &mut Context<'_>, received: Received) {
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

    /// The peer asks us to wait until its program has decided. We go on sending, since its reply
    /// may get lost, but do not count these retries. As many MRAs are heeded as there are retries.
    pub(crate) fn handle_mra(&mut self, cx: &mut Context<'_>, mra: &Mra) {
        let waiting = self.mra_deadline.is_some_and(|until| cx.now < until);
        // CM-011
        if waiting || self.mras_received >= self.max_retries {
            return cx.counters.add(CmCounter::DropDuplicate, 1);
        }
        cx.counters.add(CmCounter::MoreTimeGiven, 1);
        self.mras_received += 1;
        self.mra_deadline = Some(cx.now + capped(mra.service_timeout));
        self.deadline = Some(cx.now + cx.config.timing.response_timeout.duration());
    }

    pub(crate) fn drep(&self) -> Drep {
        Drep {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            private_data: [0; Drep::PRIVATE_LEN],
        }
    }

    /// The timer has expired.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.deadline = None;
        match self.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrReqSent => {
                let extended = self.mra_deadline.is_some_and(|until| cx.now < until);
                // CM-009
                if extended || self.retries.next() {
                    let wait = match extended {
                        true => cx.config.timing.response_timeout.duration(),
                        false => self.retries.wait(),
                    };
                    self.deadline = Some(cx.now + wait);
                    // Who has our number has had a message of ours, and the others were asked by
                    // a program of this machine.
                    let is_proven = self.state != State::RepSent || self.mras_received > 0;
                    if is_proven || cx.may_repeat(self.path.peer) {
                        self.send_again(cx, CmCounter::Repeats);
                    }
                    return;
                }
                cx.counters.add(CmCounter::GivenUp, 1);
                self.give_up(cx);
            }
            State::TimeWait => {
                self.push_event(cx, Event::TimewaitExit { conn: self.id });
                self.gone = true;
            }
            State::Lingering => self.gone = true,
            State::ReqReceived
            | State::RepReceived
            | State::Established
            | State::SidrReqReceived => {}
        }
    }

    fn give_up(&mut self, cx: &mut Context<'_>) {
        let unreachable = Event::Unreachable { conn: self.id };
        match self.state {
            State::DreqSent => self.disconnected(cx, DisconnectCause::Unconfirmed),
            State::RepSent => {
                self.push_event(cx, unreachable);
                self.reply_and_linger(cx, self.timeout_rej(cx));
            }
            state => {
                if state == State::ReqSent {
                    self.send(cx, self.timeout_rej(cx));
                }
                self.fail(cx, unreachable);
            }
        }
    }

    /// Our program rejects, or destroys the connection before it is established.
    pub(crate) fn refuse(&mut self, cx: &mut Context<'_>, private_data: [u8; Rej::PRIVATE_LEN]) {
        cx.counters.add(CmCounter::RefusedByProgram, 1);
        let rejected = match self.state {
            State::ReqReceived => Rejected::Req,
            State::RepReceived => Rejected::Rep,
            _ => Rejected::Nothing,
        };
        let rej = self.rej(rejected, Reason::Consumer);
        self.reply_and_linger(cx, Rej { private_data, ..rej });
    }

    /// Our program rejects or destroys a SIDR request.
    pub(crate) fn refuse_sidr(
        &mut self,
        cx: &mut Context<'_>,
        private_data: [u8; SidrRep::PRIVATE_LEN],
    ) {
        cx.counters.add(CmCounter::RefusedByProgram, 1);
        let rep = sidr_rep(self.remote_id, self.service_id, SidrStatus::Rejected);
        self.reply_and_linger(cx, SidrRep { private_data, ..rep });
    }

    pub(crate) fn disconnect(
        &mut self,
        cx: &mut Context<'_>,
        private_data: [u8; Dreq::PRIVATE_LEN],
    ) {
        let dreq = self.dreq(self.remote_qpn().unwrap_or_default(), private_data);
        self.send_with_retries(cx, State::DreqSent, dreq);
    }

    fn dreq(&self, remote_qpn: Qpn, private_data: [u8; Dreq::PRIVATE_LEN]) -> Dreq {
        Dreq {
            local_comm_id: self.local_id(),
            remote_comm_id: self.remote_id,
            remote_qpn,
            private_data,
        }
    }

    /// Asks the peer of an established connection whether it still has it, if it was not asked just
    /// now: by a DREQ for a QP that no connection has. A peer that has the connection drops that;
    /// one that does not answers with a DREP, as to every DREQ of a connection that it does not
    /// know.
    pub(crate) fn ask_whether_lost(&mut self, cx: &mut Context<'_>) {
        let again_after = cx.config.timing.first_wait.duration();
        let asked = self.asked_whether_lost;
        let was_asked = asked.is_some_and(|at| cx.now.duration_since(at) < again_after);
        // CM-200
        if self.state == State::Established && !was_asked {
            cx.counters.add(CmCounter::LossesAsked, 1);
            self.asked_whether_lost = Some(cx.now);
            self.send(cx, self.dreq(NO_QP, [0; Dreq::PRIVATE_LEN]));
        }
    }

    /// The program destroys it.
    pub(crate) fn abandon(&mut self, cx: &mut Context<'_>) {
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
            State::DreqSent | State::TimeWait | State::Lingering => {}
        }
        self.owned = false;
    }
}

/// A time that the peer chose, with a bound.
fn capped(time: TimeCode) -> Duration {
    time.min(MAX_PEER_TIME).duration()
}

/// A SIDR REP that names no QP.
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
