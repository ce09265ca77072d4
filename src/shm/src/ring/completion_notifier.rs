//! How a program that looks for completions may sleep meanwhile.
//!
//! A session has a count of what its daemon has published, in any of its completion queues. A
//! thread that has polled all its queues in vain since the count was last other may wait for the
//! count to change (`futex`): whatever it waits for changes it. Before, the thread says in
//! `sleepers` that somebody sleeps, so that the daemon wakes nobody in vain.
//!
//! A third word says that the data path is kept from the processor by others that want it too: then
//! who polls in vain had better sleep at once, even if nobody wants the very processor that it
//! polls on. (A scheduler may well leave that one to the poller, and have two data paths share
//! another.) As long as it says so, the daemon wakes who sleeps now and then, whether anything was
//! published or not, and for each publication only where many completions are unread: each wake-up
//! takes of the processor that is short.
//!
//! The words lie in the first of the session's [doorbell](super::doorbell) pages, in cache lines
//! of their own. A program that scribbles there makes the daemon call the system once for each
//! batch of its own completions, or its own threads sleep for a while, and nothing else.

use crate::memory::region::{AccessError, Mapping, Window};
use crate::ring::doorbell::{DOORBELL_OFFSET, DOORBELL_SIZE};
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const COUNT: usize = 1024;
const SLEEPERS: usize = 1088;
const CROWDED: usize = 1152;

/// Unread completions of a queue for which threads are woken at once also where the data path is
/// crowded: fewer than the receives that a program usually posts.
const MANY: u32 = 32;

/// The daemon's side, of all queues of a session.
#[derive(Clone, Debug)]
pub struct CompletionNotifier {
    words: Window,
    /// Something was published for which nobody was woken.
    owes_wake: Arc<AtomicBool>,
}

impl CompletionNotifier {
    /// In a mapping of the session's memfd from its first byte on.
    pub fn new(mapping: Arc<Mapping>) -> Result<CompletionNotifier, AccessError> {
        let words = Window::new(mapping, DOORBELL_OFFSET, DOORBELL_SIZE)?;
        Ok(CompletionNotifier { words, owes_wake: Arc::default() })
    }

    /// Says that something was published in a queue, in which so many completions are unread now,
    /// and wakes whoever sleeps. Where the data path is crowded, few wake nobody: threads are woken
    /// [later](Self::wake_for_published), together for all that was published until then.
    pub fn notify(&self, unread: impl FnOnce() -> u32) {
        // CLIENT-021
        if self.words.atomic_u32(CROWDED).load(Ordering::Relaxed) != 0 && unread() < MANY {
            self.words.atomic_u32(COUNT).fetch_add(1, Ordering::SeqCst);
            self.owes_wake.store(true, Ordering::Relaxed);
        } else {
            self.count_and_wake();
        }
    }

    /// Wakes whoever sleeps, if something was published for which nobody was woken.
    pub fn wake_for_published(&self) {
        if self.owes_wake.load(Ordering::Relaxed) {
            self.wake_sleepers();
        }
    }

    /// Wakes whoever sleeps.
    pub fn wake_sleepers(&self) {
        match self.words.atomic_u32(SLEEPERS).load(Ordering::SeqCst) {
            0 => self.owes_wake.store(false, Ordering::Relaxed),
            // Who is about to sleep sees that the count has changed, as with a publication.
            _ => self.count_and_wake(),
        }
    }

