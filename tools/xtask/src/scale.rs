//! `cargo xtask scale`: how the engine fares under losses, on long paths, with many QPs and beside
//! others, in the simulated network.

use std::ffi::OsString;
use urxe_shell::{Result, cargo, run};

/// What is run, and how it is shown.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Those of the program `scale` of `spec-tests`, which says them with `--help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Runs the scenarios, built as the tests are.
pub(crate) fn show(Options { options }: &Options) -> Result {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "urxe-spec-tests", "--bin", "scale", "--"]);
    run(command.args(options))
}
