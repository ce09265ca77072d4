//! Two-phase commit by the table: all nodes make a change, or none does.
//!
//! Each node has an account. Node 0, the coordinator, proposes to take an amount from all of them;
//! a node votes for it if its account has so much, and all do as the coordinator decides. A message
//! of the protocol is a word that grows in the sender's row. If the coordinator dies, the others
//! wait for ever: that is two-phase commit. The [atomic multicast](crate::atomic) does not.

use super::nodes::Nodes;
use super::predicate::{Growing, Stable};
use super::{Column, Sst};
use crate::application::Application;
use crate::cluster::Node;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::mesh::Mesh;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use urxe_chart::{Across, Chart, Panel, Series};
use urxe_port::sim::Rng;

/// The coordinator's: how many transactions it has proposed.
const PROPOSED: Column<u64> = Column::new(0);
/// The coordinator's: the amount of the last of them.
const AMOUNT: Column<u64> = Column::new(1);
/// How many transactions the node has voted on, twice, and 1 if the last vote was for it.
const VOTED: Column<u64> = Column::new(2);
/// The coordinator's: how many transactions it has decided, twice, and 1 if the last is committed.
const DECIDED: Column<u64> = Column::new(3);
/// How many decisions the node has carried out.
const DONE: Column<u64> = Column::new(4);

const COORDINATOR: usize = 0;

/// What a node knows and does.
#[derive(Debug)]
pub struct Participant {
    sst: Sst,
    balance: u64,
    /// Of each transaction, whether it was committed.
    decisions: Vec<bool>,
    to_vote: Growing,
    to_do: Growing,
}

impl Participant {
    /// With so much in its account, and the table at the begin of the memory.
    pub fn new(nodes: usize, balance: u64) -> Participant {
        let sst = Sst { base: 0, nodes, width: 5 };
        let (to_vote, to_do) = Default::default();
        Participant { sst, balance, decisions: Vec::new(), to_vote, to_do }
    }

    /// How much memory it needs.
    pub fn length(&self) -> usize {
        self.sst.end()
    }

    /// Votes, and does as was decided. Whether there was anything to do.
    pub fn step(&mut self, fabric: &mut impl Fabric) -> bool {
        let sst = self.sst;
        let proposed = self.to_vote.fires(sst.get(fabric, COORDINATOR, &PROPOSED));
        if !proposed.is_empty() {
            let is_for = sst.get(fabric, COORDINATOR, &AMOUNT) <= self.balance;
            sst.set(fabric, &VOTED, proposed.end << 1 | u64::from(is_for));
        }
        let decided = sst.get(fabric, COORDINATOR, &DECIDED);
        let to_do = self.to_do.fires(decided >> 1);
        if !to_do.is_empty() {
            let commit = decided & 1 == 1;
            if commit {
                // Nobody's amount changes before all are done with it.
                self.balance -= sst.get(fabric, COORDINATOR, &AMOUNT);
            }
            self.decisions.push(commit);
            sst.set(fabric, &DONE, to_do.end);
        }
        !proposed.is_empty() || !to_do.is_empty()
    }
}

/// What the coordinator does besides.
#[derive(Debug)]
pub struct Coordinator {
    sst: Sst,
    amounts: Vec<u64>,
    /// Of the transaction that is proposed: all have voted; all are done.
    voted: Stable,
    done: Stable,
}

impl Coordinator {
    /// Proposes these amounts, one after the other.
    pub fn new(participant: &Participant, amounts: Vec<u64>) -> Coordinator {
        let (voted, done) = Default::default();
        Coordinator { sst: participant.sst, amounts, voted, done }
    }

    /// Decides when all have voted, and proposes the next when all are done. Whether there was
    /// anything to do.
    pub fn step(&mut self, fabric: &mut impl Fabric) -> bool {
        let (sst, all) = (self.sst, Nodes::all(self.sst.nodes));
        let proposed = sst.get(fabric, COORDINATOR, &PROPOSED);
        let has_voted = |voted: u64| voted >> 1 == proposed;
        let voted = sst.count(fabric, all, &VOTED, has_voted) == sst.nodes;
        let voted = self.voted.fires(proposed > 0 && voted);
        if voted {
            let commit = sst.count(fabric, all, &VOTED, |voted| voted & 1 == 1) == sst.nodes;
            sst.set(fabric, &DECIDED, proposed << 1 | u64::from(commit));
        }
        let done = self.done.fires(sst.min(fabric, all, &DONE) == proposed);
        if done && let Some(amount) = self.amounts.get(proposed as usize) {
            sst.put(fabric, &AMOUNT, *amount);
            sst.set(fabric, &PROPOSED, proposed + 1);
            (self.voted, self.done) = Default::default();
        }
        voted || done
    }
}

/// What is proposed.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Transactions that are proposed.
    #[arg(long, default_value_t = 1000)]
    transactions: u32,
}

