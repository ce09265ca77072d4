//! Listeners, and what peers ask of them.

use super::channel::{ChannelInner, Subject};
use super::event::{EventKind, PendingEvent};
use super::id::{Id, check_device};
use super::{ConnParam, Connection, EventChannel};
use crate::event_pipe::Deadline;
use crate::session::unexpected;
use crate::{Error, Qp, QpType};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use urxe_shm::control::{CmConnParam, CmEventParam, CmIdHandle, CmPortSpace, CmRequest};

/// Listens for connections: `rdma_cm_id`.
///
/// Made by [`EventChannel::listen`]. A clone is another name for the same listener; when the last
/// one is dropped, its port is free, and requests that were not taken are rejected.
#[derive(Clone, Debug)]
pub struct Listener(Arc<ListenerInner>);

/// Listens for programs that ask which queue pair takes their datagrams.
///
/// Made by [`EventChannel::listen_for_datagrams`]; otherwise as a [`Listener`].
#[derive(Clone, Debug)]
pub struct ServiceListener(Arc<ListenerInner>);

#[derive(Debug)]
struct ListenerInner {
    id: Id,
    addr: SocketAddr,
}

impl Listener {
    pub(super) fn open(
        channel: &Arc<ChannelInner>,
        at: SocketAddr,
        backlog: u32,
    ) -> Result<Listener, Error> {
        let id = Id::create(channel, CmPortSpace::Tcp, QpType::Rc)?;
        Ok(Listener(ListenerInner::open(id, Subject::Connections, at, backlog)?))
    }

    /// Waits for a request, `None` if there is none within `timeout`; without a timeout waits for
    /// ever.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<ConnectRequest>, Error> {
        let incoming = self.0.wait(timeout)?;
        Ok(incoming.map(|(incoming, param)| ConnectRequest::new(incoming, param)))
    }

    /// Where it listens, with the port that it was given.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// The channel that its requests come to.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }
}

impl ServiceListener {
    pub(super) fn open(
        channel: &Arc<ChannelInner>,
        at: SocketAddr,
        backlog: u32,
    ) -> Result<ServiceListener, Error> {
        let id = Id::create(channel, CmPortSpace::Udp, QpType::Ud)?;
        Ok(ServiceListener(ListenerInner::open(id, Subject::Services, at, backlog)?))
    }

    /// Waits for a request, `None` if there is none within `timeout`; without a timeout waits for
    /// ever.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<ServiceRequest>, Error> {
        let incoming = self.0.wait(timeout)?;
        Ok(incoming.map(|(incoming, param)| ServiceRequest::new(incoming, param)))
    }

    /// Where it listens, with the port that it was given.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// The channel that its requests come to.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }
}

impl ListenerInner {
    fn open(
        id: Id,
        subject: Subject,
        at: SocketAddr,
        backlog: u32,
    ) -> Result<Arc<ListenerInner>, Error> {
        id.bind(at)?;
        id.register(subject);
        id.channel.raw.order("listen", CmRequest::Listen { id: id.handle, backlog })?;
        let addr = id.local_addr()?;
        Ok(Arc::new(ListenerInner { id, addr }))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<(Incoming, CmEventParam)>, Error> {
        let channel = &self.id.channel;
        let ours = |event: &PendingEvent| event.token == self.id.token;
        match channel.next(ours, Deadline::after(timeout))?.map(|event| event.kind) {
            Some(EventKind::Request(id, param)) => Ok(Some((Incoming::new(channel, id)?, param))),
            _ => Ok(None),
        }
    }
}

/// The id of a request that came to a listener, and its addresses. Destroyed unanswered, it is
/// rejected.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) id: Id,
    pub(super) device: Option<u32>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Incoming {
    pub(super) fn new(channel: &Arc<ChannelInner>, id: CmIdHandle) -> Result<Incoming, Error> {
        let id = Id::adopt(channel, id);
        let route = id.query()?;
        let (Some(local), Some(peer)) = (route.src, route.dst) else {
            return Err(unexpected("query_route"));
        };
        Ok(Incoming { id, device: route.device, local, peer })
    }

    fn device_name(&self) -> &str {
        let context = &self.id.channel.raw.context;
        self.device.map_or("unknown", |device| context.device_name(device))
    }
}

/// A peer asks for a connection. Who drops it refuses it.
#[derive(Debug)]
pub struct ConnectRequest {
    incoming: Incoming,
    param: ConnParam,
}

impl ConnectRequest {
    pub(super) fn new(incoming: Incoming, param: CmEventParam) -> ConnectRequest {
        let CmEventParam::Conn(param) = param else {
            return ConnectRequest { incoming, param: ConnParam::default() };
        };
        ConnectRequest { incoming, param: ConnParam::from_peer(param) }
    }

