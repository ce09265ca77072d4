//! The QPs that wait for their turn in a lane.

use std::collections::VecDeque;
use urxe_types::Qpn;

/// Those that wait, in the order of their turns. One whose peer answers takes turns with all of
/// which that is not known: however many of these there are, it waits for one of them at most.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Those whose peers answer.
    answered: VecDeque<Qpn>,
    /// Those whose peers have answered nothing yet, or nothing since the ACK timeout.
    untried: VecDeque<Qpn>,
    /// The last turn was one of the former.
    was_answered: bool,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) qpn: Qpn,
    /// Its peer answers.
    pub(super) is_answered: bool,
}

impl Waiting {
    /// Those that wait.
    pub(super) fn len(&self) -> usize {
        self.answered.len() + self.untried.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answered.is_empty() && self.untried.is_empty()
    }

    /// A QP waits from now on.
    pub(super) fn push(&mut self, turn: Turn) {
        match turn.is_answered {
            true => self.answered.push_back(turn.qpn),
            false => self.untried.push_back(turn.qpn),
        }
    }

    /// Whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Turn> {
        // CONG-035
        match self.was_answered {
            false => self.pop_answered().or_else(|| self.pop_untried()),
            true => self.pop_untried().or_else(|| self.pop_answered()),
        }
    }

    /// Whose turn it is if those come first whose peers answer.
    pub(super) fn pop_answered_first(&mut self) -> Option<Turn> {
        self.pop_answered().or_else(|| self.pop_untried())
    }

    fn pop_answered(&mut self) -> Option<Turn> {
        let qpn = self.answered.pop_front()?;
        self.was_answered = true;
        Some(Turn { qpn, is_answered: true })
    }

    fn pop_untried(&mut self) -> Option<Turn> {
        let qpn = self.untried.pop_front()?;
        self.was_answered = false;
        Some(Turn { qpn, is_answered: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(answered: std::ops::Range<u32>, untried: std::ops::Range<u32>) -> Waiting {
        let mut waiting = Waiting::default();
        for (numbers, is_answered) in [(untried, false), (answered, true)] {
            for qpn in numbers.map(Qpn::new) {
                waiting.push(Turn { qpn, is_answered });
            }
        }
        waiting
    }

    fn numbers(pop: impl FnMut() -> Option<Turn>) -> Vec<u32> {
        std::iter::from_fn(pop).map(|turn| turn.qpn.get()).collect()
    }

    #[test]
    fn one_that_is_answered_waits_for_one_that_is_not_at_most_and_the_other_way_round() {
        let mut some = waiting(1..4, 11..13);
        assert_eq!(some.len(), 5);
        assert_eq!(numbers(|| some.pop()), [1, 11, 2, 12, 3]);
        assert!(some.is_empty());
        let mut some = waiting(1..3, 11..15);
        assert_eq!(numbers(|| some.pop()), [1, 11, 2, 12, 13, 14]);
    }

    #[test]
    fn for_a_trial_those_that_are_answered_come_first() {
        let mut some = waiting(1..3, 11..13);
        assert_eq!(numbers(|| some.pop_answered_first()), [1, 2, 11, 12]);
    }
}
