//! Connections.

use super::channel::{ChannelInner, Subject};
use super::event::{Event, EventKind, PendingEvent, failure};
use super::id::{Id, check_device};
use super::listener::Incoming;
use super::{ConnParam, EventChannel};
use crate::event_pipe::Deadline;
use crate::inbox::take;
use crate::{Error, Qp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use urxe_shm::control::{CmEvent, CmEventKind, CmEventParam, CmPortSpace, CmRequest};

/// A connection: `rdma_cm_id`, and the queue pair that is connected by it.
///
/// Made by [`EventChannel::connect`] at the one side and by
/// [`ConnectRequest::accept`](super::ConnectRequest::accept) at the other. When it is established,
/// the queue pair is in RTS and work can be posted. A receive should be
/// posted before that: a queue pair that is taken to INIT beforehand can have some.
///
/// When the connection is over, or could not be made, the queue pair is in the error state, so
/// that no receive stays outstanding; one that was still in RESET stays there.
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
    /// The peer's parameters.
    peer_param: OnceLock<ConnParam>,
    phase: Mutex<Phase>,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requested or accepted.
    Connecting,
    /// The same, and we have disconnected meanwhile. The peer cannot be told before it is
    /// established.
    GivenUp,
    /// Established.
    Established,
    /// We have disconnected, and the peer was told.
    Closed,
    /// It failed, or both sides know of its end.
    Over,
}

impl Phase {
    /// Whether the queue pair is the connection's still. Afterwards it is in the error state, or in
    /// use again.
    fn is_open(self) -> bool {
        matches!(self, Phase::Connecting | Phase::Established)
    }
}

impl Connection {
    /// Requests a connection.
    pub(super) fn open(
        channel: &Arc<ChannelInner>,
        from: SocketAddr,
        to: SocketAddr,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<Connection, Error> {
        check_device(channel, qp, None)?;
        let id = Id::create_towards(channel, CmPortSpace::Tcp, qp.qp_type(), (from, to))?;
        let connection = Connection::new(id, qp, to, OnceLock::new());
        let (id, param) = (connection.0.id.handle, param.of(qp));
        let asked = channel.raw.order("connect", CmRequest::Connect { id, param });
        if asked.is_err() {
            // Nothing has begun: the queue pair stays as it is.
            *connection.0.phase.lock() = Phase::Over;
        }
        asked.map(|()| connection)
    }

    /// Accepts a peer's request.
    pub(super) fn accept(
        incoming: Incoming,
        offered: ConnParam,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<Connection, Error> {
        check_device(&incoming.id.channel, qp, incoming.device)?;
        let param = param.within(&offered).of(qp);
        let connection = Connection::new(incoming.id, qp, incoming.peer, offered.into());
        let id = &connection.0.id;
        id.qp_to_rts(qp)?;
        let request = CmRequest::Accept { id: id.handle, user_handle: id.token, param };
        id.channel.raw.order("accept", request)?;
        Ok(connection)
    }

    fn new(id: Id, qp: &Qp, peer: SocketAddr, peer_param: OnceLock<ConnParam>) -> Connection {
        let (qp, phase) = (qp.clone(), Mutex::new(Phase::Connecting));
        let inner = Arc::new(ConnectionInner { id, qp, peer, peer_param, phase });
        inner.id.register(Subject::Connection(Arc::downgrade(&inner)));
        Connection(inner)
    }

    /// Waits until the connection is established. Without a timeout waits for as long as it takes:
    /// a peer that does not answer is given up after 51 seconds, one that asks for time later.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the peer refuses; [`Error::Unreachable`] if it does not answer, or
    /// not within `timeout`, or if the connection is over already; what kept the queue pair from
    /// being made ready; [`Error::DaemonGone`]. The connection is given up, unless there is
    /// another clone of it.
    pub fn wait_established(self, timeout: Option<Duration>) -> Result<Connection, Error> {
        match self.is_established(timeout)? {
            true => Ok(self),
            false => Err(Error::Unreachable { peer: self.0.peer, errno: libc::ETIMEDOUT }),
        }
    }

    /// Waits until the connection is established or has failed; `false` if it is neither within
    /// `timeout`.
    pub(super) fn is_established(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let inner = &*self.0;
        let has_come = || inner.phase() != Phase::Connecting;
        if inner.id.channel.outcome(inner.id.token, has_come, timeout)? {
            // It may be over meanwhile.
            return Ok(true);
        }
        match inner.phase() {
            Phase::Established => Ok(true),
            Phase::Connecting => Ok(false),
            Phase::GivenUp | Phase::Closed | Phase::Over => {
                Err(Error::Unreachable { peer: inner.peer, errno: libc::ENOTCONN })
            }
        }
    }

    /// Waits until the connection is over, and says whether it is: the peer ended it, or it knows
    /// that we did, or does not answer; or it could not be made. Any number of threads may wait.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let inner = &*self.0;
        let Id { channel, token, .. } = &inner.id;
        let is_end = |event: &PendingEvent| {
            event.token == *token
                && matches!(event.kind, EventKind::Disconnected | EventKind::Failed(_))
        };
        // CLIENT-025: another thread, or a call before this one, may have taken the event.
        let find = |events: &mut VecDeque<PendingEvent>| {
            let event = take(events, is_end);
            (event.is_some() || inner.phase() == Phase::Over).then_some(())
        };
        Ok(channel.look_for(find, Deadline::after(timeout))?.is_some())
    }

    /// Ends the connection: `rdma_disconnect`. The queue pair goes to the error state, and what is
    /// outstanding is flushed; so first wait for the completions that matter. It is no error if
    /// the connection is over already. If it is not established yet, it is ended as soon as the
    /// peer can be told: when the event that it is established, or accepted, is read.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
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

    /// The channel of its events.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }

    pub(super) fn event(self, kind: EventKind) -> Option<Event> {
        Some(match kind {
            EventKind::Request(..) => return None,
            EventKind::Done => Event::Established(self),
            EventKind::Failed(error) => Event::ConnectFailed(self, error),
            EventKind::Disconnected => Event::Disconnected(self),
            EventKind::TimewaitExit => Event::TimewaitExit(self),
        })
    }
}

impl ConnectionInner {
    fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// Handles an event of the daemon. Returns what of it is for the program.
    pub(super) fn handle(&self, event: CmEvent) -> Option<EventKind> {
        match event.kind {
            CmEventKind::ConnectResponse if self.phase() == Phase::GivenUp => {
                // CLIENT-024: nobody is told of a refusal that it sends itself.
                let _ = self.id.reject(&[]);
                self.over(EventKind::Disconnected)
            }
            CmEventKind::ConnectResponse => match self.confirm(event.param) {
                Ok(()) => self.established(),
                Err(error) => {
                    // The peer need not wait for us.
                    let _ = self.id.reject(&[]);
                    self.fail(error)
                }
            },
            CmEventKind::Established => self.established(),
            CmEventKind::ConnectError | CmEventKind::Unreachable | CmEventKind::Rejected => {
                self.fail(failure(self.peer, event))
            }
            CmEventKind::Disconnected => {
                // A peer that disconnected is answered; nothing depends on it.
                let _ = self.end();
                self.over(EventKind::Disconnected)
            }
            CmEventKind::TimewaitExit => Some(EventKind::TimewaitExit),
            _ => None,
        }
    }

