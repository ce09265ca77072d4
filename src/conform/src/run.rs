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
    /// not pass once in so many tries, and two of them or most show the device to do otherwise.
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
        let (evidence, variations, is_contradicted) = script.finish();
        tally.add(outcome, evidence, variations, is_contradicted);
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
    /// Tries that did not pass, however they ended.
    failed: u32,
    last_pass: Option<(Vec<String>, Evidence)>,
    /// Tries in which the device did otherwise.
    otherwise: Stops,
    /// Tries in which the device was found not to have it. Silence may be that of the network, so
    /// once or twice is not enough.
    unsupported: Stops,
    /// Tries in which the tester or the network stood in the way.
    hindered: Stops,
    /// This way to the device, or this port, cannot ask it.
    cannot_ask: Stops,
    /// The first try in which the device gave an answer that no loss explains.
    contradiction: Option<(Stop, Evidence)>,
}

/// Tries that ended alike: how many there were, and the first.
#[derive(Default)]
struct Stops {
    count: u32,
    first: Option<(Stop, Evidence)>,
}

impl Stops {
    fn add(&mut self, stop: Stop, evidence: Evidence) {
        self.count += 1;
        self.first.get_or_insert((stop, evidence));
    }

    fn are_most_of(&self, tries: u32) -> bool {
        self.count * 2 > tries
    }
}

impl Tally {
    fn add(
        &mut self,
        outcome: Outcome,
        evidence: Evidence,
        variations: Vec<String>,
        is_contradicted: bool,
    ) {
        let Err(stop) = outcome else {
            self.passed += 1;
            self.last_pass = Some((variations, evidence));
            return;
        };
        self.failed += 1;
        if is_contradicted && self.contradiction.is_none() {
            self.contradiction = Some((stop.clone(), evidence.clone()));
        }
        let stops = match stop {
            Stop::Failed { .. } => &mut self.otherwise,
            Stop::NotSupported(_) => &mut self.unsupported,
            Stop::Inconclusive(_) => &mut self.hindered,
            Stop::NeedsAgent(_) | Stop::NeedsRaw(_) => &mut self.cannot_ask,
        };
        stops.add(stop, evidence);
    }

    fn tries(&self) -> u32 {
        self.passed + self.failed
    }

    fn passes(&self) -> bool {
        self.passed > 0 && self.passed >= 2 * self.failed
    }

    fn is_decided(&self, attempts: u32) -> bool {
        let never_passes = self.passed == 0 && self.failed >= attempts;
        let (unsupported, tries) = (&self.unsupported, self.tries());
        let is_known = self.passed == 0 && unsupported.count > 2 && unsupported.are_most_of(tries);
        let most = attempts.saturating_mul(MOST_ATTEMPTS);
        let cannot_ask = self.cannot_ask.count > 0;
        self.passes() || never_passes || is_known || cannot_ask || tries >= most
    }

    /// The verdict of tries of which none has passed, and the one that stands for them. What one
    /// try alone shows, others having shown something else, does not decide.
    fn verdict_of_failures(&mut self) -> Option<(Verdict, Stop, Evidence)> {
        let tries = self.tries();
        let decided = if self.cannot_ask.count > 0 {
            &mut self.cannot_ask
        } else if self.unsupported.are_most_of(tries) {
            &mut self.unsupported
        } else if self.otherwise.count > 1 || self.otherwise.are_most_of(tries) {
            &mut self.otherwise
        } else {
            let all = [&mut self.hindered, &mut self.otherwise, &mut self.unsupported];
            let (stop, evidence) = all.into_iter().find_map(|stops| stops.first.take())?;
            return Some((Verdict::Inconclusive, stop, evidence));
        };
        let (stop, evidence) = decided.first.take()?;
        Some((stop.verdict(), stop, evidence))
    }

    /// The first failure, if any: one that is the device's rather than another.
    fn first_failure(&mut self) -> Option<(Stop, Evidence)> {
        let all =
            [&mut self.cannot_ask, &mut self.unsupported, &mut self.otherwise, &mut self.hindered];
        all.into_iter().find_map(|stops| stops.first.take())
    }

