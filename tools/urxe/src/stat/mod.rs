//! `urxe stat`: what was sent, received, lost and repeated.

mod view;

use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::{output, units};
use clap::Args;
use std::thread::sleep;
use std::time::{Duration, Instant};
use view::{Selection, Snapshot, Watch};

const EXAMPLES: &str = "\
Examples:
  urxe stat
      All counters of all devices and QPs, with what they mean, and the paths to peers: window,
      rate, round trip, and what QPs wait for.
  urxe stat --nonzero --watch 1
      What happens now: every second, what was counted in it.
  urxe stat --device urxe0 --qp 0x11
      One QP.
  urxe stat --json | jq '.devices[0].counters.retransmitted_packets'
      One figure, for a script.";

/// Show what devices and QPs have counted, what each count means, and what holds the paths to
/// peers.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Only this device [default: all].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Only the QP of this number (decimal, or hex behind 0x) [default: all].
    #[arg(long, value_name = "QPN", value_parser = units::parse_qpn)]
    qp: Option<u32>,

    /// Only counters that are not 0, and with --watch only those that moved.
    #[arg(long)]
    nonzero: bool,

    /// Repeat until interrupted: after each interval show what was counted in it.
    #[arg(long, value_name = "SECONDS", value_parser = units::parse_duration)]
    watch: Option<Duration>,

    /// Print JSON in place of text: one object, or with --watch one a line.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = DaemonClient::connect(&arguments.daemon, "stat")?;
    let selection = Selection {
        device: arguments.device.clone(),
        qp: arguments.qp,
        nonzero: arguments.nonzero,
    };
    let first = Snapshot::take(&mut client, &selection)?;
    let Some(interval) = arguments.watch else {
        return output::print(arguments.json, &first.view(&selection));
    };
    let mut watch = Watch::from(&first);
    let mut next = Instant::now();
    loop {
        next = next_look(next, interval, Instant::now());
        sleep(next.saturating_duration_since(Instant::now()));
        let now = Snapshot::take(&mut client, &selection)?;
        output::print(arguments.json, &watch.since_last(&now).view(&selection))?;
    }
}

/// When to look again: an interval after the last time, or after now where a look took longer,
/// because those that were missed are not made up for.
fn next_look(last: Instant, interval: Duration, now: Instant) -> Instant {
    let due = last + interval;
    if due > now { due } else { now + interval }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_were_missed_are_not_made_up_for() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(next_look(start, second, start + second / 2), start + second);
        assert_eq!(next_look(start, second, start + 9 * second), start + 10 * second);
    }
}
