//! Which numbers new QPs are given.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::ops::RangeInclusive;
use urxe_types::Qpn;

/// The numbers of a range, in an order that cannot be told from those that came before.
///
/// The range is dealt into two halves by chance, once and for all. They take turns, and each gives
/// its numbers in a new order every time. So before a number comes again, all of the other half
/// have come; and those that are taken, for however long, are spread over their half and make no
/// long row that has to be passed over at once.
#[derive(Debug)]
pub(super) struct QpnSequence {
    rng: ChaCha8Rng,
    first: u32,
    /// Which numbers are in which half: the lower positions are the first's.
    halves: Shuffle,
    /// The order in the half whose turn it is.
    order: Shuffle,
    /// The first position of that half, and where in its order the next number is.
    half_at: u32,
    next: u32,
}

impl QpnSequence {
    /// Of the numbers of a range; there is at least one.
    pub(super) fn new(range: RangeInclusive<u32>, seed: u64) -> QpnSequence {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let len = range.end() - range.start() + 1;
        let halves = Shuffle::new(len, &mut rng);
        let order = Shuffle::new(len.div_ceil(2), &mut rng);
        QpnSequence { rng, first: *range.start(), halves, order, half_at: 0, next: 0 }
    }

    /// How many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.halves.len as usize
    }

    /// The next number that is not taken. At least one must be free.
    pub(super) fn next_free(&mut self, is_taken: impl Fn(Qpn) -> bool) -> Qpn {
        loop {
            let qpn = self.next();
            if !is_taken(qpn) {
                return qpn;
            }
        }
    }

    fn next(&mut self) -> Qpn {
        if self.next == self.order.len {
            let other_at = if self.half_at == 0 { self.order.len } else { 0 };
            let other_len = self.halves.len - self.order.len;
            // A range of one number is one half.
            if other_len > 0 {
                self.half_at = other_at;
                self.order = Shuffle::new(other_len, &mut self.rng);
            }
            self.next = 0;
        }
        let position = self.half_at + self.order.at(self.next);
        self.next += 1;
        Qpn::new(self.first + self.halves.at(position))
    }
}

/// Rounds after which the order is as good as any other.
const ROUNDS: u32 = 4;

/// The numbers below `len` in some order: a Feistel network whose round functions are keyed hashes,
/// so that it costs nothing to make one. It is made for the next larger power of four; what it
/// gives beyond `len` is put in again, until it gives a number below.
#[derive(Debug)]
struct Shuffle {
    len: u32,
    /// Bits of half a number.
    half_bits: u32,
    /// What begins each hash: its key is the order.
    hasher: SipHasher13,
}

impl Shuffle {
    fn new(len: u32, rng: &mut ChaCha8Rng) -> Shuffle {
        let bits = u32::BITS - len.saturating_sub(1).leading_zeros();
        let hasher = SipHasher13::new_with_keys(rng.next_u64(), rng.next_u64());
        Shuffle { len, half_bits: bits.div_ceil(2), hasher }
    }

    /// The number at a position, which is below `len` like the number.
    fn at(&self, position: u32) -> u32 {
        let mask = (1 << self.half_bits) - 1;
        let mut number = position;
        loop {
            let (mut high, mut low) = (number >> self.half_bits, number & mask);
            for round in 0..ROUNDS {
                (high, low) = (low, high ^ self.hash(round, low) & mask);
            }
            number = high << self.half_bits | low;
            if number < self.len {
                return number;
            }
        }
    }

    fn hash(&self, round: u32, half: u32) -> u32 {
        let mut hasher = self.hasher;
        hasher.write_u64(u64::from(round) << 32 | u64::from(half));
        hasher.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet, HashSet};
    use urxe_types::SlotCount;

    fn sequence(range: RangeInclusive<u32>) -> impl Iterator<Item = u32> {
        let mut sequence = QpnSequence::new(range, 7);
        std::iter::repeat_with(move || sequence.next_free(|_| false).get())
    }

