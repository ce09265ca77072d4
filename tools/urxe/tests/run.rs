//! `urxe run`, from the outside. It runs no verbs programs here, since the shim has its own tests;
//! any library serves as the shim.

mod common;

use common::{Daemon, Directory, Process, TIMEOUT, documented, library, run, text, urxe};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// An address that other tests do not use.
fn address(last: u8) -> String {
    format!("127.51.{}.{last}", std::process::id() % 250)
}

/// A directory of its own for the sockets of daemons.
struct Home(Directory);

impl Home {
    fn new() -> Home {
        Home(Directory::new())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("urxed.sock")
    }

    /// `urxe run` there.
    fn run(&self, line: &str, program: &[&str]) -> Command {
        let mut command = urxe(&format!("run {line}"));
        command.arg("--").args(program).env("URXE_SHIM", library());
        command.env("URXE_SOCKET", self.socket());
        command
    }

    /// The daemons with sockets in this directory. What one has just forked, which has its command
    /// line until it executes another program, is none.
    fn daemons(&self) -> Vec<u32> {
        let place = self.0.path().to_str().unwrap().to_owned();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let entry = entry.unwrap();
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = text(&words);
            let is_ours = words.contains("\0daemon\0") && words.contains(&place);
            let pid = entry.file_name().to_str()?.parse().ok().filter(|_| is_ours)?;
            Some((pid, parent(pid)?))
        });
        let processes: Vec<(u32, u32)> = processes.collect();
        let is_child = |parent| processes.iter().any(|&(pid, _)| pid == parent);
        processes.iter().filter(|&&(_, parent)| !is_child(parent)).map(|&(pid, _)| pid).collect()
    }
}

/// The parent of a process that is there.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

