//! Each application as a person runs it: several processes on loopback addresses, on a network that
//! is sound and on one that loses packets.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use urxe_shell::testing::could_not_run;

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
    let ran = run("sequencer --nodes 4 --requests 300 --table");
    let ran = ran.as_array().unwrap();
    assert!(ran.iter().all(|ran| ran["exact"] == true), "{ran:?}");
    // Sockets, SENDs, WRITEs, datagrams and atomics, each with the tricks that it knows.
    assert_eq!(ran.len(), 2 + 6 + 5 + 4 + 3, "{ran:?}");
}

#[test]
fn the_sequencer_gives_out_each_number_once_when_packets_are_lost() {
    let ways = ["send-recv --tricks qps", "write --tricks qps", "ud --tricks batch", "fetch-add"];
    for way in ways {
        let ran = run(&format!("sequencer --requests 1000 --fault drop=0.5% --by {way}"));
        assert_eq!(ran["exact"], true, "{way}: {ran}");
    }
}

#[test]
fn answers_of_each_length_come_whole_by_each_way() {
    let ran = run("lecture --max 40000 --millis 1 --table");
    let ran = ran.as_array().unwrap();
    assert_eq!(ran.len(), 4, "{ran:?}");
    for ran in ran {
        assert_eq!(ran["points"].as_array().map(Vec::len), Some(7), "{ran}");
    }
    run("lecture --max 40000 --millis 1 --by write --fault drop=0.5%");
}

#[test]
fn nodes_run_their_own_nics() {
    for arguments in ["lecture --max 5000 --millis 1", "smc --messages 500", "kv --operations 100"]
    {
        run(&format!("{arguments} --in-process"));
    }
}

#[test]
fn a_table_is_drawn_as_a_picture() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("kv.svg");
    let ran = run(&format!("kv --nodes 3 --operations 200 --svg {}", path.display()));
    let ran = ran.as_array().unwrap();
    assert!(ran.len() == 6 && ran.iter().all(|ran| ran["wrong"] == 0), "{ran:?}");
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("GET by READ"), "{svg}");
}

#[test]
fn nodes_in_namespaces_of_their_own_meet_and_leave_nothing_behind() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    let arguments = "atomic --nodes 4 --messages 200 --kill 1 --namespaces --json";
    command.args(arguments.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let first = format!("ua{}n0", child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("making a network of namespaces") || said.contains("iproute2") {
        return could_not_run(&format!("there can be no namespaces here: {said}"));
    }
    let ran: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(ran["agreed"], true, "{ran}");
    for left in [format!("/run/netns/{first}"), format!("/sys/class/net/{first}")] {
        assert!(!std::path::Path::new(&left).exists(), "{left}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for arguments in [
        "rdmc --nodes 1",
        "rdmc --fault drop=1% --socket /none",
        "rdmc --blocks 0",
        "rdmc --table --here 1",
        "lecture --nodes 3",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn a_signal_ends_the_run_and_leaves_nothing_behind() {
    let directory = tempfile::TempDir::new().unwrap();
    let left = || std::fs::read_dir(directory.path()).unwrap().count();
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    command.args(["kv", "--nodes", "3", "--operations", "100000000"]);
    command.env("TMPDIR", directory.path()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    while left() == 0 {
        assert!(Instant::now() < deadline, "no daemon was started");
        std::thread::sleep(Duration::from_millis(10));
    }
    let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("ended by a signal"), "{output:?}");
    assert_eq!(left(), 0);
}

#[test]
fn a_reader_that_reads_no_further_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    command.args(["smc", "--nodes", "2", "--messages", "10"]).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_node_that_fails_ends_the_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-apps"));
    let output = command.args(["rdmc", "--socket", "/nothing/is/here"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("node 0 failed"), "{output:?}");
}
