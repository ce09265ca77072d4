//! A daemon that takes connections and says nothing, as one that is stopped.

mod common;

use common::{Directory, Process, text, urxe};
use urxe_shm::control::channel::Listener;

#[test]
fn a_daemon_that_says_nothing_is_given_up_and_the_exit_code_says_so() {
    let directory = Directory::new();
    let socket = directory.path().join("urxed.sock");
    let _silent = Listener::bind(&socket, 0o600).unwrap();
    let commands =
        ["stat", "stat --watch 1", "res", "why", "devinfo", "top --once", "capture", "ping ::1"];
    let asking = commands.map(|line| {
        let mut command = urxe(line);
        command.arg("--socket").arg(&socket);
        Process::start(command)
    });
    for (line, asking) in commands.iter().zip(asking) {
        let output = asking.output();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{line}: {said}");
        let socket = socket.display().to_string();
        assert!(said.contains(&socket) && said.contains("says nothing"), "{line}: {said}");
    }
}

#[test]
fn commands_that_use_a_daemon_wait_for_one_that_says_nothing_and_say_so() {
    let directory = Directory::new();
    let socket = directory.path().join("urxed.sock");
    let _silent = Listener::bind(&socket, 0o600).unwrap();
    let using = ["perf write-bw", "perf send-lat localhost", "perf-connect"].map(|line| {
        let mut command = urxe(line);
        command.arg("--socket").arg(&socket);
        Process::start(command)
    });
    for mut using in using {
        let said = using.wait_for("says nothing");
        assert!(said.contains("waiting"), "{said}");
    }
}
