//! One HTML file that says everything to somebody who was not there: a vendor.

use super::junit::escape;
use super::{Report, date, evidence};
use crate::rules;
use crate::verdict::{Finding, Verdict};
use std::fmt::Write;

const STYLE: &str = "\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #ccc; padding: .2em .8em; text-align: left; }
td.number { text-align: right; }
details { border-bottom: 1px solid #ccc; padding: .3em 0; }
dl { display: grid; grid-template-columns: 8em 1fr; margin: .5em 1em; }
dd { margin: 0; }
pre { background: #f4f4f4; overflow-x: auto; padding: .6em; }
.verdict { display: inline-block; width: 8.5em; font-weight: bold; }
.pass { color: #1a7f37; } .variation { color: #0a6a70; } .fail { color: #c1121f; }
.inconclusive { color: #a15c00; } .not-supported, .needs-agent, .needs-raw { color: #666; }
";

/// The file.
pub fn text(report: &Report) -> String {
    let device = escape(&report.device);
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>RoCEv2 conformance: {device}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>RoCEv2 conformance</h1>\n"
    );
    let mut facts = vec![
        ("device".to_owned(), report.device.clone()),
        ("tester".to_owned(), report.tester.clone()),
        ("date".to_owned(), date::utc(report.began.0)),
        ("took".to_owned(), format!("{:.1} s", report.took.as_secs_f64())),
    ];
    facts.extend(report.options.iter().cloned());
    list(&mut text, &facts);
    summary(&mut text, report);
    // What is wrong comes first.
    for (heading, wanted) in [
        ("Not as the rule says", &[Verdict::Fail] as &[Verdict]),
        ("Not certain", &[Verdict::Inconclusive]),
        ("As the standard allows, but not as most do", &[Verdict::Variation]),
        ("As the rule says", &[Verdict::Pass]),
        ("Not asked", &[Verdict::NotSupported, Verdict::NeedsAgent, Verdict::NeedsRaw]),
    ] {
        let of = |finding: &&Finding| wanted.contains(&finding.verdict);
        let mut findings = report.findings.iter().filter(of).peekable();
        if findings.peek().is_some() {
            let _ = writeln!(text, "<h2>{heading}</h2>");
        }
        findings.for_each(|finding| check(&mut text, finding));
    }
    text + "</body>\n</html>\n"
}

fn summary(text: &mut String, report: &Report) {
    *text += "<h2>Summary</h2>\n<table>\n<tr><th>area</th>";
    for verdict in Verdict::ALL {
        let _ = write!(text, "<th class=\"{verdict}\">{verdict}</th>");
    }
    *text += "</tr>\n";
    let areas = report.areas().into_iter().chain([("all", report.count())]);
    for (area, count) in areas {
        let _ = write!(text, "<tr><td>{}</td>", escape(area));
        for verdict in Verdict::ALL {
            let _ = write!(text, "<td class=\"number\">{}</td>", count.of(verdict));
        }
        *text += "</tr>\n";
    }
    *text += "</table>\n";
}

fn check(text: &mut String, finding: &Finding) {
    let Finding { check, verdict, expected, seen, attempts, passed, evidence, .. } = finding;
    let open = if verdict.is_good() { "" } else { " open" };
    let _ = writeln!(
        text,
        "<details{open}><summary><span class=\"verdict {verdict}\">{verdict}</span> {}</summary>",
        escape(check.name)
    );
    let mut facts = vec![("sentence".to_owned(), check.says.to_owned())];
    match rules::find(check.rule) {
        Some(rule) => {
            facts.push((rule.id.clone(), rule.text.clone()));
            facts.extend(rule.source.clone().map(|source| ("source".to_owned(), source)));
        }
        None => facts.push(("rule".to_owned(), check.rule.to_owned())),
    }
    facts.extend(expected.clone().map(|expected| ("expected".to_owned(), expected)));
    if !seen.is_empty() {
        facts.push(("seen".to_owned(), seen.clone()));
    }
    if *attempts > 1 {
        facts.push(("attempts".to_owned(), format!("{attempts}, of which {passed} passed")));
    }
    list(text, &facts);
    let packets = evidence::lines(evidence);
    if !packets.is_empty() {
        let _ = writeln!(text, "<pre>{}</pre>", escape(&packets.join("\n")));
    }
    *text += "</details>\n";
}

fn list(text: &mut String, facts: &[(String, String)]) {
    *text += "<dl>\n";
    for (name, value) in facts {
        let _ = writeln!(text, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    *text += "</dl>\n";
}
