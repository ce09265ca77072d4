//! JUnit's XML, which CI systems show: a suite for each area, a case for each check.

use super::{Report, date};
use crate::report::evidence;
use crate::verdict::{Finding, Verdict};
use std::fmt::Write;

/// The document.
pub fn text(report: &Report) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(text, "<testsuites name=\"{}\">", escape(&report.device));
    for (area, count) in report.areas() {
        let not_asked = Verdict::ALL.into_iter().filter(|verdict| verdict.is_not_asked());
        let skipped: usize = not_asked.map(|verdict| count.of(verdict)).sum();
        let _ = writeln!(
            text,
            "  <testsuite name=\"{area}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" \
             skipped=\"{skipped}\" timestamp=\"{}\">",
            count.all(),
            count.of(Verdict::Fail),
            count.of(Verdict::Inconclusive),
            date::utc(report.began.0).trim_end_matches('Z'),
        );
        for finding in report.findings.iter().filter(|finding| finding.check.area() == area) {
            case(&mut text, area, finding);
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

fn case(text: &mut String, area: &str, finding: &Finding) {
    let name = finding.check.name;
    let seen = escape(&finding.seen);
    let _ = write!(text, "    <testcase classname=\"{area}\" name=\"{}\"", escape(name));
    let packets = || escape(&evidence::lines(&finding.evidence).join("\n"));
    let _ = match finding.verdict {
        Verdict::Pass => writeln!(text, "/>"),
        Verdict::Variation => {
            writeln!(text, "><system-out>varies: {seen}</system-out></testcase>")
        }
        Verdict::NotSupported | Verdict::NeedsAgent | Verdict::NeedsRaw => {
            writeln!(text, "><skipped message=\"{}: {seen}\"/></testcase>", finding.verdict)
        }
        Verdict::Fail => {
            let expected = escape(finding.expected.as_deref().unwrap_or_default());
            let message = format!("expected {expected}; seen {seen}");
            writeln!(text, "><failure message=\"{message}\">{}</failure></testcase>", packets())
        }
        Verdict::Inconclusive => {
            writeln!(text, "><error message=\"{seen}\">{}</error></testcase>", packets())
        }
    };
}

/// For text and attributes of XML, which has no control characters at all.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(char),
            char if char.is_control() => escaped.push('\u{fffd}'),
            char => escaped.push(char),
        }
    }
    escaped
}
