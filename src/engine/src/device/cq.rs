//! Completion queues: who uses which, and which have overrun.

use crate::attr::QpInit;
use crate::ids::CqId;
use std::collections::BTreeSet;
use urxe_types::Qpn;

/// What the engine knows of the CQs, which are the host's.
#[derive(Debug, Default)]
pub(crate) struct Cqs {
    /// CQ and QPN.
    users: BTreeSet<(CqId, u32)>,
    /// Those that had no room for a completion and take no more.
    failed: BTreeSet<CqId>,
    /// Those of them whose QPs are still to be stopped.
    failed_cqs: Vec<CqId>,
}

impl Cqs {
    /// A QP was made.
    pub(super) fn attach(&mut self, qpn: Qpn, init: &QpInit) {
        self.users.extend([init.send_cq, init.recv_cq].map(|cq| (cq, qpn.get())));
    }

    /// A QP was destroyed.
    pub(super) fn detach(&mut self, qpn: Qpn, init: &QpInit) {
        for cq in [init.send_cq, init.recv_cq] {
            self.users.remove(&(cq, qpn.get()));
        }
    }

    /// Whether a CQ takes no more.
    pub(crate) fn has_failed(&self, cq: CqId) -> bool {
        self.failed.contains(&cq)
    }

    /// A CQ had no room. Returns whether it is the first time.
    pub(crate) fn fail(&mut self, cq: CqId) -> bool {
        // CQ-003, CQ-019
        let is_new = self.failed.insert(cq);
        if is_new {
            self.failed_cqs.push(cq);
        }
        is_new
    }

    /// The QPs of a CQ that has failed, by number, where they are still to be stopped; told once.
    pub(super) fn take_failed(&mut self) -> Option<Vec<Qpn>> {
        let cq = self.failed_cqs.pop()?;
        let users = self.users.range((cq, 0)..=(cq, u32::MAX));
        Some(users.map(|&(_, qpn)| Qpn::new(qpn)).collect())
    }

    /// The CQ was destroyed; its number may come again.
    pub(super) fn forget(&mut self, cq: CqId) {
        // CQ-031
        self.failed.remove(&cq);
    }
}
