//! Address handles.

use super::qp::av_to_engine;
use super::{PdUser, check_quota, find, no_such, refuse};
use crate::device::RdmaDevice;
use crate::limits::MAX_AHS;
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use urxe_engine::AhError;
use urxe_shm::control::{AddressVector, AhHandle, ContextHandle, ControlError, PdHandle, Reply};
use urxe_types::AhId;

/// An address handle.
pub(crate) struct Ah {
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    device: usize,
    id: AhId,
}

impl Session {
    pub(crate) fn create_ah(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
        av: &AddressVector,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, device, pd_id) = (owner.context, owner.device, owner.id);
        check_quota("address handles", self.ahs.len(), MAX_AHS)?;
        let handle = self.new_handle()?;
        let id = ctx.devices[device].nic.device.create_ah(pd_id, &av_to_engine(av)).map_err(
            |error| {
                let errno = match error {
                    AhError::TooMany => Errno::NOMEM,
                    AhError::Path(_) => Errno::INVAL,
                };
                refuse(errno, error.to_string())
            },
        )?;
        self.ahs.insert(handle, Ah { context, pd, device, id });
        self.join_pd(pd, PdUser::Ah);
        Ok(Reply::Ah { ah: AhHandle(handle), ah_num: id.0 }.into())
    }

    pub(crate) fn destroy_ah(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        ah: AhHandle,
    ) -> Result<Answer, ControlError> {
        let freed = self.ahs.remove(&ah.0).ok_or_else(|| no_such("address handle", ah.0))?;
        self.free_ah(ctx.devices, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_ah(&mut self, devices: &mut [RdmaDevice], ah: Ah) {
        self.leave_pd(ah.pd, PdUser::Ah);
        devices[ah.device].nic.device.destroy_ah(ah.id);
    }
}
