//! Engines, their hosts and the network between them, in virtual time.

use crate::simulation::host::{SimHost, has_sink};
use crate::simulation::plan::{PlannedRecv, PlannedSend};
use crate::simulation::queues::Entry;
use crate::simulation::trace::{Direction, Trace};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_engine::{
    CqId, Device, DeviceConfig, MrSpec, PdId, QpInit, QueueId, RecvSource, RegionId, ShareId,
    Tuning,
};
use urxe_port::sim::{Link, SimNetwork, SimPort};
use urxe_port::{Port, RxBatch, SendOutcome};
use urxe_types::{
    Access, AddressVector, MwType, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, Rkey, SendOp,
    SendWqe, SendWr, Slot,
};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Flow, Outer, SourcePorts};

/// One machine: an engine, its host, and its port to the network.
pub struct Node {
    /// The engine.
    pub device: Device,
    /// The host of its programs.
    pub host: SimHost,
    pub addr: IpAddr,
    number: usize,
    port: SimPort,
    tx: TxBatch,
    /// Datagrams that it takes in before it answers.
    burst: usize,
    /// What arrived, if it is recorded.
    watched: Option<Vec<(Flow, Vec<u8>)>>,
}

/// How a node works, apart from its programs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub addr: IpAddr,
    /// Seed of the engine's keys and QPNs.
    pub seed: u64,
    /// How long the engine waits at least before it probes for a lost tail.
    pub min_probe: Duration,
    /// How the engine behaves on the wire.
    pub tuning: Tuning,
    /// Datagrams that it takes in before it answers.
    pub burst: usize,
    /// Bytes of datagrams that one transmit batch has room for.
    pub tx_capacity: usize,
}

impl NodeConfig {
    /// A node as a daemon would be: large batches.
    pub fn plain(addr: IpAddr) -> NodeConfig {
        let min_probe = Duration::from_micros(100);
        let tuning = Tuning::default();
        NodeConfig { addr, seed: 1, min_probe, tuning, burst: 64, tx_capacity: 1 << 18 }
    }

    /// Its engine.
    pub fn device(&self) -> Device {
        Device::new(DeviceConfig {
            gids: vec![Some(self.addr)],
            source_ports: SourcePorts::All,
            active_mtu: PathMtu::Mtu4096,
            local_addrs: BTreeSet::new(),
            guarded_addrs: BTreeSet::new(),
            slot: Slot::ALONE,
            seed: self.seed,
            min_probe: self.min_probe,
            tuning: self.tuning,
        })
    }
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// Its lkey and rkey.
    pub key: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// The memory behind it.
    pub region: RegionId,
}

/// One end of a connection: a QP, and the queues that it uses.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The node it lives on.
    pub node: usize,
    pub qpn: Qpn,
    pub send_queue: QueueId,
    pub recv_queue: QueueId,
    /// Where its sends complete.
    pub send_cq: CqId,
    /// Where its receives complete.
    pub recv_cq: CqId,
}

/// What one end of a connection is set up with.
#[derive(Clone, Debug)]
pub struct EndAttr {
    /// What the peer may do.
    pub access: Access,
    /// Its first PSN.
    pub sq_psn: Psn,
    /// READs and atomics it may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics its peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR wait.
    pub min_rnr_timer: u8,
    /// Code of the ACK timeout.
    pub timeout: u8,
    /// Tries after a timeout or sequence error.
    pub retry_cnt: u8,
    /// Tries after an RNR NAK.
    pub rnr_retry: u8,
    /// Chooses the UDP source port.
    pub flow_label: u32,
}

impl EndAttr {
    /// Everything allowed, every try.
    pub fn generous() -> EndAttr {
        EndAttr {
            access: everything(),
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            flow_label: 0,
        }
    }

