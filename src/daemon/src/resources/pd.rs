//! Protection domains.

use super::{check_quota, check_unused, device_full, find, no_such};
use crate::device::RdmaDevice;
use crate::limits::MAX_PDS;
use crate::session::{Answer, DaemonCtx, Session};
use urxe_engine::PdId;
use urxe_shm::control::{ContextHandle, ControlError, PdHandle, Reply};

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) context: ContextHandle,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) id: PdId,
    /// How many of each kind are in it. Counted, for to look for them among a million takes long.
    users: [usize; PdUser::ALL.len()],
}

/// What is in a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PdUser {
    Mr,
    Mw,
    Qp,
    Srq,
    Ah,
}

impl PdUser {
    const ALL: [PdUser; 5] = [PdUser::Mr, PdUser::Mw, PdUser::Qp, PdUser::Srq, PdUser::Ah];

    fn plural(self) -> &'static str {
        match self {
            PdUser::Mr => "memory registrations",
            PdUser::Mw => "memory windows",
            PdUser::Qp => "queue pairs",
            PdUser::Srq => "shared receive queues",
            PdUser::Ah => "address handles",
        }
    }
}

impl Session {
    pub(crate) fn alloc_pd(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        context: ContextHandle,
    ) -> Result<Answer, ControlError> {
        let device = find(&self.contexts, "context", context.0)?.device;
        check_quota("protection domains", self.pds.len(), MAX_PDS)?;
        let handle = self.new_handle()?;
        let id = ctx.devices[device]
            .nic
            .pds
            .insert(())
            .ok_or_else(|| device_full("protection domains"))?;
        let users = [0; PdUser::ALL.len()];
        self.pds.insert(handle, Pd { context, device, id: PdId(id), users });
        Ok(Reply::Pd(PdHandle(handle)).into())
    }

    pub(crate) fn dealloc_pd(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.pds, "protection domain", pd.0)?;
        for user in PdUser::ALL {
            check_unused("protection domain", found.users[user as usize], user.plural())?;
        }
        let freed = self.pds.remove(&pd.0).ok_or_else(|| no_such("protection domain", pd.0))?;
        self.free_pd(ctx.devices, freed);
        Ok(Reply::Done.into())
    }

    /// Something is in a protection domain from now on.
    pub(crate) fn join_pd(&mut self, pd: PdHandle, user: PdUser) {
        if let Some(pd) = self.pds.get_mut(&pd.0) {
            pd.users[user as usize] += 1;
        }
    }

    /// Something that was in a protection domain is gone.
    pub(crate) fn leave_pd(&mut self, pd: PdHandle, user: PdUser) {
        if let Some(pd) = self.pds.get_mut(&pd.0) {
            pd.users[user as usize] -= 1;
        }
    }

    pub(crate) fn free_pd(&mut self, devices: &mut [RdmaDevice], pd: Pd) {
        devices[pd.device].nic.pds.remove(pd.id.0);
    }
}
