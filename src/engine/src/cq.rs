//! Completion queues that have overrun.

use crate::host::CqId;
use std::collections::BTreeSet;

/// The CQs that had no room for a completion and take no more.
#[derive(Debug, Default)]
pub(crate) struct FailedCqs {
    failed: BTreeSet<CqId>,
    /// Those of them whose QPs are still to be stopped.
    news: Vec<CqId>,
}

impl FailedCqs {
    /// Whether a CQ takes no more.
    pub(crate) fn contains(&self, cq: CqId) -> bool {
        self.failed.contains(&cq)
    }

    /// A CQ had no room. Returns whether it is the first time.
    pub(crate) fn add(&mut self, cq: CqId) -> bool {
        let is_new = self.failed.insert(cq);
        if is_new {
            self.news.push(cq);
        }
        is_new
    }

    /// A CQ whose QPs are still to be stopped; asked once.
    pub(crate) fn take_news(&mut self) -> Option<CqId> {
        self.news.pop()
    }

    /// The CQ is no more; its number may come again.
    pub(crate) fn forget(&mut self, cq: CqId) {
        self.failed.remove(&cq);
    }
}
