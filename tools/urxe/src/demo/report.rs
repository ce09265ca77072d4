//! The report of the demo.

use super::environment::{Daemon, Faults};
use super::rounds::Figures;
use super::seconds;
use crate::machine::Machine;
use crate::table::{Align, Table};
use crate::units::{self, count, figure};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The result of a demo without errors.
#[derive(Serialize)]
pub(super) struct Report {
    verified: bool,
    operations: Vec<Figures>,
    daemons: Vec<Daemon>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
    #[serde(flatten)]
    faults: Faults,
    figures: Totals,
    machine: Machine,
    /// Whether the daemons were left running.
    kept: bool,
}

/// The totals.
#[derive(Serialize)]
struct Totals {
    seconds: f64,
    messages: u64,
    /// Messages of UC and UD that did not arrive.
    lost: u64,
    /// Bytes of those that did.
    bytes: u64,
    best_bandwidth_gbit_s: f64,
    best_median_latency_us: f64,
}

impl Report {
    pub(super) fn new(
        operations: Vec<Figures>,
        daemons: Vec<Daemon>,
        remark: Option<String>,
        faults: Faults,
        elapsed: Duration,
        kept: bool,
    ) -> Self {
        let bandwidths = operations.iter().map(|figures| figures.bandwidth_gbit_s);
        let medians = operations.iter().map(|figures| figures.latency_us.median);
        let figures = Totals {
            seconds: elapsed.as_secs_f64(),
            messages: operations.iter().map(|figures| figures.iterations).sum(),
            lost: operations.iter().map(|figures| figures.lost).sum(),
            bytes: operations
                .iter()
                .map(|figures| (figures.iterations - figures.lost) * u64::from(figures.size))
                .sum(),
            best_bandwidth_gbit_s: bandwidths.fold(0.0, f64::max),
            best_median_latency_us: medians.fold(f64::INFINITY, f64::min),
        };
        let machine = Machine::this();
        Report { verified: true, operations, daemons, remark, faults, figures, machine, kept }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("operation", Left),
            ("bytes", Right),
            ("messages", Right),
            ("lost", Right),
            ("Gbit/s", Right),
            ("messages/s", Right),
            ("median us", Right),
            ("p99 us", Right),
            ("max us", Right),
        ]);
        for row in &self.operations {
            table.row(vec![
                row.op.name().into(),
                units::size(row.size.into()),
                count(row.iterations),
                if row.op.is_lossy() { count(row.lost) } else { "-".into() },
                figure(row.bandwidth_gbit_s),
                count(row.messages_per_s as u64),
                figure(row.latency_us.median),
                figure(row.latency_us.p99),
                figure(row.latency_us.max),
            ]);
        }
        writeln!(f, "\n{table}")?;
        writeln!(f, "Bandwidth with many messages under way; latency is a full round trip, from")?;
        writeln!(
            f,
            "post to completion, with one. On UC and UD both are of what was sent, and what"
        )?;
        writeln!(f, "is lost stays lost. On {}.", self.machine)?;
        let Faults { lost_packets, resent_packets, .. } = self.faults;
        let broken = [
            (lost_packets, "lost"),
            (self.faults.duplicated_packets, "duplicated"),
            (self.faults.reordered_packets, "reordered"),
            (self.faults.delayed_packets, "delayed"),
            (self.faults.corrupted_packets, "corrupted"),
        ];
        let broken = broken.iter().filter(|(number, _)| *number > 0);
        let broken = broken.map(|(number, what)| format!("{} {what}", count(*number)));
        let broken = broken.collect::<Vec<_>>().join(", ");
        if broken.is_empty() {
            writeln!(f, "Packets lost on purpose: 0; resent: {}.", count(resent_packets))?;
        } else {
            writeln!(f, "Packets broken on purpose: {broken}; resent: {}.", count(resent_packets))?;
        }
        let Totals { messages, lost, bytes, .. } = self.figures;
        let elapsed = seconds(Duration::from_secs_f64(self.figures.seconds));
        writeln!(
            f,
            "Verified: every byte of {} messages ({} bytes) on both sides, in {elapsed}.",
            count(messages - lost),
            count(bytes)
        )?;
        if self.kept { self.next_steps(f) } else { Ok(()) }
    }
}

impl Report {
    /// How to go on with daemons that were left running.
    fn next_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nThe daemons keep running. Try, each in a terminal of its own:")?;
        let [first, last] = [&self.daemons[0], &self.daemons[self.daemons.len() - 1]];
        let (server, client) = (last.socket.display(), first.socket.display());
        writeln!(f, "  urxe perf write-bw --socket {server}")?;
        writeln!(f, "  urxe perf write-bw --socket {client} 127.0.0.1")?;
        writeln!(f, "  urxe stat --nonzero --socket {client}")?;
        let pids = self.daemons.iter().map(|daemon| daemon.pid.to_string());
        let pids = pids.collect::<Vec<_>>().join(" ");
        let directory = first.socket.parent().unwrap_or(&first.socket).display();
        writeln!(f, "To end them: kill {pids}; rm -r {directory}")
    }
}
