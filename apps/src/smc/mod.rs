//! SMC: small messages from every node to every other, in the order of each sender.
//!
//! Each node has a [ring](rings) of each sender in its memory. A sender fills slots of its own
//! ring, and copies them to all others by one-sided WRITEs, as many as have become ready by then at
//! once; behind them a counter of filled slots, which is all that a receiver polls. What a receiver
//! has taken it tells the sender by a WRITE of another counter: slots that all have taken are free.

pub mod rings;

use crate::application::Application;
use crate::cluster::Node;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::mesh::Mesh;
use clap::{Args, value_parser};
use rings::Rings;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};

/// The multicast at one node.
#[derive(Debug)]
pub struct Smc {
    rings: Rings,
    /// Messages in our own ring, and how many of them the others know of.
    filled: u64,
    shown: u64,
    /// Whose turn it is to be received from.
    turn: usize,
}

const WORD: usize = size_of::<u64>();

/// Most messages that are taken of one sender before it is the next one's turn.
const BATCH_MAX: u64 = 16;

impl Smc {
    /// With rings of so many slots, for messages of so many bytes, from the beginning of the
    /// memory.
    pub fn new(nodes: usize, slots: usize, message_max: usize) -> Smc {
        let rings = Rings { base: 0, nodes, slots, message_max };
        Smc { rings, filled: 0, shown: 0, turn: 0 }
    }

    /// How much memory it needs: the rings, and a counter for each sender and receiver.
    pub fn length(&self) -> usize {
        self.rings.end() + self.rings.nodes * self.rings.nodes * WORD
    }

    /// Where it is counted what a receiver has taken of a sender's.
    fn taken_at(&self, sender: usize, receiver: usize) -> usize {
        self.rings.end() + (sender * self.rings.nodes + receiver) * WORD
    }

    /// Takes a message to be sent. False, and it is not taken, if no slot is free.
    pub fn send(&mut self, fabric: &mut impl Fabric, message: &[u8]) -> bool {
        let rank = fabric.rank();
        let taken =
            (0..self.rings.nodes).map(|receiver| fabric.load(self.taken_at(rank, receiver)));
        if self.filled - taken.min().unwrap_or(0) >= self.rings.slots as u64 {
            return false;
        }
        self.rings.fill(fabric, self.filled, message);
        self.filled += 1;
        true
    }

    /// Sends what was taken, and receives what has come: `receive` is called with the sender and
    /// the message. Whether there was anything.
    pub fn poll(
        &mut self,
        fabric: &mut impl Fabric,
        mut receive: impl FnMut(usize, Vec<u8>),
    ) -> bool {
        let mut busy = self.shown < self.filled;
        if busy {
            self.rings.show(fabric, self.shown..self.filled);
            self.shown = self.filled;
        }
        let (rank, nodes) = (fabric.rank(), self.rings.nodes);
        for sender in (self.turn..nodes).chain(0..self.turn) {
            let taken_at = self.taken_at(sender, rank);
            let taken = fabric.load(taken_at);
            let end = self.rings.filled(fabric, sender).min(taken + BATCH_MAX);
            for message in taken..end {
                receive(sender, self.rings.message(fabric, sender, message));
            }
            if taken < end {
                busy = true;
                fabric.store(taken_at, end);
                if sender != rank {
                    fabric.push_word(sender, taken_at);
                }
            }
        }
        self.turn = (self.turn + 1) % nodes;
        busy
    }
}

/// What is sent.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Messages that each node sends.
    #[arg(long, default_value_t = 10_000)]
    messages: u64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=65536))]
    size: u32,
    /// Slots of a ring.
    #[arg(long, default_value_t = 128, value_parser = value_parser!(u32).range(1..=4096))]
    slots: u32,
}

/// What a node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Until it had all messages of all nodes.
    elapsed: Duration,
    /// Whether each came once, in the order of its sender, and whole.
    intact: bool,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    nodes: usize,
    messages: u64,
    size: u32,
    /// Until each node had all messages of all nodes.
    seconds: f64,
    /// Whether each node received each message once, in the order of its sender, and whole.
    intact: bool,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, node: Node) -> Result<Report, Error> {
        run(self, node)
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let &Arguments { messages, size, .. } = self;
        let reports = || reports.iter().flatten();
        let elapsed = reports().map(|report| report.elapsed).max().unwrap_or_default();
        let intact = reports().all(|report| report.intact);
        (Summary { nodes, messages, size, seconds: elapsed.as_secs_f64(), intact }, intact)
    }

    fn ways() -> Vec<String> {
        let of = |size| [2, 4, 6, 8].map(|nodes| format!("--size {size} --nodes {nodes}"));
        [64, 1024, 16384].into_iter().flat_map(of).collect()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let panel = |title: &str, value: fn(&Summary) -> f64| {
            let point = |of: &Summary| (format!("{} bytes", of.size), (of.nodes as f64, value(of)));
            let series = Series::group(summaries.iter().map(point));
            Panel { title: title.into(), across: Across::Count("nodes"), series }
        };
        Chart {
            title: "Small messages from all nodes to all others".into(),
            panels: vec![
                panel("messages a second, which all nodes receive", Summary::rate),
                panel("MB/s to each node", |of| of.rate() * f64::from(of.size) / 1e6),
            ],
        }
    }
}

