//! Messages that come in: which handler each goes to; REQ and SIDR REQ.

use crate::connection::{Conn, State, Terms, sidr_rep};
use crate::counters::CmCounter;
use crate::event::{ConnectRequest, Event, SidrRequest};
use crate::limits::{MAX_CONNECTIONS, MAX_PEER_TIME, MAX_REQUESTS};
use crate::listener::{ListenerId, Service};
use crate::manager::{ConnId, Manager, RequestKey};
use crate::parameters::{Path, Qp};
use crate::timing::Retries;
use rand_chacha::rand_core::Rng;
use std::net::SocketAddr;
use std::time::Instant;
use urxe_types::{PathMtu, Psn, QpType, Qpn};
use urxe_wire::Flow;
use urxe_wire::mad::{
    Ari, CommId, IpCmHeader, Mad, Message, Reason, Received, Rej, Rejected, Req, ServiceId,
    SidrReq, SidrStatus, TransportService,
};
use urxe_wire::mad::{MAD_LEN, MadSource};

impl Manager {
    /// Takes a management datagram that came to QP1. Returns whether it was of use: it was about
    /// something that there is, and if it was dropped or refused, then not for a reason of its
    /// sender's.
    pub fn handle_mad(&mut self, now: Instant, from: &MadSource, mad: &[u8; MAD_LEN]) -> bool {
        let of_no_use = self.counters.of_no_use();
        match Mad::parse(mad) {
            Ok(mad) => self.handle_message(now, from, &mad),
            Err(_) => self.counters.add(CmCounter::DropNoMessage, 1),
        }
        self.counters.of_no_use() == of_no_use
    }

