//! How a thread that polls in vain shares the processor.
//!
//! Polling is the fastest way to wait where each program and each daemon has a processor of its
//! own. Where they share one, who polls keeps it from the daemon without which there will be
//! nothing to find. So after a number of polls without a completion the processor is yielded, as
//! long as there is [`Courtesy`] in return; and who has polled in vain for long, where others want
//! the processor, sleeps until the daemon has published something.

use crate::courtesy::Courtesy;
use crate::news::News;
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
pub struct Patience {
    courtesy: Courtesy,
    /// Since when nothing was found.
    waiting: Option<Instant>,
    /// Somebody else wanted the processor when it was last yielded.
    crowded: bool,
    /// The last wait was so long that it had better be slept from the beginning.
    slow: bool,
    /// What was published when we paused last.
    seen: Option<u32>,
}

impl Patience {
    /// Of one who has not polled yet.
    pub const fn new() -> Patience {
        Patience {
            courtesy: Courtesy::new(),
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
    /// others have the processor. `news`, of the session that the queues are of, is asked for only
    /// by who has waited long.
    pub fn pause(&mut self, news: impl FnOnce() -> Option<News>) {
        let before = Instant::now();
        let waited = before.duration_since(*self.waiting.get_or_insert(before));
        if self.courtesy.is_due(before) {
            // What it says is of no use: it cannot fail.
            sched_yield();
            let now = Instant::now();
            let away = now.duration_since(before);
            self.courtesy.came_back(now, away);
            self.crowded = away > ALONE;
        }
        if !self.crowded || !self.slow && waited < SLEEP_AFTER {
            return;
        }
        let Some(news) = news() else { return };
        let count = news.count();
        // What was published since we paused last may not have been polled for yet.
        match self.seen.replace(count) {
            Some(seen) if seen == count => {
                news.wait(seen, waited.clamp(SLEEP_AFTER, SLEEP_MAX));
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::DOORBELL_SIZE;
    use crate::news::Herald;
    use crate::region::{Mapping, create_memfd};
    use std::cell::Cell;
    use std::sync::Arc;

    fn session() -> (Herald, News) {
        let fd = create_memfd("patience", DOORBELL_SIZE).unwrap();
        let mapping = Arc::new(Mapping::new(&fd, 0, DOORBELL_SIZE as usize).unwrap());
        (Herald::new(mapping.clone()).unwrap(), News::new(mapping).unwrap())
    }

    /// Of one whose yields are never answered, so that what was noticed before stays.
    fn unanswered(crowded: bool, slow: bool) -> Patience {
        let mut patience = Patience { crowded, slow, ..Patience::new() };
        let now = Instant::now();
        for _ in 0..2 {
            patience.courtesy.came_back(now, Duration::from_secs(1));
        }
        patience
    }

    fn asks_for_news(mut patience: Patience) -> bool {
        let asked = Cell::new(false);
        patience.pause(|| {
            asked.set(true);
            None
        });
        asked.get()
    }

    #[test]
    fn only_who_shares_the_processor_and_waits_long_sleeps() {
        let long_ago = Some(Instant::now() - SLEEP_AFTER);
        let since = |waiting, patience: Patience| Patience { waiting, ..patience };
        assert!(asks_for_news(since(long_ago, unanswered(true, false))));
        assert!(!asks_for_news(since(long_ago, unanswered(false, false))), "alone");
        assert!(!asks_for_news(since(None, unanswered(true, false))), "just begun");
        assert!(asks_for_news(since(None, unanswered(true, true))), "the last wait was long");
    }

    #[test]
    fn a_short_wait_makes_the_next_one_start_by_polling() {
        let mut patience = unanswered(true, true);
        patience.waiting = Some(Instant::now() - 2 * SLEEP_AFTER);
        patience.found();
        assert!(patience.slow);
        patience.waiting = Some(Instant::now());
        patience.found();
        assert!(!patience.slow);
    }

    /// What was published between two pauses was perhaps not polled for: then nobody sleeps.
    #[test]
    fn who_has_just_heard_news_polls_again() {
        let (herald, news) = session();
        let mut patience = unanswered(true, true);
        let mut slept = || {
            patience.pause(|| Some(news.clone()));
            news.somebody_slept()
        };
        assert!(!slept(), "what came before the first look may not have been polled for");
        herald.announce();
        assert!(!slept());
        assert!(slept());
    }
}
