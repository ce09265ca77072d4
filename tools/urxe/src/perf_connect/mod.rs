//! `urxe perf-connect`: how fast connections are made, used and ended through one listener.
//!
//! The two programs use the connection manager alone. The private data of each request ([`Ticket`])
//! contain the number of connections.

mod client;
mod report;
mod server;
mod ticket;

use crate::asking;
use crate::cli::DaemonArguments;
use crate::error::Error;
use clap::Args;
use std::time::Duration;
use ticket::Ticket;
use urxe_verbs::cm::Event;
use urxe_verbs::{Access, Context, Cq, Mr, Pd, Qp, QpCaps, QpInit, RecvWr, SendWr, Srq, SrqInit};

/// The most receives that an SRQ of any device holds.
const MAX_COUNT: u32 = 32_767;

/// How long to wait for the next event.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

const EXAMPLES: &str = "\
Examples:
  urxe perf-connect                        on the server, and
  urxe perf-connect 10.0.0.1               on the client: 1,000 connections.
  urxe perf-connect 10.0.0.1 --count 10000 --json
      Ten thousand, all of them open at the same time; for a script.

The server needs no options but --port; the client sends it the number of connections.";

/// Measure how many connections a second are opened by address, used and closed.
///
/// Without SERVER this is the server, which listens for one client; with SERVER, the client. It
/// opens all connections, sends a message on each when all are open, and closes all.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Host name or address at which the server listens.
    #[arg(value_name = "SERVER")]
    server: Option<String>,

    /// Port of the connection manager at which the server listens; 0 lets it choose a free one,
    /// which it prints.
    #[arg(long, value_name = "PORT", default_value_t = 18516)]
    port: u16,

    #[command(flatten)]
    daemon: DaemonArguments,

    /// Device to use [default: the daemon's first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Connections.
    #[arg(
        long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_COUNT))
    )]
    count: u32,

    /// Most connections that are requested and not established yet, and then messages that have not
    /// arrived yet.
    #[arg(
        long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=512)
    )]
    pending: u32,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Runs one end.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let options = arguments.daemon.open_options();
    let options = match &arguments.device {
        Some(name) => options.device(name),
        None => options,
    };
    let context = asking::open("perf-connect", &options)?;
    match &arguments.server {
        Some(host) => client::run(&context, arguments, host),
        None => server::run(&context, arguments),
    }
}

/// What all connections of an end share.
struct Shared {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
}

/// Bytes of a message: the number of its connection.
const MESSAGE: usize = 8;

impl Shared {
    /// For `count` connections, each of which receives, or sends, one message.
    fn new(context: &Context, count: u32) -> Result<Shared, Error> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(count, None)?;
        let srq = pd.create_srq(&SrqInit { max_wr: count, max_sge: 1, limit: 0 })?;
        let mr = pd.alloc_mr(count as usize * MESSAGE, Access::LOCAL_WRITE)?;
        Ok(Shared { pd, cq, srq, mr })
    }

    /// Posts a receive for each of them.
    fn post_receives(&self, count: u32) -> Result<(), Error> {
        for number in 0..count as usize {
            let sges = [self.mr.sge(number * MESSAGE..(number + 1) * MESSAGE)?];
            self.srq.post_recv(&[RecvWr::new(number as u64, &sges)])?;
        }
        Ok(())
    }

    fn qp(&self) -> Result<Qp, Error> {
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MESSAGE as u32,
        };
        Ok(self.pd.create_qp(&QpInit { caps, srq: Some(&self.srq), ..QpInit::new(&self.cq) })?)
    }
}

/// Sends the number of a connection on it.
fn send_number(qp: &Qp, number: u32) -> Result<(), Error> {
    let message = u64::from(number).to_be_bytes();
    let send = SendWr::send(number.into(), urxe_verbs::Inline(&message)).signaled();
    Ok(qp.post_send(&[send])?)
}

/// The error of an unexpected event, or of none in time.
fn unexpected(event: Option<Event>) -> Error {
    match event {
        Some(Event::ConnectFailed(_, error)) => error.into(),
        Some(event) => {
            Error::Failed(format!("unexpected event of the connection manager: {event:?}"))
        }
        None => Error::Failed("the other end does not respond".into()),
    }
}