    /// `modify_qp` of this end from RESET to INIT.
    pub fn init(&self) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(self.access),
            ..QpAttr::default()
        }
    }

    /// `modify_qp` of this end from INIT to RTR, connected with the QP `qpn` of another address,
    /// whose attributes are `peer`.
    pub fn rtr(&self, dgid: IpAddr, qpn: Qpn, peer: &EndAttr, mtu: PathMtu) -> QpAttr {
        let av = AddressVector {
            dgid,
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: self.flow_label,
        };
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(mtu),
            dest_qpn: Some(qpn),
            rq_psn: Some(peer.sq_psn),
            max_dest_rd_atomic: Some(self.max_dest_rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            ..QpAttr::default()
        }
    }

    /// `modify_qp` of this end from RTR to RTS.
    pub fn rts(&self) -> QpAttr {
        QpAttr {
            state: Some(QpState::Rts),
            timeout: Some(self.timeout),
            retry_cnt: Some(self.retry_cnt),
            rnr_retry: Some(self.rnr_retry),
            sq_psn: Some(self.sq_psn),
            max_rd_atomic: Some(self.max_rd_atomic),
            ..QpAttr::default()
        }
    }
}

/// All rights.
pub fn everything() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
        | Access::FLUSH_GLOBAL
}

/// The attributes that UC has of these.
pub fn without_retries(attr: QpAttr) -> QpAttr {
    QpAttr {
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_cnt: None,
        rnr_retry: None,
        ..attr
    }
}

/// The attributes that UD has of these, with this Q_Key.
pub fn as_datagrams(attr: &QpAttr, qkey: Qkey) -> QpAttr {
    let is_init = attr.state == Some(QpState::Init);
    QpAttr {
        state: attr.state,
        pkey_index: attr.pkey_index,
        port: attr.port,
        qkey: is_init.then_some(qkey),
        sq_psn: attr.sq_psn,
        ..QpAttr::default()
    }
}

impl Node {
    fn new(number: usize, config: &NodeConfig, port: SimPort) -> Node {
        let tx_limits = port.caps().tx_limits;
        Node {
            device: config.device(),
            host: SimHost::default(),
            addr: config.addr,
            number,
            port,
            tx: TxBatch::new(tx_limits, config.tx_capacity),
            burst: config.burst,
            watched: None,
        }
    }

    /// Registers memory with this content.
    pub fn reg_mr(&mut self, pd: PdId, addr: u64, access: Access, content: Vec<u8>) -> Mr {
        let len = content.len();
        let region = self.host.memory.add(content);
        self.reg_region(pd, addr, access, len, region)
    }

    /// Registers so many zeros.
    pub fn reg_zeros(&mut self, pd: PdId, addr: u64, access: Access, len: usize) -> Mr {
        let region = self.host.memory.add_zeros(len);
        self.reg_region(pd, addr, access, len, region)
    }

    /// Registers an MR of this length to which memory is added later.
    pub fn reg_without_memory(&mut self, pd: PdId, addr: u64, access: Access, len: usize) -> Mr {
        let region = self.host.memory.add(Vec::new());
        self.reg_region(pd, addr, access, len, region)
    }

    fn reg_region(
        &mut self,
        pd: PdId,
        addr: u64,
        access: Access,
        len: usize,
        region: RegionId,
    ) -> Mr {
        let length = len as u64;
        let key = self.device.reg_mr(MrSpec { pd, addr, length, access, region });
        let key = key.expect("the simulation registers nothing impossible").lkey.0;
        self.host.learn_mr(key, region, addr);
        Mr { key, addr, region }
    }

    /// Allocates a memory window; its first key.
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> u32 {
        let Rkey(rkey) =
            self.device.alloc_mw(pd, mw_type).expect("the simulation stays far below the limits");
        rkey
    }

    /// When the next datagram arrives or timer expires here.
    fn next_event(&self) -> Option<Instant> {
        [self.port.poll_timeout(), self.device.poll_timeout()].into_iter().flatten().min()
    }

