//! `cargo xtask scale`: how the engine fares under losses, on long paths, with many QPs and beside
//! others, in the simulated network.

use urxe_shell::{Result, cargo, run};

/// What is run, and how it is shown.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// More cases, for longer; writes the table to `spec-tests/scale.txt`.
    #[arg(long)]
    long: bool,
    /// Show JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only this scenario; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// Runs the scenarios, built as the tests are.
pub(crate) fn show(options: &Options) -> Result {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "urxe-spec-tests", "--bin", "scale", "--"]);
    if options.long {
        command.arg("--long");
    }
    if options.json {
        command.arg("--json");
    }
    for name in &options.only {
        command.args(["--only", name]);
    }
    run(&mut command)
}
