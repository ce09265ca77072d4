//! Completion queues.

use super::{
    CompChannel, Refusal, check_unused, context, device_full, no_such, refuse, refuse_move,
};
use crate::limits::MAX_CQE;
use crate::objects::{Kind, Object};
use crate::session::{Answer, Session, SlotCtx, location};
use rustix::io::Errno;
use urxe_engine::CqId;
use urxe_nic::{CqSpec, Ring};
use urxe_shm::control::{CompChannelHandle, ContextHandle, ControlError, CqHandle, Reply};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::CqProducer;
use urxe_shm::ring::geometry::Geometry;

/// A completion queue.
pub(crate) struct Cq {
    context: ContextHandle,
    channel: Option<CompChannelHandle>,
    /// The device's number.
    device: usize,
    id: CqId,
    ring: Extent,
}

impl Object for Cq {
    fn context(&self) -> ContextHandle {
        self.context
    }

    fn free(self, _: u32, session: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.destroy_cq(self.id);
        if let Ok(shared) = session.shared() {
            shared.free_ring(self.ring);
        }
    }
}

impl Cq {
    /// The channel that its completion events go to.
    pub(super) fn channel(&self) -> Option<CompChannelHandle> {
        self.channel
    }

    /// The number that the data path has it under.
    pub(super) fn id(&self) -> CqId {
        self.id
    }
}

pub(super) fn create(
    session: &mut Session,
    ctx: &mut SlotCtx,
    context: ContextHandle,
    cqe: u32,
    channel: Option<CompChannelHandle>,
    user_handle: u64,
    comp_vector: u32,
) -> Result<Answer, ControlError> {
    let device = context::device_of(session, context)?;
    session.objects.check_quota::<Cq>()?;
    let geometry = shape(cqe)?;
    if comp_vector != 0 {
        let sentence = format!("comp_vector {comp_vector}: there is 1 vector, expected 0");
        return Err(refuse(Errno::INVAL, sentence));
    }
    let events_to = match channel {
        Some(channel) => {
            let objects = &session.objects;
            let sentence = || "the completion channel is of another context".into();
            let what = CompChannel::NAME;
            Some(objects.get_within::<CompChannel>(context, what, channel.0, sentence)?.id)
        }
        None => None,
    };
    let handle = session.objects.new_handle()?;
    let events = context::event_target(session, context, user_handle, handle)?;
    let owner = session.id();

    let shared = session.shared()?;
    let (ring, window) = shared.alloc_ring(Cq::NAME, &geometry)?;
    let notifier = shared.notifier();
    let producer = CqProducer::create(window, geometry);
    let id = producer.or_refuse(Errno::NOMEM, Cq::NAME).and_then(|producer| {
        let producer = Ring { ring: producer, shape: geometry };
        let spec = CqSpec { ring: producer, notifier, channel: events_to, events, owner };
        let id = ctx.devices[device].nic.create_cq(spec);
        id.map_err(|_| device_full(Cq::PLURAL))
    });
    let id = id.inspect_err(|_| shared.free_ring(ring))?;
    session.objects.insert(handle, Cq { context, channel, device, id, ring });
    Ok(Reply::Cq {
        cq: CqHandle(handle),
        cqe: geometry.capacity(),
        ring: location(ring, &geometry),
    }
    .into())
}

pub(super) fn resize(
    session: &mut Session,
    ctx: &mut SlotCtx,
    cq: CqHandle,
    cqe: u32,
) -> Result<Answer, ControlError> {
    let &Cq { device, id, ring: old, .. } = session.objects.get(cq.0)?;
    let geometry = shape(cqe)?;
    let nic = &mut ctx.devices[device].nic;
    let status = nic.query_cq(id).ok_or_else(|| no_such(Cq::NAME, cq.0))?;
    // CQ-026
    let unread = status.unread.or_refuse(Errno::INVAL, Cq::NAME)?;
    // CQ-025
    if cqe < unread {
        let sentence =
            format!("cqe {cqe}: {unread} completions are unread, expected {unread} to {MAX_CQE}");
        return Err(refuse(Errno::INVAL, sentence));
    }
    let shared = session.shared()?;
    let (ring, window) = shared.alloc_ring(Cq::NAME, &geometry)?;
    let moved = nic.resize_cq(id, window, geometry);
    let moved = moved.map_err(|error| refuse_move(error, Cq::NAME));
    moved.inspect_err(|_| shared.free_ring(ring))?;
    shared.retire_ring(old);
    if let Some(entry) = session.objects.get_mut::<Cq>(cq.0) {
        entry.ring = ring;
    }
    let ring = location(ring, &geometry);
    Ok(Reply::CqResized { cqe: geometry.capacity(), ring }.into())
}

pub(super) fn destroy(
    session: &mut Session,
    ctx: &mut SlotCtx,
    cq: CqHandle,
) -> Result<Answer, ControlError> {
    let &Cq { context, channel, device, id, .. } = session.objects.get(cq.0)?;
    let qps = ctx.devices[device].nic.query_cq(id).map_or(0, |cq| cq.qps);
    // CQ-014
    check_unused(Cq::NAME, qps as usize, "queue pairs")?;
    session.objects.remove::<Cq>(cq.0)?.free(cq.0, session, ctx);
    context::withdraw_events(session, ctx, context, cq.0);
    if let Some(channel) = channel
        && let Ok(channel) = session.objects.get::<CompChannel>(channel.0)
    {
        ctx.devices[device].nic.withdraw_events(channel.id, cq.0);
    }
    Ok(Reply::Done.into())
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
