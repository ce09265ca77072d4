//! SST: a table with a row for each node, which all nodes have. A node changes its own row alone
//! and pushes what it changed to the others, which read their copies and decide.
//!
//! Columns are *monotonic*: a value only grows, so that what was decided by an old copy of it still
//! holds. Nobody locks anything, waits for an answer, or sees a state that never was true.

pub mod nodes;
pub mod predicate;
pub mod two_phase;

use crate::fabric::Fabric;
use nodes::Nodes;
use std::marker::PhantomData;

/// What a word of the table can hold. Its initial value is that of the word 0.
pub trait Monotonic: Copy + PartialEq {
    /// The least value that is no less than both.
    fn join(self, other: Self) -> Self;
    /// As a word of memory.
    fn to_word(self) -> u64;
    /// From a word of memory. Any word is a value.
    fn from_word(word: u64) -> Self;
}

impl Monotonic for u64 {
    fn join(self, other: u64) -> u64 {
        self.max(other)
    }

    fn to_word(self) -> u64 {
        self
    }

    fn from_word(word: u64) -> u64 {
        word
    }
}

impl Monotonic for bool {
    fn join(self, other: bool) -> bool {
        self | other
    }

    fn to_word(self) -> u64 {
        self.into()
    }

    fn from_word(word: u64) -> bool {
        word != 0
    }
}

/// A column of the table, and what its values are.
#[derive(Debug)]
pub struct Column<T>(usize, PhantomData<T>);

impl<T> Column<T> {
    /// The column of this number, from 0.
    pub const fn new(number: usize) -> Column<T> {
        Column(number, PhantomData)
    }
}

/// Where a table is, and how large.
#[derive(Clone, Copy, Debug)]
pub struct Sst {
    /// Where it begins.
    pub base: usize,
    /// Rows.
    pub nodes: usize,
    /// Columns.
    pub width: usize,
}

const WORD: usize = size_of::<u64>();

impl Sst {
    /// Behind the last byte.
    pub fn end(&self) -> usize {
        self.base + self.nodes * self.width * WORD
    }

    fn at<T>(&self, row: usize, column: &Column<T>) -> usize {
        assert!(row < self.nodes && column.0 < self.width, "{row}, {} of {self:?}", column.0);
        self.base + (row * self.width + column.0) * WORD
    }

    /// What a row has in a column, as far as is known here. What that row had in other columns
    /// before, and what was pushed by its node before, is known as well.
    pub fn get<T: Monotonic>(&self, fabric: &impl Fabric, row: usize, column: &Column<T>) -> T {
        T::from_word(fabric.load(self.at(row, column)))
    }

    /// Lets our value grow to this one, if it is less, and tells all others.
    pub fn set<T: Monotonic>(&self, fabric: &mut impl Fabric, column: &Column<T>, value: T) {
        let present = self.get(fabric, fabric.rank(), column);
        if present.join(value) != present {
            self.put(fabric, column, present.join(value));
        }
    }

    /// Sets our value whatever it was, and tells all others. For values that mean something only
    /// once a monotonic column says so which is set behind them, and change only when all others
    /// are known to have read them.
    pub fn put<T: Monotonic>(&self, fabric: &mut impl Fabric, column: &Column<T>, value: T) {
        let (rank, at) = (fabric.rank(), self.at(fabric.rank(), column));
        fabric.store(at, value.to_word());
        for to in (0..self.nodes).filter(|&to| to != rank) {
            fabric.push_word(to, at);
        }
    }

    /// The least value that one of these nodes has.
    pub fn min(&self, fabric: &impl Fabric, of: Nodes, column: &Column<u64>) -> u64 {
        of.iter().map(|row| self.get(fabric, row, column)).min().unwrap_or(0)
    }

    /// How many of these nodes have a value that is so.
    pub fn count<T: Monotonic>(
        &self,
        fabric: &impl Fabric,
        of: Nodes,
        column: &Column<T>,
        is_so: impl Fn(T) -> bool,
    ) -> usize {
        of.iter().filter(|&row| is_so(self.get(fabric, row, column))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    #[test]
    fn a_value_only_grows_and_is_told_to_all() {
        const COUNT: Column<u64> = Column::new(1);
        let sst = Sst { base: 8, nodes: 3, width: 2 };
        let mut sim = Sim::new(1, 3, sst.end());
        sst.set(&mut sim.node(2), &COUNT, 5);
        sst.set(&mut sim.node(2), &COUNT, 3);
        while sim.deliver() {}
        for rank in 0..3 {
            assert_eq!(sst.get(&sim.node(rank), 2, &COUNT), 5);
            assert_eq!(sst.min(&sim.node(rank), Nodes::all(3), &COUNT), 0);
            assert_eq!(sst.count(&sim.node(rank), Nodes::all(3), &COUNT, |count| count > 0), 1);
        }
    }

    #[test]
    fn earlier_values_of_a_node_are_seen_first_in_1000_seeded_runs() {
        const GUARDED: Column<u64> = Column::new(0);
        const GUARD: Column<u64> = Column::new(1);
        let sst = Sst { base: 0, nodes: 4, width: 2 };
        for seed in 0..1000 {
            let mut sim = Sim::new(seed, 4, sst.end());
            for step in 0..60 {
                let (rank, seen_by) = (sim.below(4), sim.below(4));
                sst.put(&mut sim.node(rank), &GUARDED, step + 1);
                sst.set(&mut sim.node(rank), &GUARD, step + 1);
                sim.deliver();
                let node = sim.node(seen_by);
                let guard = sst.get(&node, rank, &GUARD);
                assert!(sst.get(&node, rank, &GUARDED) >= guard, "seed {seed}");
            }
        }
    }
}
