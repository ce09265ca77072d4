//! Commands of programs, and the QP attributes that follow from a connection.

use crate::connection::{State, Terms, sidr_rep};
use crate::counters::CmCounter;
use crate::error::{CommandError, ConnectError, ListenError};
#[cfg(doc)]
use crate::event::Event;
use crate::held::HeldRequest;
use crate::limits::{MAX_CONNECTIONS, MAX_LISTENERS};
use crate::listener::{Listen, ListenerId};
use crate::manager::{Config, ConnId, Manager};
use crate::parameters::{Accept, Connect, Path, Resolve, SidrAnswer};
use rand_chacha::rand_core::Rng;
use std::net::SocketAddr;
use std::time::Instant;
use urxe_types::{Access, AddressVector, Pkey, Psn, Qkey, QpAttr, QpState, QpType, TimeCode};
use urxe_wire::mad::{
    CmPath, Dreq, IpCmHeader, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, TransportService,
};

/// The target ACK delay of our REPs: that of kernel rxe.
const TARGET_ACK_DELAY: TimeCode = TimeCode::new(15);

/// The LIDs of a path, which RoCE has not.
const NO_LID: u16 = 0xffff;

impl Manager {
    /// Listens for requests, with those that came when the last listener at that port had just
    /// ended.
    ///
    /// # Errors
    /// If there is a listener already, or there are too many.
    pub fn listen(&mut self, now: Instant, listen: &Listen) -> Result<ListenerId, ListenError> {
        if self.listeners.len() >= MAX_LISTENERS {
            return Err(ListenError::TooMany);
        }
        let service = ServiceId::ip(listen.space, listen.port);
        let listener = self.listeners.insert(listen).ok_or(ListenError::AddressInUse(service))?;
        self.counters.add(CmCounter::Listens, 1);
        // CM-061
        for HeldRequest { from, mad, .. } in self.held.take_for(listen.port) {
            self.handle_message(now, &from, &mad);
        }
        Ok(listener)
    }

