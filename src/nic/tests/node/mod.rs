//! A data path and a program's end of its rings, on a simulated network.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_engine::Tuning;
use urxe_nic::{
    Config, CqSpec, EventPipe, EventTarget, Memory, MemorySpec, Nic, OwnerId, QpSpec, Receives,
    Ring,
};
use urxe_port::Port;
use urxe_port::sim::SimNetwork;
use urxe_shm::memory::arena::Arena;
use urxe_shm::memory::region::{Mapping, Window, create_memfd};
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::layout::CqEntry;
use urxe_shm::ring::{CqConsumer, CqProducer, RqConsumer, RqProducer, SqConsumer, SqProducer};
use urxe_types::{
    Access, AddressVector, Extra, Lkey, PathMtu, Psn, QpAttr, QpState, QpType, Qpn, SendData,
    SendOp, SendWr, Sge, Slot,
};

pub(crate) const OWNER: OwnerId = OwnerId(7);

/// Bytes of registered memory: enough for a message of many packets.
pub(crate) const MEMORY: usize = 1 << 20;

/// What may be done with the memory.
const EVERYTHING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A data path with one connected QP, and its program's ends of everything.
pub(crate) struct Node {
    pub(crate) nic: Nic,
    pub(crate) addr: IpAddr,
    pub(crate) qpn: Qpn,
    pub(crate) sends: SqProducer,
    pub(crate) recvs: RqProducer,
    pub(crate) completions: CqConsumer,
    pub(crate) memory: Mapping,
    pub(crate) lkey: u32,
    pub(crate) events: OwnedFd,
    _arena: Arena,
}

fn ring(arena: &mut Arena, shape: &Geometry) -> Window {
    arena.alloc(shape.size().into()).unwrap().1
}

impl Node {
    pub(crate) fn new(network: &SimNetwork, addr: IpAddr, now: Instant) -> Node {
        Node::on(Box::new(network.attach(addr).unwrap()), addr, now)
    }

    /// One on a port that has this address.
    pub(crate) fn on(port: Box<dyn Port>, addr: IpAddr, now: Instant) -> Node {
        let gids = vec![Some(addr)];
        let mut nic = Nic::new(
            port,
            Config {
                gids,
                active_mtu: PathMtu::Mtu1024,
                slot: Slot::ALONE,
                seed: 1,
                tuning: Tuning::default(),
            },
            now,
        );
        let mut arena = Arena::new(1 << 20).unwrap();

        let (pipe, events) = EventPipe::new().unwrap();
        let channel = nic.create_channel(pipe).unwrap();
        let (pipe, _) = EventPipe::new().unwrap();
        let target = EventTarget::new(nic.create_async_channel(pipe, 1, 1).unwrap(), 0, 5);

        let shape = Geometry::completion(15).unwrap();
        let window = ring(&mut arena, &shape);
        let producer = CqProducer::create(window.clone(), shape).unwrap();
        let completions = CqConsumer::attach(window, shape).unwrap();
        let notifier = CompletionNotifier::new(Arc::clone(arena.doorbells())).unwrap();
        let cq = nic.create_cq(CqSpec {
            ring: Ring { ring: producer, shape },
            notifier,
            channel: Some(channel),
            events: target,
            owner: OWNER,
        });
        let cq = cq.unwrap();

        let send_shape = Geometry::send(15, 1, 0).unwrap();
        let send = ring(&mut arena, &send_shape);
        let recv_shape = Geometry::recv(15, 1).unwrap();
        let recv = ring(&mut arena, &recv_shape);
        let pd = nic.alloc_pd().unwrap();
        let qpn = nic.create_qp(QpSpec {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send: Ring {
                ring: SqConsumer::create(send.clone(), send_shape, false).unwrap(),
                shape: send_shape,
            },
            all_signaled: true,
            recv: Receives::Own(Ring {
                ring: RqConsumer::create(recv.clone(), recv_shape).unwrap(),
                shape: recv_shape,
            }),
            events: target,
            owner: OWNER,
        });
        let memfd = create_memfd("ring to ring", MEMORY as u64).unwrap();
        let map = || Mapping::new(&memfd, 0, MEMORY).unwrap();
        let lkey = nic.reg_mr(MemorySpec {
            pd,
            iova: 0,
            length: MEMORY as u64,
            access: EVERYTHING,
            memory: Some(Memory::Shared(map().into())),
            owner: OWNER,
        });
        Node {
            nic,
            addr,
            qpn: qpn.unwrap(),
            sends: SqProducer::attach(send, send_shape).unwrap(),
            recvs: RqProducer::attach(recv, recv_shape).unwrap(),
            completions,
            memory: map(),
            lkey: lkey.unwrap(),
            events,
            _arena: arena,
        }
    }

