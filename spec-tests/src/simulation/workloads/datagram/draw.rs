//! Draws the datagram programs and their messages.

use super::{DatagramWorkload, DatagramWorkloads, Message, Network, Receives, SendState, WR_ID};
use crate::rng::Rng;
use crate::simulation::queues::send_wqe;
use crate::simulation::scenario::{NetworkProfile, draw_cqs, draw_psn};
use crate::simulation::workloads::rc::Pace;
use crate::simulation::world::{End, EndAttr, Mr, World, everything};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use urxe_engine::{PdId, RecvSource, SrqId, SrqInit};
use urxe_port::{Chance, Impairment};
use urxe_types::{
    AddressVector, DatagramPath, Destination, Extra, Lkey, PathMtu, Qkey, QpType, Qpn, Rkey,
    SendOp, Sge, WcStatus,
};
use urxe_wire::GRH_LEN;

/// The protection domain of shared receives, which is not that of the QPs.
const SRQ_PD: PdId = PdId(8);

/// Q_Keys that QPs have.
const QKEYS: [Qkey; 2] = [Qkey(0x1111_1111), Qkey(0x2222_2222)];

/// The largest datagram: the link's MTU.
const MAX_DATAGRAM: usize = 4096;

/// Bytes that one program sends at most.
const BUDGET: usize = 60_000;

impl DatagramWorkloads {
    /// Draws datagram programs on all nodes: connected ones (UC, and RC on shared receive queues),
    /// datagrams to one or to many. Their QPs are of one protection domain. They are about to
    /// begin.
    pub fn draw(
        rng: &mut Rng,
        world: &mut World,
        profile: &NetworkProfile,
        pd: PdId,
    ) -> DatagramWorkloads {
        let any = |chance: fn(&Impairment) -> Chance| {
            profile.links().any(|link| chance(&link.impairment) != Chance::NEVER)
        };
        let network = Network {
            duplicates: any(|impairment| impairment.duplicate),
            reorders: any(|impairment| impairment.reorder),
        };
        let mut all = DatagramWorkloads { network, ..DatagramWorkloads::none(pd) };
        for node in 0..world.nodes.len() {
            all.add_srq(rng, world, node);
        }
        for _ in 0..rng.range(0..=3) {
            all.add_connection(rng, world, profile.least_timeout());
        }
        all.add_datagrams(rng, world);
        for workload in &mut all.workloads {
            workload.next_burst = Some(world.now() + rng.micros(0..=100));
        }
        all
    }

    /// An SRQ, with the largest receives, since any message may consume any of them.
    fn add_srq(&mut self, rng: &mut Rng, world: &mut World, node: usize) {
        // A UC QP keeps the receive of a message that was lost in its midst: there must be more
        // than all of them can keep, or none is left for others.
        let places = rng.pick(&[8, 20, 100]);
        let host = &mut world.nodes[node].host;
        let queue = host.add_recv_queue(places);
        let init = SrqInit { pd: SRQ_PD, queue, limit: 0 };
        let srq = world.nodes[node].device.create_srq(init).expect("far below the limit");
        self.add_receives(rng, world, (node, SRQ_PD, Some(srq)), (places, BUDGET));
        if let Some(receives) = self.receives.last_mut() {
            let limit = rng.range(1..=places as u64) as u32;
            receives.arm(world, limit);
        }
    }

    /// Receives, most of them posted at once.
    fn add_receives(
        &mut self,
        rng: &mut Rng,
        world: &mut World,
        (node, pd, srq): (usize, PdId, Option<SrqId>),
        (places, len): (usize, usize),
    ) {
        let queue = match srq.and_then(|srq| world.nodes[node].device.query_srq(srq)) {
            Some(info) => info.init.queue,
            None => world.nodes[node].host.add_recv_queue(places),
        };
        let mr = reg_mr(rng, world, node, pd, places * len);
        let number = self.receives.len() as u64;
        let pace = Pace::draw(rng);
        let mut receives = Receives::new((node, queue, srq), number, mr, (places, len), pace);
        receives.fill(world, rng);
        self.receives.push(receives);
    }

    /// Where a QP takes its receives from: from its node's SRQ, or from a queue of its own.
    fn receives_for(
        &mut self,
        rng: &mut Rng,
        world: &mut World,
        (node, on_srq, len): (usize, bool, usize),
    ) -> usize {
        if on_srq {
            return node;
        }
        let places = rng.pick(&[1, 8, 100]);
        self.add_receives(rng, world, (node, self.pd, None), (places, len));
        self.receives.len() - 1
    }

