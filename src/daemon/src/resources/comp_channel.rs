//! Completion channels: pipes for the events of CQs.

use super::{Refusal, check_quota, check_unused, device_full, find, no_such};
use crate::device::RdmaDevice;
use crate::limits::MAX_CHANNELS;
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_nic::event_pipe::EventPipe;
use urxe_shm::control::{CompChannelHandle, ContextHandle, ControlError, Reply};

/// A completion channel.
pub(crate) struct CompChannel {
    pub(crate) context: ContextHandle,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) pipe: u32,
}

impl Session {
    pub(crate) fn create_comp_channel(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        context: ContextHandle,
    ) -> Result<Answer, ControlError> {
        let device = find(&self.contexts, "context", context.0)?.device;
        check_quota("completion channels", self.channels.len(), MAX_CHANNELS)?;
        let handle = self.new_handle()?;
        let (pipe, read_end) = EventPipe::new().or_refuse(Errno::MFILE, "event pipe")?;
        let pipe = ctx.devices[device].nic.host.pipes.insert(pipe);
        let pipe = pipe.ok_or_else(|| device_full("event pipes"))?;
        self.channels.insert(handle, CompChannel { context, device, pipe });
        Ok(Answer { reply: Reply::CompChannel(CompChannelHandle(handle)), fds: vec![read_end] })
    }

    pub(crate) fn destroy_comp_channel(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        channel: CompChannelHandle,
    ) -> Result<Answer, ControlError> {
        find(&self.channels, "completion channel", channel.0)?;
        let cqs = self.cqs.values().filter(|cq| cq.channel == Some(channel)).count();
        // CQ-014
        check_unused("completion channel", cqs, "completion queues")?;
        let freed = self
            .channels
            .remove(&channel.0)
            .ok_or_else(|| no_such("completion channel", channel.0))?;
        self.free_comp_channel(ctx.devices, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_comp_channel(&mut self, devices: &mut [RdmaDevice], channel: CompChannel) {
        devices[channel.device].nic.host.pipes.remove(channel.pipe);
    }
}
