//! Two engines with QPs of all transports, and somebody between them who sees, changes, forges,
//! repeats and loses packets.

use super::{Input, Recent};
use crate::simulation::host::{RECV_WR_ID, SimHost};
use crate::simulation::queues::{Entry, send_wqe};
use crate::simulation::world::{EndAttr, NodeConfig, as_datagrams, everything, without_retries};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use urxe_engine::{CongestionControl, WireForm};
use urxe_engine::{CqId, Device, MrSpec, PdId, QpInit, QueueId, RecvSource, ShareId, SrqInit};
use urxe_types::{
    AddressVector, DatagramPath, Destination, Extra, FlushPlacement, FlushSelectivity, Lkey,
    PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, RecvWqe, Rkey, SendOp, SendWqe, Sge,
};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{Bth, DONT_FRAGMENT, Flow, Ident, Opcode, Outer, Packet, icrc};

/// Steps of one run: enough for a few messages of each kind and what disturbs them.
const STEPS: usize = 300;

/// Bytes of each side's memory, and the address of the first.
const MEMORY: usize = 1 << 14;
const BASE: u64 = 0x10_0000;

const PD: PdId = PdId(1);
const QKEY: Qkey = Qkey(0x1234);
const MTU: PathMtu = PathMtu::Mtu256;

/// Places of a send queue and of a receive queue.
const PLACES: usize = 8;

/// Rounds after which everything that was posted has ended.
const ROUNDS: usize = 5_000;

/// A packet on its way.
#[derive(Clone)]
struct Mail {
    to: usize,
    flow: Flow,
    bytes: Vec<u8>,
}

/// A QP and its queues.
#[derive(Clone, Copy)]
struct End {
    qp_type: QpType,
    qpn: Qpn,
    sends: QueueId,
    recvs: QueueId,
}

struct Node {
    device: Device,
    host: SimHost,
    tx: TxBatch,
    ends: Vec<End>,
    key: u32,
    cq: CqId,
    posted: u64,
}

struct World {
    now: Instant,
    nodes: [Node; 2],
    wire: VecDeque<Mail>,
    /// The last packets, to be sent again and to be forged from.
    seen: Recent<Mail>,
}

fn addr(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + node as u8).into()
}

/// A path to the other node.
fn path_from(node: usize) -> AddressVector {
    AddressVector::to(addr(1 - node))
}

impl Node {
    fn new(number: usize, kind: u8) -> Node {
        let mut config = NodeConfig::plain(addr(number));
        if kind & 1 != 0 {
            config.tuning.wire = WireForm::Strict;
        }
        if kind & 2 != 0 {
            config.tuning.congestion = CongestionControl::Off;
        }
        let mut node = Node {
            device: config.device(),
            host: SimHost::default(),
            tx: TxBatch::new(TxLimits::segmented(16), 1 << 13),
            ends: Vec::new(),
            key: 0,
            cq: CqId(0),
            posted: 0,
        };
        node.cq = node.host.add_cq(if kind & 4 != 0 { 24 } else { 1 << 12 });
        let region = node.host.memory.add(vec![number as u8; MEMORY]);
        let spec =
            MrSpec { pd: PD, addr: BASE, length: MEMORY as u64, access: everything(), region };
        node.key = node.device.reg_mr(spec).expect("nothing impossible").lkey.0;
        node.host.learn_mr(node.key, region, BASE);
        let shared = node.host.add_recv_queue(PLACES);
        let init = SrqInit { pd: PD, queue: shared, limit: 0 };
        let srq = node.device.create_srq(init).expect("it is the first");
        for (qp_type, has_srq) in
            [(QpType::Rc, false), (QpType::Rc, true), (QpType::Uc, false), (QpType::Ud, false)]
        {
            let sends = node.host.add_send_queue(PLACES);
            let (recvs, recv) = match has_srq {
                true => (shared, RecvSource::Shared(srq)),
                false => {
                    let queue = node.host.add_recv_queue(PLACES);
                    (queue, RecvSource::Own(queue))
                }
            };
            let init = QpInit {
                qp_type,
                pd: PD,
                send_cq: node.cq,
                recv_cq: node.cq,
                send_queue: sends,
                recv,
                share: ShareId::default(),
            };
            let qpn = node.device.create_qp(init).expect("there are few");
            node.host.learn_qp(qpn, sends, node.cq);
            node.ends.push(End { qp_type, qpn, sends, recvs });
        }
        node
    }

