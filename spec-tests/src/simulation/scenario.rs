//! Draws a run: machines, the network between them, connections and their work.

use crate::rng::Rng;
use crate::simulation::arena::Arena;
use crate::simulation::plan::{OpenWindow, OwnWindow, Planner, Style, next_key};
use crate::simulation::workloads::rc::{Pace, RcWorkload, Window};
use crate::simulation::world::{End, EndAttr, Mr, Node, NodeConfig, World, everything};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use urxe_engine::{CqId, PdId, Tuning, WireForm};
use urxe_port::sim::Link;
use urxe_port::{Chance, Impairment};
use urxe_types::{Access, Lkey, MwType, PathMtu, Psn, Rkey, SendOp};

/// The protection domain, unless a scenario has another one.
pub const PD: PdId = PdId(1);

/// The impairments of the network.
#[derive(Clone, Debug)]
pub struct NetworkProfile {
    /// What every link does.
    pub link: Link,
    /// What the link from each node to those before it does, if it differs.
    pub back: Option<Link>,
    /// When nothing passes between any two: from when, for how long.
    pub partitions: Vec<(Duration, Duration)>,
}

impl NetworkProfile {
    /// A network without impairments.
    pub fn calm(rng: &mut Rng) -> NetworkProfile {
        let micros = rng.pick(&[0, 1, 10, 50, 500]);
        let delay = Duration::from_micros(micros)..=Duration::from_micros(micros * 2);
        let impairment = Impairment { delay, ..Impairment::default() };
        let link = Link { impairment, ..Link::default() };
        NetworkProfile { link, back: None, partitions: Vec::new() }
    }

    /// A network with random impairments.
    pub fn stormy(rng: &mut Rng) -> NetworkProfile {
        let mut profile = NetworkProfile::calm(rng);
        let impairment = &mut profile.link.impairment;
        let mut chance = |percents: &[f64]| Chance::percent(rng.pick(percents));
        impairment.drop = chance(&[0.0, 0.1, 1.0, 5.0, 10.0]);
        impairment.duplicate = chance(&[0.0, 0.0, 1.0, 10.0]);
        impairment.reorder = chance(&[0.0, 0.0, 1.0, 10.0]);
        impairment.corrupt = chance(&[0.0, 0.0, 1.0]);
        if rng.percent(30) {
            profile.link.rate = Some(rng.pick(&[1, 10, 100]) * 1_000_000_000);
            // Without drops the queue would make any timeout too short.
            profile.link.queue_limit = Some(rng.micros(200..=5_000));
        }
        for _ in 0..rng.pick(&[0, 0, 1, 2]) {
            profile.partitions.push((rng.micros(0..=5_000), rng.micros(0..=20_000)));
        }
        profile
    }

    /// Whether nothing is ever lost, late or twice.
    pub fn is_calm(&self) -> bool {
        let is_calm = |link: &Link| {
            let Impairment { drop, duplicate, reorder, corrupt, delay: _ } = &link.impairment;
            let chances = [drop, duplicate, reorder, corrupt];
            chances.iter().all(|chance| **chance == Chance::NEVER) && link.rate.is_none()
        };
        self.links().all(is_calm) && self.partitions.is_empty()
    }

    /// The kinds of links that there are.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        [&self.link].into_iter().chain(&self.back)
    }

    /// The code of the least ACK timeout that is several times the longest round trip.
    pub fn least_timeout(&self) -> u8 {
        let one_way = |link: &Link| {
            let reordered = link.impairment.reorder != Chance::NEVER;
            let held_back = if reordered { Duration::from_micros(500) } else { Duration::ZERO };
            *link.impairment.delay.end() + link.queue_limit.unwrap_or_default() + held_back
        };
        let one_way = self.links().map(one_way).max().unwrap_or_default();
        let is_enough = |&code: &u8| Duration::from_nanos(4096 << code) >= 8 * one_way;
        (1..31).find(is_enough).unwrap_or(31)
    }
}

/// So many machines.
pub fn draw_nodes<const N: usize>(rng: &mut Rng) -> [NodeConfig; N] {
    let ipv6 = rng.percent(30);
    let mut last = 0;
    [(); N].map(|()| {
        last += 1;
        draw_node(rng, ipv6, last)
    })
}

fn draw_node(rng: &mut Rng, ipv6: bool, last: u16) -> NodeConfig {
    let seed = rng.next_u64();
    // Taken from it, so that what else is drawn does not depend on it.
    let wire = if seed.is_multiple_of(2) { WireForm::Uniform } else { WireForm::Strict };
    NodeConfig {
        addr: match ipv6 {
            true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)),
            false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, last as u8)),
        },
        seed,
        min_probe: rng.micros(50..=2_000),
        tuning: Tuning { wire, ..Tuning::default() },
        burst: rng.pick(&[1, 3, 16, 64]),
        tx_capacity: rng.pick(&[0, 20_000, 1 << 18]),
    }
}

