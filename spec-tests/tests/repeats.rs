//! What is sent again although nothing was lost: packets counted in a network that drops nothing


use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Access, Counter, PdId, SendOp, SendWqe, Sge, Status};
use urxe_port::Impairment;
use urxe_port::sim::Link;
use urxe_spec_tests::plan::{Effect, PlannedSend};
use urxe_spec_tests::world::{End, EndAttr, Mr, NodeConfig, World, everything};
use urxe_wire::{Lkey, PathMtu, Rkey};

const PD: PdId = PdId(1);
const RATE: u64 = 25_000_000_000;

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(10);

/// Two programs, connected; the first sends.
struct Pair {
    world: World,
    ends: [End; 2],
    local: Mr,
    remote: Mr,
}

impl Pair {
    /// With a path of this round trip, and room for so many receives.
    fn new(round_trip: Duration, attr: EndAttr, len: usize, depth: usize, receives: usize) -> Pair {
        let delay = round_trip / 2;
        let impairment = Impairment { delay: delay..=delay, ..Impairment::default() };
        let link = Link { impairment, rate: Some(RATE), ..Link::default() };
        let nodes = [1, 2].map(|last| NodeConfig::plain(IpAddr::from([10, 0, 0, last])));
        let mut world = World::new(1, link, &nodes, false);
        let local = world.nodes[0].reg_mr(PD, 0, Access::LOCAL_WRITE, vec![0; len]);
        let remote = world.nodes[1].reg_mr(PD, 0, everything(), vec![0; len]);
        let ends = [0, 1].map(|node| {
            let cq = world.nodes[node].host.add_cq(depth.max(receives));
            world.create_qp(node, PD, (cq, cq), (depth, receives))
        });
        world.connect(&ends, &[attr.clone(), attr], PathMtu::Mtu1024);
        Pair { world, ends, local, remote }
    }

    fn send(&mut self, wr_id: u64, op: SendOp, len: usize) {
        let sge = Sge { addr: self.local.addr, length: len as u32, lkey: Lkey(self.local.key) };
        let send = PlannedSend {
            wqe: SendWqe {
                wr_id,
                op,
                fence: false,
                signaled: true,
                solicited: false,
                to: None,
                sges: vec![sge],
                inline: None,
            },
            len,
            effect: Effect::None,
            answer: None,
            reuses_memory: false,
            malformed: false,
        };
        self.world.post_send(&self.ends[0], &send);
    }

    /// Completions that there are at an end, all of success.
    fn completions(&mut self, number: usize) -> usize {
        let End { node, send_cq, .. } = self.ends[number];
        let mut found = 0;
        while let Some(completed) = self.world.nodes[node].host.cq(send_cq).poll() {
            assert_eq!(completed.completion.status, Status::Success);
            found += 1;
        }
        found
    }

    fn count(&self, node: usize, counter: Counter) -> u64 {
        self.world.nodes[node].device.counters().get(counter)
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write,
    Read,
    FetchAdd,
}

/// Carries out 200 operations, 4 at a time; the packets sent again, and the timeouts.
fn with_timeout(timeout: u8, round_trip: Duration, operation: Operation, len: usize) -> (u64, u64) {
    let attr = EndAttr { timeout, ..EndAttr::generous() };
    let mut pair = Pair::new(round_trip, attr, len, 4, 1);
    let (remote_addr, rkey) = (pair.remote.addr, Rkey(pair.remote.key));
    let op = match operation {
        Operation::Write => SendOp::Write { remote_addr, rkey, imm: None },
        Operation::Read => SendOp::Read { remote_addr, rkey },
        Operation::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
    };
    let (mut posted, mut ended) = (0, 0);
    while ended < 200 {
        while posted < 200 && posted - ended < 4 {
            pair.send(posted as u64, op, len);
            posted += 1;
        }
        pair.world.ring(&pair.ends[0]);
        let limit = pair.world.now() + LIMIT;
        pair.world.step(limit);
        assert!(pair.world.now() < limit, "stuck at {ended}");
        ended += pair.completions(0);
    }
    (pair.count(0, Counter::RetransmittedPackets), pair.count(0, Counter::AckTimeouts))
}

#[test]
fn an_ack_timeout_shorter_than_the_round_trip_repeats_nothing() {
    for timeout in 1..=5 {
        for round_trip in [20, 200, 500].map(Duration::from_micros) {
            for (operation, len) in [
                (Operation::Write, 64),
                (Operation::Write, 65_536),
                (Operation::Read, 65_536),
                (Operation::FetchAdd, 8),
            ] {
                let repeated = with_timeout(timeout, round_trip, operation, len);
                assert_eq!(repeated, (0, 0), "{timeout} {round_trip:?} {operation:?} {len}");
            }
        }
    }
}
