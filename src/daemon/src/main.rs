//! `urxed`: see `urxed --help`, or the `urxe_daemon` library for a NIC inside another program.

use std::process::ExitCode;

fn main() -> ExitCode {
    urxe_daemon::run_if_worker().unwrap_or_else(|| urxe_daemon::run(clap::Parser::parse()))
}
