//! What programs ask: handles of their sessions become keys, and keys become actions.

use super::channel::EventChannel;
use super::id::Id;
use crate::limits::{MAX_CM_CHANNELS, MAX_CM_IDS, MAX_CM_MEMBERSHIPS};
use crate::resources::{Refusal, check_quota, find, refuse};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use std::net::SocketAddr;
use urxe_shm::control::{
    CmChannelHandle, CmIdHandle, CmMulticastHandle, CmPortSpace, CmReply, CmRequest, CmSubject,
    ControlError, Reply,
};
use urxe_types::QpType;

impl Session {
    /// Does what a program asks of the connection manager. `None`: it has only begun.
    pub(crate) fn handle_cm(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        request: CmRequest,
    ) -> Result<Option<Answer>, ControlError> {
        let DaemonCtx { devices, now, .. } = ctx;
        let now = *now;
        match request {
            CmRequest::CreateChannel => return self.create_cm_channel(ctx).map(Some),
            CmRequest::DestroyChannel { channel } => {
                return self.begin_destroying_cm_channel(ctx, channel).map(|()| None);
            }
            CmRequest::GetEvent { channel } => return self.get_cm_event(ctx, channel).map(Some),
            CmRequest::CreateId { channel, user_handle, space, qp_type } => {
                return self.create_cm_id(ctx, channel, user_handle, space, qp_type).map(Some);
            }
            CmRequest::DestroyId { id } => {
                let key = self.cm_id(id)?;
                self.cm_ids.remove(&id.0);
                let taken = self.free_cm_id(ctx, key);
                return Ok(Some(answer(CmReply::Events(taken))));
            }
            CmRequest::MigrateId { id, channel } => {
                let (key, channel) = (self.cm_id(id)?, self.cm_channel(channel)?);
                return Ok(Some(answer(CmReply::Events(ctx.cm.migrate(key, channel)?))));
            }
            CmRequest::Bind { id, addr } => {
                ctx.cm.bind(devices, self.is_root(), self.cm_id(id)?, addr)?;
            }
            CmRequest::ResolveAddr { id, src, dst, timeout_ms: _ } => {
                ctx.cm.resolve_addr(devices, self.is_root(), self.cm_id(id)?, src, dst)?;
            }
            CmRequest::ResolveRoute { id, timeout_ms: _ } => {
                ctx.cm.resolve_route(self.cm_id(id)?)?;
            }
            CmRequest::Query { id } => {
                let route = ctx.cm.query(devices, self.cm_id(id)?)?;
                return Ok(Some(answer(CmReply::Route(route))));
            }
            CmRequest::Listen { id, backlog } => {
                ctx.cm.listen(devices, now, self.cm_id(id)?, backlog)?;
            }
            CmRequest::Connect { id, param } => {
                ctx.cm.connect(devices, now, self.cm_id(id)?, &param)?;
            }
            CmRequest::Accept { id, user_handle, param } => {
                ctx.cm.accept(devices, now, self.cm_id(id)?, user_handle, &param)?;
            }
            CmRequest::Establish { id } => ctx.cm.establish(devices, now, self.cm_id(id)?)?,
            CmRequest::Reject { id, private_data } => {
                ctx.cm.reject(devices, now, self.cm_id(id)?, &private_data)?;
            }
            CmRequest::Disconnect { id } => ctx.cm.disconnect(devices, now, self.cm_id(id)?)?,
            CmRequest::QpAttr { id, state } => {
                let attr = ctx.cm.qp_attr(devices, self.cm_id(id)?, state)?;
                return Ok(Some(answer(CmReply::QpAttr(attr))));
            }
            CmRequest::SetOption { id, option } => {
                ctx.cm.set_option(self.cm_id(id)?, option)?;
            }
            CmRequest::JoinMulticast { id, user_handle, group } => {
                return self.join_cm_multicast(ctx, id, user_handle, group).map(Some);
            }
            CmRequest::LeaveMulticast { multicast } => {
                let key = self.cm_membership(multicast)?;
                self.cm_memberships.remove(&multicast.0);
                return Ok(Some(answer(CmReply::Events(ctx.cm.leave(key)))));
            }
        }
        Ok(Some(Reply::Done.into()))
    }

    /// Refuses what is about an id or a membership of another channel than this one.
    pub(crate) fn check_within(
        &self,
        ctx: &DaemonCtx<'_>,
        channel: CmChannelHandle,
        request: &CmRequest,
    ) -> Result<(), ControlError> {
        let wanted = self.cm_channel(channel)?;
        let (what, handle, found) = match request.subject() {
            None => return Ok(()),
            Some(CmSubject::Id(id)) => ("id", id.0, ctx.cm.channel_of(self.cm_id(id)?)),
            Some(CmSubject::Multicast(multicast)) => {
                let key = self.cm_membership(multicast)?;
                ("multicast membership", multicast.0, ctx.cm.channel_of_membership(key))
            }
        };
        if found == Some(wanted) {
            return Ok(());
        }
        let sentence = format!("{what} {handle}: is in another event channel than {channel}");
        Err(refuse(Errno::INVAL, sentence))
    }

