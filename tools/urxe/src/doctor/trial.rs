//! Trying what a program and a daemon do, in a process of its own: a filter of system calls may
//! kill whoever makes one that it forbids.

use crate::daemon::ourselves;
use crate::run::forget_library;
use clap::Args;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_daemon::{Config, Daemon, StartError};
use urxe_port::OpenError;
use urxe_shm::memory::process_memory::{self, ProcessMemory};
use urxe_shm::memory::region::{Mapping, create_memfd};
use urxe_verbs::{Access, Context, OpenOptions, QpInit, SendWr, Wc};

/// How long the whole of it may take.
const WAIT: Duration = Duration::from_secs(20);

/// How long the one message may take.
const MESSAGE_WAIT: Duration = Duration::from_secs(10);

/// What comes after the last step.
const DONE: &str = "done";

/// What begins the line that says why what follows is not tried.
const LEFT_OUT: &str = "left out: ";

/// What begins the line that says why a step failed.
const FAILED: &str = "failed: ";

/// The name of the command, which only the doctor calls.
const COMMAND: &str = "doctor-trial";

/// Try what programs and daemons do, and say what is tried.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Socket for a daemon of one's own.
    socket: PathBuf,
}

/// A step that cannot be done on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) step: String,
    pub(super) reason: String,
}

/// What did work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tried {
    /// Why no message was sent through a daemon, if none was.
    pub(super) without_daemon: Option<String>,
}

/// Runs the trial in a process of its own, with a daemon at this socket.
pub(super) fn run(socket: &Path) -> Result<Tried, Failure> {
    let mut command = ourselves(COMMAND);
    // It takes the part of the daemon too.
    forget_library(&mut command);
    command.arg(socket).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failure =
        |step: &str, error: io::Error| Failure { step: step.into(), reason: error.to_string() };
    let mut child = command.spawn().map_err(|error| failure("starting a process", error))?;
    let status = wait(&mut child).map_err(|error| failure("waiting for a process", error))?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said).map_err(|error| failure("reading a pipe", error))?;
    }
    judge(&said, status)
}

/// The end of the process; one that hangs is ended.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + WAIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// What came of it, by what was said until the end.
fn judge(said: &str, status: Option<ExitStatus>) -> Result<Tried, Failure> {
    let mut lines = said.lines().rev();
    let last = lines.next().unwrap_or("starting a process");
    if last == DONE {
        let reason = lines.next().and_then(|line| line.strip_prefix(LEFT_OUT));
        return Ok(Tried { without_daemon: reason.map(str::to_owned) });
    }
    if let Some(reason) = last.strip_prefix(FAILED) {
        let step = lines.next().unwrap_or("starting a process").into();
        return Err(Failure { step, reason: reason.into() });
    }
    const SIGSYS: i32 = 31;
    let reason = match status {
        None => format!("did not end within {} seconds", WAIT.as_secs()),
        Some(status) if status.signal() == Some(SIGSYS) => {
            "killed by a filter of system calls (SIGSYS)".into()
        }
        Some(status) => format!("the process ended with {status}"),
    };
    Err(Failure { step: last.into(), reason })
}

/// The process of the trial.
pub(crate) fn run_here(arguments: &Arguments) -> ExitCode {
    // A line is one reason.
    let say_why = |prefix: &str, reason: &str| {
        say(format_args!("{prefix}{}", reason.replace('\n', " ")));
    };
    match try_all(&arguments.socket) {
        Ok(Tried { without_daemon }) => {
            if let Some(reason) = without_daemon {
                say_why(LEFT_OUT, &reason);
            }
            say(DONE);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            say_why(FAILED, &reason);
            ExitCode::FAILURE
        }
    }
}

