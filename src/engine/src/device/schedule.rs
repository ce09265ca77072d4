//! Whose turn it is to send, and whose timers run out next.

use super::shares::{ShareKey, Shares};
use crate::qp::Qp;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;
use urxe_types::Qpn;

/// A QP, and where it stands in the [`Schedule`].
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) qp: Qp,
    pub(super) share: ShareKey,
    has_turn: bool,
    timer: Option<Instant>,
}

impl Scheduled {
    pub(super) fn new(qp: Qp, share: ShareKey) -> Scheduled {
        Scheduled { qp, share, has_turn: false, timer: None }
    }

    /// Its turn has come: it has none any more, unless it is given another.
    pub(super) fn take_turn(&mut self) {
        self.has_turn = false;
    }

    /// Whether it is this timer that the QP waits for, which has run out.
    pub(super) fn take_timer(&mut self, at: Instant) -> bool {
        let is_due = self.timer == Some(at);
        if is_due {
            self.timer = None;
        }
        is_due
    }
}

/// Groups of QPs that have their turns together.
const GROUPS: usize = 64;

/// QPs of one share with something to send, in the order of their turns: all those of one group,
/// then those of the next. QPs whose packets make one flow are of one group, so that their packets
/// come to lie side by side and leave in few trains. No group has another round before all the
/// others had one.
#[derive(Debug)]
pub(super) struct Turns {
    groups: [VecDeque<Qpn>; GROUPS],
    /// The groups that have QPs, in the order of their rounds. Only the first, whose round it is,
    /// may have none left.
    order: VecDeque<usize>,
    /// QPs that still have their turn in the first group's round, if that has begun.
    left: Option<usize>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            groups: std::array::from_fn(|_| VecDeque::new()),
            order: VecDeque::new(),
            left: None,
        }
    }
}

impl Turns {
    /// Gives a QP a turn in a group.
    pub(super) fn push(&mut self, qpn: Qpn, group: usize) {
        let group = group % GROUPS;
        if self.groups[group].is_empty() && self.order.front() != Some(&group) {
            self.order.push_back(group);
        }
        self.groups[group].push_back(qpn);
    }

    /// The QP whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Qpn> {
        loop {
            let &group = self.order.front()?;
            let queue = &mut self.groups[group];
            let left = self.left.get_or_insert(queue.len());
            // TRAIN-040
            if *left > 0
                && let Some(qpn) = queue.pop_front()
            {
                *left -= 1;
                return Some(qpn);
            }
            // TRAIN-041: whoever got a turn meanwhile waits for the next round.
            self.left = None;
            self.order.pop_front();
            if !queue.is_empty() {
                self.order.push_back(group);
            }
        }
    }

    /// What [`pop`](Self::pop) returned last is the next again.
    pub(super) fn put_back(&mut self, qpn: Qpn) {
        if let Some(&group) = self.order.front() {
            self.groups[group].push_front(qpn);
            self.left = self.left.map(|left| left + 1);
        }
    }

    /// The QPs that have turns.
    pub(super) fn iter(&self) -> impl Iterator<Item = Qpn> {
        self.order.iter().flat_map(|&group| &self.groups[group]).copied()
    }

    /// Whether no QP has a turn.
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// The turns and the timers of a device's QPs.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub(super) shares: Shares,
    /// When to look at which QP's timers. A QP stands here at most once with the time that it
    /// knows of; other entries of it are leftovers.
    timers: BinaryHeap<Reverse<(Instant, Qpn)>>,
}

impl Schedule {
    /// Gives a QP a turn, unless it has one.
    pub(super) fn give_turn(&mut self, qpn: Qpn, scheduled: &mut Scheduled) {
        if !std::mem::replace(&mut scheduled.has_turn, true) {
            self.shares.push(scheduled.share, qpn, scheduled.qp.flow_number());
        }
    }

    /// The QP whose turn it is.
    pub(super) fn next_turn(&mut self) -> Option<Qpn> {
        self.shares.pop()
    }

    /// The QP that has a turn, if it is the only one.
    pub(super) fn only_turn(&self) -> Option<Qpn> {
        let mut turns = self.shares.turns();
        turns.next().filter(|_| turns.next().is_none())
    }

    /// The turn of this QP could not be taken: it is the next again.
    pub(super) fn put_back_turn(&mut self, qpn: Qpn) {
        self.shares.put_back(qpn);
    }

    /// Sees that a QP's timers are looked at by `at`.
    pub(super) fn set_timer(&mut self, qpn: Qpn, scheduled: &mut Scheduled, at: Instant) {
        if scheduled.timer.is_none_or(|set| at < set) {
            scheduled.timer = Some(at);
            self.timers.push(Reverse((at, qpn)));
        }
    }

    /// When the next timer runs out.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|&Reverse((at, _))| at)
    }

    /// A timer that has run out by `now`, and its QP.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        self.next_timer().filter(|&at| at <= now)?;
        self.timers.pop().map(|Reverse(expired)| expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn qpns(numbers: &[u32]) -> Vec<Qpn> {
        numbers.iter().map(|&number| Qpn::new(number)).collect()
    }

    #[test]
    fn those_of_one_group_have_their_turns_one_after_the_other() {
        let mut turns = Turns::default();
        for number in 0..6 {
            turns.push(Qpn::new(number), number as usize % 2);
        }
        // The one whose turn cannot be taken is the next again.
        let first = turns.pop().unwrap();
        turns.put_back(first);
        let order: Vec<Qpn> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, qpns(&[0, 2, 4, 1, 3, 5]), "TRAIN-040");
    }

    proptest! {
        /// Each QP that has had its turn gets another at once, or after some others.
        #[test]
        fn while_a_qp_waits_for_its_turn_no_other_has_more_than_two(
            groups in prop::collection::vec(0..5usize, 1..20),
            again_after in 0..4usize,
        ) {
            let mut turns = Turns::default();
            for (number, &group) in (0u32..).zip(&groups) {
                turns.push(Qpn::new(number), group);
            }
            // Of each that waits, which turns the others had since then.
            let mut had = vec![vec![0; groups.len()]; groups.len()];
            let mut resting = VecDeque::new();
            for _ in 0..groups.len() * 10 {
                let Some(qpn) = turns.pop() else { break };
                let number = qpn.get() as usize;
                prop_assert!(!resting.contains(&number));
                for waiting in had.iter_mut() {
                    waiting[number] += 1;
                }
                // TRAIN-041
                prop_assert!(had[number].iter().all(|&turns| turns <= 2), "{:?}", had[number]);
                resting.push_back(number);
                if resting.len() > again_after {
                    let number = resting.pop_front().unwrap();
                    had[number].fill(0);
                    turns.push(Qpn::new(number as u32), groups[number]);
                }
            }
        }
    }
}