    fn create_cm_channel(&mut self, ctx: &mut DaemonCtx<'_>) -> Result<Answer, ControlError> {
        check_quota("event channels", self.cm_channels.len(), MAX_CM_CHANNELS)?;
        let handle = self.new_handle()?;
        let (channel, read_end) = EventChannel::new().or_refuse(Errno::MFILE, "event channel")?;
        let key = ctx.cm.channels.insert(channel);
        let key = key.ok_or_else(|| refuse(Errno::NOMEM, "the daemon has too many channels"))?;
        ctx.cm.counters.cm_channels_created += 1;
        self.cm_channels.insert(handle, key);
        let reply = Reply::Cm(CmReply::Channel(CmChannelHandle(handle)));
        Ok(Answer { reply, fds: vec![read_end] })
    }

    pub(crate) fn free_cm_channel(&mut self, ctx: &mut DaemonCtx<'_>, key: u32) {
        let removed = ctx.cm.channels.remove(key);
        ctx.cm.counters.cm_channels_destroyed += u64::from(removed.is_some());
    }

    /// The handles of the ids in a channel.
    pub(crate) fn cm_ids_of(&self, ctx: &DaemonCtx<'_>, channel: u32) -> Vec<u32> {
        let ids = self.cm_ids.iter();
        let is_in = |key: &u32| ctx.cm.ids.get(*key).is_some_and(|id| id.channel == channel);
        ids.filter(|(_, key)| is_in(key)).map(|(&handle, _)| handle).collect()
    }

    fn create_cm_id(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        channel: CmChannelHandle,
        user_handle: u64,
        space: CmPortSpace,
        qp_type: QpType,
    ) -> Result<Answer, ControlError> {
        let channel = self.cm_channel(channel)?;
        let fits = match space {
            CmPortSpace::Tcp => qp_type == QpType::Rc,
            CmPortSpace::Udp | CmPortSpace::Ipoib => qp_type == QpType::Ud,
            CmPortSpace::Ib => true,
        };
        if !fits {
            let sentence = format!("port space {space:?}: has no transport {qp_type:?}");
            return Err(refuse(Errno::INVAL, sentence));
        }
        check_quota("ids", self.cm_ids.len(), MAX_CM_IDS)?;
        let handle = self.new_handle()?;
        let id = Id::new(self.owner(), handle, channel, space, qp_type);
        let id = Id { user_handle: Some(user_handle), ..id };
        let key = ctx.cm.ids.insert(id).ok_or_else(no_more_ids)?;
        ctx.cm.counters.cm_ids_created += 1;
        self.cm_ids.insert(handle, key);
        Ok(answer(CmReply::Id(CmIdHandle(handle))))
    }

    /// Destroys an id, and forgets its memberships. Returns how many of its events were taken.
    pub(crate) fn free_cm_id(&mut self, ctx: &mut DaemonCtx<'_>, key: u32) -> u32 {
        for handle in ctx.cm.memberships_of(key) {
            self.cm_memberships.remove(&handle);
        }
        ctx.cm.destroy_id(ctx.devices, ctx.now, key)
    }

    fn get_cm_event(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        channel: CmChannelHandle,
    ) -> Result<Answer, ControlError> {
        let key = self.cm_channel(channel)?;
        let nothing = || refuse(Errno::AGAIN, format!("channel {channel}: no event waits"));
        let mut handle = 0;
        if ctx.cm.next_is_request(key).ok_or_else(nothing)? {
            // The event stays where it is until there is room.
            check_quota("ids", self.cm_ids.len(), MAX_CM_IDS)?;
            if !ctx.cm.ids.has_room() {
                return Err(no_more_ids());
            }
            handle = self.new_handle()?;
        }
        let (event, id) = ctx.cm.take_event(ctx.devices, key, handle).ok_or_else(nothing)?;
        if let Some(id) = id {
            self.cm_ids.insert(handle, id);
        }
        Ok(answer(CmReply::Event(event)))
    }

    fn join_cm_multicast(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        id: CmIdHandle,
        user_handle: u64,
        group: SocketAddr,
    ) -> Result<Answer, ControlError> {
        let id = self.cm_id(id)?;
        check_quota("memberships", self.cm_memberships.len(), MAX_CM_MEMBERSHIPS)?;
        let handle = self.new_handle()?;
        let key = ctx.cm.join(ctx.devices, id, handle, user_handle, group)?;
        self.cm_memberships.insert(handle, key);
        Ok(answer(CmReply::Multicast(CmMulticastHandle(handle))))
    }

    fn cm_channel(&self, channel: CmChannelHandle) -> Result<u32, ControlError> {
        find(&self.cm_channels, "event channel", channel.0).copied()
    }

    fn cm_membership(&self, multicast: CmMulticastHandle) -> Result<u32, ControlError> {
        find(&self.cm_memberships, "multicast membership", multicast.0).copied()
    }

    fn cm_id(&self, id: CmIdHandle) -> Result<u32, ControlError> {
        find(&self.cm_ids, "id", id.0).copied()
    }
}

fn answer(reply: CmReply) -> Answer {
    Reply::Cm(reply).into()
}

fn no_more_ids() -> ControlError {
    refuse(Errno::NOMEM, "the daemon can have no more ids")
}
