//! The QPs that wait for their turn in a lane.

use std::collections::VecDeque;
use urxe_types::Qpn;

/// What is known of whether a QP's peer answers; the more, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It has answered nothing yet, or nothing since the ACK timeout.
    Untried,
    /// It has answered, but since then nothing was heard of anyone on the path for a time.
    Doubted,
    /// It answers.
    Answered,
}

/// As many as there are of [`Standing`].
const STANDINGS: usize = 3;

/// Those that wait, by what is known of their peers, and among their like in the order of their
/// turns. One whose peer answers takes turns with all of which that is not known: however many of
/// these there are, it waits for one of each other standing at most.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: [VecDeque<Qpn>; STANDINGS],
    /// Of which standing the last turn was.
    last: usize,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) qpn: Qpn,
    pub(super) standing: Standing,
}

/// From the least known on.
const ALL: [Standing; STANDINGS] = [Standing::Untried, Standing::Doubted, Standing::Answered];

impl Waiting {
    /// Those that wait.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// A QP waits from now on.
    pub(super) fn push(&mut self, turn: Turn) {
        self.queues[turn.standing as usize].push_back(turn.qpn);
    }

    /// Whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Turn> {
        // CONG-035
        let mut after_last = (1..=STANDINGS).map(|step| (self.last + step) % STANDINGS);
        self.last = after_last.find(|&at| !self.queues[at].is_empty())?;
        self.pop_of(ALL[self.last])
    }

    /// Whose turn it is if those come first of whose peers most is known.
    pub(super) fn pop_best(&mut self) -> Option<Turn> {
        ALL.into_iter().rev().find_map(|standing| self.pop_of(standing))
    }

    fn pop_of(&mut self, standing: Standing) -> Option<Turn> {
        let qpn = self.queues[standing as usize].pop_front()?;
        Some(Turn { qpn, standing })
    }

    /// A QP waits no more, if it did.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        self.queues.iter_mut().for_each(|queue| queue.retain(|&waiting| waiting != qpn));
    }

    /// Nothing is heard of anyone: whether those answer that did is not known any more.
    pub(super) fn doubt(&mut self) {
        let [_, doubted, answered] = &mut self.queues;
        doubted.append(answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(qpns: [std::ops::Range<u32>; STANDINGS]) -> Waiting {
        let mut waiting = Waiting::default();
        for (qpns, standing) in qpns.into_iter().zip(ALL) {
            for qpn in qpns.map(Qpn::new) {
                waiting.push(Turn { qpn, standing });
            }
        }
        waiting
    }

    fn numbers(pop: impl FnMut() -> Option<Turn>) -> Vec<u32> {
        std::iter::from_fn(pop).map(|turn| turn.qpn.get()).collect()
    }

    #[test]
    fn one_waits_for_one_of_each_other_standing_at_most() {
        let mut some = waiting([11..13, 0..0, 1..4]);
        assert_eq!(some.len(), 5);
        assert_eq!(numbers(|| some.pop()), [1, 11, 2, 12, 3]);
        assert!(some.is_empty());
        let mut some = waiting([11..15, 21..23, 1..3]);
        assert_eq!(numbers(|| some.pop()), [21, 1, 11, 22, 2, 12, 13, 14]);
    }

    #[test]
    fn for_a_trial_those_come_first_of_whose_peers_most_is_known() {
        let mut some = waiting([11..13, 21..23, 1..3]);
        assert_eq!(numbers(|| some.pop_best()), [1, 2, 21, 22, 11, 12]);
    }

    #[test]
    fn one_that_waits_no_more_has_no_turn() {
        let mut some = waiting([11..13, 21..22, 1..4]);
        [2, 11, 99].map(Qpn::new).into_iter().for_each(|qpn| some.remove(qpn));
        assert_eq!(numbers(|| some.pop()), [21, 1, 12, 3]);
    }

    #[test]
    fn those_that_are_doubted_stay_in_their_order_behind_those_that_were_already() {
        let mut some = waiting([11..12, 21..22, 1..3]);
        some.doubt();
        some.push(Turn { qpn: Qpn::new(3), standing: Standing::Answered });
        assert_eq!(numbers(|| some.pop_best()), [3, 21, 1, 2, 11]);
    }
}
