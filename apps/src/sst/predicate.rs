//! Predicates on the table that do something once when they become true.

use std::ops::Range;

/// A *stable* predicate, one that stays true: it fires once.
#[derive(Debug, Default)]
pub struct Stable(bool);

impl Stable {
    /// Whether it has just become true.
    pub fn fires(&mut self, holds: bool) -> bool {
        let fires = holds && !self.0;
        self.0 |= holds;
        fires
    }
}

/// A *monotonic* predicate, one that is true of every number up to one that grows: it fires once
/// for each.
#[derive(Debug, Default)]
pub struct Growing(u64);

impl Growing {
    /// The numbers that it has just become true of.
    pub fn fires(&mut self, below: u64) -> Range<u64> {
        let from = self.0;
        self.0 = from.max(below);
        from..self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predicate_fires_once() {
        let mut stable = Stable::default();
        let fired: Vec<_> = [false, true, true, false, true].map(|now| stable.fires(now)).into();
        assert_eq!(fired, [false, true, false, false, false]);
        let mut growing = Growing::default();
        let fired: Vec<_> = [0, 2, 2, 1, 3].map(|now| growing.fires(now)).into();
        assert_eq!(fired, [0..0, 0..2, 2..2, 2..2, 2..3]);
    }
}
