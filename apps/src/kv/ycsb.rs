//! What clients of a store do, as the Yahoo! cloud serving benchmark has it. (Cooper and others:
//! *Benchmarking cloud serving systems with YCSB*, SoCC 2010.)

use clap::ValueEnum;
use serde::Serialize;
use urxe_port::sim::Rng;

/// How much of what clients do is a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Half of it.
    A,
    /// 5 %.
    B,
    /// Nothing.
    C,
}

/// Draws keys, some of them much more often than others.
#[derive(Debug)]
pub struct Zipf {
    rng: Rng,
    /// Up to each key, the sum of how often it and those before it are drawn.
    sums: Vec<f64>,
}

/// The exponent: the second key is drawn about half as often as the first.
const SKEW: f64 = 0.99;

impl Zipf {
    /// Of keys below `keys`, at least 1, from a seed.
    pub fn new(seed: u64, keys: u64) -> Zipf {
        let mut sum = 0.;
        let add = |rank: u64| {
            sum += (rank as f64).powf(-SKEW);
            sum
        };
        Zipf { rng: Rng::new(seed), sums: (1..=keys).map(add).collect() }
    }

    /// A key.
    pub fn draw(&mut self) -> u64 {
        let total = self.sums.last().copied().unwrap_or(0.);
        let drawn = self.fraction() * total;
        let place = self.sums.partition_point(|sum| *sum <= drawn);
        place.min(self.sums.len().saturating_sub(1)) as u64
    }

    /// Whether this is a write.
    pub fn is_update(&mut self, mix: Mix) -> bool {
        let part = match mix {
            Mix::A => 0.5,
            Mix::B => 0.05,
            Mix::C => 0.,
        };
        self.fraction() < part
    }

    /// From 0 to below 1.
    fn fraction(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_drawn_twice_as_often_as_the_second() {
        let mut zipf = Zipf::new(1, 1000);
        let mut counts = vec![0; 1000];
        (0..200_000).for_each(|_| counts[zipf.draw() as usize] += 1);
        assert!((19..22).contains(&(10 * counts[0] / counts[1])), "{:?}", &counts[..2]);
        assert!(counts[500] < counts[0] / 200);
    }

    #[test]
    fn updates_are_as_many_as_the_mix_says() {
        let mut zipf = Zipf::new(1, 1);
        let mut count = |mix| (0..10_000).filter(|_| zipf.is_update(mix)).count();
        assert!((4800..5200).contains(&count(Mix::A)) && (400..600).contains(&count(Mix::B)));
        assert_eq!(count(Mix::C), 0);
    }
}