    fn add_qp(
        &mut self,
        rng: &mut Rng,
        world: &mut World,
        (node, qp_type, receives): (usize, QpType, usize),
    ) -> usize {
        let cqs = draw_cqs(rng, world, node);
        let Receives { queue, srq, .. } = self.receives[receives];
        let recv = srq.map_or(RecvSource::Own(queue), RecvSource::Shared);
        let places = rng.pick(&[1, 8, 64]);
        let end = world.create_qp_of(node, qp_type, self.pd, cqs, places, recv);
        self.workloads.push(DatagramWorkload {
            end,
            qp_type,
            receives,
            qkey: rng.pick(&QKEYS),
            outgoing: Vec::new(),
            posted: 0,
            ended: 0,
            failed: false,
            pace: Pace::draw(rng),
            next_burst: None,
            received: 0,
            newest: BTreeMap::new(),
        });
        self.workloads.len() - 1
    }

    /// Two QPs, each of which sends to the other.
    fn add_connection(&mut self, rng: &mut Rng, world: &mut World, least_timeout: u8) {
        let qp_type = rng.pick(&[QpType::Uc, QpType::Uc, QpType::Rc]);
        // On a reliable connection a message that does not fit is an error.
        let fits = qp_type == QpType::Rc || rng.percent(70);
        let recv_len = if fits { BUDGET } else { 2000 };
        let sides = [0, 1].map(|_| {
            let node = rng.index(world.nodes.len());
            let on_srq = qp_type == QpType::Rc || rng.percent(50);
            let receives = self.receives_for(rng, world, (node, on_srq, recv_len));
            self.add_qp(rng, world, (node, qp_type, receives))
        });
        let ends = sides.map(|number| self.workloads[number].end);
        let generous = EndAttr::generous();
        let timeout = generous.timeout.max(least_timeout);
        let attrs = [0, 1].map(|_| EndAttr { sq_psn: draw_psn(rng), timeout, ..generous.clone() });
        let mtu = rng.pick(&PathMtu::ALL);
        world.connect(&ends, &attrs, mtu);
        for (from, to) in [(sides[0], sides[1]), (sides[1], sides[0])] {
            self.add_connected_messages(rng, world, from, to);
        }
    }

    fn add_connected_messages(&mut self, rng: &mut Rng, world: &mut World, from: usize, to: usize) {
        let [sender, receiver] = [from, to].map(|number| self.workloads[number].end);
        let source = reg_mr(rng, world, sender.node, self.pd, BUDGET);
        let window = reg_mr(rng, world, receiver.node, self.pd, BUDGET);
        let mut at = 0;
        for _ in 0..rng.pick(&[1, 10, 60]) {
            let len = message_len(rng, BUDGET / 4);
            if at + len > BUDGET {
                break;
            }
            let place = rng.percent(40).then_some((window, at));
            let mut message = self.message(rng, from, vec![to], len);
            let imm = rng.percent(50).then_some(self.messages.len() as u32);
            message.wqe.wr.op = match place {
                Some((mr, at)) => {
                    let remote_addr = mr.addr + at as u64;
                    SendOp::Write { remote_addr, rkey: Rkey(mr.key), imm }
                }
                None => SendOp::Send(imm.map_or(Extra::None, Extra::Imm)),
            };
            message.place = place;
            self.add_message(rng, world, message, (source, at));
            at += len;
        }
    }

    /// UD QPs, some of them in groups.
    fn add_datagrams(&mut self, rng: &mut Rng, world: &mut World) {
        let first = self.workloads.len();
        for _ in 0..rng.range(1..=4) {
            let node = rng.index(world.nodes.len());
            let len = GRH_LEN + if rng.percent(70) { MAX_DATAGRAM } else { 1000 };
            let on_srq = rng.percent(50);
            let receives = self.receives_for(rng, world, (node, on_srq, len));
            let number = self.add_qp(rng, world, (node, QpType::Ud, receives));
            let DatagramWorkload { end, qkey, .. } = self.workloads[number];
            world.start_datagrams(&end, qkey, draw_psn(rng));
        }
        let groups = group_addresses(world.nodes[0].addr.is_ipv6());
        let members = groups.map(|group| {
            let mut members: Vec<usize> = (first..self.workloads.len()).collect();
            members.retain(|_| rng.percent(60));
            for &member in &members {
                world.attach_mcast(&self.workloads[member].end, group);
            }
            members
        });
        for from in first..self.workloads.len() {
            let node = self.workloads[from].end.node;
            let source = reg_mr(rng, world, node, self.pd, BUDGET);
            let mut at = 0;
            for _ in 0..rng.pick(&[1, 10, 60]) {
                let len = message_len(rng, MAX_DATAGRAM);
                if at + len > BUDGET {
                    break;
                }
                let group = rng.index(4);
                let (dgid, qpn, to) = match groups.get(group) {
                    Some(&group_addr) => (group_addr, Qpn::MULTICAST, members[group].clone()),
                    None => {
                        let to = first + rng.index(self.workloads.len() - first);
                        let End { node, qpn, .. } = self.workloads[to].end;
                        (world.nodes[node].addr, qpn, vec![to])
                    }
                };
                let message = self.datagram(rng, world, (from, to, len), dgid, qpn);
                self.add_message(rng, world, message, (source, at));
                at += len;
            }
        }
    }

