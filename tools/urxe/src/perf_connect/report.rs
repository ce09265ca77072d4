//! The report.

use crate::machine::Machine;
use crate::units::{count, figure};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use urxe_verbs::Context;

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    device: String,
    server: SocketAddr,
    /// How many connections there were, all open at the same time.
    connections: u32,
    /// How many of them, and then of their messages, were under way at a time, at most.
    pending: u32,
    opened: Phase,
    used: Phase,
    closed: Phase,
    all: Phase,
    machine: Machine,
}

/// The time of one phase for all connections.
#[derive(Clone, Copy, Debug, Serialize)]
struct Phase {
    seconds: f64,
    connections_per_s: f64,
}

impl Report {
    /// The report of this many connections and their three phases.
    pub(super) fn new(
        context: &Context,
        server: SocketAddr,
        connections: u32,
        pending: u32,
        phases: [Duration; 3],
    ) -> Report {
        let phase = |took: Duration| {
            let seconds = took.as_secs_f64();
            Phase { seconds, connections_per_s: f64::from(connections) / seconds.max(1e-9) }
        };
        let [opened, used, closed] = phases.map(phase);
        let (device, machine) = (context.device().name.clone(), Machine::this());
        let all = phase(phases.iter().sum());
        Report { device, server, connections, pending, opened, used, closed, all, machine }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { device, server, connections, pending, .. } = self;
        let connections = count((*connections).into());
        writeln!(f, "{connections} connections of {device} to {server}, all open at once,")?;
        writeln!(f, "at most {pending} of them (or of their messages) under way at a time")?;
        writeln!(f, "{:>10} {:>10} {:>14}", "", "seconds", "connections/s")?;
        for (name, phase) in [
            ("opened", self.opened),
            ("used", self.used),
            ("closed", self.closed),
            ("in all", self.all),
        ] {
            let Phase { seconds, connections_per_s } = phase;
            let rate = count(connections_per_s as u64);
            writeln!(f, "{name:>10} {:>10} {rate:>14}", figure(seconds))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_short() {
        let phase = Phase { seconds: 2.0, connections_per_s: 500.0 };
        let report = Report {
            device: "urxe0".into(),
            server: "10.0.0.1:7".parse().unwrap(),
            connections: 1000,
            pending: 64,
            opened: phase,
            used: phase,
            closed: phase,
            all: phase,
            machine: Machine::this(),
        };
        let text = report.to_string();
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(text.contains("    opened       2.00            500\n"), "{text}");
    }
}
