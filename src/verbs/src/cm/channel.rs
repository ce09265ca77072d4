//! Event channels: where the connection manager tells what happened.

use super::connection::ConnectionInner;
use super::event::{Event, Told, What};
use super::listener::Asked;
use super::multicast::MembershipInner;
use super::raw_channel::RawChannel;
use super::service::ServiceInner;
use super::{
    ConnParam, ConnectRequest, Connection, Listener, Membership, Service, ServiceListener,
    ServiceRequest,
};
use crate::context::ContextInner;
use crate::event_pipe::Deadline;
use crate::inbox::Inbox;
use crate::{Error, Qp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use urxe_shm::control::{CmEvent, CmEventKind, CmIdHandle, CmRequest, CmSubject, Request};

/// An event channel: `rdma_event_channel`. Where the connection manager tells what happens to the
/// objects that were made by it.
///
/// Made by [`Context::create_event_channel`](crate::Context::create_event_channel). Ports belong to
/// the daemon, not to a device: a [`Listener`] on the wildcard address hears of requests on every
/// device. Who connects does so from the device that the queue pair is of, which may be another
/// than the channel's, if it is of the same daemon.
///
/// A clone is another name for the same channel; it is destroyed when the last one, and everything
/// made by it, is dropped.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(super) Arc<ChannelInner>);

#[derive(Debug)]
pub(super) struct ChannelInner {
    pub(super) raw: RawChannel,
    inbox: Inbox<Told>,
    /// What events are of, by the number that they carry.
    subjects: Mutex<HashMap<u64, Subject>>,
    /// Where ways are found: made when the first is looked for.
    ways: Mutex<Option<RawChannel>>,
}

/// Something that events are of.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A listener for connections.
    Connections,
    /// A listener for datagrams.
    Services,
    Connection(Weak<ConnectionInner>),
    Service(Weak<ServiceInner>),
    Membership(Weak<MembershipInner>),
}

impl EventChannel {
    pub(crate) fn create(context: &Arc<ContextInner>) -> Result<EventChannel, Error> {
        Ok(EventChannel(Arc::new(ChannelInner {
            raw: RawChannel::create(context)?,
            inbox: Inbox::default(),
            subjects: Mutex::default(),
            ways: Mutex::default(),
        })))
    }

    /// Listens for connections at an address of one device, or at the wildcard address on all:
    /// `rdma_bind_addr` and `rdma_listen`. Port 0 takes any that is free;
    /// [`Listener::local_addr`] tells which. At most `backlog` requests wait to be told, the
    /// others are refused; 0: as many as the daemon allows.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EADDRINUSE` if another has the port at this address,
    /// `EADDRNOTAVAIL` if one of both is the wildcard, or the machine has no such address; `ENODEV`
    /// if no device has it, `EACCES` for a port below 1,024 without privilege;
    /// [`Error::DaemonGone`].
    pub fn listen(&self, at: SocketAddr, backlog: u32) -> Result<Listener, Error> {
        Listener::open(&self.0, at, backlog)
    }

    /// The same for programs that ask where to send datagrams.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_for_datagrams(
        &self,
        at: SocketAddr,
        backlog: u32,
    ) -> Result<ServiceListener, Error> {
        ServiceListener::open(&self.0, at, backlog)
    }

    /// Asks who listens at `to` for a connection with a queue pair, from the address of its device
    /// by which `to` is reached. Does not wait for the answer: [`Connection::wait_established`]
    /// does, or [`next_event`](Self::next_event) tells how it went.
    ///
    /// The queue pair is in RESET, or in INIT and perhaps with receives; nobody else may change its
    /// state from now on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue pair's device has no address of that family, or is
    /// of another daemon; [`Error::Unreachable`] if there is no way to `to`; [`Error::Refused`] if
    /// the queue pair is not RC, the private data is too long, or there are too many connections;
    /// [`Error::DaemonGone`].
    pub fn connect(&self, to: SocketAddr, qp: &Qp, param: &ConnParam) -> Result<Connection, Error> {
        self.connect_from(super::id::source(&qp.context(), to)?, to, qp, param)
    }

    /// The same from a certain address of the queue pair's device, and from a certain port if that
    /// is not 0.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Refused`] if the address is not to be had.
    pub fn connect_from(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<Connection, Error> {
        Connection::open(&self.0, from, to, qp, param)
    }

    /// Asks who listens at `to` which queue pair takes its datagrams, on behalf of `qp` that will
    /// send them. At most 180 bytes of `private_data` are told to the other program. Does not wait
    /// for the answer: [`Service::wait_found`] does, or [`next_event`](Self::next_event) tells.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn find_service(
        &self,
        to: SocketAddr,
        qp: &Qp,
        private_data: &[u8],
    ) -> Result<Service, Error> {
        Service::find(&self.0, to, qp, private_data)
    }

    /// Begins to join a multicast group, whose port means nothing: `rdma_join_multicast`. When it
    /// is joined, the UD queue pair is attached to it; what it is to receive must carry its own
    /// Q_Key, so it was started with [`UDP_QKEY`](super::UDP_QKEY). Does not wait:
    /// [`Membership::wait_joined`] does, or [`next_event`](Self::next_event) tells.
    ///
    /// # Errors
    /// [`Error::Refused`] if `group` is no multicast address or the queue pair not UD;
    /// [`Error::InvalidArgument`] if its device has no address of that family;
    /// [`Error::DaemonGone`].
    pub fn join_multicast(&self, group: SocketAddr, qp: &Qp) -> Result<Membership, Error> {
        Membership::join(&self.0, group, qp)
    }

    /// Waits for the next event: `rdma_get_cm_event`. `None` if there is none within `timeout`;
    /// without a timeout, waits for ever. There is nothing to acknowledge.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline = Deadline::after(timeout);
        while let Some(told) = self.0.next(|_| true, deadline)? {
            if let Some(event) = self.0.event(told)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next event, if there is one: for who was told that the channel's descriptor ([`AsFd`])
    /// is readable, until it gives `None`.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn try_next_event(&self) -> Result<Option<Event>, Error> {
        self.next_event(Some(Duration::ZERO))
    }
}

