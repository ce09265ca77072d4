//! [`Fabric`] in one thread, driven by a seed: what is pushed arrives in any order between nodes
//! and in pieces, and nodes are killed.

use crate::fabric::Fabric;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use urxe_port::sim::Rng;

/// Bytes on their way.
#[derive(Debug)]
enum Push {
    /// Fetched when they arrive.
    Bytes(Range<usize>),
    /// Fetched when they were pushed.
    Word(usize, [u8; 8]),
}

/// All nodes and what is between them.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) rng: Rng,
    memory: Vec<Vec<u8>>,
    /// What is on its way from one to another: `from * nodes + to`.
    links: Vec<VecDeque<Push>>,
    pub(crate) killed: BTreeSet<usize>,
}

/// One of the nodes.
pub(crate) struct SimNode<'a> {
    sim: &'a mut Sim,
    rank: usize,
}

impl Sim {
    pub(crate) fn new(seed: u64, nodes: usize, length: usize) -> Sim {
        let links = (0..nodes * nodes).map(|_| VecDeque::new()).collect();
        let memory = vec![vec![0; length]; nodes];
        Sim { rng: Rng::new(seed), memory, links, killed: BTreeSet::new() }
    }

    pub(crate) fn node(&mut self, rank: usize) -> SimNode<'_> {
        SimNode { sim: self, rank }
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        below(&mut self.rng, limit)
    }

    /// Moves something on. False if nothing is on its way.
    pub(crate) fn deliver(&mut self) -> bool {
        let busy: Vec<_> = (0..self.links.len()).filter(|&at| !self.links[at].is_empty()).collect();
        if busy.is_empty() {
            return false;
        }
        let link = busy[self.below(busy.len())];
        let (from, to) = (link / self.memory.len(), link % self.memory.len());
        match self.links[link].pop_front() {
            Some(Push::Bytes(range)) => {
                // Any of its words may come first, and the others only later.
                let words = range.len().div_ceil(8);
                let first = range.start + 8 * self.below(words);
                let last = range.end.min(first + 8 * (1 + self.below(words)));
                let bytes = self.memory[from][first..last].to_vec();
                self.memory[to][first..last].copy_from_slice(&bytes);
                for rest in [last..range.end, range.start..first] {
                    if !rest.is_empty() {
                        self.links[link].push_front(Push::Bytes(rest));
                    }
                }
            }
            Some(Push::Word(at, word)) => self.memory[to][at..at + 8].copy_from_slice(&word),
            None => {}
        }
        true
    }

    /// Ends a node. Of what it has pushed to each other, the last is lost, from anywhere on.
    pub(crate) fn kill(&mut self, rank: usize) {
        let nodes = self.memory.len();
        self.killed.insert(rank);
        for peer in 0..nodes {
            self.links[peer * nodes + rank].clear();
            let link = rank * nodes + peer;
            let kept = below(&mut self.rng, self.links[link].len() + 1);
            self.links[link].truncate(kept);
        }
    }
}

fn below(rng: &mut Rng, limit: usize) -> usize {
    (rng.next_u64() % limit as u64) as usize
}

impl Fabric for SimNode<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn nodes(&self) -> usize {
        self.sim.memory.len()
    }

    fn load(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_ne_bytes(word)
    }

    fn store(&mut self, at: usize, word: u64) {
        self.write(at, &word.to_ne_bytes());
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.sim.memory[self.rank][at..at + bytes.len()]);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.sim.memory[self.rank][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn push(&mut self, to: usize, range: Range<usize>) {
        if to != self.rank && !self.sim.killed.contains(&to) {
            let link = self.rank * self.nodes() + to;
            self.sim.links[link].push_back(Push::Bytes(range));
        }
    }

    fn push_word(&mut self, to: usize, at: usize) {
        if to != self.rank && !self.sim.killed.contains(&to) {
            let (link, word) = (self.rank * self.nodes() + to, self.load(at).to_ne_bytes());
            self.sim.links[link].push_back(Push::Word(at, word));
        }
    }
}