impl Drop for Home {
    fn drop(&mut self) {
        for pid in self.daemons() {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

fn assert_failed(output: &Output, code: i32, parts: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.starts_with("urxe run: ") && said.lines().count() == 1, "{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn the_program_gets_library_and_daemon_and_its_exit_code_is_kept() {
    let (daemon, home) = (Daemon::start(), Home::new());
    let script = "echo $LD_PRELOAD; echo $URXE_SOCKET; exit 7";
    let line = format!("--daemon {}", daemon.socket.display());
    let output = run(home.run(&line, &["sh", "-c", script]));
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let library = library().canonicalize().unwrap();
    let expected = format!("{}\n{}\n", library.display(), daemon.socket.display());
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(text(&output.stderr), "");
    assert!(home.daemons().is_empty());
}

#[test]
fn signals_reach_the_program() {
    let (daemon, home) = (Daemon::start(), Home::new());
    let line = format!("--daemon {}", daemon.socket.display());
    let script = "trap 'exit 9' TERM; echo ready >&2; while :; do sleep 0.01; done";
    let mut program = Process::start(home.run(&line, &["sh", "-c", script]));
    program.wait_for("ready");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.output().status.code(), Some(9));
}

#[test]
fn one_of_many_starts_a_daemon_which_ends_by_itself() {
    let home = Home::new();
    let line = format!("--addr {}", address(1));
    let programs: Vec<Process> =
        (0..4).map(|_| Process::start(home.run(&line, &["echo"]))).collect();
    let outputs: Vec<Output> = programs.into_iter().map(Process::output).collect();
    let said: String = outputs.iter().map(|output| text(&output.stderr)).collect();
    assert!(outputs.iter().all(|output| output.stdout == b"\n"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("started a daemon") && said.contains(&address(1)), "{said}");
    let [daemon] = home.daemons()[..] else { panic!("{:?}", home.daemons()) };
    let directory = std::fs::read_link(format!("/proc/{daemon}/cwd")).unwrap();
    assert_eq!(directory, PathBuf::from("/"));
    let deadline = Instant::now() + TIMEOUT;
    while !home.daemons().is_empty() {
        assert!(Instant::now() < deadline, "the daemon does not end");
        sleep(Duration::from_millis(100));
    }
    assert!(!home.0.path().join(format!("urxed-{}.sock", address(1))).exists());
}

#[test]
fn a_daemon_stays_as_long_as_a_program_that_has_not_opened_a_device_yet() {
    let home = Home::new();
    let line = format!("--addr {}", address(2));
    let script = "echo ready >&2; sleep 14; exit 3";
    let mut program = Process::start(home.run(&line, &["sh", "-c", script]));
    program.wait_for("ready");
    // The program has no children to wait for.
    let [daemon] = home.daemons()[..] else { panic!("{:?}", home.daemons()) };
    assert_ne!(parent(daemon).unwrap(), program.id());
    // Longer than an unused daemon stays.
    sleep(Duration::from_secs(12));
    assert_eq!(home.daemons(), [daemon]);
    assert_eq!(program.output().status.code(), Some(3));
}

#[test]
fn a_running_daemon_with_the_address_is_used() {
    let (daemon, home) = (Daemon::start(), Home::new());
    let mut command = home.run(&format!("--addr {}", daemon.address), &["env"]);
    command.env("URXE_SOCKET", &daemon.socket);
    let output = run(command);
    let socket = format!("URXE_SOCKET={}\n", daemon.socket.display());
    assert!(text(&output.stdout).contains(&socket), "{}", text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_device_of_a_required_name_is_found_or_started() {
    let home = Home::new();
    let line = format!("--addr {} --name mlx5_0", address(3));
    let started = run(home.run(&line, &["env"]));
    assert!(text(&started.stderr).contains("started a daemon with mlx5_0"), "{started:?}");
    // The next one finds it, also by its name alone if the socket is given.
    let found = run(home.run(&line, &["env"]));
    assert_eq!(text(&found.stderr), "");
    let output = text(&found.stdout);
    let socket = output.lines().find_map(|line| line.strip_prefix("URXE_SOCKET=")).unwrap();
    let mut command = home.run("--name mlx5_0", &["env"]);
    command.env("URXE_SOCKET", socket);
    let again = run(command);
    assert!(text(&again.stdout).contains(&format!("URXE_SOCKET={socket}\n")), "{again:?}");
    assert_eq!(text(&again.stderr), "");
    let bad = run(home.run(&format!("--addr {} --name a/b", address(4)), &["env"]));
    assert_failed(&bad, 125, &["name \"a/b\"", "expected 1 to 63 letters"]);
    let both = run(home.run(&format!("--daemon {socket} --name mlx5_0"), &["env"]));
    assert_failed(&both, 125, &["--name mlx5_0", "--daemon"]);
}

#[test]
fn a_daemon_of_the_required_form_is_started_and_found_again() {
    let home = Home::new();
    let addr = address(5);
    let line = format!("--addr {addr} --wire strict");
    let started = run(home.run(&line, &["true"]));
    assert!(text(&started.stderr).contains("started a daemon"), "{started:?}");
    let [pid] = home.daemons()[..] else { panic!("one daemon") };
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(text(&words).contains("\0--wire=strict\0"), "{}", text(&words));
    assert_eq!(text(&run(home.run(&line, &["true"])).stderr), "");
    // It is none of another form.
    let other = run(home.run(&format!("--addr {addr} --wire uniform"), &["true"]));
    assert_failed(&other, 125, &[&addr, "4791", "taken"]);
    let both = run(home.run("--daemon /nonexistent.sock --wire strict", &["true"]));
    assert_failed(&both, 125, &["--wire strict", "--daemon"]);
}

#[test]
fn faults_and_captures_have_a_daemon_of_their_own() {
    let home = Home::new();
    let addr = address(6);
    let usual = run(home.run(&format!("--addr {addr}"), &["true"]));
    assert!(text(&usual.stderr).contains("started a daemon"), "{usual:?}");
    // The one that runs is as it was started, and keeps its address.
    let fault = run(home.run(&format!("--addr {addr} --fault drop=1%"), &["true"]));
    assert_failed(&fault, 125, &[&addr, "4791", "taken"]);
    let (other, file) = (address(7), home.0.path().join("run.pcapng"));
    let line = format!("--addr {other} --fault drop=1% --capture {}", file.display());
    let started = run(home.run(&line, &["true"]));
    assert!(text(&started.stderr).contains("ends a second after"), "{started:?}");
    let words = |pid| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    let is_like_that = |line: &String| {
        line.contains("\0--fault=drop=1%\0") && line.contains(file.to_str().unwrap())
    };
    assert_eq!(home.daemons().into_iter().map(words).filter(is_like_that).count(), 1);
    let deadline = Instant::now() + TIMEOUT;
    while home.daemons().into_iter().map(words).any(|line| is_like_that(&line)) {
        assert!(Instant::now() < deadline, "it ends, and the capture is whole");
        sleep(Duration::from_millis(20));
    }
    let read = run(urxe(&format!("capture -r {}", file.display())));
    assert!(read.status.success(), "{read:?}");
    let both = run(home.run("--daemon /nonexistent.sock --fault drop=1%", &["true"]));
    assert_failed(&both, 125, &["--fault drop=1%", "--daemon"]);
}

#[test]
fn each_obstacle_to_running_a_program_is_reported_in_a_sentence() {
    let (daemon, home) = (Daemon::start(), Home::new());
    let there = format!("--daemon {}", daemon.socket.display());
    let nobody = home.0.path().join("nobody.sock");
    let nowhere = format!("--daemon {}", nobody.display());
    assert_failed(&run(home.run(&nowhere, &["true"])), 125, &["nobody.sock", "without --daemon"]);
    // A daemon at another socket has the port.
    let taken = run(home.run(&format!("--addr {}", daemon.address), &["true"]));
    assert_failed(&taken, 125, &[&daemon.address, "4791", "taken", "--addr"]);
    let foreign = run(home.run("--addr 203.0.113.77", &["true"]));
    assert_failed(&foreign, 125, &["203.0.113.77", "no address of this machine"]);
    let both = run(home.run(&format!("{there} --addr 127.0.0.1"), &["true"]));
    assert_failed(&both, 125, &["--addr 127.0.0.1", "--daemon"]);
    let unknown = run(home.run(&there, &["no-such-program"]));
    assert_failed(&unknown, 127, &["no-such-program: command not found"]);
    let mut known = home.run(&there, &["ib_write_bw"]);
    known.env("PATH", "/nonexistent");
    assert_failed(&run(known), 127, &["ib_write_bw: command not found", "package perftest"]);
    assert_failed(&run(home.run(&there, &["./gone"])), 127, &["./gone: ", "o such file"]);
    assert_failed(&run(home.run(&there, &["/tmp"])), 126, &["/tmp is a directory"]);
    let file = home.0.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    assert_failed(&run(home.run(&there, &[file])), 126, &[file, "ermission"]);
    let mut command = home.run(&there, &["true"]);
    command.env("URXE_SHIM", "/nonexistent/shim.so");
    assert_failed(&run(command), 125, &["/nonexistent/shim.so", "cargo build"]);
    assert!(home.daemons().is_empty());
}

#[test]
fn a_daemon_that_is_stopped_is_waited_for_and_the_doctor_says_so() {
    let (daemon, home) = (Daemon::start(), Home::new());
    daemon.process.signal(rustix::process::Signal::STOP);
    let mut doctor = urxe("doctor --json");
    doctor.env("URXE_SHIM", library()).env("URXE_SOCKET", &daemon.socket);
    let output = run(doctor);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["can_run"], false);
    let checks = report["checks"].as_array().unwrap();
    let says =
        |check: &&serde_json::Value| check["says"].as_str().unwrap().contains("says nothing");
    assert_eq!(checks.iter().find(says).map(|check| &check["name"]), Some(&"daemon".into()));
    let line = format!("--daemon {}", daemon.socket.display());
    let mut program = Process::start(home.run(&line, &["echo", "ran"]));
    let said = program.wait_for("says nothing");
    assert!(said.contains(daemon.socket.to_str().unwrap()), "{said}");
    daemon.process.signal(rustix::process::Signal::CONT);
    assert_eq!(text(&program.output().stdout), "ran\n");
}

#[test]
fn the_doctor_reports_only_real_problems() {
    let daemon = Daemon::start();
    let doctor = |shim: PathBuf| {
        let mut command = urxe("doctor --json");
        command.env("URXE_SHIM", shim).env("URXE_SOCKET", &daemon.socket);
        let output = run(command);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        documented::check("doctor", &[&report]);
        assert_eq!(report["can_run"], output.status.success());
        report
    };
    let check = |report: &serde_json::Value, name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap().clone()
    };
    let report = doctor(library());
    assert_eq!(check(&report, "shim")["level"], "ok");
    assert_eq!(check(&report, "device")["says"], format!("urxe0: GID 0 = {}", daemon.address));
    let pid = format!("process {}, ", daemon.process.id());
    assert!(check(&report, "daemon")["says"].as_str().unwrap().starts_with(&pid), "{report}");
    let report = doctor("/nonexistent/shim.so".into());
    assert_eq!(
        (check(&report, "shim")["level"].as_str(), &report["can_run"]),
        (Some("problem"), &false.into())
    );
}
