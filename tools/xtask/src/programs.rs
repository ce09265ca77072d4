//! Stock verbs programs on urxe: what they need of this machine, and the run itself.

use crate::packages::{
    CC, FIO, IBVERBS_DEV, IBVERBS_UTILS, PERFTEST, QPERF, RDMA, RDMACM_DEV, RDMACM_UTILS,
    RXE_PROVIDER, UCX_UTILS, VALGRIND, lacking,
};
use urxe_shell::{Result, build_release};

/// Options of the stage.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only what has this text in its name or options.
    #[arg(long, default_value = "")]
    only: String,
    /// With the data path of each program in the program itself (`urxe run --in-process`).
    #[arg(long)]
    in_process: bool,
}

/// Why it cannot run here.
pub(crate) fn lacks() -> Option<String> {
    lacking(&[
        CC,
        IBVERBS_DEV,
        RXE_PROVIDER,
        IBVERBS_UTILS,
        RDMACM_DEV,
        RDMACM_UTILS,
        PERFTEST,
        QPERF,
        FIO,
        UCX_UTILS,
        VALGRIND,
        RDMA,
    ])
}

/// Runs everything and prints the table; an error if anything failed.
pub(crate) fn check(options: &Options) -> Result {
    if let Some(reason) = lacks() {
        return Err(reason);
    }
    build_release()?;
    urxe_programs::check(&options.only, options.in_process)
}
