//! Queue pairs.

use super::rings::location;
use super::{PdUser, Refusal, check_quota, device_full, find, no_such, refuse};
use crate::device::RdmaDevice;
use crate::limits::{MAX_INLINE_DATA, MAX_QP_WR, MAX_QPS, MAX_SGE};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_engine::{ModifyQpError, QpInit, SrqId};
use urxe_nic::{
    CreateError, Queues, Recv,
    objects::{EventTarget, QpObject},
    queues::{RecvQueue, SendQueue},
};
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
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    pub(super) device: usize,
    pub(super) qpn: Qpn,
    caps: QpCaps,
    sq_sig_all: bool,
    send_ring: Extent,
    /// None if it has an SRQ.
    recv_ring: Option<Extent>,
    doorbell: u32,
}

/// What is to be created.
pub(crate) struct QpRequest {
    pub(crate) qp_type: QpType,
    /// Where send and receive completions go.
    pub(crate) cqs: (CqHandle, CqHandle),
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) caps: QpCaps,
    pub(crate) sq_sig_all: bool,
    pub(crate) user_handle: u64,
}

impl Session {
    pub(crate) fn create_qp(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
        wanted: &QpRequest,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, device, pd_id) = (owner.context, owner.device, owner.id);
        check_quota("queue pairs", self.qps.len(), MAX_QPS)?;
        let send_cq = self.cq_of(context, "send_cq", wanted.cqs.0)?;
        let recv_cq = self.cq_of(context, "recv_cq", wanted.cqs.1)?;
        let srq = wanted.srq.map(|srq| self.srq_of(context, srq)).transpose()?;
        let (send_shape, recv_shape) = shapes(&wanted.caps, srq.is_some())?;
        let handle = self.new_handle()?;
        let async_events = find(&self.contexts, "context", context.0)?.async_events;
        let events = EventTarget::new(async_events, wanted.user_handle, handle);
        let object = QpObject { owner: self.owner(), events };

