//! Completion queues.

use super::rings::location;
use super::{Context, Refusal, check_quota, check_unused, device_full, find, no_such, refuse};
use crate::device::RdmaDevice;
use crate::limits::{MAX_CQE, MAX_CQS};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_engine::CqId;
use urxe_nic::{objects::EventTarget, queues::CompletionQueue};
use urxe_shm::control::{CompChannelHandle, ContextHandle, ControlError, CqHandle, Reply};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::CqProducer;
use urxe_shm::ring::geometry::Geometry;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) context: ContextHandle,
    pub(crate) channel: Option<CompChannelHandle>,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) id: CqId,
    ring: Extent,
}

impl Session {
    pub(crate) fn create_cq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        context: ContextHandle,
        cqe: u32,
        channel: Option<CompChannelHandle>,
        user_handle: u64,
        comp_vector: u32,
    ) -> Result<Answer, ControlError> {
        let &Context { device, async_events } = find(&self.contexts, "context", context.0)?;
        check_quota("completion queues", self.cqs.len(), MAX_CQS)?;
        let geometry = shape(cqe)?;
        if comp_vector != 0 {
            let sentence = format!("comp_vector {comp_vector}: there is 1 vector, expected 0");
            return Err(refuse(Errno::INVAL, sentence));
        }
        let pipe = match channel {
            Some(channel) => {
                let found = find(&self.channels, "completion channel", channel.0)?;
                if found.context != context {
                    let sentence = "the completion channel is of another context";
                    return Err(refuse(Errno::INVAL, sentence));
                }
                Some(found.pipe)
            }
            None => None,
        };
        let handle = self.new_handle()?;
        let owner = self.owner();

        let shared = self.shared()?;
        let (rings, notifier) = (&mut shared.rings, shared.notifier.clone());
        let (ring, window) = rings.alloc("completion queue", &geometry)?;
        let events = EventTarget::new(async_events, user_handle, handle);
        let producer = CqProducer::create(window, geometry);
        let id = producer.or_refuse(Errno::NOMEM, "completion queue").and_then(|producer| {
            let cqe = geometry.capacity();
            let queue = CompletionQueue::new(producer, notifier, cqe, owner, pipe, events);
            let id = ctx.devices[device].nic.host.cqs.insert(queue);
            id.ok_or_else(|| device_full("completion queues"))
        });
        let id = id.inspect_err(|_| rings.free(ring))?;
        self.cqs.insert(handle, Cq { context, channel, device, id: CqId(id), ring });
        Ok(Reply::Cq {
            cq: CqHandle(handle),
            cqe: geometry.capacity(),
            ring: location(ring, &geometry),
        }
        .into())
    }

    pub(crate) fn resize_cq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        cq: CqHandle,
        cqe: u32,
    ) -> Result<Answer, ControlError> {
        let &Cq { device, id, ring: old, .. } = find(&self.cqs, "completion queue", cq.0)?;
        let geometry = shape(cqe)?;
        let queue = ctx.devices[device].nic.host.cqs.get_mut(id.0);
        let queue = queue.ok_or_else(|| no_such("completion queue", cq.0))?;
        // CQ-026
        let unread = queue.unread().or_refuse(Errno::INVAL, "completion queue")?;
        // CQ-025
        if cqe < unread {
            let sentence = format!(
                "cqe {cqe}: {unread} completions are unread, expected {unread} to {MAX_CQE}"
            );
            return Err(refuse(Errno::INVAL, sentence));
        }
        let rings = &mut self.shared()?.rings;
        let (ring, window) = rings.alloc("completion queue", &geometry)?;
        let moved = queue.move_to(window, geometry).or_refuse(Errno::INVAL, "completion queue");
        moved.inspect_err(|_| rings.free(ring))?;
        rings.retire(old);
        if let Some(entry) = self.cqs.get_mut(&cq.0) {
            entry.ring = ring;
        }
        let ring = location(ring, &geometry);
        Ok(Reply::CqResized { cqe: geometry.capacity(), ring }.into())
    }

    pub(crate) fn destroy_cq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        cq: CqHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.cqs, "completion queue", cq.0)?;
        let qps = ctx.devices[found.device].nic.host.cqs.get(found.id.0).map_or(0, |cq| cq.qps);
        // CQ-014
        check_unused("completion queue", qps as usize, "queue pairs")?;
        let freed = self.cqs.remove(&cq.0).ok_or_else(|| no_such("completion queue", cq.0))?;
        let &Cq { context, channel, device, .. } = &freed;
        self.free_cq(ctx.devices, freed);
        self.withdraw_events(ctx.devices, context, cq.0);
        if let Some(channel) = channel.and_then(|channel| self.channels.get(&channel.0)) {
            ctx.devices[device].nic.host.withdraw_events(channel.pipe, cq.0);
        }
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_cq(&mut self, devices: &mut [RdmaDevice], cq: Cq) {
        devices[cq.device].nic.host.cqs.remove(cq.id.0);
        devices[cq.device].nic.device.release_cq(cq.id);
        if let Some(shared) = &mut self.shared {
            shared.rings.free(cq.ring);
        }
    }
}

/// The shape of a ring for so many completions.
fn shape(cqe: u32) -> Result<Geometry, ControlError> {
    // CQ-015
    if cqe == 0 || cqe > MAX_CQE {
        let sentence = format!("cqe {cqe}: expected 1 to {MAX_CQE} completions");
        return Err(refuse(Errno::INVAL, sentence));
    }
    Geometry::completion(cqe).or_refuse(Errno::INVAL, "cqe")
}
