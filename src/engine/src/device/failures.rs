//! Which QPs failed last.

use std::collections::VecDeque;
use urxe_types::Qpn;

/// How many are remembered.
const MOST: usize = 64;

/// The QPs that failed last, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: VecDeque<Qpn>,
    /// All that were ever noted.
    count: u64,
}

impl Failures {
    /// Takes note of one that has just failed.
    pub(crate) fn note(&mut self, qpn: Qpn) {
        // HISTORY-005
        self.last.retain(|&noted| noted != qpn);
        if self.last.len() >= MOST {
            self.last.pop_front();
        }
        self.last.push_back(qpn);
        self.count += 1;
    }

    /// Those that are remembered. Some may be gone.
    pub(super) fn iter(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.last.iter().copied()
    }

    /// How often any has failed.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_once_each() {
        let mut failures = Failures::default();
        for number in 0..1000 {
            failures.note(Qpn::new(number));
            failures.note(Qpn::new(7));
        }
        let noted: Vec<u32> = failures.iter().map(Qpn::get).collect();
        assert_eq!(noted.len(), MOST);
        assert_eq!(noted[MOST - 3..], [998, 999, 7]);
        assert_eq!(failures.count(), 2000);
    }
}
