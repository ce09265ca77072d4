//! Event channels.

use super::connection::ConnectionInner;
use super::event::{Event, EventKind, PendingEvent};
use super::listener::Incoming;
use super::multicast::MembershipInner;
use super::raw_channel::RawChannel;
use super::service::ServiceInner;
use super::{
    ConnParam, ConnectRequest, Connection, Listener, Membership, Service, ServiceListener,
    ServiceRequest,
};
use crate::context::ContextInner;
use crate::event_pipe::Deadline;
use crate::inbox::{Inbox, take};
use crate::{Error, Qp};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use urxe_shm::control::{CmEvent, CmEventKind, CmIdHandle, CmRequest, CmSubject, Request};

/// An event channel: `rdma_event_channel`. The events of the objects that were made by
/// it come here.
///
/// Made by [`Context::create_event_channel`](crate::Context::create_event_channel). Ports belong to
/// the daemon, not to a device: a [`Listener`] on the wildcard address gets the requests of all
/// devices. A connection is made from the device of its queue pair, which may be another than the
/// channel's, if it is of the same daemon.
///
/// A clone is another name for the same channel; it is destroyed when the last one, and everything
/// made by it, is dropped.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(super) Arc<ChannelInner>);

#[derive(Debug)]
pub(super) struct ChannelInner {
    pub(super) raw: RawChannel,
    inbox: Inbox<PendingEvent>,
    /// The objects of events, by the number that events carry.
    subjects: Mutex<HashMap<u64, Subject>>,
    /// The channel in which addresses and routes are resolved: made when first used.
    resolver: Mutex<Option<RawChannel>>,
}

/// An object that has events.
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
            resolver: Mutex::default(),
        })))
    }

    /// Listens for connections at an address of one device, or at the wildcard address on all:
    /// `rdma_bind_addr` and `rdma_listen`. Port 0 takes any that is free;
    /// [`Listener::local_addr`] tells which. At most `backlog` requests wait to be taken, the
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
    /// does, or [`next_event`](Self::next_event) reports the outcome.
    ///
    /// The queue pair is in RESET, or in INIT and perhaps with receives; its state is the
    /// connection's from now on. If that is not made, one that was in INIT is in the error state.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue pair's device has no address of that family, or is
    /// of another daemon; [`Error::Unreachable`] if there is no route to `to`; [`Error::Refused`]
    /// if the queue pair is not RC, the private data is too long, or there are too many
    /// connections; [`Error::DaemonGone`].
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
    /// send them. The other program gets at most 180 bytes of `private_data`. Does not wait for the
    /// answer: [`Service::wait_found`] does, or [`next_event`](Self::next_event) reports it.
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
    /// [`Membership::wait_joined`] does, or [`next_event`](Self::next_event) reports it.
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
        while let Some(event) = self.0.next(|_| true, deadline)? {
            if let Some(event) = self.0.event(event)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next event, if there is one: to be called until it gives `None` when the channel's
    /// descriptor ([`AsFd`]) is readable.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn try_next_event(&self) -> Result<Option<Event>, Error> {
        self.next_event(Some(Duration::ZERO))
    }
}

impl ChannelInner {
    /// Does something with a channel in which addresses and routes are resolved, and nothing else
    /// happens.
    ///
    /// In the program's own channel, events of other objects would be taken meanwhile, and a
    /// program that sleeps until that is readable would not wake for them.
    pub(super) fn with_resolver<T>(
        &self,
        find: impl FnOnce(&RawChannel) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // In a fork, another thread of the parent may hold the lock for ever.
        self.raw.context.session.check_process()?;
        let mut resolver = self.resolver.lock();
        find(match &mut *resolver {
            Some(resolver) => resolver,
            none => none.insert(RawChannel::create(&self.raw.context)?),
        })
    }

    /// Destroys an id. How many of its events were taken, as the reply says, is not needed here.
    pub(super) fn destroy_id(&self, id: CmIdHandle) {
        self.raw.context.session.destroy("destroy_id", &Request::Cm(CmRequest::DestroyId { id }));
    }

    pub(super) fn register(&self, token: u64, subject: Subject) {
        self.subjects.lock().insert(token, subject);
    }

    /// Drops the events of an object that is gone.
    pub(super) fn forget(&self, token: u64) {
        // In a fork, another thread of the parent may hold the locks for ever.
        if self.raw.context.session.check_process().is_err() {
            return;
        }
        self.subjects.lock().remove(&token);
        for event in self.inbox.remove(|event| event.token == token) {
            self.refuse(&event.kind);
        }
    }

