//! perftest as distributions ship it, run by `urxe run` on the same daemons.

use super::{finish, start};
use crate::netns::{Pair, Side};
use std::thread::sleep;
use std::time::Duration;
use urxe_programs::table;
use urxe_shell::{Result, output};

/// Programs for bandwidth, and message sizes.
pub(super) const BANDWIDTH: [(&str, u32); 2] = [("ib_write_bw", 65_536), ("ib_send_bw", 65_536)];

/// Programs for latency, and message sizes.
pub(super) const LATENCY: [(&str, u32); 1] = [("ib_write_lat", 8)];

/// Round trips of a latency program.
const ROUND_TRIPS: &str = "20000";

/// Gbit/s.
pub(super) fn bandwidth(
    pair: &Pair,
    server: &str,
    program: &str,
    size: u32,
    seconds: f64,
) -> Result<f64> {
    // It takes whole seconds.
    let seconds = seconds.ceil().to_string();
    let row = run(pair, server, program, size, &["--report_gbits", "-D", &seconds])?;
    row.get(3).copied().ok_or_else(|| format!("{program} printed {row:?}"))
}

/// Median, 99th and 99.9th percentile of half a round trip, in microseconds.
pub(super) fn latency(pair: &Pair, server: &str, program: &str, size: u32) -> Result<[f64; 3]> {
    match run(pair, server, program, size, &["-n", ROUND_TRIPS])?[..] {
        [_, _, _, _, median, _, _, p99, p99_9] => Ok([median, p99, p99_9]),
        ref row => Err(format!("{program} printed {row:?}")),
    }
}

/// The figures that a program prints.
fn run(pair: &Pair, server: &str, program: &str, size: u32, more: &[&str]) -> Result<Vec<f64>> {
    let size = size.to_string();
    let mut words = vec!["run", "--", program, "-F", "-s", &size];
    words.extend(more);
    let mut serving = start(pair.urxe(Side::B).args(&words))?;
    let client = || output(pair.urxe(Side::A).args(&words).arg(server));
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
