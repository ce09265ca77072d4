//! The engine keeps the bounds of the scenarios of [`urxe_spec_tests::scale`]. What they measure
//! is shown by `cargo xtask scale`.

use urxe_spec_tests::scale::{Extent, SCENARIOS};

/// Runs the scenario of this name.
fn check(name: &str) {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let mut missed = Vec::new();
    let mut take = |row: urxe_spec_tests::scale::Row| missed.extend(row.missed());
    scenario.expect("there is such a scenario").run(Extent::Short, &mut take);
    assert!(missed.is_empty(), "{name}: {} figures\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn losses_and_reordering_cost_no_more_than_their_bounds() {
    check("loss");
}

#[test]
fn a_small_message_that_is_lost_arrives_within_a_few_round_trips() {
    check("latency");
}

#[test]
fn one_qp_fills_a_long_path_without_needless_probes() {
    check("long-paths");
}

#[test]
fn ten_thousand_qps_that_start_together_all_get_through() {
    check("many-qps");
}

#[test]
fn many_machines_share_one_line_fairly_and_use_it() {
    check("incast");
}

#[test]
fn latecomers_get_their_share() {
    check("latecomers");
}

#[test]
fn a_machine_that_stalls_for_a_moment_costs_that_moment() {
    check("stalls");
}

#[test]
fn flows_of_other_kinds_get_their_share_and_leave_ours() {
    check("beside");
}

#[test]
fn short_messages_do_not_wait_behind_the_long_ones_of_another_program() {
    check("neighbours");
}

#[test]
fn every_scenario_is_held_to_its_bounds_here() {
    let source = include_str!("scale.rs");
    for scenario in SCENARIOS {
        let call = format!("check(\"{}\")", scenario.name);
        assert!(source.contains(&call), "{} is not checked", scenario.name);
    }
}
