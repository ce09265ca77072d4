//! `urxe demo`: RDMA between two programs on this machine, without root, hardware or set-up.
//!
//! Two daemons on two loopback addresses are the NICs. Of the two programs one is this process,
//! which posts all operations (the requester), and the other a child of it (the partner).
//! They control each other over pipes, and exchange the data by RDMA.

mod address;
mod atomics;
mod environment;
mod message;
mod partner;
mod program;
mod report;
mod requester;
mod rounds;
mod unordered;
mod windows;

use crate::daemon::Lifetime;
use crate::error::Error;
use crate::{output, units};
use address::Addresses;
use clap::Args;
use environment::{Environment, Faults};
use report::Report;
use requester::Requester;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use urxe_port::fault::FaultSpec;

const EXAMPLES: &str = "\
Examples:
  urxe demo
      See it work: every operation in several sizes, each byte checked, bandwidth and latency.
  urxe demo --fault drop=1%
      The same over a network that loses every hundredth packet: reliable connections repair
      it, and of unreliable ones and datagrams the lost messages are counted.
  urxe demo --ipv6
      The same over IPv6.
  urxe demo --keep
      Afterwards leave the daemons running, to try the other commands on them.
  urxe demo --json | jq .verified
      For a script.";

/// See RDMA work on this machine: two daemons and two programs, every byte checked.
///
/// Starts two daemons on two loopback addresses, and lets two programs exchange data over them: on
/// a reliable connection by SEND, WRITE, READ, atomics, ATOMIC WRITE and FLUSH in sizes up to
/// 1 MiB, through memory windows and to a shared receive queue; on an unreliable connection; and by
/// datagrams to one and to a multicast group. Checks every byte of what arrives on both sides, and
/// shows bandwidth and latency. Takes some seconds, needs no privilege, and leaves nothing behind.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Use IPv6.
    ///
    /// The loopback interface has only one IPv6 address, ::1, so that one daemon serves both
    /// programs.
    #[arg(long)]
    ipv6: bool,

    /// Break the network on purpose, for example `drop=1%` or `drop=1%,reorder=2%,corrupt=0.1%`.
    ///
    /// `urxe daemon --help` lists the faults.
    #[arg(long, value_name = "SPEC", value_parser = parse_fault)]
    fault: Option<String>,

    /// Leave the daemons and their directory, and print how to use and how to end them.
    #[arg(long)]
    keep: bool,

    /// Print one JSON object in place of progress and a table.
    #[arg(long)]
    json: bool,
}

/// The arguments of the partner.
#[derive(Args, Debug)]
pub(crate) struct PartnerArguments {
    /// Socket of the partner's daemon.
    #[arg(long)]
    socket: PathBuf,
    #[command(flatten)]
    lifetime: Lifetime,
}

/// Checks a specification of faults, and returns it as it is.
fn parse_fault(text: &str) -> Result<String, String> {
    let spec = text.parse::<FaultSpec>();
    spec.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The demo should not take longer.
const TIME_LIMIT: Duration = Duration::from_secs(50);

/// Runs the demo.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let started = Instant::now();
    let say = |text: &dyn std::fmt::Display| {
        if !arguments.json {
            output::note(text);
        }
    };
    let environment = Environment::new(arguments.keep)?;
    let (daemons, remark) = start_daemons(&environment, arguments)?;
    for daemon in &daemons {
        say(&format_args!("started {daemon}"));
    }
    if let Some(remark) = &remark {
        say(remark);
    }
    let [requester, partner] = [&daemons[0], daemons.last().unwrap_or(&daemons[0])];
    let link = environment.start_partner(&partner.socket)?;
    let deadline = started + TIME_LIMIT;
    let is_lossy = arguments.fault.is_some();
    let mut requester = Requester::connect(&requester.socket, link, deadline, is_lossy)?;
    say(&format_args!("two programs are connected: {}", requester.path()));
    let operations = requester.run(say)?;
    let faults = Faults::count(&daemons)?;
    requester.finish()?;
    let elapsed = started.elapsed();
    let report = Report::new(operations, daemons, remark, faults, elapsed, arguments.keep);
    if arguments.keep {
        environment.keep();
    } else {
        environment.clean_up();
    }
    output::print(arguments.json, &report)
}

/// Runs the other program.
pub(crate) fn run_partner(arguments: &PartnerArguments) -> Result<(), Error> {
    if !arguments.lifetime.bind() {
        return Err(Error::Failed("the demo is gone".into()));
    }
    partner::run(&arguments.socket)
}

/// Starts daemons on the first free addresses. Also returns a remark, if they are unusual.
fn start_daemons(
    environment: &Environment,
    arguments: &Arguments,
) -> Result<(Vec<environment::Daemon>, Option<String>), Error> {
    let candidates = Addresses::candidates(arguments.ipv6)?;
    let mut taken = Vec::new();
    for addresses in candidates {
        if let Some(busy) = addresses.busy() {
            taken.push(busy);
            continue;
        }
        let fault = arguments.fault.as_deref();
        let started = addresses.list().iter().map(|&addr| environment.start_daemon(addr, fault));
        match started.collect::<Result<Vec<_>, _>>() {
            Ok(daemons) => return Ok((daemons, addresses.remark(&taken))),
            // Another program may have taken it meanwhile.
            Err(error) => match addresses.busy() {
                Some(busy) => taken.push(busy),
                None => return Err(error),
            },
        }
        environment.stop_daemons();
    }
    Err(Error::Failed(format!(
        "UDP port 4791 is taken on {}; expected one free pair of loopback addresses. \
         `ss -lunp sport = :4791` shows by which programs",
        address::list(&taken)
    )))
}

/// A duration in the format of the report.
fn seconds(duration: Duration) -> String {
    format!("{} s", units::figure(duration.as_secs_f64()))
}
