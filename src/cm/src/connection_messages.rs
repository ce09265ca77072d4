//! Messages that name a connection: all but REQ and SIDR REQ.

use crate::connection::{Conn, State};
use crate::counters::CmCounter;
use crate::event::{ConnectResponse, DisconnectCause, Event, SidrReply};
use crate::manager::{ConnId, Context, Manager, RequestKey};
use crate::parameters::Qp;
use std::net::IpAddr;
use std::time::Instant;
use urxe_wire::mad::{
    Apr, AprStatus, Ari, CommId, Drep, Dreq, Lap, MadSource, Mra, Reason, Received, Rej, Rejected,
    Rep, Rtu, SidrRep, SidrStatus,
};

impl Manager {
    /// The connection with this peer and these communication IDs; if there is none, how a message
    /// that names it is counted.
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

    /// Does something with a connection that was found, or counts that none was.
    fn update_found(
        &mut self,
        now: Instant,
        found: Result<ConnId, CmCounter>,
        action: impl FnOnce(&mut Conn, &mut Context<'_>),
    ) {
        match found {
            Ok(id) => drop(self.update(now, id, action)),
            Err(counter) => self.counters.add(counter, 1),
        }
    }

    pub(crate) fn handle_rep(&mut self, now: Instant, from: &MadSource, tid: u64, rep: &Rep) {
        let peer = from.flow.src;
        // Before the first REP there is no communication ID of the peer to compare.
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
        let stale = self.find_by_qpn(peer, rep.local_qpn).filter(|known| *known != id);
        if let Some(known) = stale {
            self.counters.add(CmCounter::RefusedStale, 1);
            self.send_back(now, from, tid, refusal(rep, Reason::StaleConnection));
            return self.end_stale(now, known);
        }
        let accepted = self.update(now, id, |conn, cx| conn.handle_rep(cx, rep));
        if accepted == Some(true) {
            self.index_qpn(peer, rep.local_qpn, id);
        }
    }

    /// The peer uses the QP of a connection for another one, so it has lost that connection: it is
    /// disconnected here too.
    fn end_stale(&mut self, now: Instant, known: ConnId) {
        self.update(now, known, |conn, cx| {
            if conn.state == State::Established {
                conn.disconnect(cx, [0; Dreq::PRIVATE_LEN]);
            }
        });
    }

    pub(crate) fn handle_rtu(&mut self, now: Instant, from: &MadSource, rtu: &Rtu) {
        let found = self.find(from.flow.src, rtu.remote_comm_id, rtu.local_comm_id);
        self.update_found(now, found, |conn, cx| match conn.state {
            State::RepSent => conn.established(cx, rtu.private_data),
            // Our REJ has not reached the peer.
            State::Lingering if conn.message.is_some() => {
                conn.send_again(cx, CmCounter::AnsweredAgain);
            }
            State::Established => cx.counters.add(CmCounter::DropDuplicate, 1),
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_rej(&mut self, now: Instant, from: &MadSource, rej: &Rej) {
        let peer = from.flow.src;
        let (ours, theirs) = (rej.remote_comm_id, rej.local_comm_id);
        let found = match ours {
            // A peer that gives up waiting for our REP may not know our communication ID.
            CommId::NONE => self
                .find_by_request(RequestKey { peer, comm_id: theirs, sidr: false })
                .ok_or(CmCounter::DropUnknown)
                .and_then(|id| match self.conn(id).map(|conn| conn.state) {
                    // CM-201: one that has sent an RTU knows it.
                    Some(State::Established) => Err(CmCounter::DropForeign),
                    _ => Ok(id),
                }),
            // A peer that rejects our REQ, or does not know the connection, has no ID for it.
            _ => self.find(peer, ours, CommId::NONE).or_else(|_| self.find(peer, ours, theirs)),
        };
        // CM-014: one that names no connection is counted and not answered.
        self.update_found(now, found, |conn, cx| conn.handle_rej(cx, rej));
    }

    pub(crate) fn handle_mra(&mut self, now: Instant, from: &MadSource, mra: &Mra) {
        let peer = from.flow.src;
        let (ours, theirs) = (mra.remote_comm_id, mra.local_comm_id);
        let first = self.find(peer, ours, CommId::NONE);
        let found = first.or_else(|_| self.find(peer, ours, theirs));
        self.update_found(now, found, |conn, cx| match (conn.state, mra.received) {
            (State::ReqSent, Received::Req) | (State::RepSent, Received::Rep) => {
                conn.handle_mra(cx, mra);
            }
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_dreq(&mut self, now: Instant, from: &MadSource, tid: u64, dreq: &Dreq) {
        match self.find(from.flow.src, dreq.remote_comm_id, dreq.local_comm_id) {
            Ok(id) => drop(self.update(now, id, |conn, cx| conn.handle_dreq(cx, tid, dreq))),
            // What does not exist is disconnected already.
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
        let found = self.find(from.flow.src, drep.remote_comm_id, drep.local_comm_id);
        self.update_found(now, found, |conn, cx| match conn.state {
            State::DreqSent => {
                conn.disconnected(
                    cx,
                    DisconnectCause::Confirmed { private_data: drep.private_data },
                );
            }
            // CM-200: only who was asked knows both communication IDs.
            State::Established if conn.asked_whether_lost.is_some() => {
                conn.disconnected(cx, DisconnectCause::Unconfirmed);
            }
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        });
    }

    pub(crate) fn handle_sidr_rep(&mut self, now: Instant, from: &MadSource, rep: &SidrRep) {
        let id = ConnId(rep.request_id.0);
        let found = match self.conn(id) {
            Some(conn) if conn.path.peer != from.flow.src => Err(CmCounter::DropForeign),
            Some(_) => Ok(id),
            None => Err(CmCounter::DropUnknown),
        };
        self.update_found(now, found, |conn, cx| {
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
        let found = self.find(from.flow.src, lap.remote_comm_id, lap.local_comm_id);
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            // CM-026
            status: found.map_or(AprStatus::InvalidCommId, |_| AprStatus::Unsupported),
            information_len: 0,
            information: [0; Apr::INFORMATION_LEN],
            private_data: [0; Apr::PRIVATE_LEN],
        };
        self.send_back(now, from, tid, apr);
    }
}

impl Conn {
    /// Returns whether it was the first REP, and was taken.
    fn handle_rep(&mut self, cx: &mut Context<'_>, rep: &Rep) -> bool {
        match self.state {
            State::ReqSent => {}
            State::RepReceived => {
                self.send_mra(cx, Received::Rep);
                return false;
            }
            // Our RTU, or REJ, was lost.
            State::Established | State::Lingering if self.message.is_some() => {
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
        // The lesser of what one side wants and the other offers.
        terms.responder_resources = terms.responder_resources.min(offered.responder_resources);
        terms.initiator_depth = terms.initiator_depth.min(offered.initiator_depth);
        self.remote_id = rep.local_comm_id;
        self.idle(State::RepReceived);
        let response = ConnectResponse { offered, private_data: rep.private_data };
        self.push_event(cx, Event::ConnectResponse { conn: self.id, response });
        true
    }

    pub(crate) fn established(
        &mut self,
        cx: &mut Context<'_>,
        private_data: [u8; Rtu::PRIVATE_LEN],
    ) {
        cx.counters.add(CmCounter::Established, 1);
        // CM-008
        self.idle(State::Established);
        self.push_event(cx, Event::Established { conn: self.id, private_data });
    }

    fn handle_rej(&mut self, cx: &mut Context<'_>, rej: &Rej) {
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
                self.push_event(cx, event);
                self.owned = false;
                self.enter_time_wait(cx);
            }
            // The peer does not know it, so it has ended.
            State::DreqSent => self.disconnected(cx, DisconnectCause::Unconfirmed),
            _ => cx.counters.add(CmCounter::DropOutOfPlace, 1),
        }
    }

    fn handle_dreq(&mut self, cx: &mut Context<'_>, tid: u64, dreq: &Dreq) {
        // CM-017
        if self.terms.is_none_or(|terms| terms.local_qpn != dreq.remote_qpn) {
            return cx.counters.add(CmCounter::DropWrongQpn, 1);
        }
        self.tid = tid;
        self.send(cx, self.drep());
        // CM-016
        if self.state == State::RepSent {
            // The peer's RTU was lost.
            self.established(cx, [0; Rtu::PRIVATE_LEN]);
        }
        match self.state {
            State::RepReceived | State::Established | State::DreqSent => {
                self.disconnected(cx, DisconnectCause::Peer { private_data: dreq.private_data });
            }
            _ => cx.counters.add(CmCounter::AnsweredAgain, 1),
        }
    }
}

/// A REJ of a REP.
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
