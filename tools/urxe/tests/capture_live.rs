//! `urxe capture` of a daemon that runs, from the outside.

mod common;

use common::{Daemon, Directory, Process, documented, perf_server, run, text, urxe};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use urxe_shell::testing::could_not_run;

/// `urxe capture` of a daemon, which has begun.
fn capturing(daemon: &Daemon, options: &str) -> Process {
    let mut process = Process::start(daemon.urxe(&format!("capture {options}")));
    process.wait_for("Ctrl-C ends it");
    process
}

/// Ten WRITEs from one daemon to another.
fn write(from: &Daemon, to: &Daemon) {
    let (_server, client) = perf_server(to, "write-bw");
    let client = run(from.urxe(&format!("{client} --size 64 --iters 10")));
    assert!(client.status.success(), "{}", text(&client.stderr));
}

#[test]
fn lines_say_what_became_of_packets() {
    let sender = Daemon::start();
    let receiver = Daemon::start_with("--fault corrupt:write:2,dup:write:4,dir=rx");
    let capture = capturing(&receiver, "");
    let only_bad = capturing(&receiver, "--opcode write --count 1");
    write(&sender, &receiver);
    let receiver_stat = receiver.stat();
    capture.signal(Signal::INT);
    let output = capture.output();
    assert!(output.status.success());
    let lines = text(&output.stdout);
    let with = |words: &[&str]| {
        lines.lines().filter(|line| words.iter().all(|word| line.contains(word))).count() as u64
    };
    // TAP-003
    let counted = |name: &str| receiver_stat["counters"][name].as_u64().unwrap_or_default();
    assert_eq!(with(&["urxe0 recv", "RC WRITE ONLY", "dropped (drop_bad_icrc)"]), 1, "{lines}");
    assert_eq!(counted("drop_bad_icrc"), 1, "{receiver_stat}");
    assert_eq!(with(&[": duplicate"]), counted("duplicate_requests"), "{lines}");
    assert!(with(&[": duplicate"]) >= 1, "{lines}");
    assert_eq!(with(&["out of order"]), counted("out_of_sequence"), "{lines}");
    assert!(with(&["urxe0 sent", "RC ACK"]) > 0, "{lines}");
    assert!(text(&output.stderr).contains("0 not captured"), "{}", text(&output.stderr));
    let first = only_bad.output();
    assert!(first.status.success());
    assert_eq!(text(&first.stdout).lines().count(), 1);
    assert!(text(&first.stdout).contains("RC WRITE"), "{}", text(&first.stdout));
}

#[test]
fn a_file_can_be_read_while_it_grows() {
    let (sender, receiver) = (Daemon::start(), Daemon::start());
    let directory = Directory::new();
    let file = directory.path().join("live.pcapng");
    let capture = capturing(&receiver, &format!("-w {}", file.display()));
    let lines = || {
        let output = run(urxe(&format!("capture -r {}", file.display())));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().filter(|line| line.contains("RC WRITE ONLY")).count()
    };
    let writes_are_shown = |count: usize| {
        let since = std::time::Instant::now();
        while lines() < count {
            assert!(since.elapsed() < common::TIMEOUT, "{} of {count}", lines());
        }
        assert_eq!(lines(), count);
    };
    write(&sender, &receiver);
    let first = {
        let received = receiver.stat()["counters"]["received_messages"].as_u64().unwrap() as usize;
        writes_are_shown(received);
        received
    };
    // Those who know it look at it as well, with what is said of each packet.
    match Command::new("tshark").arg("-v").stdout(Stdio::null()).status() {
        Ok(_) => {
            let mut tshark = Command::new("tshark");
            tshark.arg("-r").arg(&file).args(["-T", "fields", "-e", "frame.comment"]);
            let output = tshark.output().unwrap();
            let comments = text(&output.stdout);
            let accepted = comments.lines().filter(|line| line.contains(": accepted")).count();
            assert!(accepted >= first, "{comments}{}", text(&output.stderr));
        }
        Err(error) => could_not_run(&format!("tshark: {error}")),
    }
    write(&sender, &receiver);
    writes_are_shown(receiver.stat()["counters"]["received_messages"].as_u64().unwrap() as usize);
    capture.signal(Signal::TERM);
    assert!(capture.output().status.success());
}

