//! Tables of what the engine numbers and a host finds by keys of its own.

use std::collections::BTreeMap;
use std::ops::Bound;
use urxe_types::Slab;

/// Entries found in one step by the key that the engine passes back to its host, and in the order
/// of the numbers that the engine gave them.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    entries: Slab<T>,
    /// Keys by number.
    keys: BTreeMap<u32, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { entries: Slab::default(), keys: BTreeMap::new() }
    }
}

impl<T> Numbered<T> {
    /// The key that the next entry will have; `None` if there is no room for another.
    pub(crate) fn next_key(&self) -> Option<u32> {
        self.entries.next_key()
    }

    /// Puts an entry in, under the next key and this number.
    pub(crate) fn insert(&mut self, number: u32, entry: T) {
        if let Some(key) = self.entries.insert(entry) {
            self.keys.insert(number, key);
        }
    }

    /// Takes the entry of a number out.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let key = self.keys.remove(&number)?;
        self.entries.remove(key)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn by_key(&self, key: u32) -> Option<&T> {
        self.entries.get(key)
    }

    pub(crate) fn by_key_mut(&mut self, key: u32) -> Option<&mut T> {
        self.entries.get_mut(key)
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<&T> {
        self.entries.get(*self.keys.get(&number)?)
    }

    pub(crate) fn by_number_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(*self.keys.get(&number)?)
    }

    /// The entries behind a number, in the order of their numbers.
    pub(crate) fn behind(&self, after: Option<u32>) -> impl Iterator<Item = (u32, &T)> {
        let keys = self.keys.range((behind(after), Bound::Unbounded));
        keys.filter_map(|(&number, &key)| Some((number, self.entries.get(key)?)))
    }
}

/// Where a listing goes on behind a number.
pub(crate) fn behind(after: Option<u32>) -> Bound<u32> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_key_and_number_and_listed_by_number() {
        let mut table = Numbered::default();
        let keys = [30, 10, 20].map(|number| {
            let key = table.next_key().unwrap();
            table.insert(number, number);
            key
        });
        assert_eq!(keys.map(|key| table.by_key(key).copied()), [Some(30), Some(10), Some(20)]);
        assert_eq!(table.behind(Some(10)).collect::<Vec<_>>(), [(20, &20), (30, &30)]);
        assert_eq!(table.remove(20), Some(20));
        assert_eq!((table.by_number(20), table.by_key(keys[2])), (None, None));
        assert_eq!(table.behind(None).count(), 2);
    }
}
