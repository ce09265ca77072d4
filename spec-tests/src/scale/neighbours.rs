//! A program that sends little beside one that sends much.

use super::setting::{
    DELAY, MTU, RATE, attr, delay, endless, limit_uplinks, percentile_micros, share_of, since,
    switch,
};
use super::{Bound, Extent, Row, Sink};
use crate::load::flow::{FlowSpec, Operation};
use std::time::Duration;
use urxe_port::sim::{Queue, QueueId};

const MS: Duration = Duration::from_millis(1);

/// What waits before the receiver at most, in bytes: 1.3 ms of the line.
const DEEP: usize = 4 << 20;

/// Small messages one at a time beside long ones, of the same program and of another.
pub(super) fn run(extent: Extent, sink: Sink<'_>) {
    for operation in [Operation::Write, Operation::Read] {
        for (program, of) in [(0, "the same program"), (1, "another program")] {
            let mut load = switch(2, delay(DELAY));
            limit_uplinks(&load, 2, RATE);
            for node in 0..2 {
                let queue = Queue::taildrop(RATE, DEEP);
                load.network.set_queue(QueueId::Downlink(load.addr(node)), queue);
            }
            let long = load.add_flow(endless(operation, 64 << 10, 128), &attr(), MTU);
            let small = FlowSpec { program, ..endless(operation, 64, 1) };
            let small = load.add_flow(small, &attr(), MTU);
            load.run_for(20 * MS);
            load.flows[small].latencies.clear();
            let before = load.arrived();
            let time = extent.pick(50 * MS, 500 * MS);
            load.run_for(time);
            let got = since(&before, &load.arrived())[long];
            let latencies = &mut load.flows[small].latencies;
            let row = Row::new(format!("{} 64 bytes of {of}", operation.name()));
            let [median, p99] = [0.5, 0.99].map(|share| percentile_micros(latencies, share));
            // 10 us each way, 50 us of a queue, and by how much it may be exceeded.
            let is_other = program != 0;
            sink(
                row.shows("median us", median)
                    .with("p99 us", p99, is_other.then_some(Bound::AtMost(150.0)))
                    .must("of the line", share_of(RATE, MTU, got, time), Bound::AtLeast(0.9)),
            );
        }
    }
}
