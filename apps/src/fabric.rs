//! Memory of the same layout at every node, of which each can copy parts to the same place at
//! others.
//!
//! It is what the multicasts and the shared state table know of RDMA. [`Mesh`](crate::mesh::Mesh)
//! is it over verbs; the tests have one that is driven by a seed.

use std::ops::Range;

/// A node's own memory, and the way to that of the others.
///
/// Places are offsets in bytes from the begin of the memory, the same at all nodes; a word is 8
/// bytes at a multiple of 8. A place that is not in the memory is a mistake in the layout, and
/// panics.
pub trait Fabric {
    /// Which node this is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn nodes(&self) -> usize;

    /// A word of our memory. What was pushed to us before it, by the same node, is seen by whoever
    /// has seen this.
    fn load(&self, at: usize) -> u64;

    /// Sets a word of our memory.
    fn store(&mut self, at: usize, word: u64);

    /// Copies bytes out of our memory.
    fn read(&self, at: usize, bytes: &mut [u8]);

    /// Copies bytes into our memory.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Copies a part of our memory to a node, behind all that was pushed to it before. The bytes
    /// are fetched at some time until they arrive there, perhaps several times: they must stay as
    /// they are for so long. Nothing reaches a node that has failed.
    fn push(&mut self, to: usize, range: Range<usize>);

    /// The same with a word, as it is now: it may change at once.
    fn push_word(&mut self, to: usize, at: usize);
}
