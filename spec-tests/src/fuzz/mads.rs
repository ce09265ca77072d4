//! Two connection managers, their programs, and somebody between them who sees and changes every
//! message.

use super::{Input, Recent};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use urxe_cm::{
    Accept, Config, Connect, Event, Listen, ListenOn, ListenerId, Manager, Qp, Resolve, Service,
    SidrAnswer, State, Timing,
};
use urxe_types::{PathMtu, Qkey, QpState, QpType, Qpn};
use urxe_wire::mad::{MAD_LEN, MadSource, PortSpace, SidrStatus};
use urxe_wire::{Flow, ROCE_PORT};

/// Steps of one run: enough for a few connections and what disturbs them.
const STEPS: usize = 300;

/// After this, nothing is left of any connection that no program has.
const LONG: Duration = Duration::from_secs(3_600);

/// Where the programs of each manager listen, and for what.
const SERVICES: [(u16, Service); 3] = [
    (1, Service::Connected(QpType::Rc)),
    (2, Service::Connected(QpType::Uc)),
    (3, Service::Datagrams),
];

/// A message on its way.
struct Mail {
    to: usize,
    from: MadSource,
    mad: [u8; MAD_LEN],
}

struct World {
    now: Instant,
    nodes: [Manager; 2],
    listeners: [[Option<ListenerId>; SERVICES.len()]; 2],
    /// What their programs know of.
    conns: [Vec<urxe_cm::ConnId>; 2],
    wire: VecDeque<Mail>,
    /// The last messages, to be sent again.
    seen: Recent<Mail>,
}

fn addr(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + node as u8).into()
}

fn manager(seed: u64) -> Manager {
    let timing = Timing::default();
    let active_mtu = PathMtu::Mtu1024;
    Manager::new(Config { guid: seed, seed, active_mtu, max_rd_atomic: 16, timing })
}

fn qp(input: &mut Input<'_>) -> Qp {
    Qp {
        // A few, so that some are used twice.
        qpn: Qpn::new(0x10 + u32::from(input.u8() % 4)),
        responder_resources: input.u8(),
        initiator_depth: input.u8(),
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let action = input.u8();
        let node = usize::from(action >> 7);
        match action & 0x7f {
            0 => self.connect(node, input),
            1 => self.resolve(node, input),
            2..=12 => self.command(node, input),
            13..=40 => self.deliver(),
            41..=43 => drop(self.wire.pop_front()),
            44..=80 => self.change(input),
            81..=100 => self.repeat(input),
            101..=102 => self.begin_or_end_listener(node, input.index(SERVICES.len())),
            _ => self.wait(Duration::from_millis(1 << (input.u8() % 18))),
        }
        self.collect();
    }

    fn begin_or_end_listener(&mut self, node: usize, at: usize) {
        let (cm, listener) = (&mut self.nodes[node], &mut self.listeners[node][at]);
        *listener = match listener.take() {
            Some(listener) => {
                assert!(cm.unlisten(self.now, listener), "it has not ended before");
                None
            }
            None => {
                let ((port, service), on) = (SERVICES[at], ListenOn::Any);
                let listen = Listen { space: PortSpace::Tcp, port, on, service, backlog: 2 };
                Some(cm.listen(self.now, &listen).expect("no other listener is there"))
            }
        };
    }

    fn connect(&mut self, node: usize, input: &mut Input<'_>) {
        let port = 1 + u16::from(input.u8() % 4);
        let connect = Connect {
            qp_type: input.one_of(&[QpType::Rc, QpType::Uc]),
            space: PortSpace::Tcp,
            src: SocketAddr::new(addr(node), 40_000),
            dst: SocketAddr::new(addr(1 - node), port),
            traffic_class: 0,
            path_mtu: PathMtu::Mtu1024,
            qp: qp(input),
            retry_count: 7,
            ack_timeout: None,
            private_data: b"hello",
        };
        self.conns[node].extend(self.nodes[node].connect(self.now, &connect));
    }

    fn resolve(&mut self, node: usize, input: &mut Input<'_>) {
        let resolve = Resolve {
            space: PortSpace::Tcp,
            src: SocketAddr::new(addr(node), 40_000),
            dst: SocketAddr::new(addr(1 - node), 2 + u16::from(input.u8() % 2)),
            traffic_class: 0,
            private_data: b"where",
        };
        self.conns[node].extend(self.nodes[node].resolve(self.now, &resolve));
    }

    /// A program does something with one of its connections, whether it may or not.
    fn command(&mut self, node: usize, input: &mut Input<'_>) {
        if self.conns[node].is_empty() {
            return;
        }
        let at = input.index(self.conns[node].len());
        let (now, conn, cm) = (self.now, self.conns[node][at], &mut self.nodes[node]);
        let command = match cm.state(conn) {
            // Mostly what leads on.
            Some(State::ReqReceived) if input.u8() > 64 => 0,
            Some(State::RepReceived) if input.u8() > 64 => 1,
            Some(State::SidrReqReceived) if input.u8() > 64 => 2,
            _ => input.u8() % 9,
        };
        match command {
            0 => drop(cm.accept(now, conn, &Accept { qp: qp(input), private_data: b"welcome" })),
            1 => drop(cm.establish(now, conn, b"")),
            2 => {
                let status = SidrStatus::Valid;
                let (qpn, qkey, private_data) = (Qpn::new(0x10), Qkey(1), &b"here"[..]);
                let answer = SidrAnswer { status, qpn, qkey, private_data };
                let _ = cm.answer(now, conn, &answer);
            }
            3 => drop(cm.reject(now, conn, b"no")),
            4 => drop(cm.disconnect(now, conn, b"")),
            5 => cm.destroy(now, conn),
            6 => cm.communication_established(now, conn),
            7 => cm.take_request(conn),
            _ => {
                for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
                    let _ = cm.qp_attr(conn, state, 0);
                }
            }
        }
    }

    fn hand_over(&mut self, mail: Mail) {
        self.nodes[mail.to].handle_mad(self.now, &mail.from, &mail.mad);
        self.seen.push(mail);
    }

    fn deliver(&mut self) {
        if let Some(mail) = self.wire.pop_front() {
            self.hand_over(mail);
        }
    }

    /// The next message comes with other bytes.
    fn change(&mut self, input: &mut Input<'_>) {
        let Some(mut mail) = self.wire.pop_front() else { return };
        change_bytes(&mut mail, input);
        self.hand_over(mail);
    }

    /// A message comes again, as it was or not, to whom it was for or not.
    fn repeat(&mut self, input: &mut Input<'_>) {
        let Some(&Mail { mut to, mut from, mad }) = self.seen.one(input) else { return };
        let kind = input.u8();
        if kind & 1 != 0 {
            to = 1 - to;
            from.flow = Flow { src: from.flow.dst, dst: from.flow.src, ..from.flow };
        }
        if kind & 2 != 0 {
            from.flow.src = Ipv4Addr::new(10, 0, 0, 9).into();
        }
        if kind & 4 != 0 {
            from.flow.src_port = input.u16();
        }
        let mut mail = Mail { to, from, mad };
        if kind & 8 != 0 {
            change_bytes(&mut mail, input);
        }
        self.nodes[mail.to].handle_mad(self.now, &mail.from, &mail.mad);
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for cm in &mut self.nodes {
            cm.handle_timeout(self.now);
        }
    }

    /// Takes what the managers say and send.
    fn collect(&mut self) {
        for node in 0..2 {
            while let Some(event) = self.nodes[node].poll_event() {
                if let Event::ConnectRequest { conn, .. } | Event::SidrRequest { conn, .. } = event
                {
                    self.conns[node].push(conn);
                }
            }
            while let Some(out) = self.nodes[node].poll_mad() {
                assert_eq!(out.path.local, addr(node), "a manager has one address here");
                let flow = Flow {
                    src: out.path.local,
                    dst: out.path.peer,
                    src_port: ROCE_PORT,
                    traffic_class: out.path.traffic_class,
                    hop_limit: out.path.hop_limit,
                    flow_label: 0,
                };
                let from = MadSource { flow, src_qpn: Qpn::GSI };
                if out.path.peer == addr(1 - node) && self.wire.len() < 64 {
                    self.wire.push_back(Mail { to: 1 - node, from, mad: out.mad });
                }
            }
        }
    }
}

