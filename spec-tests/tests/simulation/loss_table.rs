//! The cost of losses: a table of loss rate and message size to time per message and packets sent
//! again, in virtual time. Tuning of retries, windows and probes shows as a diff of
//! `tests/simulation/loss_table.txt`; read it before you accept it:
//!
//! ```text
//! URXE_BLESS=1 cargo test -p urxe-spec-tests --test simulation loss_table
//! ```

use crate::pair::{MTU, Operation, Pair, RATE, SEED, link};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use urxe_engine::Counter;
use urxe_port::Chance;
use urxe_port::sim::Link;
use urxe_spec_tests::simulation::world::EndAttr;

/// The network: [`RATE`], 10 us each way, and room for 200 KB before a receiver, which is what the
/// socket of an unprivileged one has.
const DELAY: Duration = Duration::from_micros(10);
const QUEUE: Duration = Duration::from_micros(64);

/// Percent of packets lost, each way.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];

/// Message sizes in bytes, and how many messages of each are posted.
const SIZES: [(usize, usize); 5] =
    [(64, 2_000), (4 << 10, 2_000), (64 << 10, 200), (1 << 20, 20), (8 << 20, 4)];

/// How many messages are under way at once.
const DEPTHS: [usize; 2] = [1, 16];

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
    let link = link(2 * DELAY, Chance::percent(loss));
    let link = Link { queue_limit: Some(QUEUE), ..link };
    let mut pair = Pair::new(link, EndAttr::generous(), len, depth, 1);
    pair.run(operation, count, depth);
    let total = |counter| pair.count(0, counter) + pair.count(1, counter);
    Cost {
        time: pair.world.elapsed() / count as u32,
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
fn times_and_retransmissions_under_loss_match_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/loss_table.txt");
    let found = table();
    if std::env::var_os("URXE_BLESS").is_some() {
        std::fs::write(&path, &found).expect("the table can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == kept,
        "the cost of losses has changed. Found:\n{found}\nThe table says:\n{kept}\n\
         If the change is for the better: \
         URXE_BLESS=1 cargo test -p urxe-spec-tests --test simulation loss_table"
    );
}
