//! How long the device takes for an answer, so that one that is slow is not taken for wrong.

use crate::check::Outcome;
use crate::device::{Device, Setup};
use crate::link::Link;
use crate::script::{Script, Waits};
use std::time::Duration;

/// How long the device takes for answers that take it no work, with the way there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace {
    /// The longest of some.
    pub slowest: Duration,
}

/// How many answers are measured, and how long the device is left alone before each: what else its
/// processor does comes in between.
const PROBES: i32 = 16;
const PAUSE: Duration = Duration::from_millis(5);
/// A probe that is answered no sooner is given up.
const LONGEST: Duration = Duration::from_secs(2);

impl Pace {
    /// Measures it; `None`: the device has no memory for us to WRITE to, or never answers.
    pub fn measure(link: &mut dyn Link, device: &mut dyn Device, seed: u64) -> Option<Pace> {
        let waits = Waits { reply: LONGEST, ..Waits::default() };
        let mut script = Script::new(link, device, waits, seed);
        let mut slowest = None;
        // What was measured before an answer was lost counts.
        let _ = probe(&mut script, &mut slowest);
        script.finish();
        slowest.map(|slowest| Pace { slowest })
    }

    /// Whether answers come so late that what is judged by time may be judged wrong.
    pub fn is_slow(self) -> bool {
        self.slowest * 2 > Waits::default().quiet
    }
}

fn probe(t: &mut Script<'_>, slowest: &mut Option<Duration>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for psn in 0..PROBES {
        t.wait(PAUSE)?;
        let asked = t.now();
        t.expect_service(psn, psn as u32 + 1)?;
        *slowest = (*slowest).max(Some(t.now() - asked));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(slowest: u64) -> Waits {
        Waits::for_pace(Pace { slowest: Duration::from_millis(slowest) })
    }

    #[test]
    fn a_slow_device_gets_more_time_and_a_fast_one_not_less() {
        let usual = Waits::default();
        assert_eq!((waits(0).reply, waits(0).quiet), (usual.reply, usual.quiet));
        assert_eq!(waits(30).reply, Duration::from_millis(300));
        assert_eq!(waits(2000).reply, Duration::from_secs(1));
        assert_eq!(waits(10).quiet, Duration::from_millis(30));
    }

    #[test]
    fn silence_is_over_before_an_ack_timeout() {
        for quiet in [waits(500).quiet, Waits::for_replies_within(Duration::from_secs(9)).quiet] {
            assert_eq!(quiet, Duration::from_millis(50));
        }
    }

    #[test]
    fn attempts_after_failures_wait_longer_for_answers_only() {
        let usual = Waits::default();
        let factors = [0, 1, 2, 3, 4, 9].map(|failed| {
            let waits = usual.after(failed);
            assert_eq!(waits.quiet, usual.quiet);
            waits.reply.as_millis() / usual.reply.as_millis()
        });
        assert_eq!(factors, [1, 1, 2, 2, 4, 4]);
    }
}