    /// Memory of its own, that may be none.
    fn sge(&self, input: &mut Input<'_>) -> Sge {
        let length = match input.u8() {
            len @ 0..200 => u32::from(len) * 16,
            _ => u32::from(input.u16()),
        };
        let addr = BASE + u64::from(input.u16() & 0x3ff8);
        let lkey = if input.u8() == 0xff { Lkey(input.u32()) } else { Lkey(self.key) };
        Sge { addr, length, lkey }
    }

    fn post_recv(&mut self, end: End, input: &mut Input<'_>) {
        if self.host.recv_queue(end.recvs).room() == 0 {
            return;
        }
        self.posted += 1;
        let sges = vec![self.sge(input)];
        let wqe = RecvWqe { wr_id: RECV_WR_ID | self.posted, sges };
        self.host.recv_queue(end.recvs).post(Entry::Good(wqe));
        // A QP in ERR flushes it.
        self.device.ring_doorbell(end.qpn);
    }
}

/// A work request of any kind.
fn send(node: &Node, number: usize, peer: (u32, Qpn), input: &mut Input<'_>) -> SendWqe {
    let (rkey, peer_qpn) = (Rkey(peer.0), peer.1);
    let remote_addr = BASE + u64::from(input.u16() & 0x3ff8);
    let mut sges = vec![node.sge(input)];
    let op = match input.u8() % 10 {
        0 => SendOp::Send(Extra::None),
        1 => SendOp::Send(Extra::Imm(7)),
        2 => SendOp::Send(Extra::Invalidate(rkey)),
        3 => SendOp::Write { remote_addr, rkey, imm: None },
        4 => SendOp::Write { remote_addr, rkey, imm: Some(9) },
        5 => SendOp::Read { remote_addr, rkey },
        6 => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
        7 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        8 => SendOp::AtomicWrite { remote_addr, rkey },
        _ => SendOp::Flush {
            remote_addr,
            rkey,
            length: 64,
            placement: FlushPlacement::all(),
            selectivity: FlushSelectivity::Range,
        },
    };
    if matches!(
        op,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. }
    ) {
        sges[0].length = 8;
    }
    let mut wqe = send_wqe(node.posted + 1, op, sges);
    wqe.wr.fence = input.u8() & 7 == 7;
    wqe.wr.signaled = input.u8() & 3 != 3;
    let path = DatagramPath::Vector(path_from(number));
    wqe.wr.to = Some(Destination { path, qpn: peer_qpn, qkey: QKEY });
    wqe
}

impl World {
    fn new(kind: u8) -> World {
        let mut world = World {
            // The one look at the clock: where virtual time begins means nothing.
            now: Instant::now(),
            nodes: [Node::new(0, kind), Node::new(1, kind >> 3)],
            wire: VecDeque::new(),
            seen: Recent::default(),
        };
        for node in 0..2 {
            for at in 0..world.nodes[node].ends.len() {
                world.connect(node, at);
            }
        }
        world
    }

