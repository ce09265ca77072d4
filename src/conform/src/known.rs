//! Results that are known of a device: what is not as it should be, and why that is accepted.
//!
//! A list has a line for each: the check's name, the verdict and the reason, separated by spaces.
//! Where a verdict would stand, `stops` says that the check stops the device: it is left out.
//! Lines that begin with `#` and empty ones are remarks. It may only become shorter: a run is good
//! if nothing else is wrong, and if everything in the list is still so.

use crate::checks;
use crate::verdict::{Finding, Verdict};

/// The list.
#[derive(Clone, Debug, Default)]
pub struct Known {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    check: String,
    result: Outcome,
}

/// What is known of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// How it ends.
    Is(Verdict),
    /// It stops the device, so that nothing can be asked of it afterwards.
    Stops,
}

/// A line that makes no sense.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Unreadable {
    line: usize,
    reason: String,
}

impl Known {
    /// Reads a list.
    ///
    /// # Errors
    /// If a line names no check or no verdict, or gives no reason.
    pub fn parse(text: &str) -> Result<Known, Unreadable> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry =
                Entry::parse(line).map_err(|reason| Unreadable { line: index + 1, reason })?;
            entries.push(entry);
        }
        Ok(Known { entries })
    }

    /// Whether a check stops the device, and so cannot be played among others.
    pub fn stops(&self, check: &str) -> bool {
        self.entries.iter().any(|entry| entry.check == check && entry.result == Outcome::Stops)
    }

    /// What is wrong about these results: what is bad and not known, and what is known and not so
    /// any more. A check that was not played, or that an agent or the raw port would be needed for,
    /// says nothing; if that holds for all, that is wrong. Nor does one say anything that could not
    /// be told because answers came late.
    pub fn complaints(&self, findings: &[Finding]) -> Vec<String> {
        let mut complaints = Vec::new();
        if findings.iter().all(|finding| finding.verdict.is_not_asked()) {
            complaints.push("the device was asked nothing".to_owned());
        }
        for finding in findings.iter().filter(|finding| !finding.is_late) {
            let name = finding.check.name;
            let mut listed = self.entries.iter().filter(|entry| entry.check == name).peekable();
            let is_listed = listed.peek().is_some();
            let is_so = listed.any(|entry| entry.result == Outcome::Is(finding.verdict));
            let cannot_ask = matches!(finding.verdict, Verdict::NeedsAgent | Verdict::NeedsRaw);
            if is_listed && !is_so && !cannot_ask {
                let verdict = finding.verdict;
                complaints.push(format!("{name}: {verdict}, and not as the known results have it"));
            } else if !is_listed && !finding.verdict.is_good() {
                complaints.push(format!("{name}: {}, which is not known", finding.verdict));
            }
        }
        complaints
    }
}

impl Entry {
    fn parse(line: &str) -> Result<Entry, String> {
        let mut words = line.split_whitespace();
        let check = words.next().unwrap_or_default();
        if !checks::all().any(|other| other.name == check) {
            return Err(format!("there is no check {check:?}"));
        }
        let verdict = words.next().unwrap_or_default();
        let found = Verdict::ALL.into_iter().find(|other| other.name() == verdict);
        let result = match found {
            Some(verdict) => Outcome::Is(verdict),
            None if verdict == "stops" => Outcome::Stops,
            None => return Err(format!("{verdict:?} is no verdict")),
        };
        if words.next().is_none() {
            return Err("the reason is missing".into());
        }
        Ok(Entry { check: check.into(), result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Evidence;

    const NAME: &str = "write/wrong-key-is-refused";

    fn finding(verdict: Verdict) -> Finding {
        Finding {
            check: checks::all().find(|check| check.name == NAME).unwrap(),
            verdict,
            expected: None,
            seen: String::new(),
            attempts: 1,
            passed: 0,
            is_late: false,
            evidence: Evidence::default(),
        }
    }

    fn other() -> &'static crate::Check {
        checks::all().find(|check| check.name != NAME).unwrap()
    }

    fn complaints(list: &str, verdict: Verdict) -> usize {
        Known::parse(list).unwrap().complaints(&[finding(verdict)]).len()
    }

    #[test]
    fn failures_must_be_known_and_known_ones_must_still_happen() {
        let known = format!("# a remark\n\n{NAME} fail it answers with another code\n");
        for (list, verdict, number) in [
            ("", Verdict::Pass, 0),
            ("", Verdict::Variation, 0),
            ("", Verdict::Fail, 1),
            ("", Verdict::Inconclusive, 1),
            (&known, Verdict::Fail, 0),
            (&known, Verdict::Pass, 1),
            (&known, Verdict::Inconclusive, 1),
        ] {
            assert_eq!(complaints(list, verdict), number, "{list:?} {verdict}");
        }
        let known = Known::parse(&known).unwrap();
        let findings =
            |first| [Finding { check: other(), ..finding(Verdict::Pass) }, finding(first)];
        for verdict in [Verdict::NeedsAgent, Verdict::NeedsRaw] {
            assert!(known.complaints(&findings(verdict)).is_empty());
        }
        assert_eq!(known.complaints(&findings(Verdict::NotSupported)).len(), 1);
    }

    #[test]
    fn a_late_answer_is_no_complaint() {
        let late = Finding { is_late: true, ..finding(Verdict::Inconclusive) };
        for list in [String::new(), format!("{NAME} fail it answers with another code")] {
            assert!(
                Known::parse(&list).unwrap().complaints(std::slice::from_ref(&late)).is_empty()
            );
        }
    }

    #[test]
    fn a_run_that_asks_nothing_is_not_good() {
        for verdict in [Verdict::NotSupported, Verdict::NeedsAgent, Verdict::NeedsRaw] {
            assert_eq!(complaints("", verdict), 1);
        }
        assert_eq!(Known::default().complaints(&[]).len(), 1);
    }

    #[test]
    fn a_check_that_stops_a_device_is_told_apart_from_one_that_fails() {
        let known = Known::parse(&format!("{NAME} stops the kernel panics\n")).unwrap();
        assert!(known.stops(NAME));
        assert!(!known.stops("write/only-is-acknowledged"));
        assert_eq!(known.complaints(&[finding(Verdict::Fail)]).len(), 1, "it went on");
        let known = Known::parse(&format!("{NAME} fail it answers\n")).unwrap();
        assert!(!known.stops(NAME));
    }

    #[test]
    fn a_line_names_a_check_a_verdict_and_a_reason() {
        for (line, reason) in [
            ("write/nothing fail it is so", "there is no check \"write/nothing\""),
            ("write/wrong-key-is-refused bad it is so", "\"bad\" is no verdict"),
            ("write/wrong-key-is-refused fail", "the reason is missing"),
        ] {
            let error = Known::parse(&format!("\n{line}")).unwrap_err();
            assert_eq!(error.to_string(), format!("line 2: {reason}"));
        }
    }

    #[test]
    fn the_lists_of_known_devices_can_be_read() {
        let lists = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/known")).unwrap();
        for list in lists.map(|entry| entry.unwrap().path()) {
            let known = Known::parse(&std::fs::read_to_string(&list).unwrap());
            let known = known.unwrap_or_else(|error| panic!("{}: {error}", list.display()));
            let is_ours = list.file_stem().is_some_and(|name| name == "urxe");
            assert!(!is_ours || known.entries.is_empty(), "urxe is right in all");
        }
    }
}
