//! The examples do what they say, as programs of their own, with a daemon of this test's.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use urxe_daemon::testing::TestDaemon;

/// An example, as cargo builds it for tests.
fn example(daemon: &TestDaemon, name: &str, args: &[&str]) -> Command {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(built.exists(), "{}: expected it to be built: cargo build --examples", built.display());
    let mut command = Command::new(built);
    command.args(args).env("URXE_SOCKET", daemon.socket()).stdin(Stdio::null());
    command
}

/// Runs an example to its end.
fn ran(daemon: &TestDaemon, name: &str, args: &[&str]) -> Output {
    example(daemon, name, args).output().unwrap()
}

/// What an example prints that succeeds.
fn printed(daemon: &TestDaemon, name: &str, args: &[&str]) -> String {
    let done = ran(daemon, name, args);
    assert!(done.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// What an example complains of that fails.
fn complaint(daemon: &TestDaemon, name: &str, args: &[&str]) -> String {
    let done = ran(daemon, name, args);
    assert!(!done.status.success(), "{name} {args:?} succeeded");
    String::from_utf8(done.stderr).unwrap()
}

/// An example that listens for others; it is killed when it is dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    at: String,
}

impl Server {
    /// Starts it at a port of the first device that is free. `args` are those before and behind
    /// the address.
    fn start(daemon: &TestDaemon, name: &str, (before, behind): (&[&str], &[&str])) -> Server {
        let at = format!("{}:0", daemon.devices()[0].addrs[0]);
        let args = [before, &[&at], behind].concat();
        let mut child = example(daemon, name, &args).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}"));
        Server { child, stdout, at: at.to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_stored_value_is_read_by_others_and_a_newer_one_takes_its_place() {
    let daemon = TestDaemon::start(1).unwrap();
    let server = Server::start(&daemon, "kv_store", (&["serve"], &[]));
    let at = server.at.as_str();
    let (put, get) = (
        |key, value| printed(&daemon, "kv_store", &["put", at, key, value]),
        |key| printed(&daemon, "kv_store", &["get", at, key]),
    );
    put("colour", "green");
    put("shape", "");
    assert_eq!(get("colour"), "green\n");
    assert_eq!(get("shape"), "\n");
    let longest = "l".repeat(246 - "colour".len());
    put("colour", &longest);
    assert_eq!(get("colour").trim(), longest);

    let said = complaint(&daemon, "kv_store", &["get", at, "size"]);
    assert!(said.contains("no such key"), "{said}");
    let said = complaint(&daemon, "kv_store", &["put", at, "colour", &format!("{longest}l")]);
    assert!(said.contains("247 bytes, expected 246 at most"), "{said}");
    let said = complaint(&daemon, "kv_store", &["serve", "192.0.2.1:0"]);
    assert!(said.contains("no device has the address 192.0.2.1"), "{said}");
}

/// More of it than the receiver has memory for, and nothing at all.
#[test]
fn a_copied_file_is_the_same() {
    let daemon = TestDaemon::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for len in [0, 1, 5 << 20, (6 << 20) + 1] {
        let original = Vec::from_iter((0..len).map(|index: u32| (index ^ (index >> 8)) as u8));
        let [from, to] = ["original", "copy"].map(|name| folder.path().join(name));
        std::fs::write(&from, &original).unwrap();
        let [from, to] = [&from, &to].map(|path| path.to_str().unwrap());
        let mut receiver = Server::start(&daemon, "file_copy", (&["receive"], &[to]));
        let sent = printed(&daemon, "file_copy", &["send", &receiver.at, from]);
        assert!(sent.starts_with(&format!("{len} bytes to ")), "{sent}");
        let mut received = String::new();
        receiver.stdout.read_line(&mut received).unwrap();
        assert!(received.starts_with(&format!("{len} bytes from ")), "{received}");
        assert!(receiver.child.wait().unwrap().success());
        assert!(std::fs::read(to).unwrap() == original, "{len} bytes differ");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn each_word_comes_back_to_each_of_two_peers() {
    let daemon = TestDaemon::start(1).unwrap();
    let server = Server::start(&daemon, "echo", (&[], &[]));
    for words in [&["hello", "there"][..], &["again"]] {
        let said = printed(&daemon, "echo", &[&[server.at.as_str()], words].concat());
        assert_eq!(Vec::from_iter(said.lines()), words);
    }
}
