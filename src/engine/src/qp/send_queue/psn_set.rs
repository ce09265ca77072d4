//! A set of PSNs out of a window that moves forward.

use super::distance;
use std::collections::VecDeque;
use urxe_types::Psn;

const WORD: u32 = u64::BITS;

/// PSNs at or after one that only moves forward. One bit for each of them up to the last that is
/// in the set.
#[derive(Debug, Default)]
pub(super) struct PsnSet {
    /// The PSN of the lowest bit: a multiple of the bits of a word, of which the PSN space has a
    /// whole number.
    base: Psn,
    words: VecDeque<u64>,
    len: u32,
}

impl PsnSet {
    /// An empty set of PSNs from `first` on.
    pub(super) fn new(first: Psn) -> PsnSet {
        PsnSet { base: aligned(first), words: VecDeque::new(), len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a PSN at or after the first. Returns whether it was not there.
    pub(super) fn insert(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(distance(self.base, psn));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += u32::from(is_new);
        is_new
    }

    /// Takes a PSN out. Returns whether it was there.
    pub(super) fn remove(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(distance(self.base, psn));
        match self.words.get_mut(word) {
            Some(bits) if *bits & bit != 0 => {
                *bits &= !bit;
                self.len -= 1;
                true
            }
            _ => false,
        }
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        let (word, bit) = place(distance(self.base, psn));
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// The first PSN in it.
    pub(super) fn first(&self) -> Option<Psn> {
        if self.is_empty() {
            return None;
        }
        let (word, bits) = (0u32..).zip(&self.words).find(|&(_, &bits)| bits != 0)?;
        Some(self.base + (word * WORD + bits.trailing_zeros()))
    }

    /// How many PSNs from this one on are in it without a gap, at most `most`.
    pub(super) fn run(&self, from: Psn, most: u32) -> u32 {
        if self.is_empty() {
            return 0;
        }
        (0..most).find(|&after| !self.contains(from + after)).unwrap_or(most)
    }

    /// Leaves out everything before `psn`, which is the new first.
    pub(super) fn advance(&mut self, psn: Psn) {
        let base = aligned(psn);
        if self.is_empty() {
            // As nearly always.
            if self.base == base {
                return;
            }
            self.words.clear();
            self.base = base;
            return;
        }
        while self.base != base {
            let Some(bits) = self.words.pop_front() else {
                self.base = base;
                return;
            };
            self.len -= bits.count_ones();
            self.base = self.base + WORD;
        }
        if let Some(bits) = self.words.front_mut() {
            let before = *bits & ((1 << distance(base, psn)) - 1);
            self.len -= before.count_ones();
            *bits &= !before;
        }
    }

    /// Takes all of them out.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.len = 0;
    }
}

fn aligned(psn: Psn) -> Psn {
    Psn::new(psn.get() & !(WORD - 1))
}

fn place(offset: u32) -> (usize, u64) {
    ((offset / WORD) as usize, 1 << (offset % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Advance(u32),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..400u32).prop_map(Step::Insert),
            3 => (0..400u32).prop_map(Step::Remove),
            2 => (0..150u32).prop_map(Step::Advance),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        /// Around the wrap of the PSN space, too.
        #[test]
        fn it_holds_what_a_set_of_numbers_holds(
            start in prop_oneof![Just(0u32), 0xff_ff00..0x100_0000u32],
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let psn = |number: u64| Psn::new(((u64::from(start) + number) & 0xff_ffff) as u32);
            let (mut set, mut model, mut first) = (PsnSet::new(psn(0)), BTreeSet::new(), 0u64);
            for step in steps {
                match step {
                    Step::Insert(at) => {
                        let at = first + u64::from(at);
                        prop_assert_eq!(set.insert(psn(at)), model.insert(at));
                    }
                    Step::Remove(at) => {
                        let at = first + u64::from(at);
                        prop_assert_eq!(set.remove(psn(at)), model.remove(&at));
                    }
                    Step::Advance(by) => {
                        first += u64::from(by);
                        set.advance(psn(first));
                        model = model.split_off(&first);
                    }
                    Step::Clear => {
                        set.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.first(), model.first().map(|&at| psn(at)));
                let run = (first..).take_while(|at| model.contains(at)).count() as u32;
                prop_assert_eq!(set.run(psn(first), 1000), run);
                for at in first..first + 420 {
                    prop_assert_eq!(set.contains(psn(at)), model.contains(&at));
                }
            }
        }
    }
}
