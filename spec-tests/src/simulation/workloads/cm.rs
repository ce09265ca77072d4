//! Two machines with a connection manager each: programs of the one connect to a program of the
//! other, exchange a message and disconnect. Programs may die, and machines.

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
    /// How long a program thinks before it does what is its turn, in microseconds.
    pub think: std::ops::RangeInclusive<u64>,
    /// How many requests of a hundred the server refuses.
    pub refuses: u64,
    /// How many acceptances of a hundred the client refuses.
    pub declines: u64,
    /// How many connections of a hundred the server ends.
    pub server_ends: u64,
    /// How long a program waits for a message before it ends a connection.
    pub patience: Duration,
    /// How many requests may wait for the server.
    pub backlog: usize,
}

/// What a program was told about one of its connections, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was accepted.
    Response,
    /// It is established.
    Established,
    /// It was refused.
    Rejected,
    /// Nobody answered.
    Unreachable,
    /// It ended.
    Disconnected,
    /// All of it is over.
    Over,
}

/// How somebody dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The program: its manager learns of it, and tells the peers.
    Program,
    /// The machine: nobody learns of it.
    Machine,
}

/// What a program does next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Connect,
    Answer(ConnId),
    Proceed(ConnId),
    Disconnect(ConnId),
}

/// One connection as its program sees it.
#[derive(Debug)]
struct Call {
    end: End,
    /// What the program was told.
    told: Vec<Told>,
    /// A message was sent to the end, or came.
    talked: bool,
}

/// One machine.
struct Side {
    /// Gone if the machine is dead.
    manager: Option<Manager>,
    program_lives: bool,
    listener: Option<ListenerId>,
    cqs: (CqId, CqId),
    calls: BTreeMap<ConnId, Call>,
    /// What the programs were told of connections that are over, and whether they talked.
    past: Vec<(Vec<Told>, bool)>,
}

/// Two machines with connection managers.
pub struct CmWorkload {
    /// The machines, and the network between them.
    pub world: World,
    behavior: CmBehavior,
    rng: Rng,
    sides: [Side; 2],
    acts: BTreeMap<(Instant, u64), (usize, Act)>,
    acted: u64,
}

