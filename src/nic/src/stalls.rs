//! Programs whose memory keeps the data path waiting.
//!
//! Memory that is reached by system calls may have to be waited for: while its program forks, the
//! system holds the lock of its page tables, and a page may have to come from a disk. Nobody else
//! is served meanwhile. Once or twice that is an accident; a program that does it again and again
//! rests after each time. What comes for its QPs then is dropped, as by a NIC that has too much to
//! do, and peers of RC repeat it; what it posts is taken later. All such programs rest at the same
//! time: however many there are, others wait once for each rest.
//!
//! Whether a copy was waited for, or others had the processor meanwhile, the system has to be
//! asked. So that is asked only for a while after a turn that took long.

use crate::limits::{
    MAX_MEMORY_REST, MEMORY_REST, MEMORY_STALL, RESTS_PER_STALL, STALLS_FORGIVEN, STALLS_KEPT,
};
use crate::objects::OwnerId;
use nix::sys::resource::{UsageWho, getrusage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use urxe_types::Qpn;

/// For how long copies are looked at after a turn that took long.
const WATCHED: Duration = Duration::from_secs(1);

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// Copies are looked at until then.
    watched_until: Option<Instant>,
    /// The programs of the last stalls.
    stalled: BTreeMap<OwnerId, Stalled>,
    /// Until then those of them rest that have stalled too often.
    rests_until: Option<Instant>,
    /// QPs that would have had something to send, and until when their programs were to rest.
    deferred: BTreeSet<u32>,
    deferred_until: Option<Instant>,
}

/// How often a program has stalled, and when last.
#[derive(Debug)]
struct Stalled {
    times: u32,
    last: Instant,
}

/// A copy that has begun, and how often this thread had waited for anything by then.
pub(crate) struct Begun {
    at: Instant,
    waits: i64,
}

impl Begun {
    /// One that begins now.
    pub(crate) fn now() -> Begun {
        Begun { at: Instant::now(), waits: waits() }
    }
}

/// How often this thread has waited for anything, other than for the processor.
fn waits() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

impl Stalls {
    /// Has copies looked at for a while: a turn has taken long.
    pub(crate) fn watch(&mut self, now: Instant) {
        self.watched_until = Some(now + WATCHED);
    }