    pub(crate) fn handle_message(&mut self, now: Instant, from: &MadSource, mad: &Mad) {
        match &mad.message {
            Message::Req(req) => self.handle_req(now, from, mad, req),
            Message::Rep(rep) => self.handle_rep(now, from, mad.tid, rep),
            Message::Rtu(rtu) => self.handle_rtu(now, from, rtu),
            Message::Rej(rej) => self.handle_rej(now, from, rej),
            Message::Mra(mra) => self.handle_mra(now, from, mra),
            Message::Dreq(dreq) => self.handle_dreq(now, from, mad.tid, dreq),
            Message::Drep(drep) => self.handle_drep(now, from, drep),
            Message::SidrReq(req) => self.handle_sidr_req(now, from, mad, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(now, from, rep),
            Message::Lap(lap) => self.handle_lap(now, from, mad.tid, lap),
            // We send no LAP.
            Message::Apr(_) => self.counters.add(CmCounter::DropOutOfPlace, 1),
        }
    }

    /// Replies without a connection, if whoever is said to have asked may have another reply.
    pub(crate) fn send_back(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: u64,
        message: impl Into<Message>,
    ) {
        // CM-202, COUNT-019
        if !self.refusals.take(now, from.flow.src) {
            return self.counters.add(CmCounter::RefusalsHeldBack, 1);
        }
        let bytes = Mad::new(tid, message).bytes();
        self.context(now).send(Path::back(&from.flow), from.src_qpn, &bytes);
    }

    fn handle_req(&mut self, now: Instant, from: &MadSource, mad: &Mad, req: &Req) {
        let tid = mad.tid;
        let key = RequestKey { peer: from.flow.src, comm_id: req.local_comm_id, sidr: false };
        // CM-010
        if let Some(known) = self.find_by_request(key) {
            let same = self.conn(known).and_then(|conn| conn.terms).is_some_and(|terms| {
                terms.remote_qpn == Some(req.local_qpn) && terms.sq_psn == req.starting_psn
            });
            return match same {
                true => self.handle_duplicate_req(now, known),
                false => self.refuse_stale(now, from, tid, req, known),
            };
        }
        let (request, path_mtu) = match self.check_req(&from.flow, req) {
            Ok(checked) => checked,
            Err((counter, reason, ari)) => {
                self.counters.add(counter, 1);
                let rej = Rej { ari, ..refusal(req, reason) };
                return self.send_back(now, from, tid, rej);
            }
        };
        // CM-013
        if let Some(known) = self.find_by_qpn(from.flow.src, req.local_qpn) {
            return self.refuse_stale(now, from, tid, req, known);
        }
        let service = self.listeners.find(req.service_id, request.dst.ip(), false);
        if service.is_none() && self.hold(now, request.dst.port(), key, from, mad) {
            return;
        }
        let listener = match service {
            Some((listener, Service::Connected(qp_type))) if qp_type == request.qp_type => listener,
            other => {
                let (counter, reason) = match other {
                    // CM-012
                    None => (CmCounter::RefusedNoListener, Reason::InvalidServiceId),
                    Some(_) => (CmCounter::RefusedTransport, Reason::InvalidTransport),
                };
                self.counters.add(counter, 1);
                return self.send_back(now, from, tid, refusal(req, reason));
            }
        };
        if self.owned_len() >= MAX_CONNECTIONS {
            self.counters.add(CmCounter::RefusedFull, 1);
            return self.send_back(now, from, tid, refusal(req, Reason::NoResources));
        }
        let path = Path {
            traffic_class: req.primary.traffic_class,
            hop_limit: req.primary.hop_limit,
            flow_label: req.primary.flow_label,
            ..Path::back(&from.flow)
        };
        let Some(mut conn) = self.admit(listener, State::ReqReceived, path, req.service_id) else {
            return;
        };
        conn.peer_gsi = from.src_qpn;
        conn.tid = tid;
        conn.remote_id = req.local_comm_id;
        conn.max_retries = req.max_cm_retries;
        conn.retries = Retries::of_peer(req.local_response_timeout.min(MAX_PEER_TIME));
        conn.terms = Some(Terms {
            qp_type: request.qp_type,
            local_qpn: Qpn::default(),
            remote_qpn: Some(req.local_qpn),
            sq_psn: req.starting_psn,
            rq_psn: Psn::new(self.rng.next_u32()),
            responder_resources: request.offered.responder_resources,
            initiator_depth: request.offered.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            path_mtu,
            ack_timeout: req.primary.local_ack_timeout,
        });
        let event = Event::ConnectRequest { listener, conn: conn.id, request };
        self.counters.add(CmCounter::RequestsReceived, 1);
        conn.push_event(&mut self.context(now), event);
        self.insert(conn);
    }

    /// Keeps a request that has no listener for the next one at its port, if one just ended there;
    /// returns whether it did.
    fn hold(
        &mut self,
        now: Instant,
        port: u16,
        key: RequestKey,
        from: &MadSource,
        mad: &Mad,
    ) -> bool {
        // CM-061
        if self.held.contains(key) {
            self.counters.add(CmCounter::DropDuplicate, 1);
            return true;
        }
        let held = self.held.hold(now, port, key, from, mad);
        self.counters.add(CmCounter::RequestsHeld, u64::from(held));
        held
    }

    /// A REQ that came before.
    fn handle_duplicate_req(&mut self, now: Instant, known: ConnId) {
        self.update(now, known, |conn, cx| match conn.state {
            // CM-011
            State::ReqReceived => {
                if cx.may_repeat(conn.path.peer) {
                    conn.send_mra(cx, Received::Req);
                }
            }
            State::RepSent | State::Lingering if conn.message.is_some() => {
                conn.answer_again(cx);
            }
            _ => cx.counters.add(CmCounter::DropDuplicate, 1),
        });
    }

    /// The request of a REQ, and its path MTU, if they are acceptable.
    fn check_req(
        &self,
        flow: &Flow,
        req: &Req,
    ) -> Result<(ConnectRequest, PathMtu), (CmCounter, Reason, Ari)> {
        let refuse = |counter, reason| Err((counter, reason, Ari::NONE));
        // CM-012: what is no port has no listener.
        let Some((_, port)) = req.service_id.port() else {
            return refuse(CmCounter::RefusedNoListener, Reason::InvalidServiceId);
        };
        let qp_type = match req.transport {
            TransportService::Rc => QpType::Rc,
            TransportService::Uc => QpType::Uc,
            TransportService::Rd | TransportService::Extended => {
                return refuse(CmCounter::RefusedTransport, Reason::InvalidTransport);
            }
        };
        // CM-012: packets and messages of a connection go between the same two addresses.
        if (req.primary.local_gid, req.primary.remote_gid) != (flow.src, flow.dst) {
            return refuse(CmCounter::RefusedAddresses, Reason::InvalidGid);
        }
        let largest = self.config.active_mtu;
        let Some(path_mtu) = req.path_mtu.filter(|mtu| *mtu <= largest) else {
            let ari = Ari::path_mtu(largest);
            return Err((CmCounter::RefusedPathMtu, Reason::InvalidPathMtu, ari));
        };
        let Some((src, dst, private_data)) = sockets(flow, port, &req.private_data) else {
            return refuse(CmCounter::RefusedHeader, Reason::Consumer);
        };
        let offered = Qp {
            qpn: req.local_qpn,
            responder_resources: req.initiator_depth.min(self.config.max_rd_atomic),
            initiator_depth: req.responder_resources.min(self.config.max_rd_atomic),
            flow_control: req.flow_control,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
        };
        let retry_count = req.retry_count;
        Ok((ConnectRequest { qp_type, src, dst, offered, retry_count, private_data }, path_mtu))
    }

    /// Rejects a REQ whose QP or communication ID is that of another connection of the peer. If the
    /// peer has sent it, it has lost that connection; but anybody can have.
    fn refuse_stale(&mut self, now: Instant, from: &MadSource, tid: u64, req: &Req, known: ConnId) {
        self.counters.add(CmCounter::RefusedStale, 1);
        self.send_back(now, from, tid, refusal(req, Reason::StaleConnection));
        self.update(now, known, Conn::ask_whether_lost);
    }

    /// A connection for a request that came to a listener, if there is room; else it is dropped.
    fn admit(
        &mut self,
        listener: ListenerId,
        state: State,
        path: Path,
        service_id: ServiceId,
    ) -> Option<Conn> {
        // CM-024: one of each listener's is always taken, so that no program can keep all others
        // from being asked.
        let has_one = self.listeners.waiting(listener).next().is_some();
        if self.pending_requests() >= MAX_REQUESTS && has_one {
            self.counters.add(CmCounter::DropTooManyRequests, 1);
            return None;
        }
        // CM-024
        if !self.listeners.has_room(listener) {
            self.counters.add(CmCounter::DropBacklog, 1);
            return None;
        }
        let mut conn = self.new_conn(state, path, service_id);
        conn.listener = Some(listener);
        conn.in_backlog = true;
        self.listeners.enter_backlog(listener, conn.id);
        Some(conn)
    }

    fn handle_sidr_req(&mut self, now: Instant, from: &MadSource, mad: &Mad, req: &SidrReq) {
        let tid = mad.tid;
        let key = RequestKey { peer: from.flow.src, comm_id: req.request_id, sidr: true };
        if let Some(known) = self.find_by_request(key) {
            self.update(now, known, |conn, cx| match conn.message {
                Some(_) => conn.answer_again(cx),
                None => cx.counters.add(CmCounter::DropDuplicate, 1),
            });
            return;
        }
        let refusal = |status| sidr_rep(req.request_id, req.service_id, status);
        // CM-027: what is no port has no listener.
        let Some((_, port)) = req.service_id.port() else {
            self.counters.add(CmCounter::RefusedNoListener, 1);
            return self.send_back(now, from, tid, refusal(SidrStatus::Unsupported));
        };
        let Some((src, dst, private_data)) = sockets(&from.flow, port, &req.private_data) else {
            self.counters.add(CmCounter::RefusedHeader, 1);
            return self.send_back(now, from, tid, refusal(SidrStatus::Rejected));
        };
        let Some((listener, _)) = self.listeners.find(req.service_id, dst.ip(), true) else {
            if self.hold(now, port, key, from, mad) {
                return;
            }
            self.counters.add(CmCounter::RefusedNoListener, 1);
            // CM-027
            return self.send_back(now, from, tid, refusal(SidrStatus::Unsupported));
        };
        let path = Path::back(&from.flow);
        let Some(mut conn) = self.admit(listener, State::SidrReqReceived, path, req.service_id)
        else {
            return;
        };
        conn.peer_gsi = from.src_qpn;
        conn.tid = tid;
        conn.remote_id = req.request_id;
        let request = SidrRequest { src, dst, private_data };
        self.counters.add(CmCounter::RequestsReceived, 1);
        let event = Event::SidrRequest { listener, conn: conn.id, request };
        conn.push_event(&mut self.context(now), event);
        self.insert(conn);
    }
}

/// A REJ of a REQ for which there is no connection.
fn refusal(req: &Req, reason: Reason) -> Rej {
    Rej {
        local_comm_id: CommId::NONE,
        remote_comm_id: req.local_comm_id,
        rejected: Rejected::Req,
        reason,
        ari: Ari::NONE,
        private_data: [0; Rej::PRIVATE_LEN],
    }
}

/// Source, destination and the program's own private data, if the header agrees with the addresses
/// that the request came with.
fn sockets<const N: usize, const M: usize>(
    flow: &Flow,
    port: u16,
    private_data: &[u8; N],
) -> Option<(SocketAddr, SocketAddr, [u8; M])> {
    const { assert!(N == M + IpCmHeader::LEN) };
    let (header, data) = private_data.split_first_chunk()?;
    let header = IpCmHeader::parse(header).ok()?;
    if (header.src, header.dst) != (flow.src, flow.dst) {
        return None;
    }
    let src = SocketAddr::new(header.src, header.src_port);
    Some((src, SocketAddr::new(header.dst, port), data.try_into().ok()?))
}
