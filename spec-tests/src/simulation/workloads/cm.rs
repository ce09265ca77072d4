//! Two machines with a connection manager each: programs of the one connect to a program of the
//! other, exchange a message and disconnect. Programs and machines can be killed.

use crate::rng::Rng;
use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::{Entry, send_wqe};
use crate::simulation::scenario::PD;
use crate::simulation::world::{End, World};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use urxe_cm::{
    Accept, Config, ConnId, Connect, Event, Listen, ListenOn, ListenerId, Manager, Qp, Service,
    Timing,
};
use urxe_engine::limits::MAX_RD_ATOMIC;
use urxe_engine::{AsyncEvent, CqId};
use urxe_types::{Extra, PathMtu, QpAttr, QpState, QpType, RecvWqe, SendOp, WcStatus};
use urxe_wire::mad::PortSpace;

/// The side that connects, and the side that listens.
pub const CLIENT: usize = 0;
/// See [`CLIENT`].
pub const SERVER: usize = 1;

const PORT: u16 = 7174;

/// Places of the completion queues.
const CQ_PLACES: usize = 1 << 12;

/// What the programs do.
#[derive(Clone, Debug)]
pub struct CmBehavior {
    /// How long a program takes before each action, in microseconds.
    pub delay: std::ops::RangeInclusive<u64>,
    /// Percent of requests that the server rejects.
    pub rejects: u64,
    /// Percent of acceptances that the client rejects.
    pub declines: u64,
    /// Percent of connections that the server disconnects.
    pub server_ends: u64,
    /// How long a program waits for a message before it ends a connection.
    pub wait: Duration,
    /// How many requests may wait for the server.
    pub backlog: usize,
}

/// An event of a connection, as reported to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It was accepted.
    Response,
    Established,
    /// It was refused.
    Rejected,
    /// No response came.
    Unreachable,
    /// It ended.
    Disconnected,
    /// The connection is destroyed.
    Over,
}

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The program: its manager learns of it, and notifies the peers.
    Program,
    /// The machine: it sends nothing any longer.
    Machine,
}

/// What a program does next.
#[derive(Clone, Copy, Debug)]
enum Action {
    Connect,
    Answer(ConnId),
    Proceed(ConnId),
    Disconnect(ConnId),
}

/// One connection as its program sees it.
#[derive(Debug)]
struct ConnectionState {
    end: End,
    /// What was reported to the program, in order.
    notices: Vec<Notice>,
    /// Its message was acknowledged, or arrived.
    exchanged: bool,
}

/// One machine.
struct Side {
    /// `None` if the machine was killed.
    manager: Option<Manager>,
    program_lives: bool,
    listener: Option<ListenerId>,
    cqs: (CqId, CqId),
    connections: BTreeMap<ConnId, ConnectionState>,
    /// What was reported of connections that are over, and whether they exchanged a message.
    finished: Vec<(Vec<Notice>, bool)>,
}

/// Two machines with connection managers.
pub struct CmWorkload {
    /// The machines, and the network between them.
    pub world: World,
    behavior: CmBehavior,
    rng: Rng,
    sides: [Side; 2],
    actions: BTreeMap<(Instant, u64), (usize, Action)>,
    planned: u64,
}

impl CmWorkload {
    /// Two machines; `count` connections will be requested within `spread`.
    pub fn new(
        mut world: World,
        mut rng: Rng,
        behavior: CmBehavior,
        count: u64,
        spread: Duration,
    ) -> CmWorkload {
        let sides = [CLIENT, SERVER].map(|number| {
            let host = &mut world.nodes[number].host;
            let config = Config {
                guid: 1 + number as u64,
                seed: rng.next_u64(),
                active_mtu: PathMtu::Mtu4096,
                max_rd_atomic: MAX_RD_ATOMIC,
                timing: Timing::default(),
            };
            Side {
                manager: Some(Manager::new(config)),
                program_lives: true,
                listener: None,
                cqs: (host.add_cq(CQ_PLACES), host.add_cq(CQ_PLACES)),
                connections: BTreeMap::new(),
                finished: Vec::new(),
            }
        });
        let mut new =
            CmWorkload { world, behavior, rng, sides, actions: BTreeMap::new(), planned: 0 };
        let listen = Listen {
            space: PortSpace::Tcp,
            port: PORT,
            on: ListenOn::Any,
            service: Service::Connected(QpType::Rc),
            backlog: new.behavior.backlog,
        };
        let now = new.world.now();
        let manager = new.sides[SERVER].manager.as_mut().expect("it lives");
        new.sides[SERVER].listener = Some(manager.listen(now, &listen).expect("the port is free"));
        for _ in 0..count {
            let after = new.rng.micros(0..=spread.as_micros() as u64);
            new.plan(CLIENT, after, Action::Connect);
        }
        new
    }

