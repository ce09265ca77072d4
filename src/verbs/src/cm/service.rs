//! Looking for a service that takes datagrams.

use super::channel::{ChannelInner, Subject};
use super::event::{Event, EventKind, failure};
use super::id::{Id, check_device, source};
use super::{EventChannel, UdParam};
use crate::{Error, Qp, QpType};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use urxe_shm::control::{CmConnParam, CmEvent, CmEventKind, CmEventParam, CmPortSpace, CmRequest};

/// The search for a service that takes datagrams: `rdma_cm_id`.
///
/// Made by [`EventChannel::find_service`]. What it finds is where to send: a path, for
/// [`Pd::create_ah`](crate::Pd::create_ah), a queue pair's number and its Q_Key.
///
/// ```no_run
/// # use urxe_verbs::{Error, Inline, Qp, SendWr, cm::EventChannel};
/// # fn run(channel: &EventChannel, qp: &Qp) -> Result<(), Error> {
/// let to = "10.0.0.1:7471".parse().unwrap();
/// let found = channel.find_service(to, qp, b"")?.wait_found(None)?;
/// let ah = qp.pd().create_ah(&found.av)?;
/// let datagram = SendWr::send(1, Inline(b"hello")).to(&ah, found.qpn, found.qkey);
/// # Ok(())
/// # }
/// ```
///
/// A clone is another name for the same search; it is given up when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Service(pub(super) Arc<ServiceInner>);

#[derive(Debug)]
pub(super) struct ServiceInner {
    id: Id,
    peer: SocketAddr,
    found: Mutex<Option<UdParam>>,
}

impl Service {
    pub(super) fn find(
        channel: &Arc<ChannelInner>,
        to: SocketAddr,
        qp: &Qp,
        private_data: &[u8],
    ) -> Result<Service, Error> {
        check_device(channel, qp, None)?;
        let way = (source(&qp.context(), to)?, to);
        let id = Id::create_towards(channel, CmPortSpace::Udp, QpType::Ud, way)?;
        let inner = Arc::new(ServiceInner { id, peer: to, found: Mutex::default() });
        inner.id.register(Subject::Service(Arc::downgrade(&inner)));
        let (id, qpn, private_data) = (inner.id.handle, qp.qpn(), private_data.to_vec());
        let param = CmConnParam { qpn, private_data, ..CmConnParam::default() };
        channel.raw.order("connect", CmRequest::Connect { id, param })?;
        Ok(Service(inner))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Error::NoService`] if the peer has no such service or refuses;
    /// [`Error::Unreachable`] if it does not answer, or not within `timeout`;
    /// [`Error::DaemonGone`]. The search is given up, unless there is another clone of it.
    pub fn wait_found(self, timeout: Option<Duration>) -> Result<UdParam, Error> {
        let Id { channel, token, .. } = &self.0.id;
        channel.outcome(*token, || self.found().is_some(), timeout)?;
        let peer = self.0.peer;
        self.found().ok_or(Error::Unreachable { peer, errno: libc::ETIMEDOUT })
    }

    /// What was found, once it is: where to send, and what the other program said.
    pub fn found(&self) -> Option<UdParam> {
        self.0.found.lock().clone()
    }

    /// The address and the port that the service was looked for at.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    /// The channel of its events.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }

    pub(super) fn event(self, kind: EventKind) -> Option<Event> {
        match kind {
            EventKind::Done => Some(Event::ServiceFound(self)),
            EventKind::Failed(error) => Some(Event::ServiceFailed(self, error)),
            _ => None,
        }
    }
}

impl ServiceInner {
    /// Handles an event of the daemon. Returns what of it is for the program.
    pub(super) fn handle(&self, event: CmEvent) -> Option<EventKind> {
        match (event.kind, event.param) {
            (CmEventKind::Established, CmEventParam::Ud(param)) => {
                *self.found.lock() = Some(param);
                Some(EventKind::Done)
            }
            (CmEventKind::ConnectError | CmEventKind::Unreachable, param) => {
                Some(EventKind::Failed(failure(self.peer, CmEvent { param, ..event })))
            }
            _ => None,
        }
    }
}

/// Two handles are equal if they name the same search.
impl PartialEq for Service {
    fn eq(&self, other: &Service) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Service {}
