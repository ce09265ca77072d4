//! Whether programs that poll in vain take the processor that the slot, or its peer, needs.
//!
//! Where there are fewer processors than threads that are busy, each is kept from one for a part of
//! the time. A program that polls in vain is such a thread, and only takes what the data path needs
//! to give it something. It cannot see that: the scheduler may leave it a processor of its own and
//! have two data paths share another. The slot sees a sign of it, for the system counts for how
//! long a thread was ready to run and did not.
//!
//! Whether it would help if the programs slept, no sign says: who is woken comes later than who
//! polls, and what they leave may be of use to nobody. So it is tried: the slot tells programs that
//! it is crowded, looks whether more is done in the same time ([`Crowding::look`]), and leaves it
//! so or takes it back. In the same way it is tried now and then whether they can poll again.
//!
//! A slot that has little to do, as where a message waits for the answer to the one before, is told
//! sooner what to do next if the programs go on polling, and yields the processor meanwhile.

use std::time::{Duration, Instant};

/// How often the slot looks, which takes about 5 us, and how long it tries something: for some
/// turns of each thread that wants the processor.
const INTERVAL: Duration = Duration::from_millis(20);

/// A slot that has not looked for so long had nothing to do.
const IDLE: Duration = Duration::from_millis(100);

/// The part of the time from which on it may be a sign that the slot is kept from the processor:
/// more than others take that are busy only now and then.
const KEPT: f64 = 1.0 / 32.0;

/// The part of the time from which on the slot has much to do. With messages of 64 KiB one after
/// the other it works for 0.45 to 0.8 of the time if it is kept from the processor for the rest,
/// with one message at a time, of any length, for 0.3 to 0.55: what is tried there in vain costs a
/// two-hundredth of them ([`MAX_PAUSE`]) some wake-ups.
const BUSY: f64 = 0.4;

/// By how much more has to be done if programs sleep than if they poll.
const GAIN: f64 = 1.05;

/// After how long at first the other way is tried, and at most, where it was found to be no better:
/// then a two-hundredth of the time is spent trying.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(4);

/// How often threads that sleep because of us are woken for what was published meanwhile, which
/// costs less than to be woken for each message. Whatever else they wait for, they could set a
/// timer of their own for it, but to set it and to take it back for each of thousands of sleeps a
/// second took more of the processor than what they do in between: so all are woken.
const WAKE_INTERVAL: Duration = Duration::from_micros(500);

/// How long it is at least from one time that all are woken to the next, for each program, some of
/// which may say that threads sleep when none do: to wake each of them is a system call.
const WAKE_INTERVAL_EACH: Duration = Duration::from_micros(5);

/// Which threads that sleep because of us are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleepers {
    /// Of programs for which something was published meanwhile.
    OfPublished,
    All,
}

/// What a slot knows of it.
#[derive(Debug)]
pub(crate) struct Crowding {
    /// When it was looked last, for how long the thread had waited and what was done by then.
    looked: Instant,
    waited: Option<Duration>,
    done: u64,
    /// How long the slot's turns took since in which there was something to do, with the time for
    /// which others had the processor meanwhile.
    worked: Duration,
    /// What programs are told.
    crowded: bool,
    /// What was done a second before they were told the other, to see what is better.
    trial: Option<f64>,
    /// When that may be tried next, and the pause before.
    next: Instant,
    pause: Duration,
    /// When threads that sleep are woken next, and from when on all of them.
    wake_at: Instant,
    wake_all_at: Instant,
}

impl Crowding {
    /// Of a thread that is not crowded.
    pub(crate) fn new(now: Instant) -> Crowding {
        Crowding {
            looked: now,
            waited: run_delay(),
            done: 0,
            worked: Duration::ZERO,
            crowded: false,
            trial: None,
            next: now,
            pause: PAUSE,
            wake_at: now,
            wake_all_at: now,
        }
    }

    /// There was something to do in a turn that took so long.
    pub(crate) fn on_work(&mut self, turn: Duration) {
        self.worked += turn;
    }

