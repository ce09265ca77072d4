//! One manager at [`LOCAL`], and the messages of its peer at [`PEER`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use urxe_cm::*;
use urxe_types::{PathMtu, Pkey, Psn, Qkey, QpType, Qpn, TimeCode};
use urxe_wire::Flow;
use urxe_wire::mad::*;

pub(crate) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
pub(crate) const PORT: u16 = 7174;
pub(crate) const SERVICE: ServiceId = ServiceId::ip(PortSpace::Tcp, PORT);
/// The peer's communication ID, and its QP.
pub(crate) const PEER_ID: CommId = CommId(0x5555);
pub(crate) const PEER_QPN: Qpn = Qpn::new(0x22);
pub(crate) const PEER_PSN: Psn = Psn::new(0x123456);
pub(crate) const TID: u64 = 0x7777;
/// Our own QP.
pub(crate) const QPN: Qpn = Qpn::new(0x11);
pub(crate) const QP: Qp = Qp {
    qpn: QPN,
    responder_resources: 4,
    initiator_depth: 3,
    flow_control: false,
    rnr_retry_count: 7,
    srq: false,
};
pub(crate) const ACCEPT: Accept<'static> = Accept { qp: QP, private_data: b"welcome" };

pub(crate) struct Script {
    pub(crate) cm: Manager,
    pub(crate) now: Instant,
}

pub(crate) fn config() -> Config {
    Config {
        guid: 0x1234,
        seed: 1,
        active_mtu: PathMtu::Mtu1024,
        max_rd_atomic: 128,
        timing: Timing::default(),
    }
}

pub(crate) fn socket(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

pub(crate) fn connect() -> Connect<'static> {
    Connect {
        qp_type: QpType::Rc,
        space: PortSpace::Tcp,
        src: socket(LOCAL, 40000),
        dst: socket(PEER, PORT),
        traffic_class: 0,
        path_mtu: PathMtu::Mtu1024,
        qp: QP,
        retry_count: 7,
        ack_timeout: None,
        private_data: b"hello",
    }
}

pub(crate) fn listen() -> Listen {
    Listen {
        space: PortSpace::Tcp,
        port: PORT,
        on: ListenOn::Any,
        service: Service::Connected(QpType::Rc),
        backlog: 2,
    }
}

/// Private data, padded with zeroes.
pub(crate) fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| data.get(i).copied().unwrap_or(0))
}

pub(crate) fn with_ip_cm_header<const N: usize>(
    src: SocketAddr,
    dst: IpAddr,
    data: &[u8],
) -> [u8; N] {
    let mut header = [0; IpCmHeader::LEN];
    IpCmHeader { src_port: src.port(), src: src.ip(), dst }.emit(&mut header);
    let mut all = header.to_vec();
    all.extend(data);
    padded(&all)
}

/// A REQ from this address to ours.
pub(crate) fn req_from(peer: IpAddr) -> Req {
    Req {
        local_comm_id: PEER_ID,
        service_id: SERVICE,
        local_ca_guid: 0x9999,
        local_qkey: Qkey::default(),
        local_qpn: PEER_QPN,
        responder_resources: 2,
        initiator_depth: 5,
        remote_response_timeout: TimeCode::new(20),
        transport: TransportService::Rc,
        flow_control: false,
        starting_psn: PEER_PSN,
        local_response_timeout: TimeCode::new(20),
        retry_count: 6,
        pkey: Pkey::DEFAULT,
        path_mtu: Some(PathMtu::Mtu1024),
        rnr_retry_count: 5,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: CmPath {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: peer,
            remote_gid: LOCAL,
            flow_label: 0x12345,
            packet_rate: 0,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            subnet_local: false,
            local_ack_timeout: TimeCode::new(19),
        },
        alternate: None,
        private_data: with_ip_cm_header(socket(peer, 50000), LOCAL, b"hello"),
    }
}

pub(crate) fn req() -> Req {
    req_from(PEER)
}