/// A world of these machines in this profile.
pub fn world(rng: &mut Rng, nodes: &[NodeConfig], profile: &NetworkProfile, prints: bool) -> World {
    let world = World::new(rng.next_u64(), profile.link.clone(), nodes, prints);
    for &(from, lasts) in &profile.partitions {
        let from = world.now() + from;
        for [a, b] in pairs(nodes) {
            world.network.partition(a, b, from..from + lasts);
        }
    }
    if let Some(back) = &profile.back {
        for [a, b] in pairs(nodes) {
            world.network.set_link(b, a, back.clone());
        }
    }
    world
}

/// The addresses of each two machines.
fn pairs(nodes: &[NodeConfig]) -> impl Iterator<Item = [IpAddr; 2]> {
    let others = |(number, a): (usize, &NodeConfig)| {
        let a = a.addr;
        nodes[number + 1..].iter().map(move |b| [a, b.addr])
    };
    nodes.iter().enumerate().flat_map(others)
}

/// A counter on each node, to which all programs add.
pub fn counters(rng: &mut Rng, world: &mut World) -> Vec<Mr> {
    let counter = |node: &mut Node| {
        let addr = rng.next_u64() >> 8 & !7;
        node.reg_mr(PD, addr, everything(), vec![0; 8])
    };
    world.nodes.iter_mut().map(counter).collect()
}

/// A connection to be made, with the work of its two programs.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The protection domain of both its ends.
    pub pd: PdId,
    /// Where its ends are.
    pub nodes: [usize; 2],
    pub mtu: PathMtu,
    /// What each end is set up with.
    pub attrs: [EndAttr; 2],
    /// The work of each end.
    pub styles: [Style; 2],
    /// Places in the send and receive queue of each end.
    pub places: [(usize, usize); 2],
    /// Whether its programs post as fast as they can.
    pub eager: bool,
    /// Whether they reach each other's memory by the keys of windows, too.
    pub has_windows: bool,
}

impl Connection {
    /// Draws a connection that is certain to work.
    pub fn draw(rng: &mut Rng) -> Connection {
        let mtu = rng.pick(&PathMtu::ALL);
        let rd_atomic = [(); 2].map(|()| rng.pick(&[0, 1, 2, 4, 16, 128]));
        let attr = |rng: &mut Rng, own: u8, peer: u8| EndAttr {
            access: everything(),
            sq_psn: draw_psn(rng),
            max_rd_atomic: own,
            max_dest_rd_atomic: peer.saturating_add(rng.pick(&[0, 1])).min(128),
            min_rnr_timer: rng.range(1..=16) as u8,
            timeout: rng.range(13..=16) as u8,
            retry_cnt: 7,
            rnr_retry: 7,
            flow_label: rng.range(0..=0xf_ffff) as u32,
        };
        let [a, b] = rd_atomic;
        Connection {
            pd: PD,
            nodes: if rng.percent(90) { [0, 1] } else { [0, 0] },
            mtu,
            attrs: [attr(rng, a, b), attr(rng, b, a)],
            styles: [Style::draw(rng, mtu, a > 0), Style::draw(rng, mtu, b > 0)],
            places: [(); 2].map(|()| (rng.pick(&[1, 8, 64, 300]), rng.pick(&[1, 8, 300]))),
            eager: rng.percent(30),
            has_windows: false,
        }
    }

    /// Draws, for half of the connections, ATOMIC WRITE, FLUSH, local operations and windows.
    pub fn enrich(&mut self, rng: &mut Rng) {
        if rng.percent(50) {
            self.has_windows = true;
            for (style, attr) in self.styles.iter_mut().zip(&self.attrs) {
                style.enrich(rng, attr.max_rd_atomic > 0);
            }
        }
    }

    /// Makes the connection and its programs. `number` tells it from others in `wr_id`s,
    /// `counters` are the nodes'.
    pub fn make(
        &self,
        rng: &mut Rng,
        world: &mut World,
        number: u64,
        counters: &[Mr],
    ) -> [RcWorkload; 2] {
        let ends = [0, 1].map(|side| {
            let cqs = draw_cqs(rng, world, self.nodes[side]);
            world.create_qp(self.nodes[side], self.pd, cqs, self.places[side])
        });
        self.make_on(rng, world, number, counters, ends)
    }

