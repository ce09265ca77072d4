//! Programs with nothing but messages to the connection manager.

use crate::harness::{Client, Cq, Kind, Mr, Qp, eventually};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use urxe_daemon::Handle;
use urxe_shm::control::{
    CmChannelHandle, CmConnParam, CmEvent, CmEventKind, CmEventParam, CmIdHandle, CmPortSpace,
    CmReply, CmRequest, CmRoute, CmSubject, CmUdParam, ControlError, PdHandle, Reply, Request,
};
use urxe_types::{QpState, QpType};

/// A program with an event channel.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) channel: CmChannelHandle,
    pub(crate) pipe: OwnedFd,
}

impl Caller {
    pub(crate) fn new(socket: &Path) -> Caller {
        let mut client = Client::connect(socket);
        let (channel, pipe) = create_channel(&mut client);
        Caller { client, channel, pipe }
    }

    /// Asks the connection manager something.
    pub(crate) fn ask(&mut self, request: CmRequest) -> Result<Option<CmReply>, ControlError> {
        match self.client.call(Request::Cm(request))? {
            Reply::Done => Ok(None),
            Reply::Cm(reply) => Ok(Some(reply)),
            other => panic!("{other:?}"),
        }
    }

    /// Has the connection manager do something that there is no answer to.
    pub(crate) fn order(&mut self, request: CmRequest) {
        assert_eq!(self.ask(request), Ok(None));
    }

    /// Asks for what is refused with this number.
    pub(crate) fn refused(&mut self, request: CmRequest, errno: Errno) {
        let error = self.ask(request.clone()).unwrap_err();
        assert_eq!(error.errno, errno.raw_os_error(), "{request:?}: {error}");
    }

    pub(crate) fn create(&mut self, space: CmPortSpace, user_handle: u64) -> CmIdHandle {
        let qp_type = match space {
            CmPortSpace::Udp | CmPortSpace::Ipoib => QpType::Ud,
            _ => QpType::Rc,
        };
        let channel = self.channel;
        match self.ask(CmRequest::CreateId { channel, user_handle, space, qp_type }) {
            Ok(Some(CmReply::Id(id))) => id,
            other => panic!("{other:?}"),
        }
    }

    /// An id that listens.
    pub(crate) fn listen(
        &mut self,
        space: CmPortSpace,
        user_handle: u64,
        addr: SocketAddr,
    ) -> CmIdHandle {
        let id = self.create(space, user_handle);
        self.order(CmRequest::Bind { id, addr });
        self.order(CmRequest::Listen { id, backlog: 0 });
        id
    }

    /// An id with its route resolved.
    pub(crate) fn resolve(
        &mut self,
        space: CmPortSpace,
        user_handle: u64,
        dst: SocketAddr,
    ) -> CmIdHandle {
        let id = self.create(space, user_handle);
        self.order(CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 2000 });
        self.expect(user_handle, CmEventKind::AddrResolved);
        self.order(CmRequest::ResolveRoute { id, timeout_ms: 2000 });
        self.expect(user_handle, CmEventKind::RouteResolved);
        id
    }

    /// Whether the pipe says that events wait.
    pub(crate) fn is_announced(&self) -> bool {
        rustix::io::ioctl_fionread(&self.pipe).unwrap() > 0
    }

    /// Waits for an event as a program does.
    pub(crate) fn next(&mut self) -> CmEvent {
        rustix::io::ioctl_fionbio(&self.pipe, true).unwrap();
        eventually("an event", || {
            rustix::io::read(&self.pipe, &mut [0; 1]).ok()?;
            match self.ask(CmRequest::GetEvent { channel: self.channel }) {
                Ok(Some(CmReply::Event(event))) => Some(event),
                Err(error) if error.errno == Errno::AGAIN.raw_os_error() => None,
                other => panic!("{other:?}"),
            }
        })
    }

    /// Waits for an event, which must be this one.
    pub(crate) fn expect(&mut self, user_handle: u64, kind: CmEventKind) -> CmEvent {
        let event = self.next();
        assert_eq!((event.user_handle, event.kind), (user_handle, kind), "{event:?}");
        event
    }

    /// Waits for a request to a listener; returns the new id and what was asked.
    pub(crate) fn expect_request(&mut self, listener: u64) -> (CmIdHandle, CmEventParam) {
        let event = self.expect(listener, CmEventKind::ConnectRequest);
        let CmSubject::Id(id) = event.subject else { panic!("{event:?}") };
        (id, event.param)
    }

    /// Asserts that no event waits, and that none is announced.
    pub(crate) fn expect_nothing(&mut self) {
        assert!(!self.is_announced());
        self.refused(CmRequest::GetEvent { channel: self.channel }, Errno::AGAIN);
    }

    /// Destroys an id, of which so many events were taken.
    pub(crate) fn destroy(&mut self, id: CmIdHandle, taken: u32) {
        let reply = self.ask(CmRequest::DestroyId { id });
        assert_eq!(reply, Ok(Some(CmReply::Events(taken))));
    }

    pub(crate) fn query(&mut self, id: CmIdHandle) -> CmRoute {
        match self.ask(CmRequest::Query { id }) {
            Ok(Some(CmReply::Route(route))) => route,
            other => panic!("{other:?}"),
        }
    }

    /// Takes a QP to these states as the connection manager says.
    pub(crate) fn set_qp(&mut self, id: CmIdHandle, qp: &Qp, states: &[QpState]) {
        for &state in states {
            let reply = self.ask(CmRequest::QpAttr { id, state });
            let Ok(Some(CmReply::QpAttr(attr))) = reply else { panic!("{reply:?}") };
            self.client.modify(qp, attr).unwrap();
        }
    }
}

pub(crate) fn create_channel(client: &mut Client) -> (CmChannelHandle, OwnedFd) {
    let request = Request::Cm(CmRequest::CreateChannel);
    match client.call_with(&request, &[]).unwrap() {
        (Reply::Cm(CmReply::Channel(channel)), mut fds) => (channel, fds.pop().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// What of a connection a program needs beside its id.
pub(crate) struct Line {
    pub(crate) pd: PdHandle,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl Line {
    pub(crate) fn new(client: &mut Client, device: &str) -> Line {
        let context = client.open(device);
        let pd = client.alloc_pd(context);
        let cq = client.create_cq(context, 255, None);
        let mr = client.mr_with(pd, Kind::Shared, 4096, crate::harness::ALL);
        Line { pd, cq, mr }
    }

    pub(crate) fn qp(&self, client: &mut Client, qp_type: QpType) -> Qp {
        client.create_qp_of(self.pd, self.cq.handle, qp_type, None).unwrap()
    }
}

/// What a program says of a QP when it connects.
pub(crate) fn param(qpn: u32, private_data: &[u8]) -> CmConnParam {
    CmConnParam {
        qpn,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data: private_data.to_vec(),
        ..CmConnParam::default()
    }
}

/// What a peer said of its QP.
pub(crate) fn conn(param: CmEventParam) -> CmConnParam {
    match param {
        CmEventParam::Conn(param) => param,
        other => panic!("{other:?}"),
    }
}

/// Where datagrams go.
pub(crate) fn ud(param: CmEventParam) -> CmUdParam {
    match param {
        CmEventParam::Ud(param) => param,
        other => panic!("{other:?}"),
    }
}

/// The address of a daemon's first device.
pub(crate) fn addr_of(daemon: &Handle) -> IpAddr {
    daemon.devices()[0].addrs[0]
}
