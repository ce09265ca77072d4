//! Contexts: opened devices, and what can be asked of a device.

use super::{Refusal, check_quota, device_full, find, refuse};
use crate::device::RdmaDevice;
use crate::limits;
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_engine::Cause;
use urxe_engine::limits::{
    GID_TABLE_LEN, MAX_AH, MAX_GROUP_MEMBERS, MAX_QP, MAX_RD_ATOMIC, MAX_SRQ,
};
use urxe_nic::event_pipe::EventPipe;
use urxe_nic::objects::EventTarget;
use urxe_shm::control::{
    ContextHandle, ControlError, DeviceAttr, DeviceInfo, Gid, OdpCaps, PortAttr, Reply,
};
use urxe_types::PathMtu;

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
    /// The device's number.
    pub(crate) device: usize,
    /// The pipe of its asynchronous events.
    pub(crate) async_events: u32,
}

impl Session {
    pub(crate) fn list_devices(&self, ctx: &DaemonCtx<'_>) -> Answer {
        let info = |device: &RdmaDevice| DeviceInfo {
            name: device.name.clone(),
            node_guid: device.guid,
            address: device.address(),
        };
        Reply::Devices(ctx.devices.iter().map(info).collect()).into()
    }

    pub(crate) fn list_causes(&self) -> Answer {
        let sentence = |&cause: &Cause| (cause as u32, cause.text().to_owned());
        Reply::Causes(Cause::ALL.iter().map(sentence).collect()).into()
    }

    pub(crate) fn open_device(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        name: &str,
    ) -> Result<Answer, ControlError> {
        check_quota("contexts", self.contexts.len(), limits::MAX_CONTEXTS)?;
        let device = find_nic(ctx, name)?;
        let handle = self.new_handle()?;
        let (pipe, read_end) = EventPipe::new().or_refuse(Errno::MFILE, "event pipe")?;
        let async_events = ctx.devices[device].nic.host.pipes.insert(pipe);
        let async_events = async_events.ok_or_else(|| device_full("event pipes"))?;
        let target = EventTarget::new(async_events, PORT.into(), handle);
        ctx.devices[device].nic.host.objects.contexts.insert(async_events, target);
        self.contexts.insert(handle, Context { device, async_events });
        Ok(Answer { reply: Reply::Context(ContextHandle(handle)), fds: vec![read_end] })
    }

    pub(crate) fn free_context(&mut self, devices: &mut [RdmaDevice], context: Context) {
        let host = &mut devices[context.device].nic.host;
        host.objects.contexts.remove(&context.async_events);
        host.pipes.remove(context.async_events);
    }

    /// Takes back the asynchronous events of an object that is no more.
    pub(super) fn withdraw_events(
        &self,
        devices: &mut [RdmaDevice],
        context: ContextHandle,
        object: u32,
    ) {
        if let Some(context) = self.contexts.get(&context.0) {
            devices[context.device].nic.host.withdraw_events(context.async_events, object);
        }
    }

    pub(crate) fn query_device(
        &self,
        ctx: &DaemonCtx<'_>,
        context: ContextHandle,
    ) -> Result<Answer, ControlError> {
        let device = &ctx.devices[find(&self.contexts, "context", context.0)?.device];
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

    pub(crate) fn query_port(
        &self,
        ctx: &DaemonCtx<'_>,
        context: ContextHandle,
        port: u8,
    ) -> Result<Answer, ControlError> {
        let device = &ctx.devices[find(&self.contexts, "context", context.0)?.device];
        check_port(port)?;
        let attr = PortAttr {
            active: device.link.active,
            max_mtu: PathMtu::Mtu4096.bytes() as u16,
            active_mtu: device.mtu.bytes() as u16,
            gid_tbl_len: GID_TABLE_LEN as u32,
            pkey_tbl_len: 1,
            max_msg_sz: urxe_engine::limits::MAX_MESSAGE as u32,
            interface: device.link.interface.clone(),
            speed_mbps: device.link.speed_mbps(),
        };
        Ok(Reply::Port(attr).into())
    }

    pub(crate) fn query_gid(
        &self,
        ctx: &DaemonCtx<'_>,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> Result<Answer, ControlError> {
        let device = &ctx.devices[find(&self.contexts, "context", context.0)?.device];
        check_port(port)?;
        let table = device.gid_table();
        // ADDR-001
        let entry = usize::try_from(index).ok().and_then(|index| table.get(index));
        let Some(entry) = entry else {
            let sentence = format!("GID index {index}: the table has {GID_TABLE_LEN}, from 0");
            return Err(refuse(Errno::INVAL, sentence));
        };
        // A hole is all zeroes, as in the kernel's table.
        Ok(Reply::Gid(entry.map_or_else(Gid::default, Gid::from)).into())
    }
}

/// The number of the device with a name.
pub(super) fn find_nic(ctx: &DaemonCtx<'_>, name: &str) -> Result<usize, ControlError> {
    ctx.devices.iter().position(|device| device.name == name).ok_or_else(|| {
        let known: Vec<_> = ctx.devices.iter().map(|device| device.name.as_str()).collect();
        let known = known.join(", ");
        refuse(Errno::NODEV, format!("device {name:?}: does not exist; there are {known}"))
    })
}

fn check_port(port: u8) -> Result<(), ControlError> {
    // ADDR-008
    if port == PORT {
        return Ok(());
    }
    Err(refuse(Errno::INVAL, format!("port {port}: the device has 1 port, expected 1")))
}
