//! `urxe perf`: bandwidth and latency between two programs, as perftest measures them.
//!

mod args;
mod bandwidth;
mod bench;
mod client;
mod idle;
mod latency;
mod message;
mod partner;
mod picture;
mod plan;
mod progress;
mod receives;
mod report;
mod requests;
mod samples;
mod server;
mod verify;

pub(crate) use args::Arguments;

use crate::error::Error;

/// Runs one end of a test.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.server {
        Some(host) => client::run(arguments, host),
        None => server::run(arguments),
    }
}
