//! Queue pairs.

use super::rings::location;
use super::{Refusal, check_quota, device_full, find, no_such, refuse};
use crate::limits::{MAX_INLINE_DATA, MAX_QP_WR, MAX_QPS, MAX_SGE};
use crate::nic::Nic;
use crate::objects::{EventTarget, QpObject};
use crate::queues::{RecvQueue, SendQueue};
use crate::session::{Answer, Session, World};
use rustix::io::Errno;
use urxe_engine::{
    Access, AddressVector, ModifyQpError, QpAttr, QpInit, QpState, QueueId, RecvSource,
};
use urxe_shm::arena::Extent;
use urxe_shm::control::{
    self, ContextHandle, ControlError, CqHandle, Gid, PdHandle, QpCaps, QpCreated, QpHandle,
    QpQueried, QpType, Reply,
};
use urxe_shm::geometry::Geometry;
use urxe_shm::ring::{RqConsumer, SqConsumer};
use urxe_wire::{PathMtu, Psn, Qkey, Qpn};

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    nic: usize,
    qpn: Qpn,
    caps: QpCaps,
    sq_sig_all: bool,
    rings: Rings,
    doorbell: u32,
}

/// The room of both rings.
#[derive(Clone, Copy)]
struct Rings {
    send: Extent,
    recv: Extent,
}

impl Session {
    #[allow(clippy::too_many_arguments)] // they are those of the request
    pub(crate) fn create_qp(
        &mut self,
        world: &mut World<'_>,
        pd: PdHandle,
        qp_type: QpType,
        (send_cq, recv_cq): (CqHandle, CqHandle),
        caps: QpCaps,
        sq_sig_all: bool,
        user_handle: u64,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, nic, pd_id) = (owner.context, owner.nic, owner.id);
        check_quota("queue pairs", self.qps.len(), MAX_QPS)?;
        if qp_type != QpType::Rc {
            let sentence = format!("qp_type {qp_type:?}: this device has RC only");
            return Err(refuse(Errno::OPNOTSUPP, sentence));
        }
        let send_cq_id = self.cq_of(context, "send_cq", send_cq)?;
        let recv_cq_id = self.cq_of(context, "recv_cq", recv_cq)?;
        let (send_shape, recv_shape) = shapes(&caps)?;
        let handle = self.new_handle()?;
        let async_events = find(&self.contexts, "context", context.0)?.async_events;
        let events = EventTarget::new(async_events, user_handle, handle);
        let object = QpObject { owner: self.owner(), events };

