//! What a bad network does to datagrams, by chance. Shared by the simulated network and by fault
//! injection.

use crate::rng::Rng;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The chance of something: from never to always, in steps of 2^-32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chance(u64);

impl Chance {
    /// It does not happen.
    pub const NEVER: Chance = Chance(0);
    /// It happens every time.
    pub const ALWAYS: Chance = Chance(1 << 32);

    /// So many percent, but not never if it is more than 0. `None` if it is not from 0 to 100.
    pub fn from_percent(percent: f64) -> Option<Chance> {
        let share = percent / 100.0 * Chance::ALWAYS.0 as f64;
        let least = u64::from(percent > 0.0);
        (0.0..=100.0).contains(&percent).then_some(Chance((share as u64).max(least)))
    }

    /// So many percent, as [`from_percent`](Self::from_percent).
    ///
    /// # Panics
    ///
    /// If it is not from 0 to 100: for percentages that stand in the program.
    pub fn percent(percent: f64) -> Chance {
        Chance::from_percent(percent).expect("a percentage is from 0 to 100")
    }

    fn happens(self, rng: &mut Rng) -> bool {
        rng.next_u64() >> 32 < self.0
    }
}

/// How long a reordered datagram is held back beyond its delay, at random: longer than a batch
/// takes, shorter than a retransmission timer.
const REORDER_EXTRA: RangeInclusive<Duration> =
    Duration::from_micros(50)..=Duration::from_micros(500);

/// What happens to datagrams, by chance. The default is nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairment {
    /// Lost.
    pub drop: Chance,
    /// Arrives twice.
    pub duplicate: Chance,
    /// Held back by another 50 to 500 microseconds, so that later ones overtake it.
    pub reorder: Chance,
    /// One bit is flipped, after the ICRC was put in.
    pub corrupt: Chance,
    /// How long it takes at least and at most. Without [`reorder`](Self::reorder) the order is
    /// kept nonetheless.
    pub delay: RangeInclusive<Duration>,
}

impl Default for Impairment {
    fn default() -> Self {
        Impairment {
            drop: Chance::NEVER,
            duplicate: Chance::NEVER,
            reorder: Chance::NEVER,
            corrupt: Chance::NEVER,
            delay: Duration::ZERO..=Duration::ZERO,
        }
    }
}

/// What happens to one datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Impairments {
    pub(crate) drop: bool,
    pub(crate) duplicate: bool,
    pub(crate) corrupt: bool,
    /// Everything before it may not be overtaken; this long it takes.
    pub(crate) delay: Duration,
    /// Held back longer still, and later ones may overtake it.
    pub(crate) reorder: Option<Duration>,
}

impl Impairments {
    /// How many of the datagram arrive.
    pub(crate) fn copies(&self) -> usize {
        match self {
            Impairments { drop: true, .. } => 0,
            Impairments { duplicate: true, .. } => 2,
            _ => 1,
        }
    }
}

impl Impairment {
    /// Decides about the next datagram. Draws the same number of times whatever comes out, so that
    /// changing one chance does not change what the others hit.
    pub(crate) fn decide(&self, rng: &mut Rng) -> Impairments {
        let drop = self.drop.happens(rng);
        let duplicate = self.duplicate.happens(rng);
        let reorder = self.reorder.happens(rng);
        let corrupt = self.corrupt.happens(rng);
        let delay = rng.duration(&self.delay);
        let extra = rng.duration(&REORDER_EXTRA);
        Impairments { drop, duplicate, corrupt, delay, reorder: reorder.then_some(extra) }
    }
}

/// The extra delay of a datagram that a rule, not chance, wants reordered.
pub(crate) fn reorder_extra(rng: &mut Rng) -> Duration {
    rng.duration(&REORDER_EXTRA)
}

/// Where FECN, BECN and reserved bits stand, which switches may change: no ICRC covers them.
const UNCOVERED: usize = 4;

/// Flips one bit that an ICRC covers, or one of the ICRC, so that the receiver can tell.
pub(crate) fn corrupt(rng: &mut Rng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let bit = rng.below(bytes.len() as u64 * 8);
        let last = bytes.len() - 1;
        // One draw whatever comes out: seeds mean what they meant.
        let byte = match bit as usize / 8 {
            UNCOVERED if last > UNCOVERED => last,
            byte => byte,
        };
        bytes[byte] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_of_0_and_100_percent_are_exact() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| Chance::ALWAYS.happens(&mut rng)));
        assert!((0..1000).all(|_| !Chance::NEVER.happens(&mut rng)));
        assert_eq!(Chance::percent(100.0), Chance::ALWAYS);
        assert_eq!(Chance::percent(0.0), Chance::NEVER);
        // However little was asked for.
        assert_eq!(Chance::percent(1e-12), Chance(1));
    }

    #[test]
    fn an_event_happens_at_about_the_rate_of_its_chance() {
        let mut rng = Rng::new(2);
        let hits = (0..100_000).filter(|_| Chance::percent(1.0).happens(&mut rng)).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }

    #[test]
    fn only_percentages_are_chances() {
        for wrong in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Chance::from_percent(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn one_chance_does_not_move_what_another_hits() {
        let drops = |corrupt| {
            let mut rng = Rng::new(3);
            let impairment =
                Impairment { drop: Chance::percent(30.0), corrupt, ..Impairment::default() };
            (0..100).map(|_| impairment.decide(&mut rng).drop).collect::<Vec<_>>()
        };
        assert_eq!(drops(Chance::NEVER), drops(Chance::ALWAYS));
    }

    #[test]
    fn corruption_flips_exactly_one_bit() {
        let mut rng = Rng::new(4);
        for _ in 0..100 {
            let mut bytes = [0u8; 20];
            corrupt(&mut rng, &mut bytes);
            assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        }
    }

    #[test]
    fn corruption_is_covered_by_the_icrc_and_takes_one_draw() {
        let (mut rng, mut same) = (Rng::new(5), Rng::new(5));
        let mut hit = [0u8; 20];
        for _ in 0..2000 {
            corrupt(&mut rng, &mut hit);
            assert_eq!(hit[UNCOVERED], 0);
            same.below(hit.len() as u64 * 8);
        }
        assert_eq!(rng.next_u64(), same.next_u64());
        // What is too short for an ICRC has no other bit.
        let mut short = [0u8; UNCOVERED + 1];
        (0..100).for_each(|_| corrupt(&mut rng, &mut short));
        assert_ne!(short, [0; UNCOVERED + 1]);
    }
}
