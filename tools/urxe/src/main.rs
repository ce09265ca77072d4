//! `urxe`: try, look into and measure the RoCEv2 NIC in user space. See `urxe --help`.

mod asking;
mod capture;
mod cli;
mod completions;
mod conform;
mod daemon;
mod daemon_client;
mod demo;
mod detach;
mod devinfo;
mod doctor;
mod error;
mod explain;
mod growth;
mod latency;
mod link;
mod machine;
mod manual;
mod output;
mod path_view;
mod pattern;
mod perf;
mod perf_connect;
mod ping;
mod plot;
mod replay;
mod res;
mod roce_port;
mod run;
mod stat;
mod sysfs_overlay;
mod table;
mod top;
mod units;
mod why;

use std::process::ExitCode;

fn main() -> ExitCode {
    urxe_daemon::run_if_worker().unwrap_or_else(|| cli::run(clap::Parser::parse()))
}