impl Summary {
    /// Messages a second, of all senders.
    fn rate(&self) -> f64 {
        self.messages as f64 * self.nodes as f64 / self.seconds
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { nodes, messages, size, seconds, intact } = self;
        let each = *messages as f64 / seconds;
        let state = if *intact { "in order, once and whole" } else { "NOT AS THEY WERE SENT" };
        write!(
            f,
            "{messages} messages of {size} bytes from each of {nodes} nodes to all, {state}: \
             {seconds:.3} s, {each:.0} messages a second and sender",
        )
    }
}

/// The bytes of a message: another sequence for each sender and number.
fn content(sender: usize, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![(sender as u8).wrapping_mul(31) ^ (number as u8); length];
    let head = number.to_le_bytes();
    let known = length.min(head.len());
    bytes[..known].copy_from_slice(&head[..known]);
    bytes
}

fn run(arguments: &Arguments, mut node: Node) -> Result<Report, Error> {
    let size = arguments.size as usize;
    let mut smc = Smc::new(node.nodes, arguments.slots as usize, size);
    let mut mesh = Mesh::new(&mut node, smc.length())?;
    let (mut sent, mut received, mut intact) = (0, vec![0; node.nodes], true);
    let started = Instant::now();
    while received.iter().any(|count| *count < arguments.messages) {
        while sent < arguments.messages && smc.send(&mut mesh, &content(node.rank, sent, size)) {
            sent += 1;
        }
        let busy = smc.poll(&mut mesh, |sender, message| {
            intact &= message == content(sender, received[sender], size);
            received[sender] += 1;
        });
        mesh.poll()?;
        if let Some(rank) = mesh.failed().next() {
            return Err(Error::Broken(format!("the connection to node {rank} has broken")));
        }
        mesh.rest(!busy);
    }
    let elapsed = started.elapsed();
    // Nobody leaves while others still wait for what it has posted.
    node.exchange(&())?;
    Ok(Report { elapsed, intact })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    /// Plays all nodes until all have everything, and checks each message.
    fn play(seed: u64) {
        let mut draw = Sim::new(seed, 0, 0);
        let nodes = 2 + draw.below(4);
        let (slots, size) = (1 + draw.below(8), 1 + draw.below(60));
        let totals: Vec<_> = (0..nodes).map(|_| draw.below(40) as u64).collect();
        let mut all: Vec<_> = (0..nodes).map(|_| Smc::new(nodes, slots, size)).collect();
        let mut sim = Sim::new(seed, nodes, all[0].length());
        let (mut sent, mut received) = (vec![0; nodes], vec![vec![0; nodes]; nodes]);
        while received.iter().any(|received| *received != totals) {
            let rank = sim.below(nodes);
            for _ in 0..sim.below(slots + 1) {
                let length = 1 + sent[rank] as usize % size;
                let message = content(rank, sent[rank], length);
                if sent[rank] < totals[rank] && all[rank].send(&mut sim.node(rank), &message) {
                    sent[rank] += 1;
                }
            }
            all[rank].poll(&mut sim.node(rank), |sender, message| {
                let number = received[rank][sender];
                let length = 1 + number as usize % size;
                assert_eq!(message, content(sender, number, length), "seed {seed}");
                received[rank][sender] += 1;
            });
            for _ in 0..sim.below(12) {
                sim.deliver();
            }
        }
        while sim.deliver() {}
        assert_eq!(received, vec![totals; nodes], "seed {seed}: more than was sent");
    }

    #[test]
    fn each_message_comes_once_whole_and_in_its_senders_order_in_1000_seeded_runs() {
        (0..1000).for_each(play);
    }

    #[test]
    fn a_sender_whose_slots_are_not_taken_waits() {
        let mut smc = Smc::new(2, 3, 8);
        let mut sim = Sim::new(1, 2, smc.length());
        let mut other = Smc::new(2, 3, 8);
        for _ in 0..3 {
            assert!(smc.send(&mut sim.node(0), b"message"));
            smc.poll(&mut sim.node(0), |_, _| ());
        }
        assert!(!smc.send(&mut sim.node(0), b"message"));
        while sim.deliver() {}
        let mut count = 0;
        other.poll(&mut sim.node(1), |_, _| count += 1);
        assert!(!smc.send(&mut sim.node(0), b"message"), "before it is told");
        while sim.deliver() {}
        assert!(count == 3 && smc.send(&mut sim.node(0), b"message"));
    }
}
