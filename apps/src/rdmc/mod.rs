//! RDMC: a large object from node 0 to all others, block by block over reliable connections.
//!
//! The order of sends and receives is known beforehand: it is the [schedule](mod@schedule). A block
//! goes by a WRITE with immediate data to its place in the receiver's object; the immediate data is
//! its number, and the completion of a receive tells the receiver that it can pass it on. Nobody
//! waits for the end of a step: a node sends as soon as it has what comes next in its [`Part`].

pub mod schedule;

use crate::application::Application;
use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use clap::{Args, ValueEnum, value_parser};
use schedule::{Algorithm, Transfer, schedule};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};
use urxe_port::sim::Rng;
use urxe_verbs::{Access, QpInit, RecvWr, SendWr, Wc, WcOpcode};

/// What is sent, and how.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Who sends what to whom.
    #[arg(long, value_enum, default_value_t = Algorithm::BinomialPipeline)]
    algorithm: Algorithm,
    /// Blocks of the object.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=1 << 16))]
    blocks: u32,
    /// Bytes of a block.
    #[arg(long, default_value_t = 65536, value_parser = value_parser!(u32).range(1..=1 << 24))]
    block_size: u32,
}

/// What one node does of a schedule.
#[derive(Debug)]
pub struct Part {
    sends: VecDeque<(usize, usize)>,
    has: Vec<bool>,
    /// How many blocks it receives from each node.
    expected: Vec<usize>,
}

impl Part {
    /// That of `node`, one of `nodes`, for an object of so many blocks.
    pub fn new(algorithm: Algorithm, nodes: usize, blocks: usize, node: usize) -> Part {
        let mut part =
            Part { sends: VecDeque::new(), has: vec![node == 0; blocks], expected: vec![0; nodes] };
        for Transfer { from, to, block } in schedule(algorithm, nodes, blocks).into_iter().flatten()
        {
            if from == node {
                part.sends.push_back((to, block));
            } else if to == node {
                part.expected[from] += 1;
            }
        }
        part
    }

    /// What comes next and can be sent by now: to whom, and which block.
    pub fn next_send(&self) -> Option<(usize, usize)> {
        self.sends.front().copied().filter(|&(_, block)| self.has[block])
    }

    /// That was sent.
    pub fn sent(&mut self) {
        self.sends.pop_front();
    }

    /// A block has come.
    ///
    /// # Errors
    /// [`Error::Broken`] if there is no such block, or it came before.
    pub fn received(&mut self, block: usize) -> Result<(), Error> {
        match self.has.get_mut(block) {
            Some(has) if !*has => {
                *has = true;
                Ok(())
            }
            Some(_) => Err(Error::Broken(format!("block {block} came twice"))),
            None => Err(Error::Broken(format!("block {block} came, which the object has not"))),
        }
    }

    /// Whether it has received everything and sent everything.
    pub fn is_done(&self) -> bool {
        self.sends.is_empty() && self.has.iter().all(|has| *has)
    }
}

/// What a node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Until all nodes had all of it.
    elapsed: Duration,
    /// Whether what it has is what node 0 sent, by its CRC.
    intact: bool,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    algorithm: Algorithm,
    nodes: usize,
    blocks: u32,
    block_size: u32,
    /// Steps of the schedule.
    steps: usize,
    /// Until all nodes had all of it.
    seconds: f64,
    /// Whether each node has what node 0 sent.
    intact: bool,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, node: Node) -> Result<Report, Error> {
        run(self, node)
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let &Arguments { algorithm, blocks, block_size } = self;
        let steps = schedule(algorithm, nodes, blocks as usize).len();
        let reports = || reports.iter().flatten();
        let elapsed = reports().map(|report| report.elapsed).max().unwrap_or_default();
        let intact = reports().all(|report| report.intact);
        let seconds = elapsed.as_secs_f64();
        (Summary { algorithm, nodes, blocks, block_size, steps, seconds, intact }, intact)
    }

    fn ways() -> Vec<String> {
        let of = |algorithm: &Algorithm| {
            [2, 4, 6, 8].map(|nodes| format!("--algorithm {algorithm} --nodes {nodes}"))
        };
        Algorithm::value_variants().iter().flat_map(of).collect()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let panel = |title: &str, value: fn(&Summary) -> f64| {
            let point = |of: &Summary| (of.algorithm.to_string(), (of.nodes as f64, value(of)));
            let series = Series::group(summaries.iter().map(point));
            Panel { title: title.into(), across: Across::Count("nodes"), series }
        };
        let size = summaries.first().map_or(0., Summary::megabytes);
        let blocks = summaries.first().map_or(0, |summary| summary.blocks);
        Chart {
            title: format!("An object of {size:.1} MB in {blocks} blocks, to all other nodes"),
            panels: vec![
                panel("MB/s to each", |of| of.megabytes() / of.seconds),
                panel("steps of the schedule", |of| of.steps as f64),
            ],
        }
    }
}

impl Summary {
    /// The size of the object.
    fn megabytes(&self) -> f64 {
        f64::from(self.blocks) * f64::from(self.block_size) / 1e6
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { algorithm, nodes, blocks, block_size, steps, seconds, intact } = self;
        let state = if *intact { "intact" } else { "NOT INTACT" };
        write!(
            f,
            "{algorithm}: {blocks} blocks of {block_size} bytes to {} nodes in {steps} steps: \
             {seconds:.3} s, {:.1} MB/s to each, {state} everywhere",
            nodes - 1,
            self.megabytes() / seconds,
        )
    }
}

