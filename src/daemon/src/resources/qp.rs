//! Queue pairs.

use super::{Cq, PdUser, Refusal, Srq, context, no_such, pd, refuse};
use crate::limits::{MAX_INLINE_DATA, MAX_QP_WR, MAX_SGE};
use crate::objects::{Kind, Object};
use crate::session::{Answer, DaemonCtx, Session, location};
use rustix::io::Errno;
use urxe_engine::{CqId, ModifyQpError, SrqId};
use urxe_nic::{QpSpec, Receives, Ring};
use urxe_shm::control::{
    self, ContextHandle, ControlError, CqHandle, Gid, PdHandle, QpCaps, QpCreated, QpHandle,
    QpQueried, Reply, SrqHandle,
};
use urxe_shm::memory::arena::Extent;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{RqConsumer, SqConsumer};
use urxe_types::{AddressVector, PathMtu, Psn, Qkey, QpAttr, QpType, Qpn};

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

    fn context(&self) -> Option<ContextHandle> {
        Some(self.context)
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, handle: u32, session: &mut Session, ctx: &mut DaemonCtx) {
        session.attachments.retain(|&(attached, _)| attached != handle);
        ctx.devices[self.device].nic.destroy_qp(self.qpn);
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
    ctx: &mut DaemonCtx,
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
        qpn: qpn.get(),
        caps: caps_of(&send_shape, recv_ring.map(|_| recv_shape).as_ref()),
        send_ring: location(send_ring, &send_shape),
        recv_ring: recv_ring.map(|ring| location(ring, &recv_shape)),
        doorbell_slot: doorbell,
    })
    .into())
}

pub(super) fn modify(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    qp: QpHandle,
    attr: &control::QpAttr,
) -> Result<Answer, ControlError> {
    let (device, qpn) = place(session, qp)?;
    let attr = to_engine(attr)?;
    check_qkey(session, &attr)?;
    ctx.devices[device].nic.modify_qp(ctx.now, qpn, &attr).map_err(|error| {
        let errno = match error {
            ModifyQpError::NoSuchQp(_) => Errno::NOENT,
            _ => Errno::INVAL,
        };
        refuse(errno, error.to_string())
    })?;
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
    ctx: &DaemonCtx,
    qp: QpHandle,
) -> Result<Answer, ControlError> {
    let (device, qpn) = place(session, qp)?;
    let status = ctx.devices[device].nic.query_qp(qpn);
    let status = status.ok_or_else(|| no_such(Qp::NAME, qp.0))?;
    let info = &status.info;
    let mut attr = from_engine(&info.attr);
    attr.state = Some(info.state);
    attr.sq_psn = attr.sq_psn.map(|_| info.sq_psn.get());
    attr.rq_psn = attr.rq_psn.map(|_| info.rq_psn.get());
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
    ctx: &mut DaemonCtx,
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

/// A program's attributes in the engine's terms. Ranges are the engine's to judge, except of what
/// its types cannot hold.
fn to_engine(attr: &control::QpAttr) -> Result<QpAttr, ControlError> {
    let path_mtu = match attr.path_mtu {
        Some(bytes) => Some(PathMtu::from_bytes(bytes.into()).ok_or_else(|| {
            let sentence = format!("path_mtu {bytes}: expected 256, 512, 1024, 2048 or 4096 bytes");
            refuse(Errno::INVAL, sentence)
        })?),
        None => None,
    };
    let within_24_bits = |what: &str, value: Option<u32>| match value {
        Some(value) if value > 0xff_ffff => {
            let sentence = format!("{what} {value:#x}: expected a number of 24 bits");
            Err(refuse(Errno::INVAL, sentence))
        }
        value => Ok(value),
    };
    Ok(QpAttr {
        state: attr.state,
        cur_state: attr.cur_state,
        access: attr.access,
        pkey_index: attr.pkey_index,
        port: attr.port,
        av: attr.av.as_ref().map(av_to_engine),
        path_mtu,
        dest_qpn: within_24_bits("dest_qp_num", attr.dest_qpn)?.map(Qpn::new),
        qkey: attr.qkey.map(Qkey),
        rq_psn: within_24_bits("rq_psn", attr.rq_psn)?.map(Psn::new),
        sq_psn: within_24_bits("sq_psn", attr.sq_psn)?.map(Psn::new),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    })
}

/// A path in the engine's terms.
pub(super) fn av_to_engine(av: &control::AddressVector) -> AddressVector {
    AddressVector {
        dgid: av.dgid.to_ip(),
        sgid_index: av.sgid_index,
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
        flow_label: av.flow_label,
    }
}

/// A path in a program's terms.
pub(crate) fn av_from_engine(av: &AddressVector) -> control::AddressVector {
    control::AddressVector {
        dgid: Gid::from(av.dgid),
        sgid_index: av.sgid_index,
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
        flow_label: av.flow_label,
    }
}

/// The engine's attributes in a program's terms.
pub(crate) fn from_engine(attr: &QpAttr) -> control::QpAttr {
    control::QpAttr {
        state: attr.state,
        cur_state: None,
        access: attr.access,
        pkey_index: attr.pkey_index,
        port: attr.port,
        av: attr.av.as_ref().map(av_from_engine),
        path_mtu: attr.path_mtu.map(|mtu| mtu.bytes() as u16),
        dest_qpn: attr.dest_qpn.map(Qpn::get),
        qkey: attr.qkey.map(|qkey| qkey.0),
        rq_psn: attr.rq_psn.map(Psn::get),
        sq_psn: attr.sq_psn.map(Psn::get),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn attributes_survive_the_way_to_the_engine_and_back() {
        let attr = control::QpAttr {
            state: Some(urxe_types::QpState::Rtr),
            cur_state: None,
            access: Some(urxe_types::Access::from_bits_retain(7)),
            pkey_index: Some(0),
            port: Some(1),
            av: Some(control::AddressVector {
                dgid: Gid::from(IpAddr::from([10, 0, 0, 1])),
                sgid_index: 1,
                traffic_class: 2,
                hop_limit: 3,
                flow_label: 4,
            }),
            path_mtu: Some(1024),
            dest_qpn: Some(0xff_ffff),
            qkey: Some(0x1111_1111),
            rq_psn: Some(5),
            sq_psn: Some(6),
            max_rd_atomic: Some(7),
            max_dest_rd_atomic: Some(8),
            min_rnr_timer: Some(9),
            timeout: Some(10),
            retry_cnt: Some(5),
            rnr_retry: Some(6),
        };
        assert_eq!(from_engine(&to_engine(&attr).unwrap()), attr);
    }

    #[test]
    fn requests_the_engine_cannot_express_are_refused() {
        let refused = |attr: control::QpAttr| to_engine(&attr).unwrap_err();
        let mtu = control::QpAttr { path_mtu: Some(1500), ..Default::default() };
        assert!(refused(mtu).message.starts_with("path_mtu 1500: expected"));
        let psn = control::QpAttr { sq_psn: Some(1 << 24), ..Default::default() };
        assert_eq!(refused(psn).errno, Errno::INVAL.raw_os_error());
    }

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
