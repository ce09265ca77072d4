//! All of a run as one JSON object.

use super::{Report, date, evidence};
use crate::rules;
use crate::verdict::{Finding, Verdict};
use serde_json::{Value, json};

/// Higher once a key is no more, or means something else.
const VERSION: u32 = 1;

/// The object.
pub fn value(report: &Report) -> Value {
    let count = report.count();
    let counts = Verdict::ALL.map(|verdict| (verdict.name().to_owned(), count.of(verdict).into()));
    let options = report.options.iter().map(|(name, value)| (name.clone(), value.clone().into()));
    json!({
        "version": VERSION,
        "device": report.device,
        "tester": report.tester,
        "date": date::utc(report.began.0),
        "seconds": report.took.as_secs_f64(),
        "options": Value::Object(options.collect()),
        "counts": Value::Object(counts.into_iter().collect()),
        "checks": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn finding(finding: &Finding) -> Value {
    let Finding { check, verdict, expected, seen, attempts, passed, is_late, evidence } = finding;
    let rule = rules::find(check.rule);
    // The packets of what is as it should be tell nothing, and are most.
    let packets = match verdict.is_good() {
        true => Vec::new(),
        false => evidence::lines(evidence),
    };
    json!({
        "name": check.name,
        "area": check.area(),
        "says": check.says,
        "rule": check.rule,
        "rule_text": rule.map(|rule| &rule.text),
        "source": rule.and_then(|rule| rule.source.as_ref()),
        "verdict": verdict.name(),
        "expected": expected,
        "seen": seen,
        "attempts": attempts,
        "passed": passed,
        "late": is_late,
        "packets": packets,
    })
}
