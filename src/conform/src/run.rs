//! Plays checks, as often as it takes to be sure.

use crate::check::{Check, Outcome, Stop};
use crate::device::Device;
use crate::link::Link;
use crate::pace::Pace;
use crate::script::{Evidence, Script, Waits};
use crate::verdict::{Finding, Verdict};

/// How checks are run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is chosen by chance follows from it.
    pub seed: u64,
    /// How long answers are waited for; longer after an attempt that failed.
    pub waits: Waits,
    /// How long the device takes for an answer, if that was measured.
    pub pace: Option<Pace>,
    /// How often a check is tried that does not pass: networks lose packets. It fails if it does
    /// not pass once in so many tries.
    pub attempts: u32,
}

/// Tries of a check that passes now and then, at most, as a multiple of [`Plan::attempts`].
const MOST_ATTEMPTS: u32 = 8;

impl Default for Plan {
    fn default() -> Plan {
        Plan { seed: 1, waits: Waits::default(), pace: None, attempts: 5 }
    }
}

/// Plays one check.
///
/// One that passes at once is right: what is lost on the way makes checks fail, not pass. One that
/// fails at first is tried again, with more time for answers, until it has passed at least twice as
/// often as it failed.
pub fn play(
    check: &'static Check,
    link: &mut dyn Link,
    device: &mut dyn Device,
    plan: &Plan,
) -> Finding {
    let attempts = plan.attempts.max(1);
    let mut tally = Tally::default();
    while !tally.is_decided(attempts) {
        let seed = seed_of(check, plan.seed).wrapping_add(u64::from(tally.tries()));
        let mut script = Script::new(link, device, plan.waits.after(tally.failed), seed);
        let outcome = (check.run)(&mut script);
        let (evidence, variations) = script.finish();
        tally.add(outcome, evidence, variations);
    }
    let mut finding = tally.finding(check);
    if finding.verdict == Verdict::Inconclusive && finding.passed > 0 {
        let pace = plan.pace.max(Pace::measure(link, device, plan.seed));
        if let Some(pace) = pace.filter(|pace| pace.is_slow()) {
            finding.is_late = true;
            finding.seen += &format!("; late: answers take up to {:.1?} here", pace.slowest);
        }
    }
    finding
}

/// Each check has numbers of its own: a device may remember those of an earlier one. (FNV-1a.)
fn seed_of(check: &Check, seed: u64) -> u64 {
    check.name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What came of the tries of a check.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// Tries in which the device was found not to have it. Silence may be that of the network, so
    /// once or twice is not enough.
    unsupported: u32,
    /// This way to the device, or this port, cannot ask it.
    cannot_ask: bool,
    last_pass: Option<(Vec<String>, Evidence)>,
    /// The first failure, but for what is said of the device as a whole.
    stop: Option<(Stop, Evidence)>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome, evidence: Evidence, variations: Vec<String>) {
        let Err(stop) = outcome else {
            self.passed += 1;
            self.last_pass = Some((variations, evidence));
            return;
        };
        self.failed += 1;
        self.unsupported += u32::from(matches!(stop, Stop::NotSupported(_)));
        let cannot_ask = matches!(stop, Stop::NeedsAgent(_) | Stop::NeedsRaw(_));
        self.cannot_ask |= cannot_ask;
        let is_said = cannot_ask || matches!(stop, Stop::NotSupported(_));
        if is_said || self.stop.is_none() {
            self.stop = Some((stop, evidence));
        }
    }

    fn tries(&self) -> u32 {
        self.passed + self.failed
    }

    fn passes(&self) -> bool {
        self.passed > 0 && self.passed >= 2 * self.failed
    }

    fn is_decided(&self, attempts: u32) -> bool {
        let never_passes = self.passed == 0 && self.failed >= attempts;
        let is_known = self.passed == 0 && self.unsupported > 2;
        let most = attempts.saturating_mul(MOST_ATTEMPTS);
        self.passes() || never_passes || is_known || self.cannot_ask || self.tries() >= most
    }

    fn finding(self, check: &'static Check) -> Finding {
        let (passed, tries, passes) = (self.passed, self.tries(), self.passes());
        let (verdict, expected, seen, evidence) = match (self.last_pass, self.stop) {
            (Some((variations, evidence)), _) if passes => {
                let verdict =
                    if variations.is_empty() { Verdict::Pass } else { Verdict::Variation };
                (verdict, None, variations.join("; "), evidence)
            }
            (Some(_), Some((stop, evidence))) => {
                let (expected, seen) = words(stop);
                let seen = format!("{passed} of {tries} attempts passed; otherwise: {seen}");
                (Verdict::Inconclusive, expected, seen, evidence)
            }
            (None, Some((stop, evidence))) => {
                let verdict = stop.verdict();
                let (expected, seen) = words(stop);
                (verdict, expected, seen, evidence)
            }
            (_, None) => unreachable!("a check is tried at least once"),
        };
        Finding {
            check,
            verdict,
            expected,
            seen,
            attempts: tries,
            passed,
            is_late: false,
            evidence,
        }
    }
}

