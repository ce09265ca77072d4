//! Event channels: where the connection manager tells what happened.

use super::connection::ConnectionInner;
use super::event::{Event, Told, What};
use super::listener::Asked;
use super::multicast::MembershipInner;
use super::service::ServiceInner;
use super::{
    ConnParam, ConnectRequest, Connection, Listener, Membership, Service, ServiceListener,
    ServiceRequest,
};
use crate::context::ContextInner;
use crate::event_pipe::{Deadline, EventPipe};
use crate::inbox::Inbox;
use crate::session::{descriptors, unexpected};
use crate::{Error, Qp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use urxe_shm::control::{
    CmChannelHandle, CmEvent, CmEventKind, CmIdHandle, CmReply, CmRequest, CmSubject, Reply,
    Request,
};

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
    pub(super) context: Arc<ContextInner>,
    pub(super) handle: CmChannelHandle,
    pipe: EventPipe,
    inbox: Inbox<Told>,
    /// What events are of, by the number that they carry.
    subjects: Mutex<HashMap<u64, Subject>>,
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
        const CALL: &str = "create_event_channel";
        let request = Request::Cm(CmRequest::CreateChannel);
        let (reply, fds) = context.session.call_with_fds(CALL, &request, &[])?;
        let Reply::Cm(CmReply::Channel(handle)) = reply else { return Err(unexpected(CALL)) };
        let [pipe] = descriptors(CALL, fds)?;
        Ok(EventChannel(Arc::new(ChannelInner {
            context: context.clone(),
            handle,
            pipe: EventPipe::new(pipe)?,
            inbox: Inbox::default(),
            subjects: Mutex::default(),
        })))
    }

    /// Listens for connections at an address of one device, or at the wildcard address on all:
    /// `rdma_bind_addr` and `rdma_listen`. Port 0 takes any that is free;
    /// [`Listener::local_addr`] tells which. At most `backlog` requests wait to be told, the
    /// others are refused; 0: as many as the daemon allows.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EADDRINUSE` if another listener has the port, `EADDRNOTAVAIL` if
    /// the machine has no such address, `ENODEV` if no device has it, `EACCES` for a port below
    /// 1,024 without privilege; [`Error::DaemonGone`].
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

    /// Begins to connect a queue pair to who listens at `to`, from the address of its device by
    /// which `to` is reached. Does not wait: [`Connection::wait_established`] does, or
    /// [`next_event`](Self::next_event) tells how it went.
    ///
    /// The queue pair is in RESET, or in INIT and perhaps with receives; nobody else may change its
    /// state from now on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue pair's device has no address of that family, or is
    /// of another daemon; [`Error::Refused`] if it is UD, or there are too many connections;
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

    /// Begins to ask who listens at `to` which queue pair takes its datagrams, on behalf of `qp`
    /// that will send them. At most 180 bytes of `private_data` are told to the other program.
    /// Does not wait: [`Service::wait_found`] does, or [`next_event`](Self::next_event) tells.
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
    /// Asks the connection manager for something. `call` names it in errors.
    pub(super) fn call(&self, call: &'static str, request: CmRequest) -> Result<CmReply, Error> {
        match self.context.session.call(call, &Request::Cm(request))? {
            Reply::Cm(reply) => Ok(reply),
            _ => Err(unexpected(call)),
        }
    }

    /// Asks it for something that is answered by [`Reply::Done`].
    pub(super) fn order(&self, call: &'static str, request: CmRequest) -> Result<(), Error> {
        self.context.session.order(call, &Request::Cm(request))
    }

    /// Destroys an id. That the answer tells how many events were taken matters to nobody here.
    pub(super) fn destroy_id(&self, id: CmIdHandle) {
        self.context.session.destroy("destroy_id", &Request::Cm(CmRequest::DestroyId { id }));
    }

    pub(super) fn register(&self, token: u64, subject: Subject) {
        self.subjects.lock().insert(token, subject);
    }

    /// Nobody asks for these events any more.
    pub(super) fn forget(&self, token: u64) {
        // In a fork, another thread of the parent may hold the locks for ever.
        if self.context.session.check_process().is_err() {
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
        self.context.session.check_process()?;
        self.inbox.next(is_wanted, deadline, |deadline| self.read(deadline))
    }

    /// Waits for the outcome of what an object asked for. If it is known to have come already, it is
    /// only taken, and somebody else may have done that.
    pub(super) fn outcome(
        &self,
        token: u64,
        has_come: bool,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let is_outcome =
            |told: &Told| told.token == token && matches!(told.what, What::Done | What::Failed(_));
        let told = match has_come {
            true => self.inbox.remove(is_outcome).pop(),
            false => self.next(is_outcome, Deadline::after(timeout))?,
        };
        match told.map(|told| told.what) {
            Some(What::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes events from the daemon until one is there that a program is to be told.
    fn read(&self, deadline: Deadline) -> Result<Option<Told>, Error> {
        const CALL: &str = "get_event";
        let session = &self.context.session;
        while self.pipe.read::<1>(session, deadline)?.is_some() {
            match self.call(CALL, CmRequest::GetEvent { channel: self.handle }) {
                Ok(CmReply::Event(event)) => {
                    if let Some(told) = self.handle(event) {
                        return Ok(Some(told));
                    }
                }
                Ok(_) => return Err(unexpected(CALL)),
                // What was announced went with its id.
                Err(Error::Refused { errno: libc::EAGAIN, .. }) => {}
                Err(error) => return Err(error),
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
        self.0.pipe.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        let request = Request::Cm(CmRequest::DestroyChannel { channel: self.handle });
        self.context.session.destroy("destroy_event_channel", &request);
    }
}
