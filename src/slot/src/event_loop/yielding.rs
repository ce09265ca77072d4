//! When the slot's thread yields the processor, and how long its turns on it are.
//!
//! Threads of one turn's length that all are busy wait for each other for milliseconds. Where that
//! is so the slot does not yield for a while, but sleeps, for whoever is woken comes before those
//! who are busy; and it asks for shorter turns than theirs, so that each comes sooner. Otherwise
//! its turns are as long as those of others: they would interrupt a program that only polls more
//! often, and stock programs got a tenth less done.
//!
//! Programs that poll end their yields only for slow ones in a row ([`YieldPolicy`]): they do not
//! sleep in place of that, and would keep the processor from the slot that they wait for.

use std::time::{Duration, Instant};
use urxe_shm::client::time_slice;
use urxe_shm::client::yield_policy::{YIELD_MAX, YieldPolicy};

/// So many yields that take too long, each so soon after the one before, are no accident.
const MANY: u32 = 4;
const SOON: Duration = Duration::from_millis(50);

/// The shorter turn, as short as the system takes it. With 0.5 ms, a busy program made those of
/// other users wait up to 2.6 times as long as an idle one, with 0.25 ms 1.6 times; but those of
/// the same user, in this slot, 4 to 6 times, and with this 3 times.
const SHORT_TURN: Duration = Duration::from_micros(100);

/// What is known of the other threads that want the processor.
pub(super) struct Yielding {
    policy: YieldPolicy,
    /// Yields that took too long, each soon after the one before, and when the last one did.
    slow: u32,
    last_slow: Option<Instant>,
    /// How long a turn was, while it is shorter.
    usual_turn: Option<Duration>,
}

impl Yielding {
    pub(super) const fn new() -> Yielding {
        Yielding { policy: YieldPolicy::new(), slow: 0, last_slow: None, usual_turn: None }
    }

    /// Whether to yield when there is nothing to do.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.policy.is_due(now)
    }

    /// The processor was yielded, and came back after so long. Returns whether that was too long.
    pub(super) fn on_yield(&mut self, now: Instant, away: Duration) -> bool {
        let is_slow = away > YIELD_MAX;
        self.policy.on_yield(now, away);
        if is_slow {
            let before = self.last_slow.replace(now);
            let is_soon = before.is_some_and(|before| now.duration_since(before) < SOON);
            self.slow = if is_soon { self.slow + 1 } else { 1 };
            // SHARE-123: also if others were quick in between.
            if self.slow >= MANY && self.policy.is_due(now) {
                self.policy.pause(now);
            }
        }
        // Where the system refuses it, the turns stay as they are.
        match (self.policy.has_paused(), self.usual_turn) {
            (true, None) => self.usual_turn = time_slice::replace(SHORT_TURN).ok().flatten(),
            (false, Some(usual)) => {
                let _ = time_slice::replace(usual);
                self.usual_turn = None;
            }
            _ => {}
        }
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(2);
    const QUICK: Duration = Duration::from_micros(3);

    /// Yields that took so long, one each millisecond. Returns how many it took until there are to
    /// be no more.
    fn yields(yielding: &mut Yielding, from: Instant, away: &[Duration]) -> Option<usize> {
        away.iter().enumerate().find_map(|(at, &away)| {
            let now = from + Duration::from_millis(1) * at as u32;
            assert_eq!(yielding.on_yield(now, away), away == SLOW);
            (!yielding.is_due(now)).then_some(at + 1)
        })
    }

    #[test]
    fn yields_that_often_take_long_end_although_others_are_quick() {
        let now = Instant::now();
        let mut yielding = Yielding::new();
        let often = [QUICK, SLOW].repeat(10);
        assert_eq!(yields(&mut yielding, now, &often), Some(8));
        // Where they are seldom they go on.
        let mut yielding = Yielding::new();
        let seldom: Vec<_> = [vec![SLOW], vec![QUICK; 50]].concat().repeat(10);
        assert_eq!(yields(&mut yielding, now, &seldom), None);
        // As if nothing had been, once one is quick after a pause.
        let mut yielding = Yielding::new();
        assert_eq!(yields(&mut yielding, now, &[SLOW, SLOW]), Some(2));
        assert!(!yielding.on_yield(now + Duration::from_secs(1), QUICK));
        assert_eq!(yields(&mut yielding, now + Duration::from_secs(1), &[SLOW]), None);
    }

    /// How long a turn of this thread is, if the system has turns of more than one length.
    fn turn() -> Option<Duration> {
        // It is told to whoever replaces it.
        let turn = time_slice::replace(SHORT_TURN).unwrap()?;
        time_slice::replace(turn).unwrap();
        Some(turn)
    }

    #[test]
    fn turns_are_shorter_for_as_long_as_others_keep_the_processor() {
        // In a thread of its own, which ends with it.
        let test = || {
            // Before Linux 6.12 both are none, and stay so.
            let usual = turn();
            let short = usual.map(|_| SHORT_TURN);
            assert!(usual.is_none_or(|usual| usual > SHORT_TURN));
            let (now, mut yielding) = (Instant::now(), Yielding::new());
            yielding.on_yield(now, SLOW);
            assert_eq!(turn(), usual, "one alone is an accident");
            yielding.on_yield(now, SLOW);
            assert_eq!(turn(), short);
            yielding.on_yield(now, SLOW);
            assert_eq!(turn(), short);
            yielding.on_yield(now, QUICK);
            assert_eq!(turn(), usual);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
