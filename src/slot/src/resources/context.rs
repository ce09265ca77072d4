//! Contexts: opened devices, and what can be asked of a device.

use super::{Refusal, device_full, refuse};
use crate::device::SlotDevice;
use crate::limits;
use crate::log;
use crate::objects::Object;
use crate::refusal::find_device;
use crate::session::{Answer, Session, SlotCtx};
use rustix::io::Errno;
use urxe_engine::Cause;
use urxe_engine::limits::{
    GID_TABLE_LEN, MAX_AH, MAX_GROUP_MEMBERS, MAX_MESSAGE, MAX_QP, MAX_RD_ATOMIC, MAX_SRQ,
};
use urxe_nic::{ChannelId, EventPipe, EventTarget};
use urxe_shm::control::{
    ContextHandle, ControlError, DeviceAttr, DeviceInfo, OdpCaps, PortAttr, Reply,
};
use urxe_shm::ring::layout::MAX_MESSAGE_LEN;
use urxe_types::{Gid, PathMtu};

// Programs judge by the one what the engine judges by the other.
const _: () = assert!(MAX_MESSAGE_LEN == MAX_MESSAGE);

/// The number of a device's one port.
const PORT: u8 = 1;

/// No memory of a program is pinned, so every operation there is does with memory on demand.
const ODP_CAPS: OdpCaps = {
    let ud = OdpCaps::SEND | OdpCaps::RECV | OdpCaps::SRQ_RECV;
    let uc = ud | OdpCaps::WRITE;
    OdpCaps { rc: uc | OdpCaps::READ | OdpCaps::ATOMIC, uc, ud }
};

/// An opened device.
pub(crate) struct Context {
    handle: u32,
    /// The device's number.
    pub(crate) device: usize,
    /// Where its asynchronous events go.
    pub(crate) async_events: ChannelId,
}

impl Object for Context {
    fn context(&self) -> ContextHandle {
        ContextHandle(self.handle)
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.destroy_channel(self.async_events);
    }
}

pub(super) fn list_devices(ctx: &SlotCtx) -> Answer {
    let info = |device: &SlotDevice| DeviceInfo {
        name: device.name.clone(),
        node_guid: device.guid,
        address: device.address(),
    };
    Reply::Devices(ctx.devices.iter().map(info).collect()).into()
}

pub(super) fn list_causes() -> Answer {
    let sentence = |&cause: &Cause| (cause as u32, cause.text().to_owned());
    Reply::Causes(Cause::ALL.iter().map(sentence).collect()).into()
}

pub(super) fn open_device(
    session: &mut Session,
    ctx: &mut SlotCtx,
    name: &str,
) -> Result<Answer, ControlError> {
    session.objects.check_quota::<Context>()?;
    let names = ctx.devices.iter().map(|device| device.name.as_str());
    let device = find_device(names, name)?;
    let handle = session.objects.new_handle()?;
    let (pipe, read_end) = EventPipe::new().or_refuse(Errno::MFILE, "event pipe")?;
    let nic = &mut ctx.devices[device].nic;
    let async_events = nic.create_async_channel(pipe, PORT.into(), handle);
    let async_events = async_events.map_err(|_| device_full("event pipes"))?;
    session.objects.insert(handle, Context { handle, device, async_events });
    log::opened(ctx, session, device);
    let reply = Reply::Context(ContextHandle(handle));
    Ok(Answer::Reply { reply, fds: vec![read_end] })
}

/// Begins to close a device.
pub(super) fn close_device(
    session: &mut Session,
    context: ContextHandle,
) -> Result<Answer, ControlError> {
    session.begin_closing(context)?;
    Ok(Answer::WhenFreed)
}

/// The number of the device that a context is of.
pub(super) fn device_of(session: &Session, context: ContextHandle) -> Result<usize, ControlError> {
    Ok(session.objects.get::<Context>(context.0)?.device)
}

