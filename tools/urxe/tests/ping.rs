//! `urxe ping`, from the outside: ways that are open, and ways that end somewhere.

mod common;

use common::{Daemon, Directory, Process, TIMEOUT, exit_code_unread, json, run, text, urxe};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The tool without any daemon that it could find by itself.
fn alone(line: &str, directory: &Directory) -> Command {
    let mut command = urxe(line);
    command.env("URXE_SOCKET", directory.path().join("none.sock"));
    command
}

/// What came of a way that is not open.
fn failure(command: Command) -> Value {
    let output = run(command);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["version"], &report["reached"]), (&1.into(), &false.into()));
    report
}

fn step<'a>(report: &'a Value, part: &str) -> &'a Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["part"] == part).unwrap()
}

/// The parts of a state.
fn parts<'a>(report: &'a Value, state: &str) -> Vec<&'a str> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps.filter(|step| step["state"] == state).map(|step| step["part"].as_str().unwrap()).collect()
}

/// Waits until a daemon was asked so often.
fn wait_for_questions(of: &Daemon, count: u64) {
    let deadline = Instant::now() + TIMEOUT;
    while of.stat()["counters"]["cm_refused_no_listener"].as_u64() < Some(count) {
        assert!(Instant::now() < deadline, "{count} questions never came");
        sleep(Duration::from_millis(10));
    }
}

/// A ping of one daemon by another that goes on asking, and has begun to.
fn asking(near: &Daemon, far: &Daemon) -> Process {
    let line = format!("ping {} -c 100000 -i 10ms --json", far.address);
    let ping = Process::start(near.urxe(&line));
    wait_for_questions(far, 1);
    ping
}

#[test]
fn a_device_answers_each_question_and_no_program_runs_there() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let report = json(near.urxe(&format!("ping {} -c 3 -i 1ms --json", far.address)));
    assert_eq!((&report["version"], &report["reached"]), (&1.into(), &true.into()));
    assert_eq!(parts(&report, "failed"), [""; 0], "{report}");
    // Not every user may send an ICMP echo.
    let is_echoed = step(&report, "path-mtu")["echoed"] == true;
    let unknown: &[&str] = if is_echoed { &[] } else { &["traffic-class"] };
    assert_eq!(parts(&report, "unknown"), unknown, "{report}");
    let class = step(&report, "traffic-class");
    assert!(!is_echoed || class["class_back"] == class["class_sent"], "{class}");
    let answers = step(&report, "answers");
    assert_eq!((&answers["asked"], &answers["answered"]), (&3.into(), &3.into()), "{answers}");
    assert!(answers["min_us"].as_f64().unwrap() > 0.0, "{answers}");
    assert!(answers["min_us"].as_f64() <= answers["max_us"].as_f64(), "{answers}");
    let device = step(&report, "device");
    assert_eq!(
        (&device["address"], &device["own"]),
        (&near.address.as_str().into(), &false.into())
    );
    assert_eq!(step(&report, "path-mtu")["path_mtu"], 4096);
    assert_eq!(far.stat()["counters"]["cm_refused_no_listener"], 3);
    assert_eq!(far.stat()["counters"]["drop_bad_icrc"], 0, "what is sent first is sound too");
    let first = &far.stat()["counters"]["drop_unknown_qp"];
    assert_eq!(*first, 2, "a short one and a long one");

    let told = text(&run(near.urxe(&format!("ping {} -c 1", far.address))).stdout);
    assert!(told.contains("ok       answers       1 of 1 questions answered"), "{told}");
    assert!(told.ends_with("path MTU 4096, 1 of 1 questions answered.\n"), "{told}");
}

#[test]
fn without_a_daemon_a_device_of_its_own_asks_and_nothing_is_left() {
    let (far, directory) = (Daemon::start(), Directory::new());
    let line = format!("ping {} -c 2 -i 1ms --json", far.address);
    let report = json(alone(&line, &directory));
    let device = step(&report, "device");
    assert_eq!((&device["own"], &report["reached"]), (&true.into(), &true.into()), "{report}");
    let socket = std::path::Path::new(device["socket"].as_str().unwrap());
    assert!(!socket.parent().unwrap().exists(), "{}", socket.display());
}

#[test]
fn a_device_of_its_own_leaves_nothing_where_nobody_reads_on_or_a_signal_ends_it() {
    let (far, directory) = (Daemon::start(), Directory::new());
    let ping = |line: &str| {
        let mut command = alone(&format!("ping {} {line}", far.address), &directory);
        command.env("TMPDIR", directory.path());
        command
    };
    let left = || std::fs::read_dir(directory.path()).unwrap().count();
    let mut unread = ping("-c 2 -i 1ms").stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    let mut stdout = unread.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    assert_eq!(unread.wait().unwrap().code(), Some(0));
    assert_eq!(left(), 0);
    let waiting = Process::start(ping("-c 2 -i 100s"));
    wait_for_questions(&far, 3);
    waiting.signal(Signal::TERM);
    assert!(waiting.output().status.success());
    assert_eq!(left(), 0);
}