fn say(line: impl Display) {
    let mut out = io::stdout().lock();
    // The doctor has gone: there is nobody to be told.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// One step: said first, for it may be the end of this process.
fn step<T, E: Display>(name: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    say(name);
    work().map_err(|error| error.to_string())
}

fn try_all(socket: &Path) -> Result<Tried, String> {
    step("sharing memory (memfd_create, mmap)", || {
        let memfd = create_memfd("urxe-doctor", 4096)?;
        Mapping::new(memfd, 0, 4096).map(drop)
    })?;
    let word = AtomicU64::new(7);
    let addr = word.as_ptr() as u64;
    step("checking memory that is registered (madvise)", || {
        process_memory::populate(addr, 8, true)
    })?;
    let memory = step("opening /proc/self/mem for reading and writing", || {
        let file = process_memory::open_own().map_err(|error| error.to_string())?;
        ProcessMemory::accept(file).map_err(|error| error.to_string())
    })?;
    step("reading a program's memory through /proc/PID/mem (pread64)", || {
        memory.read(addr, &mut [0; 8])
    })?;
    step("writing a program's memory through /proc/PID/mem (pwritev)", || {
        memory.write(addr, &8u64.to_ne_bytes()).map_err(|error| error.to_string())?;
        match word.load(Ordering::Relaxed) {
            8 => Ok(()),
            other => Err(format!("8 was written, and {other} is there")),
        }
    })?;
    let daemon = step("starting a daemon", || {
        let mut config = Config::new([own_address()]);
        config.socket = socket.to_owned();
        match Daemon::start(config) {
            Ok(daemon) => Ok(Ok(daemon)),
            // Which addresses are free is not what is tried here.
            Err(
                error @ StartError::Port(OpenError::PortTaken { .. } | OpenError::NotOurs { .. }),
            ) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    })?;
    // It lives until the end.
    let _daemon = match daemon {
        Ok(daemon) => daemon,
        Err(error) => return Ok(Tried { without_daemon: Some(error.to_string()) }),
    };
    let context = step("opening a device of that daemon", || {
        Context::open(&OpenOptions::new().socket(socket))
    })?;
    step("an RDMA WRITE through that daemon", || write_to_oneself(&context))?;
    Ok(Tried::default())
}

/// An address that nothing else uses, most likely.
fn own_address() -> IpAddr {
    let [low, middle, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 91, middle, low.max(1)).into()
}

fn write_to_oneself(context: &Context) -> Result<(), String> {
    let write = || {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(4, Some(&channel))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let [from, to] = [pd.alloc_mr(8, access)?, pd.alloc_mr(8, access)?];
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        qp.connect(&qp.endpoint()?, access)?;
        from.write_at(0, b"8 bytes!")?;
        let sges = [from.sge(..)?];
        qp.post_send(&[SendWr::write(1, &sges, to.remote_buf(..)?).signaled()])?;
        let mut completion = [Wc::default()];
        let count = cq.wait(&mut completion, Some(MESSAGE_WAIT))?;
        if count == 1 {
            completion[0].check()?;
        }
        let mut arrived = [0; 8];
        to.read_at(0, &mut arrived)?;
        Ok::<_, urxe_verbs::Error>(arrived)
    };
    match write() {
        Ok(arrived) if arrived == *b"8 bytes!" => Ok(()),
        Ok(_) => Err(format!("nothing arrived within {} seconds", MESSAGE_WAIT.as_secs())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_that_did_not_end_is_named() {
        let ended = |raw| Some(ExitStatus::from_raw(raw));
        let failure = |said, status| {
            let Failure { step, reason } = judge(said, status).unwrap_err();
            format!("{step}: {reason}")
        };
        assert_eq!(judge("a\nb\ndone\n", ended(0)), Ok(Tried::default()));
        let without_daemon = Some("the port is taken".to_owned());
        let said = "a\nb\nleft out: the port is taken\ndone\n";
        assert_eq!(judge(said, ended(0)), Ok(Tried { without_daemon }));
        assert_eq!(failure("a\nb\nfailed: no\n", ended(1 << 8)), "b: no");
        assert!(failure("a\nb\n", ended(31)).starts_with("b: killed by a filter"));
        assert!(failure("a\nb\n", ended(9)).contains("signal: 9"));
        assert!(failure("a\n", None).contains("did not end"));
        assert!(failure("", ended(2 << 8)).contains("exit status: 2"));
    }
}
