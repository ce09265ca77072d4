//! The conformance checks, asked of our own engine.

use std::time::Duration;
use urxe_conform::pace::Pace;
use urxe_conform::run::{Plan, play};
use urxe_conform::script::Waits;
use urxe_conform::verdict::Verdict;
use urxe_conform::{checks, rules};
use urxe_port::sim::Link;
use urxe_port::{Chance, Impairment};
use urxe_spec_tests::conform::laboratory;

#[test]
fn our_engine_passes_every_check() {
    let mut wrong = Vec::new();
    for check in checks::all() {
        let (mut link, mut device) = laboratory(1, Link::default());
        // This network loses nothing: once is enough.
        let plan = Plan { attempts: 1, ..Plan::default() };
        let finding = play(check, &mut link, &mut device, &plan);
        if !matches!(finding.verdict, Verdict::Pass | Verdict::Variation) {
            let expected = finding.expected.as_deref().unwrap_or("to be told");
            let (verdict, seen) = (finding.verdict, &finding.seen);
            wrong.push(format!("{}: {verdict}: expected {expected}; {seen}", check.name));
        }
    }
    assert!(wrong.is_empty(), "{} checks\n{}", wrong.len(), wrong.join("\n"));
}

/// As on a real device, where each check finds what those before it have left: a path that was
/// measured, a window that became small.
#[test]
fn our_engine_passes_all_checks_one_after_the_other() {
    let (mut link, mut device) = laboratory(1, Link::default());
    let mut wrong = Vec::new();
    for check in checks::all() {
        let finding = play(check, &mut link, &mut device, &Plan::default());
        if matches!(finding.verdict, Verdict::Fail | Verdict::Inconclusive) {
            let expected = finding.expected.as_deref().unwrap_or("to be told");
            let (verdict, seen) = (finding.verdict, &finding.seen);
            wrong.push(format!("{}: {verdict}: expected {expected}; {seen}", check.name));
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

/// Its answers come late; how late is measured first.
#[test]
fn our_engine_passes_every_check_on_a_slow_path() {
    let delay = Duration::from_millis(5)..=Duration::from_millis(6);
    let slow =
        Link { impairment: Impairment { delay, ..Impairment::default() }, ..Link::default() };
    let mut wrong = Vec::new();
    for check in checks::all() {
        let (mut link, mut device) = laboratory(1, slow.clone());
        let pace = Pace::measure(&mut link, &mut device, 1).expect("the engine answers");
        assert!(pace.is_slow(), "{pace:?}");
        let plan = Plan { waits: Waits::for_pace(pace), attempts: 1, ..Plan::default() };
        let finding = play(check, &mut link, &mut device, &plan);
        if !matches!(finding.verdict, Verdict::Pass | Verdict::Variation) {
            let (verdict, seen) = (finding.verdict, &finding.seen);
            wrong.push(format!("{}: {verdict}: {seen}", check.name));
        }
    }
    assert!(wrong.is_empty(), "{} checks\n{}", wrong.len(), wrong.join("\n"));
}

/// A hundred times while one packet in a hundred is lost.
#[test]
fn our_engine_passes_every_check_on_a_lossy_network() {
    let impairment = Impairment { drop: Chance::percent(1.0), ..Impairment::default() };
    let lossy = Link { impairment, ..Link::default() };
    let mut wrong = Vec::new();
    let rounds = (0..100).flat_map(|_| checks::all());
    for (seed, check) in (1..).zip(rounds) {
        let (mut link, mut device) = laboratory(seed, lossy.clone());
        let plan = Plan { seed, ..Plan::default() };
        let finding = play(check, &mut link, &mut device, &plan);
        if !matches!(finding.verdict, Verdict::Pass | Verdict::Variation) {
            let (verdict, seen) = (finding.verdict, &finding.seen);
            wrong.push(format!("{} with seed {seed}: {verdict}: {seen}", check.name));
        }
    }
    assert!(wrong.is_empty(), "{} verdicts\n{}", wrong.len(), wrong.join("\n"));
}
