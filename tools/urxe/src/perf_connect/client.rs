//! The client's end: opens, uses and closes.

use super::report::Report;
use super::{Arguments, Shared, TIMEOUT, Ticket, send_number, unexpected};
use crate::error::Error;
use crate::output;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_verbs::cm::{ConnParam, Connection, Event, EventChannel};
use urxe_verbs::{Context, Error as VerbsError, PollBackoff, Wc};

/// How long a server may take to start: scripts start both ends at about the same time.
const START: Duration = Duration::from_secs(3);

/// Measures against the server at `host`.
pub(super) fn run(context: &Context, arguments: &Arguments, host: &str) -> Result<(), Error> {
    let count = arguments.count;
    let to = resolve(context, host, arguments.port)?;
    let client = Client {
        channel: context.create_event_channel()?,
        shared: Shared::new(context, count)?,
        to,
        count,
    };
    let pending = arguments.pending as usize;
    let first = client.find_server()?;
    let begin = Instant::now();
    let open = client.open(first, pending)?;
    let opened = Instant::now();
    client.use_all(&open, pending)?;
    let used = Instant::now();
    client.close(open)?;
    let phases = [opened - begin, used - opened, used.elapsed()];
    let report = Report::new(context, to, count, arguments.pending, phases);
    output::print(arguments.json, &report)
}

/// An address of the server, of a family that the device has.
fn resolve(context: &Context, host: &str, port: u16) -> Result<SocketAddr, Error> {
    let all = (host, port).to_socket_addrs();
    let all: Vec<_> = all.map_err(Error::system(format!("resolving {host}")))?.collect();
    let is_ours = |to: &&SocketAddr| to.is_ipv4() == context.device().address.is_ipv4();
    let found = all.iter().find(is_ours).or(all.first());
    found.copied().ok_or_else(|| Error::Failed(format!("{host} has no address")))
}

struct Client {
    channel: EventChannel,
    shared: Shared,
    to: SocketAddr,
    count: u32,
}

impl Client {
    fn request(&self, number: u32) -> Result<Connection, Error> {
        let private_data = Ticket { number, count: self.count }.to_bytes();
        let param = ConnParam { private_data, ..ConnParam::default() };
        Ok(self.channel.connect(self.to, &self.shared.qp()?, &param)?)
    }

    /// The first connection, which is not measured: the server may not listen yet.
    fn find_server(&self) -> Result<Connection, Error> {
        let deadline = Instant::now() + START;
        loop {
            match self.request(0)?.wait_established(TIMEOUT) {
                Ok(connection) => return Ok(connection),
                // No listener.
                Err(VerbsError::Rejected { reason: 8, .. }) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens all others, at most `pending` at a time.
    fn open(&self, first: Connection, pending: usize) -> Result<Vec<Connection>, Error> {
        let mut open = vec![first];
        let mut requested = Vec::new();
        let mut next = 1;
        while open.len() < self.count as usize {
            while requested.len() < pending && next < self.count {
                requested.push(self.request(next)?);
                next += 1;
            }
            match self.channel.next_event(TIMEOUT)? {
                Some(Event::Established(connection)) => {
                    requested.retain(|other| *other != connection);
                    open.push(connection);
                }
                event => return Err(unexpected(event)),
            }
        }
        Ok(open)
    }

    /// Sends a message on each, at most `pending` at a time.
    fn use_all(&self, open: &[Connection], pending: usize) -> Result<(), Error> {
        let (mut wcs, mut backoff) = ([Wc::default(); 64], PollBackoff::new());
        let (mut sent, mut done) = (0, 0);
        while done < open.len() {
            while sent < open.len() && sent - done < pending {
                send_number(open[sent].qp(), sent as u32)?;
                sent += 1;
            }
            let count = self.shared.cq.poll(&mut wcs)?;
            for wc in &wcs[..count] {
                wc.check()?;
            }
            if count == 0 {
                backoff.pause(&self.shared.cq);
            } else {
                backoff.found();
            }
            done += count;
        }
        Ok(())
    }

    /// Disconnects all, and waits until the server has confirmed and they are destroyed.
    fn close(&self, open: Vec<Connection>) -> Result<(), Error> {
        for connection in &open {
            connection.disconnect()?;
        }
        let mut ended = 0;
        while ended < open.len() {
            match self.channel.next_event(TIMEOUT)? {
                Some(Event::Disconnected(_)) => ended += 1,
                Some(Event::TimewaitExit(_)) => {}
                event => return Err(unexpected(event)),
            }
        }
        drop(open);
        Ok(())
    }
}
