//! The one source of randomness of a run: everything that is drawn follows from its seed.

use std::ops::RangeInclusive;
use std::time::Duration;
use urxe_port::sim;

/// The generator of the simulated network, with what tests draw from it. A fork is as good as a new
/// seed.
#[derive(Clone, Debug)]
pub struct Rng {
    words: sim::Rng,
    /// A generator of this seed goes on as this one does.
    state: u64,
}

/// By how much the state of SplitMix64 grows with each word.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng { words: sim::Rng::new(seed), state: seed }
    }

    /// As if so many words had been drawn.
    pub fn skip(&mut self, words: u64) {
        *self = Rng::new(self.state.wrapping_add(STEP.wrapping_mul(words)));
    }

    /// A generator of its own: what is drawn from it does not move what is drawn from this one.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        self.words.next_u64()
    }

    /// A number of the range.
    pub fn range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (min, max) = range.into_inner();
        let span = u128::from(max - min) + 1;
        min + ((u128::from(self.next_u64()) * span) >> 64) as u64
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.range(0..=len as u64 - 1) as usize
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.range(0..=99) < percent
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())].clone()
    }

    /// A duration of the range, in microseconds.
    pub fn micros(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.range(range))
    }

    /// Fills a slice.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&self.next_u64().to_le_bytes()[..rest.len()]);
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_reach_both_ends_and_nothing_else() {
        let mut rng = Rng::new(1);
        let seen: Vec<u64> = (0..200).map(|_| rng.range(5..=7)).collect();
        assert!((5..=7).all(|n| seen.contains(&n)) && seen.iter().all(|n| (5..=7).contains(n)));
        assert_eq!(rng.range(9..=9), 9);
        rng.range(0..=u64::MAX);
    }

    #[test]
    fn words_that_are_skipped_are_those_that_would_be_drawn() {
        let (mut drawn, mut skipped) = (Rng::new(9), Rng::new(9));
        for words in [0, 1, 5, 1_000] {
            for _ in 0..words {
                drawn.next_u64();
            }
            skipped.skip(words);
            assert_eq!(drawn.next_u64(), skipped.next_u64());
        }
    }

    #[test]
    fn a_fork_goes_its_own_way() {
        let (mut a, mut b) = (Rng::new(1), Rng::new(1));
        let mut fork = a.fork();
        fork.next_u64();
        b.fork();
        assert_eq!(a.next_u64(), b.next_u64());
    }
}