    /// Whether it is looked how long copies take.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched_until.is_some()
    }

    /// A copy of or to memory of this program has ended. Returns whether it was waited for so long
    /// that others are harmed.
    pub(crate) fn end(&mut self, begun: Begun, owner: OwnerId) -> bool {
        let now = Instant::now();
        let took = now.duration_since(begun.at);
        let has_stalled = took >= MEMORY_STALL && waits() != begun.waits;
        if has_stalled {
            self.on_stall(now, owner, took);
        }
        has_stalled
    }

    /// Others were kept waiting for so long by this program.
    pub(crate) fn on_stall(&mut self, now: Instant, owner: OwnerId, took: Duration) {
        self.watch(now);
        self.stalled.retain(|_, stalled| now.duration_since(stalled.last) < STALLS_KEPT);
        let stalled = self.stalled.entry(owner).or_insert(Stalled { times: 0, last: now });
        stalled.times = stalled.times.saturating_add(1);
        stalled.last = now;
        if stalled.times > STALLS_FORGIVEN {
            let rest = (took * RESTS_PER_STALL).clamp(MEMORY_REST, MAX_MEMORY_REST);
            self.rests_until = Some(now + rest);
        }
    }

    /// Whether a program rests.
    #[inline]
    pub(crate) fn rests(&self, owner: OwnerId) -> bool {
        self.any_rests()
            && self.stalled.get(&owner).is_some_and(|stalled| stalled.times > STALLS_FORGIVEN)
    }

    /// Whether any program rests.
    #[inline]
    pub(crate) fn any_rests(&self) -> bool {
        self.rests_until.is_some()
    }

    /// A QP of a program that rests may have something to send.
    pub(crate) fn defer(&mut self, qpn: Qpn) {
        self.deferred.insert(qpn.get());
        self.deferred_until = self.rests_until;
    }

    /// When the rest is over, if something waits for that; it is over where that has passed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rests_until.or(self.deferred_until).filter(|_| !self.deferred.is_empty())
    }

    /// Ends what is over: that copies are looked at, and rests.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.watched_until = self.watched_until.filter(|&until| now < until);
        self.rests_until = self.rests_until.filter(|&until| now < until);
    }

    /// The next QP that may have something to send and need not rest any more.
    pub(crate) fn next_deferred(&mut self) -> Option<Qpn> {
        match self.any_rests() {
            true => None,
            false => self.deferred.pop_first().map(Qpn::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: OwnerId = OwnerId(1);
    const OTHER: OwnerId = OwnerId(2);

    fn stall(stalls: &mut Stalls, now: Instant, owner: OwnerId, times: u32, took: Duration) {
        (0..times).for_each(|_| stalls.on_stall(now, owner, took));
    }

    /// SHARE-134
    #[test]
    fn a_program_rests_that_stalls_too_often_and_no_other() {
        let (now, mut stalls) = (Instant::now(), Stalls::default());
        stall(&mut stalls, now, ONE, STALLS_FORGIVEN, MEMORY_STALL);
        stall(&mut stalls, now, OTHER, STALLS_FORGIVEN, MEMORY_STALL);
        assert!(!stalls.any_rests(), "it may be an accident");
        stall(&mut stalls, now, ONE, 1, MEMORY_STALL);
        assert!(stalls.rests(ONE) && !stalls.rests(OTHER));
        let qpn = Qpn::new(7);
        (0..2).for_each(|_| stalls.defer(qpn));
        let over = now + MEMORY_REST;
        assert_eq!(stalls.deadline(), Some(over));
        stalls.advance(over - Duration::from_nanos(1));
        assert!(stalls.rests(ONE) && stalls.next_deferred().is_none());
        stalls.advance(over);
        // It is due as long as there is one left.
        assert!(!stalls.rests(ONE) && stalls.deadline() == Some(over));
        assert_eq!(stalls.next_deferred(), Some(qpn));
        assert!(stalls.next_deferred().is_none() && stalls.deadline().is_none());
        // Again at once, and then together with the other.
        stall(&mut stalls, over, ONE, 1, MEMORY_STALL);
        assert!(stalls.rests(ONE));
        stall(&mut stalls, over, OTHER, 1, MEMORY_STALL);
        assert!(stalls.rests(ONE) && stalls.rests(OTHER));
    }

    #[test]
    fn a_rest_is_longer_the_longer_others_waited() {
        let long = MEMORY_REST / 5;
        for (took, rest) in
            [(MEMORY_STALL, MEMORY_REST), (long, 2 * MEMORY_REST), (long * 1000, MAX_MEMORY_REST)]
        {
            let (now, mut stalls) = (Instant::now(), Stalls::default());
            stall(&mut stalls, now, ONE, STALLS_FORGIVEN + 1, took);
            assert_eq!(stalls.rests_until, Some(now + rest));
        }
    }

    #[test]
    fn stalls_that_are_seldom_are_accidents() {
        let (mut now, mut stalls) = (Instant::now(), Stalls::default());
        for _ in 0..10 {
            stall(&mut stalls, now, ONE, STALLS_FORGIVEN, MEMORY_STALL);
            now += STALLS_KEPT;
        }
        assert!(!stalls.any_rests());
    }

    #[test]
    fn only_copies_that_were_waited_for_are_stalls_and_only_while_it_is_looked() {
        let mut stalls = Stalls::default();
        assert!(!stalls.is_watched());
        stalls.watch(Instant::now());
        assert!(stalls.is_watched());
        let begun = Begun::now();
        while begun.at.elapsed() < MEMORY_STALL {}
        // Others may have had the processor; a yield is no wait either.
        std::thread::yield_now();
        assert!(!stalls.end(begun, ONE));
        let begun = Begun::now();
        std::thread::sleep(MEMORY_STALL);
        assert!(stalls.end(begun, ONE));
        // Not for ever, whether or not anything is copied.
        stalls.advance(Instant::now());
        assert!(stalls.is_watched());
        stalls.advance(Instant::now() + WATCHED);
        assert!(!stalls.is_watched());
    }
}