    /// Handles all datagrams that have arrived, and the timers.
    fn turn(&mut self, now: Instant, rx: &mut RxBatch, trace: &mut Trace) {
        while self.port.recv(now, rx).expect("the simulated port works") > 0 {
            if let Some(fill) = self.port.receive_fill(now) {
                self.device.set_receive_fill(fill);
            }
            let mut taken = 0;
            while let Some((outer, bytes)) = rx.next_datagram() {
                trace.datagram(now, self.number, Direction::In, bytes);
                if let Some(watched) = &mut self.watched {
                    watched.push((outer.flow, bytes.to_vec()));
                }
                self.device.handle_datagram(now, &mut self.host, outer, bytes);
                taken += 1;
                if taken % self.burst == 0 {
                    self.device.end_of_batch(now, &mut self.host);
                    self.transmit(now, trace);
                }
            }
            self.device.end_of_batch(now, &mut self.host);
            self.transmit(now, trace);
        }
        self.device.handle_timeout(now, &mut self.host);
        self.transmit(now, trace);
    }

    /// Sends all that the engine has to send.
    fn transmit(&mut self, now: Instant, trace: &mut Trace) {
        let mut empty_batches = 0;
        loop {
            let more = self.device.poll_transmit(now, &mut self.host, &mut self.tx);
            empty_batches = if self.tx.is_empty() { empty_batches + 1 } else { 0 };
            assert!(empty_batches < MAX_EMPTY_BATCHES, "the engine works and sends nothing");
            assert!(self.host.memory.is_synced(), "packets were built before a sync");
            for datagram in self.tx.datagrams() {
                trace.datagram(now, self.number, Direction::Out, datagram.bytes);
            }
            let outcome = self.port.send(now, &mut self.tx).expect("the simulated port works");
            assert_eq!(outcome, SendOutcome::Done, "a simulated port takes everything");
            if !more {
                break;
            }
        }
    }
}

/// An engine that has more to do, but nothing to send, so many times, hangs in a loop.
const MAX_EMPTY_BATCHES: u32 = 10_000;

thread_local! {
    /// What the networks of this thread's worlds have delivered, once they are dropped.
    static DELIVERED: Cell<u64> = const { Cell::new(0) };
}

/// How many datagrams arrived in those worlds of this thread that were dropped since this was last
/// asked.
pub fn take_delivered() -> u64 {
    DELIVERED.take()
}

/// Nodes on one network.
pub struct World {
    /// The machines.
    pub nodes: Vec<Node>,
    /// What happened.
    pub trace: Trace,
    /// What connects them.
    pub network: SimNetwork,
    now: Instant,
    rx: RxBatch,
}

impl Drop for World {
    fn drop(&mut self) {
        DELIVERED.set(DELIVERED.get() + self.network.counters().delivered);
    }
}