    fn plan(&mut self, side: usize, after: Duration, action: Action) {
        self.planned += 1;
        self.actions.insert((self.world.now() + after, self.planned), (side, action));
    }

    fn plan_after_delay(&mut self, side: usize, action: Action) {
        let delay = self.rng.micros(self.behavior.delay.clone());
        self.plan(side, delay, action);
    }

    /// How many connections a manager has, over or not; none if its machine was killed.
    pub fn known(&self, side: usize) -> usize {
        self.sides[side].manager.as_ref().map_or(0, Manager::len)
    }

    /// A manager, unless its machine was killed.
    pub fn manager(&self, side: usize) -> Option<&Manager> {
        self.sides[side].manager.as_ref()
    }

    /// What was reported to the programs of a side of each connection that is over for them, and
    /// whether they exchanged a message.
    pub fn finished(&self, side: usize) -> &[(Vec<Notice>, bool)] {
        &self.sides[side].finished
    }

    /// Whether nothing is planned, and no manager knows of any connection.
    pub fn is_at_rest(&self) -> bool {
        self.actions.is_empty() && self.known(CLIENT) == 0 && self.known(SERVER) == 0
    }

    /// Lets time pass until the next thing happens.
    pub fn step(&mut self) {
        let managers = self.sides.iter().filter_map(|side| side.manager.as_ref());
        let timers = managers.filter_map(Manager::poll_timeout);
        let actions = self.actions.keys().next().map(|(at, _)| *at);
        let until = timers.chain(actions).min();
        self.world.step(until.unwrap_or(self.world.now() + Duration::from_secs(1)));
        let now = self.world.now();
        while let Some(entry) = self.actions.first_entry()
            && entry.key().0 <= now
        {
            let (side, action) = entry.remove();
            if self.sides[side].program_lives {
                self.action(side, action);
            }
        }
        for side in [CLIENT, SERVER] {
            self.process(side);
        }
    }

    /// Kills a program or a machine.
    pub fn kill(&mut self, side: usize, death: Death) {
        let now = self.world.now();
        self.world.trace.note(now, side, format_args!("the {death:?} dies"));
        let Side { manager, program_lives, listener, connections, .. } = &mut self.sides[side];
        *program_lives = false;
        let connections = std::mem::take(connections);
        match death {
            Death::Machine => {
                *manager = None;
                let [a, b] = [CLIENT, SERVER].map(|number| self.world.nodes[number].addr);
                let forever = now..now + Duration::from_secs(1 << 30);
                self.world.network.partition(a, b, forever);
            }
            Death::Program => {
                let Some(manager) = manager else { return };
                if let Some(listener) = listener.take() {
                    manager.unlisten(now, listener);
                }
                for (conn, connection) in connections {
                    self.world.destroy_qp(&connection.end);
                    manager.destroy(now, conn);
                }
                self.process(side);
            }
        }
    }

    /// Hands a manager the datagrams that arrived, handles its events and sends its datagrams.
    fn process(&mut self, number: usize) {
        let now = self.world.now();
        let mads = std::mem::take(&mut self.world.nodes[number].host.mads);
        let Some(manager) = &mut self.sides[number].manager else { return };
        for (from, mad) in mads {
            manager.handle_mad(now, &from, &mad);
        }
        manager.handle_timeout(now);
        self.notice_data(number);
        while let Some(event) = self.sides[number].manager.as_mut().and_then(Manager::poll_event) {
            assert!(self.sides[number].program_lives, "{event:?} for a dead program");
            self.on_event(number, event);
        }
        let Some(manager) = &mut self.sides[number].manager else { return };
        let device = &mut self.world.nodes[number].device;
        while let Some(out) = manager.poll_mad() {
            let av = out.path.address_vector(device.gids()).expect("it is our own address");
            device.send_mad(&av, out.qpn, &out.mad).expect("the path leads somewhere");
        }
        self.world.transmit();
    }

