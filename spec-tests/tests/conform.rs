//! The conformance checks, asked of our own engine.

use urxe_conform::run::{Plan, play};
use urxe_conform::verdict::Verdict;
use urxe_conform::{checks, rules};
use urxe_port::sim::Link;
use urxe_spec_tests::conform::laboratory;

#[test]
fn our_engine_passes_every_check() {
    let mut wrong = Vec::new();
    for check in checks::all() {
        let (mut link, mut device) = laboratory(1, Link::default());
        let finding = play(check, &mut link, &mut device, &Plan::default());
        if finding.verdict != Verdict::Pass || finding.attempts > 1 {
            let Some(expected) = finding.expected else {
                panic!("{}: {}", check.name, finding.seen)
            };
            wrong.push(format!("{}: expected {expected}; {}", check.name, finding.seen));
        }
    }
    assert!(wrong.is_empty(), "{} checks\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_check_has_a_name_of_its_own_and_a_rule_that_exists() {
    let mut names = std::collections::BTreeSet::new();
    for check in checks::all() {
        assert!(names.insert(check.name), "{}: two checks", check.name);
        assert!(rules::find(check.rule).is_some(), "{}: no rule {}", check.name, check.rule);
    }
}
