//! Memory windows.

use super::{PdUser, Refusal, check_quota, find, no_such};
use crate::device::RdmaDevice;
use crate::limits::MAX_MWS;
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_shm::control::{ContextHandle, ControlError, MwHandle, PdHandle, Reply};
use urxe_types::MwType;

/// A memory window.
pub(crate) struct Mw {
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    device: usize,
    /// The rkey it had first; those that it had later name it as well.
    rkey: u32,
}

impl Session {
    pub(crate) fn alloc_mw(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
        mw_type: MwType,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, device, pd_id) = (owner.context, owner.device, owner.id);
        check_quota("memory windows", self.mws.len(), MAX_MWS)?;
        let handle = self.new_handle()?;
        let on = &mut ctx.devices[device];
        let rkey =
            on.nic.device.alloc_mw(pd_id, mw_type).or_refuse(Errno::NOMEM, "memory window")?;
        on.nic.host.objects.insert_mw(rkey, self.owner());
        self.mws.insert(handle, Mw { context, pd, device, rkey });
        self.join_pd(pd, PdUser::Mw);
        Ok(Reply::Mw { mw: MwHandle(handle), rkey }.into())
    }

    pub(crate) fn dealloc_mw(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        mw: MwHandle,
    ) -> Result<Answer, ControlError> {
        let freed = self.mws.remove(&mw.0).ok_or_else(|| no_such("memory window", mw.0))?;
        self.free_mw(ctx.devices, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_mw(&mut self, devices: &mut [RdmaDevice], mw: Mw) {
        self.leave_pd(mw.pd, PdUser::Mw);
        let device = &mut devices[mw.device];
        // MW-040
        device.nic.device.dealloc_mw(mw.rkey);
        device.nic.host.objects.remove_mw(mw.rkey);
    }
}