    /// Handles completions, and data that arrived before the peer's last CM message.
    fn notice_data(&mut self, number: usize) {
        let now = self.world.now();
        let host = &mut self.world.nodes[number].host;
        let events = std::mem::take(&mut host.events);
        let side = &mut self.sides[number];
        for event in events {
            let AsyncEvent::CommunicationEstablished(qpn) = event else { continue };
            let connections =
                side.connections.iter().find(|(_, connection)| connection.end.qpn == qpn);
            if let (Some((conn, _)), Some(manager)) = (connections, &mut side.manager) {
                manager.communication_established(now, *conn);
            }
        }
        let (send_cq, recv_cq) = side.cqs;
        let mut done = Vec::new();
        for cq in [send_cq, recv_cq] {
            while let Some(completed) = host.cq(cq).poll() {
                done.push(completed.completion);
            }
        }
        for completion in done {
            let mut connections = self.sides[number].connections.iter_mut();
            let Some((&conn, connection)) =
                connections.find(|(_, connection)| connection.end.qpn == completion.qpn)
            else {
                continue;
            };
            connection.exchanged |= completion.status == WcStatus::Success;
            // The QPN, which both know, decides which side disconnects; the other one waits, but
            // not without limit.
            let ends = connection.end.qpn.get() as u64 % 100 < self.behavior.server_ends;
            let waits = completion.status == WcStatus::Success && ends != (number == SERVER);
            match waits {
                true => self.plan(number, self.behavior.wait, Action::Disconnect(conn)),
                false => self.plan_after_delay(number, Action::Disconnect(conn)),
            }
        }
    }

    fn action(&mut self, number: usize, action: Action) {
        let now = self.world.now();
        self.world.trace.note(now, number, format_args!("{action:?}"));
        match action {
            Action::Connect => self.connect(),
            Action::Answer(conn) => self.answer(conn),
            Action::Proceed(conn) => self.proceed(conn),
            Action::Disconnect(conn) => {
                // It may have ended meanwhile.
                if let Some(manager) = &mut self.sides[number].manager {
                    let _ = manager.disconnect(now, conn, b"bye");
                }
            }
        }
    }

    fn connect(&mut self) {
        let now = self.world.now();
        let end = self.create_qp(CLIENT);
        let port = self.rng.range(32768..=60999) as u16;
        let [src, dst] = [CLIENT, SERVER].map(|number| self.world.nodes[number].addr);
        let connect = Connect {
            qp_type: QpType::Rc,
            space: PortSpace::Tcp,
            src: SocketAddr::new(src, port),
            dst: SocketAddr::new(dst, PORT),
            traffic_class: 0,
            path_mtu: PathMtu::Mtu1024,
            qp: qp(&end),
            retry_count: 7,
            ack_timeout: None,
            private_data: b"hello",
        };
        let manager = self.sides[CLIENT].manager.as_mut().expect("the program lives");
        let conn = manager.connect(now, &connect).expect("the addresses are fine");
        self.begin(CLIENT, conn, end);
    }

    fn begin(&mut self, number: usize, conn: ConnId, end: End) {
        let connection = ConnectionState { end, notices: Vec::new(), exchanged: false };
        let before = self.sides[number].connections.insert(conn, connection);
        assert!(before.is_none(), "a connection number was used twice");
    }

    /// The server accepts or rejects.
    fn answer(&mut self, conn: ConnId) {
        let now = self.world.now();
        let rejects = self.rng.percent(self.behavior.rejects);
        let accepting = !rejects && self.has_state(SERVER, conn);
        if accepting {
            let end = self.sides[SERVER].connections[&conn].end;
            self.set_qp(SERVER, conn, &end, &[QpState::Rtr, QpState::Rts]);
            let accept = Accept { qp: qp(&end), private_data: b"welcome" };
            let manager = self.sides[SERVER].manager.as_mut().expect("the program lives");
            manager.accept(now, conn, &accept).expect("it is a request");
            // If the client's message does not arrive.
            self.plan(SERVER, self.behavior.wait, Action::Disconnect(conn));
        } else if let Some(manager) = &mut self.sides[SERVER].manager
            && manager.reject(now, conn, b"no").is_ok()
        {
            self.end(SERVER, conn);
        }
    }

    /// The client establishes the connection or rejects.
    fn proceed(&mut self, conn: ConnId) {
        let now = self.world.now();
        let declines = self.rng.percent(self.behavior.declines);
        if !self.has_state(CLIENT, conn) {
            return;
        }
        let end = self.sides[CLIENT].connections[&conn].end;
        let manager = self.sides[CLIENT].manager.as_mut().expect("the program lives");
        if declines {
            if manager.reject(now, conn, b"no").is_ok() {
                self.end(CLIENT, conn);
            }
            return;
        }
        let state = manager.state(conn);
        if state != Some(urxe_cm::State::RepReceived) {
            return;
        }
        self.set_qp(CLIENT, conn, &end, &[QpState::Rtr, QpState::Rts]);
        let manager = self.sides[CLIENT].manager.as_mut().expect("the program lives");
        manager.establish(now, conn, b"go").expect("it was accepted");
        let wqe = send_wqe(end.qpn.get().into(), SendOp::Send(Extra::None), Vec::new());
        self.world.nodes[CLIENT].host.send_queue(end.send_queue).post(Entry::Good(wqe));
        self.world.ring(&end);
    }

