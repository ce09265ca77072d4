//! Tables by the engine's own numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number that the engine itself chose at random (keys, QPNs): nobody can pick
/// colliding ones, so a multiplication spreads them well enough.
pub(crate) type IntMap<V> = HashMap<u32, V, BuildHasherDefault<Multiply>>;

/// Multiplies by a large odd constant (Knuth's multiplicative hashing).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte) ^ self.0 as u32);
        }
    }

    fn write_u32(&mut self, number: u32) {
        let product = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// A table whose numbers, from 1 on, are given out by itself; that of a removed entry is given out
/// again.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    entries: Vec<Option<V>>,
    vacant: Vec<u32>,
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Slab { entries: Vec::new(), vacant: Vec::new() }
    }
}

impl<V> Slab<V> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Adds an entry; its number is never 0.
    pub(crate) fn insert(&mut self, value: V) -> u32 {
        match self.vacant.pop() {
            Some(number) => {
                self.entries[number as usize - 1] = Some(value);
                number
            }
            None => {
                self.entries.push(Some(value));
                self.entries.len() as u32
            }
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&V> {
        self.entries.get((number as usize).checked_sub(1)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut V> {
        self.entries.get_mut((number as usize).checked_sub(1)?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<V> {
        let value = self.entries.get_mut((number as usize).checked_sub(1)?)?.take()?;
        self.vacant.push(number);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_zero_and_free_again_once_its_entry_is_gone() {
        let mut slab = Slab::default();
        assert_eq!((slab.insert('a'), slab.insert('b')), (1, 2));
        assert_eq!((slab.get(0), slab.get(1), slab.get(3)), (None, Some(&'a'), None));
        assert_eq!((slab.remove(1), slab.remove(1), slab.remove(0)), (Some('a'), None, None));
        assert_eq!((slab.len(), slab.get(1)), (1, None));
        assert_eq!(slab.insert('c'), 1);
    }
}
