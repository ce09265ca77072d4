//! Beside others at one bottleneck.

use super::setting::{
    DELAY, MTU, RATE, addr, attr, delay, endless, limit_uplinks, payload_rate, percentile, switch,
};
use super::{Bound, Extent, Row, Sink};
use crate::cross_traffic::dcqcn::MARKING;
use crate::cross_traffic::endpoint::{Answer, DcqcnSender, Receiver, WindowSender};
use crate::cross_traffic::window::Algorithm;
use crate::load::Load;
use crate::load::flow::{FlowSpec, Operation};
use std::time::Duration;
use urxe_port::sim::{Queue, QueueId};

/// The lines of the hosts: faster than the bottleneck.
const ACCESS: u64 = 40_000_000_000;

/// The groups of those that send and of those that receive, with the bottleneck between.
const SENDERS: u16 = 0;
const RECEIVERS: u16 = 1;
const BOTTLENECK: QueueId = QueueId::Trunk(SENDERS, RECEIVERS);

/// How often the queue is looked at.
const SAMPLE: Duration = Duration::from_micros(10);

/// How long each look at the use of the line is.
const WINDOW: Duration = Duration::from_millis(5);

/// Who else sends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    Dcqcn,
    Window(Algorithm),
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Other::Dcqcn => "DCQCN",
            Other::Window(algorithm) => algorithm.name(),
        }
    }
}

/// A queue that marks as the switches of DCQCN's paper do.
fn marked() -> Queue {
    Queue { rate: RATE, limit: Some(1_000_000), marking: Some(MARKING) }
}

/// A queue that only loses.
fn unmarked() -> Queue {
    Queue::taildrop(RATE, 200_000)
}

/// Two engines and nothing else yet, one before and one behind the bottleneck.
fn bottleneck(queue: Queue) -> Load {
    let load = switch(2, delay(DELAY));
    load.network.set_queue(BOTTLENECK, queue);
    limit_uplinks(&load, 2, ACCESS);
    for node in 0..2 {
        load.network.set_queue(QueueId::Downlink(addr(node)), Queue::taildrop(ACCESS, 200_000));
    }
    load.network.set_group(addr(1), RECEIVERS);
    load
}

/// Adds another sender, the `number`th, and its receiver; that one's number.
fn add_other(load: &mut Load, number: usize, other: Other, ecn: bool) -> usize {
    let [from, to] = [addr(10 + 2 * number), addr(11 + 2 * number)];
    let [sender, receiver] =
        [from, to].map(|addr| load.network.attach(addr).expect("the address is free"));
    load.network.set_queue(QueueId::Uplink(from), Queue::unlimited(ACCESS));
    load.network.set_group(to, RECEIVERS);
    let start = load.now();
    let answer = match other {
        Other::Dcqcn => {
            load.add_endpoint(from, Box::new(DcqcnSender::new(sender, to, ACCESS, start)));
            Answer::Notifications
        }
        Other::Window(algorithm) => {
            let sender = WindowSender::new(sender, to, algorithm, ecn, start);
            load.add_endpoint(from, Box::new(sender));
            Answer::Acks
        }
    };
    load.add_endpoint(to, Box::new(Receiver::new(receiver, from, answer)))
}

/// What two flows had of the bottleneck.
struct Shares {
    /// Payload bytes of each.
    bytes: [u64; 2],
    /// Of the line's payload rate: all the time, and in the worst part of it.
    used: f64,
    least_used: f64,
    queue_mean: f64,
    queue_p99: usize,
    marked: u64,
    lost: u64,
}

/// Runs and watches the bottleneck, after a while in which the flows find their rates.
fn watch(load: &mut Load, received: impl Fn(&Load) -> [u64; 2], time: Duration) -> Shares {
    load.run_for(time / 2);
    let counters = |load: &Load| load.network.queue(load.now(), BOTTLENECK).unwrap_or_default();
    let (before, (_, counted)) = (received(load), counters(load));
    let (mut queue, mut last, mut least) = (Vec::new(), before, u64::MAX);
    let samples = (time.as_nanos() / SAMPLE.as_nanos()) as usize;
    for sample in 1..=samples {
        load.run_for(SAMPLE);
        queue.push(counters(load).0);
        if sample % (WINDOW.as_nanos() / SAMPLE.as_nanos()) as usize == 0 {
            let now = received(load);
            least = least.min(now[0] + now[1] - last[0] - last[1]);
            last = now;
        }
    }
    let (after, (_, counters)) = (received(load), counters(load));
    let bytes = [0, 1].map(|n| after[n] - before[n]);
    let used = |bytes: u64, time: Duration| {
        bytes as f64 * 8.0 / time.as_secs_f64() / payload_rate(RATE, MTU)
    };
    Shares {
        bytes,
        used: used(bytes[0] + bytes[1], time),
        least_used: used(least, WINDOW),
        queue_mean: queue.iter().sum::<usize>() as f64 / queue.len() as f64,
        queue_p99: percentile(&mut queue, 0.99).unwrap_or_default(),
        marked: counters.marked - counted.marked,
        lost: counters.full + counters.unmarkable - counted.full - counted.unmarkable,
    }
}

