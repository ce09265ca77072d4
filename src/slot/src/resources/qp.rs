//! Queue pairs.

use super::{Cq, PdUser, Refusal, Srq, context, no_such, pd, refuse};
use crate::known_qp::KnownQp;
use crate::limits::{MAX_INLINE_DATA, MAX_QP_WR, MAX_SGE};
use crate::objects::{Kind, Object};
use crate::session::{Answer, Session, SlotCtx, location};
use rustix::io::Errno;
use urxe_engine::{CqId, ModifyQpError, SrqId};
use urxe_nic::{QpSpec, Receives, Ring};
use urxe_shm::control::{
    ContextHandle, ControlError, CqHandle, PdHandle, QpCaps, QpCreated, QpHandle, QpQueried, Reply,
    SrqHandle,
};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{RqConsumer, SqConsumer};
use urxe_types::{QpAttr, QpType, Qpn};

/// A queue pair.
pub(crate) struct Qp {
    context: ContextHandle,
    pd: PdHandle,
    /// The device's number.
    device: usize,
    qpn: Qpn,
    send_ring: Extent,
    /// None if it has an SRQ.
    recv_ring: Option<Extent>,
    doorbell: u32,
}

impl Object for Qp {
    const PD_USER: Option<PdUser> = Some(PdUser::Qp);

    fn context(&self) -> ContextHandle {
        self.context
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, handle: u32, session: &mut Session, ctx: &mut SlotCtx) {
        session.attachments.retain(|&(attached, _)| attached != handle);
        let device = &mut ctx.devices[self.device];
        if let Some(known) = KnownQp::of(&device.nic, &ctx.programs, self.qpn) {
            let known = known.that_ends(ctx.now);
            ctx.history_writer.ended(ctx.now, self.device, &known);
            device.ended_qps.keep(known);
        }
        device.nic.destroy_qp(ctx.now, self.qpn);
        if let Ok(shared) = session.shared() {
            shared.remove_doorbell(self.doorbell);
            shared.free_ring(self.send_ring);
            self.recv_ring.into_iter().for_each(|ring| shared.free_ring(ring));
        }
    }
}

/// What is to be created.
pub(super) struct QpRequest {
    pub(super) qp_type: QpType,
    /// Where send and receive completions go.
    pub(super) cqs: (CqHandle, CqHandle),
    pub(super) srq: Option<SrqHandle>,
    pub(super) caps: QpCaps,
    pub(super) sq_sig_all: bool,
    pub(super) user_handle: u64,
}

/// The number of a QP's device, and its own.
pub(super) fn place(session: &Session, qp: QpHandle) -> Result<(usize, Qpn), ControlError> {
    let &Qp { device, qpn, .. } = session.objects.get(qp.0)?;
    Ok((device, qpn))
}