    #[test]
    fn every_number_of_the_range_comes_once_before_any_comes_again() {
        for len in [1, 2, 3, 4, 5, 16, 17, 63, 1000] {
            let all: BTreeSet<u32> = (100..100 + len).collect();
            let mut numbers = sequence(100..=99 + len);
            let first: Vec<u32> = numbers.by_ref().take(len as usize).collect();
            assert_eq!(first.iter().copied().collect::<BTreeSet<_>>(), all);
            let second: BTreeSet<u32> = numbers.take(len as usize).collect();
            assert_eq!(second, all);
        }
    }

    #[test]
    fn before_a_number_comes_again_half_of_all_others_have_come() {
        for len in [2, 9, 1000, 4097] {
            let mut last_at = BTreeMap::new();
            for (at, number) in sequence(5..=4 + len).take(20 * len as usize).enumerate() {
                if let Some(before) = last_at.insert(number, at) {
                    assert!(at - before > len as usize / 2, "{number} at {before} and {at}");
                }
            }
        }
    }

    #[test]
    fn the_order_is_another_each_time_and_for_each_seed() {
        let mut numbers = sequence(0..=999);
        let rounds: Vec<Vec<u32>> = (0..4).map(|_| numbers.by_ref().take(1000).collect()).collect();
        let of_another_seed = QpnSequence::new(0..=999, 8).next();
        assert_ne!(rounds[0][0], of_another_seed.get());
        for pair in rounds.windows(2) {
            let alike = pair[0].iter().zip(&pair[1]).filter(|(one, other)| one == other).count();
            assert!(alike < 20, "{alike} of 1000 are where they were");
        }
        assert_eq!(rounds[0], sequence(0..=999).take(1000).collect::<Vec<_>>(), "of one seed");
    }

    #[test]
    fn numbers_are_no_closer_to_the_last_than_chance_brings_them() {
        let qpns = SlotCount::MAX.slot(5).unwrap().qpns();
        let numbers: Vec<u32> = sequence(qpns.clone()).take(10_000).collect();
        assert!(numbers.iter().all(|number| qpns.contains(number)));
        let steps: HashSet<u32> = numbers.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 9_500, "{} differences among 10,000 numbers", steps.len());
        let near = numbers.windows(2).filter(|w| w[0].abs_diff(w[1]) < 2622).count();
        // One in fifty would be.
        assert!((100..300).contains(&near), "{near} of 10,000 are near the last");
        let above = numbers.iter().filter(|number| **number & 1 << 17 != 0).count();
        assert!((4_700..5_300).contains(&above), "{above} of 10,000 are in the upper half");
    }

    #[test]
    fn among_100_000_that_are_taken_a_free_number_is_found_in_a_few_steps() {
        let mut sequence = QpnSequence::new(SlotCount::MAX.slot(1).unwrap().qpns(), 7);
        let mut taken = HashSet::new();
        for _ in 0..100_000 {
            let qpn = sequence.next_free(|qpn| taken.contains(&qpn));
            assert!(taken.insert(qpn));
        }
        // Two more rounds, in which none of these is free.
        let (mut most, mut all) = (0, 0);
        for _ in 0..2 * (sequence.len() - taken.len()) {
            let looks = std::cell::Cell::new(0);
            sequence.next_free(|qpn| {
                looks.set(looks.get() + 1);
                taken.contains(&qpn)
            });
            (most, all) = (most.max(looks.get()), all + looks.get());
        }
        assert!(most < 200, "{most} looks for one number");
        assert!(all < 2 * 2 * (sequence.len() - taken.len()), "{all} looks");
    }

    #[test]
    fn the_last_free_number_is_found() {
        let mut sequence = QpnSequence::new(17..=1016, 3);
        for free in [17, 500, 1016, 500] {
            assert_eq!(sequence.next_free(|qpn| qpn.get() != free).get(), free);
        }
    }
}
