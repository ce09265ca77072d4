//! `urxe why`: what happened to a QP, and why it failed.

mod view;

use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::output;
use crate::units::parse_qpn;
use clap::Args;
use urxe_shm::control::{DeviceInfo, HistorySubject};
use view::{Failures, Histories, HistoryView};

const EXAMPLES: &str = "\
Examples:
  urxe why
      The QPs that failed last, each with the reason.
  urxe why 0x11
      All that happened to one QP, oldest first: how it was set up, retries, NAKs, drops, the first
      work request that failed, and what to do.
  urxe why --last
      The same of the QP that failed last.
  urxe why --last --json | jq -r '.histories[0].reason'
      The reason alone, for a script.

In parentheses stands what was posted and the traffic between two events. Where something is told
that happened several times, it is that before the first.

A QP that has ended is remembered until 64 others have failed and ended after it (32, if it had
not failed itself). When the part of the daemon that served it has ended itself, because its user
has no program any more, because it ran in the program (urxe run --in-process), or because it was
killed or crashed, the last 256 QPs of its user are remembered as they were up to 0.1 s before,
the 64 that failed last in any case. QPs of other users are shown to root and to the user that the
daemon runs as.";

/// Tell what happened to a QP, and why it failed; also after it has ended.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// The QP: decimal or hexadecimal [default: list the QPs that failed last].
    #[arg(value_name = "QPN", value_parser = parse_qpn)]
    qpn: Option<u32>,

    /// The QP that failed last.
    #[arg(long, conflicts_with = "qpn")]
    last: bool,

    /// Only of this device [default: all].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Asks the daemon and prints.
///
/// # Errors
/// If there is no such device, or QP.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = DaemonClient::connect(&arguments.daemon, "why")?;
    let devices = client.devices_named(arguments.device.as_deref())?;
    let subject = arguments.qpn.map_or(HistorySubject::Failed, HistorySubject::Qp);
    let mut histories = Vec::new();
    for DeviceInfo { name, .. } in &devices {
        let found = client.histories(name, subject)?;
        histories.extend(found.iter().map(|history| HistoryView::new(name, history)));
    }
    match (arguments.qpn, arguments.last) {
        (Some(qpn), _) if histories.is_empty() => Err(Error::Failed(format!(
            "qpn {qpn:#08x}: no such QP, nor one that ended lately (urxe res qp lists those that \
             there are, urxe why those that failed)"
        ))),
        (Some(_), _) => output::print(arguments.json, &Histories { histories }),
        (None, true) => {
            histories.sort_by(|one, other| one.failed_before(other));
            let histories: Vec<_> = histories.pop().into_iter().collect();
            output::print(arguments.json, &Histories { histories })
        }
        (None, false) => {
            histories.sort_by(|one, other| one.failed_before(other));
            let histories = Histories { histories };
            output::print(arguments.json, &Failures { histories })
        }
    }
}
