//! How a thread that polls in vain shares the processor.
//!
//! Polling is the fastest way to wait where each program and each daemon has a processor of its
//! own. Where they share one, who polls keeps it from the daemon without which there will be
//! nothing to find. So after a number of polls without a completion the processor is yielded, as
//! long as others give it back soon ([`YieldPolicy`]). And who has polled in vain for long, where
//! others want the processor, sleeps until the daemon has published something; at once where the
//! data path says that it is kept from the processor, on whatever processor that is.
//!
//! A thread that polls may have other work, of which nothing is known here, and which nobody wakes
//! it for: where it does something else between its polls, it does not sleep, or only shortly.

use crate::client::yield_policy::YieldPolicy;
use crate::ring::completion_notifier::CompletionWaiter;
use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// A yield that takes longer has given the processor to somebody.
const ALONE: Duration = Duration::from_micros(2);

/// How long a thread polls in vain before it sleeps: longer than an exchange of small messages.
const SLEEP_AFTER: Duration = Duration::from_micros(100);

/// The same where the thread does the data path's work itself while it polls: then another one has
/// to be woken for that first.
const SLEEP_AFTER_TURNS: Duration = Duration::from_millis(2);

/// The longest that is slept at a time. Above [`SLEEP_AFTER`] it is never longer than what was
/// waited already, since the caller may be waiting for something else as well; except where the
/// data path has said that it is crowded, for then it wakes who sleeps twice in a millisecond.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// How long it counts that the data path was not crowded: to ask for the waiter may be a system
/// call, and what it says holds for a tenth of a second and longer.
const ASK_AFTER: Duration = Duration::from_millis(1);

/// From how long on a thread has done something else since its last pause than to poll in vain,
/// which takes less than a microsecond.
const OTHER_WORK: Duration = Duration::from_micros(3);

/// How many more times it has done so than not, until that counts: it may have been interrupted.
const OFTEN: u8 = 4;

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
    /// When the data path was last asked whether it is crowded, and what it said.
    asked: Option<Instant>,
    data_path_crowded: bool,
    other_work: Option<OtherWork>,
}

/// Whether a thread does something else between its polls.
#[derive(Clone, Copy, Debug, Default)]
struct OtherWork {
    /// When the last pause was over, if nothing was found since.
    paused: Option<Instant>,
    /// How many more times it did than not, up to a bound.
    times: u8,
}

