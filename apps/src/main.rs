//! `urxe-apps`: what RDMA is for. Each application is a command.

#![allow(clippy::print_stderr, reason = "a person reads it")]

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;
use urxe_apps::application::Run;
use urxe_apps::sst::two_phase;
use urxe_apps::{atomic, kv, lecture, rdmc, sequencer, smc};

/// What RDMA is for: known algorithms, each on several processes of this machine.
///
/// Each command starts a daemon with a device for each node, and a process for each node, shows
/// what came of it, and leaves nothing behind. Needs no privilege and no hardware. With `--table` a
/// command runs in all the ways that are worth comparing, and with `--svg FILE` it draws them.
#[derive(Parser, Debug)]
// What stands behind counts: so a way to run is the arguments of a person, and its own.
#[command(version, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Large-object multicast: node 0 sends an object to all others, block by block.
    Rdmc(Run<rdmc::Arguments>),
    /// Small-message multicast: all nodes send to all, through rings in the receivers' memory.
    Smc(Run<smc::Arguments>),
    /// Two-phase commit by a shared state table: all nodes make a change, or none does.
    Commit(Run<two_phase::Arguments>),
    /// Atomic multicast: all nodes deliver the same in the same order, also when nodes die.
    Atomic(Run<atomic::Arguments>),
    /// Key-value store: node 0 has the table, all others read it by READs and write by messages.
    Kv(Run<kv::Arguments>),
    /// Sequencer: node 0 gives out numbers, to all others, in one of many ways.
    Sequencer(Run<sequencer::Arguments>),
    /// Latency and bandwidth over sizes: TCP sockets, SEND, WRITE and READ, as lectures show them.
    Lecture(Run<lecture::Arguments>),
}

fn main() -> ExitCode {
    let ran = match Cli::parse().command {
        Command::Rdmc(run) => run.run(),
        Command::Smc(run) => run.run(),
        Command::Commit(run) => run.run(),
        Command::Atomic(run) => run.run(),
        Command::Kv(run) => run.run(),
        Command::Sequencer(run) => run.run(),
        Command::Lecture(run) => run.run(),
    };
    match ran {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(text)) => match writeln!(io::stdout(), "{text}") {
            // Who reads no further (`| head`) has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                eprintln!("urxe-apps: writing to standard output: {error}");
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        },
        Err(error) => {
            eprintln!("urxe-apps: {error}");
            ExitCode::FAILURE
        }
    }
}
