//! Shared receive queues.

use super::rings::location;
use super::{PdUser, Refusal, check_quota, check_unused, device_full, find, no_such, refuse};
use crate::device::RdmaDevice;
use crate::limits::{MAX_SGE, MAX_SRQ_WR, MAX_SRQS};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_engine::{QueueId, SrqId, SrqInit};
use urxe_nic::{
    objects::{EventTarget, SrqObject},
    queues::RecvQueue,
};
use urxe_shm::control::{
    ContextHandle, ControlError, PdHandle, Reply, RingLocation, SrqAttr, SrqHandle,
};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::RqConsumer;
use urxe_shm::ring::geometry::Geometry;

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    device: usize,
    pub(crate) id: SrqId,
    queue: QueueId,
    shape: Geometry,
    ring: Extent,
}

impl Session {
    pub(crate) fn create_srq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
        attr: SrqAttr,
        user_handle: u64,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, device, pd_id) = (owner.context, owner.device, owner.id);
        let async_events = find(&self.contexts, "context", context.0)?.async_events;
        check_quota("shared receive queues", self.srqs.len(), MAX_SRQS)?;
        let shape = shape(attr.max_wr, attr.max_sge)?;
        check_limit(attr.limit, shape.capacity())?;
        let handle = self.new_handle()?;
        let owner = self.owner();

        let rings = &mut self.shared()?.rings;
        let (ring, window) = rings.alloc("shared receive queue", &shape)?;
        let created = RqConsumer::create(window, shape)
            .or_refuse(Errno::NOMEM, "shared receive queue")
            .and_then(|consumer| {
                let device = &mut ctx.devices[device];
                let queue = device.nic.host.recv_queues.insert(RecvQueue::new(consumer));
                let queue = QueueId(queue.ok_or_else(|| device_full("shared receive queues"))?);
                let id =
                    device.nic.device.create_srq(SrqInit { pd: pd_id, queue, limit: attr.limit });
                let id = id.or_refuse(Errno::NOMEM, "shared receive queue");
                let id = id.inspect_err(|_| drop(device.nic.host.recv_queues.remove(queue.0)))?;
                let events = EventTarget::new(async_events, user_handle, handle);
                let object = SrqObject { owner, events, max_wr: shape.capacity() };
                device.nic.host.objects.srqs.insert(id.0, object);
                Ok((id, queue))
            });
        let (id, queue) = created.inspect_err(|_| rings.free(ring))?;
        self.srqs.insert(handle, Srq { context, pd, device, id, queue, shape, ring });
        self.join_pd(pd, PdUser::Srq);
        Ok(Reply::Srq {
            srq: SrqHandle(handle),
            srqn: id.0,
            attr: attr_of(&shape, attr.limit),
            ring: location(ring, &shape),
        }
        .into())
    }

    pub(crate) fn modify_srq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.srqs, "shared receive queue", srq.0)?;
        let (device, id, old) = (found.device, found.id, found.shape);
        let new = max_wr.map(|max_wr| shape(max_wr, old.max_sge())).transpose()?;
        let queue = ctx.devices[device].nic.host.recv_queues.get_mut(found.queue.0);
        let posted = queue.map_or(0, RecvQueue::posted);
        if let Some(max_wr) = max_wr.filter(|&max_wr| max_wr < posted) {
            let sentence = format!(
                "max_wr {max_wr}: {posted} receives are posted, expected {posted} to {MAX_SRQ_WR}"
            );
            return Err(refuse(Errno::INVAL, sentence));
        }
        let info = ctx.devices[device].nic.device.query_srq(id);
        let info = info.ok_or_else(|| no_such("shared receive queue", srq.0))?;
        check_limit(limit.unwrap_or(info.limit), new.unwrap_or(old).capacity())?;
        let ring = match new {
            Some(shape) => Some(self.resize_srq(&mut ctx.devices[device], srq, shape)?),
            None => None,
        };
        let device = &mut ctx.devices[device];
        if let Some(limit) = limit {
            let armed = device.nic.device.modify_srq(&mut device.nic.host, id, limit);
            armed.or_refuse(Errno::NOENT, "shared receive queue")?;
        }
        let limit = device.nic.device.query_srq(id).map_or(0, |info| info.limit);
        Ok(Reply::SrqModified { attr: attr_of(&new.unwrap_or(old), limit), ring }.into())
    }

    /// Moves the posted receives to a new ring.
    fn resize_srq(
        &mut self,
        device: &mut RdmaDevice,
        srq: SrqHandle,
        shape: Geometry,
    ) -> Result<RingLocation, ControlError> {
        const WHAT: &str = "shared receive queue";
        let Session { srqs, shared, .. } = self;
        let found = srqs.get_mut(&srq.0).ok_or_else(|| no_such(WHAT, srq.0))?;
        let shared = shared.as_mut().ok_or_else(|| no_such(WHAT, srq.0))?;
        let queue = device.nic.host.recv_queues.get_mut(found.queue.0);
        let queue = queue.ok_or_else(|| no_such(WHAT, srq.0))?;
        let (ring, window) = shared.rings.alloc(WHAT, &shape)?;
        // SRQ-016
        let moved = queue.move_to(window, shape).or_refuse(Errno::INVAL, "max_wr");
        moved.inspect_err(|_| shared.rings.free(ring))?;
        shared.rings.retire(std::mem::replace(&mut found.ring, ring));
        found.shape = shape;
        if let Some(object) = device.nic.host.objects.srqs.get_mut(&found.id.0) {
            object.max_wr = shape.capacity();
        }
        Ok(location(ring, &shape))
    }

    pub(crate) fn query_srq(
        &self,
        ctx: &DaemonCtx<'_>,
        srq: SrqHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.srqs, "shared receive queue", srq.0)?;
        let limit =
            ctx.devices[found.device].nic.device.query_srq(found.id).map_or(0, |info| info.limit);
        Ok(Reply::SrqAttr(attr_of(&found.shape, limit)).into())
    }

    pub(crate) fn destroy_srq(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        srq: SrqHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.srqs, "shared receive queue", srq.0)?;
        let qps =
            ctx.devices[found.device].nic.device.query_srq(found.id).map_or(0, |info| info.qps);
        // SRQ-012
        check_unused("shared receive queue", qps, "queue pairs")?;
        let freed =
            self.srqs.remove(&srq.0).ok_or_else(|| no_such("shared receive queue", srq.0))?;
        let context = freed.context;
        self.free_srq(ctx.devices, freed);
        self.withdraw_events(ctx.devices, context, srq.0);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_srq(&mut self, devices: &mut [RdmaDevice], srq: Srq) {
        self.leave_pd(srq.pd, PdUser::Srq);
        let device = &mut devices[srq.device];
        let destroyed = device.nic.device.destroy_srq(srq.id);
        debug_assert!(destroyed.is_ok(), "its QPs go first: {destroyed:?}");
        device.nic.host.objects.srqs.remove(&srq.id.0);
        device.nic.host.recv_queues.remove(srq.queue.0);
        if let Some(shared) = &mut self.shared {
            shared.rings.free(srq.ring);
        }
    }
}

/// The shape of a ring for so many receives.
fn shape(max_wr: u32, max_sge: u32) -> Result<Geometry, ControlError> {
    for (what, value, max) in [("max_wr", max_wr, MAX_SRQ_WR), ("max_sge", max_sge, MAX_SGE)] {
        if value == 0 || value > max {
            return Err(refuse(Errno::INVAL, format!("{what} {value}: expected 1 to {max}")));
        }
    }
    Geometry::recv(max_wr, max_sge).or_refuse(Errno::INVAL, "shared receive queue")
}

fn check_limit(limit: u32, max_wr: u32) -> Result<(), ControlError> {
    if limit <= max_wr {
        return Ok(());
    }
    let sentence = format!("srq_limit {limit}: expected at most {max_wr}, what the queue holds");
    Err(refuse(Errno::INVAL, sentence))
}

fn attr_of(shape: &Geometry, limit: u32) -> SrqAttr {
    SrqAttr { max_wr: shape.capacity(), max_sge: shape.max_sge(), limit }
}
