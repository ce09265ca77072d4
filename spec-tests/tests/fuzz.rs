//! The inputs that the fuzzers have found, played again: those that reach all code that was ever
//! reached, and those that once broke something.

use std::path::Path;
use urxe_spec_tests::fuzz::TARGETS;

/// Plays the corpus of a target.
fn play(name: &str) {
    let (_, run) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut inputs = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        // Shown if it fails.
        eprintln!("{}", path.display());
        run(&std::fs::read(&path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}

#[test]
fn packets_of_anybody_between_two_engines_harm_neither() {
    play("packets");
}

#[test]
fn rings_that_change_at_any_time_reach_no_memory_of_others() {
    play("rings");
}

#[test]
fn requests_in_any_order_with_any_descriptors_leave_the_daemon_serving() {
    play("requests");
}

#[test]
fn control_messages_are_one_value_or_none() {
    play("messages");
}

#[test]
fn management_datagrams_of_anybody_leave_nothing_behind() {
    play("mads");
}

#[test]
fn files_of_anybody_are_captures_or_an_error() {
    play("captures");
}

#[test]
fn every_target_has_a_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let mut targets = TARGETS.map(|(name, _)| name.to_owned());
    targets.sort();
    assert_eq!(found, targets);
}
