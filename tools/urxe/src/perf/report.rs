//! The output of a test: rows as they are measured, or one JSON object at the end.

use super::args::{Arguments, Memory};
use super::bench::Bench;
use super::idle::IdleCost;
use super::message::End;
use super::picture;
use super::plan::Plan;
use crate::completions::PollMode;
use crate::error::Error;
use crate::latency::{Latencies, LatencySummary};
use crate::machine::Machine;
use crate::output;
use crate::plot::Plot;
use crate::units::{count, figure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use urxe_verbs::QpEndpoint;

/// The figures of one length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    /// Length of a message in bytes.
    pub(super) size: u32,
    /// Messages in all; of a ping-pong, both directions count as one.
    pub(super) iterations: u64,
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) bandwidth: Option<Bandwidth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<LatencySummary>,
    /// What arrived, on unreliable transports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) received: Option<Received>,
    /// Gbit/s over seconds, or [latencies](Latencies::curve), at the end that measured them.
    #[serde(skip)]
    pub(super) curve: Vec<(f64, f64)>,
}

/// What the server received, on unreliable transports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Received {
    pub(super) messages: u64,
    /// Messages that were sent and did not arrive.
    pub(super) lost: u64,
    /// From the first message to the last.
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) bandwidth: Bandwidth,
}

impl Received {
    /// `messages` of `size` in this time, of those that were `sent`.
    pub(super) fn new(size: u32, messages: u64, sent: u64, elapsed: Duration) -> Self {
        let bandwidth = Bandwidth::new(size, messages, elapsed);
        let lost = sent.saturating_sub(messages);
        Received { messages, lost, seconds: elapsed.as_secs_f64(), bandwidth }
    }
}

/// Bytes and messages per second, headers not counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Bandwidth {
    /// 10^9 bits per second.
    pub(super) bandwidth_gbit_s: f64,
    /// 10^6 bytes per second.
    pub(super) bandwidth_mb_s: f64,
    pub(super) messages_per_s: f64,
}

impl Bandwidth {
    fn new(size: u32, messages: u64, elapsed: Duration) -> Self {
        let messages_per_s = messages as f64 / elapsed.as_secs_f64().max(1e-9);
        let bytes_per_s = messages_per_s * f64::from(size);
        Bandwidth {
            bandwidth_gbit_s: bytes_per_s * 8.0 / 1e9,
            bandwidth_mb_s: bytes_per_s / 1e6,
            messages_per_s,
        }
    }
}

impl Row {
    /// Messages of `size` in this time.
    pub(super) fn bandwidth(size: u32, iterations: u64, elapsed: Duration) -> Row {
        let bandwidth = Some(Bandwidth::new(size, iterations, elapsed));
        let seconds = elapsed.as_secs_f64();
        Row {
            size,
            iterations,
            seconds,
            bandwidth,
            latency_us: None,
            received: None,
            curve: Vec::new(),
        }
    }

    /// Latencies of messages of `size`.
    pub(super) fn latency(size: u32, elapsed: Duration, latencies: &Latencies) -> Row {
        Row {
            size,
            iterations: latencies.len(),
            seconds: elapsed.as_secs_f64(),
            bandwidth: None,
            latency_us: Some(latencies.summary()),
            received: None,
            curve: latencies.curve(),
        }
    }

    fn line(&self) -> String {
        let head = format!("{:>10} {:>12}", self.size, count(self.iterations));
        if let Some(bandwidth) = &self.bandwidth {
            let Bandwidth { bandwidth_gbit_s, bandwidth_mb_s, messages_per_s } = bandwidth;
            let [gbit, mb] = [figure(*bandwidth_gbit_s), figure(*bandwidth_mb_s)];
            let arrived = self.received.map_or_else(String::new, |received| {
                let gbit = figure(received.bandwidth.bandwidth_gbit_s);
                format!(" {:>12} {:>12} {gbit:>10}", count(received.messages), count(received.lost))
            });
            let rate = count(*messages_per_s as u64);
            return format!("{head} {gbit:>10} {mb:>10} {rate:>12}{arrived}\n");
        }
        let Some(LatencySummary { min, median, mean, p99, p99_9, max }) = self.latency_us else {
            return format!("{head}\n");
        };
        let cells = [min, median, mean, p99, p99_9, max].map(|us| format!(" {:>9}", figure(us)));
        format!("{head}{}\n", cells.concat())
    }
}

/// Which end of the test this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Role {
    Client,
    Server,
}

/// The two ends of a test, and how it is measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    role: Role,
    plan: Plan,
    local: Side,
    remote: Side,
    poll: PollMode,
    memory: Memory,
    path_mtu: u16,
    /// The memory of the idle queue pairs of this end, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<IdleCost>,
    machine: Machine,
}

#[derive(Clone, Debug, Serialize)]
struct Side {
    /// Known of our own end only.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    endpoints: Vec<QpEndpoint>,
}

impl Setting {
    /// The setting of a connected bench.
    pub(super) fn new(role: Role, bench: &Bench, ours: End, theirs: End) -> Self {
        let mtus = ours.endpoints.iter().chain(&theirs.endpoints).map(|endpoint| endpoint.mtu);
        Setting {
            role,
            plan: bench.plan.clone(),
            path_mtu: mtus.min().map_or(0, u16::from),
            local: Side {
                device: Some(bench.context.device().name.clone()),
                endpoints: ours.endpoints,
            },
            remote: Side { device: None, endpoints: theirs.endpoints },
            poll: bench.poll,
            memory: bench.memory_kind,
            idle: bench.idle.as_ref().map(|idle| idle.cost),
            machine: Machine::this(),
        }
    }
}

