//! How much of what takes a receive may be under way to a peer that had none.
//!
//! A peer without a receive drops everything behind the message that it has refused. A requester
//! that repeats all of its window then has most of it dropped again, with each receive that the
//! peer posts. So after an RNR NAK one packet that takes a receive goes alone, and nothing behind
//! it until it is acknowledged. Then go as many as the peer took the last time before it refused
//! one, for programs post receives in the same way again and again; and then one alone, two, four.

use crate::limits::{MAX_RNR_BACKOFF, RNR_BACKOFF_SHARE, SHORT_RNR_BACKOFF};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
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
    /// Since when it refuses the same packet.
    refused_since: Option<Instant>,
}

impl Readiness {
    pub(super) fn new() -> Readiness {
        Readiness {
            is_limited: false,
            under_way: VecDeque::new(),
            taken: 0,
            taken_before: 0,
            refused_since: None,
        }
    }

    /// Whether the peer has refused something, and nothing since that it has taken.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_since.is_some()
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
        self.refused_since = None;
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
    pub(super) fn on_refused(&mut self, now: Instant, wait: Duration) -> Duration {
        if self.taken > 0 {
            self.taken_before = self.taken;
        }
        self.is_limited = true;
        self.taken = 0;
        self.under_way.clear();
        // RC-REQ-022
        let not_ready = now.saturating_duration_since(*self.refused_since.get_or_insert(now));
        let longest = (not_ready / RNR_BACKOFF_SHARE).clamp(SHORT_RNR_BACKOFF, MAX_RNR_BACKOFF);
        // So each is twice as long as the one before it.
        let longer = not_ready + wait;
        longer.min(longest).max(wait)
    }

    /// What is under way is sent again.
    pub(super) fn on_rewind(&mut self) {
        self.under_way.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_micros(10);

    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    fn begin() -> Instant {
        Instant::now()
    }

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
                readiness.on_refused(begin(), WAIT);
                return at_once;
            }
        }
    }

    #[test]
    fn a_peer_that_is_ready_again_is_soon_trusted_as_before() {
        let mut readiness = Readiness::new();
        assert_eq!(send(&mut readiness, 0), 1000);
        readiness.on_refused(begin(), WAIT);
        assert_eq!(sent_at_once(&mut readiness, 500), [1, 2, 4, 8, 16, 32, 64, 1000]);
    }

    #[test]
    fn a_peer_gets_what_it_took_the_last_time_and_then_one_alone() {
        let mut readiness = Readiness::new();
        readiness.on_refused(begin(), WAIT);
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
            readiness.on_refused(begin(), WAIT);
            assert!(readiness.is_next_the_last());
            assert_eq!(send(&mut readiness, 5), 1);
        }
        readiness.on_acknowledged(Psn::new(5));
        assert!(!readiness.may_send(), "what came before it says nothing of it");
        readiness.on_acknowledged(Psn::new(6));
        assert!(readiness.may_send());
    }

    /// The waits, in microseconds, of a request that is refused again when each is over.
    fn waits<const N: usize>(
        readiness: &mut Readiness,
        mut now: Instant,
        asked: Duration,
    ) -> [u128; N] {
        std::array::from_fn(|_| {
            let wait = readiness.on_refused(now, asked);
            now += wait;
            wait.as_micros()
        })
    }

    #[test]
    fn the_wait_is_doubled_while_the_same_is_refused_and_never_cut_short() {
        let now = begin();
        let mut readiness = Readiness::new();
        assert_eq!(waits(&mut readiness, now, WAIT), [10, 20, 40, 80, 160, 160, 160]);
        readiness.on_sent(Psn::new(0));
        readiness.on_acknowledged(Psn::new(1));
        assert_eq!(waits(&mut readiness, now, WAIT), [10, 20]);
        let second = Duration::from_millis(500);
        assert_eq!(waits(&mut Readiness::new(), now, second), [500_000; 7]);
    }

    #[test]
    fn the_wait_for_a_peer_that_stays_unready_is_an_eighth_of_the_time_and_bounded() {
        let mut readiness = Readiness::new();
        let begin = begin();
        let mut wait = |after| {
            let now = begin + Duration::from_micros(after);
            readiness.on_refused(now, WAIT).as_micros()
        };
        assert_eq!(wait(0), 10);
        assert_eq!([1_280, 8_000, 79_000, 1_000_000].map(wait), [160, 1_000, 9_875, 10_000]);
    }
}