impl CmWorkload {
    /// Two machines; `count` connections will be asked for within `spread`.
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
                calls: BTreeMap::new(),
                past: Vec::new(),
            }
        });
        let mut new = CmWorkload { world, behavior, rng, sides, acts: BTreeMap::new(), acted: 0 };
        let listen = Listen {
            space: PortSpace::Tcp,
            port: PORT,
            on: ListenOn::Any,
            service: Service::Connected(QpType::Rc),
            backlog: new.behavior.backlog,
        };
        let manager = new.sides[SERVER].manager.as_mut().expect("it lives");
        new.sides[SERVER].listener = Some(manager.listen(&listen).expect("nobody else listens"));
        for _ in 0..count {
            let after = new.rng.micros(0..=spread.as_micros() as u64);
            new.plan(CLIENT, after, Act::Connect);
        }
        new
    }

    fn plan(&mut self, side: usize, after: Duration, act: Act) {
        self.acted += 1;
        self.acts.insert((self.world.now() + after, self.acted), (side, act));
    }

    fn plan_after_thinking(&mut self, side: usize, act: Act) {
        let think = self.rng.micros(self.behavior.think.clone());
        self.plan(side, think, act);
    }

    /// How many connections a manager knows of, over or not; none if its machine is dead.
    pub fn known(&self, side: usize) -> usize {
        self.sides[side].manager.as_ref().map_or(0, Manager::len)
    }

    /// A manager, unless its machine is dead.
    pub fn manager(&self, side: usize) -> Option<&Manager> {
        self.sides[side].manager.as_ref()
    }

    /// What the programs of a side were told of each connection that is over for them, and whether
    /// they exchanged a message.
    pub fn past(&self, side: usize) -> &[(Vec<Told>, bool)] {
        &self.sides[side].past
    }

    /// Whether nothing is planned, and no manager knows of any connection.
    pub fn is_at_rest(&self) -> bool {
        self.acts.is_empty() && self.known(CLIENT) == 0 && self.known(SERVER) == 0
    }

    /// Lets time pass until the next thing happens.
    pub fn step(&mut self) {
        let managers = self.sides.iter().filter_map(|side| side.manager.as_ref());
        let timers = managers.filter_map(Manager::poll_timeout);
        let acts = self.acts.keys().next().map(|(at, _)| *at);
        let until = timers.chain(acts).min();
        self.world.step(until.unwrap_or(self.world.now() + Duration::from_secs(1)));
        let now = self.world.now();
        while let Some(entry) = self.acts.first_entry()
            && entry.key().0 <= now
        {
            let (side, act) = entry.remove();
            if self.sides[side].program_lives {
                self.act(side, act);
            }
        }
        for side in [CLIENT, SERVER] {
            self.see_to(side);
        }
    }

    /// Somebody dies.
    pub fn kill(&mut self, side: usize, death: Death) {
        let now = self.world.now();
        self.world.trace.note(now, side, format_args!("the {death:?} dies"));
        let Side { manager, program_lives, listener, calls, .. } = &mut self.sides[side];
        *program_lives = false;
        let calls = std::mem::take(calls);
        match death {
            Death::Machine => {
                *manager = None;
                let [a, b] = [CLIENT, SERVER].map(|number| self.world.nodes[number].addr);
                let for_ever = now..now + Duration::from_secs(1 << 30);
                self.world.network.partition(a, b, for_ever);
            }
            Death::Program => {
                let Some(manager) = manager else { return };
                if let Some(listener) = listener.take() {
                    manager.unlisten(now, listener);
                }
                for (conn, call) in calls {
                    self.world.nodes[side].device.destroy_qp(call.end.qpn);
                    manager.destroy(now, conn);
                }
                self.see_to(side);
            }
        }
    }

    /// Hands the manager what came, and carries out what it says.
    fn see_to(&mut self, number: usize) {
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

    /// Messages that went or came, and data that came before the peer's word.
    fn notice_data(&mut self, number: usize) {
        let now = self.world.now();
        let host = &mut self.world.nodes[number].host;
        let events = std::mem::take(&mut host.events);
        let side = &mut self.sides[number];
        for event in events {
            let AsyncEvent::CommunicationEstablished(qpn) = event else { continue };
            let calls = side.calls.iter().find(|(_, call)| call.end.qpn == qpn);
            if let (Some((conn, _)), Some(manager)) = (calls, &mut side.manager) {
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
            let mut calls = self.sides[number].calls.iter_mut();
            let Some((&conn, call)) = calls.find(|(_, call)| call.end.qpn == completion.qpn) else {
                continue;
            };
            call.talked |= completion.status == WcStatus::Success;
            // Whose turn it is to end the connection is the QPN's affair, which both know; the
            // other one waits, but not for ever.
            let ends = call.end.qpn.get() as u64 % 100 < self.behavior.server_ends;
            let patient = completion.status == WcStatus::Success && ends != (number == SERVER);
            match patient {
                true => self.plan(number, self.behavior.patience, Act::Disconnect(conn)),
                false => self.plan_after_thinking(number, Act::Disconnect(conn)),
            }
        }
    }

    fn act(&mut self, number: usize, act: Act) {
        let now = self.world.now();
        self.world.trace.note(now, number, format_args!("{act:?}"));
        match act {
            Act::Connect => self.connect(),
            Act::Answer(conn) => self.answer(conn),
            Act::Proceed(conn) => self.proceed(conn),
            Act::Disconnect(conn) => {
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
        let call = Call { end, told: Vec::new(), talked: false };
        let before = self.sides[number].calls.insert(conn, call);
        assert!(before.is_none(), "a number twice");
    }

    /// The server accepts, or refuses.
    fn answer(&mut self, conn: ConnId) {
        let now = self.world.now();
        let refuses = self.rng.percent(self.behavior.refuses);
        let accepting = !refuses && self.has_state(SERVER, conn);
        if accepting {
            let end = self.sides[SERVER].calls[&conn].end;
            self.set_qp(SERVER, conn, &end, &[QpState::Rtr, QpState::Rts]);
            let accept = Accept { qp: qp(&end), private_data: b"welcome" };
            let manager = self.sides[SERVER].manager.as_mut().expect("the program lives");
            manager.accept(now, conn, &accept).expect("it is a request");
            // If the client's message never comes.
            self.plan(SERVER, self.behavior.patience, Act::Disconnect(conn));
        } else if let Some(manager) = &mut self.sides[SERVER].manager
            && manager.reject(now, conn, b"no").is_ok()
        {
            self.end(SERVER, conn);
        }
    }

    /// The client goes on, or does not.
    fn proceed(&mut self, conn: ConnId) {
        let now = self.world.now();
        let declines = self.rng.percent(self.behavior.declines);
        if !self.has_state(CLIENT, conn) {
            return;
        }
        let end = self.sides[CLIENT].calls[&conn].end;
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
        let (conn, told) = match event {
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
                return self.plan_after_thinking(SERVER, Act::Answer(conn));
            }
            Event::ConnectResponse { conn, .. } => (conn, Told::Response),
            Event::Established { conn, .. } => (conn, Told::Established),
            Event::Rejected { conn, .. } => (conn, Told::Rejected),
            Event::Unreachable { conn } => (conn, Told::Unreachable),
            Event::Disconnected { conn, .. } => (conn, Told::Disconnected),
            Event::TimewaitExit { conn } => (conn, Told::Over),
            Event::SidrRequest { .. } | Event::SidrReply { .. } => panic!("{event:?}"),
        };
        let call = self.sides[number].calls.get_mut(&conn).expect("it is not over yet");
        call.told.push(told);
        match told {
            Told::Response => self.plan_after_thinking(CLIENT, Act::Proceed(conn)),
            Told::Established => {}
            Told::Disconnected => {
                let end = call.end;
                self.world.nodes[number].device.destroy_qp(end.qpn);
            }
            Told::Rejected | Told::Unreachable | Told::Over => self.end(number, conn),
        }
    }

    /// A connection is over for its program.
    fn end(&mut self, number: usize, conn: ConnId) {
        let call = self.sides[number].calls.remove(&conn).expect("it is not over yet");
        self.world.nodes[number].device.destroy_qp(call.end.qpn);
        self.sides[number].past.push((call.told, call.talked));
        assert!(!self.has_state(number, conn), "over, and still there");
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

    /// Sets a QP to what the manager says.
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

/// Whether a program may be told these things of one connection, in this order.
pub fn makes_sense(side: usize, told: &[Told]) -> bool {
    use Told::{Disconnected, Established, Over, Rejected, Response, Unreachable};
    match side {
        CLIENT => matches!(
            told,
            // Declined by the program itself.
            [Response]
                | [Rejected]
                | [Unreachable]
                | [Response, Rejected]
                | [Response, Disconnected, Over]
        ),
        _ => matches!(
            told,
            // Refused by the program itself.
            [] | [Rejected]
                | [Unreachable]
                | [Established, Rejected]
                | [Established, Disconnected, Over]
        ),
    }
}
