//! A sequencer: node 0 gives out the numbers from 0 on, and all others ask for them.
//!
//! There is hardly anything to compute, so that it shows what a request costs by each way to make
//! one, and what each of the known tricks gives.

mod fetch_add;
mod rpc;
mod tcp;
mod ud;
mod write;

use crate::application::Application;
use crate::cluster::Node;
use crate::error::Error;
use clap::{Args, ValueEnum, value_parser};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};

/// How numbers are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Over TCP sockets.
    Tcp,
    /// By a SEND, which is answered by a SEND.
    SendRecv,
    /// By a WRITE into the server's memory, which is answered by one into the client's; both poll.
    Write,
    /// By datagrams, which are sent again if they are lost.
    Ud,
    /// By an ATOMIC FETCH-AND-ADD of a word of the server's memory, without its processor.
    FetchAdd,
}

impl By {
    /// The tricks that change anything.
    fn tricks(self) -> &'static [Tricks] {
        match self {
            By::Tcp => &[Tricks::None, Tricks::Batch],
            By::SendRecv => Tricks::value_variants(),
            // A request must be seen in memory, and all its queue pairs do the same.
            By::Write => {
                &[Tricks::None, Tricks::Inline, Tricks::Unsignaled, Tricks::Batch, Tricks::Qps]
            }
            // A request that may come twice must say which one it is.
            By::Ud => &[Tricks::None, Tricks::Inline, Tricks::Unsignaled, Tricks::Batch],
            // The answer is in the completion, and the request has no data.
            By::FetchAdd => &[Tricks::None, Tricks::Batch, Tricks::Qps],
        }
    }
}

/// What is done to be faster; each also has all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tricks {
    /// Nothing.
    None,
    /// What is sent is in the work request, not in a memory region.
    Inline,
    /// Only one in 32 SENDs or WRITEs has a completion.
    Unsignaled,
    /// Work requests are posted as lists: one doorbell for each.
    Batch,
    /// Requests are SENDs and receives of length 0.
    Empty,
    /// Each client has four queue pairs.
    Qps,
}

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How numbers are asked for.
    #[arg(long, value_enum, default_value_t = By::SendRecv)]
    by: By,
    /// What is done to be faster; each also has all before it. What has no meaning by a way
    /// changes nothing.
    #[arg(long, value_enum, default_value_t = Tricks::None)]
    tricks: Tricks,
    /// Requests of each client.
    #[arg(long, default_value_t = 50_000)]
    requests: u32,
    /// Requests of a client that are under way at a time.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=64))]
    depth: u32,
}

impl Arguments {
    /// How many queue pairs each client has.
    fn qps(&self) -> usize {
        if self.tricks >= Tricks::Qps { 4 } else { 1 }
    }

    /// How many requests are under way on a queue pair of so many, the one of this number.
    fn depth_of(&self, qp: usize) -> usize {
        let (depth, qps) = (self.depth as usize, self.qps());
        depth / qps + usize::from(qp < depth % qps)
    }
}

const SERVER: usize = 0;

/// With [`Tricks::Unsignaled`], one in so many has a completion all the same: that makes room in
/// the send queue, which holds four times as many.
const SIGNALED_EVERY: u32 = 32;

/// Numbers that were given out, or received. Two that are equal are almost certainly the same, each
/// as often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    count: u64,
    sum: u64,
    squares: u64,
}

impl Numbers {
    /// Those from 0 to below `end`, once each.
    fn below(end: u64) -> Numbers {
        (0..end).fold(Numbers::default(), Numbers::and)
    }

    fn and(self, number: u64) -> Numbers {
        self.plus(Numbers { count: 1, sum: number, squares: number.wrapping_mul(number) })
    }

    fn plus(self, other: Numbers) -> Numbers {
        Numbers {
            count: self.count + other.count,
            sum: self.sum.wrapping_add(other.sum),
            squares: self.squares.wrapping_add(other.squares),
        }
    }
}

