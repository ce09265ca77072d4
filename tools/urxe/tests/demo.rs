//! `urxe demo`, from the outside.

mod common;

use common::{Process, documented, run, text, urxe};
use rustix::process::Signal;
use serde_json::Value;
use std::net::UdpSocket;
use std::process::Output;
use std::sync::{Mutex, PoisonError};
use urxe_shell::testing::could_not_run;

const OPERATIONS: [&str; 18] = [
    "send",
    "send_with_imm",
    "write",
    "write_with_imm",
    "read",
    "compare_and_swap",
    "fetch_and_add",
    "atomic_write",
    "write_and_flush",
    "write_through_window_1",
    "write_through_window_2b",
    "send_with_invalidate",
    "send_to_srq",
    "uc_send",
    "uc_write_with_imm",
    "ud_send",
    "ud_send_with_imm",
    "ud_multicast",
];

/// Runs a demo to its end. One at a time: each takes all cores there are.
fn demo(arguments: &str) -> Output {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(urxe(&format!("demo --json {arguments}")))
}

/// What a demo that succeeded reports.
fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every operation is there, in several sizes, with figures.
fn check(report: &Value) {
    assert_eq!(report["verified"], true, "{report}");
    let operations = report["operations"].as_array().unwrap();
    for name in OPERATIONS {
        let sizes = operations.iter().filter(|row| row["op"] == name).map(|row| {
            let lost = row["lost"].as_u64().unwrap();
            assert!(row["iterations"].as_u64().unwrap() > lost, "nothing arrived: {row}");
            assert!(lost == 0 || name.starts_with('u'), "{row}");
            assert!(row["messages_per_s"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["bandwidth_gbit_s"].is_number(), "{row}");
            assert!(row["latency_us"]["median"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["latency_us"]["p99"].as_f64().unwrap() > 0.0, "{row}");
            row["size"].as_u64().unwrap()
        });
        let sizes: Vec<u64> = sizes.collect();
        match name {
            "compare_and_swap" | "fetch_and_add" | "atomic_write" => {
                assert_eq!(sizes, [8], "{name}");
            }
            "ud_send" | "ud_send_with_imm" | "ud_multicast" => {
                let mtu = report["daemons"][0]["active_mtu"].as_u64().unwrap();
                assert_eq!(sizes, [64, mtu], "{name}");
            }
            name if OPERATIONS[8..].contains(&name) => {
                assert_eq!(sizes, [64, 64 << 10], "{name}");
            }
            _ => assert!(sizes.contains(&1) && sizes.contains(&(1 << 20)), "{name}: {sizes:?}"),
        }
    }
}

/// Nothing of a demo is left: neither its directory nor its daemons.
fn check_nothing_is_left(report: &Value) {
    for daemon in report["daemons"].as_array().unwrap() {
        let socket = std::path::Path::new(daemon["socket"].as_str().unwrap());
        assert!(!socket.parent().unwrap().exists(), "{socket:?}");
        assert!(!std::path::Path::new(&format!("/proc/{}", daemon["pid"])).exists());
    }
}

#[test]
fn every_operation_works_and_nothing_is_left_behind() {
    let report = report(&demo(""));
    check(&report);
    documented::check("demo", &[&report]);
    assert_eq!(report["daemons"].as_array().unwrap().len(), 2);
    assert_ne!(report["daemons"][0]["address"], report["daemons"][1]["address"]);
    assert_eq!(report["lost_packets"], 0);
    check_nothing_is_left(&report);
}

#[test]
fn a_network_that_loses_packets_is_repaired_and_the_loss_counted() {
    let report = report(&demo("--fault drop=1%"));
    check(&report);
    assert!(report["lost_packets"].as_u64().unwrap() > 0, "{report}");
    assert!(report["resent_packets"].as_u64().unwrap() > 0, "{report}");
    // Messages of unreliable transports stay lost, and are counted.
    assert!(report["figures"]["lost"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn ipv6_works_where_there_is_any() {
    if UdpSocket::bind("[::1]:0").is_err() {
        let output = demo("--ipv6");
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(error.contains("::1") && error.contains("does not have"), "{error}");
        return could_not_run("this machine has no ::1");
    }
    let output = demo("--ipv6");
    let error = text(&output.stderr);
    if error.contains("4791 is taken on ::1") {
        return could_not_run("port 4791 of ::1 is taken");
    }
    let report = report(&output);
    check(&report);
    assert_eq!(report["daemons"][0]["address"], "::1");
    assert!(report["remark"].as_str().unwrap().contains("one daemon serves both"));
}

#[test]
fn an_invalid_fault_is_named_and_leaves_nothing_behind() {
    let directory = common::Directory::new();
    let mut command = urxe("demo --fault drop=often");
    command.env("TMPDIR", directory.path());
    let output = run(command);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("drop=often"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_demo_cleans_up() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let directory = common::Directory::new();
        let mut command = urxe("demo");
        command.env("TMPDIR", directory.path());
        let mut demo = Process::start(command);
        let line = demo.wait_for("started daemon");
        demo.wait_for("connected");
        demo.signal(signal);
        assert_eq!(demo.output().status.code(), Some(code));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        // "started daemon <pid>: ..."
        let pid = line.split([' ', ':']).nth(2).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{line}");
    }
}

#[test]
fn daemons_of_a_killed_demo_end() {
    let directory = common::Directory::new();
    let mut command = urxe("demo");
    command.env("TMPDIR", directory.path());
    let mut demo = Process::start(command);
    let line = demo.wait_for("started daemon");
    demo.kill();
    let pid = line.split([' ', ':']).nth(2).unwrap().to_owned();
    let stat = format!("/proc/{pid}/stat");
    let deadline = std::time::Instant::now() + common::TIMEOUT;
    // Its new parent may take its time to reap it.
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(std::time::Instant::now() < deadline, "daemon {pid} keeps running");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