impl World {
    /// A world of these nodes on a network in which every link is like `link`; what happens by
    /// chance follows from `seed`.
    pub fn new(seed: u64, link: Link, nodes: &[NodeConfig], prints: bool) -> World {
        // The one look at the clock: where virtual time begins means nothing.
        let start = Instant::now();
        let network = SimNetwork::new(seed, link);
        let node = |(number, config): (usize, &NodeConfig)| {
            let port = network.attach(config.addr).expect("every node has its own address");
            Node::new(number, config, port)
        };
        let nodes = nodes.iter().enumerate().map(node).collect();
        let trace = Trace::new(start, prints);
        World { nodes, trace, network, now: start, rx: RxBatch::new(1) }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How long the world has existed.
    pub fn elapsed(&self) -> Duration {
        self.trace.elapsed(self.now)
    }

    /// Lets the engines transmit what their programs have posted.
    pub fn transmit(&mut self) {
        for node in &mut self.nodes {
            node.transmit(self.now, &mut self.trace);
        }
    }

    /// When the next datagram arrives or timer expires.
    pub fn next_event(&self) -> Option<Instant> {
        self.nodes.iter().filter_map(Node::next_event).min()
    }

    /// Advances time to the next event, or to `until`.
    pub fn step(&mut self, until: Instant) {
        self.transmit();
        self.now = self.now.max(self.next_event().map_or(until, |next| next.min(until)));
        for node in &mut self.nodes {
            node.turn(self.now, &mut self.rx, &mut self.trace);
        }
    }

    /// Keeps from now on what arrives at a node.
    pub fn watch(&mut self, node: usize) {
        self.nodes[node].watched = Some(Vec::new());
    }

    /// What arrived at watched nodes since the last call.
    pub fn take_watched(&mut self) -> Vec<(Flow, Vec<u8>)> {
        let watched = self.nodes.iter_mut().filter_map(|node| node.watched.as_mut());
        watched.flat_map(std::mem::take).collect()
    }

    /// Delivers a forged datagram to a node.
    pub fn inject(&mut self, node: usize, outer: &Outer, bytes: &[u8]) {
        self.trace.datagram(self.now, node, Direction::In, bytes);
        let Node { device, host, .. } = &mut self.nodes[node];
        device.handle_datagram(self.now, host, outer, bytes);
        device.end_of_batch(self.now, host);
    }

    /// Creates a QP with queues of so many places.
    pub fn create_qp(
        &mut self,
        node: usize,
        pd: PdId,
        (send_cq, recv_cq): (CqId, CqId),
        (sends, recvs): (usize, usize),
    ) -> End {
        let recv_queue = self.nodes[node].host.add_recv_queue(recvs);
        let recv = RecvSource::Own(recv_queue);
        self.create_qp_of(node, QpType::Rc, pd, (send_cq, recv_cq), sends, recv)
    }

    /// Creates a QP of any transport service, with a send queue of so many places.
    pub fn create_qp_of(
        &mut self,
        node: usize,
        qp_type: QpType,
        pd: PdId,
        (send_cq, recv_cq): (CqId, CqId),
        sends: usize,
        recv: RecvSource,
    ) -> End {
        let Node { device, host, .. } = &mut self.nodes[node];
        let send_queue = host.add_send_queue(sends);
        let recv_queue = match recv {
            RecvSource::Own(queue) => queue,
            RecvSource::Shared(srq) => device.query_srq(srq).expect("the SRQ is there").init.queue,
        };
        // What is of one protection domain is of one program.
        let share = ShareId(pd.0.into());
        let qpn = device
            .create_qp(QpInit { share, qp_type, pd, send_cq, recv_cq, send_queue, recv })
            .expect("the simulation stays far below the limits");
        host.learn_qp(qpn, send_queue, send_cq);
        End { node, qpn, send_queue, recv_queue, send_cq, recv_cq }
    }

    /// Attaches a QP to a multicast group; its port joins if it is the first.
    pub fn attach_mcast(&mut self, end: &End, group: IpAddr) {
        let Node { device, port, .. } = &mut self.nodes[end.node];
        if device.attach_mcast(end.qpn, group).expect("a UD QP and a group") {
            port.join(group).expect("the simulated port works");
        }
    }

    /// `modify_qp`.
    ///
    /// # Panics
    /// If the engine refuses.
    pub fn modify(&mut self, end: &End, attr: &QpAttr) {
        let Node { device, host, .. } = &mut self.nodes[end.node];
        device.modify_qp(self.now, host, end.qpn, attr).expect("a change that is allowed");
    }

    /// Takes a QP to a state that needs no attributes: RESET, ERR.
    pub fn set_state(&mut self, end: &End, state: QpState) {
        self.note(end, format_args!("goes to {state:?}"));
        self.modify(end, &QpAttr { state: Some(state), ..QpAttr::default() });
        if state == QpState::Reset {
            let host = &mut self.nodes[end.node].host;
            host.send_queue(end.send_queue).rewind();
            host.recv_queue(end.recv_queue).rewind();
        }
    }

    /// Destroys a QP. Returns whether it was there.
    pub fn destroy_qp(&mut self, end: &End) -> bool {
        self.nodes[end.node].device.destroy_qp(self.now, end.qpn)
    }

    /// The state of a QP.
    pub fn state(&self, end: &End) -> Option<QpState> {
        self.nodes[end.node].device.query_qp(end.qpn).map(|info| info.state)
    }

    /// Takes an end from RESET to INIT, where receives can be posted.
    pub fn to_init(&mut self, end: &End, attr: &EndAttr) {
        self.modify(end, &attr.init());
    }

    /// Takes an end from INIT to RTS. `attr` is its own, `peer_attr` the other end's.
    pub fn to_rts(
        &mut self,
        end: &End,
        attr: &EndAttr,
        peer: &End,
        peer_attr: &EndAttr,
        mtu: PathMtu,
    ) {
        let dgid = self.nodes[peer.node].addr;
        let qp_type = self.nodes[end.node].device.query_qp(end.qpn).map(|info| info.init.qp_type);
        let of_its_type = |attr: QpAttr| match qp_type {
            Some(QpType::Uc) => without_retries(attr),
            _ => attr,
        };
        self.modify(end, &of_its_type(attr.rtr(dgid, peer.qpn, peer_attr, mtu)));
        self.modify(end, &of_its_type(attr.rts()));
    }

    /// Takes a UD QP from RESET to RTS.
    pub fn start_datagrams(&mut self, end: &End, qkey: Qkey, sq_psn: Psn) {
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(qkey),
            ..QpAttr::default()
        };
        self.modify(end, &init);
        self.modify(end, &QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() });
        let state = Some(QpState::Rts);
        self.modify(end, &QpAttr { state, sq_psn: Some(sq_psn), ..QpAttr::default() });
    }

    /// Takes both ends from RESET to RTS.
    pub fn connect(&mut self, ends: &[End; 2], attrs: &[EndAttr; 2], mtu: PathMtu) {
        let [a, b] = ends;
        let [attr_a, attr_b] = attrs;
        self.to_init(a, attr_a);
        self.to_init(b, attr_b);
        self.to_rts(a, attr_a, b, attr_b, mtu);
        self.to_rts(b, attr_b, a, attr_a, mtu);
    }

    /// Binds a window on a QP, now, without a completion.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn bind(&mut self, end: &End, bind: SendOp) {
        let SendOp::BindMw { new_rkey, .. } = bind else { panic!("{bind:?} is no bind") };
        let wr = SendWr { op: bind, ..SendWr::default() };
        let wqe = SendWqe { wr, ..SendWqe::default() };
        self.nodes[end.node].host.send_queue(end.send_queue).post(Entry::Good(wqe));
        self.ring(end);
        self.transmit();
        let window = self.nodes[end.node].device.query_mw(new_rkey).expect("it is allocated");
        assert!(window.bound.is_some_and(|_| window.rkey == new_rkey));
    }

    /// Posts a send; the doorbell is a matter of its own.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn post_send(&mut self, end: &End, send: &PlannedSend) {
        let host = &mut self.nodes[end.node].host;
        if has_sink(&send.wqe.wr.op) {
            host.learn_sink(send.wqe.wr.wr_id, &send.wqe.sges);
        }
        host.send_queue(end.send_queue).post(match send.malformed {
            false => Entry::Good(send.wqe.clone()),
            true => Entry::Malformed(send.wqe.wr.wr_id),
        });
    }

    /// Posts a receive.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn post_recv(&mut self, end: &End, recv: &PlannedRecv) {
        let host = &mut self.nodes[end.node].host;
        host.learn_sink(recv.wqe.wr_id, &recv.wqe.sges);
        host.recv_queue(end.recv_queue).post(match recv.malformed {
            false => Entry::Good(recv.wqe.clone()),
            true => Entry::Malformed(recv.wqe.wr_id),
        });
    }

    /// Adds an action of a program to the trace.
    pub fn note(&self, end: &End, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, end.node, format_args!("{} {what}", end.qpn));
    }

    /// Rings the doorbell.
    pub fn ring(&mut self, end: &End) {
        self.nodes[end.node].device.ring_doorbell(end.qpn);
    }
}