    fn datagram(
        &mut self,
        rng: &mut Rng,
        world: &mut World,
        (from, mut to, len): (usize, Vec<usize>, usize),
        dgid: IpAddr,
        qpn: Qpn,
    ) -> Message {
        let av = AddressVector {
            dgid,
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: rng.range(0..=0xf_ffff) as u32,
        };
        let device = &mut world.nodes[self.workloads[from].end.node].device;
        let path = match rng.percent(50) {
            true => {
                DatagramPath::Handle(device.create_ah(self.pd, &av).expect("a path that is one"))
            }
            false => DatagramPath::Vector(av),
        };
        let qkey = rng.pick(&QKEYS);
        // With the high bit set the sender's own is sent.
        let own = rng.percent(20);
        let sent = if own { self.workloads[from].qkey } else { qkey };
        to.retain(|&to| self.workloads[to].qkey == sent);
        let mut message = self.message(rng, from, to, len);
        let qkey = if own { Qkey(1 << 31) } else { qkey };
        message.wqe.wr.to = Some(Destination { path, qpn, qkey });
        let imm = rng.percent(50).then_some(self.messages.len() as u32);
        message.wqe.wr.op = SendOp::Send(imm.map_or(Extra::None, Extra::Imm));
        message.dgid = Some(dgid);
        message
    }

    fn message(&self, rng: &mut Rng, from: usize, to: Vec<usize>, len: usize) -> Message {
        let wr_id = WR_ID | self.messages.len() as u64;
        let mut wqe = send_wqe(wr_id, SendOp::Send(Extra::None), Vec::new());
        wqe.wr.signaled = rng.percent(70);
        wqe.wr.solicited = rng.percent(20);
        Message {
            from,
            to,
            wqe,
            bytes: rng.bytes(len),
            place: None,
            dgid: None,
            expected_error: None,
            state: SendState::NotPosted,
            deliveries: BTreeMap::new(),
        }
    }

    /// Adds a message whose data lies at `at` in `source`.
    fn add_message(
        &mut self,
        rng: &mut Rng,
        world: &mut World,
        mut message: Message,
        (source, at): (Mr, usize),
    ) {
        let id = self.messages.len() as u64;
        if message.immediate().is_none() && message.place.is_none() {
            // Its content must identify it.
            message.bytes[..8].copy_from_slice(&id.to_le_bytes());
        }
        let addr = source.addr + at as u64;
        let length = message.bytes.len() as u32;
        let cut = rng.range(0..=u64::from(length)) as u32;
        let lkey = Lkey(source.key);
        let rest = Sge { addr: addr + u64::from(cut), length: length - cut, lkey };
        message.wqe.sges = vec![Sge { addr, length: cut, lkey }, rest];
        let sender = &self.workloads[message.from];
        world.nodes[sender.end.node].host.program_scatter(&message.wqe.sges, &message.bytes);
        if sender.qp_type != QpType::Rc && rng.percent(3) {
            message.expected_error = Some(WcStatus::LocalProtection);
            message.wqe.sges.push(Sge { addr: source.addr, length: 1, lkey: Lkey(source.key ^ 1) });
        } else if rng.percent(30) {
            message.wqe.inline = Some(message.bytes.clone());
        }
        self.workloads[message.from].outgoing.push(self.messages.len());
        self.messages.push(message);
    }
}

fn reg_mr(rng: &mut Rng, world: &mut World, node: usize, pd: PdId, len: usize) -> Mr {
    let addr = rng.next_u64() >> 8;
    world.nodes[node].reg_zeros(pd, addr, everything(), len)
}

/// At least 8 bytes, to identify the message.
fn message_len(rng: &mut Rng, max: usize) -> usize {
    let max = rng.pick(&[8, 300, max]);
    rng.range(8..=max as u64) as usize
}

fn group_addresses(ipv6: bool) -> [IpAddr; 2] {
    [1, 2].map(|last| match ipv6 {
        true => IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, last)),
        false => IpAddr::V4(Ipv4Addr::new(239, 1, 2, last as u8)),
    })
}
