//! Daemons and programs as processes, which end with the test in any case.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod documented;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything here may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(100);

/// The tool, with arguments separated by spaces.
pub(crate) fn urxe(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// A library that every machine has, and that has no effect when it is loaded again.
pub(crate) fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    // That of musl is the loader too, and called so in Alpine.
    let is_libc = |path: &&str| path.contains("/libc.so") || path.contains("/ld-musl-");
    paths.find(is_libc).expect("this test has a libc").into()
}

/// A process that is killed with the test.
pub(crate) struct Process {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Process {
    /// Starts the tool, with its output for [`output`](Self::output).
    pub(crate) fn start(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().map(BufReader::new);
        Process { child, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line on standard error that contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let stderr = self.stderr.as_mut().unwrap();
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let len = stderr.read_line(&mut line).unwrap();
            all += &line;
            assert!(len > 0, "{text:?} never came, but {all:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until it has ended, and returns its output. Panics if it hangs.
    pub(crate) fn output(mut self) -> Output {
        let (sender, receiver) = mpsc::channel();
        let mut stdout = self.child.stdout.take().unwrap();
        let mut stderr = self.stderr.take().unwrap();
        std::thread::spawn(move || {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            std::thread::scope(|scope| {
                scope.spawn(|| stdout.read_to_end(&mut out).unwrap());
                stderr.read_to_end(&mut err).unwrap();
            });
            let _ = sender.send((out, err));
        });
        let (stdout, stderr) = receiver.recv_timeout(TIMEOUT).expect("the process hangs");
        Output { status: self.child.wait().unwrap(), stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the tool to its end, with its output.
pub(crate) fn run(command: Command) -> Output {
    Process::start(command).output()
}

/// The exit code of the tool where nobody reads what it prints.
pub(crate) fn exit_code_unread(mut command: Command) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    // Before it starts, or it may have printed everything.
    drop(reader);
    command.stdout(writer).stderr(Stdio::null()).status().unwrap().code()
}

/// The JSON that it prints if it succeeds, as it must.
pub(crate) fn json(command: Command) -> Value {
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stdout)))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory that goes with the test. Its path is not the beginning of another's, so that it is
/// enough to look for it in the command line of a process.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        let path =
            std::env::temp_dir().join(format!("urxe-test-{}-{}.d", std::process::id(), number()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Different for each call in a process.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A daemon on a loopback address of its own.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    pub(crate) address: String,
    _directory: Directory,
}

impl Daemon {
    pub(crate) fn start() -> Daemon {
        Daemon::start_with("")
    }

    /// The same with more arguments, separated by spaces.
    pub(crate) fn start_with(arguments: &str) -> Daemon {
        let directory = Directory::new();
        let socket = directory.path().join("urxed.sock");
        loop {
            // Other tests run on this machine too: an address may be taken.
            let address = format!("127.50.{}.{}", std::process::id() % 250, number() % 250 + 1);
            let line = format!("daemon --addr {address} --socket {} {arguments}", socket.display());
            let mut process = Process::start(urxe(&line));
            let mut line = String::new();
            process.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
            if line.contains("ready") {
                return Daemon { process, socket, address, _directory: directory };
            }
            assert!(line.contains("is taken"), "the daemon did not start: {line:?}");
        }
    }

    /// The tool, using this daemon.
    pub(crate) fn urxe(&self, line: &str) -> Command {
        let mut command = urxe(line);
        command.arg("--socket").arg(&self.socket);
        command
    }

    /// The statistics of its device.
    pub(crate) fn stat(&self) -> Value {
        json(self.urxe("stat --json"))["devices"][0].clone()
    }

    /// Waits until its device has so many QPs.
    pub(crate) fn wait_for_qps(&self, count: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while self.stat()["qps"].as_array().unwrap().len() != count {
            assert!(Instant::now() < deadline, "there never were {count} QPs: {}", self.stat());
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until what its programs have sent is acknowledged, some of it.
    pub(crate) fn wait_for_answers(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.stat()["counters"]["acks_received"] == 0 {
            assert!(Instant::now() < deadline, "nothing was acknowledged: {}", self.stat());
            sleep(Duration::from_millis(20));
        }
    }
}

/// A server of `urxe perf`, and the arguments with which its client finds it.
pub(crate) fn perf_server(daemon: &Daemon, test: &str) -> (Process, String) {
    let mut server = Process::start(daemon.urxe(&format!("perf {test} --port 0 --json")));
    let line = server.wait_for("waiting for a client");
    let port = line.split_whitespace().next_back().unwrap().to_owned();
    (server, format!("perf {test} 127.0.0.1 --port {port} --json"))
}
