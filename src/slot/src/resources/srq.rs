//! Shared receive queues.

use super::{PdUser, Refusal, check_unused, context, no_such, pd, refuse, refuse_move};
use crate::limits::{MAX_SGE, MAX_SRQ_WR};
use crate::objects::{Kind, Object};
use crate::session::{Answer, Session, SlotCtx, location};
use rustix::io::Errno;
use urxe_engine::SrqId;
use urxe_nic::{Nic, Ring, SrqSpec};
use urxe_shm::control::{
    ContextHandle, ControlError, PdHandle, Reply, RingLocation, SrqAttr, SrqHandle,
};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::RqConsumer;
use urxe_shm::ring::geometry::Geometry;

/// A shared receive queue.
pub(crate) struct Srq {
    context: ContextHandle,
    pd: PdHandle,
    /// The device's number.
    device: usize,
    id: SrqId,
    ring: Extent,
}

impl Object for Srq {
    const PD_USER: Option<PdUser> = Some(PdUser::Srq);

    fn context(&self) -> ContextHandle {
        self.context
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, _: u32, session: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.destroy_srq(self.id);
        if let Ok(shared) = session.shared() {
            shared.free_ring(self.ring);
        }
    }
}

impl Srq {
    /// The number that the data path has it under.
    pub(super) fn id(&self) -> SrqId {
        self.id
    }
}

pub(super) fn create(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
    attr: SrqAttr,
    user_handle: u64,
) -> Result<Answer, ControlError> {
    let place = pd::place(session, pd)?;
    session.objects.check_quota::<Srq>()?;
    let shape = shape(attr.max_wr, attr.max_sge)?;
    check_limit(attr.limit, shape.capacity())?;
    let handle = session.objects.new_handle()?;
    let events = context::event_target(session, place.context, user_handle, handle)?;
    let owner = session.id();

    let shared = session.shared()?;
    let (extent, window) = shared.alloc_ring(Srq::NAME, &shape)?;
    let consumer = RqConsumer::create(window, shape);
    let id = consumer.or_refuse(Errno::NOMEM, Srq::NAME).and_then(|ring| {
        let ring = Ring { ring, shape };
        let spec = SrqSpec { pd: place.id, ring, limit: attr.limit, events, owner };
        ctx.devices[place.device].nic.create_srq(spec).or_refuse(Errno::NOMEM, Srq::NAME)
    });
    let id = id.inspect_err(|_| shared.free_ring(extent))?;
    let srq = Srq { context: place.context, pd, device: place.device, id, ring: extent };
    session.objects.insert(handle, srq);
    Ok(Reply::Srq {
        srq: SrqHandle(handle),
        srqn: id.0,
        attr: attr_of(&shape, attr.limit),
        ring: location(extent, &shape),
    }
    .into())
}

pub(super) fn modify(
    session: &mut Session,
    ctx: &mut SlotCtx,
    srq: SrqHandle,
    max_wr: Option<u32>,
    limit: Option<u32>,
) -> Result<Answer, ControlError> {
    let &Srq { device, id, .. } = session.objects.get(srq.0)?;
    let nic = &mut ctx.devices[device].nic;
    let status = nic.query_srq(id).ok_or_else(|| no_such(Srq::NAME, srq.0))?;
    let (old, posted) = (status.shape, status.posted);
    let new = max_wr.map(|max_wr| shape(max_wr, old.max_sge())).transpose()?;
    if let Some(max_wr) = max_wr.filter(|&max_wr| max_wr < posted) {
        let sentence = format!(
            "max_wr {max_wr}: {posted} receives are posted, expected {posted} to {MAX_SRQ_WR}"
        );
        return Err(refuse(Errno::INVAL, sentence));
    }
    check_limit(limit.unwrap_or(status.info.limit), new.unwrap_or(old).capacity())?;
    let ring = match new {
        Some(shape) => Some(resize(session, nic, srq, shape)?),
        None => None,
    };
    if let Some(limit) = limit {
        nic.modify_srq(id, limit).or_refuse(Errno::NOENT, Srq::NAME)?;
    }
    let limit = nic.query_srq(id).map_or(0, |status| status.info.limit);
    Ok(Reply::SrqModified { attr: attr_of(&new.unwrap_or(old), limit), ring }.into())
}

/// Moves the posted receives to a new ring.
fn resize(
    session: &mut Session,
    nic: &mut Nic,
    srq: SrqHandle,
    shape: Geometry,
) -> Result<RingLocation, ControlError> {
    let &Srq { id, ring: old, .. } = session.objects.get(srq.0)?;
    let shared = session.shared()?;
    let (ring, window) = shared.alloc_ring(Srq::NAME, &shape)?;
    // SRQ-016
    let moved = nic.resize_srq(id, window, shape);
    let moved = moved.map_err(|error| refuse_move(error, "max_wr"));
    moved.inspect_err(|_| shared.free_ring(ring))?;
    shared.retire_ring(old);
    if let Some(found) = session.objects.get_mut::<Srq>(srq.0) {
        found.ring = ring;
    }
    Ok(location(ring, &shape))
}

pub(super) fn query(
    session: &Session,
    ctx: &mut SlotCtx,
    srq: SrqHandle,
) -> Result<Answer, ControlError> {
    let &Srq { device, id, .. } = session.objects.get(srq.0)?;
    let status = ctx.devices[device].nic.query_srq(id);
    let status = status.ok_or_else(|| no_such(Srq::NAME, srq.0))?;
    Ok(Reply::SrqAttr(attr_of(&status.shape, status.info.limit)).into())
}

pub(super) fn destroy(
    session: &mut Session,
    ctx: &mut SlotCtx,
    srq: SrqHandle,
) -> Result<Answer, ControlError> {
    let &Srq { context, device, id, .. } = session.objects.get(srq.0)?;
    let qps = ctx.devices[device].nic.query_srq(id).map_or(0, |status| status.info.qps);
    // SRQ-012
    check_unused(Srq::NAME, qps, "queue pairs")?;
    session.objects.remove::<Srq>(srq.0)?.free(srq.0, session, ctx);
    context::withdraw_events(session, ctx, context, srq.0);
    Ok(Reply::Done.into())
}

/// The shape of a ring for so many receives.
fn shape(max_wr: u32, max_sge: u32) -> Result<Geometry, ControlError> {
    if max_wr == 0 || max_wr > MAX_SRQ_WR {
        let sentence = format!("max_wr {max_wr}: expected 1 to {MAX_SRQ_WR}");
        return Err(refuse(Errno::INVAL, sentence));
    }
    if max_sge > MAX_SGE {
        let sentence = format!("max_sge {max_sge}: expected at most {MAX_SGE}");
        return Err(refuse(Errno::INVAL, sentence));
    }
    // As with rxe, who asks for none gets one.
    Geometry::recv(max_wr, max_sge.max(1)).or_refuse(Errno::INVAL, "shared receive queue")
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
