//! A small seeded generator, so that a run can be had again from its seed.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64, of which any seed is good.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Rng(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0. Biased by less than 2^-32 for the bounds used here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A duration in the range, to the nanosecond.
    pub(crate) fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let (min, max) = (range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        Duration::from_nanos(min + self.below(max.saturating_sub(min).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_algorithm() {
        let mut rng = Rng::new(1234567);
        let known = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!(known.map(|_| rng.next_u64()), known);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_both_ends() {
        let mut rng = Rng::new(1);
        let seen: Vec<u64> = (0..200).map(|_| rng.below(3)).collect();
        assert!((0..3).all(|n| seen.contains(&n)) && seen.iter().all(|n| *n < 3));
    }
}