    /// Accepts: takes the queue pair from RESET, or from INIT, to RTS, and tells the peer. Of
    /// `param`, READs and atomics are cut to what the peer offers and wants. Does not wait for the
    /// peer's confirmation: [`Connection::wait_established`] does, or
    /// [`Event::Established`](super::Event::Established) tells of it. Until then the peer may not
    /// be ready; what is sent then is retried.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue pair is of another device than
    /// [`device`](Self::device), or of another daemon; [`Error::Refused`] if its state or transport
    /// does not fit, the private data is too long, or the peer has given up;
    /// [`Error::DaemonGone`]. The peer is then refused.
    pub fn accept(self, qp: &Qp, param: &ConnParam) -> Result<Connection, Error> {
        Connection::accept(self.incoming, self.param, qp, param)
    }

    /// Refuses; the peer's program is told at most 148 bytes of private data.
    ///
    /// # Errors
    /// [`Error::Refused`] if the private data is too long, or the peer has given up;
    /// [`Error::DaemonGone`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.incoming.id.reject(private_data)
    }

    /// What the peer says of itself, turned around: [`ConnParam::responder_resources`] are the
    /// READs and atomics that it wants us to serve.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.incoming.peer
    }

    /// Which of our addresses it was sent to, and the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.incoming.local
    }

    /// The name of the device that it came to, which must be that of the queue pair.
    pub fn device(&self) -> &str {
        self.incoming.device_name()
    }
}

/// A peer asks which queue pair takes its datagrams. Who drops it refuses it.
#[derive(Debug)]
pub struct ServiceRequest {
    incoming: Incoming,
    private_data: Vec<u8>,
}

impl ServiceRequest {
    pub(super) fn new(incoming: Incoming, param: CmEventParam) -> ServiceRequest {
        let private_data = match param {
            CmEventParam::None => Vec::new(),
            CmEventParam::Conn(param) => param.private_data,
            CmEventParam::Ud(param) => param.private_data,
        };
        ServiceRequest { incoming, private_data }
    }

    /// Answers with a UD queue pair, which is ready to receive, and its Q_Key; and with at most 136
    /// bytes of private data.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue pair is of another device than
    /// [`device`](Self::device), of another daemon, or has no Q_Key; [`Error::Refused`] if the
    /// private data is too long; [`Error::DaemonGone`]. The peer is then refused.
    pub fn answer(self, qp: &Qp, private_data: &[u8]) -> Result<(), Error> {
        let Incoming { id, device, .. } = self.incoming;
        check_device(&id.channel, qp, device)?;
        let queried = qp.query()?.attr;
        let Some(qkey) = queried.qkey else {
            let state = queried.state.map_or("no state", urxe_types::QpState::name);
            let transport = qp.qp_type().name();
            let expected = "UD, with the Q_Key that Qp::start_datagrams gives";
            return Err(Error::invalid("queue pair", format!("{transport}, in {state}"), expected));
        };
        let param = CmConnParam {
            qpn: qp.qpn(),
            qkey,
            private_data: private_data.to_vec(),
            ..CmConnParam::default()
        };
        let request = CmRequest::Accept { id: id.handle, user_handle: id.token, param };
        id.channel.raw.order("accept", request)
    }

    /// Refuses; the peer's program is told at most 136 bytes of private data.
    ///
    /// # Errors
    /// [`Error::Refused`] if the private data is too long; [`Error::DaemonGone`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.incoming.id.reject(private_data)
    }

    /// What the peer says, with zeroes behind.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.incoming.peer
    }

    /// Which of our addresses it was sent to, and the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.incoming.local
    }

    /// The name of the device that it came to, which must be that of the queue pair.
    pub fn device(&self) -> &str {
        self.incoming.device_name()
    }
}
