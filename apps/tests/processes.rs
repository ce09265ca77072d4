//! Each application as a person runs it: several processes on loopback addresses, on a network that
//! is sound and on one that loses packets.

use std::process::Command;

/// Runs the program and returns what it says in JSON.
fn run(arguments: &str) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    let output = command.args(arguments.split(' ')).arg("--json").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_object_is_intact_at_all_nodes_by_each_algorithm() {
    for algorithm in ["sequential-send", "chain", "binomial-tree", "binomial-pipeline"] {
        let ran =
            run(&format!("rdmc --nodes 5 --blocks 40 --block-size 4093 --algorithm {algorithm}"));
        assert_eq!(ran["intact"], true, "{ran}");
    }
}

#[test]
fn an_object_is_intact_when_packets_are_lost() {
    let ran = run("rdmc --nodes 6 --blocks 300 --block-size 10000 --fault drop=0.5%");
    assert_eq!((&ran["intact"], &ran["steps"]), (&true.into(), &302.into()), "{ran}");
}

#[test]
fn small_messages_come_in_order_once_and_whole() {
    for arguments in ["--nodes 5", "--nodes 3 --size 1000 --slots 3 --fault drop=0.5%"] {
        let ran = run(&format!("smc --messages 2000 {arguments}"));
        assert_eq!(ran["intact"], true, "{ran}");
    }
}

#[test]
fn all_nodes_commit_the_same_transactions() {
    for arguments in ["--nodes 5", "--nodes 3 --fault drop=0.5%"] {
        let ran = run(&format!("commit --transactions 300 {arguments}"));
        assert_eq!(ran["agreed"], true, "{ran}");
        assert!(ran["committed"].as_u64() > Some(0) && ran["aborted"].as_u64() > Some(0), "{ran}");
    }
}

#[test]
fn all_nodes_deliver_the_same_when_one_of_five_is_killed() {
    for arguments in ["--kill 0", "--kill 3 --fault drop=0.5%"] {
        let ran = run(&format!("atomic --nodes 5 --messages 500 {arguments}"));
        assert_eq!(ran["agreed"], true, "{ran}");
        assert_eq!(ran["members"].as_array().map(Vec::len), Some(4), "{ran}");
    }
}

#[test]
fn no_client_of_the_store_gets_a_value_that_nobody_put() {
    for arguments in ["--mix a --keys 3", "--mix b --fault drop=0.5%", "--mix c --get rpc"] {
        let ran = run(&format!("kv --nodes 4 --operations 1000 {arguments}"));
        assert_eq!((&ran["wrong"], &ran["operations"]), (&0.into(), &3000.into()), "{ran}");
    }
}

#[test]
fn the_sequencer_gives_out_each_number_once_by_each_way_and_with_each_trick() {
    let tricks = ["none", "inline", "unsignaled", "batch", "empty", "qps"];
    let ways = tricks.map(|tricks| format!("--by send-recv --tricks {tricks}"));
    let others = ["--by tcp", "--by fetch-add", "--by fetch-add --tricks qps"];
    let lossy = ["--by send-recv --tricks qps", "--by fetch-add"]
        .map(|way| format!("{way} --fault drop=0.5%"));
    for way in others.map(str::to_owned).iter().chain(&ways).chain(&lossy) {
        let ran = run(&format!("sequencer --nodes 4 --requests 1000 {way}"));
        assert_eq!(ran["exact"], true, "{way}: {ran}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for arguments in ["rdmc --nodes 1", "rdmc --fault drop=1% --socket /none", "rdmc --blocks 0"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn a_node_that_fails_ends_the_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    let output = command.args(["rdmc", "--socket", "/nothing/is/here"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("node 0 failed"), "{output:?}");
}
