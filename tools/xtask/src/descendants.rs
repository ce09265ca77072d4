//! The processes that a stage has started, and those that they have: none may hold up what comes
//! after it.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use std::{env, fs, io};

/// How long what a stage has told to end may take for it.
const GRACE: Duration = Duration::from_secs(5);

/// How often somebody looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Where the process that supervises this one stands in its environment.
const SUPERVISOR: &str = "URXE_CI_SUPERVISOR";

/// Runs this program once more, as the child of this process, which adopts what outlives its own
/// parent, so that [`clear`] finds it; and reaps it as it ends, as every parent must: there are
/// tests that wait for it. Returns how the child ended; `None` in the child, and where this cannot
/// be done.
pub(crate) fn supervise() -> Option<ExitCode> {
    if supervisor().is_some() {
        // Without it nobody would end what is left of this.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        return None;
    }
    let supervised = || -> io::Result<ExitCode> {
        set_child_subreaper(Some(getpid()))?;
        let mut program = Command::new(env::current_exe()?);
        program.args(env::args_os().skip(1));
        let own = getpid().as_raw_nonzero().to_string();
        let child = program.env(SUPERVISOR, own).spawn()?.id();
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == child => {
                    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                    return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    supervised()
        .inspect_err(|error| eprintln!("ci: what a stage leaves behind may go on: {error}"))
        .ok()
}

/// The process that supervises this one.
fn supervisor() -> Option<Pid> {
    let named: i32 = env::var(SUPERVISOR).ok()?.parse().ok()?;
    getppid().filter(|parent| parent.as_raw_nonzero().get() == named)
}

/// Kills all descendants once something has taken too long; whoever waits for them goes on.
pub(crate) struct Watchdog {
    over: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Watchdog {
        let (over, is_over) = channel();
        Watchdog { over, thread: spawn(move || kill_after(limit, &is_over)) }
    }

    /// Whether it took too long.
    pub(crate) fn finish(self) -> bool {
        drop(self.over);
        self.thread.join().unwrap_or(false)
    }
}

fn kill_after(limit: Duration, is_over: &Receiver<()>) -> bool {
    let is_late = |wait| is_over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout);
    if !is_late(limit) {
        return false;
    }
    // Each may just be starting others.
    while kill_all("after its time") > 0 && is_late(INTERVAL) {}
    true
}

/// Kills what is still there a moment after a stage has ended, and says so.
pub(crate) fn clear() {
    let deadline = Instant::now() + GRACE;
    while !all().is_empty() && Instant::now() < deadline {
        sleep(INTERVAL);
    }
    while kill_all("left running") > 0 {
        sleep(INTERVAL);
    }
}

/// How many there were.
fn kill_all(why: &str) -> usize {
    let found = all();
    for (&pid, command) in &found {
        eprintln!("killed {why}: {pid} {command}");
        // It may have ended by itself.
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
    }
    found.len()
}

/// All descendants of this process that have not ended, and what its supervisor has adopted, by
/// number, with what they run.
fn all() -> BTreeMap<i32, String> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parents: BTreeMap<i32, i32> =
        numbers.filter_map(|pid| Some((pid, running_parent(pid)?))).collect();
    let own = getpid().as_raw_nonzero().get();
    let top = supervisor().map_or(own, |supervisor| supervisor.as_raw_nonzero().get());
    let is_ours = |&pid: &i32| {
        let mut above = std::iter::successors(parents.get(&pid), |parent| parents.get(parent));
        pid != own && above.any(|&parent| parent == top)
    };
    parents.keys().copied().filter(is_ours).map(|pid| (pid, command_line(pid))).collect()
}

/// The parent of a process that has not ended.
fn running_parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    words.next().filter(|state| *state != "Z")?;
    words.next()?.parse().ok()
}

fn command_line(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    words.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn somebody_who_waits_too_long_goes_on_and_children_of_children_end() {
        let start = Instant::now();
        let watchdog = Watchdog::new(Duration::from_millis(100));
        // The second one holds the pipe open when the first one has gone.
        let output = Command::new("sh").args(["-c", "sleep 60 & sleep 60"]).output().unwrap();
        assert!(watchdog.finish());
        assert!(!output.status.success());
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(!Watchdog::new(Duration::from_secs(60)).finish());
    }
}
