//! Which QPs failed last.

use std::collections::VecDeque;
use urxe_types::Qpn;

/// How many are remembered.
const MOST: usize = 64;

/// The QPs that failed last, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Failures(VecDeque<Qpn>);

impl Failures {
    /// Takes note of one that has just failed.
    pub(crate) fn note(&mut self, qpn: Qpn) {
        // HISTORY-005
        self.0.retain(|&noted| noted != qpn);
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(qpn);
    }

    /// Those that are remembered. Some may be gone.
    pub(super) fn iter(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.0.iter().copied()
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
    }
}