/// What was expected, and what was seen instead.
fn words(stop: Stop) -> (Option<String>, String) {
    match stop {
        Stop::Failed { expected, seen } => (Some(expected), seen),
        Stop::NotSupported(why)
        | Stop::NeedsAgent(why)
        | Stop::NeedsRaw(why)
        | Stop::Inconclusive(why) => (None, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attempts that end like this, until the verdict is certain; how many there were.
    fn tally(outcomes: impl IntoIterator<Item = Outcome>) -> (Tally, u32) {
        let mut tally = Tally::default();
        for outcome in outcomes {
            if tally.is_decided(5) {
                break;
            }
            tally.add(outcome, Evidence::default(), Vec::new());
        }
        assert!(tally.is_decided(5), "undecided after {} tries", tally.tries());
        let tries = tally.tries();
        (tally, tries)
    }

    fn failed() -> Outcome {
        Err(Stop::failed("an ACK", "nothing"))
    }

    fn silent() -> Outcome {
        Err(Stop::NotSupported("it is silent".into()))
    }

    #[test]
    fn a_check_that_passes_at_once_is_not_tried_again() {
        let (tally, tries) = tally([Ok(())]);
        assert_eq!((tally.passes(), tries), (true, 1));
    }

    #[test]
    fn a_check_that_never_passes_fails() {
        let (tally, tries) = tally(std::iter::repeat_with(failed));
        assert_eq!((tally.passes(), tries), (false, 5));
        assert!(matches!(tally.stop, Some((Stop::Failed { .. }, _))));
    }

    #[test]
    fn a_check_that_passes_twice_as_often_as_it_fails_passes() {
        let (tally, tries) = tally([failed(), Ok(()), Ok(())]);
        assert_eq!((tally.passes(), tries), (true, 3));
    }

    #[test]
    fn a_check_that_passes_every_other_time_is_inconclusive() {
        let (tally, tries) = tally((0..).map(|i| if i % 2 == 0 { failed() } else { Ok(()) }));
        assert_eq!((tally.passes(), tries), (false, 40));
        assert!(tally.passed > 0);
    }

    #[test]
    fn silence_is_believed_when_it_lasts() {
        let (_, tries) = tally(std::iter::repeat_with(silent));
        assert_eq!(tries, 3);
        let (tally, _) = tally([silent(), Ok(()), Ok(())]);
        assert!(tally.passes(), "it was the network");
    }

    #[test]
    fn a_check_that_needs_an_agent_is_not_tried_again() {
        let (_, tries) = tally([Err(Stop::NeedsAgent("to count receives".into()))]);
        assert_eq!(tries, 1);
    }

    #[test]
    fn a_loss_does_not_hide_that_a_device_has_it_not() {
        let (tally, _) = tally([failed(), silent(), silent(), silent()]);
        assert!(matches!(tally.stop, Some((Stop::NotSupported(_), _))));
    }
}
