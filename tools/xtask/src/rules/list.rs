//! One list of rules, and what makes it a good one.

use super::source::Sources;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use urxe_shell::Result;

/// The rules of one area: one file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Area {
    /// Its name in the report.
    pub(super) area: String,
    /// What the IDs of its rules begin with.
    prefix: String,
    /// In the order of their IDs.
    #[serde(rename(deserialize = "rule"))]
    pub(super) rules: Vec<Rule>,
}

/// One rule.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// Its name for ever: the area's prefix and three digits.
    pub(super) id: String,
    /// What is so, in our own words.
    pub(super) rule: String,
    /// Where it comes from: a section of the standard, a file of the kernel.
    source: Option<String>,
    /// The tests that break when the rule is broken, each as `file::test`.
    #[serde(default)]
    tests: Vec<String>,
    /// Why the rule is not kept.
    pub(super) excepted: Option<String>,
    /// How the kernel's rxe does otherwise, and why we do not.
    pub(super) differs: Option<String>,
}

/// What is wrong with the lists.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: String) {
        self.0.push(problem);
    }

    pub(super) fn into_result(self) -> Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(format!("{} problems\n{}", self.0.len(), self.0.join("\n"))),
        }
    }
}

/// Reads one list.
pub(super) fn parse(file: &str, text: &str, problems: &mut Problems) -> Option<Area> {
    match toml::from_str::<Area>(text) {
        Ok(area) => Some(area),
        Err(error) => {
            problems.add(format!("{file}: {error}"));
            None
        }
    }
}

/// Checks all lists, reading the files that hold the tests.
pub(super) fn check(
    areas: &[Area],
    read_source: impl Fn(&str) -> Option<String>,
    problems: &mut Problems,
) {
    let mut ids = HashSet::new();
    let mut texts = HashSet::new();
    let mut sources = Sources::new(read_source);
    for area in areas {
        let mut number_before = 0;
        for rule in &area.rules {
            let id = &rule.id;
            match number(id, &area.prefix) {
                None => problems
                    .add(format!("{id}: must be {0}- and three digits, as {0}-001", area.prefix)),
                Some(number) if number <= number_before => {
                    problems.add(format!("{id}: must stand in the order of the numbers"));
                }
                Some(number) => number_before = number,
            }
            if !ids.insert(id) {
                problems.add(format!("{id}: stands twice"));
            }
            if !texts.insert(&rule.rule) {
                problems.add(format!("{id}: another rule says the same"));
            }
            for problem in rule.problems() {
                problems.add(format!("{id}: {problem}"));
            }
            for test in &rule.tests {
                if let Err(problem) = sources.check(test) {
                    problems.add(format!("{id}: {test}: {problem}"));
                }
            }
        }
    }
}

/// The number of an ID, if it is one of this prefix.
fn number(id: &str, prefix: &str) -> Option<u32> {
    let digits = id.strip_prefix(prefix)?.strip_prefix('-')?;
    let well_formed = digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    well_formed.then(|| digits.parse().ok())?
}

impl Rule {
    /// What is wrong with it, its tests left aside.
    fn problems(&self) -> Vec<&'static str> {
        let mut problems = Vec::new();
        let Rule { id: _, rule, source, tests, excepted, differs } = self;
        if !is_sentence(rule) {
            problems.push("rule: must be a sentence that ends with a full stop");
        }
        if [excepted, differs].into_iter().flatten().any(|text| !is_sentence(text)) {
            problems.push("excepted, differs: must be sentences that end with a full stop");
        }
        if source.as_ref().is_some_and(|source| source.trim().is_empty()) {
            problems.push("source: must be left out where it is not known");
        }
        match (tests.is_empty(), excepted) {
            (true, None) => problems.push("has no test, and no reason why it is not kept"),
            (false, Some(_)) => problems.push("has tests, and a reason why it is not kept"),
            _ => {}
        }
        problems
    }
}