/// What a node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    elapsed: Duration,
    /// What a client received; nothing at the server.
    numbers: Numbers,
    /// Whether they came in order on each connection.
    ordered: bool,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    by: By,
    tricks: Tricks,
    clients: usize,
    requests: u64,
    seconds: f64,
    /// Whether each number was given out once, and in order on each connection.
    exact: bool,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, mut node: Node) -> Result<Report, Error> {
        let mut received = Received::default();
        match self.by {
            By::Tcp => tcp::run(self, &mut node, &mut received),
            By::SendRecv => rpc::run(self, &mut node, &mut received),
            By::Write => write::run(self, &mut node, &mut received),
            By::Ud => ud::run(self, &mut node, &mut received),
            By::FetchAdd => fetch_add::run(self, &mut node, &mut received),
        }?;
        let Received { elapsed, .. } = received;
        Ok(Report { elapsed, numbers: received.numbers, ordered: !received.is_disordered })
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let reports = || reports.iter().flatten();
        let numbers = reports().fold(Numbers::default(), |all, report| all.plus(report.numbers));
        let clients = nodes - 1;
        let requests = u64::from(self.requests) * clients as u64;
        let exact = numbers == Numbers::below(requests) && reports().all(|report| report.ordered);
        let seconds = reports().map(|report| report.elapsed.as_secs_f64()).fold(0., f64::max);
        let &Arguments { by, tricks, .. } = self;
        (Summary { by, tricks, clients, requests, seconds, exact }, exact)
    }

    fn ways() -> Vec<String> {
        let of = |by: &By| {
            let by = *by;
            let way = |tricks: &Tricks| format!("--by {} --tricks {}", name(&by), name(tricks));
            by.tricks().iter().map(way).collect::<Vec<_>>()
        };
        By::value_variants().iter().flat_map(of).collect()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let all = By::value_variants();
        // In the order of the tricks.
        let of = |tricks: &'static Tricks| summaries.iter().filter(|this| this.tricks == *tricks);
        let points = Tricks::value_variants().iter().flat_map(of).map(|summary| {
            let group = all.iter().position(|by| *by == summary.by).unwrap_or(0) as f64;
            let plus = if summary.tricks == Tricks::None { "" } else { "+ " };
            (format!("{plus}{}", name(&summary.tricks)), (group, summary.rate()))
        });
        let panel = Panel {
            title: "requests a second; each trick also has those before it".into(),
            across: Across::Names(all.iter().map(name).collect()),
            series: Series::group(points),
        };
        let clients = summaries.first().map_or(0, |summary| summary.clients);
        let title = format!("A sequencer, asked by {clients} clients");
        Chart { title, panels: vec![panel] }
    }
}

impl Summary {
    /// Requests a second, of all clients.
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { by, tricks, clients, requests, seconds, exact } = self;
        let state = if *exact { "each number once" } else { "NOT EACH NUMBER ONCE" };
        let each = self.rate();
        write!(
            f,
            "{}, tricks: {}: {requests} requests of {clients} clients, {state}: {seconds:.3} s, \
             {each:.0} requests a second",
            name(by),
            name(tricks),
        )
    }
}

/// As on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What a client has received.
#[derive(Debug, Default)]
struct Received {
    started: Option<Instant>,
    elapsed: Duration,
    numbers: Numbers,
    last: Vec<Option<u64>>,
    is_disordered: bool,
}

impl Received {
    /// Begins to measure, with so many connections.
    fn start(&mut self, connections: usize) {
        self.last = vec![None; connections];
        self.started = Some(Instant::now());
    }

    /// Ends to measure.
    fn stop(&mut self) {
        self.elapsed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
    }

    fn take(&mut self, connection: usize, number: u64) {
        self.numbers = self.numbers.and(number);
        self.is_disordered |= self.last[connection] >= Some(number);
        self.last[connection] = Some(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_missing_or_there_twice_is_noticed() {
        let of = |numbers: &[u64]| numbers.iter().copied().fold(Numbers::default(), Numbers::and);
        assert_eq!(of(&[2, 0, 1]), Numbers::below(3));
        for wrong in [&[0, 1][..], &[0, 0, 2], &[1, 1, 1], &[0, 1, 2, 3], &[0, 1, 3]] {
            assert_ne!(of(wrong), Numbers::below(3), "{wrong:?}");
        }
        let mut received = Received::default();
        received.start(2);
        for (connection, number) in [(0, 5), (1, 3), (1, 4)] {
            received.take(connection, number);
        }
        assert!(!received.is_disordered);
        received.take(0, 5);
        assert!(received.is_disordered);
    }
}