/// What is asked of one of ours and another.
fn row(case: String, shares: &Shares) -> Row {
    let mut row = figures(Row::new(case), shares);
    let bounds = [Bound::Between(0.5, 2.0), Bound::AtLeast(0.8), Bound::AtLeast(0.5)];
    for (figure, bound) in row.figures.iter_mut().zip(bounds) {
        figure.bound = Some(bound);
    }
    row
}

fn figures(row: Row, shares: &Shares) -> Row {
    let [first, second] = shares.bytes.map(|bytes| bytes as f64);
    row.shows("first by second", first / second.max(1.0))
        .shows("line used", shares.used)
        .shows("least used in 5 ms", shares.least_used)
        .shows("queue KB, mean", shares.queue_mean / 1e3)
        .shows("queue KB, p99", shares.queue_p99 as f64 / 1e3)
        .shows("marked", shares.marked as f64)
        .shows("lost", shares.lost as f64)
}

const QUEUES: [(bool, &str); 2] = [(true, "marked"), (false, "unmarked")];

/// One of ours and one other; and what others make of the same bottleneck among themselves.
pub(super) fn run(extent: Extent, sink: Sink<'_>) {
    let time = Duration::from_millis(extent.pick(100, 400));
    let reno = Other::Window(Algorithm::Reno);
    let cubic = Other::Window(Algorithm::Cubic);
    for operation in [Operation::Write, Operation::Read] {
        for (marks, queue_name) in QUEUES {
            for other in [Other::Dcqcn, reno, cubic] {
                if other == Other::Dcqcn && !marks {
                    continue; // It slows down for marks alone.
                }
                let mut load = bottleneck(if marks { marked() } else { unmarked() });
                let (from, to) = if operation == Operation::Read { (1, 0) } else { (0, 1) };
                let spec = FlowSpec { from, to, ..endless(operation, 64 << 10, 16) };
                let flow = load.add_flow(spec, &attr(), MTU);
                let receiver = add_other(&mut load, 0, other, marks);
                let received =
                    |load: &Load| [load.progress(flow).bytes, load.endpoint(receiver).received()];
                let shares = watch(&mut load, received, time);
                let case = format!("{} beside {}, {queue_name}", operation.name(), other.name());
                sink(row(case, &shares));
            }
        }
    }
    if extent == Extent::Long {
        for (marks, queue_name) in QUEUES {
            let mut pairs = vec![[reno, cubic]];
            if marks {
                pairs.extend([[Other::Dcqcn, reno], [Other::Dcqcn, cubic]]);
            }
            for pair in pairs {
                let shares = others(pair, if marks { marked() } else { unmarked() }, time);
                let [first, second] = pair.map(Other::name);
                let case = format!("{first} beside {second}, {queue_name}");
                sink(figures(Row::new(case), &shares));
            }
        }
    }
}

/// Two others: what they make of the bottleneck.
fn others(pair: [Other; 2], queue: Queue, time: Duration) -> Shares {
    let mut load = bottleneck(queue);
    let ecn = queue.marking.is_some();
    let receivers = [0, 1].map(|number| add_other(&mut load, number, pair[number], ecn));
    let received = |load: &Load| receivers.map(|n| load.endpoint(n).received());
    watch(&mut load, received, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_one_kind_share_a_bottleneck_and_use_it() {
        let reno = Other::Window(Algorithm::Reno);
        let cubic = Other::Window(Algorithm::Cubic);
        let queues = [marked(), unmarked()];
        let cases = [
            (Other::Dcqcn, queues[0]),
            (reno, queues[0]),
            (reno, queues[1]),
            (cubic, queues[0]),
            (cubic, queues[1]),
        ];
        for (other, queue) in cases {
            let shares = others([other; 2], queue, Duration::from_millis(40));
            let ratio = shares.bytes[0] as f64 / shares.bytes[1] as f64;
            let name = format!("{other:?}, marks {}", queue.marking.is_some());
            assert!((0.5..2.0).contains(&ratio), "{name}: {ratio:.2}");
            assert!(shares.used > 0.85, "{name}: {:.3} of the line", shares.used);
            assert_eq!(queue.marking.is_some(), shares.marked > 0, "{name}");
        }
    }
}
