//! The client's end of a test.

use super::args::Arguments;
use super::bench::Bench;
use super::message::{Message, VERSION};
use super::partner::Partner;
use super::report::{Reporter, Role, Setting};
use super::{bandwidth, latency};
use crate::asking;
use crate::error::Error;
use crate::link::Link;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to start: scripts start both ends at about the same time.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Measures against the server at `host`.
pub(super) fn run(arguments: &Arguments, host: &str) -> Result<(), Error> {
    let local = arguments.local()?;
    let active_mtu = asking::open("perf", &local.device)?.query_port(1)?.active_mtu.into();
    let plan = arguments.plan(active_mtu)?;
    let stream = connect(host, arguments.port)?;
    let near = stream.local_addr().map_err(Error::system("TCP"))?.ip();
    let mut server = Partner::new(Link::over_tcp(stream, format!("the server {host}"))?);
    let measured =
        Bench::new(plan, &local, near).and_then(|bench| measure(bench, &mut server, arguments));
    if let Err(error) = &measured {
        server.report(error);
    }
    measured
}

fn connect(host: &str, port: u16) -> Result<TcpStream, Error> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match TcpStream::connect((host, port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                if Instant::now() > deadline {
                    return Err(Error::Failed(format!(
                        "no server listens at {host} on TCP port {port}; start one there with \
                         `urxe perf` and the same test, but without a server's name"
                    )));
                }
                sleep(Duration::from_millis(50));
            }
            Err(error) => {
                let what = format!("connecting to the server {host} on TCP port {port}");
                return Err(Error::system(what)(error));
            }
        }
    }
}

fn measure(mut bench: Bench, server: &mut Partner, arguments: &Arguments) -> Result<(), Error> {
    let ours = bench.end()?;
    server.send(&Message::Hello { version: VERSION, plan: bench.plan.clone() })?;
    let theirs = server.end()?;
    bench.connect(&theirs)?;
    server.send(&Message::Connect(ours.clone()))?;
    server.ready()?;
    let setting = Setting::new(Role::Client, &bench, ours, theirs);
    let mut reporter = Reporter::begin(setting, arguments)?;
    for size in bench.plan.sizes.clone() {
        bench.clear_last_message()?;
        server.send(&Message::Begin { size })?;
        server.ready()?;
        let finished = if bench.plan.test.is_latency() {
            latency::run(&mut bench, server, size)?
        } else {
            bandwidth::run(&mut bench, server, size)?
        };
        let mut row = finished.row.clone();
        server.send(&Message::Finished { messages: finished.messages, row: finished.row })?;
        row.received = server.taken()?;
        reporter.row(row)?;
    }
    server.send(&Message::Bye)?;
    reporter.finish()
}
