//! Messages about a connection that is there already.

use crate::connection::{Conn, State};
use crate::counters::CmCounter;
use crate::event::{ConnectResponse, Ending, Event, SidrReply};
use crate::manager::{ConnId, Cx, Manager, RequestKey};
use crate::parameters::Qp;
use std::net::IpAddr;
use std::time::Instant;
use urxe_wire::mad::{
    Apr, AprStatus, Ari, CommId, Drep, Dreq, Lap, MadSource, Mra, Reason, Received, Rej, Rejected,
    Rep, Rtu, SidrRep, SidrStatus,
};

impl Manager {
    /// The connection that a peer names by our number and its own; if there is none, why not.
    fn find(&self, peer: IpAddr, ours: CommId, theirs: CommId) -> Result<ConnId, CmCounter> {
        let id = ConnId(ours.0);
        let conn = self.conn(id).filter(|conn| conn.terms.is_some());
        let conn = conn.ok_or(CmCounter::DropUnknown)?;
        // CM-025
        match conn.path.peer == peer && conn.remote_id == theirs {
            true => Ok(id),
            false => Err(CmCounter::DropForeign),
        }
    }

    /// Does something with the connection that a peer names.
    fn with_named(
        &mut self,
        now: Instant,
        named: Result<ConnId, CmCounter>,
        action: impl FnOnce(&mut Conn, &mut Cx<'_>),
    ) {
        match named {
            Ok(id) => drop(self.with(now, id, action)),
            Err(counter) => self.counters.add(counter, 1),
        }
    }

    pub(crate) fn handle_rep(&mut self, now: Instant, from: &MadSource, tid: u64, rep: &Rep) {
        let peer = from.flow.src;
        // As long as no REP has come, there is no number of the peer to compare.
        let first = self.find(peer, rep.remote_comm_id, CommId::NONE);
        let id = match first.or_else(|_| self.find(peer, rep.remote_comm_id, rep.local_comm_id)) {
            Ok(id) => id,
            Err(CmCounter::DropUnknown) => {
                self.counters.add(CmCounter::RefusedUnknown, 1);
                // CM-015
                return self.send_back(now, from, tid, refusal(rep, Reason::InvalidCommId));
            }
            Err(counter) => return self.counters.add(counter, 1),
        };
        // CM-013
        let stale = self.find_qpn(peer, rep.local_qpn).filter(|known| *known != id);
        if let Some(known) = stale {
            self.counters.add(CmCounter::RefusedStale, 1);
            self.send_back(now, from, tid, refusal(rep, Reason::StaleConnection));
            return self.end_stale(now, known);
        }
        let accepted = self.with(now, id, |conn, cx| conn.handle_rep(cx, rep));
        if accepted == Some(true) {
            self.occupy_qpn(peer, rep.local_qpn, id);
        }
    }

    /// The peer has lost a connection and goes on with its QP or its number: it ends for us too.
    pub(crate) fn end_stale(&mut self, now: Instant, known: ConnId) {
        self.with(now, known, |conn, cx| {
            if conn.state == State::Established {
                conn.disconnect(cx, [0; Dreq::PRIVATE_LEN]);
            }
        });
    }

    pub(crate) fn handle_rtu(&mut self, now: Instant, from: &MadSource, rtu: &Rtu) {
        let named = self.find(from.flow.src, rtu.remote_comm_id, rtu.local_comm_id);
        self.with_named(now, named, |conn, cx| match conn.state {
            State::RepSent => conn.established(cx, rtu.private_data),
            // The peer has not heard that we refused meanwhile.
            State::Answered if conn.message.is_some() => {
                conn.send_again(cx, CmCounter::AnsweredAgain);
            }
            State::Established => cx.counters.add(CmCounter::DropDuplicate, 1),
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_rej(&mut self, now: Instant, from: &MadSource, rej: &Rej) {
        let peer = from.flow.src;
        let (ours, theirs) = (rej.remote_comm_id, rej.local_comm_id);
        let named = match ours {
            // Who gives up waiting for our REP may not know our number.
            CommId::NONE => self
                .find_request(RequestKey { peer, number: theirs, sidr: false })
                .ok_or(CmCounter::DropUnknown),
            // Who refuses our REQ, or does not know the connection, has no number for it.
            _ => self.find(peer, ours, CommId::NONE).or_else(|_| self.find(peer, ours, theirs)),
        };
        // CM-014: one that names nothing is counted and not answered.
        self.with_named(now, named, |conn, cx| conn.handle_rej(cx, rej));
    }

    pub(crate) fn handle_mra(&mut self, now: Instant, from: &MadSource, mra: &Mra) {
        let peer = from.flow.src;
        let (ours, theirs) = (mra.remote_comm_id, mra.local_comm_id);
        let first = self.find(peer, ours, CommId::NONE);
        let named = first.or_else(|_| self.find(peer, ours, theirs));
        self.with_named(now, named, |conn, cx| match (conn.state, mra.received) {
            (State::ReqSent, Received::Req) | (State::RepSent, Received::Rep) => {
                conn.give_time(cx, mra);
            }
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_dreq(&mut self, now: Instant, from: &MadSource, tid: u64, dreq: &Dreq) {
        match self.find(from.flow.src, dreq.remote_comm_id, dreq.local_comm_id) {
            Ok(id) => drop(self.with(now, id, |conn, cx| conn.handle_dreq(cx, tid, dreq))),
            // Whoever wants to end something that is not there shall have it.
            Err(counter) => {
                self.counters.add(counter, 1);
                // CM-017
                let drep = Drep {
                    local_comm_id: dreq.remote_comm_id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: [0; Drep::PRIVATE_LEN],
                };
                self.send_back(now, from, tid, drep);
            }
        }
    }

    pub(crate) fn handle_drep(&mut self, now: Instant, from: &MadSource, drep: &Drep) {
        let named = self.find(from.flow.src, drep.remote_comm_id, drep.local_comm_id);
        self.with_named(now, named, |conn, cx| match conn.state {
            State::DreqSent => {
                conn.disconnected(cx, Ending::Confirmed { private_data: drep.private_data });
            }
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_sidr_rep(&mut self, now: Instant, from: &MadSource, rep: &SidrRep) {
        let id = ConnId(rep.request_id.0);
        let named = match self.conn(id) {
            Some(conn) if conn.path.peer != from.flow.src => Err(CmCounter::DropForeign),
            Some(_) => Ok(id),
            None => Err(CmCounter::DropUnknown),
        };
        self.with_named(now, named, |conn, cx| {
            if conn.state != State::SidrReqSent {
                return cx.counters.add(CmCounter::DropOutOfPlace, 1);
            }
            if rep.status != SidrStatus::Valid {
                cx.counters.add(CmCounter::RejectionsReceived, 1);
            }
            let SidrRep { status, qpn, qkey, private_data, .. } = *rep;
            let reply = SidrReply { status, qpn, qkey, private_data };
            conn.fail(cx, Event::SidrReply { conn: conn.id, reply });
        });
    }

    pub(crate) fn handle_lap(&mut self, now: Instant, from: &MadSource, tid: u64, lap: &Lap) {
        self.counters.add(CmCounter::RefusedAlternatePath, 1);
        let named = self.find(from.flow.src, lap.remote_comm_id, lap.local_comm_id);
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            // CM-026
            status: named.map_or(AprStatus::InvalidCommId, |_| AprStatus::Unsupported),
            information_len: 0,
            information: [0; Apr::INFORMATION_LEN],
            private_data: [0; Apr::PRIVATE_LEN],
        };
        self.send_back(now, from, tid, apr);
    }
}

impl Conn {
    /// Returns whether the REP was the first, and fits.
    fn handle_rep(&mut self, cx: &mut Cx<'_>, rep: &Rep) -> bool {
        match self.state {
            State::ReqSent => {}
            State::RepReceived => {
                self.ask_for_time(cx, Received::Rep);
                return false;
            }
            // The RTU, or the rejection, was lost.
            State::Established | State::Answered if self.message.is_some() => {
                self.send_again(cx, CmCounter::AnsweredAgain);
                return false;
            }
            _ => {
                cx.counters.add(CmCounter::DropOutOfPlace, 1);
                return false;
            }
        }
        let Some(terms) = &mut self.terms else { return false };
        let offered = Qp {
            qpn: rep.local_qpn,
            responder_resources: rep.initiator_depth.min(cx.config.max_rd_atomic),
            initiator_depth: rep.responder_resources.min(cx.config.max_rd_atomic),
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
        };
        terms.remote_qpn = Some(rep.local_qpn);
        terms.sq_psn = rep.starting_psn;
        terms.rnr_retry_count = rep.rnr_retry_count;
        // Each side gets what it asked for, or what the other gives, whichever is less.
        terms.responder_resources = terms.responder_resources.min(offered.responder_resources);
        terms.initiator_depth = terms.initiator_depth.min(offered.initiator_depth);
        self.remote_id = rep.local_comm_id;
        self.rest(State::RepReceived);
        let response = ConnectResponse { offered, private_data: rep.private_data };
        self.tell(cx, Event::ConnectResponse { conn: self.id, response });
        true
    }

    pub(crate) fn established(&mut self, cx: &mut Cx<'_>, private_data: [u8; Rtu::PRIVATE_LEN]) {
        cx.counters.add(CmCounter::Established, 1);
        // CM-008
        self.rest(State::Established);
        self.tell(cx, Event::Established { conn: self.id, private_data });
    }

    fn handle_rej(&mut self, cx: &mut Cx<'_>, rej: &Rej) {
        let event = Event::Rejected {
            conn: self.id,
            reason: rej.reason,
            ari: rej.ari,
            private_data: rej.private_data,
        };
        match self.state {
            State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent => {
                cx.counters.add(CmCounter::RejectionsReceived, 1);
                self.fail(cx, event);
            }
            State::Established => {
                cx.counters.add(CmCounter::RejectionsReceived, 1);
                cx.counters.add(CmCounter::Disconnected, 1);
                self.tell(cx, event);
                self.owned = false;
                self.enter_time_wait(cx);
            }
            // The peer knows nothing of it, so it has ended.
            State::DreqSent => self.disconnected(cx, Ending::Unconfirmed),
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        }
    }

    fn handle_dreq(&mut self, cx: &mut Cx<'_>, tid: u64, dreq: &Dreq) {
        // CM-017
        if self.terms.is_none_or(|terms| terms.local_qpn != dreq.remote_qpn) {
            return cx.counters.add(CmCounter::DropWrongQpn, 1);
        }
        self.tid = tid;
        self.send(cx, self.drep());
        // CM-016
        if self.state == State::RepSent {
            // Its RTU was lost.
            self.established(cx, [0; Rtu::PRIVATE_LEN]);
        }
        match self.state {
            State::RepReceived | State::Established | State::DreqSent => {
                self.disconnected(cx, Ending::Peer { private_data: dreq.private_data });
            }
            _ => cx.counters.add(CmCounter::AnsweredAgain, 1),
        }
    }
}

/// Refuses a REP.
fn refusal(rep: &Rep, reason: Reason) -> Rej {
    Rej {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        rejected: Rejected::Rep,
        reason,
        ari: Ari::NONE,
        private_data: [0; Rej::PRIVATE_LEN],
    }
}
