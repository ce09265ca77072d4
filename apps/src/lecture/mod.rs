//! Latency and bandwidth as lectures show them: node 1 asks node 0, by 8 bytes, and gets an answer
//! of so many, by TCP sockets and by RDMA. Once it is asked as soon as it has answered, which shows
//! latency; and once many requests are under way, which shows bandwidth.

mod rdma;
mod tcp;

use crate::application::Application;
use crate::cluster::Node;
use crate::error::Error;
use clap::{Args, ValueEnum, value_parser};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};

/// How answers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Over a TCP socket.
    Tcp,
    /// By a SEND into a receive that was posted for it.
    Send,
    /// By a WRITE to their place; its immediate data tells that they are there.
    Write,
    /// By a READ of the server's memory, without a request to its processor.
    Read,
}

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How answers come.
    #[arg(long, value_enum, default_value_t = By::Write)]
    by: By,
    /// The longest answer in bytes; the shortest has 8.
    #[arg(long, default_value_t = 1 << 21, value_parser = value_parser!(u32).range(8..=1 << 24))]
    max: u32,
    /// How many requests are under way where bandwidth is measured.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u8).range(1..=32))]
    depth: u8,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 150)]
    millis: u32,
}

impl Arguments {
    fn sizes(&self) -> impl Iterator<Item = usize> {
        let max = self.max as usize;
        (0..).map(|step| 8 << (2 * step)).take_while(move |size| *size <= max)
    }

    fn depth(&self) -> usize {
        self.depth.into()
    }
}

const SERVER: usize = 0;
const CLIENT: usize = 1;

/// A request: how many bytes are wanted, none if there will be no more; and in which place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    size: u32,
    slot: u32,
}

impl Request {
    const LENGTH: usize = 8;

    fn to_bytes(self) -> [u8; Request::LENGTH] {
        (u64::from(self.size) << 32 | u64::from(self.slot)).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; Request::LENGTH]) -> Request {
        let both = u64::from_le_bytes(bytes);
        Request { size: (both >> 32) as u32, slot: both as u32 }
    }
}

/// A way to ask.
trait Client {
    /// Asks.
    fn ask(&mut self, request: Request) -> Result<(), Error>;

    /// Waits for the answer to the first request that has none, which is this one.
    fn answer(&mut self, request: Request) -> Result<(), Error>;

    /// Tells the server that there will be no more requests.
    fn leave(&mut self) -> Result<(), Error>;
}

/// What was measured with answers of one length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// In bytes.
    size: usize,
    /// From a request until its answer is there: the median, in microseconds.
    round_trip_us: f64,
    /// With requests under way, of the bytes of answers.
    gbit_per_second: f64,
}

/// What a node reports: the client what it has measured, the server nothing.
pub type Report = Vec<Point>;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    by: By,
    depth: u8,
    points: Vec<Point>,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    const NODES: u8 = 2;

    fn run(&self, mut node: Node) -> Result<Report, Error> {
        if node.nodes != 2 {
            return Err(Error::Usage("one node asks and one answers: --nodes 2 is expected"));
        }
        let mut end = None;
        let points = match (self.by, node.rank) {
            (By::Tcp, SERVER) => tcp::serve(&mut node, self.max as usize).map(|()| Vec::new()),
            (By::Tcp, _) => self.measure(&mut tcp::Asking::new(&mut node, self.max as usize)?),
            (_, SERVER) => {
                end.insert(rdma::End::new(self, &mut node)?).serve().map(|()| Vec::new())
            }
            _ => self.measure(end.insert(rdma::End::new(self, &mut node)?)),
        }?;
        // What was sent last may be lost, and is repeated for as long as the connection is open.
        node.exchange(&())?;
        drop(end);
        Ok(points)
    }

    fn summary(&self, _: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let points = reports.get(CLIENT).cloned().flatten().unwrap_or_default();
        let is_complete = points.len() == self.sizes().count();
        (Summary { by: self.by, depth: self.depth, points }, is_complete)
    }

    fn ways() -> Vec<String> {
        By::value_variants().iter().map(|by| format!("--by {}", name(*by))).collect()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let panel = |title: String, value: fn(&Point) -> f64| {
            let points = |summary: &Summary| {
                let name = name(summary.by).to_uppercase();
                let point = |point: &Point| (name.clone(), (point.size as f64, value(point)));
                summary.points.iter().map(point).collect::<Vec<_>>()
            };
            let series = Series::group(summaries.iter().flat_map(points));
            Panel { title, across: Across::Bytes, series }
        };
        let depth = summaries.first().map_or(0, |summary| summary.depth);
        let latency = "microseconds until an answer of so many bytes is there";
        let bandwidth = format!("Gbit/s of answers, {depth} requests under way");
        Chart {
            title: "Asking another node for so many bytes".into(),
            panels: vec![
                panel(latency.into(), |point| point.round_trip_us),
                panel(bandwidth, |point| point.gbit_per_second),
            ],
        }
    }
}

