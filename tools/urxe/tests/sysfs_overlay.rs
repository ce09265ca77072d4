//! `urxe sysfs-overlay`, from the outside. Where there can be no mount namespace the tests say so.

mod common;

use common::{Daemon, Process, run, text, urxe};
use rustix::process::geteuid;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use urxe_shell::testing::needs_root;

/// Whether the tests may mount, as root in a mount namespace of their own.
fn can_mount() -> bool {
    let reason = match Command::new("unshare").args(["--mount", "true"]).output() {
        _ if !geteuid().is_root() => "mounts need root".into(),
        Ok(output) if output.status.success() => return true,
        failed => format!("unshare --mount: {failed:?}"),
    };
    needs_root(&reason);
    false
}

/// Runs a script in a mount namespace of its own. `$urxe` is the tool, `$socket` the daemon's.
fn script(daemon: &Daemon, lines: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &lines.join("\n")]);
    command.env("urxe", env!("CARGO_BIN_EXE_urxe")).env("socket", &daemon.socket);
    run(command)
}

/// The output of a command that succeeds.
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn only_the_one_program_sees_the_devices() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let classes = "/sys/class/infiniband /sys/class/infiniband_verbs /sys/class/net";
    let mut command = daemon.urxe("sysfs-overlay");
    command.args(["--", "ls"]).args(classes.split(' '));
    let seen = stdout(&run(command));
    for word in ["urxe0", "uverbs0", "abi_version", "lo"] {
        assert!(seen.lines().any(|line| line == word), "{word}: {seen}");
    }
    assert!(!Path::new("/sys/class/infiniband/urxe0").exists());
}

/// The program has the ids and the rights of its user, and no others.
#[test]
fn an_ordinary_user_needs_no_root_and_gets_no_rights() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let directory = common::Directory::new();
    let copy = directory.path().join("urxe");
    std::fs::copy(env!("CARGO_BIN_EXE_urxe"), &copy).unwrap();
    let socket = directory.path().join("urxed.sock");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let as_user = |line: &str| {
        let mut command = Command::new("setpriv");
        command.args(user).arg(&copy).args(line.split(' ')).arg("--socket").arg(&socket);
        command
    };
    // An address that the daemons of other tests do not use.
    let address = daemon.address.replace("127.50.", "127.51.");
    let mut of_user = Process::start(as_user(&format!("daemon --addr {address}")));
    of_user.wait_for("ready");
    let mut command = as_user("sysfs-overlay");
    let look = "cat /sys/class/infiniband/urxe0/node_type; id -u; grep CapEff /proc/self/status";
    command.args(["--", "sh", "-c", look]);
    assert_eq!(stdout(&run(command)), "1: CA\n65534\nCapEff:\t0000000000000000\n");
    // For all programs it needs root.
    let output = run(as_user("sysfs-overlay"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("takes root"), "{}", text(&output.stderr));
    of_user.signal(rustix::process::Signal::TERM);
    of_user.output();
}

#[test]
fn all_programs_see_the_devices_until_they_are_hidden() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let lines = [
        r#""$urxe" sysfs-overlay --socket "$socket""#,
        // Once more, as after a restart of the daemon.
        r#""$urxe" sysfs-overlay --socket "$socket""#,
        "ls /sys/class/infiniband; grep -c ' /sys/class ' /proc/self/mountinfo",
        // One program, in another namespace.
        r#""$urxe" sysfs-overlay --socket "$socket" -- ls /sys/class/infiniband"#,
        r#""$urxe" sysfs-overlay --undo"#,
        "test ! -e /sys/class/infiniband/urxe0; test -e /sys/class/net/lo",
        r#"! "$urxe" sysfs-overlay --undo"#,
    ];
    let output = script(&daemon, &lines);
    assert_eq!(stdout(&output), "urxe0\n1\nurxe0\n");
    assert!(text(&output.stderr).contains("nothing of urxe is mounted"));
}

/// Files are not cached as they were when they were first read.
#[test]
fn changes_of_the_files_are_visible() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let lines = [
        r#""$urxe" sysfs-overlay --socket "$socket""#,
        "state=class/infiniband/urxe0/ports/1/state",
        "cat /sys/$state",
        // As the daemon does it: a new file in the place of the old one.
        "tree=${socket%.sock}.sysfs; echo '1: DOWN' > $tree/.new; mv -f $tree/.new $tree/$state",
        "cat /sys/$state",
    ];
    assert_eq!(stdout(&script(&daemon, &lines)), "4: ACTIVE\n1: DOWN\n");
}

#[test]
fn the_programs_exit_code_is_the_commands() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let mut command = daemon.urxe("sysfs-overlay");
    command.args(["--", "sh", "-c", "exit 37"]);
    assert_eq!(run(command).status.code(), Some(37));
    let mut command = daemon.urxe("sysfs-overlay");
    command.args(["--", "/nonexistent/program"]);
    let output = run(command);
    assert!(text(&output.stderr).contains("/nonexistent/program"), "{}", text(&output.stderr));
}

#[test]
fn without_a_daemon_the_error_names_the_socket() {
    let output = run(urxe("sysfs-overlay --socket /nonexistent/urxed.sock -- true"));
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("/nonexistent/urxed.sock"), "{}", text(&output.stderr));
}