    /// Stops listening. Requests that the program has not [taken](Self::take_request) are rejected;
    /// the others stay. Returns whether the listener was there.
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) -> bool {
        // SHARE-126: of all connections, only those are looked at.
        let waiting: Vec<ConnId> = self.listeners.waiting(listener).collect();
        for conn in waiting {
            self.destroy(now, conn);
        }
        let port = self.listeners.remove(listener);
        if let Some(port) = port {
            self.held.listener_ended(now, port);
        }
        port.is_some()
    }

    /// The program has taken a request from its event queue, so it leaves the backlog. Accepting,
    /// rejecting and destroying take it too.
    pub fn take_request(&mut self, conn: ConnId) {
        self.leave_backlog(conn);
    }

    /// Sends a REQ. [`Event::ConnectResponse`], [`Event::Rejected`] or [`Event::Unreachable`] will
    /// follow.
    ///
    /// # Errors
    /// If the arguments are not valid, or there are too many connections.
    pub fn connect(&mut self, now: Instant, connect: &Connect<'_>) -> Result<ConnId, ConnectError> {
        let Connect { src, dst, qp, .. } = *connect;
        let transport = match connect.qp_type {
            QpType::Rc => TransportService::Rc,
            QpType::Uc => TransportService::Uc,
            QpType::Ud => return Err(ConnectError::Datagrams),
        };
        let mut private_data = [0; Req::PRIVATE_LEN];
        self.check_request(src, dst)?;
        put_header(&mut private_data, src, dst, connect.private_data)?;
        let path = Path::between(src, dst, connect.traffic_class);
        let service_id = ServiceId::ip(connect.space, dst.port());
        let Config { timing, max_rd_atomic, .. } = self.config;
        let mut conn = self.new_conn(State::ReqSent, path, service_id);
        let terms = Terms {
            qp_type: connect.qp_type,
            local_qpn: qp.qpn,
            remote_qpn: None,
            sq_psn: Psn::default(),
            rq_psn: Psn::new(self.rng.next_u32()),
            responder_resources: qp.responder_resources.min(max_rd_atomic),
            initiator_depth: qp.initiator_depth.min(max_rd_atomic),
            retry_count: connect.retry_count.min(7),
            rnr_retry_count: qp.rnr_retry_count.min(7),
            path_mtu: connect.path_mtu,
            ack_timeout: connect.ack_timeout.unwrap_or(timing.ack_timeout),
        };
        conn.terms = Some(terms);
        let req = Req {
            local_comm_id: conn.local_id(),
            service_id,
            local_ca_guid: self.config.guid,
            local_qkey: Qkey::default(),
            local_qpn: qp.qpn,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            // CM-007
            remote_response_timeout: timing.response_timeout,
            transport,
            flow_control: qp.flow_control,
            // CM-029
            starting_psn: terms.rq_psn,
            local_response_timeout: timing.response_timeout,
            retry_count: terms.retry_count,
            pkey: Pkey::DEFAULT,
            path_mtu: Some(connect.path_mtu),
            rnr_retry_count: terms.rnr_retry_count,
            max_cm_retries: conn.max_retries,
            srq: qp.srq,
            extended_transport: 0,
            primary: CmPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: path.local,
                remote_gid: path.peer,
                flow_label: path.flow_label,
                packet_rate: 0,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                service_level: 0,
                subnet_local: false,
                local_ack_timeout: terms.ack_timeout,
            },
            alternate: None,
            private_data,
        };
        self.counters.add(CmCounter::RequestsSent, 1);
        conn.send_with_retries(&mut self.context(now), State::ReqSent, req);
        let id = conn.id;
        self.insert(conn);
        Ok(id)
    }

    /// Sends a SIDR REQ, for the QP of a datagram service. [`Event::SidrReply`] or
    /// [`Event::Unreachable`] will follow.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn resolve(&mut self, now: Instant, resolve: &Resolve<'_>) -> Result<ConnId, ConnectError> {
        let Resolve { src, dst, .. } = *resolve;
        let mut private_data = [0; SidrReq::PRIVATE_LEN];
        self.check_request(src, dst)?;
        put_header(&mut private_data, src, dst, resolve.private_data)?;
        let path = Path::between(src, dst, resolve.traffic_class);
        let service_id = ServiceId::ip(resolve.space, dst.port());
        let mut conn = self.new_conn(State::SidrReqSent, path, service_id);
        let request_id = conn.local_id();
        let req = SidrReq { request_id, pkey: Pkey::DEFAULT, service_id, private_data };
        self.counters.add(CmCounter::RequestsSent, 1);
        conn.send_with_retries(&mut self.context(now), State::SidrReqSent, req);
        let id = conn.id;
        self.insert(conn);
        Ok(id)
    }

    fn check_request(&self, src: SocketAddr, dst: SocketAddr) -> Result<(), ConnectError> {
        let (src, dst) = (src.ip(), dst.ip());
        // CM-028
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(ConnectError::FamilyMismatch { src, dst });
        }
        if let Some(no_host) =
            // ADDR-003
            [src, dst].into_iter().find(|ip| ip.is_unspecified() || ip.is_multicast())
        {
            return Err(ConnectError::NotAHost(no_host));
        }
        match self.owned_len() >= MAX_CONNECTIONS {
            true => Err(ConnectError::TooMany),
            false => Ok(()),
        }
    }

    /// Accepts a request with a REP; the QP is in RTR or RTS. [`Event::Established`],
    /// [`Event::Rejected`] or [`Event::Unreachable`] will follow.
    ///
    /// # Errors
    /// If the state is not REQ-RECEIVED.
    pub fn accept(
        &mut self,
        now: Instant,
        conn: ConnId,
        accept: &Accept<'_>,
    ) -> Result<(), CommandError> {
        let private_data = padded(accept.private_data)?;
        self.check_state(conn, "be accepted", &[State::ReqReceived])?;
        let guid = self.config.guid;
        self.update(now, conn, |conn, cx| {
            let Some(terms) = &mut conn.terms else { return };
            terms.local_qpn = accept.qp.qpn;
            terms.responder_resources = accept.qp.responder_resources.min(cx.config.max_rd_atomic);
            terms.initiator_depth = accept.qp.initiator_depth.min(terms.initiator_depth);
            let terms = *terms;
            let rep = Rep {
                local_comm_id: conn.local_id(),
                remote_comm_id: conn.remote_id,
                local_qkey: Qkey::default(),
                local_qpn: terms.local_qpn,
                starting_psn: terms.rq_psn,
                responder_resources: terms.responder_resources,
                initiator_depth: terms.initiator_depth,
                target_ack_delay: TARGET_ACK_DELAY,
                failover: 0,
                flow_control: accept.qp.flow_control,
                rnr_retry_count: accept.qp.rnr_retry_count.min(7),
                srq: accept.qp.srq,
                local_ca_guid: guid,
                private_data,
            };
            conn.send_with_retries(cx, State::RepSent, rep);
        });
        Ok(())
    }

    /// Confirms the peer's REP with an RTU; the QP is in RTS.
    ///
    /// # Errors
    /// If the state is not REP-RECEIVED.
    pub fn establish(
        &mut self,
        now: Instant,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = padded(private_data)?;
        self.check_state(conn, "be established", &[State::RepReceived])?;
        self.update(now, conn, |conn, cx| {
            let rtu = Rtu {
                local_comm_id: conn.local_id(),
                remote_comm_id: conn.remote_id,
                private_data,
            };
            cx.counters.add(CmCounter::Established, 1);
            conn.send(cx, rtu);
            // CM-008
            conn.idle(State::Established);
            // For duplicates of the REP.
            conn.message = Some(conn.mad(rtu));
        });
        Ok(())
    }

    /// A packet came on the QP of a connection whose RTU did not (`IBV_EVENT_COMM_EST`): the peer
    /// is ready.
    pub fn communication_established(&mut self, now: Instant, conn: ConnId) {
        self.update(now, conn, |conn, cx| {
            // CM-016
            if conn.state == State::RepSent {
                conn.established(cx, [0; Rtu::PRIVATE_LEN]);
            }
        });
    }

    /// Rejects a REQ, a REP or a SIDR REQ. No event of the connection will follow.
    ///
    /// # Errors
    /// If the state is not one in which one of them was received.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let states = [State::ReqReceived, State::RepReceived, State::SidrReqReceived];
        self.check_state(conn, "be rejected", &states)?;
        if self.state(conn) == Some(State::SidrReqReceived) {
            let private_data = padded(private_data)?;
            self.update(now, conn, |conn, cx| conn.refuse_sidr(cx, private_data));
        } else {
            let private_data = padded(private_data)?;
            self.update(now, conn, |conn, cx| conn.refuse(cx, private_data));
        }
        Ok(())
    }

    /// Answers a SIDR REQ. No event of it will follow.
    ///
    /// # Errors
    /// If the state is not SIDR-REQ-RECEIVED.
    pub fn answer(
        &mut self,
        now: Instant,
        conn: ConnId,
        answer: &SidrAnswer<'_>,
    ) -> Result<(), CommandError> {
        let private_data = padded(answer.private_data)?;
        self.check_state(conn, "be answered", &[State::SidrReqReceived])?;
        self.update(now, conn, |conn, cx| {
            let rep = sidr_rep(conn.remote_id, conn.service_id, answer.status);
            let (qpn, qkey) = (answer.qpn, answer.qkey);
            conn.reply_and_linger(cx, SidrRep { qpn, qkey, private_data, ..rep });
        });
        Ok(())
    }

    /// Disconnects with a DREQ. [`Event::Disconnected`] and [`Event::TimewaitExit`] will follow, if
    /// they have not come already: to disconnect what the peer has disconnected is no error.
    ///
    /// # Errors
    /// If it was not established.
    pub fn disconnect(
        &mut self,
        now: Instant,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data: [u8; Dreq::PRIVATE_LEN] = padded(private_data)?;
        let states = [State::Established, State::DreqSent, State::TimeWait];
        self.check_state(conn, "be disconnected", &states)?;
        self.update(now, conn, |conn, cx| {
            if conn.state == State::Established {
                conn.disconnect(cx, private_data);
            }
        });
        Ok(())
    }

    /// The program destroys a connection, or has ended itself. In whatever state, the peer is
    /// informed, and no event will follow.
    pub fn destroy(&mut self, now: Instant, conn: ConnId) {
        if self.owned(conn).is_some() {
            self.update(now, conn, |conn, cx| conn.abandon(cx));
        }
    }

    /// The attributes with which the QP of a connection goes to INIT, RTR or RTS, if they are known
    /// in the connection's state. `sgid_index` is the index of our own address.
    pub fn qp_attr(&self, conn: ConnId, state: QpState, sgid_index: u8) -> Option<QpAttr> {
        let conn = self.owned(conn)?;
        let terms = conn.terms?;
        let is_rc = terms.qp_type == QpType::Rc;
        let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mut attr = QpAttr { state: Some(state), ..QpAttr::default() };
        match state {
            QpState::Init => {
                let takes_reads = is_rc && terms.responder_resources > 0;
                let reads = if takes_reads { reads } else { Access::default() };
                attr.pkey_index = Some(0);
                attr.port = Some(1);
                attr.access = Some(Access::REMOTE_WRITE | reads);
            }
            QpState::Rtr => {
                attr.av = Some(AddressVector {
                    dgid: conn.path.peer,
                    sgid_index,
                    traffic_class: conn.path.traffic_class,
                    hop_limit: conn.path.hop_limit,
                    flow_label: conn.path.flow_label,
                });
                attr.path_mtu = Some(terms.path_mtu);
                attr.dest_qpn = Some(terms.remote_qpn?);
                attr.rq_psn = Some(terms.rq_psn);
                attr.max_dest_rd_atomic = is_rc.then_some(terms.responder_resources);
                attr.min_rnr_timer = is_rc.then_some(0);
            }
            QpState::Rts => {
                terms.remote_qpn?;
                attr.sq_psn = Some(terms.sq_psn);
                attr.timeout = is_rc.then_some(terms.ack_timeout.code());
                attr.retry_cnt = is_rc.then_some(terms.retry_count);
                attr.rnr_retry = is_rc.then_some(terms.rnr_retry_count);
                attr.max_rd_atomic = is_rc.then_some(terms.initiator_depth);
            }
            _ => return None,
        }
        Some(attr)
    }

    fn check_state(
        &self,
        conn: ConnId,
        command: &'static str,
        states: &[State],
    ) -> Result<(), CommandError> {
        let state = self.state(conn).ok_or(CommandError::NoSuchConnection(conn))?;
        // CM-028
        match states.contains(&state) {
            true => Ok(()),
            false => Err(CommandError::WrongState { conn, command, state }),
        }
    }
}

/// Private data, padded with zeroes.
fn padded<const N: usize>(data: &[u8]) -> Result<[u8; N], CommandError> {
    let mut padded = [0; N];
    let room = padded
        .get_mut(..data.len())
        .ok_or(CommandError::PrivateData { len: data.len(), max: N })?;
    room.copy_from_slice(data);
    Ok(padded)
}

/// Private data behind the header of the RDMA IP CM service.
fn put_header<const N: usize>(
    room: &mut [u8; N],
    src: SocketAddr,
    dst: SocketAddr,
    data: &[u8],
) -> Result<(), ConnectError> {
    let header = IpCmHeader { src_port: src.port(), src: src.ip(), dst: dst.ip() };
    let max = N - IpCmHeader::LEN;
    if let Some((header_room, rest)) = room.split_first_chunk_mut() {
        header.emit(header_room);
        rest.get_mut(..data.len())
            .ok_or(ConnectError::PrivateData { len: data.len(), max })?
            .copy_from_slice(data);
    }
    Ok(())
}
