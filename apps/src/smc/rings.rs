//! Rings of messages: one of each sender, in the memory of every node, filled by its WRITEs.

use crate::fabric::Fabric;
use std::ops::Range;

/// Where the rings are, and how large.
///
/// First a counter for each sender, of the messages that it has filled in all; then for each a ring
/// of slots. Message `k` is in slot `k % slots`: its length, a word, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Where they begin.
    pub base: usize,
    /// Senders.
    pub nodes: usize,
    /// Slots of each ring.
    pub slots: usize,
    /// The longest message.
    pub message_max: usize,
}

const WORD: usize = size_of::<u64>();

impl Rings {
    /// Behind the last byte.
    pub fn end(&self) -> usize {
        self.base + self.nodes * (WORD + self.slots * self.slot_size())
    }

    fn slot_size(&self) -> usize {
        WORD + self.message_max.next_multiple_of(WORD)
    }

    fn filled_at(&self, sender: usize) -> usize {
        self.base + sender * WORD
    }

    fn slot_at(&self, sender: usize, message: u64) -> usize {
        let slot = sender * self.slots + (message % self.slots as u64) as usize;
        self.base + self.nodes * WORD + slot * self.slot_size()
    }

    /// How many messages a sender has filled in, as far as is known here: they are here.
    pub fn filled(&self, fabric: &impl Fabric, sender: usize) -> u64 {
        fabric.load(self.filled_at(sender))
    }

    /// One of them. It must not have been overwritten: the sender knows who has not taken it yet.
    pub fn message(&self, fabric: &impl Fabric, sender: usize, message: u64) -> Vec<u8> {
        let at = self.slot_at(sender, message);
        // What a sender claims is no reason to read beyond its slot.
        let length = fabric.load(at).min(self.message_max as u64) as usize;
        let mut bytes = vec![0; length];
        fabric.read(at + WORD, &mut bytes);
        bytes
    }

    /// Puts a message of ours into our own ring. Its slot must be free everywhere. What is longer
    /// than a message can be is cut.
    pub fn fill(&self, fabric: &mut impl Fabric, message: u64, bytes: &[u8]) {
        let at = self.slot_at(fabric.rank(), message);
        let bytes = &bytes[..bytes.len().min(self.message_max)];
        fabric.store(at, bytes.len() as u64);
        fabric.write(at + WORD, bytes);
    }

    /// Shows messages of ours to all others, and to ourselves: the slots by one WRITE or, around
    /// the end of the ring, two; and behind them the counter, without which nobody looks at them.
    pub fn show(&self, fabric: &mut impl Fabric, messages: Range<u64>) {
        let (rank, slots) = (fabric.rank(), self.slots as u64);
        fabric.store(self.filled_at(rank), messages.end);
        let around = (messages.start / slots + 1) * slots;
        let parts = [messages.start..messages.end.min(around), around..messages.end];
        for to in (0..self.nodes).filter(|&to| to != rank) {
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let last = self.slot_at(rank, part.end - 1);
                fabric.push(to, self.slot_at(rank, part.start)..last + self.slot_size());
            }
            fabric.push_word(to, self.filled_at(rank));
        }
    }
}
