//! A data path whose program writes into its rings and its doorbells what and when it likes, also
//! while they are read, and the data path of an honest peer.

mod scribble;
mod shared;

use super::Input;
use crate::simulation::world::{EndAttr, as_datagrams, everything};
use scribble::{Scribble, Scribbler};
use shared::{Shared, Span};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_engine::{CqId, PdId, SrqId, Tuning};
use urxe_nic::{
    Config, CqSpec, EventPipe, EventTarget, Memory, MemorySpec, Nic, OwnerId, QpSpec, Receives,
    Ring, SrqSpec,
};
use urxe_port::sim::{Link, SimNetwork};
use urxe_shm::memory::region::Window;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::doorbell::{DOORBELL_SIZE, DoorbellReader};
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{CqProducer, RqConsumer, RqProducer, SqConsumer, SqProducer};
use urxe_types::{
    Access, Destination, Extra, Lkey, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, Rkey,
    SendData, SendOp, SendWr, Sge, Slot,
};
use urxe_types::{AddressVector, DatagramPath};

/// Steps of one run.
const STEPS: usize = 200;

/// Rounds after them in which what is under way comes to its end.
const ROUNDS: usize = 100;

/// After this, every QP in ERR has been looked at for what was posted to it.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Bytes of a node's memory. The second half is open to nobody else.
const MEMORY: usize = 1 << 14;
const OPEN: usize = MEMORY / 2;

/// What stands in the half that is open to nobody.
const CLOSED: u8 = 0xc7;

const QKEY: Qkey = Qkey(0x1234);
const OWNER: OwnerId = OwnerId(7);
const MTU: PathMtu = PathMtu::Mtu1024;

/// The transports of a node's QPs; the last one has an SRQ.
const TYPES: [QpType; 3] = [QpType::Rc, QpType::Ud, QpType::Rc];

/// A QP, and its program's ends.
struct Qp {
    qpn: Qpn,
    sends: SqProducer,
    recvs: RqProducer,
}

struct Node {
    nic: Nic,
    qps: Vec<Qp>,
    srq: SrqId,
    cq: CqId,
    shared: Shared,
    /// Every ring, and the doorbells.
    places: Vec<Span>,
    doorbells: DoorbellReader,
    /// Of the half that is open, and of the other.
    keys: [u32; 2],
    _events: OwnedFd,
}

fn addr(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + node as u8).into()
}

impl Node {
    fn new(network: &SimNetwork, number: usize, now: Instant, mut shared: Shared) -> Node {
        let port = network.attach(addr(number)).expect("each has an address of its own");
        let gids = vec![Some(addr(number))];
        let config =
            Config { gids, active_mtu: MTU, slot: Slot::ALONE, seed: 1, tuning: Tuning::default() };
        let mut nic = Nic::new(Box::new(port), config, now);
        let places = vec![Span { at: 0, len: DOORBELL_SIZE }];
        let mut doorbells = DoorbellReader::new(Arc::clone(&shared.rings)).expect("they fit");
        doorbells.set_slots(TYPES.len() as u32);

        let (pipe, events) = EventPipe::new().expect("there are descriptors");
        let channel = nic.create_async_channel(pipe, 1, 1).expect("it is the first");
        let target = EventTarget::new(channel, 0, 5);
        let mut rings = Rings { shared: &mut shared, places };
        let shape = Geometry::completion(15).expect("a possible size");
        let ring = CqProducer::create(rings.add(&shape), shape).expect("it fits");
        let notifier = CompletionNotifier::new(Arc::clone(&rings.shared.rings));
        let cq = nic.create_cq(CqSpec {
            ring: Ring { ring, shape },
            notifier: notifier.expect("it fits"),
            channel: Some(channel),
            events: target,
            owner: OWNER,
        });
        let cq = cq.expect("it is the first");
        let pd = nic.alloc_pd().expect("it is the first");
        let recv_shape = Geometry::recv(7, 2).expect("a possible size");
        let of_srq = rings.add(&recv_shape);
        let ring = RqConsumer::create(of_srq.clone(), recv_shape).expect("it fits");
        let ring = Ring { ring, shape: recv_shape };
        let srq = nic.create_srq(SrqSpec { pd, ring, limit: 0, events: target, owner: OWNER });
        let srq = srq.expect("it is the first");
        let mut qps = Vec::new();
        for (at, qp_type) in TYPES.into_iter().enumerate() {
            let send_shape = Geometry::send(7, 2, 64).expect("a possible size");
            let send = rings.add(&send_shape);
            let ring = SqConsumer::create(send.clone(), send_shape, qp_type == QpType::Ud);
            let (recv, receives) = match at {
                2 => (of_srq.clone(), Receives::Shared(srq)),
                _ => {
                    let recv = rings.add(&recv_shape);
                    let ring = RqConsumer::create(recv.clone(), recv_shape).expect("it fits");
                    (recv, Receives::Own(Ring { ring, shape: recv_shape }))
                }
            };
            let qpn = nic.create_qp(QpSpec {
                qp_type,
                pd,
                send_cq: cq,
                recv_cq: cq,
                send: Ring { ring: ring.expect("it fits"), shape: send_shape },
                all_signaled: false,
                recv: receives,
                events: target,
                owner: OWNER,
            });
            qps.push(Qp {
                qpn: qpn.expect("there are few"),
                sends: SqProducer::attach(send, send_shape).expect("nobody has changed it"),
                recvs: RqProducer::attach(recv, recv_shape).expect("nobody has changed it"),
            });
        }
        let places = rings.places;
        let keys = register(&mut nic, pd, &shared);
        Node { nic, qps, srq, cq, shared, places, doorbells, keys, _events: events }
    }

