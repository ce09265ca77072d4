//! Connections.

use super::channel::{ChannelInner, Subject};
use super::event::{Event, Told, What, failure};
use super::id::Id;
use super::listener::Asked;
use super::{ConnParam, EventChannel};
use crate::event_pipe::Deadline;
use crate::{Error, Qp};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use urxe_shm::control::{CmEvent, CmEventKind, CmEventParam, CmPortSpace, CmRequest};

/// A connection: `rdma_cm_id`, and the queue pair that is connected by it.
///
/// Made by [`EventChannel::connect`] at the one side and by
/// [`ConnectRequest::accept`](super::ConnectRequest::accept) at the other. At first it is on its
/// way; when it stands, the queue pair is in RTS and work can be posted. A receive should be
/// posted before that: a queue pair that is taken to INIT beforehand can have some.
///
/// A clone is another name for the same connection. When the last one is dropped the connection is
/// ended, or given up.
#[derive(Clone, Debug)]
pub struct Connection(pub(super) Arc<ConnectionInner>);

#[derive(Debug)]
pub(super) struct ConnectionInner {
    id: Id,
    qp: Qp,
    peer: SocketAddr,
    /// What is said of our side when the route is known.
    param: ConnParam,
    /// What the peer said.
    peer_param: OnceLock<ConnParam>,
    phase: Mutex<Phase>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// On its way.
    Asking,
    /// It stands.
    Standing,
    /// It failed, or one of both sides has ended it.
    Over,
}

impl Connection {
    /// Begins to connect.
    pub(super) fn open(
        channel: &Arc<ChannelInner>,
        from: SocketAddr,
        to: SocketAddr,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<Connection, Error> {
        let id = Id::create(channel, CmPortSpace::Tcp, qp.qp_type())?;
        id.check_device(qp, None)?;
        let connection = Connection::new(id, qp, to, param.clone(), OnceLock::new());
        connection.0.id.resolve_addr(from, to)?;
        Ok(connection)
    }

    /// Accepts what a peer asked for.
    pub(super) fn accept(
        asked: Asked,
        offered: ConnParam,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<Connection, Error> {
        asked.id.check_device(qp, asked.device)?;
        let (peer, param) = (asked.peer, param.within(&offered));
        let connection = Connection::new(asked.id, qp, peer, param, offered.into());
        let ConnectionInner { id, param, .. } = &*connection.0;
        id.carry_to_rts(qp)?;
        let (handle, user_handle, param) = (id.handle, id.token, param.of(qp));
        let request = CmRequest::Accept { id: handle, user_handle, param };
        id.channel.order("accept", request)?;
        Ok(connection)
    }

    fn new(
        id: Id,
        qp: &Qp,
        peer: SocketAddr,
        param: ConnParam,
        peer_param: OnceLock<ConnParam>,
    ) -> Connection {
        let (qp, phase) = (qp.clone(), Mutex::new(Phase::Asking));
        let inner = Arc::new(ConnectionInner { id, qp, peer, param, peer_param, phase });
        inner.id.register(Subject::Connection(Arc::downgrade(&inner)));
        Connection(inner)
    }

    /// Waits until the connection stands. Without a timeout waits for as long as it takes: a peer
    /// that is silent is given up after 51 seconds, one that wants time to think is not.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the peer refuses; [`Error::Unreachable`] if it does not answer, or
    /// not within `timeout`, or if the connection is over already; what kept the queue pair from
    /// being made ready; [`Error::DaemonGone`]. The connection is given up, unless there is
    /// another clone of it.
    pub fn wait_established(self, timeout: Option<Duration>) -> Result<Connection, Error> {
        let inner = &*self.0;
        let has_come = inner.phase() != Phase::Asking;
        inner.id.channel.outcome(inner.id.token, has_come, timeout)?;
        let errno = match inner.phase() {
            Phase::Standing => return Ok(self),
            Phase::Asking => libc::ETIMEDOUT,
            Phase::Over => libc::ENOTCONN,
        };
        Err(Error::Unreachable { peer: inner.peer, errno })
    }

    /// Waits until the connection is over, and says whether it is: the peer ended it, or it knows
    /// that we did, or does not answer.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let Id { channel, token, .. } = &self.0.id;
        let is_end = |told: &Told| {
            told.token == *token && matches!(told.what, What::Disconnected | What::Failed(_))
        };
        Ok(channel.next(is_end, Deadline::after(timeout))?.is_some())
    }

    /// Ends the connection: `rdma_disconnect`. The queue pair goes to the error state, and what is
    /// outstanding is flushed; so first wait for the completions that matter. It is no error if
    /// the connection is over already.
    ///
    /// # Errors
    /// [`Error::Refused`] if the connection does not stand yet; [`Error::DaemonGone`].
    pub fn disconnect(&self) -> Result<(), Error> {
        self.0.end()
    }

    /// The queue pair that is connected.
    pub fn qp(&self) -> &Qp {
        &self.0.qp
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    /// Our own address and port.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.id.local_addr()
    }

    /// What the peer said of itself when it asked for the connection, or accepted it; `None` until
    /// it has.
    pub fn peer_param(&self) -> Option<&ConnParam> {
        self.0.peer_param.get()
    }

    /// The channel that tells what happens to it.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }

    pub(super) fn event(self, what: What) -> Option<Event> {
        Some(match what {
            What::Request(..) => return None,
            What::Done => Event::Established(self),
            What::Failed(error) => Event::ConnectFailed(self, error),
            What::Disconnected => Event::Disconnected(self),
            What::TimewaitExit => Event::TimewaitExit(self),
        })
    }
}

impl ConnectionInner {
    fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// Does what an event asks for.
    pub(super) fn handle(&self, event: CmEvent) -> Option<What> {
        match event.kind {
            CmEventKind::AddrResolved => self.go_on(self.id.resolve_route()),
            CmEventKind::RouteResolved => self.go_on(self.ask()),
            CmEventKind::ConnectResponse => {
                let ready = self.answer(event.param);
                if ready.is_err() {
                    // The peer need not wait for us.
                    let _ = self.id.reject(&[]);
                    return self.go_on(ready);
                }
                self.stands()
            }
            CmEventKind::Established => self.stands(),
            CmEventKind::AddrError
            | CmEventKind::RouteError
            | CmEventKind::ConnectError
            | CmEventKind::Unreachable
            | CmEventKind::Rejected => self.fail(failure(self.peer, event)),
            CmEventKind::Disconnected => {
                // Answers the peer, if it was the one; nothing depends on it.
                let _ = self.end();
                *self.phase.lock() = Phase::Over;
                Some(What::Disconnected)
            }
            CmEventKind::TimewaitExit => Some(What::TimewaitExit),
            _ => None,
        }
    }