impl OtherWork {
    /// A pause begins.
    fn look(&mut self, now: Instant) {
        let Some(paused) = self.paused else { return };
        self.times = match now.duration_since(paused) >= OTHER_WORK {
            true => (self.times + 1).min(2 * OFTEN),
            false => self.times.saturating_sub(1),
        };
    }
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
            asked: None,
            data_path_crowded: false,
            other_work: None,
        }
    }

    /// The initial state where the thread pauses after a few polls without knowing of it, and may
    /// have other work.
    pub const fn unasked() -> PollBackoff {
        let other_work = Some(OtherWork { paused: None, times: 0 });
        PollBackoff { other_work, ..PollBackoff::new() }
    }

    /// Something was found.
    pub fn found(&mut self) {
        self.seen = None;
        self.pause_is_over(None);
        if let Some(waiting) = self.waiting.take() {
            self.slow = waiting.elapsed() > SLEEP_AFTER;
        }
    }

    /// Nothing was found since the last call, in any of the queues that the thread polls: lets
    /// others have the processor. `waiter`, of the session that the queues are of, is asked for now
    /// and then, and before a sleep; `before_sleep` is called after that. With `takes_turns` it is
    /// the thread itself that does the data path's work while it polls. Returns whether it has
    /// slept.
    pub fn pause(
        &mut self,
        waiter: impl FnOnce() -> Option<CompletionWaiter>,
        before_sleep: impl FnOnce(),
        takes_turns: bool,
    ) -> bool {
        let before = Instant::now();
        let waited = before.duration_since(*self.waiting.get_or_insert(before));
        // What a turn takes is no other work.
        let other_work = self.other_work.as_mut().filter(|_| !takes_turns);
        let has_other_work = other_work.is_some_and(|work| {
            work.look(before);
            work.times >= OFTEN
        });
        self.pause_is_over(Some(before));
        // CLIENT-020: nothing is yielded then. Who yields among threads that are busy may wait for
        // milliseconds until it is its turn, who sleeps is woken at once.
        if !self.data_path_crowded {
            self.give_way(before);
        }
        let has_waited = match takes_turns {
            true => self.crowded && waited >= SLEEP_AFTER_TURNS,
            false if has_other_work => false,
            false => self.crowded && (self.slow || waited >= SLEEP_AFTER),
        };
        let was_asked = self.asked.is_some_and(|at| before.duration_since(at) < ASK_AFTER);
        if !has_waited && !self.data_path_crowded && was_asked {
            return false;
        }
        let waiter = waiter();
        self.asked = Some(before);
        self.data_path_crowded = waiter.as_ref().is_some_and(CompletionWaiter::is_crowded);
        self.pause_is_over(self.other_work.map(|_| Instant::now()));
        let Some(waiter) = waiter.filter(|_| has_waited || self.data_path_crowded) else {
            return false;
        };
        let count = waiter.count();
        // What was published since we paused last may not have been polled for yet.
        if self.seen.replace(count) != Some(count) {
            return false;
        }
        // OWN-031
        before_sleep();
        let least = if self.data_path_crowded { SLEEP_MAX } else { SLEEP_AFTER };
        let longest = if has_other_work { SLEEP_AFTER } else { SLEEP_MAX };
        waiter.wait(count, waited.clamp(least, SLEEP_MAX).min(longest));
        self.pause_is_over(self.other_work.map(|_| Instant::now()));
        true
    }

    /// Yields the processor, where that is of use.
    fn give_way(&mut self, now: Instant) {
        if self.yield_policy.is_due(now) {
            // What it says is of no use: it cannot fail.
            sched_yield();
            let back = Instant::now();
            let away = back.duration_since(now);
            self.yield_policy.on_yield(back, away);
            self.crowded = away > ALONE;
            self.pause_is_over(Some(back));
        }
    }

    /// From now on the thread does what is its own. `None` if it has found something, and is about
    /// that.
    fn pause_is_over(&mut self, now: Option<Instant>) {
        if let Some(work) = &mut self.other_work {
            work.paused = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::{Mapping, create_memfd};
    use crate::ring::completion_notifier::CompletionNotifier;
    use crate::ring::doorbell::DOORBELL_SIZE;
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

    /// Whether it sleeps the second time that it pauses, when nothing was published meanwhile.
    fn sleeps(mut backoff: PollBackoff, data_path_is_crowded: bool) -> bool {
        let (notifier, waiter) = session();
        notifier.set_crowded(data_path_is_crowded);
        sleeps_with(&mut backoff, &waiter, false)
    }

    fn sleeps_with(
        backoff: &mut PollBackoff,
        waiter: &CompletionWaiter,
        takes_turns: bool,
    ) -> bool {
        let mut pause = || backoff.pause(|| Some(waiter.clone()), || (), takes_turns);
        !pause() && pause()
    }

    #[test]
    fn only_who_shares_the_processor_and_waits_long_sleeps() {
        let long_ago = Some(Instant::now() - SLEEP_AFTER);
        let since = |waiting, backoff: PollBackoff| PollBackoff { waiting, ..backoff };
        assert!(sleeps(since(long_ago, unanswered(true, false)), false));
        assert!(!sleeps(since(long_ago, unanswered(false, false)), false), "alone");
        assert!(!sleeps(unanswered(false, true), false), "alone, and the last wait was long");
        assert!(!sleeps(unanswered(true, false), false), "just begun");
        assert!(sleeps(unanswered(true, true), false), "the last wait was long");
    }

    /// OWN-031
    #[test]
    fn a_thread_that_takes_turns_sleeps_only_after_a_long_wait_and_gives_them_back_first() {
        let (_, waiter) = session();
        let mut backoff = unanswered(true, true);
        backoff.waiting = Some(Instant::now() - SLEEP_AFTER_TURNS / 2);
        assert!(!sleeps_with(&mut backoff, &waiter, true));
        assert!(sleeps_with(&mut backoff, &waiter, false));
        backoff.waiting = Some(Instant::now() - SLEEP_AFTER_TURNS);
        let mut has_given_back = false;
        let has_slept = backoff.pause(|| Some(waiter), || has_given_back = true, true);
        assert!(has_slept && has_given_back);
    }

    #[test]
    fn a_thread_that_does_something_else_between_its_polls_sleeps_for_the_data_path_alone() {
        let (notifier, waiter) = session();
        let mut backoff = unanswered(true, true);
        backoff.other_work = Some(OtherWork::default());
        let pause = |backoff: &mut PollBackoff, since: Duration| {
            backoff.pause_is_over(Some(Instant::now() - since));
            backoff.pause(|| Some(waiter.clone()), || (), false)
        };
        for _ in 0..2 * OFTEN {
            pause(&mut backoff, OTHER_WORK);
        }
        assert!(!pause(&mut backoff, OTHER_WORK));
        notifier.set_crowded(true);
        backoff.asked = None;
        pause(&mut backoff, OTHER_WORK);
        assert!(pause(&mut backoff, OTHER_WORK), "the data path needs the processor");
        // What it does about a completion is no other work, and nor is an interruption.
        backoff = PollBackoff { other_work: Some(OtherWork::default()), ..unanswered(true, true) };
        notifier.set_crowded(false);
        for _ in 0..4 * OFTEN {
            backoff.found();
            std::thread::sleep(OTHER_WORK);
            backoff.pause(|| Some(waiter.clone()), || (), false);
        }
        backoff.slow = true;
        pause(&mut backoff, OTHER_WORK);
        assert!(pause(&mut backoff, OTHER_WORK));
    }

    #[test]
    fn a_thread_with_a_processor_that_the_data_path_needs_sleeps_at_once() {
        assert!(sleeps(unanswered(false, false), true));
    }

    /// In stock programs to look for the waiter is a system call.
    #[test]
    fn a_thread_that_polls_on_asks_for_the_waiter_only_now_and_then() {
        let (_, waiter) = session();
        let mut backoff = unanswered(false, false);
        let asks = |backoff: &mut PollBackoff| {
            let mut has_asked = false;
            backoff.pause(
                || {
                    has_asked = true;
                    Some(waiter.clone())
                },
                || (),
                false,
            );
            has_asked
        };
        assert!(asks(&mut backoff), "it was never asked");
        backoff.asked = Some(Instant::now() + SLEEP_MAX);
        assert!(!asks(&mut backoff));
        backoff.asked = Some(Instant::now() - ASK_AFTER);
        assert!(asks(&mut backoff));
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
        let mut slept = || backoff.pause(|| Some(waiter.clone()), || (), false);
        assert!(!slept(), "what came before the first look may not have been polled for");
        notifier.notify(|| 1);
        assert!(!slept());
        assert!(slept());
    }
}
