//! What slots give and cost: one pair of programs and two together, with one slot and with two, and
//! a pair beside programs that do nothing.

use super::{Figure, Options, Server, finish, number, perf_command, start};
use crate::netns::{Pair, Side};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use urxe_shell::{Result, release_binary};

/// Slots of each daemon.
pub(super) const SLOTS: [&str; 2] = ["1", "2"];

/// Tests of `urxe perf`: name and message size.
const TESTS: [(&str, u32); 2] = [("write-bw", 64), ("write-bw", 65_536)];

/// TCP ports of the pairs of programs.
const PORTS: [&str; 2] = ["18600", "18601"];

/// Programs beside a pair that do nothing.
const IDLE_PROGRAMS: usize = 1000;

/// One round with daemons that have so many slots.
pub(super) fn measure(
    options: &Options,
    pair: &Pair,
    server: &Server,
    mtu: u32,
    slots: &str,
) -> Result<Vec<Figure>> {
    let figure = |test: &str, size| Figure {
        link_mtu: mtu,
        test: format!("{test}, slots: {slots}"),
        size: Some(size),
        ..Figure::default()
    };
    let mut figures = Vec::new();
    for (test, size) in TESTS {
        let mut alone = None;
        for pairs in 1..=PORTS.len() {
            let reports = together(options, pair, server, test, size, &PORTS[..pairs])?;
            let sum = |name: &str| -> Result<f64> {
                reports.iter().map(|report| number(&report["results"][0], name)).sum()
            };
            let gbit_s = sum("bandwidth_gbit_s")?;
            figures.push(Figure {
                gbit_s: Some(gbit_s),
                messages_s: Some(sum("messages_per_s")?),
                by_alone: Some(gbit_s / *alone.get_or_insert(gbit_s)),
                ..figure(&format!("{test}, pairs: {pairs}"), size)
            });
        }
    }
    let mut alone = None;
    for idle in [0, IDLE_PROGRAMS] {
        let programs = [Side::A, Side::B].map(|side| IdlePrograms::start(pair, side, idle));
        let reports = together(options, pair, server, "send-lat", 8, &PORTS[..1]);
        for programs in programs {
            programs?.end();
        }
        let latency = &reports?[0]["results"][0]["latency_us"];
        let median = number(latency, "median")?;
        figures.push(Figure {
            latency_us: Some([median, number(latency, "p99")?, number(latency, "p99_9")?]),
            by_alone: Some(median / *alone.get_or_insert(median)),
            ..figure(&format!("send-lat, idle: {idle}"), 8)
        });
    }
    Ok(figures)
}

/// One test of `urxe perf` between several pairs of programs at once: the reports of the clients.
fn together(
    options: &Options,
    pair: &Pair,
    server: &Server,
    test: &str,
    size: u32,
    ports: &[&str],
) -> Result<Vec<serde_json::Value>> {
    let command = |side: Side, port: &str| {
        let mut command = perf_command(options, pair, side, test, size);
        command.args(["--port", port]);
        command
    };
    let mut serving = Vec::new();
    for port in ports {
        serving.push(start(&mut command(server.side, port))?);
    }
    let clients: Vec<_> = ports
        .iter()
        .map(|port| command(Side::A, port).arg(&server.address).stdout(Stdio::piped()).spawn())
        .collect();
    let mut reports = Vec::new();
    for client in clients {
        let ended = client.and_then(Child::wait_with_output);
        let ended = ended.map_err(|error| format!("urxe perf {test}: {error}"))?;
        reports.push(
            serde_json::from_slice(&ended.stdout)
                .map_err(|error| format!("urxe perf {test}: {error}"))?,
        );
    }
    serving.iter_mut().for_each(finish);
    Ok(reports)
}

/// Programs that have opened a device and do nothing more.
struct IdlePrograms(Option<Child>);

impl IdlePrograms {
    fn start(pair: &Pair, side: Side, count: usize) -> Result<IdlePrograms> {
        if count == 0 {
            return Ok(IdlePrograms(None));
        }
        let mut command = Command::new(release_binary("baseline"));
        command.args(["idle-programs", "--count", &count.to_string(), "--socket"]);
        let mut child = command
            .arg(pair.socket(side))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("idle-programs: {error}"))?;
        let mut ready = String::new();
        let stdout = child.stdout.take().ok_or("idle-programs has no output")?;
        let programs = IdlePrograms(Some(child));
        match BufReader::new(stdout).read_line(&mut ready) {
            Ok(length) if length > 0 => Ok(programs),
            _ => {
                programs.end();
                Err(format!("{count} idle programs cannot be had"))
            }
        }
    }

    fn end(self) {
        if let Some(mut child) = self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
