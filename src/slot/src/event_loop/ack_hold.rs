//! Whether an ACK waits a moment for the program.
//!
//! A program that gets a small message often answers it within microseconds. An ACK that waits for
//! that leaves in the same segmented send, or datagram, as the answer: each side has one system
//! call less to send, and one packet less to receive. Only an ACK waits that is all there is to
//! send, to a single message, and no longer than [`HOLD`]; where nothing follows again and again,
//! or somebody else had the processor for long meanwhile, none does for a while. What the message
//! brought is in memory, and its completion with the program, before the ACK waits.

use super::pause::Pause;
use crate::counters::DaemonCounters;
use std::time::{Duration, Instant};

/// How long an ACK waits at most, but for the turn that is under way then: a program that polls
/// has answered in a third of it, or in the time of a yield if it has to get the processor first.
const HOLD: Duration = Duration::from_micros(10);

/// A wait that has become so long, because others had the processor, may look like a loss to the
/// peer if it happens often.
const LONG: Duration = Duration::from_micros(500);

/// ACKs that wait in vain, one after the other, before none waits for a while.
const IN_VAIN: u32 = 4;

/// How long that is: at first, and at most where it happens again and again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// For how many times as long it has to go well until it is not again and again.
const PAUSE_PART: u32 = 10;

/// What a slot's thread knows of it.
pub(super) struct AckHold {
    /// An ACK has waited since then.
    since: Option<Instant>,
    /// How many have waited in vain since one did not.
    in_vain: u32,
    /// In which none waits.
    pause: Pause,
}

impl AckHold {
    pub(super) fn new(now: Instant) -> AckHold {
        AckHold { since: None, in_vain: 0, pause: Pause::over(now) }
    }

    /// Whether an ACK that is owed, and all there is to send, is to wait. `posted`: a program has
    /// just given something to send.
    pub(super) fn waits(
        &mut self,
        now: Instant,
        is_owed: bool,
        posted: bool,
        counters: &mut DaemonCounters,
    ) -> bool {
        let Some(since) = self.since else {
            let begins = is_owed && !posted && self.pause.is_over(now);
            self.since = begins.then_some(now);
            // COUNT-023
            counters.acks_held += u64::from(begins);
            return begins;
        };
        let waited = now.duration_since(since);
        if is_owed && waited < HOLD {
            return true;
        }
        self.since = None;
        if posted {
            self.in_vain = 0;
        } else if is_owed {
            self.in_vain += 1;
            counters.acks_held_in_vain += 1;
        }
        if self.in_vain >= IN_VAIN || waited >= LONG {
            let well = self.pause.over_for(now);
            self.pause.begin(now, (well, PAUSE_PART), [PAUSE_MIN, PAUSE_MAX]);
            self.in_vain = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(4);

    fn waits(hold: &mut AckHold, now: Instant, is_owed: bool, posted: bool) -> bool {
        hold.waits(now, is_owed, posted, &mut DaemonCounters::default())
    }

    /// COUNT-023
    #[test]
    fn each_ack_that_waits_is_counted_and_each_that_leaves_alone() {
        let (mut now, mut counters) = (Instant::now(), DaemonCounters::default());
        let mut hold = AckHold::new(now);
        for has_answer in [true, false, true, false, false] {
            assert!(hold.waits(now, true, false, &mut counters));
            now += if has_answer { TURN } else { HOLD };
            assert!(!hold.waits(now, !has_answer, has_answer, &mut counters));
        }
        assert_eq!((counters.acks_held, counters.acks_held_in_vain), (5, 3));
    }

    #[test]
    fn an_ack_waits_until_the_program_posts() {
        let mut now = Instant::now();
        let mut hold = AckHold::new(now);
        for _ in 0..1000 {
            assert!(!waits(&mut hold, now, false, false), "none is owed");
            assert!(waits(&mut hold, now, true, false));
            now += TURN;
            assert!(waits(&mut hold, now, true, false));
            now += TURN;
            assert!(!waits(&mut hold, now, false, true), "it is not all there is to send any more");
        }
        assert!(!waits(&mut hold, now, true, true), "there is something to go with");
    }

    #[test]
    fn an_ack_waits_no_longer_than_it_may() {
        let mut now = Instant::now();
        let mut hold = AckHold::new(now);
        let begun = now;
        while waits(&mut hold, now, true, false) {
            now += TURN;
        }
        assert!(now - begun < HOLD + TURN);
    }

    /// Has ACKs wait in vain until none does. Returns how long that lasts.
    fn pause_after_waits_in_vain(hold: &mut AckHold, now: &mut Instant) -> Duration {
        let mut count = 0;
        while waits(hold, *now, true, false) {
            count += 1;
            while waits(hold, *now, true, false) {
                *now += TURN;
            }
        }
        assert_eq!(count, IN_VAIN);
        let begun = *now;
        while !waits(hold, *now, true, false) {
            *now += PAUSE_MIN / 10;
        }
        // That one has its answer.
        assert!(!waits(hold, *now, false, true));
        *now - begun
    }

    #[test]
    fn where_acks_wait_in_vain_none_waits_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut hold = AckHold::new(now);
        let pauses: Vec<_> =
            (0..10).map(|_| pause_after_waits_in_vain(&mut hold, &mut now)).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[9]), (PAUSE_MIN, PAUSE_MAX));
        // It went well for long.
        now += PAUSE_MAX * (PAUSE_PART + 1);
        assert_eq!(pause_after_waits_in_vain(&mut hold, &mut now), PAUSE_MIN);
    }

    #[test]
    fn none_waits_for_a_while_where_others_kept_the_processor_for_long() {
        let mut now = Instant::now();
        let mut hold = AckHold::new(now);
        assert!(waits(&mut hold, now, true, false));
        now += LONG;
        assert!(!waits(&mut hold, now, false, true), "the program has posted, but late");
        assert!(!waits(&mut hold, now, true, false));
        assert!(waits(&mut hold, now + PAUSE_MIN, true, false));
    }
}