/// As on the command line.
fn name(by: By) -> String {
    by.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} {:>14} {:>10}", "bytes", "round trip, us", "Gbit/s")?;
        self.points.iter().try_for_each(|Point { size, round_trip_us, gbit_per_second }| {
            write!(f, "\n{size:>8} {round_trip_us:>14.1} {gbit_per_second:>10.3}")
        })
    }
}

impl Arguments {
    fn measure(&self, client: &mut impl Client) -> Result<Report, Error> {
        let points = self.sizes().map(|size| {
            let round_trip_us = self.latency(client, size as u32)?.as_secs_f64() * 1e6;
            let gbit_per_second = self.bandwidth(client, size as u32)? * 8. / 1e9;
            Ok(Point { size, round_trip_us, gbit_per_second })
        });
        let points = points.collect::<Result<_, Error>>()?;
        client.leave()?;
        Ok(points)
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.millis.into())
    }

    /// The median of how long a request takes.
    fn latency(&self, client: &mut impl Client, size: u32) -> Result<Duration, Error> {
        let request = Request { size, slot: 0 };
        let (first, mut all) = (Instant::now(), Vec::new());
        while all.len() < 9 || first.elapsed() < self.time() {
            let asked = Instant::now();
            client.ask(request)?;
            client.answer(request)?;
            all.push(asked.elapsed());
        }
        all.sort();
        Ok(all[all.len() / 2])
    }

    /// Bytes of answers a second, with requests under way.
    fn bandwidth(&self, client: &mut impl Client, size: u32) -> Result<f64, Error> {
        let in_place = |number: usize| Request { size, slot: (number % self.depth()) as u32 };
        let started = Instant::now();
        let (mut asked, mut answered) = (0, 0);
        while answered < asked || asked == 0 || started.elapsed() < self.time() {
            while asked < answered + self.depth() && (asked == 0 || started.elapsed() < self.time())
            {
                client.ask(in_place(asked))?;
                asked += 1;
            }
            if answered < asked {
                client.answer(in_place(answered))?;
                answered += 1;
            }
        }
        Ok(answered as f64 * f64::from(size) / started.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Answers what it is asked, in order, and never has two answers for one place.
    #[derive(Default)]
    struct Strict {
        under_way: VecDeque<Request>,
        most: usize,
        has_left: bool,
    }

    impl Client for Strict {
        fn ask(&mut self, request: Request) -> Result<(), Error> {
            assert!(self.under_way.iter().all(|other| other.slot != request.slot));
            self.under_way.push_back(Request::from_bytes(request.to_bytes()));
            self.most = self.most.max(self.under_way.len());
            Ok(())
        }

        fn answer(&mut self, request: Request) -> Result<(), Error> {
            assert_eq!(self.under_way.pop_front(), Some(request));
            Ok(())
        }

        fn leave(&mut self) -> Result<(), Error> {
            assert!(self.under_way.is_empty() && !self.has_left);
            self.has_left = true;
            Ok(())
        }
    }

    #[test]
    fn each_length_is_measured_and_no_place_is_used_twice_at_a_time() {
        let mut client = Strict::default();
        let arguments = Arguments { by: By::Tcp, max: 600, depth: 5, millis: 1 };
        let points = arguments.measure(&mut client).unwrap();
        let sizes: Vec<_> = points.iter().map(|point| point.size).collect();
        assert_eq!((sizes, client.most, client.has_left), (vec![8, 32, 128, 512], 5, true));
    }
}
