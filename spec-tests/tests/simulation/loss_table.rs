//! What losses cost: a table of loss rate and message size to time per message and packets sent
//! again, in virtual time. Tuning of retries, windows and probes shows as a diff of
//! `tests/simulation/loss_table.txt`; read it before you accept it:
//!
//! ```text
//! URXE_BLESS=1 cargo test -p urxe-spec-tests --test simulation loss_table
//! ```

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use urxe_engine::{Counter, PdId};
use urxe_port::sim::Link;
use urxe_port::{Chance, Impairment};
use urxe_spec_tests::simulation::plan::{Effect, PlannedSend};
use urxe_spec_tests::simulation::world::{EndAttr, NodeConfig, World, everything};
use urxe_types::{Access, Lkey, PathMtu, Rkey, SendOp, SendWqe, Sge, WcStatus};

const SEED: u64 = 1;

/// The network: 25 Gbit/s, 10 us each way, and room for 200 KB before a receiver, which is what the
/// socket of an unprivileged one has.
const RATE: u64 = 25_000_000_000;
const DELAY: Duration = Duration::from_micros(10);
const QUEUE: Duration = Duration::from_micros(64);
const MTU: PathMtu = PathMtu::Mtu1024;

/// Percent of packets lost, each way.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];

/// Message sizes in bytes, and how many messages of each are posted.
const SIZES: [(usize, usize); 5] =
    [(64, 2_000), (4 << 10, 2_000), (64 << 10, 200), (1 << 20, 20), (8 << 20, 4)];

/// How many messages are under way at once.
const DEPTHS: [usize; 2] = [1, 16];

#[derive(Clone, Copy)]
enum Operation {
    Write,
    Read,
}

/// What a run cost.
struct Cost {
    /// Virtual time per message.
    time: Duration,
    /// Payload bytes that were sent for one that arrived.
    sent: f64,
    probes: u64,
    timeouts: u64,
}

/// Posts `count` messages, `depth` at a time, and waits for all.
fn run(operation: Operation, loss: f64, len: usize, count: usize, depth: usize) -> Cost {
    let impairment =
        Impairment { drop: Chance::percent(loss), delay: DELAY..=DELAY, ..Impairment::default() };
    let link = Link { impairment, rate: Some(RATE), queue_limit: Some(QUEUE), ..Link::default() };
    let nodes = [1, 2].map(|last| NodeConfig::plain(IpAddr::from([10, 0, 0, last])));
    let mut world = World::new(SEED, link, &nodes, false);
    let pd = PdId(1);
    let local = world.nodes[0].reg_mr(pd, 0, Access::LOCAL_WRITE, vec![0; len]);
    let remote = world.nodes[1].reg_mr(pd, 0, everything(), vec![0; len]);
    let ends = [0, 1].map(|node| {
        let cq = world.nodes[node].host.add_cq(depth);
        world.create_qp(node, pd, (cq, cq), (depth, 1))
    });
    world.connect(&ends, &[EndAttr::generous(), EndAttr::generous()], MTU);

    let (remote_addr, rkey) = (remote.addr, Rkey(remote.key));
    let op = match operation {
        Operation::Write => SendOp::Write { remote_addr, rkey, imm: None },
        Operation::Read => SendOp::Read { remote_addr, rkey },
    };
    let sge = Sge { addr: local.addr, length: len as u32, lkey: Lkey(local.key) };
    let send = |wr_id| PlannedSend {
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
    let mut posted = 0;
    let mut ended = 0;
    while ended < count {
        while posted < count && posted - ended < depth {
            world.post_send(&ends[0], &send(posted as u64));
            posted += 1;
        }
        world.ring(&ends[0]);
        let limit = world.now() + Duration::from_secs(10);
        world.step(limit);
        assert!(world.now() < limit, "stuck at message {ended} of {len} bytes");
        while let Some(completed) = world.nodes[0].host.cq(ends[0].send_cq).poll() {
            assert_eq!(completed.completion.status, WcStatus::Success);
            ended += 1;
        }
    }
    let total = |counter| -> u64 {
        world.nodes.iter().map(|node| node.device.counters().get(counter)).sum()
    };
    Cost {
        time: world.elapsed() / count as u32,
        sent: total(Counter::SentBytes) as f64 / (count * len) as f64,
        probes: total(Counter::Probes),
        timeouts: total(Counter::AckTimeouts),
    }
}

fn table() -> String {
    let mut table = format!(
        "Virtual time per message in us, payload bytes sent for one that arrives,\n\
         probes / ACK timeouts per thousand messages.\n\
         {} Gbit/s, {} us each way and at most {} us in a queue, MTU {}, ACK timeout 67 ms, \
         seed {SEED}.\n",
        RATE / 1_000_000_000,
        DELAY.as_micros(),
        QUEUE.as_micros(),
        MTU.bytes(),
    );
    for (operation, name) in [(Operation::Write, "WRITE"), (Operation::Read, "READ")] {
        for depth in DEPTHS {
            let _ = write!(table, "\n{:<18}", format!("{name}, {depth} at once"));
            for loss in LOSSES {
                let _ = write!(table, " | {:<25}", format!("{loss} % lost"));
            }
            for (len, count) in SIZES {
                let _ = write!(table, "\n{len:>12} bytes");
                for loss in LOSSES {
                    let Cost { time, sent, probes, timeouts } =
                        run(operation, loss, len, count, depth);
                    let per_thousand = |number: u64| number * 1000 / count as u64;
                    let _ = write!(
                        table,
                        " | {:>9.1} {sent:>5.2} {:>6} / {}",
                        time.as_nanos() as f64 / 1e3,
                        per_thousand(probes),
                        per_thousand(timeouts),
                    );
                }
            }
            table.push('\n');
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn losses_cost_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/loss_table.txt");
    let found = table();
    if std::env::var_os("URXE_BLESS").is_some() {
        std::fs::write(&path, &found).expect("the table can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == kept,
        "what losses cost has changed. Found:\n{found}\nThe table says:\n{kept}\n\
         If the change is for the better: \
         URXE_BLESS=1 cargo test -p urxe-spec-tests --test simulation loss_table"
    );
}