        let shared = self.shared()?;
        let (send, send_window) = shared.rings.alloc("send queue", &send_shape)?;
        let recv = shared.rings.alloc("receive queue", &recv_shape);
        let (recv, recv_window) = recv.inspect_err(|_| shared.rings.free(send))?;
        let rings = Rings { send, recv };
        let queues = SqConsumer::create(send_window, send_shape, false)
            .and_then(|sq| Ok((sq, RqConsumer::create(recv_window, recv_shape)?)))
            .or_refuse(Errno::NOMEM, "queue pair");
        let qpn = queues.and_then(|(sq, rq)| {
            let sq = SendQueue::new(sq, send_shape.slots(), sq_sig_all);
            let rq = RecvQueue::new(rq, recv_shape.slots());
            let init = |send_queue, recv_queue| QpInit {
                qp_type: urxe_engine::QpType::Rc,
                pd: pd_id,
                send_cq: send_cq_id,
                recv_cq: recv_cq_id,
                send_queue,
                recv: RecvSource::Own(recv_queue),
            };
            world.nics[nic].create_qp(sq, rq, object, init)
        });
        let qpn = qpn.inspect_err(|_| {
            shared.rings.free(rings.send);
            shared.rings.free(rings.recv);
        })?;
        let doorbell = shared.install_doorbell(nic, qpn);
        let caps = QpCaps {
            max_send_wr: send_shape.capacity(),
            max_recv_wr: recv_shape.capacity(),
            max_send_sge: send_shape.max_sge(),
            max_recv_sge: recv_shape.max_sge(),
            max_inline_data: send_shape.max_inline(),
        };
        let qp = Qp { context, pd, nic, qpn, caps, sq_sig_all, rings, doorbell };
        self.qps.insert(handle, qp);
        Ok(Reply::Qp(QpCreated {
            qp: QpHandle(handle),
            qpn: qpn.get(),
            caps,
            send_ring: location(send, &send_shape),
            recv_ring: Some(location(recv, &recv_shape)),
            doorbell_slot: doorbell,
        })
        .into())
    }

    pub(crate) fn modify_qp(
        &mut self,
        world: &mut World<'_>,
        qp: QpHandle,
        attr: &control::QpAttr,
    ) -> Result<Answer, ControlError> {
        let &Qp { nic, qpn, .. } = find(&self.qps, "queue pair", qp.0)?;
        let attr = to_engine(attr)?;
        world.nics[nic].modify_qp(world.now, qpn, &attr).map_err(|error| {
            let errno = match error {
                ModifyQpError::NoSuchQp(_) => Errno::NOENT,
                _ => Errno::INVAL,
            };
            refuse(errno, error.to_string())
        })?;
        Ok(Reply::Done.into())
    }

    pub(crate) fn query_qp(&self, world: &World<'_>, qp: QpHandle) -> Result<Answer, ControlError> {
        let found = find(&self.qps, "queue pair", qp.0)?;
        let info = world.nics[found.nic].device.query_qp(found.qpn);
        let info = info.ok_or_else(|| no_such("queue pair", qp.0))?;
        let mut attr = from_engine(&info.attr);
        attr.state = Some(state_from_engine(info.state));
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
        world: &mut World<'_>,
        qp: QpHandle,
    ) -> Result<Answer, ControlError> {
        let freed = self.qps.remove(&qp.0).ok_or_else(|| no_such("queue pair", qp.0))?;
        self.free_qp(world.nics, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_qp(&mut self, nics: &mut [Nic], qp: Qp) {
        nics[qp.nic].destroy_qp(qp.qpn);
        if let Some(shared) = &mut self.shared {
            shared.remove_doorbell(qp.doorbell);
            shared.rings.free(qp.rings.send);
            shared.rings.free(qp.rings.recv);
        }
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

impl Nic {
    /// Puts a QP's queues where the engine finds them, and makes the QP.
    fn create_qp(
        &mut self,
        send_queue: SendQueue,
        recv_queue: RecvQueue,
        object: QpObject,
        init: impl FnOnce(QueueId, QueueId) -> QpInit,
    ) -> Result<Qpn, ControlError> {
        let send_queue = self.host.send_queues.insert(send_queue);
        let send_queue = send_queue.ok_or_else(|| device_full("queue pairs"))?;
        let Some(recv_queue) = self.host.recv_queues.insert(recv_queue) else {
            self.host.send_queues.remove(send_queue);
            return Err(device_full("queue pairs"));
        };
        let init = init(QueueId(send_queue), QueueId(recv_queue));
        self.host.count_qp(&init);
        let qpn = self.device.create_qp(init.clone()).or_refuse(Errno::NOMEM, "queue pair");
        let qpn = qpn.inspect_err(|_| self.host.forget_qp(&init))?;
        self.host.objects.qps.insert(qpn.get(), object);
        Ok(qpn)
    }
}

/// The shapes of the rings that hold what is asked for.
fn shapes(caps: &QpCaps) -> Result<(Geometry, Geometry), ControlError> {
    let checks = [
        ("max_send_wr", caps.max_send_wr, MAX_QP_WR),
        ("max_recv_wr", caps.max_recv_wr, MAX_QP_WR),
        ("max_send_sge", caps.max_send_sge, MAX_SGE),
        ("max_recv_sge", caps.max_recv_sge, MAX_SGE),
        ("max_inline_data", caps.max_inline_data, MAX_INLINE_DATA),
    ];
    for (what, value, max) in checks {
        if value > max {
            return Err(refuse(Errno::INVAL, format!("{what} {value}: expected at most {max}")));
        }
    }
    let send = Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data);
    let recv = Geometry::recv(caps.max_recv_wr, caps.max_recv_sge);
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
        state: attr.state.map(state_to_engine),
        cur_state: attr.cur_state.map(state_to_engine),
        access: attr.access.map(|access| Access(access.0)),
        pkey_index: attr.pkey_index,
        port: attr.port,
        av: attr.av.map(|av| AddressVector {
            dgid: av.dgid.to_ip(),
            sgid_index: av.sgid_index,
            tclass: av.traffic_class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
        }),
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

/// The engine's attributes in a program's terms.
fn from_engine(attr: &QpAttr) -> control::QpAttr {
    control::QpAttr {
        state: attr.state.map(state_from_engine),
        cur_state: None,
        access: attr.access.map(|access| control::Access(access.0)),
        pkey_index: attr.pkey_index,
        port: attr.port,
        av: attr.av.map(|av| control::AddressVector {
            dgid: Gid::from(av.dgid),
            sgid_index: av.sgid_index,
            traffic_class: av.tclass,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
        }),
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

fn state_to_engine(state: control::QpState) -> QpState {
    match state {
        control::QpState::Reset => QpState::Reset,
        control::QpState::Init => QpState::Init,
        control::QpState::Rtr => QpState::Rtr,
        control::QpState::Rts => QpState::Rts,
        control::QpState::Sqd => QpState::Sqd,
        control::QpState::Sqe => QpState::Sqe,
        control::QpState::Err => QpState::Err,
    }
}

pub(super) fn state_from_engine(state: QpState) -> control::QpState {
    match state {
        QpState::Reset => control::QpState::Reset,
        QpState::Init => control::QpState::Init,
        QpState::Rtr => control::QpState::Rtr,
        QpState::Rts => control::QpState::Rts,
        QpState::Sqd => control::QpState::Sqd,
        QpState::Sqe => control::QpState::Sqe,
        QpState::Err => control::QpState::Err,
    }
}

pub(super) fn type_from_engine(qp_type: urxe_engine::QpType) -> QpType {
    match qp_type {
        urxe_engine::QpType::Rc => QpType::Rc,
        urxe_engine::QpType::Uc => QpType::Uc,
        urxe_engine::QpType::Ud => QpType::Ud,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn attributes_survive_the_way_to_the_engine_and_back() {
        let attr = control::QpAttr {
            state: Some(control::QpState::Rtr),
            cur_state: None,
            access: Some(control::Access(7)),
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
    fn what_the_engine_cannot_even_be_told_is_refused() {
        let refused = |attr: control::QpAttr| to_engine(&attr).unwrap_err();
        let mtu = control::QpAttr { path_mtu: Some(1500), ..Default::default() };
        assert!(refused(mtu).message.starts_with("path_mtu 1500: expected"));
        let psn = control::QpAttr { sq_psn: Some(1 << 24), ..Default::default() };
        assert_eq!(refused(psn).errno, Errno::INVAL.raw_os_error());
    }

    #[test]
    fn capacities_beyond_the_limits_are_refused_by_name() {
        let caps = QpCaps { max_recv_sge: MAX_SGE + 1, ..QpCaps::default() };
        assert_eq!(shapes(&caps).unwrap_err().message, "max_recv_sge 33: expected at most 32");
    }

    #[test]
    fn what_is_granted_may_be_asked_for() {
        let caps = QpCaps {
            max_send_wr: MAX_QP_WR,
            max_recv_wr: MAX_QP_WR,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: MAX_INLINE_DATA,
        };
        let (send, recv) = shapes(&caps).unwrap();
        assert_eq!((send.capacity(), recv.capacity()), (MAX_QP_WR, MAX_QP_WR));
        assert_eq!((send.max_sge(), recv.max_sge()), (MAX_SGE, MAX_SGE));
        assert_eq!(send.max_inline(), MAX_INLINE_DATA);
    }
}
