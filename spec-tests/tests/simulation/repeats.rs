//! What is sent again although nothing was lost: packets counted in a network that drops nothing,
//! with ACK timeouts shorter than the round trip, and with receivers that are not ready.

use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Counter, PdId};
use urxe_port::Impairment;
use urxe_port::sim::Link;
use urxe_spec_tests::simulation::host::RECV_WR_ID;
use urxe_spec_tests::simulation::plan::{Effect, PlannedRecv, PlannedSend};
use urxe_spec_tests::simulation::world::{End, EndAttr, Mr, NodeConfig, World, everything};
use urxe_types::{
    Access, Extra, Lkey, PathMtu, RecvWqe, Rkey, SendOp, SendWqe, Sge, WcOpcode, WcStatus,
};

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

    fn receive(&mut self, wr_id: u64, len: usize) {
        let sge = Sge { addr: self.remote.addr, length: len as u32, lkey: Lkey(self.remote.key) };
        let recv = PlannedRecv {
            wqe: RecvWqe { wr_id, sges: vec![sge] },
            opcode: WcOpcode::Recv,
            byte_len: len,
            data: Vec::new(),
            extra: Extra::None,
            solicited: false,
            malformed: false,
        };
        self.world.post_recv(&self.ends[1], &recv);
    }

    /// Completions that there are at an end, all of success.
    fn completions(&mut self, number: usize) -> usize {
        let End { node, send_cq, .. } = self.ends[number];
        let mut found = 0;
        while let Some(completed) = self.world.nodes[node].host.cq(send_cq).poll() {
            assert_eq!(completed.completion.status, WcStatus::Success);
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

/// What is repeated before the path is known, and nothing after that.
#[test]
fn a_path_longer_than_the_probe_interval_and_the_ack_timeout_is_soon_known() {
    for (timeout, most_repeated, most_timeouts) in [(4, 150, 3), (14, 5, 0)] {
        for round_trip in [2, 10].map(Duration::from_millis) {
            for (operation, len) in
                [(Operation::Write, 1 << 20), (Operation::Read, 1 << 20), (Operation::FetchAdd, 8)]
            {
                let (repeated, timeouts) = with_timeout(timeout, round_trip, operation, len);
                let figures = format!("{repeated} repeated, {timeouts} timeouts: code {timeout}");
                assert!(
                    repeated <= most_repeated && timeouts <= most_timeouts,
                    "{figures}, {round_trip:?}, {operation:?} of {len} bytes"
                );
            }
        }
    }
}

const MESSAGES: u64 = 500;

/// Sends [`MESSAGES`], 16 under way, to a program that posts its receives `burst` at a time, each
/// time `gap` after the last one was used. The packets sent again, and the RNR NAKs.
fn slow_receiver(len: usize, burst: u64, gap: Duration, min_rnr_timer: u8) -> (u64, u64) {
    let attr = EndAttr { min_rnr_timer, ..EndAttr::generous() };
    let mut pair = Pair::new(Duration::from_micros(20), attr, len, 16, burst as usize);
    let (mut sends, mut sent, mut receives, mut received) = (0, 0, 0, 0);
    let mut next_post = Some(pair.world.now() + gap);
    while sent < MESSAGES {
        while sends < MESSAGES && sends - sent < 16 {
            pair.send(sends, SendOp::Send(Extra::None), len);
            sends += 1;
        }
        pair.world.ring(&pair.ends[0]);
        if next_post.is_some_and(|at| at <= pair.world.now()) {
            for _ in 0..burst.min(MESSAGES - receives) {
                pair.receive(RECV_WR_ID | receives, len);
                receives += 1;
            }
            next_post = None;
        }
        let limit = pair.world.now() + LIMIT;
        pair.world.step(next_post.unwrap_or(limit).min(limit));
        assert!(pair.world.now() < limit, "stuck at {sent}");
        sent += pair.completions(0) as u64;
        received += pair.completions(1) as u64;
        if next_post.is_none() && received == receives && receives < MESSAGES {
            next_post = Some(pair.world.now() + gap);
        }
    }
    (pair.count(0, Counter::RetransmittedPackets), pair.count(1, Counter::RnrNaksSent))
}

/// The packet that an RNR NAK refuses is sent again, and hardly another one behind it: what went
/// before the first NAK, and where the receiver was taken to have more than it had.
#[test]
fn a_receiver_that_is_not_ready_has_hardly_more_repeated_than_what_it_refused() {
    for (len, burst) in [(64, 1), (4096, 1), (65_536, 1), (64, 8), (4096, 64)] {
        for gap in [5, 50, 500].map(Duration::from_micros) {
            // 10 us, 640 us and 1.28 ms.
            for timer in [1, 12, 14] {
                let (repeated, rnr_naks) = slow_receiver(len, burst, gap, timer);
                let figures = format!(
                    "{repeated} packets repeated for {rnr_naks} RNR NAKs: {len} bytes, {burst} \
                     receives at a time after {gap:?}, timer {timer}"
                );
                assert!(repeated <= rnr_naks + 350, "{figures}");
                assert!(rnr_naks <= 7 * MESSAGES / burst, "{figures}");
            }
        }
    }
}
