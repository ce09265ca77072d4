//! `cargo xtask attack`: hostile programs and strangers against a daemon, with victims beside.

use std::ffi::OsString;
use std::process::Command;
use urxe_shell::{Result, build_release, release_binary, run};

/// What is done, and how it is shown.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Those of the program `attack` of `spec-tests`, which says them with `--help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Builds a daemon and the attacks as they are released, and makes them.
pub(crate) fn attack(Options { options }: &Options) -> Result {
    build_release()?;
    run(Command::new(release_binary("attack")).args(options))
}

/// The short form, as CI makes it.
pub(crate) fn short() -> Result {
    attack(&Options { options: vec!["--short".into()] })
}
