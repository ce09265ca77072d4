//! Thousands of QPs between two machines that start together.

use super::setting::{DELAY, MTU, RATE, attr, delay, endless, payload_rate, switch};
use super::{Bound, Extent, Row, Sink};
use crate::load::flow::{FlowSpec, Operation};
use std::time::Duration;
use urxe_engine::Counter;

/// Bytes of a message.
const LEN: usize = 4 << 10;

/// Messages of each QP, all posted at once.
const MESSAGES: u64 = 4;

fn start_together(qps: usize) -> Row {
    let mut load = switch(2, delay(DELAY));
    let spec = FlowSpec { count: Some(MESSAGES), ..endless(Operation::Write, LEN, MESSAGES) };
    load.add_flows(qps, spec, &attr(), MTU);
    load.run_to_end(Duration::from_secs(5));
    let useful = qps as u64 * MESSAGES * LEN as u64;
    let line = useful as f64 * 8.0 / payload_rate(RATE, MTU);
    let failed = load.flows.iter().filter(|flow| flow.failed).count();
    let done = load.flows.iter().filter(|flow| flow.is_done()).count();
    let time = load.elapsed().as_secs_f64();
    Row::new(format!("{qps} QPs, {MESSAGES} WRITEs of 4 KiB each"))
        .must("dead", failed as f64, Bound::AtMost(0.0))
        .must("not done", (qps - done) as f64, Bound::AtMost(0.0))
        .must(
            "sent by useful",
            load.count(Counter::SentBytes) as f64 / useful as f64,
            Bound::AtMost(1.1),
        )
        .must("time by the line's", time / line, Bound::AtMost(2.0))
        .shows("ms", time * 1e3)
        .shows("probes", load.count(Counter::Probes) as f64)
}

/// 1,000 QPs and more.
pub(super) fn run(extent: Extent, sink: Sink<'_>) {
    let counts: &[usize] = match extent {
        Extent::Short => &[1_000, 10_000],
        Extent::Long => &[1_000, 10_000, 100_000],
    };
    for &qps in counts {
        sink(start_together(qps));
    }
}
