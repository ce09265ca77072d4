//! Long round trips.

use super::setting::{attr, delay, endless, share_of, switch};
use super::{Bound, Extent, Row, Sink};
use crate::load::flow::Operation;
use std::time::Duration;
use urxe_engine::Counter;
use urxe_port::sim::{Queue, QueueId};
use urxe_types::PathMtu;

const RATE: u64 = 10_000_000_000;

/// The largest: long runs have fewer packets so.
const MTU: PathMtu = PathMtu::Mtu4096;

/// Bytes of a message, and how many are under way: twice what the longest path holds.
const LEN: usize = 16 << 20;
const DEPTH: u64 = 16;

/// What is left of the line, at least, while a window grows again that its first losses have cut.
const AFTER_LOSSES: f64 = 0.01;

/// Where the 10 Gbit/s are.
#[derive(Clone, Copy)]
enum Narrow {
    /// The sender's own line: nothing can be lost.
    Uplink,
    /// In the midst of the path, behind a queue of so many bytes.
    Middle(usize),
}

fn path(operation: Operation, round_trip: Duration, narrow: Narrow, time: Duration) -> Row {
    let mut load = switch(2, delay(round_trip / 2));
    let (queue, at) = match narrow {
        Narrow::Uplink => (Queue::unlimited(RATE), "no other limit".to_owned()),
        Narrow::Middle(limit) => {
            (Queue::taildrop(RATE, limit), format!("{} KB queue", limit / 1000))
        }
    };
    for node in 0..2 {
        match narrow {
            Narrow::Uplink => load.network.set_queue(QueueId::Uplink(load.addr(node)), queue),
            Narrow::Middle(_) => {
                load.network.set_group(load.addr(node), node as u16);
                load.network.set_queue(QueueId::Trunk(node as u16, 1 - node as u16), queue);
            }
        }
    }
    let flow = load.add_flow(endless(operation, LEN, DEPTH), &attr(), MTU);
    load.run_for(time / 2);
    let before = load.progress(flow).bytes;
    load.run_for(time / 2);
    let bytes = load.progress(flow).bytes - before;
    let case = format!("{}, {} ms, {at}", operation.name(), round_trip.as_millis());
    let share = share_of(RATE, MTU, bytes, time / 2);
    let lost = load.network.counters().queue_full;
    let row = Row::new(case);
    let row = match narrow {
        // Nothing is lost, so every probe is needless.
        Narrow::Uplink => row.must("of the line", share, Bound::AtLeast(0.9)).must(
            "probes",
            load.count(Counter::Probes) as f64,
            Bound::AtMost(0.0),
        ),
        // More was lost at once than what is kept early, and the window is smaller than that.
        Narrow::Middle(_) => {
            let failed = f64::from(u8::from(load.flows[flow].failed));
            row.must("of the line", share, Bound::AtLeast(AFTER_LOSSES))
                .must("dead", failed, Bound::AtMost(0.0))
                .shows("probes", load.count(Counter::Probes) as f64)
        }
    };
    row.shows("lost", lost as f64)
        .shows("sent again", load.count(Counter::RetransmittedPackets) as f64)
}

/// One QP, round trips from 2 to 100 ms.
pub(super) fn run(extent: Extent, sink: Sink<'_>) {
    // Until a path is full, the window doubles once per round trip at best.
    let times = [(2, 100, 200), (10, 400, 1_000), (100, 2_400, 6_000)];
    for narrow in [Narrow::Uplink, Narrow::Middle(2_000_000)] {
        for (round_trip, short, long) in times {
            for operation in [Operation::Write, Operation::Read] {
                let time = match narrow {
                    Narrow::Uplink => extent.pick(short, long),
                    Narrow::Middle(_) => long,
                };
                let time = Duration::from_millis(time);
                sink(path(operation, Duration::from_millis(round_trip), narrow, time));
            }
        }
    }
}
