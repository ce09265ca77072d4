//! Which node sends which block to whom in which step: a pure function of the number of nodes and
//! of blocks.
//!
//! In a step each node sends at most one block and receives at most one, and only what it had
//! before the step. Node 0 has all blocks from the beginning.
//!
//! | algorithm | steps for `n` nodes and `b` blocks |
//! |---|---|
//! | sequential send | `b (n - 1)` |
//! | chain | `b + n - 2` |
//! | binomial tree | `b ceil(log2 n)` |
//! | binomial pipeline | `b + ceil(log2 n) - 1`, and no algorithm needs fewer |
//!
//! The binomial pipeline is that of Ganesan and Seshadri ("On cooperative content distribution and
//! the price of barter", ICDCS 2005), with the closed form of Behrens et al. ("RDMC: a reliable
//! RDMA multicast for large objects", DSN 2018).

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How an object goes from node 0 to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Node 0 sends the whole object to one node after the other.
    SequentialSend,
    /// Each node passes each block on to the next node.
    Chain,
    /// All nodes that have the object send it, as a whole, to as many that have not.
    BinomialTree,
    /// A binomial tree for each block, all of them at work at the same time.
    BinomialPipeline,
}

impl fmt::Display for Algorithm {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// One block on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The node that sends.
    pub from: usize,
    /// The node that receives.
    pub to: usize,
    /// The block's number, from 0.
    pub block: usize,
}

/// What is sent in each step.
pub fn schedule(algorithm: Algorithm, nodes: usize, blocks: usize) -> Vec<Vec<Transfer>> {
    match algorithm {
        _ if nodes < 2 => Vec::new(),
        Algorithm::SequentialSend => (1..nodes)
            .flat_map(|to| (0..blocks).map(move |block| vec![Transfer { from: 0, to, block }]))
            .collect(),
        Algorithm::Chain => (0..blocks + nodes - 2)
            .map(|step| {
                // Node `from` sends the block that it received in the step before.
                let sending = (0..nodes - 1).filter(|&from| from <= step && step - from < blocks);
                sending.map(|from| Transfer { from, to: from + 1, block: step - from }).collect()
            })
            .collect(),
        Algorithm::BinomialTree => (0..ceil_log2(nodes))
            .flat_map(|round| {
                (0..blocks).map(move |block| {
                    let pairs = (0..1 << round).map(|from| (from, from + (1 << round)));
                    let pairs = pairs.filter(|&(_, to)| to < nodes);
                    pairs.map(|(from, to)| Transfer { from, to, block }).collect()
                })
            })
            .collect(),
        Algorithm::BinomialPipeline => Hypercube::new(nodes, blocks).run(),
    }
}