/// What a node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    elapsed: Duration,
    /// Of each transaction, whether it was committed.
    decisions: Vec<bool>,
    /// Whether its account has what the decisions left in it.
    is_balanced: bool,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    nodes: usize,
    committed: usize,
    aborted: usize,
    seconds: f64,
    /// Whether all nodes have done the same, and their accounts show it.
    agreed: bool,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, node: Node) -> Result<Report, Error> {
        run(self, node)
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let reports: Vec<_> = reports.iter().flatten().collect();
        let decisions = reports.first().map_or(&[][..], |report| &report.decisions);
        let is_same = |report: &&Report| report.is_balanced && report.decisions == decisions;
        let agreed = reports.iter().all(is_same);
        let seconds = reports.iter().map(|report| report.elapsed.as_secs_f64()).fold(0., f64::max);
        let committed = decisions.iter().filter(|commit| **commit).count();
        let aborted = decisions.len() - committed;
        (Summary { nodes, committed, aborted, seconds, agreed }, agreed)
    }

    fn ways() -> Vec<String> {
        [2, 3, 4, 6, 8].map(|nodes| format!("--nodes {nodes}")).into()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let point = |of: &Summary| ("two-phase commit".into(), (of.nodes as f64, of.rate()));
        let series = Series::group(summaries.iter().map(point));
        let (title, across) = ("transactions a second".into(), Across::Count("nodes"));
        let panels = vec![Panel { title, across, series }];
        Chart { title: "Transactions that all nodes make, or none".into(), panels }
    }
}

impl Summary {
    /// Transactions a second, committed or not.
    fn rate(&self) -> f64 {
        (self.committed + self.aborted) as f64 / self.seconds
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { nodes, committed, aborted, seconds, agreed } = self;
        let state = if *agreed { "all agree" } else { "THEY DO NOT AGREE" };
        let each = self.rate();
        write!(
            f,
            "{nodes} nodes: {committed} transactions committed, {aborted} aborted, {state}: \
             {seconds:.3} s, {each:.0} transactions a second",
        )
    }
}

/// What a node has at first.
fn first_balance(nodes: usize, rank: usize, transactions: usize) -> u64 {
    // Too little for all of them, and not the same everywhere.
    (AMOUNT_MAX * transactions / 4 + (rank * 7) % nodes) as u64
}

const AMOUNT_MAX: usize = 100;

fn amounts(seed: u64, transactions: usize) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..transactions).map(|_| 1 + rng.next_u64() % AMOUNT_MAX as u64).collect()
}

fn run(arguments: &Arguments, mut node: Node) -> Result<Report, Error> {
    let transactions = arguments.transactions as usize;
    let balance = first_balance(node.nodes, node.rank, transactions);
    let amounts = amounts(1, transactions);
    let mut participant = Participant::new(node.nodes, balance);
    let mut coordinator = Coordinator::new(&participant, amounts.clone());
    let mut mesh = Mesh::new(&mut node, participant.length())?;
    let started = Instant::now();
    while participant.decisions.len() < transactions {
        let mut busy = participant.step(&mut mesh);
        if node.rank == COORDINATOR {
            busy |= coordinator.step(&mut mesh);
        }
        mesh.poll()?;
        if let Some(rank) = mesh.failed().next() {
            return Err(Error::Broken(format!("the connection to node {rank} has broken")));
        }
        mesh.rest(!busy);
    }
    let elapsed = started.elapsed();
    node.exchange(&())?;
    let Participant { decisions, balance: left, .. } = participant;
    let taken = amounts.iter().zip(&decisions).filter(|(_, commit)| **commit);
    let is_balanced = left + taken.map(|(amount, _)| amount).sum::<u64>() == balance;
    Ok(Report { elapsed, decisions, is_balanced })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    #[test]
    fn all_do_the_same_and_what_one_cannot_do_no_one_does_in_1000_seeded_runs() {
        let (mut committed, mut aborted) = (0, 0);
        for seed in 0..1000 {
            let mut draw = Sim::new(seed, 0, 0);
            let (nodes, transactions) = (2 + draw.below(5), 1 + draw.below(20));
            let balances: Vec<_> = (0..nodes).map(|_| draw.below(1000) as u64).collect();
            let mut all: Vec<_> =
                balances.iter().map(|balance| Participant::new(nodes, *balance)).collect();
            let amounts = amounts(seed, transactions);
            let mut coordinator = Coordinator::new(&all[0], amounts.clone());
            let mut sim = Sim::new(seed, nodes, all[0].length());
            while all.iter().any(|one| one.decisions.len() < transactions) {
                let rank = sim.below(nodes);
                // A balance below 0 would be an overflow.
                all[rank].step(&mut sim.node(rank));
                coordinator.step(&mut sim.node(COORDINATOR));
                sim.deliver();
            }
            let mut left = balances.clone();
            for (amount, commit) in amounts.iter().zip(&all[0].decisions) {
                assert_eq!(*commit, left.iter().all(|left| amount <= left), "seed {seed}");
                left.iter_mut().for_each(|left| *left -= amount * u64::from(*commit));
                *(if *commit { &mut committed } else { &mut aborted }) += 1;
            }
            for (one, left) in all.iter().zip(left) {
                assert_eq!((&one.decisions, one.balance), (&all[0].decisions, left), "seed {seed}");
            }
        }
        assert!(committed > 1000 && aborted > 1000, "{committed}, {aborted}");
    }
}
