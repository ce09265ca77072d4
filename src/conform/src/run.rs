//! Plays checks, as often as it takes to be sure.

use crate::check::{Check, Stop};
use crate::device::Device;
use crate::link::Link;
use crate::script::{Evidence, Script, Waits};
use crate::verdict::{Finding, Verdict};

/// How checks are run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is chosen by chance follows from it.
    pub seed: u64,
    /// How long answers are waited for.
    pub waits: Waits,
    /// How often a check is tried that does not pass: networks lose packets. It fails if it never
    /// passes.
    pub attempts: u32,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { seed: 1, waits: Waits::default(), attempts: 5 }
    }
}

/// Plays one check.
pub fn play(
    check: &'static Check,
    link: &mut dyn Link,
    device: &mut dyn Device,
    plan: &Plan,
) -> Finding {
    let mut failed: Option<(Stop, Evidence)> = None;
    let mut tries = 0;
    let mut passed = 0;
    let mut last_pass = None;
    // A check that passes at once is right. One that fails at first has to pass more often than it
    // fails, or it is not certain.
    while tries < plan.attempts.max(1) && (tries == 0 || failed.is_some()) {
        let seed = plan.seed.wrapping_add(u64::from(tries));
        let mut script = Script::new(link, device, plan.waits, seed);
        let outcome = (check.run)(&mut script);
        let (evidence, variations) = script.finish();
        tries += 1;
        match outcome {
            Ok(()) => {
                passed += 1;
                last_pass = Some((evidence, variations));
                if failed.is_none() {
                    break;
                }
            }
            Err(stop @ (Stop::NotSupported(_) | Stop::NeedsAgent(_))) => {
                failed = Some((stop, evidence));
                break;
            }
            Err(stop) => {
                failed.get_or_insert((stop, evidence));
            }
        }
        if passed > plan.attempts / 2 {
            break;
        }
    }
    let finding = |verdict, expected, seen, evidence| Finding {
        check,
        verdict,
        expected,
        seen,
        attempts: tries,
        passed,
        evidence,
    };
    match (failed, last_pass) {
        (None, Some((evidence, variations))) => pass(variations, evidence, finding),
        (Some(_), Some((evidence, variations))) if passed * 2 >= tries => {
            pass(variations, evidence, finding)
        }
        (Some((stop, evidence)), Some(_)) => {
            let (expected, seen) = words(stop);
            let seen = format!("{passed} of {tries} attempts passed; otherwise: {seen}");
            finding(Verdict::Inconclusive, expected, seen, evidence)
        }
        (Some((stop, evidence)), None) => {
            let verdict = stop.verdict();
            let (expected, seen) = words(stop);
            finding(verdict, expected, seen, evidence)
        }
        (None, None) => unreachable!("a check is tried at least once"),
    }
}

fn pass(
    variations: Vec<String>,
    evidence: Evidence,
    finding: impl FnOnce(Verdict, Option<String>, String, Evidence) -> Finding,
) -> Finding {
    let verdict = if variations.is_empty() { Verdict::Pass } else { Verdict::Variation };
    finding(verdict, None, variations.join("; "), evidence)
}

/// What was expected, and what was seen instead.
fn words(stop: Stop) -> (Option<String>, String) {
    match stop {
        Stop::Failed { expected, seen } => (Some(expected), seen),
        Stop::NotSupported(why) | Stop::NeedsAgent(why) | Stop::Inconclusive(why) => (None, why),
    }
}
