//! `urxe ping`: whether the way to a RoCEv2 device is open, step by step, and what is usually wrong
//! where it is not.
//!
//! [`route`], [`port`] and [`path_mtu`] look at the way as the kernel and the network know it, and
//! need no device; [`device`] finds one from which [`answers`] asks the peer's connection manager.
//! [`mod@report`] is what people and programs read.

mod answers;
mod device;
mod netlink;
mod path_mtu;
mod port;
mod report;
mod route;
mod traffic_class;

use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::units;
use answers::Questions;
use clap::Args;
use report::{Part, Report};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  urxe ping 10.0.0.2
      Is the way to the RoCEv2 device on 10.0.0.2 open? If not, what is in it?
  urxe ping node7 --source 10.0.0.1
      The way from this address of ours, on a machine that has several.
  urxe ping node7 -c 100 -i 10ms
      A hundred questions: how many answers come, and how fast.
  urxe ping node7 --json | jq '.steps[] | select(.state == \"failed\")'
      For a script.

The peer may be urxe, kernel rxe or a NIC; no program has to run there. The steps:
  name           the address of HOST
  route          our address, the interface, its MTU, the router
  neighbour      whether the peer, or the router, is there (ARP, ND)
  port           whether anybody says that UDP port 4791 is closed or forbidden (ICMP)
  path-mtu       up to which RDMA path MTU nobody says that packets are too long (ICMP), and
                 echoes of that length come back, where the system allows them and the host answers
  device         the device here that asks: a daemon's; without a daemon, one of our own
  answers        whether the peer's connection manager answers (SIDR REQ on QP1), and how fast:
                 with the work of both daemons; `urxe perf send-lat` measures latency
  icrc           whether packets came whose ICRC is wrong
  traffic-class  whether DSCP and ECN are kept: an ICMP echo comes back with those of its request

The first packets are for QP0, which no RoCE device has; the peer drops and counts them.

JSON, version 1: version, host, reached, summary, and steps, each with part, state (ok, warning,
failed, unknown, left-out), says, advice if there is some, took_ms, and what was found: addresses;
source, interface, interface_mtu, gateway; neighbour, link_address; largest_packet, path_mtu,
echoed; device, address, socket, own; asked, answered, repeated, min_us, mean_us, max_us; wrong;
class_sent, class_back.

Exit codes: 0 if the device answers, 1 if not, 2 if the command line makes no sense, 3 if no daemon
answers at --socket.";

/// Say whether the way to a RoCEv2 device is open, and if not, at which step it ends and why.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Name or address of the device: urxe, kernel rxe or a NIC.
    #[arg(value_name = "HOST")]
    host: String,

    /// How many questions to ask.
    #[arg(
        short, long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    count: u32,

    /// Time between an answer and the next question.
    #[arg(
        short, long, value_name = "TIME", default_value = "200ms",
        value_parser = units::parse_duration
    )]
    interval: Duration,

    /// How long to wait for each answer. The question is repeated after 134 ms, then after twice
    /// as long each time.
    #[arg(
        short = 'W', long, value_name = "TIME", default_value = "1s",
        value_parser = units::parse_duration
    )]
    timeout: Duration,

    /// Address of this machine to ask from [default: that of the route].
    #[arg(short = 'I', long, value_name = "ADDR")]
    source: Option<IpAddr>,

    #[command(flatten)]
    daemon: DaemonArguments,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Looks at the way, and says what it is like.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match report(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => error.report("urxe ping"),
    }
}

/// Returns whether the peer's device is reached.
fn report(arguments: &Arguments) -> Result<bool, Error> {
    if arguments.daemon.socket.is_some() {
        // Where there is no daemon there is nothing to look at.
        DaemonClient::connect(&arguments.daemon, "ping")?;
    }
    let mut report = Report::new(&arguments.host, arguments.json);
    walk(arguments, &mut report)?;
    report.end();
    report.print_end()?;
    Ok(report.reached)
}

/// Goes as far as the way does.
fn walk(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    let Some(peers) = report.look(Part::Name, || route::resolve(&arguments.host))? else {
        return Ok(());
    };
    let find = || route::find(&peers, arguments.source);
    let Some(route) = report.look(Part::Route, find)? else { return Ok(()) };
    let is_open = report.look(Part::Neighbour, || route::find_neighbour(&route))?.is_some()
        && report.look(Part::Port, || port::try_port(&route))?.is_some()
        && report.look(Part::PathMtu, || path_mtu::find(&route))?.is_some();
    if !is_open {
        return Ok(());
    }
    // Who is tired of waiting wants to see what was found; and a daemon of our own has a directory
    // that goes with it.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Error::system("catching signals"))?;
    }
    let find = || device::find(&arguments.daemon, &route, &stop);
    let Some(device) = report.look(Part::Device, find)? else { return Ok(()) };
    let (device, questions) = (Arc::new(device), Questions::from(arguments));
    let mut rounds = None;
    let ask =
        || rounds.insert(answers::ask(&device, route.peer(), questions, &stop)).finding(&route);
    let answered = report.look(Part::Answers, ask)?;
    let (Some(rounds), Some(())) = (rounds, answered) else { return Ok(()) };
    report.look(Part::Icrc, || rounds.icrc())?;
    report.look(Part::TrafficClass, || traffic_class::find(&route))?;
    Ok(())
}