    /// The route is known: asks the peer.
    fn ask(&self) -> Result<(), Error> {
        let (id, param) = (self.id.handle, self.param.of(&self.qp));
        self.id.channel.order("connect", CmRequest::Connect { id, param })
    }

    /// The peer accepts: makes the queue pair ready, and confirms.
    fn answer(&self, param: CmEventParam) -> Result<(), Error> {
        if let CmEventParam::Conn(param) = param {
            let _ = self.peer_param.set(ConnParam::from_peer(param));
        }
        self.id.carry_to_rts(&self.qp)?;
        self.id.channel.order("establish", CmRequest::Establish { id: self.id.handle })
    }

    /// The peer has what it needs of us.
    fn stands(&self) -> Option<What> {
        let mut phase = self.phase.lock();
        if *phase == Phase::Asking {
            *phase = Phase::Standing;
        }
        Some(What::Done)
    }

    /// A step was made; nothing is to be told unless it could not be.
    fn go_on(&self, step: Result<(), Error>) -> Option<What> {
        self.fail(step.err()?)
    }

    fn fail(&self, error: Error) -> Option<What> {
        *self.phase.lock() = Phase::Over;
        Some(What::Failed(error))
    }

    fn end(&self) -> Result<(), Error> {
        let mut phase = self.phase.lock();
        if *phase == Phase::Over {
            return Ok(());
        }
        self.qp.to_error()?;
        self.id.channel.order("disconnect", CmRequest::Disconnect { id: self.id.handle })?;
        *phase = Phase::Over;
        Ok(())
    }
}

/// Two handles are equal if they name the same connection.
impl PartialEq for Connection {
    fn eq(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connection {}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        // The daemon ends the connection with its id, but leaves the queue pair, which others may
        // still hold, as it is.
        if *self.phase.get_mut() == Phase::Standing {
            let _ = self.qp.to_error();
        }
    }
}
