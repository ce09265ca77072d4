//! Whether a slot that has much to do is kept from the processor by others that want it too.
//!
//! Where there are fewer processors than threads that are busy, each is kept from one for a part of
//! the time. A program that polls in vain is such a thread, and only takes what the data path needs
//! to give it something. It cannot see that: the scheduler may leave it a processor of its own and
//! have two data paths share another. The slot can, for the system counts for how long a thread was
//! ready to run and did not. So it looks now and then, and tells the programs.
//!
//! A slot that has little to do, as where a message waits for the answer to the one before, is told
//! sooner what to do next if the programs go on polling, and yields the processor meanwhile.
//!
//! When they sleep nobody is kept from anything, and that they polled again could be wrong at once.
//! So what was seen counts for a while ([`HOLD`]), and for longer each time that it turns out to be
//! as it was ([`MAX_HOLD`]).

use std::time::{Duration, Instant};

/// How often the slot looks, which takes about 5 us: rarely enough to cost nothing, often enough
/// that little is lost until programs are told.
const INTERVAL: Duration = Duration::from_millis(10);

/// The part of the time from which on the slot is kept from the processor: more than others take
/// that are busy only now and then.
const KEPT: f64 = 1.0 / 8.0;

/// The part of the time from which on the slot has much to do. With messages of 64 KiB one after
/// the other it works for 0.65 to 0.8 of the time if it is kept from the processor for the rest,
/// with one message at a time, of any length, for 0.3 to 0.55.
const BUSY: f64 = 0.6;

/// How long it counts that the slot was kept from the processor, at first.
const HOLD: Duration = Duration::from_millis(100);

/// How long at most. Until it is seen again, one interval passes: half a percent of this.
const MAX_HOLD: Duration = Duration::from_secs(2);

/// What a slot knows of it.
#[derive(Debug)]
pub(crate) struct Crowding {
    /// When it was looked last, and for how long the thread had waited by then.
    looked: Instant,
    waited: Option<Duration>,
    /// How long the slot's turns took since in which there was something to do, with the time for
    /// which others had the processor meanwhile.
    worked: Duration,
    /// Until when it counts as crowded.
    until: Option<Instant>,
    /// For how long it counted last time, and when that was over.
    hold: Duration,
    ended: Option<Instant>,
}

impl Crowding {
    /// Of a thread that is not crowded.
    pub(crate) fn new(now: Instant) -> Crowding {
        let waited = run_delay();
        let (worked, hold) = (Duration::ZERO, Duration::ZERO);
        Crowding { looked: now, waited, worked, until: None, hold, ended: None }
    }

    /// There was something to do in a turn that took so long.
    pub(crate) fn on_work(&mut self, turn: Duration) {
        self.worked += turn;
    }

    /// Whether the slot is kept from the processor.
    pub(crate) fn is_crowded(&self) -> bool {
        self.until.is_some()
    }

    /// Looks if it is time to. Returns whether it is now other than it was.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        if now.duration_since(self.looked) < INTERVAL {
            return false;
        }
        self.on_look(now, run_delay())
    }

    /// The thread has waited for so long since it began, or nobody counts it.
    fn on_look(&mut self, now: Instant, waited: Option<Duration>) -> bool {
        let was_crowded = self.is_crowded();
        let elapsed = now.duration_since(std::mem::replace(&mut self.looked, now));
        let before = std::mem::replace(&mut self.waited, waited);
        let worked = std::mem::take(&mut self.worked);
        // A system that does not count it leaves all as if there were processors enough.
        let kept =
            waited.zip(before).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        if kept > elapsed.mul_f64(KEPT) && worked > elapsed.mul_f64(BUSY) {
            if !was_crowded {
                let is_soon = self.ended.is_some_and(|at| now.duration_since(at) < self.hold);
                self.hold = if is_soon { (self.hold * 2).min(MAX_HOLD) } else { HOLD };
            }
            self.until = Some(now + self.hold);
        } else if self.until.is_some_and(|until| until <= now) {
            self.until = None;
            self.ended = Some(now);
        }
        was_crowded != self.is_crowded()
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

    /// A thread that looks every interval.
    struct Thread {
        crowding: Crowding,
        now: Instant,
        waited: Duration,
    }

    impl Thread {
        fn new() -> Thread {
            let now = Instant::now();
            let waited = Duration::ZERO;
            let crowding = Crowding { waited: Some(waited), ..Crowding::new(now) };
            Thread { crowding, now, waited }
        }

        /// An interval in which it worked and was kept from the processor for parts of the time.
        fn interval(&mut self, worked: f64, kept: f64) {
            self.now += INTERVAL;
            self.waited += INTERVAL.mul_f64(kept);
            self.crowding.on_work(INTERVAL.mul_f64(worked));
            let was_crowded = self.crowding.is_crowded();
            let has_changed = self.crowding.on_look(self.now, Some(self.waited));
            assert_eq!(has_changed, was_crowded != self.crowding.is_crowded());
        }

        /// How many intervals it counts as crowded from now on, when it is kept from nothing.
        fn intervals_until_it_is_over(&mut self) -> u32 {
            let mut intervals = 0;
            while self.crowding.is_crowded() {
                self.interval(1.0, 0.0);
                intervals += 1;
            }
            intervals
        }
    }

    #[test]
    fn a_thread_with_much_to_do_that_waits_for_a_large_part_of_the_time_is_crowded() {
        let mut thread = Thread::new();
        let parts = [(0.0, 0.0, false), (1.0, 0.1, false), (0.5, 0.5, false), (0.7, 0.3, true)];
        for (worked, kept, is_crowded) in parts {
            thread.interval(worked, kept);
            assert_eq!(thread.crowding.is_crowded(), is_crowded, "{worked} {kept}");
        }
    }

    #[test]
    fn only_what_was_since_the_last_look_counts() {
        let mut thread = Thread::new();
        thread.interval(0.5, 0.2);
        thread.interval(0.5, 0.2);
        assert!(!thread.crowding.is_crowded());
        // It slept for long, and was kept from the processor before it did.
        thread.now += 100 * INTERVAL;
        thread.interval(0.7, 0.3);
        assert!(!thread.crowding.is_crowded());
    }

    #[test]
    fn a_system_that_does_not_count_is_asked_no_more_often_than_another() {
        let mut thread = Thread::new();
        thread.crowding.on_work(INTERVAL);
        thread.now += INTERVAL;
        assert!(!thread.crowding.on_look(thread.now, None));
        assert!(!thread.crowding.is_crowded());
        assert_eq!(thread.crowding.looked, thread.now);
    }

    #[test]
    fn it_counts_for_longer_each_time_that_it_was_over_too_soon() {
        let in_intervals = |time: Duration| time.div_duration_f64(INTERVAL).round() as u32;
        let mut thread = Thread::new();
        let mut expected = HOLD;
        for _ in 0..8 {
            thread.interval(0.7, 0.3);
            assert_eq!(thread.intervals_until_it_is_over(), in_intervals(expected));
            expected = (expected * 2).min(MAX_HOLD);
        }
        // After so long a pause it is another matter.
        for _ in 0..=in_intervals(MAX_HOLD) {
            thread.interval(1.0, 0.0);
        }
        thread.interval(0.7, 0.3);
        assert_eq!(thread.intervals_until_it_is_over(), in_intervals(HOLD));
    }

    /// This thread and others spin on one processor.
    #[test]
    fn the_system_counts_how_long_a_thread_waits() {
        let Some(before) = run_delay() else {
            eprintln!("could not run: this system does not count how long threads wait");
            return;
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