    fn count_and_wake(&self) {
        let (count, sleepers) = (self.words.atomic_u32(COUNT), self.words.atomic_u32(SLEEPERS));
        self.owes_wake.store(false, Ordering::Relaxed);
        // Either the thread that falls asleep sees the new count, or we see it sleep.
        count.fetch_add(1, Ordering::SeqCst);
        if sleepers.load(Ordering::SeqCst) != 0 && sleepers.swap(0, Ordering::SeqCst) != 0 {
            // It fails only if nobody could be woken there.
            let _ = futex::wake(count, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Says whether the data path is kept from the processor; who sleeps may poll again if not.
    pub fn set_crowded(&self, crowded: bool) {
        self.words.atomic_u32(CROWDED).store(crowded.into(), Ordering::Relaxed);
        if !crowded {
            self.count_and_wake();
        }
    }
}

/// The program's side.
#[derive(Clone, Debug)]
pub struct CompletionWaiter(Window);

impl CompletionWaiter {
    /// In a mapping of the session's memfd from its first byte on.
    pub fn new(mapping: Arc<Mapping>) -> Result<CompletionWaiter, AccessError> {
        Window::new(mapping, DOORBELL_OFFSET, DOORBELL_SIZE).map(CompletionWaiter)
    }

    /// How much was published so far, modulo 2^32.
    pub fn count(&self) -> u32 {
        self.0.atomic_u32(COUNT).load(Ordering::SeqCst)
    }

    /// Whether the data path is kept from the processor, as far as it has told.
    pub fn is_crowded(&self) -> bool {
        self.0.atomic_u32(CROWDED).load(Ordering::Relaxed) != 0
    }

    /// Sleeps until something is published that is not among the first `seen`, the time is over, or
    /// a signal comes. The time bounds also how long a daemon that was killed goes unnoticed.
    pub fn wait(&self, seen: u32, timeout: Duration) {
        self.0.atomic_u32(SLEEPERS).store(1, Ordering::SeqCst);
        let timeout = futex::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let count = self.0.atomic_u32(COUNT);
        // However it ends, the caller looks for itself.
        let _ = futex::wait(count, futex::Flags::empty(), seen, Some(&timeout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::create_memfd;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    fn session() -> (CompletionNotifier, CompletionWaiter) {
        let fd = create_memfd("session", DOORBELL_SIZE).unwrap();
        let [daemon, program] =
            [(); 2].map(|()| Arc::new(Mapping::new(&fd, 0, DOORBELL_SIZE as usize).unwrap()));
        (CompletionNotifier::new(daemon).unwrap(), CompletionWaiter::new(program).unwrap())
    }

    /// Each side waits for the other's answer; a wake-up that is lost costs a minute.
    #[test]
    fn no_notification_is_slept_through() {
        let ((ping, pinged), (pong, ponged)) = (session(), session());
        let before = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000 {
                    while pinged.count() == round {
                        pinged.wait(round, LONG);
                    }
                    pong.notify(|| 1);
                }
            });
            for round in 0..20_000 {
                ping.notify(|| 1);
                while ponged.count() == round {
                    ponged.wait(round, LONG);
                }
            }
        });
        assert!(before.elapsed() < LONG, "{:?}", before.elapsed());
    }

    #[test]
    fn a_wait_ends_at_once_where_the_last_notification_is_not_seen() {
        let (notifier, waiter) = session();
        let seen = waiter.count();
        notifier.notify(|| 1);
        let before = Instant::now();
        waiter.wait(seen, LONG);
        assert!(before.elapsed() < LONG);
        assert_eq!(waiter.count(), seen + 1);
    }

    #[test]
    fn the_program_learns_whether_the_data_path_has_to_wait() {
        let (notifier, waiter) = session();
        assert!(!waiter.is_crowded());
        for crowded in [true, false] {
            notifier.set_crowded(crowded);
            assert_eq!(waiter.is_crowded(), crowded);
        }
    }

    #[test]
    fn a_wait_for_nothing_ends() {
        let (_, waiter) = session();
        waiter.wait(waiter.count(), Duration::from_micros(1));
    }

    /// Whether a thread would still be woken that has said that it sleeps.
    fn is_asleep(notifier: &CompletionNotifier) -> bool {
        notifier.words.atomic_u32(SLEEPERS).load(Ordering::SeqCst) != 0
    }

    #[test]
    fn a_sleeper_is_woken_whether_anything_was_published_or_not() {
        let (notifier, waiter) = session();
        notifier.wake_sleepers();
        assert_eq!(waiter.count(), 0, "nobody sleeps");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| waiter.wait(0, LONG));
            let before = Instant::now();
            while waiter.count() == 0 {
                notifier.wake_sleepers();
            }
            sleeper.join().unwrap();
            assert!(before.elapsed() < LONG);
        });
        assert!(!is_asleep(&notifier));
    }

    #[test]
    fn where_the_data_path_is_crowded_a_few_completions_wake_nobody_at_once() {
        let (notifier, waiter) = session();
        let falls_asleep = || waiter.wait(waiter.count(), Duration::from_micros(1));
        falls_asleep();
        notifier.notify(|| 1);
        assert!(!is_asleep(&notifier), "there are processors enough");
        notifier.set_crowded(true);
        falls_asleep();
        let seen = waiter.count();
        notifier.notify(|| MANY - 1);
        assert!(is_asleep(&notifier));
        let before = Instant::now();
        waiter.wait(seen, LONG);
        assert!(before.elapsed() < LONG, "who has not seen them does not sleep");
        notifier.notify(|| MANY);
        assert!(!is_asleep(&notifier));
        falls_asleep();
        notifier.wake_for_published();
        assert!(is_asleep(&notifier), "it is told of all that was published");
        notifier.notify(|| 1);
        notifier.wake_for_published();
        assert!(!is_asleep(&notifier));
        falls_asleep();
        notifier.set_crowded(false);
        assert!(!is_asleep(&notifier), "they may poll again");
    }
}