    /// Takes all QPs from RESET to RTS.
    fn connect(&mut self, now: Instant, peer: (IpAddr, [Qpn; TYPES.len()])) {
        for (at, qp_type) in TYPES.into_iter().enumerate() {
            let attr = EndAttr { rnr_retry: 3, sq_psn: Psn::new(0), ..EndAttr::generous() };
            for change in [attr.init(), attr.rtr(peer.0, peer.1[at], &attr, MTU), attr.rts()] {
                let change = match qp_type {
                    QpType::Ud => as_datagrams(&change, QKEY),
                    _ => change,
                };
                self.nic.modify_qp(now, self.qps[at].qpn, &change).expect("it is allowed");
            }
        }
    }

    fn qpns(&self) -> [Qpn; TYPES.len()] {
        std::array::from_fn(|at| self.qps[at].qpn)
    }

    fn turn(&mut self, now: Instant) {
        while self.nic.receive(now).expect("the simulated port works") {}
        self.nic.handle_timers(now).expect("the simulated port works");
        let (nic, qps) = (&mut self.nic, &self.qps);
        self.doorbells.take(TYPES.len() as u32, |slot| nic.ring_doorbell(qps[slot as usize].qpn));
        for _ in 0..64 {
            if !self.nic.is_due() {
                break;
            }
            self.nic.transmit(now).expect("the simulated port works");
        }
    }
}

/// Two MRs of which only the first is open.
fn register(nic: &mut Nic, pd: PdId, shared: &Shared) -> [u32; 2] {
    let mut reg = |half: usize, access| {
        let memory = Some(Memory::Shared(Arc::clone(&shared.halves[half])));
        let (iova, length) = ((half * OPEN) as u64, OPEN as u64);
        nic.reg_mr(MemorySpec { pd, iova, length, access, memory, owner: OWNER })
            .expect("nothing impossible")
    };
    [reg(0, everything()), reg(1, Access::default())]
}

/// Makes rings.
struct Rings<'a> {
    shared: &'a mut Shared,
    places: Vec<Span>,
}

impl Rings<'_> {
    fn add(&mut self, shape: &Geometry) -> Window {
        let (span, window) = self.shared.alloc(shape.size().into()).expect("there is room");
        self.places.push(span);
        window
    }
}

/// A well-formed work request.
fn post(node: &mut Node, peer: (usize, [Qpn; TYPES.len()], u32), input: &mut Input<'_>) {
    let at = input.index(TYPES.len());
    let (rkey, remote_addr) = (Rkey(peer.2), u64::from(input.u16() & 0x1ff8));
    let op = match input.u8() % 6 {
        0 => SendOp::Send(Extra::None),
        1 => SendOp::Send(Extra::Imm(1)),
        2 => SendOp::Write { remote_addr, rkey, imm: None },
        3 => SendOp::Read { remote_addr, rkey },
        4 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        _ => SendOp::LocalInvalidate { key: rkey },
    };
    let path = DatagramPath::Vector(AddressVector::to(addr(peer.0)));
    let to = Destination { path, qpn: peer.1[at], qkey: QKEY };
    let to = (TYPES[at] == QpType::Ud).then_some(to);
    let wr = SendWr { wr_id: 1, op, to, fence: false, signaled: true, solicited: false };
    let length = match op {
        SendOp::FetchAdd { .. } => 8,
        _ => u32::from(input.u8()) * 16,
    };
    let sge = Sge { addr: u64::from(input.u16() & 0x0ff8), length, lkey: Lkey(node.keys[0]) };
    let Qp { sends, .. } = &mut node.qps[at];
    // A ring that was written over has no room, or seems to.
    let _ = match input.u8() & 3 {
        0 => sends.push(&wr, SendData::Inline(&[5; 48])),
        _ => sends.push(&wr, SendData::Sges(&[sge])),
    };
    sends.publish();
    node.nic.ring_doorbell(node.qps[at].qpn);
}