impl Setting {
    /// What is measured, in a line.
    fn summary(&self) -> String {
        let Setting { plan, path_mtu, .. } = self;
        let (test, window, qps) = (plan.test.name(), plan.window(), plan.qps);
        let transport = name(plan.transport).to_uppercase();
        let plural = if qps == 1 { "" } else { "s" };
        let shared = if plan.srq { " with an SRQ" } else { "" };
        let under_way = match plan.test.is_latency() {
            true => String::new(),
            false => format!("{window} messages under way on each, "),
        };
        format!("{test}: {qps} {transport} QP{plural}{shared}, {under_way}path MTU {path_mtu}")
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { plan, poll, memory, .. } = self;
        let (poll, memory) = (name(*poll), name(*memory));
        writeln!(f, "{}, poll {poll}, memory {memory}", self.summary())?;
        writeln!(f, "   local: {}", self.local)?;
        writeln!(f, "  remote: {}", self.remote)?;
        if let Some(idle) = &self.idle {
            writeln!(f, "    idle: {idle}")?;
        }
        if plan.test.is_latency() {
            let columns = ["min us", "median", "mean", "p99", "p99.9", "max"];
            let columns = columns.map(|column| format!(" {column:>9}")).concat();
            writeln!(f, "Latency is {}.", plan.test.latency_meaning())?;
            writeln!(f, "{:>10} {:>12}{columns}", "bytes", "iterations")
        } else {
            let [a, b, c, d, e] = ["bytes", "messages", "Gbit/s", "MB/s", "messages/s"];
            write!(f, "{a:>10} {b:>12} {c:>10} {d:>10} {e:>12}")?;
            if !plan.transport.is_reliable() {
                write!(f, " {:>12} {:>12} {c:>10}", "received", "lost")?;
            }
            writeln!(f)
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}, ")?;
        }
        let Some(first) = self.endpoints.first() else { return Ok(()) };
        write!(f, "{}, QP {:#08x}", first.gid, first.qpn)?;
        match self.endpoints.len() {
            1 => Ok(()),
            len => write!(f, " and {} more", len - 1),
        }
    }
}

/// The name of a value on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The whole result, as JSON has it.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_meaning: Option<&'static str>,
    /// Whether all data were checked, which then were right.
    verified: bool,
    results: Vec<Row>,
}

/// Prints figures as they are measured.
pub(super) struct Reporter {
    json: bool,
    /// Whether curves are printed, and where they are drawn.
    plot: bool,
    svg: Option<PathBuf>,
    setting: Setting,
    rows: Vec<Row>,
}

impl Reporter {
    /// Prints the setting.
    pub(super) fn begin(setting: Setting, arguments: &Arguments) -> Result<Self, Error> {
        let Arguments { json, plot, ref svg, .. } = *arguments;
        if !json {
            output::text(&setting)?;
        }
        Ok(Reporter { json, plot, svg: svg.clone(), setting, rows: Vec::new() })
    }

    /// Prints the figures of one length.
    pub(super) fn row(&mut self, row: Row) -> Result<(), Error> {
        if !self.json {
            output::text(row.line())?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints what remains at the end.
    pub(super) fn finish(self) -> Result<(), Error> {
        let Plan { test, verify: verified, .. } = self.setting.plan;
        let is_drawn = self.plot || self.svg.is_some();
        let chart = is_drawn
            .then(|| picture::chart(self.setting.summary(), &self.setting.plan, &self.rows));
        if self.json {
            output::json(&Report {
                setting: self.setting,
                latency_meaning: test.is_latency().then(|| test.latency_meaning()),
                verified,
                results: self.rows,
            })?;
        } else if verified {
            output::text("All data were right.\n")?;
        }
        let Some(chart) = chart else { return Ok(()) };
        if self.plot {
            output::text(Plot::new(&chart))?;
        }
        // Last, so that figures are not lost with a file that cannot be written.
        let Some(path) = self.svg else { return Ok(()) };
        let saved = chart.save(&path, &urxe_chart::command("urxe"));
        saved.map_err(Error::system(format!("writing {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bandwidth_in_all_units() {
        let row = Row::bandwidth(1_000_000, 250, Duration::from_secs(2));
        let bandwidth = row.bandwidth.unwrap();
        assert_eq!(bandwidth.messages_per_s, 125.0);
        assert_eq!(bandwidth.bandwidth_mb_s, 125.0);
        assert_eq!(bandwidth.bandwidth_gbit_s, 1.0);
        assert_eq!(row.line().split_whitespace().last(), Some("125"));
    }

    #[test]
    fn messages_that_did_not_arrive_count_as_lost() {
        let received = Received::new(1000, 75, 100, Duration::from_secs(1));
        assert_eq!((received.messages, received.lost), (75, 25));
        let row = Row { received: Some(received), ..Row::bandwidth(1000, 100, Duration::ZERO) };
        let cells: Vec<_> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(cells[5..7], ["75", "25"]);
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap().received, Some(received));
    }

    #[test]
    fn rows_are_the_same_after_serialization() {
        let mut latencies = Latencies::new();
        (1..=5).for_each(|us| latencies.record(Duration::from_micros(us)));
        let rows = [
            Row::bandwidth(64, 1000, Duration::from_secs(1)),
            Row::latency(64, Duration::from_secs(1), &latencies),
        ];
        for row in rows {
            let text = serde_json::to_string(&row).unwrap();
            let back: Row = serde_json::from_str(&text).unwrap();
            assert_eq!(back.line(), row.line());
        }
    }
}
