//! Protection domains.

use super::{check_quota, check_unused, device_full, find, no_such};
use crate::limits::MAX_PDS;
use crate::nic::Nic;
use crate::session::{Answer, Session, World};
use urxe_engine::PdId;
use urxe_shm::control::{ContextHandle, ControlError, PdHandle, Reply};

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) context: ContextHandle,
    /// The device's number.
    pub(crate) nic: usize,
    pub(crate) id: PdId,
}

impl Session {
    pub(crate) fn alloc_pd(
        &mut self,
        world: &mut World<'_>,
        context: ContextHandle,
    ) -> Result<Answer, ControlError> {
        let nic = find(&self.contexts, "context", context.0)?.nic;
        check_quota("protection domains", self.pds.len(), MAX_PDS)?;
        let handle = self.new_handle()?;
        let id = world.nics[nic].pds.insert(()).ok_or_else(|| device_full("protection domains"))?;
        self.pds.insert(handle, Pd { context, nic, id: PdId(id) });
        Ok(Reply::Pd(PdHandle(handle)).into())
    }

    pub(crate) fn dealloc_pd(
        &mut self,
        world: &mut World<'_>,
        pd: PdHandle,
    ) -> Result<Answer, ControlError> {
        find(&self.pds, "protection domain", pd.0)?;
        let mrs = self.mrs.values().filter(|mr| mr.pd == pd).count();
        check_unused("protection domain", mrs, "memory registrations")?;
        let mws = self.mws.values().filter(|mw| mw.pd == pd).count();
        check_unused("protection domain", mws, "memory windows")?;
        let qps = self.qps.values().filter(|qp| qp.pd == pd).count();
        check_unused("protection domain", qps, "queue pairs")?;
        let srqs = self.srqs.values().filter(|srq| srq.pd == pd).count();
        check_unused("protection domain", srqs, "shared receive queues")?;
        let ahs = self.ahs.values().filter(|ah| ah.pd == pd).count();
        check_unused("protection domain", ahs, "address handles")?;
        let freed = self.pds.remove(&pd.0).ok_or_else(|| no_such("protection domain", pd.0))?;
        self.free_pd(world.nics, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_pd(&mut self, nics: &mut [Nic], pd: Pd) {
        nics[pd.nic].pds.remove(pd.id.0);
    }
}
