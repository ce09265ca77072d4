//! A timer finer than the milliseconds of a poll, set as seldom as will do.
//!
//! To set it costs a system call, and most deadlines are put off before they come: each packet that
//! is acknowledged moves the time at which it would have been repeated. So an alarm that is too
//! early is left as it is. It wakes the loop once in vain, and is set again then.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How late a timer of a slot may be, mostly: those of the transport are microseconds, and the
/// system's default is 50 of them.
pub(crate) const SLACK: Duration = Duration::from_nanos(1);

/// How late the system may be with the timers of this thread. Where that is refused they are only
/// less exact.
pub(crate) fn set_slack(slack: Duration) {
    let nanos = NonZeroU64::new(slack.as_nanos() as u64);
    let _ = rustix::thread::set_current_timer_slack(nanos);
}

/// A descriptor that becomes readable at a time.
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it goes off, unless it has already.
    at: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Alarm { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, at: None })
    }

    /// Goes off at `deadline`, and perhaps before. `now` has to be a fresh look at the clock: the
    /// timer counts from here.
    pub(crate) fn set(&mut self, now: Instant, deadline: Instant) -> io::Result<()> {
        if !self.is_late(now, deadline) {
            return Ok(());
        }
        // A time of 0 would disarm it.
        let after = deadline.saturating_duration_since(now).max(Duration::from_nanos(1));
        let time = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        self.at = Some(deadline);
        Ok(())
    }

    /// Whether it would go off after the deadline, or not at all.
    fn is_late(&self, now: Instant, deadline: Instant) -> bool {
        self.at.is_none_or(|at| at <= now || at > deadline)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn has_gone_off(alarm: &Alarm, within: Duration) -> bool {
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: 0 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn an_alarm_goes_off_at_its_time_and_not_before() {
        let mut alarm = Alarm::new().unwrap();
        let (start, after) = (Instant::now(), Duration::from_micros(1500));
        alarm.set(start, start + after).unwrap();
        assert!(has_gone_off(&alarm, Duration::from_secs(20)));
        assert!(start.elapsed() >= after, "{:?}", start.elapsed());
        // What is due already goes off at once.
        let now = Instant::now();
        alarm.set(now, start).unwrap();
        assert!(has_gone_off(&alarm, Duration::from_secs(20)));
    }

    #[test]
    fn an_alarm_is_set_again_only_if_it_would_be_late() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut alarm = Alarm::new().unwrap();
        assert!(alarm.is_late(start, at(3_600_000_000)), "it was never set");
        alarm.set(start, at(10_000_000)).unwrap();
        assert!(!alarm.is_late(at(20), at(10_000_000)));
        assert!(!alarm.is_late(at(20), at(10_000_001)), "the deadline was put off");
        assert!(alarm.is_late(at(20), at(70)), "a deadline comes before it");
        assert!(alarm.is_late(at(10_000_000), at(10_000_050)), "it has gone off");
        alarm.set(at(20), at(70)).unwrap();
        assert!(!alarm.is_late(at(69), at(70)));
    }
}