fn receive(node: &mut Node, input: &mut Input<'_>) {
    let at = input.index(TYPES.len());
    let length = u32::from(input.u8()) * 32;
    let sge = Sge { addr: 0, length, lkey: Lkey(node.keys[0]) };
    let _ = node.qps[at].recvs.push(2, &[sge]);
    let _ = node.qps[at].recvs.publish();
}

/// What the program asks of its daemon meanwhile.
fn verb(node: &mut Node, now: Instant, input: &mut Input<'_>) {
    let qpn = node.qps[input.index(TYPES.len())].qpn;
    let nic = &mut node.nic;
    match input.u8() % 6 {
        0 => {
            let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
            let _ = nic.modify_qp(now, qpn, &attr);
        }
        1 => drop(nic.query_cq(node.cq)),
        2 => drop(nic.query_srq(node.srq)),
        3 => {
            let _ = nic.modify_srq(node.srq, u32::from(input.u8() % 9));
        }
        4 => {
            let shape = Geometry::completion(31).expect("a possible size");
            if let Some((_, window)) = node.shared.alloc(shape.size().into()) {
                let _ = nic.resize_cq(node.cq, window, shape);
            }
        }
        _ => {
            let shape = Geometry::recv(15, 2).expect("a possible size");
            if let Some((_, window)) = node.shared.alloc(shape.size().into()) {
                let _ = nic.resize_srq(node.srq, window, shape);
            }
        }
    }
}

thread_local! {
    /// What the last run has left for the next.
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// What runs share, one after the other.
struct Kept {
    shared: [Shared; 2],
    scribbler: Scribbler,
}

impl Kept {
    fn new() -> Kept {
        Kept { shared: [Shared::new(), Shared::new()], scribbler: Scribbler::new() }
    }
}

/// Plays a program as the bytes say. Nothing that it writes reaches memory that it may not reach:
/// the half of its peer's that is closed.
pub fn run(bytes: &[u8]) {
    let Kept { shared, scribbler } = KEPT.take().unwrap_or_else(Kept::new);
    let [program, peer] = play(bytes, shared, &scribbler);
    let mut closed = [0; MEMORY - OPEN];
    peer.shared.memory.read(OPEN as u64, &mut closed).expect("it is as long");
    assert!(closed == [CLOSED; MEMORY - OPEN], "memory was written that is open to nobody");
    let shared = [program, peer].map(|Node { mut shared, .. }| {
        shared.clear();
        shared
    });
    KEPT.set(Some(Kept { shared, scribbler }));
}

fn play(bytes: &[u8], shared: [Shared; 2], scribbler: &Scribbler) -> [Node; 2] {
    let mut input = Input::new(bytes);
    // The one look at the clock: where virtual time begins means nothing.
    let mut now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [of_program, of_peer] = shared;
    let mut program = Node::new(&network, 0, now, of_program);
    let mut peer = Node::new(&network, 1, now, of_peer);
    let (ours, theirs) = ((addr(0), program.qpns()), (addr(1), peer.qpns()));
    program.connect(now, theirs);
    peer.connect(now, ours);
    for qp in &mut peer.qps {
        let sge = Sge { addr: 0, length: OPEN as u32, lkey: Lkey(peer.keys[0]) };
        for _ in 0..4 {
            qp.recvs.push(3, &[sge]).expect("there is room");
        }
        let _ = qp.recvs.publish();
    }

    // Some runs have a second thread that writes all the while.
    let is_concurrent = input.u8() & 0xf == 1;
    let scribbles: [Scribble; 4] =
        std::array::from_fn(|_| Scribble::new(&program.places, &mut input));
    let rings = Arc::clone(&program.shared.rings);
    let _scribbling = is_concurrent.then(|| scribbler.begin(&rings, scribbles));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 16 {
            0..=5 => Scribble::new(&program.places, &mut input).write(&rings),
            6..=9 => post(&mut program, (1, theirs.1, peer.keys[0]), &mut input),
            10 => post(&mut peer, (0, ours.1, program.keys[0]), &mut input),
            11 => receive(&mut program, &mut input),
            12 => verb(&mut program, now, &mut input),
            13 => program.nic.ring_doorbell(ours.1[input.index(TYPES.len())]),
            _ => now += Duration::from_micros(1 << (input.u8() % 21)),
        }
        program.turn(now);
        peer.turn(now);
    }
    for _ in 0..ROUNDS {
        // Not those at which QPs in ERR are looked at, of which there is no end.
        let timers = [&program, &peer].map(|node| node.nic.device().poll_timeout());
        let next = timers.into_iter().chain([network.next_event()]).flatten().min();
        now = next.map_or(now + LOOKED_AT, |next| next.max(now + Duration::from_nanos(1)));
        program.turn(now);
        peer.turn(now);
        if next.is_none() {
            break;
        }
    }
    [program, peer]
}
