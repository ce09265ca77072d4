//! Sets of nodes.

use super::Monotonic;

/// A set of nodes, whose ranks are below 64. In a table it grows by what joins it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nodes(u64);

impl Nodes {
    /// The nodes from 0 to below `count`, at most 64.
    pub fn all(count: usize) -> Nodes {
        (0..count).fold(Nodes::default(), Nodes::with)
    }

    /// With one more.
    #[must_use]
    pub fn with(self, rank: usize) -> Nodes {
        Nodes(self.0 | 1 << rank)
    }

    /// Without those.
    #[must_use]
    pub fn without(self, others: Nodes) -> Nodes {
        Nodes(self.0 & !others.0)
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, others: Nodes) -> Nodes {
        Nodes(self.0 & others.0)
    }

    /// Whether it has this one.
    pub fn contains(self, rank: usize) -> bool {
        rank < 64 && self.0 >> rank & 1 == 1
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Their ranks, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&rank| self.contains(rank))
    }
}

impl Monotonic for Nodes {
    fn join(self, other: Nodes) -> Nodes {
        Nodes(self.0 | other.0)
    }

    fn to_word(self) -> u64 {
        self.0
    }

    fn from_word(word: u64) -> Nodes {
        Nodes(word)
    }
}
