//! Two programs, connected, of which the first sends messages of one size.

use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Counter, PdId};
use urxe_port::sim::Link;
use urxe_port::{Chance, Impairment};
use urxe_spec_tests::simulation::plan::{PlannedRecv, PlannedSend};
use urxe_spec_tests::simulation::queues::send_wqe;
use urxe_spec_tests::simulation::world::{End, EndAttr, Mr, NodeConfig, World, everything};
use urxe_types::{Access, Extra, Lkey, PathMtu, RecvWqe, Rkey, SendOp, Sge, WcOpcode, WcStatus};

/// The bandwidth of the links, in bits per second.
pub(crate) const RATE: u64 = 25_000_000_000;

/// The path MTU.
pub(crate) const MTU: PathMtu = PathMtu::Mtu1024;

/// Seed of the network.
pub(crate) const SEED: u64 = 1;

/// Longer than any message takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

const PD: PdId = PdId(1);

/// One-sided operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Write,
    Read,
    FetchAdd,
}

impl Operation {
    /// That on the first bytes of an MR.
    pub(crate) fn on(self, remote: &Mr) -> SendOp {
        let (remote_addr, rkey) = (remote.addr, Rkey(remote.key));
        match self {
            Operation::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Operation::Read => SendOp::Read { remote_addr, rkey },
            Operation::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        }
    }
}

/// A link of [`RATE`] whose round trip takes so long, and that loses a share of the packets.
pub(crate) fn link(round_trip: Duration, drop: Chance) -> Link {
    let delay = round_trip / 2;
    let impairment = Impairment { delay: delay..=delay, drop, ..Impairment::default() };
    Link { impairment, rate: Some(RATE), ..Link::default() }
}

pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) ends: [End; 2],
    local: Mr,
    remote: Mr,
    len: usize,
}

impl Pair {
    /// Both ends have these attributes. There is room for `depth` sends and so many receives of
    /// `len` bytes each.
    pub(crate) fn new(
        link: Link,
        attr: EndAttr,
        len: usize,
        depth: usize,
        receives: usize,
    ) -> Pair {
        let nodes = [1, 2].map(|last| NodeConfig::plain(IpAddr::from([10, 0, 0, last])));
        let mut world = World::new(SEED, link, &nodes, false);
        let local = world.nodes[0].reg_mr(PD, 0, Access::LOCAL_WRITE, vec![0; len]);
        let remote = world.nodes[1].reg_mr(PD, 0, everything(), vec![0; len]);
        let ends = [0, 1].map(|node| {
            let cq = world.nodes[node].host.add_cq(depth.max(receives));
            world.create_qp(node, PD, (cq, cq), (depth, receives))
        });
        world.connect(&ends, &[attr.clone(), attr], MTU);
        Pair { world, ends, local, remote, len }
    }

    /// Posts `count` operations, `depth` at a time, and waits for all.
    pub(crate) fn run(&mut self, operation: Operation, count: usize, depth: usize) {
        let op = self.op(operation);
        let (mut posted, mut ended) = (0, 0);
        while ended < count {
            while posted < count && posted - ended < depth {
                self.send(posted as u64, op);
                posted += 1;
            }
            self.world.ring(&self.ends[0]);
            let limit = self.world.now() + LIMIT;
            self.world.step(limit);
            assert!(self.world.now() < limit, "stuck at {ended} of {} bytes", self.len);
            ended += self.completions(0);
        }
    }

    /// The path is another from now on, in both directions.
    pub(crate) fn set_link(&mut self, link: Link) {
        let addrs = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        for [from, to] in [addrs, [addrs[1], addrs[0]]] {
            self.world.network.set_link(from, to, link.clone());
        }
    }

    /// An operation on the peer's memory.
    pub(crate) fn op(&self, operation: Operation) -> SendOp {
        operation.on(&self.remote)
    }

    pub(crate) fn send(&mut self, wr_id: u64, op: SendOp) {
        let wqe = send_wqe(wr_id, op, vec![self.sge(&self.local)]);
        self.world.post_send(&self.ends[0], &PlannedSend::new(wqe, self.len));
    }

    pub(crate) fn receive(&mut self, wr_id: u64) {
        let recv = PlannedRecv {
            wqe: RecvWqe { wr_id, sges: vec![self.sge(&self.remote)] },
            opcode: WcOpcode::Recv,
            byte_len: self.len,
            data: Vec::new(),
            extra: Extra::None,
            solicited: false,
            malformed: false,
        };
        self.world.post_recv(&self.ends[1], &recv);
    }

    fn sge(&self, mr: &Mr) -> Sge {
        Sge { addr: mr.addr, length: self.len as u32, lkey: Lkey(mr.key) }
    }

    /// How many completions there are at an end, all of success.
    pub(crate) fn completions(&mut self, number: usize) -> usize {
        let End { node, send_cq, .. } = self.ends[number];
        let mut found = 0;
        while let Some(completed) = self.world.nodes[node].host.cq(send_cq).poll() {
            assert_eq!(completed.completion.status, WcStatus::Success);
            found += 1;
        }
        found
    }

    pub(crate) fn count(&self, node: usize, counter: Counter) -> u64 {
        self.world.nodes[node].device.counters().get(counter)
    }
}