/// The least number of bits that has a code for each of so many.
fn ceil_log2(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

/// The binomial pipeline. The largest hypercube that has no more vertices than there are nodes has
/// one or two nodes at each vertex, and node 0 alone at vertex 0. In each step all vertices
/// exchange blocks along one dimension; two nodes at a vertex send and receive as one, and hand
/// each other what the other has not, so that each lacks at most one block of what the vertex has.
struct Hypercube {
    dimensions: u32,
    /// Who is at each vertex.
    vertices: Vec<Vec<usize>>,
    /// Which blocks each node has.
    has: Vec<Vec<bool>>,
    blocks: usize,
}

impl Hypercube {
    fn new(nodes: usize, blocks: usize) -> Hypercube {
        let dimensions = nodes.ilog2();
        let mut vertices: Vec<Vec<usize>> = (0..1 << dimensions).map(|node| vec![node]).collect();
        for node in 1 << dimensions..nodes {
            vertices[node - (1 << dimensions) + 1].push(node);
        }
        let has = (0..nodes).map(|node| vec![node == 0; blocks]).collect();
        Hypercube { dimensions, vertices, has, blocks }
    }

    fn run(mut self) -> Vec<Vec<Transfer>> {
        // One more, if there are pairs, for what was received last.
        let pairs = self.vertices.iter().any(|vertex| vertex.len() == 2);
        let steps = self.blocks + self.dimensions as usize - 1 + usize::from(pairs);
        (0..steps).map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: usize) -> Vec<Transfer> {
        let link = 1 << (step % self.dimensions as usize);
        let sent: Vec<_> =
            (0..self.vertices.len()).map(|at| self.sent(at, at ^ link, step)).collect();
        let roles: Vec<_> = (0..sent.len()).map(|at| self.roles(at, sent[at])).collect();
        let mut transfers = Vec::new();
        for (at, &(sender, receiver)) in roles.iter().enumerate() {
            let received = sent[at ^ link];
            let outside =
                received.map(|block| Transfer { from: roles[at ^ link].0, to: receiver, block });
            let inside =
                |from, to| self.lacking(to, from).map(|block| Transfer { from, to, block });
            let is_free = sent[at].is_none() && received.is_none();
            transfers.extend(outside);
            transfers.extend(inside(receiver, sender));
            transfers.extend(is_free.then(|| inside(sender, receiver)).flatten());
        }
        for transfer in &transfers {
            self.has[transfer.to][transfer.block] = true;
        }
        transfers
    }

    /// The block that a vertex sends to its neighbour in a step, if that lacks it.
    fn sent(&self, at: usize, neighbour: usize, step: usize) -> Option<usize> {
        let dimensions = self.dimensions as usize;
        let shift = step % dimensions;
        let rotated = (at >> shift | at << (dimensions - shift)) & ((1 << dimensions) - 1);
        let zeros = (rotated.trailing_zeros() as usize).min(dimensions);
        let block = (step + zeros).checked_sub(dimensions)?.min(self.blocks.checked_sub(1)?);
        let is_there = self.vertices[neighbour].iter().any(|&node| self.has[node][block]);
        (!is_there).then_some(block)
    }

    /// Who sends to the neighbour and who receives from it. Of two nodes the receiver hands the
    /// sender what that lacks, which neither needs the link of the other for.
    fn roles(&self, at: usize, sent: Option<usize>) -> (usize, usize) {
        let &[a, b] = &self.vertices[at][..] else {
            return (self.vertices[at][0], self.vertices[at][0]);
        };
        let can_send = |node: usize| sent.is_none_or(|block| self.has[node][block]);
        if can_send(b) && (!can_send(a) || self.lacking(b, a).is_some()) { (b, a) } else { (a, b) }
    }

    /// A block that `node` lacks and `partner` has.
    fn lacking(&self, node: usize, partner: usize) -> Option<usize> {
        (0..self.blocks).find(|&block| !self.has[node][block] && self.has[partner][block])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Follows a schedule and fails where a rule is broken. Returns the number of steps.
    fn follow(algorithm: Algorithm, nodes: usize, blocks: usize) -> usize {
        let mut has: Vec<HashSet<usize>> = vec![HashSet::new(); nodes];
        has[0] = (0..blocks).collect();
        let steps = schedule(algorithm, nodes, blocks);
        for (number, step) in steps.iter().enumerate() {
            let (mut senders, mut receivers) = (HashSet::new(), HashSet::new());
            for Transfer { from, to, block } in step {
                assert!(has[*from].contains(block), "step {number}: {from} has no block {block}");
                assert!(senders.insert(from), "step {number}: {from} sends twice");
                assert!(receivers.insert(to), "step {number}: {to} receives twice");
            }
            for Transfer { to, block, .. } in step {
                assert!(has[*to].insert(*block), "step {number}: {to} has block {block} already");
            }
        }
        assert!(has.iter().all(|has| has.len() == blocks), "{algorithm:?} {nodes} {blocks}");
        steps.len()
    }

    fn published(algorithm: Algorithm, nodes: usize, blocks: usize) -> usize {
        match algorithm {
            Algorithm::SequentialSend => blocks * (nodes - 1),
            Algorithm::Chain => blocks + nodes - 2,
            Algorithm::BinomialTree => blocks * ceil_log2(nodes) as usize,
            Algorithm::BinomialPipeline => blocks + ceil_log2(nodes) as usize - 1,
        }
    }

    #[test]
    fn every_schedule_of_up_to_33_nodes_is_legal_and_as_long_as_published() {
        for algorithm in Algorithm::value_variants() {
            for nodes in 2..=33 {
                for blocks in 1..=12 {
                    let steps = follow(*algorithm, nodes, blocks);
                    let expected = published(*algorithm, nodes, blocks);
                    assert_eq!(steps, expected, "{algorithm:?}: {nodes} nodes, {blocks} blocks");
                }
            }
        }
    }

    #[test]
    fn one_node_sends_nothing_and_no_blocks_take_no_transfer() {
        for algorithm in Algorithm::value_variants() {
            assert!(schedule(*algorithm, 1, 5).is_empty());
            assert!(schedule(*algorithm, 5, 0).iter().all(Vec::is_empty));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_schedule_is_legal_and_as_long_as_published(
            algorithm in 0usize..4, nodes in 2usize..150, blocks in 1usize..150,
        ) {
            let algorithm = Algorithm::value_variants()[algorithm];
            prop_assert_eq!(follow(algorithm, nodes, blocks), published(algorithm, nodes, blocks));
        }
    }
}
