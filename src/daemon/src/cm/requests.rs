//! What programs ask: handles of their sessions become keys, and keys become actions.

use super::channel::EventChannel;
use super::id::Id;
use crate::objects::{Object, PendingFree};
use crate::resources::{Refusal, refuse};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use std::net::SocketAddr;
use urxe_shm::control::{
    CmChannelHandle, CmIdHandle, CmMulticastHandle, CmPortSpace, CmReply, CmRequest, CmSubject,
    ContextHandle, ControlError, Reply,
};
use urxe_types::QpType;

/// An event channel of a session, by its key here.
pub(crate) struct CmChannel(u32);

/// An id of a session, by its key here.
pub(crate) struct CmId(u32);

/// A membership of an id in a multicast group, by its key here.
pub(crate) struct CmMembership(u32);

impl Object for CmChannel {
    fn context(&self) -> Option<ContextHandle> {
        None
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut DaemonCtx) {
        let removed = ctx.cm.channels.remove(self.0);
        ctx.cm.counters.cm_channels_destroyed += u64::from(removed.is_some());
    }
}

impl Object for CmId {
    fn context(&self) -> Option<ContextHandle> {
        None
    }

    fn free(self, _: u32, session: &mut Session, ctx: &mut DaemonCtx) {
        destroy_id(session, ctx, self.0);
    }
}

impl Object for CmMembership {
    fn context(&self) -> Option<ContextHandle> {
        None
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut DaemonCtx) {
        ctx.cm.leave(self.0);
    }
}

/// Does what a program asks of the connection manager.
pub(crate) fn handle(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    request: CmRequest,
) -> Result<Answer, ControlError> {
    let DaemonCtx { devices, now, .. } = ctx;
    let now = *now;
    match request {
        CmRequest::CreateChannel => return create_channel(session, ctx),
        CmRequest::DestroyChannel { channel } => {
            return begin_destroying_channel(session, ctx, channel);
        }
        CmRequest::GetEvent { channel } => return get_event(session, ctx, channel),
        CmRequest::CreateId { channel, user_handle, space, qp_type } => {
            return create_id(session, ctx, channel, user_handle, space, qp_type);
        }
        CmRequest::DestroyId { id } => {
            let CmId(key) = session.objects.remove(id.0)?;
            return Ok(answer(CmReply::Events(destroy_id(session, ctx, key))));
        }
        CmRequest::MigrateId { id, channel } => {
            let (key, channel) = (key_of(session, id)?, channel_key(session, channel)?);
            return Ok(answer(CmReply::Events(ctx.cm.migrate(key, channel)?)));
        }
        CmRequest::Bind { id, addr } => {
            ctx.cm.bind(devices, session.is_root(), key_of(session, id)?, addr)?;
        }
        CmRequest::ResolveAddr { id, src, dst, timeout_ms: _ } => {
            ctx.cm.resolve_addr(devices, session.is_root(), key_of(session, id)?, src, dst)?;
        }
        CmRequest::ResolveRoute { id, timeout_ms: _ } => {
            ctx.cm.resolve_route(key_of(session, id)?)?;
        }
        CmRequest::Query { id } => {
            let route = ctx.cm.query(devices, key_of(session, id)?)?;
            return Ok(answer(CmReply::Route(route)));
        }
        CmRequest::Listen { id, backlog } => {
            ctx.cm.listen(devices, now, key_of(session, id)?, backlog)?;
        }
        CmRequest::Connect { id, param } => {
            ctx.cm.connect(devices, now, key_of(session, id)?, &param)?;
        }
        CmRequest::Accept { id, user_handle, param } => {
            ctx.cm.accept(devices, now, key_of(session, id)?, user_handle, &param)?;
        }
        CmRequest::Establish { id } => ctx.cm.establish(devices, now, key_of(session, id)?)?,
        CmRequest::Reject { id, private_data } => {
            ctx.cm.reject(devices, now, key_of(session, id)?, &private_data)?;
        }
        CmRequest::Disconnect { id } => ctx.cm.disconnect(devices, now, key_of(session, id)?)?,
        CmRequest::QpAttr { id, state } => {
            let attr = ctx.cm.qp_attr(devices, key_of(session, id)?, state)?;
            return Ok(answer(CmReply::QpAttr(attr)));
        }
        CmRequest::SetOption { id, option } => {
            ctx.cm.set_option(key_of(session, id)?, option)?;
        }
        CmRequest::JoinMulticast { id, user_handle, group } => {
            return join_multicast(session, ctx, id, user_handle, group);
        }
        CmRequest::LeaveMulticast { multicast } => {
            let CmMembership(key) = session.objects.remove(multicast.0)?;
            return Ok(answer(CmReply::Events(ctx.cm.leave(key))));
        }
    }
    Ok(Reply::Done.into())
}

/// Refuses what is about an id or a membership of another channel than this one.
pub(crate) fn check_within(
    session: &Session,
    ctx: &DaemonCtx,
    channel: CmChannelHandle,
    request: &CmRequest,
) -> Result<(), ControlError> {
    let wanted = channel_key(session, channel)?;
    let (what, handle, found) = match request.subject() {
        None => return Ok(()),
        Some(CmSubject::Id(id)) => ("id", id.0, ctx.cm.channel_of(key_of(session, id)?)),
        Some(CmSubject::Multicast(multicast)) => {
            let &CmMembership(key) = session.objects.get(multicast.0)?;
            ("multicast membership", multicast.0, ctx.cm.channel_of_membership(key))
        }
    };
    if found == Some(wanted) {
        return Ok(());
    }
    let sentence = format!("{what} {handle}: is in another event channel than {channel}");
    Err(refuse(Errno::INVAL, sentence))
}