    /// Takes a QP from RESET to RTS.
    fn connect(&mut self, node: usize, at: usize) {
        let peer = self.nodes[1 - node].ends[at].qpn;
        let Node { device, host, ends, .. } = &mut self.nodes[node];
        let End { qp_type, qpn, .. } = ends[at];
        // 3 tries: a receive that never comes is an error, and not waited for without end.
        let attr = EndAttr { rnr_retry: 3, sq_psn: Psn::new(0xff_fff0), ..EndAttr::generous() };
        for change in [attr.init(), attr.rtr(addr(1 - node), peer, &attr, MTU), attr.rts()] {
            let change = match qp_type {
                QpType::Rc => change,
                QpType::Uc => without_retries(change),
                QpType::Ud => as_datagrams(&change, QKEY),
            };
            device.modify_qp(self.now, host, qpn, &change).expect("a change that is allowed");
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let action = input.u8();
        let node = usize::from(action >> 7);
        match action & 0x7f {
            0..=15 => self.post_send(node, input),
            16..=25 => {
                let end = self.end(node, input);
                self.nodes[node].post_recv(end, input);
            }
            26..=45 => self.deliver(),
            46..=48 => drop(self.wire.pop_front()),
            49..=70 => {
                if let Some(mut mail) = self.wire.pop_front() {
                    change(&mut mail, input);
                    self.hand_over(mail);
                }
            }
            71..=85 => self.repeat(input),
            86..=100 => self.forge(node, input),
            101..=105 => {
                let Node { device, host, .. } = &mut self.nodes[node];
                device.end_of_batch(self.now, host);
            }
            106 => self.set_state(node, input),
            107 => {
                let Node { device, .. } = &mut self.nodes[node];
                device.set_receive_fill(f32::from(input.u8()) / 255.0);
            }
            108..=112 => {
                for _ in 0..20 {
                    self.advance();
                    self.deliver_all();
                }
            }
            _ => {
                self.now += Duration::from_micros(1 << (input.u8() % 23));
                self.turn();
            }
        }
        // Nothing is sent in the midst of a batch, but mostly batches are short.
        if action & 1 == 0 {
            self.turn();
        }
    }

    fn end(&self, node: usize, input: &mut Input<'_>) -> End {
        let ends = &self.nodes[node].ends;
        ends[input.index(ends.len())]
    }

    fn post_send(&mut self, number: usize, input: &mut Input<'_>) {
        let at = input.index(self.nodes[number].ends.len());
        let peer = (self.nodes[1 - number].key, self.nodes[1 - number].ends[at].qpn);
        let node = &mut self.nodes[number];
        let End { sends, qpn, .. } = node.ends[at];
        if node.host.send_queue(sends).room() == 0 {
            return;
        }
        let wqe = send(node, number, peer, input);
        node.posted += 1;
        node.host.send_queue(sends).post(match input.u8() {
            0xff => Entry::Malformed(wqe.wr.wr_id),
            _ => Entry::Good(wqe),
        });
        node.device.ring_doorbell(qpn);
    }

    fn hand_over(&mut self, mail: Mail) {
        let Node { device, host, .. } = &mut self.nodes[mail.to];
        let ident = Ident::Known { ident: 0, fragment: DONT_FRAGMENT };
        let outer = Outer { flow: mail.flow, ident };
        device.handle_datagram(self.now, host, &outer, &mail.bytes);
        self.seen.push(mail);
    }

    fn deliver(&mut self) {
        if let Some(mail) = self.wire.pop_front() {
            self.hand_over(mail);
        }
    }

    fn deliver_all(&mut self) {
        while !self.wire.is_empty() {
            self.deliver();
        }
        self.turn();
    }

    /// A packet comes again, changed or not, to the other side or not.
    fn repeat(&mut self, input: &mut Input<'_>) {
        let Some(mut mail) = self.seen.one(input).cloned() else { return };
        let kind = input.u8();
        if kind & 1 != 0 {
            mail.to = 1 - mail.to;
            mail.flow = Flow { src: mail.flow.dst, dst: mail.flow.src, ..mail.flow };
            let qpn = self.end(mail.to, input).qpn;
            set_target(&mut mail, qpn);
        }
        if kind & 2 != 0 {
            change(&mut mail, input);
        }
        stamp(&mut mail);
        self.hand_over(mail);
    }

    /// A packet of any kind, near to what is expected.
    fn forge(&mut self, to: usize, input: &mut Input<'_>) {
        let opcode = input.one_of(Opcode::ALL);
        let qpn = match input.u8() {
            0xff => Qpn::GSI,
            0xfe => Qpn::MULTICAST,
            kind => self.nodes[to].ends[usize::from(kind) % self.nodes[to].ends.len()].qpn,
        };
        let info = self.nodes[to].device.query_qp(qpn);
        let (sq, rq) = info.map_or((Psn::new(0), Psn::new(0)), |info| (info.sq_psn, info.rq_psn));
        let near = if input.u8() & 1 == 0 { rq } else { sq };
        let bth = Bth::new(qpn, near + u32::from(input.u8()) - 128);
        let mut bytes = bth.emit(opcode).to_vec();
        let headers = opcode.header_len() - Bth::LEN;
        bytes.extend(input.bytes(headers));
        bytes.resize(Bth::LEN + headers, 0);
        // A key that opens something, where there is one.
        if input.u8() & 3 != 0 && headers >= 16 {
            let at = Bth::LEN + 8;
            let addr = BASE + u64::from(input.u16());
            bytes[at - 8..at].copy_from_slice(&addr.to_be_bytes());
            bytes[at..at + 4].copy_from_slice(&self.nodes[to].key.to_be_bytes());
        }
        let payload = usize::from(input.one_of(&[0u16, 4, 8, 64, 252, 256, 260, 1024, 4096]));
        bytes.resize(bytes.len() + payload, 0x55);
        bytes.extend([0; icrc::LEN]);
        let flow = Flow {
            src: addr(1 - to),
            dst: addr(to),
            src_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let mut mail = Mail { to, flow, bytes };
        stamp(&mut mail);
        self.hand_over(mail);
    }

    /// A program takes its QP to ERR, or connects it anew.
    fn set_state(&mut self, number: usize, input: &mut Input<'_>) {
        let at = input.index(self.nodes[number].ends.len());
        let node = &mut self.nodes[number];
        let End { qpn, sends, recvs, .. } = node.ends[at];
        let is_reset = input.u8() & 1 != 0;
        let state = Some(if is_reset { QpState::Reset } else { QpState::Err });
        let attr = QpAttr { state, ..QpAttr::default() };
        let device = &mut node.device;
        device.modify_qp(self.now, &mut node.host, qpn, &attr).expect("allowed in every state");
        if is_reset {
            node.host.send_queue(sends).rewind();
            // Those of an SRQ stay.
            if at != 1 {
                node.host.recv_queue(recvs).rewind();
            }
            node.host.events.clear();
            self.connect(number, at);
        }
    }

    /// Time goes on to the next thing that is waited for. Returns whether there was any.
    fn advance(&mut self) -> bool {
        let next = self.nodes.iter().filter_map(|node| node.device.poll_timeout()).min();
        self.now = next.map_or(self.now, |next| next.max(self.now));
        self.turn();
        next.is_some()
    }

    /// The engines see to their timers and send.
    fn turn(&mut self) {
        for number in 0..2 {
            let Node { device, host, tx, cq, .. } = &mut self.nodes[number];
            device.end_of_batch(self.now, host);
            device.handle_timeout(self.now, host);
            let mut empty = 0;
            loop {
                let more = device.poll_transmit(self.now, host, tx);
                empty = if tx.is_empty() { empty + 1 } else { 0 };
                assert!(empty < 1_000, "the engine works and sends nothing");
                for datagram in tx.datagrams() {
                    if self.wire.len() < 256 {
                        let bytes = datagram.bytes.to_vec();
                        let mut mail = Mail { to: 1 - number, flow: *datagram.flow, bytes };
                        stamp(&mut mail);
                        self.wire.push_back(mail);
                    }
                }
                tx.clear();
                if !more {
                    break;
                }
            }
            while host.cq(*cq).poll().is_some() {}
        }
    }
}

fn stamp(mail: &mut Mail) {
    if mail.bytes.len() >= Bth::LEN + icrc::LEN {
        icrc::stamp(&mail.flow, 0, &mut mail.bytes);
    }
}

fn set_target(mail: &mut Mail, qpn: Qpn) {
    if let Some(target) = mail.bytes.get_mut(5..8) {
        target.copy_from_slice(&qpn.get().to_be_bytes()[1..]);
    }
}

/// Changes a few fields of a packet, and mostly has its ICRC right.
fn change(mail: &mut Mail, input: &mut Input<'_>) {
    for _ in 0..1 + input.u8() % 3 {
        match input.u8() % 8 {
            0 => {
                let len = usize::from(input.u16()) % (mail.bytes.len() + 1);
                mail.bytes.truncate(len / 4 * 4);
            }
            1 => {
                let more = usize::from(input.u8()) * 4;
                mail.bytes.resize(mail.bytes.len() + more, 0xaa);
            }
            2 => mail.bytes.iter_mut().take(1).for_each(|byte| *byte = input.u8()),
            3 => {
                let Ok(packet) = Packet::parse(&mail.bytes) else { continue };
                let psn = packet.headers.bth.psn + u32::from(input.u8()) - 128;
                mail.bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
            }
            4 => mail.flow.traffic_class = input.u8(),
            5 => mail.flow.src_port = input.u16(),
            _ => {
                let at = usize::from(input.u8() % 64);
                let value = input.u8();
                if let Some(byte) = mail.bytes.get_mut(at) {
                    *byte = value;
                }
            }
        }
    }
    if input.u8() != 0xff {
        stamp(mail);
    }
}

/// Plays programs, a wire and time as the bytes say. However it went, everything that was posted
/// ends once the wire carries what it is given.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(input.u8());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    for _ in 0..ROUNDS {
        world.deliver_all();
        let waits = world.advance();
        let is_idle = |node: &mut Node| {
            let ends = node.ends.clone();
            ends.iter().all(|end| node.host.send_queue(end.sends).is_idle())
        };
        if world.wire.is_empty() && (!waits || world.nodes.iter_mut().all(is_idle)) {
            break;
        }
    }
    for node in &mut world.nodes {
        for end in node.ends.clone() {
            let state = node.device.query_qp(end.qpn).map(|info| info.state);
            assert!(
                node.host.send_queue(end.sends).is_idle(),
                "what was posted to QP {} in {state:?} never ended",
                end.qpn
            );
        }
    }
}