#[test]
fn the_verdict_is_the_exit_code_also_where_nobody_reads_it() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    for json in ["", "--json"] {
        let ping = |host| near.urxe(&format!("ping {host} -c 1 {json}"));
        assert_eq!(exit_code_unread(ping("127.49.1.2")), Some(1), "{json}");
        assert_eq!(exit_code_unread(ping(&far.address)), Some(0), "{json}");
    }
}

#[test]
fn where_nothing_listens_it_ends_at_the_port() {
    let near = Daemon::start();
    // Of a network that no other test has devices on.
    let report = failure(near.urxe("ping 127.49.1.1 --json"));
    assert_eq!(parts(&report, "failed"), ["port"]);
    assert_eq!(parts(&report, "left-out").len(), 5, "{report}");
    let port = step(&report, "port");
    assert!(port["says"].as_str().unwrap().contains("nothing listens"), "{port}");
    assert!(port["advice"].as_str().unwrap().contains("urxe daemon --addr 127.49.1.1"), "{port}");
    assert!(report["summary"].as_str().unwrap().contains("ends at port"), "{report}");
}

#[test]
fn a_name_without_an_address_ends_it_at_once() {
    let directory = Directory::new();
    let report = failure(alone("ping nowhere.invalid --json", &directory));
    assert_eq!(parts(&report, "failed"), ["name"]);
    assert!(step(&report, "name")["says"].as_str().unwrap().contains("nowhere.invalid"));
    let told = text(&run(alone("ping nowhere.invalid", &directory)).stdout);
    assert!(told.contains("left out route, neighbour"), "{told}");
    assert!(told.ends_with("The way to nowhere.invalid ends at name.\n"), "{told}");
}

#[test]
fn silence_of_a_device_is_told_from_that_of_its_host() {
    let [near, far] = [Daemon::start(), Daemon::start_with("--fault drop=100%")];
    let report = failure(near.urxe(&format!("ping {} -c 2 -W 200ms --json", far.address)));
    assert_eq!(parts(&report, "failed"), ["answers"], "{report}");
    let answers = step(&report, "answers");
    assert_eq!((&answers["asked"], &answers["answered"]), (&2.into(), &0.into()));
    let says = answers["says"].as_str().unwrap();
    assert!(says.contains("nothing came back") && says.contains("host itself is there"), "{says}");
    assert!(answers["advice"].as_str().unwrap().contains("firewall"), "{answers}");
}

#[test]
fn answers_that_are_broken_on_the_way_are_named_so() {
    let [near, far] = [Daemon::start(), Daemon::start_with("--fault corrupt=100%,dir=tx")];
    let report = failure(near.urxe(&format!("ping {} -c 3 -W 300ms --json", far.address)));
    let says = step(&report, "answers")["says"].as_str().unwrap();
    assert!(says.contains("ICRC"), "{report}");
}

#[test]
fn lost_packets_are_a_warning_as_long_as_answers_come() {
    let [near, far] = [Daemon::start(), Daemon::start_with("--fault drop=50%,seed=3")];
    let output = run(near.urxe(&format!("ping {} -c 8 -i 1ms -W 2s --json", far.address)));
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(parts(&report, "warning"), ["answers"], "{report}");
    assert!(step(&report, "answers")["repeated"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_daemon_that_is_named_must_be_there_and_have_the_address() {
    let directory = Directory::new();
    let socket = directory.path().join("none.sock");
    let output = run(urxe(&format!("ping 127.0.0.1 --socket {}", socket.display())));
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("none.sock"), "{}", text(&output.stderr));
    let [near, far] = [Daemon::start(), Daemon::start()];
    let line = format!("ping {} --json --source 192.0.2.1", far.address);
    let report = failure(near.urxe(&line));
    let says = step(&report, "route")["says"].as_str().unwrap();
    assert!(says.contains("192.0.2.1"), "{report}");
}

#[test]
fn an_interrupt_ends_the_questions_and_what_came_of_them_is_said() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let ping = asking(&near, &far);
    ping.signal(Signal::INT);
    let output = ping.output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let answers = step(&report, "answers");
    assert!(answers["asked"].as_u64().unwrap() < 100_000, "{answers}");
    assert_eq!(answers["asked"], answers["answered"], "{answers}");
}

#[test]
fn an_interrupt_ends_it_also_where_the_daemon_of_this_machine_has_been_stopped() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let ping = asking(&near, &far);
    near.process.signal(Signal::STOP);
    ping.signal(Signal::INT);
    let output = ping.output();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let says = step(&report, "answers")["says"].as_str().unwrap();
    assert!(says.contains("says nothing"), "{report}");
}
