//! How a thread that polls in vain shares the processor.
//!
//! Polling is the fastest way to wait where each program and each daemon has a processor of its
//! own. Where they share one, who polls keeps it from the daemon without which there will be
//! nothing to find. So after a number of polls without a completion the processor is yielded, as
//! long as others give it back soon ([`YieldPolicy`]); and who has polled in vain for long, where
//! others want the processor, sleeps until the daemon has published something.

use crate::client::yield_policy::YieldPolicy;
use crate::ring::completion_notifier::CompletionWaiter;
use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// A yield that takes longer has given the processor to somebody.
const ALONE: Duration = Duration::from_micros(2);

/// How long a thread polls in vain before it sleeps: longer than an exchange of small messages.
const SLEEP_AFTER: Duration = Duration::from_micros(100);

/// The longest that is slept at a time. It is never longer than what was waited already, since the
/// caller may be waiting for something else as well.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// How a thread polls.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollBackoff {
    yield_policy: YieldPolicy,
    /// Since when nothing was found.
    waiting: Option<Instant>,
    /// Somebody else wanted the processor when it was last yielded.
    crowded: bool,
    /// The last wait was so long that it had better be slept from the beginning.
    slow: bool,
    /// What was published when we paused last.
    seen: Option<u32>,
}

impl PollBackoff {
    /// The initial state.
    pub const fn new() -> PollBackoff {
        PollBackoff {
            yield_policy: YieldPolicy::new(),
            waiting: None,
            crowded: false,
            slow: false,
            seen: None,
        }
    }

    /// Something was found.
    pub fn found(&mut self) {
        self.seen = None;
        if let Some(waiting) = self.waiting.take() {
            self.slow = waiting.elapsed() > SLEEP_AFTER;
        }
    }

    /// Nothing was found since the last call, in any of the queues that the thread polls: lets
    /// others have the processor. `waiter`, of the session that the queues are of, is asked for
    /// only by who has waited long.
    pub fn pause(&mut self, waiter: impl FnOnce() -> Option<CompletionWaiter>) {
        let before = Instant::now();
        let waited = before.duration_since(*self.waiting.get_or_insert(before));
        if self.yield_policy.is_due(before) {
            // What it says is of no use: it cannot fail.
            sched_yield();
            let now = Instant::now();
            let away = now.duration_since(before);
            self.yield_policy.on_yield(now, away);
            self.crowded = away > ALONE;
        }
        if !self.crowded || !self.slow && waited < SLEEP_AFTER {
            return;
        }
        let Some(waiter) = waiter() else { return };
        let count = waiter.count();
        // What was published since we paused last may not have been polled for yet.
        match self.seen.replace(count) {
            Some(seen) if seen == count => {
                waiter.wait(seen, waited.clamp(SLEEP_AFTER, SLEEP_MAX));
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::{Mapping, create_memfd};
    use crate::ring::completion_notifier::CompletionNotifier;
    use crate::ring::doorbell::DOORBELL_SIZE;
    use std::cell::Cell;
    use std::sync::Arc;

    fn session() -> (CompletionNotifier, CompletionWaiter) {
        let fd = create_memfd("backoff", DOORBELL_SIZE).unwrap();
        let mapping = Arc::new(Mapping::new(&fd, 0, DOORBELL_SIZE as usize).unwrap());
        (CompletionNotifier::new(mapping.clone()).unwrap(), CompletionWaiter::new(mapping).unwrap())
    }

    /// Of one whose yields are never answered, so that what was noticed before stays.
    fn unanswered(crowded: bool, slow: bool) -> PollBackoff {
        let mut backoff = PollBackoff { crowded, slow, ..PollBackoff::new() };
        let now = Instant::now();
        for _ in 0..2 {
            backoff.yield_policy.on_yield(now, Duration::from_secs(1));
        }
        backoff
    }

    fn asks_for_news(mut backoff: PollBackoff) -> bool {
        let asked = Cell::new(false);
        backoff.pause(|| {
            asked.set(true);
            None
        });
        asked.get()
    }

    #[test]
    fn only_who_shares_the_processor_and_waits_long_sleeps() {
        let long_ago = Some(Instant::now() - SLEEP_AFTER);
        let since = |waiting, backoff: PollBackoff| PollBackoff { waiting, ..backoff };
        assert!(asks_for_news(since(long_ago, unanswered(true, false))));
        assert!(!asks_for_news(since(long_ago, unanswered(false, false))), "alone");
        assert!(!asks_for_news(since(None, unanswered(true, false))), "just begun");
        assert!(asks_for_news(since(None, unanswered(true, true))), "the last wait was long");
    }

    #[test]
    fn a_short_wait_makes_the_next_one_start_by_polling() {
        let mut backoff = unanswered(true, true);
        backoff.waiting = Some(Instant::now() - 2 * SLEEP_AFTER);
        backoff.found();
        assert!(backoff.slow);
        backoff.waiting = Some(Instant::now());
        backoff.found();
        assert!(!backoff.slow);
    }

    /// What was published between two pauses was perhaps not polled for: then nobody sleeps.
    #[test]
    fn a_thread_polls_again_before_it_sleeps_after_a_notification() {
        let (notifier, waiter) = session();
        let mut backoff = unanswered(true, true);
        let mut slept = || {
            backoff.pause(|| Some(waiter.clone()));
            waiter.somebody_slept()
        };
        assert!(!slept(), "what came before the first look may not have been polled for");
        notifier.notify();
        assert!(!slept());
        assert!(slept());
    }
}
