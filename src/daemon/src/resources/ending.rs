//! The end of many objects at once: those of a closed device, those of a dead program. They go in
//! slices, so that nobody else notices.

use super::{find, no_such};
use crate::nic::Nic;
use crate::session::{Session, World};
use std::collections::BTreeMap;
use urxe_shm::control::{CmChannelHandle, ContextHandle, ControlError};

/// An object that is to be freed, by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doomed {
    Qp(u32),
    Srq(u32),
    Ah(u32),
    Mw(u32),
    Cq(u32),
    CompChannel(u32),
    Mr(u32),
    Pd(u32),
    Context(u32),
    CmId(u32),
    CmChannel(u32),
}

impl Session {
    /// Begins to close a device.
    pub(crate) fn begin_closing(&mut self, context: ContextHandle) -> Result<(), ControlError> {
        if !self.contexts.contains_key(&context.0) {
            return Err(no_such("context", context.0));
        }
        self.doom(|of| of == context);
        Ok(())
    }

    /// Begins to free everything: the program is gone.
    pub(crate) fn begin_burial(&mut self) {
        self.doom(|_| true);
        // The last goes first: peers are told while there is still somebody to tell of.
        self.doomed.extend(self.cm_channels.keys().map(|&channel| Doomed::CmChannel(channel)));
        self.doomed.extend(self.cm_ids.keys().map(|&id| Doomed::CmId(id)));
    }

    /// Begins to destroy an event channel with all ids that are in it.
    pub(crate) fn begin_destroying_cm_channel(
        &mut self,
        world: &World<'_>,
        channel: CmChannelHandle,
    ) -> Result<(), ControlError> {
        let key = *find(&self.cm_channels, "event channel", channel.0)?;
        self.doomed.push(Doomed::CmChannel(channel.0));
        self.doomed.extend(self.cm_ids_of(world, key).into_iter().map(Doomed::CmId));
        Ok(())
    }

    /// Whether there is something left to be freed.
    pub(crate) fn is_ending(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// Notes all objects of some contexts, so that what uses something goes before what it uses.
    fn doom(&mut self, of: impl Fn(ContextHandle) -> bool) {
        let Session { contexts, pds, mrs, channels, cqs, qps, srqs, ahs, mws, .. } = self;
        // The last goes first.
        let mut doomed = Vec::new();
        note(&mut doomed, contexts, Doomed::Context, |&handle, _| of(ContextHandle(handle)));
        note(&mut doomed, pds, Doomed::Pd, |_, pd| of(pd.context));
        note(&mut doomed, mrs, Doomed::Mr, |_, mr| of(mr.context));
        note(&mut doomed, channels, Doomed::CompChannel, |_, channel| of(channel.context));
        note(&mut doomed, cqs, Doomed::Cq, |_, cq| of(cq.context));
        note(&mut doomed, mws, Doomed::Mw, |_, mw| of(mw.context));
        note(&mut doomed, ahs, Doomed::Ah, |_, ah| of(ah.context));
        note(&mut doomed, srqs, Doomed::Srq, |_, srq| of(srq.context));
        note(&mut doomed, qps, Doomed::Qp, |_, qp| of(qp.context));
        self.doomed = doomed;
    }

    /// Frees up to `count` of the objects that are to be freed.
    pub(crate) fn free_some(&mut self, world: &mut World<'_>, count: usize) {
        for _ in 0..count {
            let Some(doomed) = self.doomed.pop() else { return };
            self.free(world, doomed);
        }
    }

    fn free(&mut self, world: &mut World<'_>, doomed: Doomed) {
        let nics: &mut [Nic] = world.nics;
        // Nothing else can have freed it: requests wait until the end.
        match doomed {
            Doomed::Qp(qp) => {
                self.attachments.retain(|&(attached, _)| attached != qp);
                self.qps.remove(&qp).map(|qp| self.free_qp(nics, qp))
            }
            Doomed::Srq(srq) => self.srqs.remove(&srq).map(|srq| self.free_srq(nics, srq)),
            Doomed::Ah(ah) => self.ahs.remove(&ah).map(|ah| self.free_ah(nics, ah)),
            Doomed::Mw(mw) => self.mws.remove(&mw).map(|mw| self.free_mw(nics, mw)),
            Doomed::Cq(cq) => self.cqs.remove(&cq).map(|cq| self.free_cq(nics, cq)),
            Doomed::CompChannel(channel) => {
                self.channels.remove(&channel).map(|channel| self.free_comp_channel(nics, channel))
            }
            Doomed::Mr(mr) => self.mrs.remove(&mr).map(|mr| self.free_mr(nics, mr)),
            Doomed::Pd(pd) => self.pds.remove(&pd).map(|pd| self.free_pd(nics, pd)),
            Doomed::Context(context) => {
                self.contexts.remove(&context).map(|context| self.free_context(nics, context))
            }
            Doomed::CmId(id) => self.cm_ids.remove(&id).map(|key| {
                self.free_cm_id(world, key);
            }),
            Doomed::CmChannel(channel) => {
                self.cm_channels.remove(&channel).map(|key| self.free_cm_channel(world, key))
            }
        };
    }
}

/// Notes those entries of a table that fit.
fn note<T>(
    doomed: &mut Vec<Doomed>,
    table: &BTreeMap<u32, T>,
    kind: fn(u32) -> Doomed,
    fits: impl Fn(&u32, &T) -> bool,
) {
    let fitting = table.iter().filter(|(handle, entry)| fits(handle, entry));
    doomed.extend(fitting.map(|(&handle, _)| kind(handle)));
}
