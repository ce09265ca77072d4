//! perftest as distributions ship it, run by `urxe run` on the same daemons.

use super::{Server, finish, start};
use crate::netns::{Pair, Side};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use urxe_programs::table;
use urxe_shell::{Result, output};

/// Programs for bandwidth, and message sizes.
pub(super) const BANDWIDTH: [(&str, u32); 5] = [
    ("ib_write_bw", 64),
    ("ib_write_bw", 4096),
    ("ib_write_bw", 65_536),
    ("ib_read_bw", 65_536),
    ("ib_send_bw", 65_536),
];

/// Programs for latency, and message sizes.
pub(super) const LATENCY: [(&str, u32); 2] = [("ib_write_lat", 8), ("ib_send_lat", 8)];

/// Round trips of a latency program.
const ROUND_TRIPS: &str = "20000";

/// How a program is served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the daemon, which maps its memory where that is safe.
    Default,
    /// By the daemon, which maps its memory wherever it can (`URXE_MR=remap`).
    Remap,
    /// By a slot of its own (`urxe run --in-process`).
    OwnSlot,
}

impl Mode {
    pub(super) const ALL: [Mode; 3] = [Mode::Default, Mode::Remap, Mode::OwnSlot];

    /// What a figure of a program that is served so is called.
    pub(super) fn name_of(self, program: &str) -> String {
        let how = match self {
            Mode::Default => "",
            Mode::Remap => ", remap",
            Mode::OwnSlot => ", own slot",
        };
        format!("stock {program}{how}")
    }

    /// `urxe run` as far as the program's name.
    fn run(self, mut urxe: Command) -> Command {
        urxe.arg("run");
        match self {
            Mode::Default => {}
            Mode::Remap => {
                urxe.env("URXE_MR", "remap");
            }
            Mode::OwnSlot => {
                urxe.arg("--in-process");
            }
        }
        urxe.arg("--");
        urxe
    }
}

/// Gbit/s in so many seconds, a whole number.
pub(super) fn bandwidth(
    pair: &Pair,
    server: &Server,
    mode: Mode,
    program: &str,
    size: u32,
    seconds: f64,
) -> Result<f64> {
    let seconds = seconds.to_string();
    let row = run(pair, server, mode, program, size, &["--report_gbits", "-D", &seconds])?;
    row.get(3).copied().ok_or_else(|| format!("{program} printed {row:?}"))
}

/// Median, 99th and 99.9th percentile of half a round trip, in microseconds.
pub(super) fn latency(
    pair: &Pair,
    server: &Server,
    mode: Mode,
    program: &str,
    size: u32,
) -> Result<[f64; 3]> {
    match run(pair, server, mode, program, size, &["-n", ROUND_TRIPS])?[..] {
        [_, _, _, _, median, _, _, p99, p99_9] => Ok([median, p99, p99_9]),
        ref row => Err(format!("{program} printed {row:?}")),
    }
}

/// The figures that a program prints.
fn run(
    pair: &Pair,
    server: &Server,
    mode: Mode,
    program: &str,
    size: u32,
    more: &[&str],
) -> Result<Vec<f64>> {
    let size = size.to_string();
    let words: Vec<_> =
        [program, "-F", "-s", &size].into_iter().chain(more.iter().copied()).collect();
    let mut serving = start(mode.run(pair.urxe(server.side)).args(&words))?;
    let client = || output(mode.run(pair.urxe(Side::A)).args(&words).arg(&server.address));
    let mut text = client();
    for _ in 0..20 {
        if !text.as_ref().is_err_and(|error| error.contains("connect")) {
            break;
        }
        // The server may not listen yet.
        sleep(Duration::from_millis(100));
        text = client();
    }
    finish(&mut serving);
    let text = text?;
    let (_, mut rows) = table(&text);
    rows.pop().ok_or_else(|| format!("{program} printed no figures: {text}"))
}
