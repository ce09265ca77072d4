//! A worker as the broker has it: a process that it starts, watches and ends, and never waits for.

use crate::log;
use crate::worker::NAME;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open, waitid,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use urxe_shm::control::{close_on_exec, closing};

/// A user whose programs a worker serves, and the group that the first of them had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A process that serves a user's programs, until it has been reaped. It is a child of this one, so
/// that its number is no other's until then.
pub(crate) struct Worker {
    pid: Pid,
    pub(super) user: User,
    pub(super) since: Instant,
    /// Readable when the process has ended. Without it, one that is not given up is not noticed to
    /// have ended before its link is.
    _pidfd: Option<OwnedFd>,
}

impl Worker {
    /// Starts a process of this program, or of another that is one too, with its end of a link.
    /// That it has ended is told under this token.
    pub(super) fn start(
        now: Instant,
        program: &Path,
        user: User,
        link: &OwnedFd,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Worker> {
        // SLOT-105: all that this process has belongs to others.
        close_on_exec()?;
        let mut command = Command::new(program);
        command.arg0(NAME).args([user.uid.to_string(), user.gid.to_string()]);
        // It has the same standard error, and none of the environment.
        if let Some((style, filter)) = log::begun() {
            command.args([style.name().to_owned(), filter.to_string()]);
        }
        command.env_clear().stdin(Stdio::from(link.try_clone()?));
        // SLOT-128
        let child = closing::execute(|begun| command.stdout(begun).spawn())?;
        Ok(Worker::watched(Pid::from_child(&child), user, now, registry, token))
    }

    /// A child of this process: one that was started just now, or by the program that this process
    /// executed before.
    pub(super) fn watched(
        pid: Pid,
        user: User,
        since: Instant,
        registry: &Registry,
        token: Token,
    ) -> Worker {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        let watched = pidfd.filter(|pidfd| {
            let fd = pidfd.as_raw_fd();
            registry.register(&mut SourceFd(&fd), token, Interest::READABLE).is_ok()
        });
        Worker { pid, user, since, _pidfd: watched }
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Ends it, whatever it does.
    pub(super) fn kill(&mut self) {
        // It fails only if it has ended.
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// How it has ended, in words, if it has: it is gone then.
    pub(super) fn end(&mut self) -> Option<End> {
        match waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(status)) => {
                Some(End { is_failure: status.exit_status() != Some(0), how: self.told(&status) })
            }
            // Somebody else in this process has waited for it.
            Err(_) => {
                let how = format!("worker {} of user {} has ended", self.id(), self.user.uid);
                Some(End { is_failure: true, how })
            }
        }
    }

    fn told(&self, status: &WaitIdStatus) -> String {
        let how = match (status.exit_status(), status.terminating_signal()) {
            (_, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => format!("was killed by {name}"),
                None => format!("was killed by signal {signal}"),
            },
            (Some(code), None) if code != 0 => format!("has ended with exit code {code}"),
            _ => "has ended".to_owned(),
        };
        format!("worker {} of user {} {how}", self.id(), self.user.uid)
    }
}

/// How a worker has ended.
pub(super) struct End {
    /// It did not end because it was let go.
    pub(super) is_failure: bool,
    /// A sentence without its end.
    pub(super) how: String,
}
