//! `urxe conform`: whether a RoCEv2 device does what the standard says, asked over the network.

mod arguments;
mod output;
mod selection;

pub(crate) use arguments::Arguments;

use crate::error::Error;
use crate::output::{even_if_unread, note, text};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};
use urxe_conform::agent::TcpAgent;
use urxe_conform::device::servers::{Options, Servers, Start};
use urxe_conform::device::{AgentDevice, Device};
use urxe_conform::link::{Link, PortLink};
use urxe_conform::pace::Pace;
use urxe_conform::report::Report;
use urxe_conform::run::play;
use urxe_conform::script::Waits;
use urxe_conform::{Check, report};
use urxe_port::OpenError;
use urxe_port::raw::{RawOptions, RawPort};
use urxe_port::udp::{UdpOptions, UdpPort};
use urxe_wire::ROCE_PORT;

/// Plays the checks and reports.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match conform(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => error.report("urxe"),
    }
}

/// False: something is wrong that is not known.
fn conform(arguments: &Arguments) -> Result<bool, Error> {
    let checks = selection::of(arguments)?;
    if arguments.list {
        return text(selection::list(&checks)).map(|()| true);
    }
    let Some(peer) = &arguments.peer else {
        return Err(Error::Usage("which device? Give its address, or --list".into()));
    };
    let addr = resolve(peer)?;
    let local = match arguments.addr {
        Some(local) => local,
        None => source_of_route(addr)?,
    };
    let options = Options {
        host: arguments.host.clone().unwrap_or_else(|| peer.clone()),
        addr,
        local,
        start: match &arguments.run {
            Some(prefix) => Start::Run(prefix.split_whitespace().map(str::to_owned).collect()),
            None => Start::ByHand(arguments.wait()),
        },
        port: arguments.port,
        device: arguments.device.clone(),
        gid_index: arguments.gid_index,
        seed: arguments.seed,
        services: arguments.services(),
    };
    if arguments.servers {
        return text(Servers::script(&options)).map(|()| true);
    }
    if local == addr {
        return Err(Error::Usage(format!(
            "the device is on this machine, at {addr}: give the tester another address with --addr"
        )));
    }
    let known = output::read_known(arguments)?;
    let checks = selection::without_those_that_stop(checks, &known);
    let (mut link, backend) = open(arguments, local)?;
    let mut device = device(arguments, options)?;
    let report = play_all(&checks, &mut *link, &mut *device, arguments, backend);
    drop(device);
    output::write_files(arguments, &report)?;
    even_if_unread(text(report::table::text(&report)))?;
    output::judge(&known, &report)
}

/// The way to the device: the program there, or stock servers.
fn device(arguments: &Arguments, options: Options) -> Result<Box<dyn Device>, Error> {
    let Some(agent) = &arguments.agent else {
        return Ok(Box::new(Servers::new(options, |text: &str| note(text))));
    };
    let program = TcpAgent::connect(agent.as_str())
        .map_err(Error::system(format!("the agent at {agent}")))?;
    let device = AgentDevice::new(program, options.addr)
        .map_err(|error| Error::Failed(format!("the agent at {agent}: {error}")))?;
    Ok(Box::new(device.with_services(options.services)))
}

fn play_all(
    checks: &[&'static Check],
    link: &mut dyn Link,
    device: &mut dyn Device,
    arguments: &Arguments,
    backend: &str,
) -> Report {
    let began = (SystemTime::now(), Instant::now());
    // The connection manager's checks alone need no memory.
    let is_measured = checks.iter().any(|check| !check.area().starts_with("cm-"));
    let measured = || Pace::measure(link, device, arguments.seed);
    let pace = is_measured.then(measured).flatten();
    let plan = arguments.plan(pace);
    if let Some(Pace { slowest }) = pace {
        let Waits { reply, quiet } = plan.waits;
        note(format_args!(
            "answers take up to {slowest:.1?}: they are waited for for {reply:.0?}, and silence for \
             {quiet:.0?}"
        ));
    }
    let mut findings = Vec::with_capacity(checks.len());
    for (index, check) in checks.iter().enumerate() {
        let finding = play(check, link, device, &plan);
        let (number, all) = (index + 1, checks.len());
        note(format_args!("{number:>3}/{all}  {:<14} {}", finding.verdict, check.name));
        findings.push(finding);
    }
    Report {
        device: device.describe(),
        tester: format!("urxe {} at {}, {backend} port", urxe_daemon::VERSION, link.local()),
        options: arguments.worth_telling(&plan),
        took: began.1.elapsed(),
        began,
        findings,
    }
}

/// The tester's port, and what kind it is.
fn open(arguments: &Arguments, local: IpAddr) -> Result<(Box<dyn Link>, &'static str), Error> {
    use arguments::Backend;
    let failed = |error: OpenError| Error::Failed(error.to_string());
    let raw = || {
        let options = RawOptions { forge: true, ..RawOptions::default() };
        let port = RawPort::open(local, &options)?;
        Ok::<_, OpenError>(Box::new(PortLink::new(port, local)))
    };
    let udp = || {
        let port = UdpPort::open(local, &UdpOptions::default())?;
        Ok::<_, OpenError>(Box::new(PortLink::new(port, local)))
    };
    match arguments.backend {
        Backend::Raw => Ok((raw().map_err(failed)?, "raw")),
        Backend::Udp => Ok((udp().map_err(failed)?, "udp")),
        Backend::Auto => match raw() {
            Ok(link) => Ok((link, "raw")),
            Err(OpenError::NoPrivilege) => Ok((udp().map_err(failed)?, "udp")),
            Err(error) => Err(failed(error)),
        },
    }
}

/// The address of a name.
fn resolve(peer: &str) -> Result<IpAddr, Error> {
    let mut found = (peer, ROCE_PORT).to_socket_addrs().map_err(Error::system(peer))?;
    let first = found.next().ok_or_else(|| Error::Failed(format!("{peer} has no address")))?;
    Ok(first.ip())
}

/// The address that packets to the device leave from.
fn source_of_route(device: IpAddr) -> Result<IpAddr, Error> {
    let any: IpAddr = match device {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Nothing is sent.
        socket.connect((device, ROCE_PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    source().map_err(Error::system(format!("the route to {device}")))
}
