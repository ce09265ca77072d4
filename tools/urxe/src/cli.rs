//! The command line: which commands there are. What each takes stands with the command.

use crate::error::EXIT_CODES;
use crate::{
    capture, conform, daemon, demo, devinfo, doctor, explain, manual, perf, perf_connect, ping,
    replay, res, run, stat, sysfs_overlay, top, why,
};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use urxe_verbs::OpenOptions;

const EXAMPLES: &str = "\
Examples:
  urxe demo
      See RDMA work on this machine within seconds: no hardware, no root, no set-up.
  urxe run ib_write_bw                in one terminal, and
  urxe run ib_write_bw localhost      in another: stock verbs programs, unmodified.
  urxe doctor
      See what such programs lack on this machine.
  urxe daemon --addr 10.0.0.1
      Give this machine an RDMA device on the network.
  urxe ping 10.0.0.1
      Is the way to that device open, and if not, what is in it?
  urxe devinfo
      Look at the devices that the daemon has.
  urxe perf write-bw                  on one machine, and
  urxe perf write-bw 10.0.0.1         on the other: measure between two.
  urxe stat --nonzero
      See what was sent, received, lost and repeated.
  urxe top
      See what queue pairs do now, live.
  urxe res qp
      See which queue pairs there are, their owners and their states.
  urxe why
      See which queue pairs failed, and why; urxe why QPN tells what happened to one.
  urxe explain 0x6 IBV_WC_RETRY_EXC_ERR
      See what a vendor_err, status, errno, counter or rule means, and what to do.
  urxe capture --program ib_write_bw
      See packets as they are sent and received, and what became of them, a line each.
  urxe replay roce.pcap
      Check a capture of another NIC, response by response.
  urxe conform 10.0.0.2 --run 'ssh 10.0.0.2'
      Check whether another device does what the standard says.
";

/// RoCEv2 in user space: RDMA over any network, without RDMA hardware, kernel module or root.
#[derive(Parser, Debug)]
#[command(name = "urxe", version = urxe_daemon::VERSION, after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::Arguments),
    #[command(hide = true)]
    DemoPartner(demo::PartnerArguments),
    Run(run::Arguments),
    Doctor(doctor::Arguments),
    #[command(hide = true)]
    DoctorTrial(doctor::TrialArguments),
    Daemon(Box<daemon::Arguments>),
    Ping(ping::Arguments),
    Devinfo(devinfo::Arguments),
    Perf(perf::Arguments),
    PerfConnect(perf_connect::Arguments),
    Stat(stat::Arguments),
    Top(top::Arguments),
    Res(res::Arguments),
    Why(why::Arguments),
    Explain(explain::Arguments),
    Capture(capture::Arguments),
    Replay(replay::Arguments),
    Conform(Box<conform::Arguments>),
    SysfsOverlay(sysfs_overlay::Arguments),
    Man(manual::ManArguments),
    Completion(manual::CompletionArguments),
}

/// Which daemon to use.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DaemonArguments {
    /// Socket of the daemon [default: $URXE_SOCKET; else the first at which a daemon answers of
    /// urxe/urxed.sock in $XDG_RUNTIME_DIR (or /tmp/urxe-UID/urxed.sock) and
    /// /run/urxe/urxed.sock; for root, only at the last].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

impl DaemonArguments {
    /// The same for the client library.
    pub(crate) fn open_options(&self) -> OpenOptions {
        match &self.socket {
            Some(socket) => OpenOptions::new().socket(socket),
            None => OpenOptions::new(),
        }
    }

    /// Where a daemon is looked for.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        match &self.socket {
            Some(socket) => vec![socket.clone()],
            None => urxe_shm::daemon_sockets(),
        }
    }
}

/// Runs a command, and prints on standard error why it failed.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoPartner(arguments) => demo::run_partner(&arguments),
        Command::Run(arguments) => return run::run(&arguments),
        Command::Doctor(arguments) => return doctor::run(&arguments),
        Command::DoctorTrial(arguments) => return doctor::run_trial(&arguments),
        Command::Daemon(arguments) => return daemon::run(*arguments),
        Command::Ping(arguments) => return ping::run(&arguments),
        Command::Devinfo(arguments) => devinfo::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::PerfConnect(arguments) => perf_connect::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Res(arguments) => res::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Replay(arguments) => return replay::run(&arguments),
        Command::Conform(arguments) => return conform::run(&arguments),
        Command::SysfsOverlay(arguments) => sysfs_overlay::run(&arguments),
        Command::Man(arguments) => manual::write_pages(&arguments),
        Command::Completion(arguments) => manual::print_completion(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("urxe"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_visible_command_has_examples() {
        let cli = Cli::command();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            assert!(help.contains(&format!("urxe {}", command.get_name())), "{help}");
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn errors_are_named() {
        for (line, parts) in [
            ("urxe perf write-bw --size 4X", ["--size", "4X"]),
            ("urxe perf write-bw --depth 0", ["--depth", "0"]),
            ("urxe perf nothing", ["nothing", "write-bw"]),
            ("urxe ping", ["HOST", "required"]),
            ("urxe ping far -c 0", ["--count", "0"]),
            ("urxe perf-connect --count 0", ["--count", "0"]),
            ("urxe stat --watch soon", ["--watch", "soon"]),
            ("urxe res everything", ["everything", "qp"]),
            ("urxe capture -r x -w y", ["--read", "--write"]),
            ("urxe capture --snaplen 10", ["--snaplen", "64"]),
            ("urxe run --fault lose=1% true", ["--fault", "lose"]),
            ("urxe capture -r x --opcode wrote", ["--opcode", "wrote"]),
            ("urxe replay", ["CAPTURE", "required"]),
            ("urxe conform --attempts 0", ["--attempts", "0"]),
            ("urxe daemon --addr here", ["--addr", "here"]),
            ("urxe run", ["PROGRAM", "required"]),
            ("urxe run --addr here ls", ["--addr", "here"]),
            ("urxe demo --fault drop=often", ["--fault", "drop=often"]),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