pub(super) fn create(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
    wanted: &QpRequest,
) -> Result<Answer, ControlError> {
    let place = pd::place(session, pd)?;
    session.objects.check_quota::<Qp>()?;
    let send_cq = cq_of(session, place.context, "send_cq", wanted.cqs.0)?;
    let recv_cq = cq_of(session, place.context, "recv_cq", wanted.cqs.1)?;
    let srq = wanted.srq.map(|srq| srq_of(session, place.context, srq)).transpose()?;
    let (send_shape, recv_shape) = shapes(&wanted.caps, srq.is_some())?;
    let handle = session.objects.new_handle()?;
    let events = context::event_target(session, place.context, wanted.user_handle, handle)?;
    let owner = session.id();

    let shared = session.shared()?;
    let (send_ring, send_window) = shared.alloc_ring("send queue", &send_shape)?;
    let mut recv_ring = None;
    let is_datagram = wanted.qp_type == QpType::Ud;
    let created = SqConsumer::create(send_window, send_shape, is_datagram)
        .or_refuse(Errno::NOMEM, "send queue")
        .and_then(|send| {
            let recv = match srq {
                Some(srq) => Receives::Shared(srq),
                None => {
                    let (ring, window) = shared.alloc_ring("receive queue", &recv_shape)?;
                    recv_ring = Some(ring);
                    let ring = RqConsumer::create(window, recv_shape);
                    let ring = ring.or_refuse(Errno::NOMEM, "receive queue")?;
                    Receives::Own(Ring { ring, shape: recv_shape })
                }
            };
            let spec = QpSpec {
                qp_type: wanted.qp_type,
                pd: place.id,
                send_cq,
                recv_cq,
                send: Ring { ring: send, shape: send_shape },
                all_signaled: wanted.sq_sig_all,
                recv,
                events,
                owner,
            };
            ctx.devices[place.device].nic.create_qp(spec).or_refuse(Errno::NOMEM, Qp::NAME)
        });
    let qpn = created.inspect_err(|_| {
        shared.free_ring(send_ring);
        recv_ring.into_iter().for_each(|ring| shared.free_ring(ring));
    })?;
    let device = place.device;
    let doorbell = shared.install_doorbell(device, qpn);
    let qp = Qp { context: place.context, pd, device, qpn, send_ring, recv_ring, doorbell };
    session.objects.insert(handle, qp);
    Ok(Reply::Qp(QpCreated {
        qp: QpHandle(handle),
        qpn,
        caps: caps_of(&send_shape, recv_ring.map(|_| recv_shape).as_ref()),
        send_ring: location(send_ring, &send_shape),
        recv_ring: recv_ring.map(|ring| location(ring, &recv_shape)),
        doorbell_slot: doorbell,
    })
    .into())
}

pub(super) fn modify(
    session: &mut Session,
    ctx: &mut SlotCtx,
    qp: QpHandle,
    attr: &QpAttr,
) -> Result<Answer, ControlError> {
    let (device, qpn) = place(session, qp)?;
    check_qkey(session, attr)?;
    ctx.devices[device].nic.modify_qp(ctx.now, qpn, attr).map_err(|error| {
        let errno = match error {
            ModifyQpError::NoSuchQp(_) => Errno::NOENT,
            _ => Errno::INVAL,
        };
        let table = match error {
            ModifyQpError::Flow(error) => ctx.devices[device].gid_table_beside(error),
            _ => String::new(),
        };
        refuse(errno, format!("{error}{table}"))
    })?;
    ctx.history_writer.modified(device, qpn);
    Ok(Reply::Done.into())
}

/// A controlled Q_Key is for privileged programs, so that no other pretends to be the
/// management of a machine. The kernel (from 6.4 on) asks for CAP_NET_RAW, of which nothing
/// is known here but that root has it.
fn check_qkey(session: &Session, attr: &QpAttr) -> Result<(), ControlError> {
    match attr.qkey {
        // UD-036
        Some(qkey) if qkey.is_controlled() && !session.is_root() => {
            let sentence = format!(
                "qkey {:#x}: those from 0x80000000 on are for programs of root; expected at most \
                 0x7fffffff",
                qkey.0
            );
            Err(refuse(Errno::PERM, sentence))
        }
        _ => Ok(()),
    }
}

pub(super) fn query(
    session: &Session,
    ctx: &SlotCtx,
    qp: QpHandle,
) -> Result<Answer, ControlError> {
    let (device, qpn) = place(session, qp)?;
    let status = ctx.devices[device].nic.query_qp(qpn);
    let status = status.ok_or_else(|| no_such(Qp::NAME, qp.0))?;
    let info = &status.info;
    let mut attr = info.attr.clone();
    attr.state = Some(info.state);
    attr.sq_psn = attr.sq_psn.map(|_| info.sq_psn);
    attr.rq_psn = attr.rq_psn.map(|_| info.rq_psn);
    let queried = QpQueried {
        attr,
        caps: caps_of(&status.send, status.recv.as_ref()),
        sq_sig_all: status.all_signaled,
        sq_draining: info.sq_draining,
    };
    Ok(Reply::QpAttr(queried).into())
}