fn change_bytes(mail: &mut Mail, input: &mut Input<'_>) {
    for _ in 0..1 + input.u8() % 4 {
        // Most of what matters stands in front.
        let at = match input.u8() {
            at @ 0..160 => usize::from(at),
            _ => usize::from(input.u8()),
        };
        let len = input.one_of(&[1, 1, 3, 4]);
        let bytes = input.bytes(len);
        let at = at.min(MAD_LEN - bytes.len());
        mail.mad[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Plays programs, a wire and time as the bytes say. However it went, nothing is left when all
/// programs are gone and time has passed.
pub fn run(bytes: &[u8]) {
    let mut world = World {
        // The one look at the clock: where virtual time begins means nothing.
        now: Instant::now(),
        nodes: [manager(1), manager(2)],
        listeners: Default::default(),
        conns: [Vec::new(), Vec::new()],
        wire: VecDeque::new(),
        seen: Recent::default(),
    };
    for (node, at) in (0..2).flat_map(|node| (0..SERVICES.len()).map(move |at| (node, at))) {
        world.begin_or_end_listener(node, at);
    }
    let mut input = Input::new(bytes);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    for node in 0..2 {
        for conn in std::mem::take(&mut world.conns[node]) {
            world.nodes[node].destroy(world.now, conn);
        }
    }
    world.wire.clear();
    let end = world.now + LONG;
    while let Some(next) = world.nodes.iter().filter_map(Manager::poll_timeout).min() {
        assert!(next <= end, "a timer that runs for ever");
        world.now = world.now.max(next);
        for cm in &mut world.nodes {
            cm.handle_timeout(world.now);
            while cm.poll_mad().is_some() {}
            assert!(cm.poll_event().is_none(), "an event for a program that is gone");
        }
    }
    for cm in &world.nodes {
        assert!(cm.is_empty(), "{} connections are left", cm.len());
        assert_eq!(cm.pending_requests(), 0);
    }
}