#[test]
fn a_device_or_daemon_that_is_not_there_is_refused_by_name() {
    let daemon = Daemon::start();
    let output = run(daemon.urxe("capture --device mlx5_0"));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("mlx5_0"), "{}", text(&output.stderr));
    let none = run(urxe("capture --socket /nonexistent/urxed.sock"));
    assert_eq!(none.status.code(), Some(3));
    let output = run(daemon.urxe("capture --seconds 1 --qp 0x11"));
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn packets_that_are_sent_again_are_told_of_with_what_made_it() {
    let sender = Daemon::start_with("--fault drop:write:3,dir=tx");
    let receiver = Daemon::start();
    let capture = capturing(&sender, "--json");
    write(&sender, &receiver);
    let stat = sender.stat();
    capture.signal(Signal::INT);
    let output = capture.output();
    assert!(output.status.success());
    let objects: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let objects: Vec<&Value> = objects.iter().collect();
    documented::check("capture", &objects);
    let sent_again = objects.iter().filter(|packet| packet["why"] == "again");
    // TAP-007
    let again: Vec<&&Value> = sent_again.collect();
    let counted = |name: &str| stat["counters"][name].as_u64().unwrap_or_default();
    assert_eq!(again.len() as u64, counted("retransmitted_packets"), "{stat}");
    assert!(!again.is_empty());
    for packet in again {
        assert_ne!(counted(packet["after"].as_str().unwrap()), 0, "{packet}: {stat}");
        let is_first = |other: &&&Value| other["psn"] == packet["psn"] && other["why"] == "new";
        assert_eq!(objects.iter().filter(is_first).count(), 1, "{packet}");
    }
    let acks = objects.iter().filter(|packet| packet["opcode"] == "RC ACK");
    assert!(acks.clone().all(|ack| ack["outcome"].is_string() && ack["msn"].is_number()));
    assert!(acks.count() > 0);
}

#[test]
fn an_interrupt_ends_it_also_where_the_daemon_has_been_stopped() {
    let daemon = Daemon::start();
    let capture = capturing(&daemon, "");
    daemon.process.signal(Signal::STOP);
    // Until then it has asked for further streams.
    sleep(Duration::from_millis(500));
    capture.signal(Signal::INT);
    let said = text(&capture.output().stderr);
    assert!(said.contains("0 packets, 0 not captured"), "{said}");
}

#[test]
fn all_that_was_captured_before_the_end_is_shown() {
    let (sender, receiver, directory) = (Daemon::start(), Daemon::start(), Directory::new());
    let file = directory.path().join("live.pcapng");
    let capture = capturing(&receiver, &format!("-w {}", file.display()));
    // It reads nothing meanwhile: more waits in the pipe than one read takes.
    capture.signal(Signal::STOP);
    let (_server, client) = perf_server(&receiver, "write-bw");
    let client = run(sender.urxe(&format!("{client} --size 4K --iters 100")));
    assert!(client.status.success(), "{}", text(&client.stderr));
    let received = receiver.stat()["counters"]["received_messages"].as_u64().unwrap() as usize;
    assert!(received * 4096 > 256 * 1024, "{received}");
    capture.signal(Signal::INT);
    capture.signal(Signal::CONT);
    let output = capture.output();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&run(urxe(&format!("capture -r {}", file.display()))).stdout);
    let shown = shown.lines().filter(|line| line.contains("RC WRITE ONLY")).count();
    // Those that were repeated are shown as often.
    assert!(shown >= received, "{shown} of {received}: {}", text(&output.stderr));
}
