//! Many machines and one line.

use super::setting::{
    DELAY, MTU, RATE, attr, delay, endless, jain, limit_uplinks, share_of, since, switch,
};
use super::{Bound, Extent, Row, Sink};
use crate::load::Load;
use crate::load::flow::{FlowSpec, Operation};
use std::time::Duration;
use urxe_engine::Counter;
use urxe_port::sim::QueueId;

/// Bytes of a message, and how many each flow has under way.
const LEN: usize = 64 << 10;
const DEPTH: u64 = 4;

const MS: Duration = Duration::from_millis(1);

/// A flow between node 0, whose line all share, and another node.
fn towards(operation: Operation, other: usize) -> FlowSpec {
    let (from, to) = match operation {
        Operation::Read => (0, other),
        Operation::Write | Operation::Send => (other, 0),
    };
    FlowSpec { from, to, ..endless(operation, LEN, DEPTH) }
}

/// Runs for so long and says how the flows fared, which must use `least` of the line.
fn measure(load: &mut Load, row: Row, time: Duration, least: f64) -> Row {
    let before = load.arrived();
    let sent_before = load.count(Counter::SentBytes);
    load.run_for(time);
    let sent = load.count(Counter::SentBytes) - sent_before;
    let got = since(&before, &load.arrived());
    let gap = (0..load.flows.len()).map(|flow| load.progress(flow).longest_gap(load.now())).max();
    let useful: u64 = got.iter().sum();
    let failed = load.flows.iter().filter(|flow| flow.failed).count();
    let queue = load.network.queue(load.now(), QueueId::Downlink(load.addr(0)));
    let lost = queue.map_or(0, |(_, counters)| counters.full);
    row.must("of the line", share_of(RATE, MTU, useful, time), Bound::AtLeast(least))
        .must("Jain", jain(&got), Bound::AtLeast(0.95))
        .must("longest gap ms", gap.unwrap_or_default().as_secs_f64() * 1e3, Bound::AtMost(20.0))
        .shows("sent by useful", sent as f64 / useful.max(1) as f64)
        .shows("lost", lost as f64)
        .shows("probes", load.count(Counter::Probes) as f64)
        .must("dead", failed as f64, Bound::AtMost(0.0))
}

/// So many machines and one that all talk to.
fn star(others: usize) -> Load {
    let load = switch(others + 1, delay(DELAY));
    limit_uplinks(&load, others + 1, RATE);
    load
}

/// WRITErs to one machine, and one machine that READs from many.
pub(super) fn run(extent: Extent, sink: Sink<'_>) {
    let sizes: &[(Operation, usize)] = match extent {
        Extent::Short => &[(Operation::Write, 128), (Operation::Read, 64)],
        Extent::Long => &[
            (Operation::Write, 8),
            (Operation::Write, 32),
            (Operation::Write, 64),
            (Operation::Write, 128),
            (Operation::Send, 128),
            (Operation::Read, 8),
            (Operation::Read, 64),
            (Operation::Read, 128),
        ],
    };
    for &(operation, others) in sizes {
        let mut load = star(others);
        for other in 1..=others {
            load.add_flow(towards(operation, other), &attr(), MTU);
        }
        let row = Row::new(format!("{} of {others} machines", operation.name()));
        sink(measure(&mut load, row, 100 * MS, 0.9));
    }
}

/// Four flows of which three begin later, 10 ms one after the other.
pub(super) fn latecomers(_: Extent, sink: Sink<'_>) {
    for operation in [Operation::Write, Operation::Read] {
        let mut load = star(4);
        for other in 1..=4 {
            let start = 10 * MS * (other as u32 - 1);
            load.add_flow(FlowSpec { start, ..towards(operation, other) }, &attr(), MTU);
        }
        load.run_for(80 * MS);
        let case = format!("{}, from 50 ms after the last to 100 ms", operation.name());
        sink(measure(&mut load, Row::new(case), 50 * MS, 0.9));
    }
}

/// Eight machines, of which one after the other is busy with something else for 1 ms.
pub(super) fn stalls(_: Extent, sink: Sink<'_>) {
    let cases = [
        (Operation::Write, Some(1..9), "a sender", 0.9),
        // Of the line behind a machine that does nothing for a tenth of the time.
        (Operation::Write, None, "the receiver", 0.8),
        (Operation::Read, Some(1..9), "a responder", 0.9),
        (Operation::Read, None, "the requester", 0.8),
    ];
    for (operation, stalled, name, least) in cases {
        let others = 8;
        let mut load = star(others);
        for other in 1..=others {
            load.add_flow(towards(operation, other), &attr(), MTU);
        }
        for n in 0..10 {
            let node = stalled.clone().map_or(0, |nodes| nodes.start + n % nodes.len());
            load.add_stall(node, 10 * MS * n as u32 + 5 * MS, MS);
        }
        let case = format!("{}, {name} is busy for 1 ms in each 10 ms", operation.name());
        sink(measure(&mut load, Row::new(case), 100 * MS, least));
    }
}
