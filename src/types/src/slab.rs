//! Dense tables whose keys never come to mean another entry by accident.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bits of a key that are the index of its slot; the others count how often the slot was reused.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Most entries that a [`Slab`] has.
pub const SLAB_CAPACITY: usize = 1 << INDEX_BITS;

/// Entries found by index in one step, with keys that go stale: a key whose entry was removed
/// finds nothing, not even when the slot has a new owner (until the same slot has been reused
/// `GENERATIONS` times). With one generation, a key is the index of its slot. The highest bit of
/// a key is always 0, so that keys of two tables can be stored together, told apart by it.
#[derive(Clone, Debug)]
pub struct Slab<T, const GENERATIONS: u32 = 2048> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T, const GENERATIONS: u32> Default for Slab<T, GENERATIONS> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

/// With its keys: those that are stale stay so.
impl<T: Serialize, const GENERATIONS: u32> Serialize for Slab<T, GENERATIONS> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.slots.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const GENERATIONS: u32> Deserialize<'de> for Slab<T, GENERATIONS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slots: Vec<Slot<T>> = Vec::deserialize(deserializer)?;
        if slots.len() > SLAB_CAPACITY {
            let (count, most) = (slots.len(), SLAB_CAPACITY);
            return Err(de::Error::custom(format!(
                "a table of {count} slots, expected {most} at most"
            )));
        }
        if let Some(slot) = slots.iter().find(|slot| slot.generation >= GENERATIONS) {
            let generation = slot.generation;
            return Err(de::Error::custom(format!(
                "generation {generation} of a slot, expected less than {GENERATIONS}"
            )));
        }
        let is_free = |(index, slot): (u32, &Slot<T>)| slot.entry.is_none().then_some(index);
        let free = (0..).zip(&slots).filter_map(is_free).collect();
        Ok(Slab { slots, free })
    }
}

/// The index of a key's slot: a small number, which no two entries have at a time.
pub fn index_of(key: u32) -> u32 {
    key & INDEX_MASK
}

impl<T, const GENERATIONS: u32> Slab<T, GENERATIONS> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that the next entry will have; `None` when all 2^20 slots are taken.
    pub fn next_key(&self) -> Option<u32> {
        match self.free.last() {
            Some(&index) => Some(self.slots[index as usize].generation << INDEX_BITS | index),
            None => Some(self.slots.len() as u32).filter(|&index| index <= INDEX_MASK),
        }
    }

    /// Puts an entry in; `None` when all slots are taken.
    pub fn insert(&mut self, entry: T) -> Option<u32> {
        let key = self.next_key()?;
        if self.free.pop().is_none() {
            self.slots.push(Slot { generation: 0, entry: None });
        }
        self.slots[index_of(key) as usize].entry = Some(entry);
        Some(key)
    }

    /// Takes an entry out; its key is stale from now on.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.slots.get_mut(index_of(key) as usize)?;
        if slot.generation != key >> INDEX_BITS {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push(key & INDEX_MASK);
        Some(entry)
    }

    /// The entry of a key.
    pub fn get(&self, key: u32) -> Option<&T> {
        let slot = self.slots.get(index_of(key) as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == key >> INDEX_BITS)
    }

    /// The entry of a key.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index_of(key) as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == key >> INDEX_BITS)
    }

    /// All entries from a slot on, with the indices of theirs.
    pub fn iter_mut_from(&mut self, index: u32) -> impl Iterator<Item = (u32, &mut T)> {
        let entries = self.slots.iter_mut().zip(0..).skip(index as usize);
        entries.filter_map(|(slot, index)| Some((index, slot.entry.as_mut()?)))
    }

    /// All entries with their keys, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let entry = slot.entry.as_ref()?;
            Some((slot.generation << INDEX_BITS | index as u32, entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_stale_key_finds_nothing_after_its_slot_is_reused() {
        let mut slab = Slab::<_>::default();
        let first = slab.insert("first").unwrap();
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second").unwrap();
        assert_eq!(first & INDEX_MASK, second & INDEX_MASK, "the slot is reused");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
    }

    #[test]
    fn a_slot_reused_more_often_than_generations_exist_still_works() {
        let mut slab = Slab::<_>::default();
        for round in 0..2 * 2048 {
            let key = slab.insert(round).unwrap();
            assert_eq!(slab.remove(key), Some(round));
        }
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn a_table_that_was_written_down_has_the_same_keys_and_gives_none_twice() {
        let mut slab = Slab::<char>::default();
        let keys = ['a', 'b', 'c', 'd'].map(|entry| slab.insert(entry).unwrap());
        slab.remove(keys[1]);
        slab.remove(keys[3]);
        let bytes = postcard::to_stdvec(&slab).unwrap();
        let mut read: Slab<char> = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(keys.map(|key| read.get(key).copied()), [Some('a'), None, Some('c'), None]);
        assert_eq!(read.len(), 2);
        for _ in 0..3 {
            assert!(!keys.contains(&read.insert('e').unwrap()));
        }
    }

    #[test]
    fn a_table_that_cannot_be_is_refused() {
        // One slot, of generation 2048, with nothing in it.
        let bytes = postcard::to_stdvec(&[(2048u32, None::<char>)].as_slice()).unwrap();
        let error = postcard::from_bytes::<Slab<char>>(&bytes).unwrap_err();
        assert_eq!(error, postcard::Error::SerdeDeCustom);
        let bytes = postcard::to_stdvec(&[(2047u32, None::<char>)].as_slice()).unwrap();
        assert!(postcard::from_bytes::<Slab<char>>(&bytes).unwrap().is_empty());
    }

    #[test]
    fn a_key_of_the_only_generation_is_free_again_once_its_entry_is_gone() {
        let mut slab = Slab::<char, 1>::default();
        assert_eq!((slab.insert('a'), slab.insert('b')), (Some(0), Some(1)));
        assert_eq!((slab.get(u32::MAX), slab.get(0), slab.get(2)), (None, Some(&'a'), None));
        assert_eq!((slab.remove(0), slab.remove(0)), (Some('a'), None));
        assert_eq!((slab.len(), slab.get(0)), (1, None));
        assert_eq!(slab.insert('c'), Some(0));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((any::<bool>(), any::<u16>()), 1..200)) {
            let mut slab = Slab::<_>::default();
            let mut model = HashMap::new();
            for (insert, value) in ops {
                if insert || model.is_empty() {
                    let next = slab.next_key();
                    let key = slab.insert(value).unwrap();
                    prop_assert_eq!(next, Some(key));
                    prop_assert_eq!(model.insert(key, value), None);
                } else {
                    let keys: Vec<u32> = slab.iter().map(|(key, _)| key).collect();
                    let key = keys[value as usize % keys.len()];
                    prop_assert_eq!(slab.remove(key), model.remove(&key));
                }
                prop_assert_eq!(slab.len(), model.len());
                for (key, value) in &model {
                    prop_assert_eq!(slab.get(*key), Some(value));
                }
            }
        }
    }
}
