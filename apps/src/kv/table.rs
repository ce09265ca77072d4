//! A hopscotch table: each key is within the few entries from its *home* on, so that one READ gets
//! all places where it can be. (Herlihy, Shavit, Tzafrir: *Hopscotch hashing*, DISC 2008.)

use super::entry::{ENTRY_SIZE, Entry, Torn};

/// Entries that a key may be in, from its home on.
pub const NEIGHBOURS: usize = 8;

/// How far a free entry is looked for.
const PROBES: usize = 256;

/// Where a table is. Places are offsets in bytes.
pub trait Memory {
    /// Copies bytes out of it.
    fn read(&self, at: usize, bytes: &mut [u8]);
    /// Copies bytes into it.
    fn write(&mut self, at: usize, bytes: &[u8]);
}

/// How many homes a table has.
#[derive(Clone, Copy, Debug)]
pub struct Shape(pub usize);

impl Shape {
    /// How much memory a table needs.
    pub fn length(self) -> usize {
        self.entries() * ENTRY_SIZE
    }

    /// Where the entries are that a key may be in.
    pub fn neighbourhood(self, key: u64) -> std::ops::Range<usize> {
        let home = self.home(key) * ENTRY_SIZE;
        home..home + NEIGHBOURS * ENTRY_SIZE
    }

    /// The last home has neighbours too.
    fn entries(self) -> usize {
        self.0 + NEIGHBOURS - 1
    }

    fn home(self, key: u64) -> usize {
        // Fibonacci hashing, and the upper half of what becomes of it.
        let hash = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash as usize) % self.0
    }
}

/// What somebody finds who has read a neighbourhood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key, whole.
    Entry(Entry),
    /// Not the key, but bytes that it may be in: they were being written.
    Torn,
    /// Not the key. It may have been moved meanwhile from where was read last to where was read
    /// first.
    Missing,
}

/// Looks for a key in the bytes of its neighbourhood.
pub fn find(neighbourhood: &[u8], key: u64) -> Found {
    let mut found = Found::Missing;
    for bytes in neighbourhood.as_chunks().0 {
        match Entry::from_bytes(bytes) {
            // While it is moved it is there twice, and each was its value when it was read.
            Ok(Some(entry)) if entry.key == key => return Found::Entry(entry),
            Ok(_) => {}
            Err(Torn) => found = Found::Torn,
        }
    }
    found
}

/// There is no room for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table as its owner has it, the only one that changes it.
#[derive(Debug)]
pub struct Table<M> {
    shape: Shape,
    memory: M,
}