/// Where the asynchronous events of an object go that its program knows by these two numbers.
pub(super) fn event_target(
    session: &Session,
    context: ContextHandle,
    user_handle: u64,
    handle: u32,
) -> Result<EventTarget, ControlError> {
    let async_events = session.objects.get::<Context>(context.0)?.async_events;
    Ok(EventTarget::new(async_events, user_handle, handle))
}

/// Takes back the asynchronous events of an object that is no more.
pub(super) fn withdraw_events(
    session: &Session,
    ctx: &mut SlotCtx,
    context: ContextHandle,
    object: u32,
) {
    if let Ok(context) = session.objects.get::<Context>(context.0) {
        ctx.devices[context.device].nic.withdraw_events(context.async_events, object);
    }
}

pub(super) fn query_device(
    session: &Session,
    ctx: &SlotCtx,
    context: ContextHandle,
) -> Result<Answer, ControlError> {
    let device = &ctx.devices[device_of(session, context)?];
    let attr = DeviceAttr {
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        node_guid: device.guid,
        max_mr_size: limits::MAX_MR_SIZE,
        max_qp: limits::MAX_QPS.min(MAX_QP) as u32,
        max_qp_wr: limits::MAX_QP_WR,
        max_sge: limits::MAX_SGE,
        max_inline_data: limits::MAX_INLINE_DATA,
        max_cq: limits::MAX_CQS as u32,
        max_cqe: limits::MAX_CQE,
        max_mr: limits::MAX_MRS as u32,
        max_pd: limits::MAX_PDS as u32,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        max_srq: limits::MAX_SRQS.min(MAX_SRQ) as u32,
        max_srq_wr: limits::MAX_SRQ_WR,
        max_srq_sge: limits::MAX_SGE,
        max_mw: limits::MAX_MWS as u32,
        max_ah: limits::MAX_AHS.min(MAX_AH) as u32,
        max_mcast_grp: limits::MAX_MCAST_GROUPS as u32,
        max_mcast_qp_attach: MAX_GROUP_MEMBERS as u32,
        odp_caps: ODP_CAPS,
        num_comp_vectors: 1,
        phys_port_cnt: 1,
    };
    Ok(Reply::Device(attr).into())
}

pub(super) fn query_port(
    session: &Session,
    ctx: &SlotCtx,
    context: ContextHandle,
    port: u8,
) -> Result<Answer, ControlError> {
    let device = &ctx.devices[device_of(session, context)?];
    check_port(port)?;
    let attr = PortAttr {
        active: device.link.active,
        max_mtu: PathMtu::Mtu4096,
        active_mtu: device.mtu,
        gid_tbl_len: GID_TABLE_LEN as u32,
        pkey_tbl_len: 1,
        max_msg_sz: MAX_MESSAGE as u32,
        interface: device.link.interface.clone(),
        speed_mbps: device.link.speed_mbps,
    };
    Ok(Reply::Port(attr).into())
}

pub(super) fn query_gid(
    session: &Session,
    ctx: &SlotCtx,
    context: ContextHandle,
    port: u8,
    index: u32,
) -> Result<Answer, ControlError> {
    let device = &ctx.devices[device_of(session, context)?];
    check_port(port)?;
    let table = &device.gid_table;
    // ADDR-001
    let entry = usize::try_from(index).ok().and_then(|index| table.get(index));
    let Some(entry) = entry else {
        let sentence = format!("GID index {index}: the table has {GID_TABLE_LEN}, from 0");
        return Err(refuse(Errno::INVAL, sentence));
    };
    // A hole is all zeroes, as in the kernel's table.
    Ok(Reply::Gid(entry.map_or_else(Gid::default, Gid::from)).into())
}

fn check_port(port: u8) -> Result<(), ControlError> {
    // ADDR-008
    if port == PORT {
        return Ok(());
    }
    Err(refuse(Errno::INVAL, format!("port {port}: the device has 1 port, expected 1")))
}