fn create_channel(session: &mut Session, ctx: &mut DaemonCtx) -> Result<Answer, ControlError> {
    session.objects.check_quota::<CmChannel>()?;
    let handle = session.objects.new_handle()?;
    let (channel, read_end) = EventChannel::new().or_refuse(Errno::MFILE, "event channel")?;
    let key = ctx.cm.channels.insert(channel);
    let key = key.ok_or_else(|| refuse(Errno::NOMEM, "the daemon has too many channels"))?;
    ctx.cm.counters.cm_channels_created += 1;
    session.objects.insert(handle, CmChannel(key));
    let reply = Reply::Cm(CmReply::Channel(CmChannelHandle(handle)));
    Ok(Answer::Reply { reply, fds: vec![read_end] })
}

/// Begins to destroy an event channel with all ids that are in it.
fn begin_destroying_channel(
    session: &mut Session,
    ctx: &DaemonCtx,
    channel: CmChannelHandle,
) -> Result<Answer, ControlError> {
    let key = channel_key(session, channel)?;
    let is_in = |id: &CmId| ctx.cm.ids.get(id.0).is_some_and(|id| id.channel == key);
    let ids = session.objects.all::<CmId>().iter().filter(|(_, id)| is_in(id));
    let ids = ids.map(|(&handle, _)| PendingFree::new::<CmId>(handle));
    let all = std::iter::once(PendingFree::new::<CmChannel>(channel.0)).chain(ids);
    let all: Vec<PendingFree> = all.collect();
    session.begin_freeing(all);
    Ok(Answer::WhenFreed)
}

fn create_id(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    channel: CmChannelHandle,
    user_handle: u64,
    space: CmPortSpace,
    qp_type: QpType,
) -> Result<Answer, ControlError> {
    let channel = channel_key(session, channel)?;
    let fits = match space {
        CmPortSpace::Tcp => qp_type == QpType::Rc,
        CmPortSpace::Udp | CmPortSpace::Ipoib => qp_type == QpType::Ud,
        CmPortSpace::Ib => true,
    };
    if !fits {
        let sentence = format!("port space {space:?}: has no transport {qp_type:?}");
        return Err(refuse(Errno::INVAL, sentence));
    }
    session.objects.check_quota::<CmId>()?;
    let handle = session.objects.new_handle()?;
    let id = Id::new(session.program().clone(), handle, channel, space, qp_type);
    let id = Id { user_handle: Some(user_handle), ..id };
    let key = ctx.cm.ids.insert(id).ok_or_else(no_more_ids)?;
    ctx.cm.counters.cm_ids_created += 1;
    session.objects.insert(handle, CmId(key));
    Ok(answer(CmReply::Id(CmIdHandle(handle))))
}

/// Destroys an id, and forgets its memberships. Returns how many of its events were taken.
fn destroy_id(session: &mut Session, ctx: &mut DaemonCtx, key: u32) -> u32 {
    for handle in ctx.cm.memberships_of(key) {
        let forgotten = session.objects.remove::<CmMembership>(handle);
        debug_assert!(forgotten.is_ok(), "the session has a handle of each");
    }
    ctx.cm.destroy_id(&mut ctx.devices, ctx.now, key)
}

fn get_event(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    channel: CmChannelHandle,
) -> Result<Answer, ControlError> {
    let key = channel_key(session, channel)?;
    let nothing = || refuse(Errno::AGAIN, format!("channel {channel}: no event waits"));
    let mut handle = 0;
    if ctx.cm.next_is_request(key).ok_or_else(nothing)? {
        // The event stays where it is until there is room.
        session.objects.check_quota::<CmId>()?;
        if ctx.cm.ids.next_key().is_none() {
            return Err(no_more_ids());
        }
        handle = session.objects.new_handle()?;
    }
    let (event, id) = ctx.cm.take_event(&mut ctx.devices, key, handle).ok_or_else(nothing)?;
    if let Some(id) = id {
        session.objects.insert(handle, CmId(id));
    }
    Ok(answer(CmReply::Event(event)))
}

fn join_multicast(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    id: CmIdHandle,
    user_handle: u64,
    group: SocketAddr,
) -> Result<Answer, ControlError> {
    let id = key_of(session, id)?;
    session.objects.check_quota::<CmMembership>()?;
    let handle = session.objects.new_handle()?;
    let key = ctx.cm.join(&ctx.devices, id, handle, user_handle, group)?;
    session.objects.insert(handle, CmMembership(key));
    Ok(answer(CmReply::Multicast(CmMulticastHandle(handle))))
}

fn channel_key(session: &Session, channel: CmChannelHandle) -> Result<u32, ControlError> {
    let &CmChannel(key) = session.objects.get(channel.0)?;
    Ok(key)
}

fn key_of(session: &Session, id: CmIdHandle) -> Result<u32, ControlError> {
    let &CmId(key) = session.objects.get(id.0)?;
    Ok(key)
}

fn answer(reply: CmReply) -> Answer {
    Reply::Cm(reply).into()
}

fn no_more_ids() -> ControlError {
    refuse(Errno::NOMEM, "the daemon can have no more ids")
}
