//! `urxe daemon`: `urxed` under another name, so that one binary is enough.

use crate::{detach, output};
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

const EXAMPLES: &str = "\
Examples:
  urxe daemon --addr 10.0.0.1
      One device, urxe0, on the network. Needs no privilege.
  urxe daemon --addr 127.0.0.1 --addr 127.0.0.2
      Two devices that can talk to each other, without any network.
  urxe daemon --addr 10.0.0.1 --fault drop=1% --capture lossy.pcapng
      A network that loses packets, recorded for Wireshark.

The daemon ends on SIGINT (Ctrl-C) or SIGTERM. It is the same as `urxed`.";

/// Run the NIC: serve RDMA devices to the programs of this machine.
#[derive(Args, Debug)]
// `urxed`'s arguments have the same name, and groups of arguments go by it.
#[group(skip)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: urxe_daemon::Arguments,
    #[command(flatten)]
    lifetime: Lifetime,
    /// Go on in the background, detached from the process that started it.
    #[arg(long, hide = true)]
    detach: bool,
}

/// The lifetime of a process that we start for ourselves.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    /// End when this process, our parent, ends.
    #[arg(long, value_name = "PID", hide = true)]
    die_with: Option<i32>,
}

impl Lifetime {
    /// Makes this process end with its parent.
    ///
    /// `false` if the parent is gone already.
    pub(crate) fn bind(self) -> bool {
        let Some(parent) = self.die_with else { return true };
        // If it fails, the process only lives too long when the parent is killed.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        getppid().map(Pid::as_raw_pid) == Some(parent)
    }

    /// The arguments that make a child of this process end with it.
    pub(crate) fn with_us() -> [String; 2] {
        ["--die-with".into(), std::process::id().to_string()]
    }
}

/// Runs the daemon until a signal ends it.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    if arguments.detach {
        return match detach::go_on_in_background("--detach") {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                output::note(format_args!("urxe daemon: going into the background: {error}"));
                ExitCode::FAILURE
            }
        };
    }
    if !arguments.lifetime.bind() {
        output::note("urxe daemon: the process that this daemon was started for is gone");
        return ExitCode::FAILURE;
    }
    urxe_daemon::run(arguments.daemon)
}

/// This program again, with a command.
pub(crate) fn ourselves(subcommand: &str) -> Command {
    // By its name, which lists of processes show; unless the file has been replaced since.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    command.arg0("urxe").arg(subcommand);
    command
}

/// What a daemon wrote to its log before it ended.
pub(crate) fn last_words(log: &Path) -> String {
    reason_in(&std::fs::read_to_string(log).unwrap_or_default()).to_owned()
}

/// The first error in a log, before which there may be warnings, and behind it advice; else the
/// last line.
fn reason_in(log: &str) -> &str {
    let lines = || log.lines().map(|line| line.trim_start_matches("urxed: "));
    let error = lines().find_map(|line| line.strip_prefix("error: "));
    let last = || lines().rfind(|line| !line.trim().is_empty());
    error.or_else(last).unwrap_or("it printed nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_error_and_no_warning_before_it() {
        let warning = "warning: --fault names write-first, which is never sent\n";
        let log =
            format!("{warning}urxed: error: 10.9.9.9 is no address of this machine\n\nadvice\n");
        assert_eq!(reason_in(&log), "10.9.9.9 is no address of this machine");
        assert_eq!(
            reason_in("error: unexpected argument\n\nUsage: urxed\n"),
            "unexpected argument"
        );
        assert_eq!(reason_in("thread panicked\nnote: run with\n\n"), "note: run with");
        assert_eq!(reason_in("\n"), "it printed nothing");
    }
}