pub(super) fn destroy(
    session: &mut Session,
    ctx: &mut SlotCtx,
    qp: QpHandle,
) -> Result<Answer, ControlError> {
    let freed = session.objects.remove::<Qp>(qp.0)?;
    let context = freed.context;
    freed.free(qp.0, session, ctx);
    context::withdraw_events(session, ctx, context, qp.0);
    Ok(Reply::Done.into())
}

/// The device's number of an SRQ that a QP of this context may use.
fn srq_of(
    session: &Session,
    context: ContextHandle,
    srq: SrqHandle,
) -> Result<SrqId, ControlError> {
    // SRQ-014
    let sentence = || format!("srq {srq}: is of another context than the protection domain");
    Ok(session.objects.get_within::<Srq>(context, "srq", srq.0, sentence)?.id())
}

/// The device's number of a CQ that a QP of this context may use.
fn cq_of(
    session: &Session,
    context: ContextHandle,
    what: &str,
    cq: CqHandle,
) -> Result<CqId, ControlError> {
    let sentence = || format!("{what} {cq}: is of another context than the protection domain");
    Ok(session.objects.get_within::<Cq>(context, what, cq.0, sentence)?.id())
}

/// What rings of these shapes hold.
fn caps_of(send: &Geometry, recv: Option<&Geometry>) -> QpCaps {
    QpCaps {
        max_send_wr: send.capacity(),
        max_send_sge: send.max_sge(),
        max_inline_data: send.max_inline(),
        max_recv_wr: recv.map_or(0, Geometry::capacity),
        max_recv_sge: recv.map_or(0, Geometry::max_sge),
    }
}

/// The shapes of the rings that hold what is asked for.
fn shapes(caps: &QpCaps, has_srq: bool) -> Result<(Geometry, Geometry), ControlError> {
    let send = [
        ("max_send_wr", caps.max_send_wr, MAX_QP_WR),
        ("max_send_sge", caps.max_send_sge, MAX_SGE),
        ("max_inline_data", caps.max_inline_data, MAX_INLINE_DATA),
    ];
    // With an SRQ these mean nothing, and programs leave anything there.
    let recv = [
        ("max_recv_wr", caps.max_recv_wr, MAX_QP_WR),
        ("max_recv_sge", caps.max_recv_sge, MAX_SGE),
    ];
    let recv = recv.map(|(what, value, max)| (what, if has_srq { 0 } else { value }, max));
    for (what, value, max) in send.into_iter().chain(recv) {
        // STATE-041
        if value > max {
            return Err(refuse(Errno::INVAL, format!("{what} {value}: expected at most {max}")));
        }
    }
    let send = Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data);
    let [(_, max_recv_wr, _), (_, max_recv_sge, _)] = recv;
    let recv = Geometry::recv(max_recv_wr, max_recv_sge);
    Ok((
        send.or_refuse(Errno::INVAL, "send queue")?,
        recv.or_refuse(Errno::INVAL, "receive queue")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_beyond_the_limits_are_refused_by_name() {
        let caps = QpCaps { max_recv_sge: MAX_SGE + 1, ..QpCaps::default() };
        assert_eq!(
            shapes(&caps, false).unwrap_err().message,
            "max_recv_sge 33: expected at most 32"
        );
    }

    #[test]
    fn granted_capacities_can_be_requested_again() {
        let caps = QpCaps {
            max_send_wr: MAX_QP_WR,
            max_recv_wr: MAX_QP_WR,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: MAX_INLINE_DATA,
        };
        let (send, recv) = shapes(&caps, false).unwrap();
        assert_eq!((send.capacity(), recv.capacity()), (MAX_QP_WR, MAX_QP_WR));
        assert_eq!((send.max_sge(), recv.max_sge()), (MAX_SGE, MAX_SGE));
        assert_eq!(send.max_inline(), MAX_INLINE_DATA);
    }
}