impl<M: Memory> Table<M> {
    /// In memory that is all 0.
    pub fn new(shape: Shape, memory: M) -> Table<M> {
        Table { shape, memory }
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<Vec<u8>> {
        let home = self.shape.home(key);
        let found =
            (home..home + NEIGHBOURS).find_map(|at| self.entry(at).filter(|e| e.key == key));
        found.map(|entry| entry.value)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Full`] if no entry near the key's home is free, nor can be made so. Nothing has changed
    /// then, but that keys may have moved.
    pub fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Full> {
        let home = self.shape.home(key);
        let mut places = home..home + NEIGHBOURS;
        let at = match places.find(|at| self.entry(*at).is_some_and(|entry| entry.key == key)) {
            Some(at) => at,
            None => self.make_room(home)?,
        };
        let entry = Entry { key, value: value.to_vec() };
        self.memory.write(at * ENTRY_SIZE, &entry.to_bytes());
        Ok(())
    }

    /// A free entry among the neighbours of a home. The nearest free one comes there by moves: each
    /// makes it change places with one before it that may be there.
    fn make_room(&mut self, home: usize) -> Result<usize, Full> {
        let end = self.shape.entries().min(home + PROBES);
        let mut free = (home..end).find(|at| self.entry(*at).is_none()).ok_or(Full)?;
        while free >= home + NEIGHBOURS {
            let may_move = |at: &usize| {
                let entry = self.entry(*at);
                entry.is_some_and(|entry| self.shape.home(entry.key) + NEIGHBOURS > free)
            };
            let from = (free + 1 - NEIGHBOURS..free).find(may_move).ok_or(Full)?;
            let mut bytes = [0; ENTRY_SIZE];
            self.memory.read(from * ENTRY_SIZE, &mut bytes);
            // First there, and then no longer here: it is never nowhere.
            self.memory.write(free * ENTRY_SIZE, &bytes);
            self.memory.write(from * ENTRY_SIZE, &[0; ENTRY_SIZE]);
            free = from;
        }
        Ok(free)
    }

    fn entry(&self, at: usize) -> Option<Entry> {
        let mut bytes = [0; ENTRY_SIZE];
        self.memory.read(at * ENTRY_SIZE, &mut bytes);
        // Nobody else writes.
        Entry::from_bytes(&bytes).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::without_check;
    use super::*;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, VecDeque};
    use std::rc::Rc;
    use urxe_port::sim::Rng;

    /// Memory whose words are seen by readers one after the other, later than they are written.
    #[derive(Debug, Default)]
    struct Slow {
        now: Vec<u8>,
        seen: Vec<u8>,
        on_their_way: VecDeque<(usize, [u8; 8])>,
    }

    impl Slow {
        fn show_one(&mut self) {
            if let Some((at, word)) = self.on_their_way.pop_front() {
                self.seen[at..at + 8].copy_from_slice(&word);
            }
        }
    }

    impl Memory for Rc<RefCell<Slow>> {
        fn read(&self, at: usize, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.borrow().now[at..at + bytes.len()]);
        }

        fn write(&mut self, at: usize, bytes: &[u8]) {
            let mut slow = self.borrow_mut();
            slow.now[at..at + bytes.len()].copy_from_slice(bytes);
            let words = bytes.as_chunks().0.iter().enumerate();
            slow.on_their_way.extend(words.map(|(place, word)| (at + 8 * place, *word)));
        }
    }

    fn content(key: u64, number: u64) -> Vec<u8> {
        (key << 32 | number).to_le_bytes().repeat(5)
    }

    /// What readers have met.
    #[derive(Debug, Default)]
    struct Met {
        whole: u64,
        torn: u64,
        missing: u64,
        /// What they would have taken for a value without the CRC.
        mixtures: u64,
    }

    /// A writer puts, and readers read word by word in any order meanwhile.
    fn play(seed: u64, met: &mut Met) {
        let mut rng = Rng::new(seed);
        let mut below = |limit: u64| rng.next_u64() % limit;
        let shape = Shape(8 + below(40) as usize);
        let length = shape.length();
        let slow = Slow { now: vec![0; length], seen: vec![0; length], ..Slow::default() };
        let slow = Rc::new(RefCell::new(slow));
        let mut table = Table::new(shape, slow.clone());
        let keys = 1 + below(shape.0 as u64 * 3 / 4);
        let mut puts = BTreeMap::new();
        for number in 1..60 {
            let key = below(keys);
            // What is seen from before until after is what may be found.
            while slow.borrow().on_their_way.len() > 24 {
                slow.borrow_mut().show_one();
            }
            let is_seen = slow.borrow().on_their_way.is_empty();
            let before = if is_seen { puts.clone() } else { BTreeMap::new() };
            if table.put(key, &content(key, number)).is_ok() {
                puts.insert(key, number);
            }
            let wanted = if below(2) == 0 { key } else { below(keys) };
            let range = shape.neighbourhood(wanted);
            let mut words: Vec<_> = range.clone().step_by(8).collect();
            let mut copy = vec![0; range.len()];
            while !words.is_empty() {
                let at = words.swap_remove(below(words.len() as u64) as usize);
                let place = at - range.start;
                copy[place..place + 8].copy_from_slice(&slow.borrow().seen[at..at + 8]);
                (0..below(3)).for_each(|_| slow.borrow_mut().show_one());
            }
            let whole = |entry: &Entry| {
                let numbers = before.get(&wanted).copied().unwrap_or(1)..=number;
                numbers.into_iter().any(|number| entry.value == content(wanted, number))
            };
            match find(&copy, wanted) {
                Found::Entry(entry) => {
                    assert!(whole(&entry), "seed {seed}: {entry:?} of {wanted}");
                    met.whole += 1;
                }
                Found::Torn => met.torn += 1,
                Found::Missing => met.missing += 1,
            }
            let unchecked = copy.as_chunks().0.iter().map(without_check);
            let mut unchecked =
                unchecked.filter(|entry| entry.key == wanted && !entry.value.is_empty());
            met.mixtures += u64::from(unchecked.any(|entry| !whole(&entry)));
        }
        for (key, number) in puts {
            assert_eq!(table.get(key), Some(content(key, number)), "seed {seed}");
        }
    }

    #[test]
    fn a_reader_never_takes_a_torn_value_in_1000_seeded_runs_that_have_many() {
        let mut met = Met::default();
        (0..1000).for_each(|seed| play(seed, &mut met));
        assert!(met.whole > 10_000 && met.torn > 1000 && met.mixtures > 1000, "{met:?}");
    }

    #[test]
    fn a_full_table_keeps_what_it_has() {
        let shape = Shape(16);
        let slow = Slow { now: vec![0; shape.length()], ..Slow::default() };
        let mut table = Table::new(shape, Rc::new(RefCell::new(slow)));
        let (fit, full): (Vec<_>, Vec<_>) =
            (0..200).partition(|key| table.put(*key, &content(*key, 1)).is_ok());
        assert!(fit.len() > 12 && full.len() > 100, "{} fit", fit.len());
        assert!(fit.iter().all(|key| table.get(*key) == Some(content(*key, 1))));
        assert!(full.iter().all(|key| table.get(*key).is_none()));
    }
}