    /// Whether the programs had better sleep than poll.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Which threads it is time to wake, as far as they sleep, where there are so many programs.
    pub(crate) fn take_wake(&mut self, now: Instant, programs: usize) -> Option<Sleepers> {
        self.wake_deadline().filter(|&at| at <= now)?;
        self.wake_at = now + WAKE_INTERVAL;
        if self.wake_all_at > now {
            return Some(Sleepers::OfPublished);
        }
        self.wake_all_at = now + WAKE_INTERVAL_EACH * programs as u32;
        Some(Sleepers::All)
    }

    /// When that is, if any are told to sleep.
    pub(crate) fn wake_deadline(&self) -> Option<Instant> {
        self.crowded.then_some(self.wake_at)
    }

    /// Looks if it is time to. `done` says how much was done by now, in whatever unit. Returns
    /// whether it is now other than it was.
    pub(crate) fn look(&mut self, now: Instant, done: impl FnOnce() -> u64) -> bool {
        if now.duration_since(self.looked) < INTERVAL {
            return false;
        }
        self.on_look(now, run_delay(), done())
    }

    /// The thread has waited for so long since it began, or nobody counts it.
    fn on_look(&mut self, now: Instant, waited: Option<Duration>, done: u64) -> bool {
        let was_crowded = self.crowded;
        let elapsed = now.duration_since(std::mem::replace(&mut self.looked, now));
        let before = std::mem::replace(&mut self.waited, waited);
        let worked = std::mem::take(&mut self.worked);
        let done = done.saturating_sub(std::mem::replace(&mut self.done, done));
        // A system that does not count it leaves all as if there were processors enough.
        let kept =
            waited.zip(before).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        let rate = done as f64 / elapsed.as_secs_f64();
        if elapsed > IDLE || done == 0 {
            self.settle(now, false, PAUSE);
        } else if let Some(rate_before) = self.trial {
            let (asleep, polling) =
                if self.crowded { (rate, rate_before) } else { (rate_before, rate) };
            let is_better = asleep > polling * GAIN;
            let is_confirmed = is_better != self.crowded;
            self.settle(now, is_better, if is_confirmed { self.pause * 2 } else { PAUSE });
        } else if now >= self.next {
            let has_sign = kept > elapsed.mul_f64(KEPT) && worked > elapsed.mul_f64(BUSY);
            if self.crowded || has_sign {
                self.trial = Some(rate);
                self.crowded = !self.crowded;
            }
        }
        was_crowded != self.crowded
    }

    /// It is known what is better, for a while.
    fn settle(&mut self, now: Instant, crowded: bool, pause: Duration) {
        self.crowded = crowded;
        self.trial = None;
        self.pause = pause.min(MAX_PAUSE);
        self.next = now + self.pause;
    }
}

