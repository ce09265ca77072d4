//! How much of what takes a receive may be under way to a peer that had none.
//!
//! A peer without a receive drops everything behind the message that it has refused. A requester
//! that repeats all of its window then has most of it dropped again, with each receive that the
//! peer posts. So after an RNR NAK one packet that takes a receive goes alone, and nothing behind
//! it until it is acknowledged. Then go as many as the peer took the last time before it refused
//! one, for programs post receives in the same way again and again; and then one alone, two, four.

use crate::limits::MAX_RNR_BACKOFF;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_types::Psn;

/// So many more than the last time, and the peer is taken to be ready.
const UNLIMITED: u32 = 64;

/// What is known of a peer's receives.
#[derive(Debug)]
pub(super) struct Readiness {
    /// The peer was short of receives, and may still be.
    is_limited: bool,
    /// What was sent that takes a receive, while there is a limit.
    under_way: VecDeque<Psn>,
    /// What the peer has taken since it refused something.
    taken: u32,
    /// What it took before that, since it had refused something else.
    taken_before: u32,
    /// How often it has refused the same packet.
    refusals: u32,
}

impl Readiness {
    pub(super) fn new() -> Readiness {
        Readiness {
            is_limited: false,
            under_way: VecDeque::new(),
            taken: 0,
            taken_before: 0,
            refusals: 0,
        }
    }

    /// Whether the peer has refused something, and nothing since that it has taken.
    pub(super) fn is_refused(&self) -> bool {
        self.refusals > 0
    }

    /// Whether anything may be sent now.
    pub(super) fn may_send(&self) -> bool {
        !self.is_limited || self.room() > 0
    }

    /// Whether nothing may follow the next packet that takes a receive before it is acknowledged.
    pub(super) fn is_next_the_last(&self) -> bool {
        self.is_limited && self.room() <= 1
    }

    /// What may be sent now that takes a receive.
    fn room(&self) -> u32 {
        // RC-REQ-042
        let at_once = match self.taken {
            0 => 1,
            taken if taken < self.taken_before => self.taken_before - taken,
            taken => taken - self.taken_before + 1,
        };
        at_once.saturating_sub(self.under_way.len() as u32)
    }

    /// A packet was sent that takes a receive.
    pub(super) fn on_sent(&mut self, psn: Psn) {
        if self.is_limited {
            self.under_way.push_back(psn);
        }
    }

    /// The oldest packet was sent again, alone. Nothing follows it if it is what was refused.
    pub(super) fn on_oldest_repeated(&mut self, psn: Psn) {
        if self.is_refused() && self.under_way.is_empty() {
            self.under_way.push_back(psn);
        }
    }

    /// Everything before `una` is acknowledged, and that is more than before.
    pub(super) fn on_acknowledged(&mut self, una: Psn) {
        self.refusals = 0;
        while self.under_way.front().is_some_and(|psn| psn.precedes(una)) {
            self.under_way.pop_front();
            self.taken += 1;
        }
        if self.taken >= self.taken_before + UNLIMITED {
            *self = Readiness { taken_before: UNLIMITED, ..Readiness::new() };
        }
    }

    /// The peer had no receive, and asks for this wait. How long it is to be: longer if it has
    /// refused the same before, but not without measure.
    pub(super) fn on_refused(&mut self, wait: Duration) -> Duration {
        if self.taken > 0 {
            self.taken_before = self.taken;
        }
        self.is_limited = true;
        self.taken = 0;
        self.under_way.clear();
        // RC-REQ-022
        let longer = wait * (1 << self.refusals);
        self.refusals = (self.refusals + 1).min(MAX_DOUBLINGS);
        longer.min(MAX_RNR_BACKOFF).max(wait)
    }

    /// What is under way is sent again.
    pub(super) fn on_rewind(&mut self) {
        self.under_way.clear();
    }
}

/// From the shortest wait, 10 us, to the longest that is made of it.
const MAX_DOUBLINGS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_micros(10);

    /// Sends what may be sent, from `psn` on; returns how many.
    fn send(readiness: &mut Readiness, psn: u32) -> u32 {
        let mut sent = 0;
        while readiness.may_send() && sent < 1000 {
            readiness.on_sent(Psn::new(psn + sent));
            sent += 1;
        }
        sent
    }

    /// What is sent at once to a peer that takes so many before it refuses one.
    fn sent_at_once(readiness: &mut Readiness, takes: u32) -> Vec<u32> {
        let (mut una, mut at_once) = (0, Vec::new());
        loop {
            let sent = send(readiness, una);
            at_once.push(sent);
            let taken = sent.min(takes - una);
            una += taken;
            readiness.on_acknowledged(Psn::new(una));
            if taken < sent {
                readiness.on_refused(WAIT);
                return at_once;
            }
        }
    }

    #[test]
    fn a_peer_that_is_ready_again_is_soon_trusted_as_before() {
        let mut readiness = Readiness::new();
        assert_eq!(send(&mut readiness, 0), 1000);
        readiness.on_refused(WAIT);
        assert_eq!(sent_at_once(&mut readiness, 500), [1, 2, 4, 8, 16, 32, 64, 1000]);
    }

    #[test]
    fn a_peer_gets_what_it_took_the_last_time_and_then_one_alone() {
        let mut readiness = Readiness::new();
        readiness.on_refused(WAIT);
        assert_eq!(sent_at_once(&mut readiness, 8), [1, 2, 4, 8]);
        assert_eq!(sent_at_once(&mut readiness, 8), [1, 7, 1]);
        assert_eq!(sent_at_once(&mut readiness, 8), [1, 7, 1]);
        assert_eq!(sent_at_once(&mut readiness, 1), [1, 7]);
        assert_eq!(sent_at_once(&mut readiness, 1), [1, 1]);
        assert_eq!(sent_at_once(&mut readiness, 4), [1, 1, 2, 4]);
    }

    #[test]
    fn a_request_refused_alone_is_repeated_alone() {
        let mut readiness = Readiness::new();
        for _ in 0..100 {
            readiness.on_refused(WAIT);
            assert!(readiness.is_next_the_last());
            assert_eq!(send(&mut readiness, 5), 1);
        }
        readiness.on_acknowledged(Psn::new(5));
        assert!(!readiness.may_send(), "what came before it says nothing of it");
        readiness.on_acknowledged(Psn::new(6));
        assert!(readiness.may_send());
    }

    #[test]
    fn the_wait_is_doubled_while_the_same_is_refused_and_never_cut_short() {
        let mut readiness = Readiness::new();
        let mut waits = |wait| [(); 9].map(|()| readiness.on_refused(wait).as_micros());
        assert_eq!(waits(WAIT), [10, 20, 40, 80, 160, 160, 160, 160, 160]);
        let second = Duration::from_millis(500);
        assert_eq!(waits(second), [500_000; 9]);
        readiness.on_sent(Psn::new(0));
        readiness.on_acknowledged(Psn::new(1));
        assert_eq!(readiness.on_refused(WAIT), WAIT);
    }
}
