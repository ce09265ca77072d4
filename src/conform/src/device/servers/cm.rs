//! Programs for the connection manager: those that wait to be connected to, and one that calls us.

use super::start::{Process, Starter};
use super::{Options, Services};
use crate::device::Unavailable;

/// Programs that are kept running, as far as they are there.
#[derive(Default)]
pub(super) struct Listeners {
    accepts: Listener,
    datagrams: Listener,
}

/// One of them.
#[derive(Default)]
struct Listener {
    process: Option<Process>,
    is_missing: bool,
}

/// What follows the ports of servers.
const ACCEPTS: u16 = 600;
/// Where udaddy listens, always.
const DATAGRAMS: u16 = 7174;
/// Accepts connections, one after the other.
pub(super) const RPING: [&str; 3] = ["rping", "-s", "-P"];
/// Names a QP for datagrams, to so many peers.
pub(super) const UDADDY: [&str; 3] = ["udaddy", "-c", "100"];
/// A program that waits ends after so many seconds, also if who started it cannot end it.
const LONGEST: &str = "900";
/// A caller ends after so many.
const LONGEST_CALL: &str = "60";
/// The exit status that says that there is no such program.
const NOT_FOUND: i32 = 127;

impl Listeners {
    /// The programs that wait at the device: those that are known, and others that we start.
    pub(super) fn services(&mut self, options: &Options, starter: &Starter) -> Services {
        let known = options.services;
        let port = options.port.saturating_add(ACCEPTS);
        let at = port.to_string();
        let rping = [&RPING[..], &["-p", &at]].concat();
        let accepts = known.accepts.or_else(|| self.accepts.keep(starter, &rping, port));
        let datagrams =
            known.datagrams.or_else(|| self.datagrams.keep(starter, &UDADDY, DATAGRAMS));
        Services { accepts, datagrams, ..known }
    }
}

impl Listener {
    /// The port, if the program runs or can be started.
    fn keep(&mut self, starter: &Starter, words: &[&str], port: u16) -> Option<u16> {
        let ended = match &mut self.process {
            Some(process) => match process.exit_status() {
                None => return Some(port),
                status => status,
            },
            None => None,
        };
        self.is_missing |= ended == Some(NOT_FOUND);
        if self.is_missing {
            return None;
        }
        self.process = starter.run_aside(&within(LONGEST, words)).ok();
        self.process.is_some().then_some(port)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.stop();
        }
    }
}

/// Has a program at the device connect to a port of ours.
pub(super) fn call(
    options: &Options,
    starter: &Starter,
    port: u16,
) -> Result<Process, Unavailable> {
    let (local, port) = (options.local.to_string(), port.to_string());
    let words = ["rping", "-c", "-a", &local, "-p", &port, "-C", "1"];
    starter.run_aside(&within(LONGEST_CALL, &words))
}

/// A command that ends after so many seconds at the latest.
fn within(seconds: &str, words: &[&str]) -> Vec<String> {
    ["timeout", seconds].iter().chain(words).map(|word| (*word).to_owned()).collect()
}
