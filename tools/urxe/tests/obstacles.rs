//! Machines with an obstacle: `urxe run` avoids or reports it, and `urxe doctor` finds it.

mod common;

use common::{Directory, Process, exit_code_unread, library, run, text, urxe};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use urxe_shell::testing::could_not_run;

/// Holds UDP port 4791 of an address, in a network of its own with the loopback interface up, and
/// becomes another program.
const HOLDER: &str = r#"
use Socket qw(:DEFAULT inet_pton sockaddr_in6);
$^F = 100;
my $address = shift;
my $is_v6 = $address =~ /:/;
socket(my $socket, $is_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM, 0) or die "socket: $!";
my $up = pack("a16sx22", "lo", 0x41);
ioctl($socket, 0x8914, $up) or die "lo: $!";
my $name = $is_v6 ? sockaddr_in6(4791, inet_pton(AF_INET6, $address))
                  : sockaddr_in(4791, inet_aton($address));
bind($socket, $name) or die "bind: $!";
exec @ARGV;
"#;

fn where_port_is_taken(address: &str, directory: &Directory, script: &str) -> Option<Output> {
    let unshare = ["--user", "--map-current-user", "--keep-caps", "--net", "--"];
    let possible = Command::new("unshare").args(unshare).args(["perl", "-e", "1"]).output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        could_not_run(&format!("unshare: {possible:?}"));
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(unshare).args(["perl", "-e", HOLDER, address, "sh", "-c", script]);
    command.env("urxe", env!("CARGO_BIN_EXE_urxe")).env("URXE_SHIM", library());
    command.env("URXE_SOCKET", socket_in(directory));
    Some(run(command))
}

fn socket_in(directory: &Directory) -> PathBuf {
    directory.path().join("urxed.sock")
}

/// One check of a report of the doctor's.
fn check(report: &[u8], name: &str) -> Value {
    let report: Value = serde_json::from_slice(report).unwrap_or_else(|_| panic!("{report:?}"));
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).expect(name).clone()
}

/// Asserts that a check has this level, and these parts in its text.
#[track_caller]
fn assert_check(report: &[u8], name: &str, level: &str, parts: &[&str]) {
    let check = check(report, name);
    let said = format!("{} {}", check["says"], check["mend"]);
    assert_eq!(check["level"], level, "{check}");
    assert!(parts.iter().all(|part| said.contains(part)), "{check}");
}

#[test]
fn an_address_whose_port_is_taken_is_avoided() {
    let directory = Directory::new();
    let script = "$urxe run echo ran && pid=$($urxe doctor --json | \
                  sed 's/.*process \\([0-9]*\\), version.*/\\1/') && echo $pid";
    let Some(output) = where_port_is_taken("127.0.0.1", &directory, script) else { return };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let pid = out.strip_prefix("ran\n").unwrap_or_else(|| panic!("{out} {err}"));
    if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw) {
        kill_process(pid, Signal::TERM).unwrap();
    }
    assert_eq!(err.lines().count(), 1, "{err}");
    for part in ["started a daemon with urxe0 on 127.0.0.2 because ", "4791 of 127.0.0.1"] {
        assert!(err.contains(part), "{err}");
    }
}

#[test]
fn a_port_taken_on_every_address_is_reported() {
    let directory = Directory::new();
    // One socket for both families, where there are both.
    let everywhere = if Path::new("/proc/net/if_inet6").exists() { "::" } else { "0.0.0.0" };
    let script = "$urxe doctor --json; $urxe run true; echo $? >&2";
    let Some(output) = where_port_is_taken(everywhere, &directory, script) else { return };
    let parts = ["(process ", "UDP port 4791 of every address"];
    assert_check(&output.stdout, "daemon", "problem", &parts);
    let said = text(&output.stderr);
    for part in ["(process ", "has it on every address", "urxed --addr", "--mode 666", "\n125\n"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_doctor_reports_a_directory_without_room_for_a_socket() {
    let nowhere = "/proc/nowhere/urxed.sock";
    let with = |line: &str| {
        let mut command = urxe(line);
        command.env("URXE_SOCKET", nowhere).env("URXE_SHIM", library());
        command
    };
    assert_eq!(exit_code_unread(with("doctor")), Some(1));
    let report = run(with("doctor --json")).stdout;
    assert_check(&report, "daemon", "problem", &["no place", "/proc/nowhere", "XDG_RUNTIME_DIR"]);
    let output = run(with("run true"));
    let said = text(&output.stderr);
    assert!(said.contains("/proc/nowhere: ") && said.contains("URXE_SOCKET"), "{said}");
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn the_doctor_reports_forbidden_system_calls() {
    let directory = Directory::new();
    let forbid = directory.path().join("forbid");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forbid.c");
    let compiled = Command::new("cc").arg("-Wall").arg("-o").arg(&forbid).arg(source).status();
    assert!(compiled.expect("a C compiler is part of what these tests need").success());
    let doctor = |call: &str, how: &str| {
        let mut command = Command::new(&forbid);
        command.args([call, how, env!("CARGO_BIN_EXE_urxe"), "doctor", "--json"]);
        command.env("URXE_SOCKET", socket_in(&directory)).env("URXE_SHIM", library());
        Process::start(command).output().stdout
    };
    let parts = ["pwritev", "Operation not permitted", "seccomp"];
    assert_check(&doctor("pwritev", "errno"), "trial", "problem", &parts);
    let parts = ["memfd_create", "killed by a filter", "seccomp"];
    assert_check(&doctor("memfd_create", "kill"), "trial", "problem", &parts);
    // This one is not needed.
    assert_check(&doctor("process_vm_readv", "errno"), "trial", "ok", &[]);
}
