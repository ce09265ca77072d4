//! What losses and reordering cost.

use super::setting::{
    DELAY, MTU, RATE, attr, delay, endless, gbits, payload_rate, percentile_micros, switch_with,
};
use super::{Bound, Extent, Row, Sink};
use crate::load::Load;
use crate::load::flow::{FlowSpec, Operation};
use std::time::Duration;
use urxe_engine::{Counter, EarlyLimits, Tuning};
use urxe_port::{Chance, Impairment};

/// Sizes of messages, in bytes.
const SIZES: [(usize, &str); 2] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB")];

/// Messages under way at once.
const DEPTH: u64 = 16;

/// Percent lost each way, and what must be left of the loss-free speed.
const LOSSES: [(f64, f64); 3] = [(0.1, 0.95), (1.0, 0.8), (5.0, 0.5)];

/// Longer than any of these takes.
const LIMIT: Duration = Duration::from_secs(4);

/// What a run gave.
struct Outcome {
    gbits: f64,
    /// Payload bytes sent for one that was asked for.
    sent: f64,
    probes: f64,
    timeouts: f64,
    /// The QP has failed.
    dead: f64,
}

fn lossy(percent: f64) -> Impairment {
    Impairment { drop: Chance::percent(percent), ..delay(DELAY) }
}

/// A peer that keeps nothing of what comes early.
fn go_back_n() -> Tuning {
    let early = EarlyLimits { bytes_per_qp: 0, ..EarlyLimits::default() };
    Tuning { early, ..Tuning::default() }
}

fn transfer(
    operation: Operation,
    len: usize,
    total: usize,
    impairment: Impairment,
    peer: Tuning,
) -> Outcome {
    let mut load = switch_with(&[Tuning::default(), peer], impairment);
    let count = Some((total / len) as u64);
    let flow = load.add_flow(FlowSpec { count, ..endless(operation, len, DEPTH) }, &attr(), MTU);
    load.run_to_end(LIMIT);
    let flow = &load.flows[flow];
    let useful = flow.completed * len as u64;
    Outcome {
        gbits: if flow.failed { 0.0 } else { gbits(useful, load.elapsed()) },
        dead: f64::from(u8::from(flow.failed)),
        sent: load.count(Counter::SentBytes) as f64 / useful as f64,
        probes: load.count(Counter::Probes) as f64,
        timeouts: load.count(Counter::AckTimeouts) as f64,
    }
}

fn row(case: String, free: &Outcome, outcome: &Outcome, bound: Option<Bound>) -> Row {
    Row::new(case)
        .shows("Gbit/s", outcome.gbits)
        .with("by loss-free", outcome.gbits / free.gbits, bound)
        .shows("sent by useful", outcome.sent)
        .shows("probes", outcome.probes)
        .shows("ACK timeouts", outcome.timeouts)
        .must("dead", outcome.dead, Bound::AtMost(0.0))
}

/// Losses each way, reordering, and a peer that goes back N.
pub(super) fn goodput(extent: Extent, sink: Sink<'_>) {
    let total = extent.pick(16 << 20, 128 << 20);
    for operation in Operation::ALL {
        for (len, size) in SIZES {
            let name = format!("{} {size}", operation.name());
            let run = |impairment, peer| transfer(operation, len, total, impairment, peer);
            let free = run(delay(DELAY), Tuning::default());
            let share = free.gbits * 1e9 / payload_rate(RATE, MTU);
            let case = format!("{name}, nothing lost");
            let first = row(case, &free, &free, None);
            sink(first.must("of the line", share, Bound::AtLeast(0.9)));
            for (percent, least) in LOSSES {
                let outcome = run(lossy(percent), Tuning::default());
                let case = format!("{name}, {percent} % lost");
                sink(row(case, &free, &outcome, Some(Bound::AtLeast(least))));
            }
            let reorder = Impairment { reorder: Chance::percent(1.0), ..delay(DELAY) };
            let outcome = run(reorder, Tuning::default());
            let case = format!("{name}, 1 % reordered");
            sink(row(case, &free, &outcome, Some(Bound::AtLeast(0.9))));
            let free = run(delay(DELAY), go_back_n());
            let outcome = run(lossy(1.0), go_back_n());
            let case = format!("{name}, 1 % lost, peer goes back N");
            sink(row(case, &free, &outcome, Some(Bound::AtLeast(0.6))));
        }
    }
}

/// How late small messages are, one at a time, where 1 % is lost.
pub(super) fn latency(extent: Extent, sink: Sink<'_>) {
    for operation in Operation::ALL {
        let mut load: Load = switch_with(&[Tuning::default(); 2], lossy(1.0));
        let count = Some(extent.pick(4_000, 40_000));
        let flow = load.add_flow(FlowSpec { count, ..endless(operation, 64, 1) }, &attr(), MTU);
        load.run_to_end(LIMIT);
        let latencies = &mut load.flows[flow].latencies;
        let mut micros = |share| percentile_micros(latencies, share);
        // Five round trips and 200 us.
        let most = 10.0 * DELAY.as_nanos() as f64 / 1e3 + 200.0;
        sink(
            Row::new(format!("{} 64 bytes, 1 % lost, one at a time", operation.name()))
                .shows("median us", micros(0.5))
                .must("p99 us", micros(0.99), Bound::AtMost(most))
                .shows("p99.9 us", micros(0.999)),
        );
    }
}
