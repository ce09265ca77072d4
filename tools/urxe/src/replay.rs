//! `urxe replay`: how a responder in a capture behaves, judged by our engine in its place.

use crate::error::Error;
use crate::output;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use urxe_replay::{Report, Trace};

const LONG_ABOUT: &str = "\
Judge the RoCEv2 responders in a capture: hardware, kernel rxe or urxe.

The requests in the capture are handed to urxe's own protocol engine, which takes the place of
each responder, and its responses are compared with the captured ones field by field: opcode, PSN,
syndrome, MSN, data, lengths, ICRC, P_Key, reserved bits, the IP flags. No daemon is needed, and
nothing is sent.

A capture does not show the state of a responder: its path MTU, its receives, its memory. That is
inferred from its responses, and listed. What the standard leaves open (one ACK for several
requests, credits, ...) is listed as allowed. What remains is a difference: either that responder
is wrong, or urxe is.

pcap and pcapng are read, of Ethernet (with VLAN tags), raw IP and Linux cooked links. Capture
whole frames, best at the responder:
  tcpdump -i eth0 -s 0 -w roce.pcap udp port 4791
Hardware hides its packets from tcpdump; a mirror port of the switch shows them, or the NIC's own
sniffer.";

const EXAMPLES: &str = "\
Examples:
  urxe replay roce.pcap
      What was inferred, what differs and what is allowed, for each connection.
  urxe replay roce.pcap --json | jq '.directions[].differences[]'
      All differences, for a script.
  urxed --addr 10.0.0.1 --capture urxe.pcapng
      Makes a capture of urxe itself, which can be replayed as well.

Exit codes: 0 if nothing differs (what is allowed does not count), 1 if something does, 2 if the
file cannot be read as a capture.";

/// Judge the RoCEv2 responders in a capture: hardware, kernel rxe or urxe.
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A pcap or pcapng file.
    capture: PathBuf,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Reads, replays and prints.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match judge(arguments) {
        Ok(report) if report.differences == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => error.report("urxe"),
    }
}

fn judge(arguments: &Arguments) -> Result<Report, Error> {
    let trace = Trace::read(&arguments.capture).map_err(|error| Error::Usage(error.to_string()))?;
    let report = urxe_replay::judge(arguments.capture.display().to_string(), trace);
    output::even_if_unread(output::print(arguments.json, &report))?;
    Ok(report)
}
