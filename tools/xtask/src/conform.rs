//! `cargo xtask conform`: what `urxe conform` says of urxe and of kernel rxe, in every way that
//! there is to ask them.

use crate::interop;
use std::ffi::OsString;
use urxe_shell::{Result, build_release};

/// What is asked, and how much.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Those of `interop/run conform`, which says them with `--help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Builds the programs, and asks.
pub(crate) fn show(Options { options }: &Options) -> Result {
    let is_help = |option: &OsString| option == "--help" || option == "-h";
    if !options.iter().any(is_help) {
        if let Some(reason) = interop::lacks_conform() {
            return Err(reason);
        }
        build_release()?;
    }
    interop::conform(options)
}
