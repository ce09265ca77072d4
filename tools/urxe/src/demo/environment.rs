//! The processes and files of the demo, and their cleanup.

use super::message::Message;
use crate::cli::DaemonArguments;
use crate::daemon::{Lifetime, last_words, ourselves};
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::link::Link;
use crate::output;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a child may take to end after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Longest directory in which a socket's path stays below the 108 bytes that a path may have.
const MAX_DIRECTORY_LEN: usize = 60;

/// The processes and files of the demo. Dropping it ends and removes them all; so does a signal
/// that ends this process.
pub(super) struct Environment {
    children: Arc<Mutex<Children>>,
    directory: PathBuf,
    kept: bool,
}

#[derive(Default)]
struct Children {
    directory: Option<PathBuf>,
    daemons: Vec<Child>,
    partner: Option<Child>,
}

/// A daemon that runs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Daemon {
    /// What it serves.
    pub(super) address: IpAddr,
    /// Where programs connect to it.
    pub(super) socket: PathBuf,
    pub(super) pid: u32,
    pub(super) device: String,
    /// Largest path MTU of the device, in bytes.
    pub(super) active_mtu: urxe_verbs::PathMtu,
}

impl std::fmt::Display for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Daemon { address, pid, device, active_mtu, .. } = self;
        write!(f, "daemon {pid}: device {device} on {address}, path MTU {active_mtu}")
    }
}

/// What the injected faults have done, and the packets that were sent again.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Faults {
    pub(super) lost_packets: u64,
    pub(super) resent_packets: u64,
    pub(super) duplicated_packets: u64,
    pub(super) reordered_packets: u64,
    pub(super) delayed_packets: u64,
    pub(super) corrupted_packets: u64,
}

impl Faults {
    /// Reads the counters of the daemons.
    pub(super) fn count(daemons: &[Daemon]) -> Result<Self, Error> {
        let mut faults = Faults::default();
        for daemon in daemons {
            let socket = DaemonArguments { socket: Some(daemon.socket.clone()) };
            let stats = DaemonClient::connect(&socket, "demo")?.stats(&daemon.device)?;
            faults.lost_packets += stats.get("fault_dropped");
            faults.resent_packets += stats.get("retransmitted_packets");
            faults.duplicated_packets += stats.get("fault_duplicated");
            faults.reordered_packets += stats.get("fault_reordered");
            faults.delayed_packets += stats.get("fault_delayed");
            faults.corrupted_packets += stats.get("fault_corrupted");
        }
        Ok(faults)
    }
}

impl Environment {
    /// Makes the directory. With `kept`, daemons are started so that they can go on without us.
    pub(super) fn new(kept: bool) -> Result<Self, Error> {
        let directory = make_directory()?;
        let children = Children { directory: Some(directory.clone()), ..Children::default() };
        let children = Arc::new(Mutex::new(children));
        let environment = Environment { children: children.clone(), directory, kept };
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Error::system("catching signals"))?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Locked to the end, so that the main thread does not report that its children
                // have ended.
                let mut children = lock(&children);
                children.clean_up();
                output::note("urxe demo: interrupted; everything is cleaned up");
                std::process::exit(128 + signal);
            }
        });
        Ok(environment)
    }

    /// Starts a daemon and waits until programs can connect to it.
    pub(super) fn start_daemon(
        &self,
        address: IpAddr,
        fault: Option<&str>,
    ) -> Result<Daemon, Error> {
        let mut children = lock(&self.children);
        let number = children.daemons.len();
        let socket = self.directory.join(format!("urxed{number}.sock"));
        let log = self.directory.join(format!("urxed{number}.log"));
        let mut command = child("daemon");
        command.arg("--addr").arg(address.to_string()).arg("--socket").arg(&socket);
        command.args(["--ready-fd", "1"]);
        if let Some(fault) = fault {
            command.arg("--fault").arg(fault);
        }
        if !self.kept {
            command.args(Lifetime::with_us());
        }
        let log_file = File::create(&log).map_err(Error::system(log.display().to_string()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        let mut child = command.spawn().map_err(Error::system("starting a daemon"))?;
        let (pid, stdout) = (child.id(), child.stdout.take());
        children.daemons.push(child);
        drop(children);

        // It writes a line when it is ready, or ends and closes the pipe.
        let mut line = String::new();
        if let Some(stdout) = stdout {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if line.is_empty() {
            return Err(Error::Failed(format!("a daemon did not start: {}", last_words(&log))));
        }
        let context = urxe_verbs::Context::open(&urxe_verbs::OpenOptions::new().socket(&socket))?;
        let active_mtu = context.query_port(1)?.active_mtu;
        let device = context.device().name.clone();
        Ok(Daemon { address, socket, pid, device, active_mtu })
    }

    /// Ends the daemons that were started so far.
    pub(super) fn stop_daemons(&self) {
        end(&mut lock(&self.children).daemons);
    }

    /// Starts the partner, and returns the connection to it.
    pub(super) fn start_partner(&self, socket: &Path) -> Result<Link<Message>, Error> {
        let mut children = lock(&self.children);
        let mut command = child("demo-partner");
        command.arg("--socket").arg(socket).args(Lifetime::with_us());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::system("starting the second program"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        children.partner = Some(child);
        match (stdout, stdin) {
            (Some(stdout), Some(stdin)) => Ok(Link::new(stdout, stdin, "the second program")),
            _ => Err(Error::Failed("the second program has no pipes".into())),
        }
    }

    /// Ends all children and removes all files.
    pub(super) fn clean_up(self) {
        drop(self);
    }

    /// Leaves the daemons running, and their files.
    pub(super) fn keep(self) {
        let mut children = lock(&self.children);
        children.daemons.clear();
        children.directory = None;
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        lock(&self.children).clean_up();
    }
}

impl Children {
    fn clean_up(&mut self) {
        end(&mut self.partner.take().into_iter().collect());
        end(&mut self.daemons);
        if let Some(directory) = self.directory.take() {
            // What cannot be removed is in a directory for temporary files.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Sends children SIGTERM, and kills those that do not end.
fn end(children: &mut Vec<Child>) {
    for child in children.iter() {
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // A child that has ended already is not reaped yet, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let deadline = Instant::now() + TIMEOUT;
    for mut child in children.drain(..) {
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// This program again, with a command. In a process group of its own: Ctrl-C goes to us, and we end
/// the children.
fn child(subcommand: &str) -> Command {
    let mut command = ourselves(subcommand);
    command.process_group(0);
    command
}

/// A directory that other users cannot read.
fn make_directory() -> Result<PathBuf, Error> {
    let base = Some(std::env::temp_dir()).filter(|dir| dir.as_os_str().len() <= MAX_DIRECTORY_LEN);
    let base = base.unwrap_or_else(|| "/tmp".into());
    let pid = std::process::id();
    for attempt in 0..100 {
        let directory = base.join(format!("urxe-demo-{pid}-{attempt}"));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::system(directory.display().to_string())(error)),
        }
    }
    Err(Error::Failed(format!("{}: no name for a directory is free", base.display())))
}

/// A panic elsewhere must not keep us from cleaning up.
fn lock(children: &Mutex<Children>) -> MutexGuard<'_, Children> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}
