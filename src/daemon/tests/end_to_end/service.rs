//! The `urxed` binary under a service manager, which these tests play.

use crate::harness::{Client, Running, eventually, fresh_addr, fresh_path, start_with};
use crate::startup::{signal, urxed_with};
use rustix::process::Signal;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use urxe_shm::control::channel::{Channel, Listener};

/// A manager that listens for a daemon, and hears what that says.
pub(crate) struct Manager {
    /// Where programs connect.
    socket: PathBuf,
    listener: Listener,
    heard: UnixDatagram,
    notify: PathBuf,
}

impl Manager {
    pub(crate) fn new() -> Manager {
        let (socket, notify) = (fresh_path(), fresh_path());
        let listener = Listener::bind(&socket, 0o600).unwrap();
        let heard = UnixDatagram::bind(&notify).unwrap();
        heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { socket, listener, heard, notify }
    }

    /// Starts a daemon with these descriptors behind the first three, which are all the same one.
    pub(crate) fn start(&self, count: u32, others: &[&str]) -> Running {
        // Descriptor 3 is the first, and the variable names the process that it is for.
        let fds = "exec 3<&0 4<&0 </dev/null; export LISTEN_PID=$$; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", fds, "sh", env!("CARGO_BIN_EXE_urxed")]);
        command.args(["--addr", &fresh_addr().to_string()]).args(others);
        command.env("LISTEN_FDS", count.to_string()).env("NOTIFY_SOCKET", &self.notify);
        command.env_remove("URXE_SOCKET").stderr(Stdio::piped());
        let socket = self.listener.as_fd().try_clone_to_owned().unwrap();
        Running::start(command.stdin(Stdio::from(socket)))
    }

    /// Where programs connect.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn next_message(&self) -> String {
        let mut bytes = [0; 4096];
        let len = self.heard.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.notify);
    }
}

fn open_device(socket: &Path) {
    Client::connect(socket).open("urxe0");
}

#[test]
fn a_program_may_connect_before_the_daemon_is_started_and_after_it_ended() {
    let manager = Manager::new();
    for _ in 0..2 {
        let early = Channel::connect(&manager.socket).unwrap();
        let mut daemon = manager.start(1, &[]);
        let ready = manager.next_message();
        assert!(ready.starts_with("READY=1\nSTATUS=urxe0 = 127."), "{ready}");
        open_device(&manager.socket);
        drop(early);
        signal(&daemon, Signal::TERM);
        assert_eq!(manager.next_message(), "STOPPING=1\n");
        assert!(daemon.wait().success());
        assert!(manager.socket.exists(), "the manager still listens there");
        assert!(!urxe_shm::sysfs_directory(&manager.socket).exists());
    }
}

#[test]
fn a_manager_passes_one_socket_and_the_one_that_was_asked_for() {
    let manager = Manager::new();
    let socket = manager.socket.display().to_string();
    let mut daemon = manager.start(1, &["--socket", &socket]);
    assert!(manager.next_message().starts_with("READY=1"));
    signal(&daemon, Signal::TERM);
    assert!(daemon.wait().success());
    let refused = |count, others: &[&str]| {
        let mut daemon = manager.start(count, others);
        assert!(!daemon.wait().success());
        daemon.rest_of_stderr()
    };
    let said = refused(2, &[]);
    assert!(said.contains("LISTEN_FDS") && said.contains("2 were passed"), "{said}");
    let said = refused(1, &["--socket", "/nonexistent/other.sock"]);
    for part in ["/nonexistent/other.sock", &socket] {
        assert!(said.contains(part), "{said}");
    }
}

/// A daemon that drains, at a socket of its own, and a program of it.
fn draining() -> (PathBuf, Running, Client) {
    let socket = fresh_path();
    let (daemon, _) = urxed_with(&socket, &["--drain", "600"]);
    let mut client = Client::connect(&socket);
    client.open("urxe0");
    signal(&daemon, Signal::TERM);
    eventually("the socket goes", || (!socket.exists()).then_some(()));
    (socket, daemon, client)
}

#[test]
fn a_daemon_that_drains_serves_its_programs_to_their_end_and_no_others() {
    let (socket, mut daemon, mut client) = draining();
    let context = client.open("urxe0");
    client.alloc_pd(context);
    assert!(daemon.try_wait().unwrap().is_none());
    Channel::connect(&socket).unwrap_err();
    drop(client);
    assert!(daemon.wait().success());
    let said = daemon.rest_of_stderr();
    assert!(said.contains("as soon as 1 programs are gone or in 600 seconds"), "{said}");
}

#[test]
fn a_second_signal_and_a_daemon_without_programs_wait_for_nothing() {
    let (_socket, mut daemon, client) = draining();
    signal(&daemon, Signal::TERM);
    assert!(daemon.wait().success());
    drop(client);
    let (mut daemon, _) = urxed_with(&fresh_path(), &["--drain", "600"]);
    signal(&daemon, Signal::TERM);
    assert!(daemon.wait().success());
    // Nor does one in a thread whose handle is dropped.
    let handle = start_with(1, |config| config.drain = Some(Duration::from_secs(600)));
    let client = Client::connect(handle.socket());
    drop(handle);
    drop(client);
}

#[test]
fn a_program_that_comes_while_a_daemon_drains_is_served_by_the_next() {
    let manager = Manager::new();
    let mut first = manager.start(1, &["--drain", "600"]);
    assert!(manager.next_message().starts_with("READY=1"));
    let mut old = Client::connect(&manager.socket);
    old.open("urxe0");
    signal(&first, Signal::TERM);
    let stderr = BufReader::new(first.stderr.take().unwrap());
    let is_ending = |line: io::Result<String>| line.unwrap().contains("ending");
    assert!(stderr.lines().any(is_ending));
    let socket = manager.socket.clone();
    let new = std::thread::spawn(move || open_device(&socket));
    drop(old);
    assert!(first.wait().success());
    let mut second = manager.start(1, &[]);
    new.join().unwrap();
    signal(&second, Signal::TERM);
    assert!(second.wait().success());
}