fn is_sentence(text: &str) -> bool {
    text.len() > 3 && text.trim() == text && text.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn runs() {}\n#[test]\n#[ignore = \"slow\"]\nfn rests() {}\n";

    /// What is found wrong with the rules of an area whose prefix is `A`.
    fn problems(rules: &str) -> String {
        let text = format!("area = 'a'\nprefix = 'A'\nrule = [{rules}]");
        let mut problems = Problems::default();
        let area = parse("a.toml", &text, &mut problems);
        let read = |file: &str| (file == "a.rs").then(|| SOURCE.to_owned());
        check(area.as_slice(), read, &mut problems);
        problems.0.join("\n")
    }

    #[track_caller]
    fn wrong(rules: &str, expected: &str) {
        let problems = problems(rules);
        assert!(problems.contains(expected), "{problems}");
    }

    #[test]
    fn a_rule_with_a_test_and_one_with_a_reason_are_right() {
        let rules = "{ id = 'A-001', rule = 'One.', source = 'IBTA 9', tests = ['a.rs::runs'] },
            { id = 'A-007', rule = 'Two.', excepted = 'Nobody asked.', differs = 'It does.' }";
        assert_eq!(problems(rules), "");
    }

    #[test]
    fn a_rule_without_a_test_is_wrong() {
        wrong("{ id = 'A-001', rule = 'One.' }", "A-001: has no test");
        wrong("{ id = 'A-001', rule = 'One.', tests = [] }", "A-001: has no test");
    }

    #[test]
    fn a_rule_is_not_tested_and_excepted_at_once() {
        let rule = "{ id = 'A-001', rule = 'One.', tests = ['a.rs::runs'], excepted = 'No.' }";
        wrong(rule, "A-001: has tests, and a reason");
    }

    #[test]
    fn a_test_that_does_not_exist_or_does_not_run_is_wrong() {
        let test = |test| format!("{{ id = 'A-001', rule = 'One.', tests = ['{test}'] }}");
        wrong(&test("a.rs::walks"), "a.rs::walks: the file has no such test");
        wrong(&test("b.rs::runs"), "b.rs::runs: there is no such file");
        wrong(&test("runs"), "runs: must be file::test");
        wrong(&test("a.rs::rests"), "a.rs::rests: the test is ignored");
    }

    #[test]
    fn an_id_is_unique_well_formed_and_in_order() {
        let rule = |id, text| format!("{{ id = '{id}', rule = '{text}', tests = ['a.rs::runs'] }}");
        for id in ["A-1", "A-0001", "B-001", "A-00x", "A001", "a-001", ""] {
            wrong(&rule(id, "One."), "must be A- and three digits");
        }
        let twice = [rule("A-001", "One."), rule("A-001", "Two.")].join(",");
        wrong(&twice, "A-001: stands twice");
        let backwards = [rule("A-002", "One."), rule("A-001", "Two.")].join(",");
        wrong(&backwards, "A-001: must stand in the order");
        let same = [rule("A-001", "One."), rule("A-002", "One.")].join(",");
        wrong(&same, "A-002: another rule says the same");
    }

    #[test]
    fn texts_are_sentences_and_an_unknown_source_is_left_out() {
        wrong("{ id = 'A-001', rule = 'one', tests = ['a.rs::runs'] }", "rule: must be a sentence");
        wrong("{ id = 'A-001', rule = 'One.', excepted = '' }", "excepted, differs: must be");
        let empty = "{ id = 'A-001', rule = 'One.', source = '', tests = ['a.rs::runs'] }";
        wrong(empty, "source: must be left out");
    }

    #[test]
    fn a_malformed_list_is_named_with_its_file() {
        wrong("{ id = 'A-001', rule = 'One.', test = ['a.rs::runs'] }", "a.toml: ");
        wrong("{ id = 7 }", "a.toml: ");
    }
}