/// Blocks under way to one node. More of them would fill the queues and not the network.
const UNDER_WAY_MAX: usize = 16;

/// Completions of one queue pair: of its receives, and of what is under way.
const COMPLETIONS_MAX: u32 = 256;

fn run(arguments: &Arguments, mut node: Node) -> Result<Report, Error> {
    let (blocks, block_size) = (arguments.blocks as usize, arguments.block_size as usize);
    let mut part = Part::new(arguments.algorithm, node.nodes, blocks, node.rank);
    let pd = node.context.alloc_pd()?;
    let channel = node.context.create_comp_channel()?;
    let cq = node.context.create_cq(COMPLETIONS_MAX * node.nodes as u32, Some(&channel))?;
    let object = pd.alloc_mr(blocks * block_size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    if node.rank == 0 {
        let mut rng = Rng::new(1);
        for at in (0..object.length()).step_by(8) {
            let word = rng.next_u64().to_le_bytes();
            object.write_at(at, &word[..word.len().min(object.length() - at)])?;
        }
    }
    let peers = connect_all(&mut node, &pd, &cq, object.remote_buf(..)?, Access::REMOTE_WRITE)?;
    let peer = |rank: usize| -> Result<&Peer, Error> {
        peers[rank].as_ref().ok_or_else(|| Error::Broken(format!("node {rank} sends to itself")))
    };
    // A receive for each block that is to come, as far as the queues hold them.
    let depth = QpInit::new(&cq).caps.max_recv_wr as usize;
    for (rank, expected) in part.expected.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
        let first = depth.min(*expected);
        peer(rank)?.qp.post_recv(&vec![RecvWr::new(rank as u64, &[]); first])?;
        *expected -= first;
    }
    node.exchange(&())?;

    let started = Instant::now();
    let mut under_way = vec![0; node.nodes];
    let mut wcs = [Wc::default(); 32];
    loop {
        while let Some((to, block)) =
            part.next_send().filter(|(to, _)| under_way[*to] < UNDER_WAY_MAX)
        {
            let Peer { qp, memory } = peer(to)?;
            let range = block * block_size..(block + 1) * block_size;
            let there = memory.slice(range.start as u64..range.end as u64)?;
            let sge = [object.sge(range)?];
            qp.post_send(&[SendWr::write_imm(to as u64, &sge, there, block as u32).signaled()])?;
            part.sent();
            under_way[to] += 1;
        }
        if part.is_done() && under_way.iter().all(|count| *count == 0) {
            break;
        }
        let count = cq.wait(&mut wcs, None)?;
        for wc in &wcs[..count] {
            let rank = wc.check()?.wr_id as usize;
            if wc.opcode != WcOpcode::RecvRdmaWithImm {
                under_way[rank] -= 1;
                continue;
            }
            part.received(wc.imm.unwrap_or(u32::MAX) as usize)?;
            if part.expected[rank] > 0 {
                part.expected[rank] -= 1;
                peer(rank)?.qp.post_recv(&[RecvWr::new(rank as u64, &[])])?;
            }
        }
    }
    node.exchange(&())?;
    let elapsed = started.elapsed();

    let mut content = vec![0; object.length()];
    object.read_at(0, &mut content)?;
    let sums = node.exchange(&crc32fast::hash(&content))?;
    Ok(Report { elapsed, intact: sums[node.rank] == sums[0] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays all nodes, with blocks that arrive in the order of their posts on each connection and
    /// in any order between connections.
    fn play(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut below = |limit: usize| rng.next_u64() as usize % limit;
        let algorithm = Algorithm::value_variants()[below(4)];
        let (nodes, blocks) = (2 + below(12), 1 + below(20));
        let mut parts: Vec<_> =
            (0..nodes).map(|node| Part::new(algorithm, nodes, blocks, node)).collect();
        let mut links = vec![VecDeque::new(); nodes * nodes];
        while !parts.iter().all(Part::is_done) {
            for (from, part) in parts.iter_mut().enumerate() {
                while let Some((to, block)) = part.next_send() {
                    links[from * nodes + to].push_back(block);
                    part.sent();
                }
            }
            let busy: Vec<_> = (0..links.len()).filter(|&at| !links[at].is_empty()).collect();
            assert!(!busy.is_empty(), "seed {seed}: all wait for each other");
            let link = busy[below(busy.len())];
            let block = links[link].pop_front().unwrap();
            parts[link % nodes].expected[link / nodes] -= 1;
            parts[link % nodes].received(block).unwrap();
        }
        assert!(links.iter().all(VecDeque::is_empty));
        assert!(parts.iter().all(|part| part.expected.iter().all(|count| *count == 0)));
    }

    #[test]
    fn an_object_comes_whole_whatever_the_network_is_slow_at_in_1000_seeded_runs() {
        (0..1000).for_each(play);
    }

    #[test]
    fn a_block_that_comes_twice_or_is_none_is_refused() {
        let mut part = Part::new(Algorithm::Chain, 3, 2, 1);
        assert!(part.next_send().is_none());
        part.received(0).unwrap();
        assert_eq!(part.next_send(), Some((2, 0)));
        assert!(part.received(0).unwrap_err().to_string().contains("block 0 came twice"));
        assert!(part.received(2).unwrap_err().to_string().contains("block 2"));
    }
}
