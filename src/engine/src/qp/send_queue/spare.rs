//! Records of work requests that have ended, for those that come next.

use super::Pending;
use crate::limits::MAX_SPARE_SENDS;
use crate::qp::sges::SgeWalk;

/// Records that are not in use, with their vectors. The QPs of a device share them, and take the
/// one that was used last: it is in the cache, where those of a thousand QPs would not be.
#[derive(Debug, Default)]
pub(crate) struct SpareSends {
    #[expect(clippy::vec_box, reason = "a record keeps its place while it changes hands")]
    records: Vec<Box<Pending>>,
}

impl SpareSends {
    /// A record to fill.
    pub(super) fn take(&mut self) -> Box<Pending> {
        let mut pending = self.records.pop().unwrap_or_else(|| Box::new(Pending::new()));
        pending.started = false;
        pending.failed = None;
        pending.walk = SgeWalk::default();
        pending.length = 0;
        pending.packets = 1;
        pending.is_repeated = false;
        pending.in_onlys = false;
        pending
    }

    /// One that is done with.
    pub(super) fn put_back(&mut self, pending: Box<Pending>) {
        if self.records.len() < MAX_SPARE_SENDS {
            self.records.push(pending);
        }
    }
}
