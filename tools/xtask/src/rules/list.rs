//! One list of rules, and what makes it a good one.

use super::comments::{self, Mention};
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
    /// Rules that have no place in the code yet: the list may only become shorter.
    #[serde(default, skip_serializing)]
    unplaced: Vec<String>,
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
    /// Why no line of the code decides it: it is a property of the whole.
    pub(super) no_place: Option<String>,
    /// Where the code decides it, each as `file:line`; found there, not in the list.
    #[serde(skip_deserializing)]
    pub(super) places: Vec<String>,
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

/// Gives every rule its places in a file, and says which IDs there are none.
pub(super) fn place(areas: &mut [Area], file: &str, text: &str, problems: &mut Problems) {
    let is_prefix = |prefix: &str| areas.iter().any(|area| area.prefix == prefix);
    let (places, malformed) = comments::mentions(text, is_prefix);
    for line in malformed {
        problems.add(format!("{file}:{line}: a comment with a rule must be `// ID, ID: reason`"));
    }
    for Mention { id, line } in places {
        let mut rules = areas.iter_mut().flat_map(|area| &mut area.rules);
        match rules.find(|rule| rule.id == id) {
            Some(rule) => rule.places.push(format!("{file}:{line}")),
            None => problems.add(format!("{file}:{line}: {id}: there is no such rule")),
        }
    }
}

/// Checks that every rule that is kept has a place, or a reason why it has none.
pub(super) fn check_places(areas: &[Area], problems: &mut Problems) {
    for Area { unplaced, rules, .. } in areas {
        for rule in rules {
            let is_unplaced = unplaced.contains(&rule.id);
            let needs_none = rule.no_place.is_some() || rule.excepted.is_some();
            let problem = match (rule.places.first(), is_unplaced) {
                (Some(place), true) => format!("decided at {place}: must leave `unplaced`"),
                (Some(place), _) if rule.no_place.is_some() => {
                    format!("no_place: must go, it is decided at {place}")
                }
                (None, true) if needs_none => "needs no place: must leave `unplaced`".to_owned(),
                (None, false) if !needs_none => {
                    "no line of src begins a comment with it, and no_place does not say why".into()
                }
                _ => continue,
            };
            problems.add(format!("{}: {problem}", rule.id));
        }
        let is_rule = |id: &&String| rules.iter().any(|rule| rule.id == **id);
        for id in unplaced.iter().filter(|id| !is_rule(id)) {
            problems.add(format!("unplaced: {id}: there is no such rule"));
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
        let Rule { id: _, rule, source, tests, excepted, differs, no_place, places: _ } = self;
        if !is_sentence(rule) {
            problems.push("rule: must be a sentence that ends with a full stop");
        }
        if [excepted, differs, no_place].into_iter().flatten().any(|text| !is_sentence(text)) {
            problems
                .push("excepted, differs, no_place: must be sentences that end with a full stop");
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
        wrong(
            "{ id = 'A-001', rule = 'One.', excepted = '' }",
            "excepted, differs, no_place: must be",
        );
        let empty = "{ id = 'A-001', rule = 'One.', source = '', tests = ['a.rs::runs'] }";
        wrong(empty, "source: must be left out");
    }

    /// What is found wrong with the places of rules in `code`.
    fn place_problems(fields: &str, unplaced: &str, code: &str) -> String {
        let rule = "{ id = 'A-001', rule = 'One.', tests = ['a.rs::runs'] }";
        let other = format!("{{ id = 'A-002', rule = 'Two.', tests = ['a.rs::runs'] {fields} }}");
        let text =
            format!("area = 'a'\nprefix = 'A'\nunplaced = [{unplaced}]\nrule = [{rule}, {other}]");
        let mut problems = Problems::default();
        let mut areas: Vec<_> = parse("a.toml", &text, &mut problems).into_iter().collect();
        place(&mut areas, "src/a.rs", code, &mut problems);
        check_places(&areas, &mut problems);
        problems.0.join("\n")
    }

    #[test]
    fn a_rule_has_a_place_or_a_reason_or_stands_in_the_list_of_those_without() {
        let both = "// A-001\n// A-002: so.\n";
        assert_eq!(place_problems("", "", both), "");
        assert_eq!(place_problems(", no_place = 'All of it.'", "", "// A-001"), "");
        assert_eq!(place_problems("", "'A-002'", "// A-001"), "");
        assert!(place_problems("", "", "// A-001").starts_with("A-002: no line of src"));
        let left = place_problems("", "'A-002'", both);
        assert_eq!(left, "A-002: decided at src/a.rs:2: must leave `unplaced`");
        let reason = place_problems(", no_place = 'All of it.'", "", both);
        assert_eq!(reason, "A-002: no_place: must go, it is decided at src/a.rs:2");
    }

    #[test]
    fn an_id_in_the_code_that_is_no_rule_is_wrong() {
        let problems = place_problems("", "'A-001', 'A-002', 'A-003'", "\n// A-004: no.\n");
        assert!(problems.contains("src/a.rs:2: A-004: there is no such rule"), "{problems}");
        assert!(problems.contains("unplaced: A-003: there is no such rule"), "{problems}");
    }

    #[test]
    fn a_malformed_list_is_named_with_its_file() {
        wrong("{ id = 'A-001', rule = 'One.', test = ['a.rs::runs'] }", "a.toml: ");
        wrong("{ id = 7 }", "a.toml: ");
    }
}
