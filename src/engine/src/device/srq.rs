//! Shared receive queues: receives that many QPs take from.

use crate::attr::SrqInit;
use crate::host::{AsyncEvent, Host, Taken};
use crate::ids::{PdId, SrqId};
use crate::limits::MAX_SRQ;
use urxe_types::{RecvWqe, Slab};

/// Why an SRQ was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateSrqError {
    /// The device has no room for another.
    #[error("the device has {MAX_SRQ} SRQs, and can have no more")]
    TooMany,
}

/// Why an SRQ was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifySrqError {
    /// There is no such SRQ.
    #[error("SRQ {}: does not exist", .0.0)]
    NoSuchSrq(SrqId),
}

/// Why an SRQ was not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestroySrqError {
    /// There is no such SRQ.
    #[error("SRQ {}: does not exist", .0.0)]
    NoSuchSrq(SrqId),
    /// QPs still receive from it.
    #[error("SRQ {}: {qps} QPs still receive from it; destroy them first", .srq.0)]
    InUse {
        srq: SrqId,
        /// How many QPs.
        qps: usize,
    },
}

/// What `query_srq` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// What it was created with.
    pub init: SrqInit,
    /// Fewer receives posted than this raise the limit event; 0 while it is not armed.
    pub limit: u32,
    /// QPs that receive from it.
    pub qps: usize,
}

/// The SRQs of a device.
#[derive(Debug, Default)]
pub(crate) struct SrqTable {
    /// An SRQ's number is one more than its key, for none is 0.
    srqs: Slab<Srq, 1>,
}

#[derive(Debug)]
struct Srq {
    init: SrqInit,
    limit: u32,
    qps: usize,
    /// Its ring cannot be read any more, and the program was told.
    broken: bool,
}

impl SrqTable {
    fn get(&self, id: SrqId) -> Option<&Srq> {
        self.srqs.get(id.0.wrapping_sub(1))
    }

    fn get_mut(&mut self, id: SrqId) -> Option<&mut Srq> {
        self.srqs.get_mut(id.0.wrapping_sub(1))
    }

    /// Adds an SRQ.
    pub(super) fn create(&mut self, init: SrqInit) -> Result<SrqId, CreateSrqError> {
        // SRQ-006: it is looked at when a receive is taken.
        let srq = Srq { init, limit: init.limit, qps: 0, broken: false };
        let key = self.srqs.insert(srq).ok_or(CreateSrqError::TooMany)?;
        Ok(SrqId(key + 1))
    }

    /// Arms the limit event.
    pub(super) fn modify(
        &mut self,
        host: &mut impl Host,
        id: SrqId,
        limit: u32,
    ) -> Result<(), ModifySrqError> {
        let srq = self.get_mut(id).ok_or(ModifySrqError::NoSuchSrq(id))?;
        srq.limit = limit;
        srq.check_limit(host, id);
        Ok(())
    }

    /// What an SRQ was made with, its limit and its QPs.
    pub(super) fn query(&self, id: SrqId) -> Option<SrqInfo> {
        let &Srq { init, limit, qps, .. } = self.get(id)?;
        Some(SrqInfo { init, limit, qps })
    }

    /// Removes an SRQ that no QP uses.
    pub(super) fn destroy(&mut self, id: SrqId) -> Result<(), DestroySrqError> {
        let srq = self.get(id).ok_or(DestroySrqError::NoSuchSrq(id))?;
        if srq.qps > 0 {
            return Err(DestroySrqError::InUse { srq: id, qps: srq.qps });
        }
        self.srqs.remove(id.0.wrapping_sub(1));
        Ok(())
    }

    /// One more QP receives from it. Returns the protection domain of its receives, or `None` if
    /// there is no such SRQ.
    pub(super) fn attach(&mut self, id: SrqId) -> Option<PdId> {
        let srq = self.get_mut(id)?;
        srq.qps += 1;
        // SRQ-003
        Some(srq.init.pd)
    }

    /// One QP less receives from it.
    pub(super) fn detach(&mut self, id: SrqId) {
        if let Some(srq) = self.get_mut(id) {
            srq.qps -= 1;
        }
    }

    /// Takes the next receive.
    pub(crate) fn take<H: Host>(&mut self, host: &mut H, id: SrqId, recv: &mut RecvWqe) -> Taken {
        let Some(srq) = self.get_mut(id).filter(|srq| !srq.broken) else {
            return Taken::Broken;
        };
        let taken = host.next_recv(srq.init.queue, recv);
        if taken == Taken::Broken {
            srq.broken = true;
            // SRQ-011: told once, for a broken one is not asked again.
            host.event(AsyncEvent::SrqError(id));
        }
        srq.check_limit(host, id);
        taken
    }
}

impl Srq {
    /// Raises the limit event, once for each time that the limit is armed.
    fn check_limit<H: Host>(&mut self, host: &mut H, id: SrqId) {
        // SRQ-004, SRQ-005
        if self.limit != 0 && host.posted_recvs(self.init.queue) < self.limit {
            if !fault!(SrqLimitToldAgain) {
                self.limit = 0;
            }
            if !fault!(SrqLimitNotTold) {
                host.event(AsyncEvent::SrqLimit(id));
            }
        }
    }
}
