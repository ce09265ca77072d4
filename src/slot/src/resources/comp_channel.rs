//! Completion channels: pipes for the events of CQs.

use super::{Cq, Refusal, check_unused, context, device_full};
use crate::objects::Object;
use crate::session::{Answer, Session, SlotCtx};
use rustix::io::Errno;
use urxe_nic::{ChannelId, EventPipe};
use urxe_shm::control::{CompChannelHandle, ContextHandle, ControlError, Reply};

/// A completion channel.
pub(crate) struct CompChannel {
    context: ContextHandle,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) id: ChannelId,
}

impl Object for CompChannel {
    fn context(&self) -> ContextHandle {
        self.context
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.destroy_channel(self.id);
    }
}

pub(super) fn create(
    session: &mut Session,
    ctx: &mut SlotCtx,
    context: ContextHandle,
) -> Result<Answer, ControlError> {
    let device = context::device_of(session, context)?;
    session.objects.check_quota::<CompChannel>()?;
    let handle = session.objects.new_handle()?;
    let (pipe, read_end) = EventPipe::new().or_refuse(Errno::MFILE, "event pipe")?;
    let id = ctx.devices[device].nic.create_channel(pipe);
    let id = id.map_err(|_| device_full("event pipes"))?;
    session.objects.insert(handle, CompChannel { context, device, id });
    let reply = Reply::CompChannel(CompChannelHandle(handle));
    Ok(Answer::Reply { reply, fds: vec![read_end] })
}

pub(super) fn destroy(
    session: &mut Session,
    ctx: &mut SlotCtx,
    channel: CompChannelHandle,
) -> Result<Answer, ControlError> {
    session.objects.get::<CompChannel>(channel.0)?;
    let cqs = session.objects.all::<Cq>().values();
    let cqs = cqs.filter(|cq| cq.channel() == Some(channel)).count();
    // CQ-014
    check_unused("completion channel", cqs, "completion queues")?;
    session.objects.remove::<CompChannel>(channel.0)?.free(channel.0, session, ctx);
    Ok(Reply::Done.into())
}