    fn has_state(&self, number: usize, conn: ConnId) -> bool {
        self.manager(number).is_some_and(|manager| manager.state(conn).is_some())
    }

    fn on_event(&mut self, number: usize, event: Event) {
        let now = self.world.now();
        self.world.trace.note(now, number, format_args!("{}", name(&event)));
        let (conn, notice) = match event {
            Event::ConnectRequest { conn, .. } => {
                assert_eq!(number, SERVER);
                let end = self.create_qp(SERVER);
                self.begin(SERVER, conn, end);
                let recv = RecvWqe { wr_id: RECV_WR_ID | 1, sges: Vec::new() };
                let host = &mut self.world.nodes[SERVER].host;
                host.recv_queue(end.recv_queue).post(Entry::Good(recv));
                if let Some(manager) = &mut self.sides[SERVER].manager {
                    manager.take_request(conn);
                }
                return self.plan_after_delay(SERVER, Action::Answer(conn));
            }
            Event::ConnectResponse { conn, .. } => (conn, Notice::Response),
            Event::Established { conn, .. } => (conn, Notice::Established),
            Event::Rejected { conn, .. } => (conn, Notice::Rejected),
            Event::Unreachable { conn } => (conn, Notice::Unreachable),
            Event::Disconnected { conn, .. } => (conn, Notice::Disconnected),
            Event::TimewaitExit { conn } => (conn, Notice::Over),
            Event::SidrRequest { .. } | Event::SidrReply { .. } => panic!("{event:?}"),
        };
        let connection = self.sides[number].connections.get_mut(&conn).expect("it is not over yet");
        connection.notices.push(notice);
        match notice {
            Notice::Response => self.plan_after_delay(CLIENT, Action::Proceed(conn)),
            Notice::Established => {}
            Notice::Disconnected => {
                let end = connection.end;
                self.world.destroy_qp(&end);
            }
            Notice::Rejected | Notice::Unreachable | Notice::Over => self.end(number, conn),
        }
    }

    /// A connection is over for its program.
    fn end(&mut self, number: usize, conn: ConnId) {
        let connection = self.sides[number].connections.remove(&conn).expect("it is not over yet");
        self.world.destroy_qp(&connection.end);
        self.sides[number].finished.push((connection.notices, connection.exchanged));
        assert!(!self.has_state(number, conn), "the connection is over, and still known");
    }

    fn create_qp(&mut self, number: usize) -> End {
        let cqs = self.sides[number].cqs;
        let end = self.world.create_qp(number, PD, cqs, (1, 1));
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(crate::simulation::world::everything()),
            ..QpAttr::default()
        };
        self.world.modify(&end, &init);
        end
    }

    /// Modifies a QP with the attributes of the manager.
    fn set_qp(&mut self, number: usize, conn: ConnId, end: &End, states: &[QpState]) {
        for state in states {
            let attr = self.manager(number).and_then(|manager| manager.qp_attr(conn, *state, 0));
            self.world.modify(end, &attr.expect("the connection is that far"));
        }
    }

    /// The address of a machine.
    pub fn addr(&self, side: usize) -> IpAddr {
        self.world.nodes[side].addr
    }
}

fn qp(end: &End) -> Qp {
    Qp {
        qpn: end.qpn,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
    }
}

fn name(event: &Event) -> String {
    let text = format!("{event:?}");
    text.split(['{', ' ']).next().unwrap_or_default().to_owned()
}

/// Whether these events of one connection may be reported in this order.
pub fn is_valid_order(side: usize, notices: &[Notice]) -> bool {
    use Notice::{Disconnected, Established, Over, Rejected, Response, Unreachable};
    match side {
        CLIENT => matches!(
            notices,
            // Rejected by the program itself.
            [Response]
                | [Rejected]
                | [Unreachable]
                | [Response, Rejected]
                | [Response, Disconnected, Over]
        ),
        _ => matches!(
            notices,
            // Rejected by the program itself.
            [] | [Rejected]
                | [Unreachable]
                | [Established, Rejected]
                | [Established, Disconnected, Over]
        ),
    }
}