/// The peer's REP to this connection.
pub(crate) fn rep(ours: ConnId) -> Rep {
    Rep {
        local_comm_id: PEER_ID,
        remote_comm_id: CommId(ours.0),
        local_qkey: Qkey::default(),
        local_qpn: PEER_QPN,
        starting_psn: PEER_PSN,
        responder_resources: 2,
        initiator_depth: 5,
        target_ack_delay: TimeCode::new(15),
        failover: 0,
        flow_control: false,
        rnr_retry_count: 5,
        srq: false,
        local_ca_guid: 0x9999,
        private_data: padded(b"welcome"),
    }
}

pub(crate) fn rtu(ours: ConnId) -> Rtu {
    Rtu { local_comm_id: PEER_ID, remote_comm_id: CommId(ours.0), private_data: padded(b"go") }
}

pub(crate) fn dreq(ours: ConnId) -> Dreq {
    Dreq {
        local_comm_id: PEER_ID,
        remote_comm_id: CommId(ours.0),
        remote_qpn: QPN,
        private_data: padded(b"bye"),
    }
}

pub(crate) fn drep(ours: ConnId) -> Drep {
    Drep {
        local_comm_id: PEER_ID,
        remote_comm_id: CommId(ours.0),
        private_data: padded(b"bye bye"),
    }
}

pub(crate) fn rej(ours: CommId, rejected: Rejected, reason: Reason) -> Rej {
    Rej {
        local_comm_id: PEER_ID,
        remote_comm_id: ours,
        rejected,
        reason,
        ari: Ari::NONE,
        private_data: padded(b"no"),
    }
}

pub(crate) fn mra(ours: ConnId, received: Received, code: u8) -> Mra {
    Mra {
        local_comm_id: PEER_ID,
        remote_comm_id: CommId(ours.0),
        received,
        service_timeout: TimeCode::new(code),
        private_data: [0; Mra::PRIVATE_LEN],
    }
}