    /// The peer has accepted: takes the queue pair to RTS, and confirms.
    fn confirm(&self, param: CmEventParam) -> Result<(), Error> {
        if let CmEventParam::Conn(param) = param {
            let _ = self.peer_param.set(ConnParam::from_peer(param));
        }
        self.id.qp_to_rts(&self.qp)?;
        self.id.channel.raw.order("establish", CmRequest::Establish { id: self.id.handle })
    }

    /// Both sides are ready.
    fn established(&self) -> Option<EventKind> {
        let mut phase = self.phase.lock();
        match *phase {
            Phase::Connecting => *phase = Phase::Established,
            Phase::GivenUp => {
                // CLIENT-024: the daemon could not tell the peer before.
                let _ = self.order_disconnect();
                *phase = Phase::Closed;
                return None;
            }
            Phase::Established | Phase::Closed | Phase::Over => {}
        }
        Some(EventKind::Done)
    }

    fn fail(&self, error: Error) -> Option<EventKind> {
        if self.phase().is_open() {
            // CLIENT-023
            let _ = self.qp.flush();
        }
        self.over(EventKind::Failed(error))
    }

    /// No other event will follow, but for the end of time-wait.
    fn over(&self, kind: EventKind) -> Option<EventKind> {
        *self.phase.lock() = Phase::Over;
        Some(kind)
    }

    fn end(&self) -> Result<(), Error> {
        let mut phase = self.phase.lock();
        let next = match *phase {
            Phase::Closed | Phase::Over => return Ok(()),
            Phase::Connecting | Phase::GivenUp => Phase::GivenUp,
            Phase::Established => Phase::Closed,
        };
        if *phase != Phase::GivenUp {
            self.qp.to_error()?;
        }
        // It may be established already, with an event that was not read yet; else this does
        // nothing.
        self.order_disconnect()?;
        *phase = next;
        Ok(())
    }

    fn order_disconnect(&self) -> Result<(), Error> {
        self.id.channel.raw.order("disconnect", CmRequest::Disconnect { id: self.id.handle })
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
        if self.phase.get_mut().is_open() {
            // CLIENT-023
            let _ = self.qp.flush();
        }
    }
}