/// For how long this thread was ready to run and did not, since it began: the second number of its
/// `schedstat`. `None` where the system does not count it, or shows no `/proc`.
fn run_delay() -> Option<Duration> {
    // Opened anew each time: in a program's own slot the program may close what it likes.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shell::testing::could_not_run;

    /// A slot that looks every interval. It does 100 in an interval while programs poll.
    struct Slot {
        crowding: Crowding,
        now: Instant,
        waited: Duration,
        done: u64,
        /// What it does in an interval in which they sleep.
        asleep: u64,
    }

    impl Slot {
        fn new(asleep: u64) -> Slot {
            let now = Instant::now();
            let waited = Duration::ZERO;
            let crowding = Crowding { waited: Some(waited), ..Crowding::new(now) };
            Slot { crowding, now, waited, done: 0, asleep }
        }

        /// An interval in which it worked and was kept from the processor for parts of the time.
        fn interval(&mut self, worked: f64, kept: f64) -> bool {
            self.now += INTERVAL;
            self.waited += INTERVAL.mul_f64(kept);
            self.done += if self.crowding.is_crowded() { self.asleep } else { 100 };
            self.crowding.on_work(INTERVAL.mul_f64(worked));
            let was_crowded = self.crowding.is_crowded();
            let has_changed = self.crowding.on_look(self.now, Some(self.waited), self.done);
            assert_eq!(has_changed, was_crowded != self.crowding.is_crowded());
            was_crowded
        }

        /// In how many of so many intervals programs were told to sleep, when there is a sign.
        fn crowded_of(&mut self, intervals: usize) -> usize {
            (0..intervals).filter(|_| self.interval(1.0, 0.3)).count()
        }
    }

    #[test]
    fn it_is_tried_only_where_there_is_much_to_do_and_somebody_else_wants_the_processor() {
        for (worked, kept, is_tried) in
            [(0.0, 0.0, false), (1.0, 0.02, false), (0.3, 0.5, false), (0.5, 0.1, true)]
        {
            let mut slot = Slot::new(200);
            slot.interval(worked, kept);
            assert_eq!(slot.crowding.is_crowded(), is_tried, "{worked} {kept}");
        }
    }

    #[test]
    fn programs_sleep_nearly_always_where_more_is_done_then() {
        let mut slot = Slot::new(150);
        slot.crowded_of(500);
        assert!(slot.crowded_of(1000) >= 985);
    }

    #[test]
    fn programs_poll_nearly_always_where_it_makes_no_difference_or_is_worse() {
        for asleep in [50, 99, 104] {
            let mut slot = Slot::new(asleep);
            slot.crowded_of(500);
            assert!(slot.crowded_of(1000) <= 15, "{asleep}");
        }
    }

    #[test]
    fn a_change_is_noticed_within_the_longest_pause() {
        let mut slot = Slot::new(150);
        slot.crowded_of(1000);
        let longest = MAX_PAUSE.div_duration_f64(INTERVAL) as usize + 2;
        slot.asleep = 90;
        slot.crowded_of(longest);
        assert!(!slot.crowding.is_crowded());
        slot.asleep = 150;
        slot.crowded_of(longest);
        assert!(slot.crowding.is_crowded());
    }

    #[test]
    fn programs_poll_again_when_nothing_is_done_any_more() {
        let mut slot = Slot::new(150);
        slot.crowded_of(10);
        assert!(slot.crowding.is_crowded());
        slot.asleep = 0;
        slot.interval(0.0, 0.0);
        assert!(!slot.crowding.is_crowded());
        // Or the slot slept, and has woken for something small.
        let mut slot = Slot::new(150);
        slot.crowded_of(10);
        slot.now += 2 * IDLE;
        slot.interval(0.0, 0.0);
        assert!(!slot.crowding.is_crowded());
    }

    #[test]
    fn threads_that_sleep_because_of_it_are_woken_now_and_then() {
        let mut slot = Slot::new(150);
        assert_eq!(slot.crowding.take_wake(slot.now, 1), None);
        slot.interval(1.0, 0.3);
        // 200 programs are a millisecond.
        for sleepers in [Sleepers::All, Sleepers::OfPublished, Sleepers::All] {
            assert_eq!(slot.crowding.take_wake(slot.now, 200), Some(sleepers));
            assert_eq!(slot.crowding.take_wake(slot.now, 200), None);
            slot.now += WAKE_INTERVAL;
            assert_eq!(slot.crowding.wake_deadline(), Some(slot.now));
        }
        assert_eq!(slot.crowding.take_wake(slot.now, 1), Some(Sleepers::OfPublished));
        slot.now += WAKE_INTERVAL;
        for _ in 0..2 {
            assert_eq!(slot.crowding.take_wake(slot.now, 1), Some(Sleepers::All));
            slot.now += WAKE_INTERVAL;
        }
    }

    #[test]
    fn a_system_that_does_not_count_is_asked_no_more_often_than_another() {
        let mut slot = Slot::new(150);
        slot.crowding.on_work(INTERVAL);
        slot.now += INTERVAL;
        assert!(!slot.crowding.on_look(slot.now, None, 100));
        assert!(!slot.crowding.is_crowded());
        assert_eq!(slot.crowding.looked, slot.now);
    }

    /// This thread and others spin on one processor.
    #[test]
    fn the_system_counts_how_long_a_thread_waits() {
        let Some(before) = run_delay() else {
            return could_not_run("this system does not count how long threads wait");
        };
        let mut processor = rustix::thread::CpuSet::new();
        processor.set(rustix::thread::sched_getcpu());
        let begun = Instant::now();
        let spin = || {
            rustix::thread::sched_setaffinity(None, &processor).unwrap();
            while begun.elapsed() < Duration::from_millis(300) {}
        };
        std::thread::scope(|scope| {
            scope.spawn(spin);
            spin();
        });
        let waited = run_delay().unwrap() - before;
        assert!(waited > Duration::from_millis(30), "{waited:?}");
    }
}