pub(crate) fn source(peer: IpAddr) -> MadSource {
    let flow = Flow {
        src: peer,
        dst: LOCAL,
        src_port: 55410,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    MadSource { flow, src_qpn: Qpn::GSI }
}

impl Script {
    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    pub(crate) fn new() -> Script {
        Script { cm: Manager::new(config()), now: Instant::now() }
    }

    /// With a connection in REQ-SENT, and the REQ.
    pub(crate) fn req_sent() -> (Script, ConnId, Req) {
        let mut t = Script::new();
        let conn = t.cm.connect(t.now, &connect()).unwrap();
        let Message::Req(req) = t.sent() else { panic!("no REQ") };
        (t, conn, req)
    }

    /// With a connection in REP-RECEIVED.
    pub(crate) fn rep_received() -> (Script, ConnId) {
        let (mut t, conn, _) = Script::req_sent();
        t.receive(rep(conn));
        assert!(matches!(t.event(), Event::ConnectResponse { .. }));
        (t, conn)
    }

    /// With an established connection of the active side.
    pub(crate) fn established_active() -> (Script, ConnId) {
        let (mut t, conn) = Script::rep_received();
        t.cm.establish(t.now, conn, b"go").unwrap();
        assert_eq!(t.sent().name(), "RTU");
        (t, conn)
    }

    /// With a listener, and a connection in REQ-RECEIVED.
    pub(crate) fn req_received() -> (Script, ConnId) {
        let mut t = Script::new();
        t.cm.listen(t.now, &listen()).unwrap();
        t.receive(req());
        let conn = t.requested();
        (t, conn)
    }

    /// With a connection in REP-SENT.
    pub(crate) fn rep_sent() -> (Script, ConnId) {
        let (mut t, conn) = Script::req_received();
        t.cm.accept(t.now, conn, &ACCEPT).unwrap();
        assert_eq!(t.sent().name(), "REP");
        (t, conn)
    }

    /// With an established connection of the passive side.
    pub(crate) fn established_passive() -> (Script, ConnId) {
        let (mut t, conn) = Script::rep_sent();
        t.receive(rtu(conn));
        assert!(matches!(t.event(), Event::Established { .. }));
        (t, conn)
    }

    pub(crate) fn receive(&mut self, message: impl Into<Message>) {
        self.receive_from(PEER, message);
    }

    pub(crate) fn receive_from(&mut self, peer: IpAddr, message: impl Into<Message>) {
        self.receive_bytes(peer, &Mad::new(TID, message).bytes());
    }

    pub(crate) fn receive_bytes(&mut self, peer: IpAddr, mad: &[u8; MAD_LEN]) {
        self.cm.handle_mad(self.now, &source(peer), mad);
    }

    /// The only message that was sent, which went to the peer.
    #[track_caller]
    pub(crate) fn sent(&mut self) -> Message {
        let (peer, mad) = self.sent_to();
        assert_eq!(peer, PEER);
        mad.message
    }

    #[track_caller]
    pub(crate) fn sent_to(&mut self) -> (IpAddr, Mad) {
        let out = self.cm.poll_mad().expect("something was sent");
        assert_eq!((self.cm.poll_mad(), out.qpn, out.path.local), (None, Qpn::GSI, LOCAL));
        (out.path.peer, Mad::parse(&out.mad).unwrap())
    }

    /// All messages that were sent.
    pub(crate) fn all_sent(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.cm.poll_mad())
            .map(|out| Mad::parse(&out.mad).unwrap().message)
            .collect()
    }

    /// The rejection that was sent.
    #[track_caller]
    pub(crate) fn sent_rej(&mut self) -> Rej {
        match self.sent() {
            Message::Rej(rej) => rej,
            other => panic!("{other}"),
        }
    }

    /// The only event.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        let event = self.cm.poll_event().expect("an event");
        assert_eq!(self.cm.poll_event(), None);
        event
    }

    /// The peer ends a connection, and is answered.
    #[track_caller]
    pub(crate) fn peer_disconnects(&mut self, conn: ConnId) {
        self.receive(dreq(conn));
        assert_eq!(self.sent().name(), "DREP");
        assert!(matches!(self.event(), Event::Disconnected { .. }));
    }

    /// The connection of the only event, a request.
    #[track_caller]
    pub(crate) fn requested(&mut self) -> ConnId {
        match self.event() {
            Event::ConnectRequest { conn, .. } | Event::SidrRequest { conn, .. } => conn,
            other => panic!("{other:?}"),
        }
    }

    /// No message was sent, and there is no event.
    #[track_caller]
    pub(crate) fn assert_silent(&mut self) {
        assert_eq!((self.cm.poll_mad(), self.cm.poll_event()), (None, None));
    }

    /// No message, no event, and this was counted once more.
    #[track_caller]
    pub(crate) fn assert_dropped(&mut self, counter: CmCounter, before: u64) {
        self.assert_silent();
        assert_eq!(self.count(counter), before + 1, "{}", counter.name());
    }

    pub(crate) fn count(&self, counter: CmCounter) -> u64 {
        self.cm.counters().get(counter)
    }

    /// Lets time pass.
    pub(crate) fn advance(&mut self, time: Duration) {
        self.now += time;
        self.cm.handle_timeout(self.now);
    }

    /// Lets time pass until the next timer expires. Returns how long that took.
    #[track_caller]
    pub(crate) fn run_next_timer(&mut self) -> Duration {
        let at = self.cm.poll_timeout().expect("something to wait for");
        let waited = at - self.now;
        self.advance(waited);
        waited
    }

    /// Lets time pass until no timer runs. Returns how long that took, and what was sent.
    pub(crate) fn run_all_timers(&mut self) -> (Duration, Vec<&'static str>) {
        let (mut waited, mut sent) = (Duration::ZERO, Vec::new());
        while self.cm.poll_timeout().is_some() {
            waited += self.run_next_timer();
            sent.extend(self.all_sent().iter().map(Message::name));
        }
        (waited, sent)
    }
}