impl ChannelInner {
    /// Does something with a channel in which ways to peers are found, and nothing else happens.
    ///
    /// In the program's own, events of other objects would come up meanwhile, and a program that
    /// sleeps until that is readable would not learn that they had been taken out of it.
    pub(super) fn find_way<T>(
        &self,
        find: impl FnOnce(&RawChannel) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // In a fork, another thread of the parent may hold the lock for ever.
        self.raw.context.session.check_process()?;
        let mut ways = self.ways.lock();
        find(match &mut *ways {
            Some(ways) => ways,
            none => none.insert(RawChannel::create(&self.raw.context)?),
        })
    }

    /// Destroys an id. That the answer tells how many events were taken matters to nobody here.
    pub(super) fn destroy_id(&self, id: CmIdHandle) {
        self.raw.context.session.destroy("destroy_id", &Request::Cm(CmRequest::DestroyId { id }));
    }

    pub(super) fn register(&self, token: u64, subject: Subject) {
        self.subjects.lock().insert(token, subject);
    }

    /// Nobody asks for these events any more.
    pub(super) fn forget(&self, token: u64) {
        // In a fork, another thread of the parent may hold the locks for ever.
        if self.raw.context.session.check_process().is_err() {
            return;
        }
        self.subjects.lock().remove(&token);
        for told in self.inbox.remove(|told| told.token == token) {
            self.refuse(&told.what);
        }
    }

    /// The next event of those that are wanted.
    pub(super) fn next(
        &self,
        is_wanted: impl Fn(&Told) -> bool,
        deadline: Deadline,
    ) -> Result<Option<Told>, Error> {
        self.raw.context.session.check_process()?;
        self.inbox.next(is_wanted, deadline, |deadline| self.read(deadline))
    }

    /// Waits for the outcome of what an object asked for, and says whether it is there. If it is
    /// known to have come already, it is only taken, and somebody else may have done that.
    pub(super) fn outcome(
        &self,
        token: u64,
        has_come: bool,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        let is_outcome =
            |told: &Told| told.token == token && matches!(told.what, What::Done | What::Failed(_));
        let told = match has_come {
            true => self.inbox.remove(is_outcome).pop(),
            false => self.next(is_outcome, Deadline::after(timeout))?,
        };
        match told.map(|told| told.what) {
            Some(What::Failed(error)) => Err(error),
            outcome => Ok(outcome.is_some()),
        }
    }

    /// Takes events from the daemon until one is there that a program is to be told.
    fn read(&self, deadline: Deadline) -> Result<Option<Told>, Error> {
        while let Some(event) = self.raw.next(deadline)? {
            if let Some(told) = self.handle(event) {
                return Ok(Some(told));
            }
        }
        Ok(None)
    }

    /// Does what an event asks for. What is left is to be told.
    fn handle(&self, event: CmEvent) -> Option<Told> {
        let token = event.user_handle;
        let subject = self.subjects.lock().get(&token).cloned();
        let what = match (subject, event.kind, event.subject) {
            (
                Some(Subject::Connections | Subject::Services),
                CmEventKind::ConnectRequest,
                CmSubject::Id(id),
            ) => Some(What::Request(id, event.param)),
            // Its listener has gone.
            (None, CmEventKind::ConnectRequest, CmSubject::Id(id)) => {
                self.destroy_id(id);
                None
            }
            (Some(Subject::Connection(connection)), ..) => connection.upgrade()?.handle(event),
            (Some(Subject::Service(service)), ..) => service.upgrade()?.handle(event),
            (Some(Subject::Membership(membership)), ..) => membership.upgrade()?.handle(event),
            _ => None,
        };
        what.map(|what| Told { token, what })
    }

    /// What is told with its object, if that is still there.
    fn event(self: &Arc<Self>, told: Told) -> Result<Option<Event>, Error> {
        let subject = self.subjects.lock().get(&told.token).cloned();
        let event = match (subject, told.what) {
            (Some(Subject::Connections), What::Request(id, param)) => {
                Some(Event::ConnectRequest(ConnectRequest::new(Asked::new(self, id)?, param)))
            }
            (Some(Subject::Services), What::Request(id, param)) => {
                Some(Event::ServiceRequest(ServiceRequest::new(Asked::new(self, id)?, param)))
            }
            (Some(Subject::Connection(connection)), what) => {
                connection.upgrade().and_then(|connection| Connection(connection).event(what))
            }
            (Some(Subject::Service(service)), what) => {
                service.upgrade().and_then(|service| Service(service).event(what))
            }
            (Some(Subject::Membership(membership)), what) => {
                membership.upgrade().and_then(|membership| Membership(membership).event(what))
            }
            (_, what) => {
                self.refuse(&what);
                None
            }
        };
        Ok(event)
    }

    /// Nobody will answer.
    fn refuse(&self, what: &What) {
        if let What::Request(id, _) = what {
            self.destroy_id(*id);
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.raw.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
