//! The end of many objects at once: those of a closed device, those of a dead program. They go in
//! slices, so that nobody else notices.

use super::{find, no_such};
use crate::device::RdmaDevice;
use crate::session::{DaemonCtx, Session};
use std::collections::BTreeMap;
use urxe_shm::control::{CmChannelHandle, ContextHandle, ControlError};

/// An object that is to be freed, by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingFree {
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
        // HOST-026
        self.schedule_frees(|of| of == context);
        Ok(())
    }

    /// Begins to free everything: the program is gone.
    pub(crate) fn begin_teardown(&mut self) {
        self.schedule_frees(|_| true);
        // The last goes first: peers are told while there is still somebody to tell of.
        self.pending_frees
            .extend(self.cm_channels.keys().map(|&channel| PendingFree::CmChannel(channel)));
        self.pending_frees.extend(self.cm_ids.keys().map(|&id| PendingFree::CmId(id)));
    }

    /// Begins to destroy an event channel with all ids that are in it.
    pub(crate) fn begin_destroying_cm_channel(
        &mut self,
        ctx: &DaemonCtx<'_>,
        channel: CmChannelHandle,
    ) -> Result<(), ControlError> {
        let key = *find(&self.cm_channels, "event channel", channel.0)?;
        self.pending_frees.push(PendingFree::CmChannel(channel.0));
        self.pending_frees.extend(self.cm_ids_of(ctx, key).into_iter().map(PendingFree::CmId));
        Ok(())
    }

    /// Whether there is something left to be freed.
    pub(crate) fn is_ending(&self) -> bool {
        !self.pending_frees.is_empty()
    }

    /// Notes all objects of some contexts, so that what uses something goes before what it uses.
    fn schedule_frees(&mut self, of: impl Fn(ContextHandle) -> bool) {
        let Session { contexts, pds, mrs, channels, cqs, qps, srqs, ahs, mws, .. } = self;
        // The last goes first.
        let mut pending_frees = Vec::new();
        note(&mut pending_frees, contexts, PendingFree::Context, |&handle, _| {
            of(ContextHandle(handle))
        });
        note(&mut pending_frees, pds, PendingFree::Pd, |_, pd| of(pd.context));
        note(&mut pending_frees, mrs, PendingFree::Mr, |_, mr| of(mr.context));
        note(&mut pending_frees, channels, PendingFree::CompChannel, |_, channel| {
            of(channel.context)
        });
        note(&mut pending_frees, cqs, PendingFree::Cq, |_, cq| of(cq.context));
        note(&mut pending_frees, mws, PendingFree::Mw, |_, mw| of(mw.context));
        note(&mut pending_frees, ahs, PendingFree::Ah, |_, ah| of(ah.context));
        note(&mut pending_frees, srqs, PendingFree::Srq, |_, srq| of(srq.context));
        note(&mut pending_frees, qps, PendingFree::Qp, |_, qp| of(qp.context));
        self.pending_frees = pending_frees;
    }

    /// Frees up to `count` of the objects that are to be freed.
    pub(crate) fn free_some(&mut self, ctx: &mut DaemonCtx<'_>, count: usize) {
        for _ in 0..count {
            let Some(pending_frees) = self.pending_frees.pop() else { return };
            self.free(ctx, pending_frees);
        }
    }

    fn free(&mut self, ctx: &mut DaemonCtx<'_>, pending_frees: PendingFree) {
        let devices: &mut [RdmaDevice] = ctx.devices;
        // Nothing else can have freed it: requests wait until the end.
        match pending_frees {
            PendingFree::Qp(qp) => {
                self.attachments.retain(|&(attached, _)| attached != qp);
                self.qps.remove(&qp).map(|qp| self.free_qp(devices, qp))
            }
            PendingFree::Srq(srq) => self.srqs.remove(&srq).map(|srq| self.free_srq(devices, srq)),
            PendingFree::Ah(ah) => self.ahs.remove(&ah).map(|ah| self.free_ah(devices, ah)),
            PendingFree::Mw(mw) => self.mws.remove(&mw).map(|mw| self.free_mw(devices, mw)),
            PendingFree::Cq(cq) => self.cqs.remove(&cq).map(|cq| self.free_cq(devices, cq)),
            PendingFree::CompChannel(channel) => self
                .channels
                .remove(&channel)
                .map(|channel| self.free_comp_channel(devices, channel)),
            PendingFree::Mr(mr) => self.mrs.remove(&mr).map(|mr| self.free_mr(devices, mr)),
            PendingFree::Pd(pd) => self.pds.remove(&pd).map(|pd| self.free_pd(devices, pd)),
            PendingFree::Context(context) => {
                self.contexts.remove(&context).map(|context| self.free_context(devices, context))
            }
            PendingFree::CmId(id) => self.cm_ids.remove(&id).map(|key| {
                self.free_cm_id(ctx, key);
            }),
            PendingFree::CmChannel(channel) => {
                self.cm_channels.remove(&channel).map(|key| self.free_cm_channel(ctx, key))
            }
        };
    }
}

/// Notes those entries of a table that fit.
fn note<T>(
    pending_frees: &mut Vec<PendingFree>,
    table: &BTreeMap<u32, T>,
    kind: fn(u32) -> PendingFree,
    fits: impl Fn(&u32, &T) -> bool,
) {
    let fitting = table.iter().filter(|(handle, entry)| fits(handle, entry));
    pending_frees.extend(fitting.map(|(&handle, _)| kind(handle)));
}
