//! Whose turn it is to send, and whose timers run out next.

use crate::qp::Qp;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;
use urxe_types::Qpn;

/// A QP, and where it stands in the [`Schedule`].
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) qp: Qp,
    has_turn: bool,
    timer: Option<Instant>,
}

impl Scheduled {
    pub(super) fn new(qp: Qp) -> Scheduled {
        Scheduled { qp, has_turn: false, timer: None }
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

/// The turns and the timers of a device's QPs.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// QPs with something to send, in the order of their turns.
    turns: VecDeque<Qpn>,
    /// When to look at which QP's timers. A QP stands here at most once with the time that it
    /// knows of; other entries of it are leftovers.
    timers: BinaryHeap<Reverse<(Instant, Qpn)>>,
}

impl Schedule {
    /// Gives a QP a turn, unless it has one.
    pub(super) fn give_turn(&mut self, qpn: Qpn, scheduled: &mut Scheduled) {
        if !std::mem::replace(&mut scheduled.has_turn, true) {
            self.turns.push_back(qpn);
        }
    }

    /// The QP whose turn it is.
    pub(super) fn next_turn(&mut self) -> Option<Qpn> {
        self.turns.pop_front()
    }

    /// The turn of this QP could not be taken: it is the next again.
    pub(super) fn put_back_turn(&mut self, qpn: Qpn) {
        self.turns.push_front(qpn);
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
