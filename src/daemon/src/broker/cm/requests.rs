//! What programs ask: handles of their sessions become keys, and keys become actions.

use super::holdings::PendingFree;
use super::id::Id;
use crate::broker::BrokerCtx;
use crate::broker::sessions::Session;
use rustix::io::Errno;
use std::net::SocketAddr;
use urxe_shm::control::{
    CmChannelHandle, CmIdHandle, CmMulticastHandle, CmPortSpace, CmReply, CmRequest, CmSubject,
    ControlError, Reply,
};
use urxe_slot::limits::FREES_PER_TURN;
use urxe_slot::refusal::refuse;
use urxe_types::QpType;

/// What becomes of a request that is not refused.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is done.
    Reply(Reply),
    /// It has only begun: the answer is [`Reply::Done`] when nothing is left to be freed.
    WhenFreed,
}

/// Frees a slice of what is to be freed of a session.
pub(crate) fn free_some(session: &mut Session, ctx: &mut BrokerCtx) {
    for pending in session.cm.next_slice() {
        match pending {
            PendingFree::Channel(handle) => {
                if let Ok(key) = session.cm.channels.remove(handle) {
                    let removed = ctx.cm.channels.remove(key);
                    ctx.cm.counters.cm_channels_destroyed += u64::from(removed.is_some());
                }
            }
            PendingFree::Id(handle) => {
                if let Ok(key) = session.cm.ids.remove(handle) {
                    destroy_id(session, ctx, key);
                }
            }
        }
    }
}

/// Does what a program asks of the connection manager.
pub(crate) fn handle(
    session: &mut Session,
    ctx: &mut BrokerCtx,
    request: CmRequest,
) -> Result<Answer, ControlError> {
    let BrokerCtx { devices, now, .. } = ctx;
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
            let key = session.cm.ids.remove(id.0)?;
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
            let key = session.cm.memberships.remove(multicast.0)?;
            return Ok(answer(CmReply::Events(ctx.cm.leave(key))));
        }
    }
    Ok(Answer::Reply(Reply::Done))
}

/// The same in the name of one channel: refuses what is about an id or a membership of another.
pub(crate) fn handle_within(
    session: &mut Session,
    ctx: &mut BrokerCtx,
    channel: CmChannelHandle,
    request: CmRequest,
) -> Result<Answer, ControlError> {
    let wanted = channel_key(session, channel)?;
    let (what, named, found) = match request.subject() {
        None => return handle(session, ctx, request),
        Some(CmSubject::Id(id)) => ("id", id.0, ctx.cm.channel_of(key_of(session, id)?)),
        Some(CmSubject::Multicast(multicast)) => {
            let key = session.cm.memberships.get(multicast.0)?;
            ("multicast membership", multicast.0, ctx.cm.channel_of_membership(key))
        }
    };
    if found == Some(wanted) {
        return handle(session, ctx, request);
    }
    let sentence = format!("{what} {named}: is in another event channel than {channel}");
    Err(refuse(Errno::INVAL, sentence))
}

fn create_channel(session: &mut Session, ctx: &mut BrokerCtx) -> Result<Answer, ControlError> {
    session.cm.channels.check_quota()?;
    let handle = session.cm.new_handle()?;
    let key = ctx.cm.channels.insert(session.number, handle);
    let key = key.ok_or_else(|| refuse(Errno::NOMEM, "the daemon has too many channels"))?;
    ctx.cm.counters.cm_channels_created += 1;
    session.cm.channels.insert(handle, key);
    Ok(answer(CmReply::Channel(CmChannelHandle(handle))))
}

/// Begins to destroy an event channel with all ids that are in it.
fn begin_destroying_channel(
    session: &mut Session,
    ctx: &BrokerCtx,
    channel: CmChannelHandle,
) -> Result<Answer, ControlError> {
    let key_of_channel = channel_key(session, channel)?;
    let is_in = |key: u32| ctx.cm.ids.get(key).is_some_and(|id| id.channel == key_of_channel);
    let ids = session.cm.ids.iter().filter(|&(_, key)| is_in(key));
    let ids = ids.map(|(handle, _)| PendingFree::Id(handle));
    let all: Vec<_> = std::iter::once(PendingFree::Channel(channel.0)).chain(ids).collect();
    session.cm.begin_freeing(all);
    Ok(Answer::WhenFreed)
}

fn create_id(
    session: &mut Session,
    ctx: &mut BrokerCtx,
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
    session.cm.ids.check_quota()?;
    let handle = session.cm.new_handle()?;
    let id = Id::new(session.program.clone(), handle, channel, space, qp_type);
    let id = Id { user_handle: Some(user_handle), ..id };
    let key = ctx.cm.add_id(id)?;
    session.cm.ids.insert(handle, key);
    Ok(answer(CmReply::Id(CmIdHandle(handle))))
}

/// Destroys an id, and forgets its memberships. Returns how many of its events were taken.
fn destroy_id(session: &mut Session, ctx: &mut BrokerCtx, key: u32) -> u32 {
    for handle in ctx.cm.memberships_of(key) {
        let forgotten = session.cm.memberships.remove(handle);
        debug_assert!(forgotten.is_ok(), "the session has a handle of each");
    }
    ctx.cm.destroy_id(&mut ctx.devices, ctx.now, key)
}

fn get_event(
    session: &mut Session,
    ctx: &mut BrokerCtx,
    channel: CmChannelHandle,
) -> Result<Answer, ControlError> {
    let key = channel_key(session, channel)?;
    let nothing = || refuse(Errno::AGAIN, format!("channel {channel}: no event waits"));
    // So many, that one program's refusals keep no other waiting; it is told that more wait.
    for _ in 0..FREES_PER_TURN {
        let mut handle = 0;
        if ctx.cm.next_is_request(key).ok_or_else(nothing)? {
            let Ok(new) = handle_for_request(session, ctx) else {
                // CM-205
                ctx.cm.refuse_first(&mut ctx.devices, ctx.now, key);
                continue;
            };
            handle = new;
        }
        let (event, id) = ctx.cm.take_event(&mut ctx.devices, key, handle).ok_or_else(nothing)?;
        if let Some(id) = id {
            session.cm.ids.insert(handle, id);
        }
        return Ok(answer(CmReply::Event(event)));
    }
    Err(nothing())
}

/// The handle of one more id, if the program may have it.
fn handle_for_request(session: &mut Session, ctx: &BrokerCtx) -> Result<u32, ControlError> {
    session.cm.ids.check_quota()?;
    ctx.cm.check_id(session.program.uid)?;
    session.cm.new_handle()
}

fn join_multicast(
    session: &mut Session,
    ctx: &mut BrokerCtx,
    id: CmIdHandle,
    user_handle: u64,
    group: SocketAddr,
) -> Result<Answer, ControlError> {
    let id = key_of(session, id)?;
    session.cm.memberships.check_quota()?;
    let handle = session.cm.new_handle()?;
    let key = ctx.cm.join(&ctx.devices, id, handle, user_handle, group)?;
    session.cm.memberships.insert(handle, key);
    Ok(answer(CmReply::Multicast(CmMulticastHandle(handle))))
}

fn channel_key(session: &Session, channel: CmChannelHandle) -> Result<u32, ControlError> {
    session.cm.channels.get(channel.0)
}

fn key_of(session: &Session, id: CmIdHandle) -> Result<u32, ControlError> {
    session.cm.ids.get(id.0)
}

fn answer(reply: CmReply) -> Answer {
    Answer::Reply(Reply::Cm(reply))
}
