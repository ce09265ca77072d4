//! What a capture costs that takes none of the packets: the same test without it and with it on
//! both sides, in turn, the other one first in every second round.

use super::{Figure, Options, Server, number, perf};
use crate::netns::{Pair, Side};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use urxe_shell::Result;

/// Tests of `urxe perf`: name and message size.
const TESTS: [(&str, u32); 4] =
    [("write-bw", 65_536), ("send-bw", 65_536), ("write-bw", 64), ("send-bw", 64)];

/// A QP that there is not.
const NO_QP: &str = "0xfffff0";

/// One round, of an even or an odd number.
pub(super) fn measure(
    options: &Options,
    pair: &Pair,
    server: &Server,
    mtu: u32,
    round: usize,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (test, size) in TESTS {
        let mut measured = [(0.0, 0.0); 2];
        for step in 0..2 {
            let is_tapped = (round + step) % 2 == 1;
            let taps = match is_tapped {
                true => vec![IdleTap::start(pair, Side::A)?, IdleTap::start(pair, Side::B)?],
                false => Vec::new(),
            };
            let report = perf(options, pair, server, test, size, &[])?;
            drop(taps);
            let result = &report["results"][0];
            measured[usize::from(is_tapped)] =
                (number(result, "bandwidth_gbit_s")?, number(result, "messages_per_s")?);
        }
        let [(without, _), (with, _)] = measured;
        for (name, (gbit_s, messages_s)) in ["", ", idle tap"].into_iter().zip(measured) {
            figures.push(Figure {
                link_mtu: mtu,
                test: format!("{test}{name}"),
                size: Some(size),
                gbit_s: Some(gbit_s),
                messages_s: Some(messages_s),
                by_untapped: (!name.is_empty()).then_some(with / without),
                ..Figure::default()
            });
        }
    }
    Ok(figures)
}

/// A capture of no packet, until it is dropped.
struct IdleTap(Child);

impl IdleTap {
    fn start(pair: &Pair, side: Side) -> Result<IdleTap> {
        let mut command = pair.urxe(side);
        command.args(["capture", "--qp", NO_QP]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut tap = IdleTap(command.spawn().map_err(|error| format!("urxe capture: {error}"))?);
        let said = tap.0.stderr.take().ok_or("urxe capture has no standard error")?;
        let mut line = String::new();
        // It says so when the daemon has begun.
        match BufReader::new(said).read_line(&mut line) {
            Ok(length) if length > 0 => Ok(tap),
            _ => Err("urxe capture has ended before it began".into()),
        }
    }
}

impl Drop for IdleTap {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