    pub(crate) fn connect(&mut self, now: Instant, peer: (IpAddr, Qpn)) {
        let init = QpAttr {
            state: Some(QpState::Init),
            access: Some(EVERYTHING),
            pkey_index: Some(0),
            port: Some(1),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AddressVector {
                dgid: peer.0,
                sgid_index: 0,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            }),
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(peer.1),
            rq_psn: Some(Psn::new(100)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(100)),
            max_rd_atomic: Some(1),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            self.nic.modify_qp(now, self.qpn, &attr).unwrap();
        }
    }

    pub(crate) fn turn(&mut self, now: Instant) {
        while self.nic.receive(now).unwrap() {}
        self.nic.handle_timers(now).unwrap();
        while self.nic.is_due() {
            self.nic.transmit(now).unwrap();
        }
    }

    /// Posts a receive of so many bytes at the start of the memory.
    pub(crate) fn post_recv(&mut self, wr_id: u64, length: u32) {
        self.recvs.push(wr_id, &[Sge { addr: 0, length, lkey: Lkey(self.lkey) }]).unwrap();
        let _ = self.recvs.publish();
    }

    /// Sends so many bytes of the start of the memory.
    pub(crate) fn send(&mut self, wr_id: u64, length: u32) {
        self.post(wr_id, SendOp::Send(Extra::None), length);
        self.ring_doorbell();
    }

    /// Posts what has its bytes at the start of the memory, and does not ring the doorbell.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, length: u32) {
        let wr = SendWr { wr_id, op, to: None, fence: false, signaled: true, solicited: false };
        let sge = Sge { addr: 0, length, lkey: Lkey(self.lkey) };
        self.sends.push(&wr, SendData::Sges(&[sge])).unwrap();
        self.sends.publish();
    }

    pub(crate) fn ring_doorbell(&mut self) {
        self.nic.ring_doorbell(self.qpn);
    }

    pub(crate) fn poll(&mut self) -> Option<CqEntry> {
        let mut found = None;
        self.completions.poll(1, |entry| found = Some(*entry)).unwrap();
        found
    }
}

/// Lets time pass until neither has anything to do.
pub(crate) fn run(network: &SimNetwork, nodes: [&mut Node; 2], now: &mut Instant) {
    let [a, b] = nodes;
    let end = *now + Duration::from_secs(1);
    while *now < end {
        a.turn(*now);
        b.turn(*now);
        let deadlines = [network.next_event(), a.nic.deadline(), b.nic.deadline()];
        let Some(next) = deadlines.into_iter().flatten().min() else { break };
        *now = next.max(*now + Duration::from_nanos(1));
    }
}

/// Two of a network of their own whose QPs are connected.
pub(crate) fn connected(network: &SimNetwork, now: Instant) -> [Node; 2] {
    let [mut a, mut b] =
        ["10.0.0.1", "10.0.0.2"].map(|addr| Node::new(network, addr.parse().unwrap(), now));
    connect(now, [&mut a, &mut b]);
    [a, b]
}

pub(crate) fn connect(now: Instant, [a, b]: [&mut Node; 2]) {
    let (to_a, to_b) = ((a.addr, a.qpn), (b.addr, b.qpn));
    a.connect(now, to_b);
    b.connect(now, to_a);
}
