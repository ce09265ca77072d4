//! Text for a terminal: how many of each verdict by area, and what is not as it should be.

use super::{Count, Report};
use crate::rules;
use crate::verdict::{Finding, Verdict};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The text.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    row(&mut text, "area", &Verdict::ALL.map(|verdict| verdict.name().to_owned()));
    for (area, count) in report.areas() {
        row(&mut text, area, &numbers(&count));
    }
    row(&mut text, "all", &numbers(&report.count()));
    for finding in &report.findings {
        if !finding.verdict.is_good() {
            text += &details(finding);
        }
    }
    let of = |wanted| report.findings.iter().filter(move |finding| finding.verdict == wanted);
    for finding in of(Verdict::Variation) {
        let _ = write!(text, "\n{} varies: {}\n", finding.check.name, finding.seen);
    }
    for verdict in [Verdict::NotSupported, Verdict::NeedsAgent, Verdict::NeedsRaw] {
        let mut reasons = BTreeMap::<&str, usize>::new();
        of(verdict).for_each(|finding| *reasons.entry(&finding.seen).or_default() += 1);
        if !reasons.is_empty() {
            let _ = write!(text, "\n{verdict}:\n");
        }
        for (reason, count) in reasons {
            let _ = writeln!(text, "  {count:>4}  {reason}");
        }
    }
    text
}

/// What a finding is, in a few lines.
fn details(finding: &Finding) -> String {
    let Finding { check, verdict, expected, seen, attempts, .. } = finding;
    let mut text = format!("\n{} {verdict} ({attempts} attempts)\n", check.name);
    let _ = writeln!(text, "  {}", check.says);
    if let Some(rule) = rules::find(check.rule) {
        let source = rule.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        let _ = writeln!(text, "  rule      {}{source}: {}", rule.id, rule.text);
    }
    if let Some(expected) = expected {
        let _ = writeln!(text, "  expected  {expected}");
    }
    let _ = writeln!(text, "  seen      {seen}");
    text
}

fn numbers(count: &Count) -> [String; Verdict::ALL.len()] {
    Verdict::ALL.map(|verdict| count.of(verdict).to_string())
}

fn row(text: &mut String, area: &str, cells: &[String]) {
    let _ = write!(text, "{area:<14}");
    for (cell, verdict) in cells.iter().zip(Verdict::ALL) {
        let width = verdict.name().len() + 2;
        let _ = write!(text, "{cell:>width$}");
    }
    text.push('\n');
}