    fn finding(mut self, check: &'static Check) -> Finding {
        let (passed, tries) = (self.passed, self.tries());
        let last_pass = self.last_pass.take();
        let (verdict, expected, seen, evidence) = if self.passes() {
            let (mut variations, mut evidence) = last_pass.unwrap_or_default();
            // Loss explains silence; a wrong answer is worth telling also if others were right.
            if let Some((stop, packets)) = self.contradiction.take() {
                let (expected, seen) = words(stop);
                let expected = expected.unwrap_or_default();
                variations.push(format!(
                    "{passed} of {tries} attempts passed; once, {expected} was expected, and seen: \
                     {seen}"
                ));
                evidence = packets;
            }
            let verdict = if variations.is_empty() { Verdict::Pass } else { Verdict::Variation };
            (verdict, None, variations.join("; "), evidence)
        } else if passed > 0 {
            let (stop, evidence) = self.first_failure().expect("some have failed");
            let (expected, seen) = words(stop);
            let seen = format!("{passed} of {tries} attempts passed; otherwise: {seen}");
            (Verdict::Inconclusive, expected, seen, evidence)
        } else {
            let of_all = self.verdict_of_failures();
            let (verdict, stop, evidence) = of_all.expect("a check is tried at least once");
            let (expected, seen) = words(stop);
            (verdict, expected, seen, evidence)
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
            tally.add(outcome, Evidence::default(), Vec::new(), false);
        }
        assert!(tally.is_decided(5), "undecided after {} tries", tally.tries());
        let tries = tally.tries();
        (tally, tries)
    }

    fn failed() -> Outcome {
        Err(Stop::failed("an ACK", "nothing"))
    }

    fn hindered() -> Outcome {
        Err(Stop::Inconclusive("the agent is gone".into()))
    }

    fn finding(tally: Tally) -> Finding {
        tally.finding(crate::checks::all().next().expect("there are checks"))
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
        assert_eq!(finding(tally).verdict, Verdict::Fail);
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
        let (tally, tries) = tally([failed(), silent(), silent(), silent()]);
        assert_eq!((finding(tally).verdict, tries), (Verdict::NotSupported, 4));
    }

    #[test]
    fn one_attempt_of_several_decides_nothing() {
        for (outcomes, verdict) in [
            // An agent that died, and then was gone.
            ([failed(), hindered(), hindered(), hindered(), hindered()], Verdict::Inconclusive),
            ([failed(), failed(), silent(), failed(), failed()], Verdict::Fail),
            ([silent(), silent(), failed(), failed(), failed()], Verdict::Fail),
            ([failed(), hindered(), silent(), hindered(), silent()], Verdict::Inconclusive),
            ([failed(), failed(), silent(), silent(), silent()], Verdict::NotSupported),
            ([hindered(), hindered(), hindered(), failed(), failed()], Verdict::Fail),
        ] {
            let words = format!("{outcomes:?}");
            assert_eq!(finding(tally(outcomes).0).verdict, verdict, "{words}");
        }
        let mut once = Tally::default();
        once.add(failed(), Evidence::default(), Vec::new(), false);
        assert!(once.is_decided(1));
        assert_eq!(finding(once).verdict, Verdict::Fail, "there was no other");
    }

    #[test]
    fn a_wrong_answer_is_told_of_where_others_were_right() {
        for (is_contradicted, verdict) in [(false, Verdict::Pass), (true, Verdict::Variation)] {
            let mut tally = Tally::default();
            tally.add(failed(), Evidence::default(), Vec::new(), is_contradicted);
            for _ in 0..2 {
                tally.add(Ok(()), Evidence::default(), Vec::new(), false);
            }
            let found = finding(tally);
            assert_eq!((found.verdict, found.seen.contains("an ACK")), (verdict, is_contradicted));
        }
    }
}
