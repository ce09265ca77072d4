//! Atomic multicast: all nodes deliver the same messages in the same order, also when nodes die.
//!
//! Messages go through the [rings](crate::smc::rings) of the small-message multicast; what
//! everybody has received stands in a [shared state table](crate::sst), and so does the agreement
//! on who is left when a node has died. [`group`] is the algorithm.

pub mod group;

use crate::application::Application;
use crate::cluster::Node;
use crate::error::Error;
use crate::mesh::Mesh;
use crate::sst::{Column, Sst};
use clap::{Args, value_parser};
use group::Group;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};

/// What is sent, and who dies.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Messages that each node sends.
    #[arg(long, default_value_t = 2000)]
    messages: u64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(16..=65536))]
    size: u32,
    /// Slots of a ring.
    #[arg(long, default_value_t = 128, value_parser = value_parser!(u32).range(1..=4096))]
    slots: u32,
    /// Kill this node by SIGKILL when it has delivered half of all messages.
    #[arg(long, value_name = "RANK")]
    kill: Option<u8>,
}

/// What a node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    elapsed: Duration,
    /// How many messages of each node it has delivered.
    delivered: Vec<u64>,
    /// A sum of all that it has delivered, in order.
    digest: u32,
    /// Whether each came once, in the order of its sender, and whole.
    intact: bool,
    /// Who was in its last view.
    members: Vec<usize>,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    nodes: usize,
    /// Bytes of a message.
    size: u32,
    /// Who was left in the end.
    members: Vec<usize>,
    /// How many messages of each node were delivered.
    delivered: Vec<u64>,
    seconds: f64,
    /// Whether all who are left have delivered the same in the same order, and all of each other's.
    agreed: bool,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, node: Node) -> Result<Report, Error> {
        run(self, node)
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let left: Vec<_> = reports.iter().flatten().collect();
        let first = left.first();
        let digest = first.map(|report| report.digest);
        let members = first.map_or_else(Vec::new, |report| report.members.clone());
        let delivered = first.map_or_else(Vec::new, |report| report.delivered.clone());
        let is_complete = members.iter().all(|rank| delivered[*rank] == self.messages);
        let is_same = |report: &&Report| {
            report.intact && Some(report.digest) == digest && report.members == members
        };
        let is_right =
            |(rank, report): (usize, &Option<Report>)| report.is_some() == members.contains(&rank);
        let agreed = left.iter().all(is_same)
            && is_complete
            && reports.iter().enumerate().all(is_right)
            && members.len() + usize::from(self.kill.is_some()) == nodes;
        let seconds = left.iter().map(|report| report.elapsed.as_secs_f64()).fold(0., f64::max);
        (Summary { nodes, size: self.size, members, delivered, seconds, agreed }, agreed)
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
            title: "Messages that all nodes deliver in the same order".into(),
            panels: vec![
                panel("messages a second, which all nodes deliver", Summary::rate),
                panel("MB/s to each node", |of| of.rate() * f64::from(of.size) / 1e6),
            ],
        }
    }
}

impl Summary {
    /// Messages a second, of all senders.
    fn rate(&self) -> f64 {
        self.delivered.iter().sum::<u64>() as f64 / self.seconds
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { nodes, members, delivered, agreed, seconds, .. } = self;
        let state = if *agreed { "in the same order at all" } else { "WITHOUT AGREEMENT" };
        let count: u64 = delivered.iter().sum();
        write!(
            f,
            "{count} messages delivered {state}, {} of {nodes} nodes left: {seconds:.3} s, {:.0} \
             messages a second",
            members.len(),
            self.rate(),
        )?;
        let mut dead = (0..*nodes).filter(|rank| !members.contains(rank));
        dead.try_for_each(|rank| {
            let count = delivered.get(rank).copied().unwrap_or(0);
            write!(
                f,
                "\nnode {rank} died; all others have delivered the same {count} of its messages"
            )
        })
    }
}

/// The bytes of a message: another sequence for each sender and number.
fn content(sender: usize, number: u64, length: usize) -> Vec<u8> {
    let word = (number << 8 | sender as u64).to_le_bytes();
    word.iter().copied().cycle().take(length).collect()
}

/// A node that is done needs no others; before that it needs all.
const DONE: Column<bool> = Column::new(0);
/// Something to send now and then, so that it is noticed if a connection has broken.
const BEAT: Column<u64> = Column::new(1);

/// How often that is.
const BEAT_EVERY: Duration = Duration::from_millis(20);

fn run(arguments: &Arguments, mut node: Node) -> Result<Report, Error> {
    let (rank, nodes, size) = (node.rank, node.nodes, arguments.size as usize);
    if arguments.kill.is_some_and(|kill| usize::from(kill) >= nodes) {
        return Err(Error::Usage("--kill names no node"));
    }
    let is_victim = arguments.kill.map(usize::from) == Some(rank);
    let mut group = Group::new(nodes, arguments.slots as usize, size);
    let ends = Sst { base: group.length(), nodes, width: 2 };
    let mut mesh = Mesh::new(&mut node, ends.end())?;
    let (mut sent, mut delivered, mut intact) = (0, vec![0; nodes], true);
    let mut digest = crc32fast::Hasher::new();
    let (started, mut beats) = (Instant::now(), 0);
    let mut elapsed = None;
    let mut asked = false;
    loop {
        while sent < arguments.messages && group.send(&mut mesh, &content(rank, sent, size)) {
            sent += 1;
        }
        let busy = group.step(&mut mesh, |sender, message| {
            intact &= message == content(sender, delivered[sender], size);
            delivered[sender] += 1;
            digest.update(&[sender as u8]);
            digest.update(&message);
        })?;
        if is_victim && !asked && 2 * delivered[rank] >= arguments.messages {
            node.ask_for_kill()?;
            asked = true;
        }
        let has_all = group.members().iter().all(|rank| delivered[rank] == arguments.messages);
        if has_all && elapsed.is_none() && !is_victim {
            elapsed = Some(started.elapsed());
            ends.set(&mut mesh, &DONE, true);
            mesh.flush()?;
        }
        let members = group.members();
        if ends.count(&mesh, members, &DONE, |done| done) == members.count() {
            break;
        }
        if started.elapsed() > BEAT_EVERY * beats {
            beats += 1;
            ends.set(&mut mesh, &BEAT, beats.into());
        }
        mesh.poll()?;
        for failed in mesh.failed().collect::<Vec<_>>() {
            if !ends.get(&mesh, failed, &DONE) {
                group.suspect(&mut mesh, failed);
            }
        }
        mesh.rest(!busy);
    }
    Ok(Report {
        elapsed: elapsed.unwrap_or_else(|| started.elapsed()),
        delivered,
        digest: digest.finalize(),
        intact,
        members: group.members().iter().collect(),
    })
}