    /// As [`make`](Self::make), on QPs in RESET that are there already.
    pub fn make_on(
        &self,
        rng: &mut Rng,
        world: &mut World,
        number: u64,
        counters: &[Mr],
        ends: [End; 2],
    ) -> [RcWorkload; 2] {
        let mut arenas = [0, 1].map(|side: usize| {
            let [own, peer] = [&self.styles[side], &self.styles[1 - side]];
            // What is sent, what is received with some spare room, and the gaps between.
            let total = own.budget + peer.budget + 2_000 * peer.count + 10_000;
            let count = rng.range(1..=3) as usize;
            // Any one of them has a place for the longest message in one piece.
            let len = total / count + own.max_message.max(peer.max_message);
            let node = &mut world.nodes[self.nodes[side]];
            Arena::new(rng, node, self.pd, count, len)
        });
        let mut plans = Vec::new();
        let mut binds_of = [Vec::new(), Vec::new()];
        for side in [0, 1] {
            let style = &self.styles[side];
            let [a, b] = &mut arenas;
            let (local, remote) = if side == 0 { (a, b) } else { (b, a) };
            let node = self.nodes[1 - side];
            let content = rng.bytes(style.max_message.max(64));
            let addr = rng.next_u64() >> rng.range(1..=40);
            let responder = &mut world.nodes[node];
            let mr = responder.reg_mr(self.pd, addr, everything(), content.clone());
            let lendable = self.reg_bindable(responder);
            let mut binds = Vec::new();
            let mut bound = |mw_type, mr: &Mr, length, access| {
                let (op, rkey) = bind(responder, self.pd, mw_type, mr, length, access);
                binds.push(op);
                rkey
            };
            let mut lend = || bound(MwType::Two, &lendable, 8, Access::REMOTE_READ);
            let lent = vec![lend(), lend()];
            let mut open_windows = Vec::new();
            if self.has_windows {
                let len = content.len() as u64;
                let rights = everything() - (Access::LOCAL_WRITE | Access::MW_BIND);
                let mut open_window = |mw_type, access, addr| {
                    open_windows.push(OpenWindow { rkey: bound(mw_type, &mr, len, access), addr });
                };
                open_window(MwType::One, rights, mr.addr);
                open_window(MwType::Two, rights, mr.addr);
                open_window(MwType::Two, rights | Access::ZERO_BASED, 0);
            }
            let requester = &mut world.nodes[self.nodes[side]];
            let own = [MwType::One, MwType::Two].map(|mw_type| OwnWindow {
                mw_type,
                rkey: requester.alloc_mw(self.pd, mw_type),
                is_bound: false,
            });
            let own = (self.reg_bindable(requester), own.to_vec());
            let plan = Planner {
                style,
                rng: rng.fork(),
                local,
                remote,
                window: (mr, content),
                open_windows: open_windows.clone(),
                counter: counters[node],
                lent,
                own,
                number: 2 * number + side as u64,
            }
            .plan();
            let open_windows = open_windows.iter().map(|open_window| open_window.rkey).collect();
            let model = plan.window.clone();
            let window = Window { node, mr, open_windows, model, unknown: Vec::new() };
            plans.push((plan, window));
            binds_of[1 - side] = binds;
        }
        world.connect(&ends, &self.attrs, self.mtu);
        for (end, binds) in ends.iter().zip(&binds_of) {
            binds.iter().for_each(|&op| world.bind(end, op));
        }

        let mut pace = || if self.eager { Pace::eager() } else { Pace::draw(rng) };
        let (plan_b, window_b) = plans.pop().expect("two plans");
        let (plan_a, window_a) = plans.pop().expect("two plans");
        for (arena, node) in arenas.iter().zip(self.nodes) {
            arena.lay_out(&mut world.nodes[node].host);
        }
        let [arena_a, arena_b] = arenas;
        let [binds_a, binds_b] = binds_of.map(|binds| binds.len() as u64);
        [
            (ends[0], arena_a, window_a, (plan_a.sends, plan_b.recvs), binds_a),
            (ends[1], arena_b, window_b, (plan_b.sends, plan_a.recvs), binds_b),
        ]
        .map(|(end, arena, window, work, binds_before)| {
            let mut workload = RcWorkload::new(end, arena, window, work, (pace(), pace()));
            workload.binds_before = binds_before;
            workload
        })
    }

    /// A little memory of a program that windows can be bound to.
    fn reg_bindable(&self, node: &mut Node) -> Mr {
        node.reg_mr(self.pd, 0x1000, Access::LOCAL_WRITE | Access::MW_BIND, vec![0; 8])
    }
}

/// A new window, to be bound to the first `length` bytes of an MR: the bind, and its key then.
fn bind(
    node: &mut Node,
    pd: PdId,
    mw_type: MwType,
    mr: &Mr,
    length: u64,
    access: Access,
) -> (SendOp, u32) {
    let mw = node.alloc_mw(pd, mw_type);
    let rkey = next_key(mw);
    let (mw, new_rkey, lkey) = (Rkey(mw), Rkey(rkey), Lkey(mr.key));
    (SendOp::BindMw { mw, new_rkey, mr: lkey, addr: mr.addr, length, access }, rkey)
}

/// A first PSN, often one that wraps soon.
pub(crate) fn draw_psn(rng: &mut Rng) -> Psn {
    match rng.percent(50) {
        true => Psn::new(0xff_ffff - rng.range(0..=300) as u32),
        false => Psn::new(rng.next_u64() as u32),
    }
}

/// CQs of a QP: its own or its node's first, one or two.
pub(crate) fn draw_cqs(rng: &mut Rng, world: &mut World, node: usize) -> (CqId, CqId) {
    let host = &mut world.nodes[node].host;
    let mut cq = |rng: &mut Rng| match rng.percent(50) && !host.cqs.is_empty() {
        true => CqId(0),
        false => host.add_cq(10_000),
    };
    let send_cq = cq(rng);
    let recv_cq = if rng.percent(50) { send_cq } else { cq(rng) };
    (send_cq, recv_cq)
}
