//! The server's end of a test.

use super::args::Arguments;
use super::bench::Bench;
use super::message::Message;
use super::partner::{Finished, Partner};
use super::plan::{Plan, Verb};
use super::report::{Reporter, Role, Setting};
use super::{bandwidth, latency};
use crate::asking;
use crate::error::Error;
use crate::link::Link;
use crate::output;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

/// Waits for a client and runs its test.
pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let local = arguments.local()?;
    // Fails now, and not when a client comes, if there is no such device.
    let active_mtu = asking::open("perf", &local.device)?.query_port(1)?.active_mtu.into();
    arguments.plan(active_mtu)?;
    let (mut client, near, plan) = wait_for_client(arguments)?;
    if arguments.are_overruled_by(&plan, active_mtu) {
        output::note("note: the client's options differ from this server's, and are used");
    }
    let served = expect_test(arguments, &plan)
        .and_then(|()| Bench::new(plan, &local, near))
        .and_then(|bench| serve(bench, &mut client, arguments));
    if let Err(error) = &served {
        client.report(error);
    }
    served
}

/// The client, the address that it came to, and what it wants to be measured.
fn wait_for_client(arguments: &Arguments) -> Result<(Partner, IpAddr, Plan), Error> {
    let listener = listen(arguments.port)?;
    let port = listener.local_addr().map_err(Error::system("TCP"))?.port();
    let test = arguments.test.name();
    output::note(format_args!("waiting for a client of {test} on TCP port {port}"));
    loop {
        let (stream, from) = listener.accept().map_err(Error::system("waiting for a client"))?;
        let near = stream.local_addr().map_err(Error::system("TCP"))?.ip();
        let mut client = Partner::new(Link::over_tcp(stream, "the client")?);
        // Anything may connect; only a client is served.
        match client.hello() {
            Ok(plan) => return Ok((client, near, plan)),
            Err(error) => {
                client.report(&error);
                output::note(format_args!("{}: {error}", from.ip()));
            }
        }
    }
}

/// All addresses, of both families where there are both.
fn listen(port: u16) -> Result<TcpListener, Error> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(Error::system(format!("--port is {port}, expected a free TCP port")))
}

fn expect_test(arguments: &Arguments, plan: &Plan) -> Result<(), Error> {
    let (ours, theirs) = (arguments.test, plan.test);
    if ours != theirs {
        let (ours, theirs) = (ours.name(), theirs.name());
        let what = format!("the client measures {theirs}, the server {ours}: expected the same");
        return Err(Error::Usage(what));
    }
    plan.check().map_err(|what| Error::Usage(format!("the client's {what}")))
}

fn serve(mut bench: Bench, client: &mut Partner, arguments: &Arguments) -> Result<(), Error> {
    let ours = bench.end()?;
    client.send(&Message::Connect(ours.clone()))?;
    let theirs = client.end()?;
    bench.connect(&theirs)?;
    if let Some(verifier) = &mut bench.verifier {
        verifier.prepare(&bench.plan)?;
    }
    client.send(&Message::Ready)?;
    let setting = Setting::new(Role::Server, &bench, ours, theirs);
    let mut reporter = Reporter::begin(setting, arguments)?;
    while let Some(size) = client.next_size()? {
        if !bench.plan.sizes.contains(&size) {
            return Err(Error::Failed(format!(
                "the client begins {size} bytes, which is not in its plan"
            )));
        }
        bench.clear_last_message()?;
        client.send(&Message::Ready)?;
        let finished = serve_size(&mut bench, client, size)?;
        check(&mut bench, &finished, size)?;
        client.send(&Message::Taken(finished.row.received))?;
        reporter.row(finished.row)?;
    }
    reporter.finish()
}

/// The server's part for messages of one length. In most tests the device does all of it.
fn serve_size(bench: &mut Bench, client: &mut Partner, size: u32) -> Result<Finished, Error> {
    match (bench.plan.test.verb(), bench.plan.test.is_latency()) {
        (_, false) if bench.plan.is_received() => bandwidth::receive(bench, client, size),
        (Verb::Send | Verb::Write, true) => latency::reply(bench, client, size),
        _ => {
            let finished = client.wait_finished()?;
            for (qp, messages) in bench.qps.iter_mut().zip(&finished.messages) {
                qp.posted = qp.posted.saturating_add(*messages);
            }
            Ok(finished)
        }
    }
}

/// Checks memory after the messages of one length.
fn check(bench: &mut Bench, finished: &Finished, size: u32) -> Result<(), Error> {
    let Some(verifier) = &mut bench.verifier else { return Ok(()) };
    let mut qps = bench.qps.iter().zip(&finished.messages).enumerate();
    qps.try_for_each(|(index, (qp, &messages))| verifier.at_the_end(index, qp, messages, size))
}
