//! An id of the connection manager: all its objects have one.

use super::channel::{ChannelInner, Subject};
use super::event::failure;
use super::raw_channel::RawChannel;
use crate::event_pipe::Deadline;
use crate::session::unexpected;
use crate::{Context, Error, Qp, QpState, QpType};
use std::net::{SocketAddr, SocketAddrV6};
use std::sync::Arc;
use urxe_shm::control::{
    CmChannelHandle, CmEvent, CmEventKind, CmIdHandle, CmPortSpace, CmReply, CmRequest, CmRoute,
};
use urxe_types::QpAttr;

/// How long the daemon may take to find an address or a route, in milliseconds.
const RESOLVE_TIMEOUT_MS: u32 = 2000;

/// An id: `rdma_cm_id`. Destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) channel: Arc<ChannelInner>,
    pub(super) handle: CmIdHandle,
    /// The number that its events carry.
    pub(super) token: u64,
}

impl Id {
    pub(super) fn create(
        channel: &Arc<ChannelInner>,
        space: CmPortSpace,
        qp_type: QpType,
    ) -> Result<Id, Error> {
        Id::create_in(channel, channel.raw.handle, space, qp_type)
    }

    /// The same, with address and route resolved from an address of ours to a peer's.
    pub(super) fn create_towards(
        channel: &Arc<ChannelInner>,
        space: CmPortSpace,
        qp_type: QpType,
        (src, dst): (SocketAddr, SocketAddr),
    ) -> Result<Id, Error> {
        channel.with_resolver(|resolver| {
            let id = Id::create_in(channel, resolver.handle, space, qp_type)?;
            let (handle, src, timeout_ms) = (id.handle, Some(src), RESOLVE_TIMEOUT_MS);
            let request = CmRequest::ResolveAddr { id: handle, src, dst, timeout_ms };
            resolver.order("resolve_addr", request)?;
            id.await_event(resolver, CmEventKind::AddrResolved, dst)?;
            resolver.order("resolve_route", CmRequest::ResolveRoute { id: handle, timeout_ms })?;
            id.await_event(resolver, CmEventKind::RouteResolved, dst)?;
            let request = CmRequest::MigrateId { id: handle, channel: channel.raw.handle };
            match resolver.call("migrate_id", request)? {
                CmReply::Events(_) => Ok(id),
                _ => Err(unexpected("migrate_id")),
            }
        })
    }

    fn create_in(
        channel: &Arc<ChannelInner>,
        events_to: CmChannelHandle,
        space: CmPortSpace,
        qp_type: QpType,
    ) -> Result<Id, Error> {
        const CALL: &str = "create_id";
        let token = channel.raw.context.new_token();
        let request =
            CmRequest::CreateId { channel: events_to, user_handle: token, space, qp_type };
        let CmReply::Id(handle) = channel.raw.call(CALL, request)? else {
            return Err(unexpected(CALL));
        };
        Ok(Id { channel: channel.clone(), handle, token })
    }

    /// Waits until the address or the route is resolved, which the daemon does or says why not.
    fn await_event(
        &self,
        resolver: &RawChannel,
        wanted: CmEventKind,
        peer: SocketAddr,
    ) -> Result<(), Error> {
        while let Some(event) = resolver.next(Deadline::after(None))? {
            match event {
                // Of an id that was given up before.
                CmEvent { user_handle, .. } if user_handle != self.token => {}
                CmEvent { kind, .. } if kind == wanted => return Ok(()),
                event => return Err(failure(peer, event)),
            }
        }
        Err(Error::Unreachable { peer, errno: libc::ETIMEDOUT })
    }

    /// The id that came with a request.
    pub(super) fn adopt(channel: &Arc<ChannelInner>, handle: CmIdHandle) -> Id {
        Id { channel: channel.clone(), handle, token: channel.raw.context.new_token() }
    }

    /// Registers its object for its events.
    pub(super) fn register(&self, subject: Subject) {
        self.channel.register(self.token, subject);
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        self.channel.raw.order("bind_addr", CmRequest::Bind { id: self.handle, addr })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let (id, private_data) = (self.handle, private_data.to_vec());
        self.channel.raw.order("reject", CmRequest::Reject { id, private_data })
    }

    pub(super) fn query(&self) -> Result<CmRoute, Error> {
        const CALL: &str = "query_route";
        match self.channel.raw.call(CALL, CmRequest::Query { id: self.handle })? {
            CmReply::Route(route) => Ok(route),
            _ => Err(unexpected(CALL)),
        }
    }

    /// Its own address and port.
    pub(super) fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.query()?.src.ok_or_else(|| unexpected("query_route"))
    }

    /// Takes the queue pair to a state, with the connection's attributes.
    pub(super) fn modify_qp(&self, qp: &Qp, state: QpState) -> Result<(), Error> {
        const CALL: &str = "init_qp_attr";
        let request = CmRequest::QpAttr { id: self.handle, state };
        let CmReply::QpAttr(attr) = self.channel.raw.call(CALL, request)? else {
            return Err(unexpected(CALL));
        };
        qp.modify(&QpAttr { state: Some(state), ..attr })
    }

    /// Takes the queue pair from RESET, or from the INIT that the program took it to, to RTS.
    pub(super) fn qp_to_rts(&self, qp: &Qp) -> Result<(), Error> {
        if qp.is_reset() {
            self.modify_qp(qp, QpState::Init)?;
        }
        self.modify_qp(qp, QpState::Rtr)?;
        self.modify_qp(qp, QpState::Rts)
    }
}

/// Whether the queue pair is of the channel's daemon, and of the device that is meant.
pub(super) fn check_device(
    channel: &ChannelInner,
    qp: &Qp,
    device: Option<u32>,
) -> Result<(), Error> {
    let (ours, theirs) = (&channel.raw.context, qp.context().0);
    let (path, other) = (ours.session.path(), theirs.session.path());
    if path != other {
        let expected = format!("{}, which the event channel is of", path.display());
        return Err(Error::invalid("daemon of the queue pair", other.display(), expected));
    }
    match device {
        Some(device) if device != theirs.device_index() => {
            let name = theirs.device_name(theirs.device_index());
            let expected = format!("{}, which the request came to", ours.device_name(device));
            Err(Error::invalid("device of the queue pair", name, expected))
        }
        _ => Ok(()),
    }
}

/// The address of a device from which it reaches another, with any port.
pub(super) fn source(context: &Context, to: SocketAddr) -> Result<SocketAddr, Error> {
    let mut from = SocketAddr::new(context.address_for(to.ip())?, 0);
    if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (&mut from, to) {
        // Both are on the same link, if they are of one link at all.
        *from = SocketAddrV6::new(*from.ip(), 0, 0, to.scope_id());
    }
    Ok(from)
}

impl Drop for Id {
    fn drop(&mut self) {
        self.channel.forget(self.token);
        self.channel.destroy_id(self.handle);
    }
}