        let shared = self.shared()?;
        let (send_ring, send_window) = shared.rings.alloc("send queue", &send_shape)?;
        let mut recv_ring = None;
        let is_datagram = wanted.qp_type == QpType::Ud;
        let qpn = SqConsumer::create(send_window, send_shape, is_datagram)
            .or_refuse(Errno::NOMEM, "send queue")
            .and_then(|ring| {
                let send = SendQueue::new(ring, wanted.sq_sig_all);
                let recv = match srq {
                    Some(srq) => Recv::Shared(srq),
                    None => {
                        let (ring, window) = shared.rings.alloc("receive queue", &recv_shape)?;
                        recv_ring = Some(ring);
                        let ring = RqConsumer::create(window, recv_shape);
                        Recv::Own(RecvQueue::new(ring.or_refuse(Errno::NOMEM, "receive queue")?))
                    }
                };
                let qp_type = wanted.qp_type;
                let init = |send_queue, recv| QpInit {
                    qp_type,
                    pd: pd_id,
                    send_cq,
                    recv_cq,
                    send_queue,
                    recv,
                };
                let created =
                    ctx.devices[device].nic.create_qp(Queues { send, recv }, object, init);
                created.map_err(|error| match error {
                    CreateError::Full => device_full("queue pairs"),
                    error => refuse(Errno::NOMEM, format!("queue pair: {error}")),
                })
            });
        let qpn = qpn.inspect_err(|_| {
            shared.rings.free(send_ring);
            recv_ring.into_iter().for_each(|ring| shared.rings.free(ring));
        })?;
        let doorbell = shared.install_doorbell(device, qpn);
        let mut caps = QpCaps {
            max_send_wr: send_shape.capacity(),
            max_send_sge: send_shape.max_sge(),
            max_inline_data: send_shape.max_inline(),
            ..QpCaps::default()
        };
        if recv_ring.is_some() {
            caps.max_recv_wr = recv_shape.capacity();
            caps.max_recv_sge = recv_shape.max_sge();
        }
        let sq_sig_all = wanted.sq_sig_all;
        let qp = Qp { context, pd, device, qpn, caps, sq_sig_all, send_ring, recv_ring, doorbell };
        self.qps.insert(handle, qp);
        self.join_pd(pd, PdUser::Qp);
        Ok(Reply::Qp(QpCreated {
            qp: QpHandle(handle),
            qpn: qpn.get(),
            caps,
            send_ring: location(send_ring, &send_shape),
            recv_ring: recv_ring.map(|ring| location(ring, &recv_shape)),
            doorbell_slot: doorbell,
        })
        .into())
    }

    pub(crate) fn modify_qp(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        qp: QpHandle,
        attr: &control::QpAttr,
    ) -> Result<Answer, ControlError> {
        let &Qp { device, qpn, .. } = find(&self.qps, "queue pair", qp.0)?;
        let attr = to_engine(attr)?;
        self.check_qkey(&attr)?;
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
    fn check_qkey(&self, attr: &QpAttr) -> Result<(), ControlError> {
        match attr.qkey {
            // UD-036
            Some(qkey) if qkey.is_controlled() && !self.is_root() => {
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

    pub(crate) fn query_qp(
        &self,
        ctx: &DaemonCtx<'_>,
        qp: QpHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.qps, "queue pair", qp.0)?;
        let info = ctx.devices[found.device].nic.device.query_qp(found.qpn);
        let info = info.ok_or_else(|| no_such("queue pair", qp.0))?;
        let mut attr = from_engine(&info.attr);
        attr.state = Some(info.state);
        attr.sq_psn = attr.sq_psn.map(|_| info.sq_psn.get());
        attr.rq_psn = attr.rq_psn.map(|_| info.rq_psn.get());
        let queried = QpQueried {
            attr,
            caps: found.caps,
            sq_sig_all: found.sq_sig_all,
            sq_draining: info.sq_draining,
        };
        Ok(Reply::QpAttr(queried).into())
    }

    pub(crate) fn destroy_qp(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        qp: QpHandle,
    ) -> Result<Answer, ControlError> {
        let freed = self.qps.remove(&qp.0).ok_or_else(|| no_such("queue pair", qp.0))?;
        self.attachments.retain(|&(attached, _)| attached != qp.0);
        let context = freed.context;
        self.free_qp(ctx.devices, freed);
        self.withdraw_events(ctx.devices, context, qp.0);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_qp(&mut self, devices: &mut [RdmaDevice], qp: Qp) {
        devices[qp.device].nic.destroy_qp(qp.qpn);
        self.leave_pd(qp.pd, PdUser::Qp);
        if let Some(shared) = &mut self.shared {
            shared.remove_doorbell(qp.doorbell);
            shared.rings.free(qp.send_ring);
            qp.recv_ring.into_iter().for_each(|ring| shared.rings.free(ring));
        }
    }

    /// The device's number of an SRQ that a QP of this context may use.
    fn srq_of(&self, context: ContextHandle, srq: SrqHandle) -> Result<SrqId, ControlError> {
        // SRQ-014
        let found = find(&self.srqs, "srq", srq.0)?;
        if found.context != context {
            let sentence = format!("srq {srq}: is of another context than the protection domain");
            return Err(refuse(Errno::INVAL, sentence));
        }
        Ok(found.id)
    }

    /// The device's number of a CQ that a QP of this context may use.
    fn cq_of(
        &self,
        context: ContextHandle,
        what: &str,
        cq: CqHandle,
    ) -> Result<urxe_engine::CqId, ControlError> {
        let found = find(&self.cqs, what, cq.0)?;
        if found.context != context {
            let sentence = format!("{what} {cq}: is of another context than the protection domain");
            return Err(refuse(Errno::INVAL, sentence));
        }
        Ok(found.id)
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