    /// The next event of those that are wanted.
    pub(super) fn next(
        &self,
        is_wanted: impl Fn(&PendingEvent) -> bool,
        deadline: Deadline,
    ) -> Result<Option<PendingEvent>, Error> {
        self.look_for(|events| take(events, &is_wanted), deadline)
    }

    /// Waits until something is found among the events that were read, whichever thread read them.
    pub(super) fn look_for<R>(
        &self,
        find: impl FnMut(&mut VecDeque<PendingEvent>) -> Option<R>,
        deadline: Deadline,
    ) -> Result<Option<R>, Error> {
        self.raw.context.session.check_process()?;
        self.inbox.look_for(
            find,
            deadline,
            |deadline| self.read(deadline),
            |event| self.keep(event),
        )
    }

    /// The event, if its object is still there to take it; else what it asks for is refused.
    fn keep(&self, event: PendingEvent) -> Option<PendingEvent> {
        // CLIENT-027
        if self.subjects.lock().contains_key(&event.token) {
            return Some(event);
        }
        self.refuse(&event.kind);
        None
    }

    /// How many events were read so far, for whichever object.
    #[cfg(feature = "tokio")]
    pub(super) fn events_read(&self) -> u64 {
        self.inbox.events_read()
    }

    /// Waits for the outcome of what an object requested, and returns whether it is there. If it is
    /// known to have come already it is only taken, unless another thread has done that.
    pub(super) fn outcome(
        &self,
        token: u64,
        has_come: impl Fn() -> bool,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        let is_outcome = |event: &PendingEvent| {
            event.token == token && matches!(event.kind, EventKind::Done | EventKind::Failed(_))
        };
        let find = |events: &mut VecDeque<PendingEvent>| match take(events, is_outcome) {
            Some(event) => Some(Some(event)),
            None => has_come().then_some(None),
        };
        let event = self.look_for(find, Deadline::after(timeout))?.flatten();
        match event.map(|event| event.kind) {
            Some(EventKind::Failed(error)) => Err(error),
            outcome => Ok(outcome.is_some()),
        }
    }

    /// Takes events from the daemon until there is one for the program.
    fn read(&self, deadline: Deadline) -> Result<Option<PendingEvent>, Error> {
        while let Some(event) = self.raw.next(deadline)? {
            if let Some(event) = self.handle(event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Handles an event of the daemon. Returns what of it is for the program.
    fn handle(&self, event: CmEvent) -> Option<PendingEvent> {
        let token = event.user_handle;
        let subject = self.subjects.lock().get(&token).cloned();
        let kind = match (subject, event.kind, event.subject) {
            // Also if its listener has gone: it is refused then, as it is not kept.
            (
                Some(Subject::Connections | Subject::Services) | None,
                CmEventKind::ConnectRequest,
                CmSubject::Id(id),
            ) => Some(EventKind::Request(id, event.param)),
            (Some(Subject::Connection(connection)), ..) => connection.upgrade()?.handle(event),
            (Some(Subject::Service(service)), ..) => service.upgrade()?.handle(event),
            (Some(Subject::Membership(membership)), ..) => membership.upgrade()?.handle(event),
            _ => None,
        };
        kind.map(|kind| PendingEvent { token, kind })
    }

    /// An event with its object, if that is still there.
    fn event(self: &Arc<Self>, event: PendingEvent) -> Result<Option<Event>, Error> {
        let subject = self.subjects.lock().get(&event.token).cloned();
        let event = match (subject, event.kind) {
            (Some(Subject::Connections), EventKind::Request(id, param)) => {
                Some(Event::ConnectRequest(ConnectRequest::new(Incoming::new(self, id)?, param)))
            }
            (Some(Subject::Services), EventKind::Request(id, param)) => {
                Some(Event::ServiceRequest(ServiceRequest::new(Incoming::new(self, id)?, param)))
            }
            (Some(Subject::Connection(connection)), kind) => {
                connection.upgrade().and_then(|connection| Connection(connection).event(kind))
            }
            (Some(Subject::Service(service)), kind) => {
                service.upgrade().and_then(|service| Service(service).event(kind))
            }
            (Some(Subject::Membership(membership)), kind) => {
                membership.upgrade().and_then(|membership| Membership(membership).event(kind))
            }
            (_, kind) => {
                self.refuse(&kind);
                None
            }
        };
        Ok(event)
    }

    /// Rejects a request that is not going to be answered.
    fn refuse(&self, kind: &EventKind) {
        if let EventKind::Request(id, _) = kind {
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
