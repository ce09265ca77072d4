//! The server's end: accepts connections, and receives their messages.

use super::{Arguments, Shared, TIMEOUT, Ticket, unexpected};
use crate::error::Error;
use crate::output;
use crate::units::count;
use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use urxe_verbs::cm::{ConnParam, ConnectRequest, Connection, Event};
use urxe_verbs::{Context, Wc};

/// Listens until one client has opened, used and closed all its connections.
pub(super) fn run(context: &Context, arguments: &Arguments) -> Result<(), Error> {
    let channel = context.create_event_channel()?;
    let at = SocketAddr::from((Ipv6Addr::UNSPECIFIED, arguments.port));
    let listener = channel.listen(at, 0)?;
    let port = listener.local_addr().port();
    output::note(format_args!("waiting for a client of perf-connect on port {port}"));
    let mut server: Option<Server> = None;
    loop {
        // The first one may take any time.
        let timeout = if server.is_some() { TIMEOUT } else { None };
        match (channel.next_event(timeout)?, &mut server) {
            (Some(Event::ConnectRequest(request)), server) => {
                let ticket = Ticket::parse(&request.param().private_data)?;
                let server = match server {
                    Some(server) => server,
                    none => none.insert(Server::new(context, ticket.count)?),
                };
                server.accept(request)?;
            }
            (Some(Event::Established(_) | Event::TimewaitExit(_)), _) => {}
            (Some(Event::Disconnected(connection)), Some(server)) => {
                server.take_messages()?;
                server.open.remove(&connection.qp().qpn());
                server.ended += 1;
                if server.ended == server.count {
                    return server.finish();
                }
            }
            (event, _) => return Err(unexpected(event)),
        }
    }
}

struct Server {
    shared: Shared,
    open: HashMap<u32, Connection>,
    count: u32,
    ended: u32,
    /// Which connections have sent their message.
    received: Vec<bool>,
}

impl Server {
    fn new(context: &Context, count: u32) -> Result<Server, Error> {
        let shared = Shared::new(context, count)?;
        shared.post_receives(count)?;
        let (open, received) = (HashMap::new(), vec![false; count as usize]);
        Ok(Server { shared, open, count, ended: 0, received })
    }

    fn accept(&mut self, request: ConnectRequest) -> Result<(), Error> {
        let qp = self.shared.qp()?;
        let connection = request.accept(&qp, &ConnParam::default())?;
        self.open.insert(qp.qpn(), connection);
        Ok(())
    }

    fn take_messages(&mut self) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 64];
        loop {
            let count = self.shared.cq.poll(&mut wcs)?;
            if count == 0 {
                return Ok(());
            }
            for wc in &wcs[..count] {
                let mut message = [0; super::MESSAGE];
                let place = wc.check()?.wr_id as usize * super::MESSAGE;
                self.shared.mr.read_at(place, &mut message)?;
                let number = u64::from_be_bytes(message);
                let received =
                    usize::try_from(number).ok().and_then(|at| self.received.get_mut(at));
                match received {
                    Some(received) if !*received => *received = true,
                    _ => return Err(Error::WrongData(format!("message {number} came twice"))),
                }
            }
        }
    }

    fn finish(&self) -> Result<(), Error> {
        let missing = self.received.iter().filter(|received| !**received).count();
        if missing > 0 {
            let missing = count(missing as u64);
            return Err(Error::WrongData(format!("{missing} messages did not arrive")));
        }
        let all = count(self.count.into());
        output::note(format_args!("{all} connections were opened, used and closed"));
        Ok(())
    }
}
