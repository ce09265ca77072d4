//! The ordinary traffic of a QP.

use serde::{Deserialize, Serialize};

/// The ordinary traffic of a QP up to some time, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets that it sent.
    pub sent_packets: u64,
    /// Packets that came for it.
    pub received_packets: u64,
    /// Work requests of its send queue that ended well.
    pub sent_messages: u64,
    /// Messages that came whole.
    pub received_messages: u64,
    /// Work requests that were taken from its send queue.
    pub posted: Posted,
}

/// Work requests of a send queue by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// SENDs of every kind.
    pub sends: u64,
    /// RDMA WRITEs, with immediate data or without.
    pub writes: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Compare-and-swaps, fetch-and-adds and ATOMIC WRITEs.
    pub atomics: u64,
    /// FLUSHes.
    pub flushes: u64,
    /// Binds of memory windows and local invalidations, which no peer sees.
    pub local: u64,
}

impl Traffic {
    /// What came since an earlier time.
    pub fn since(&self, before: &Traffic) -> Traffic {
        let counted = |value: fn(&Traffic) -> u64| value(self).saturating_sub(value(before));
        Traffic {
            sent_packets: counted(|traffic| traffic.sent_packets),
            received_packets: counted(|traffic| traffic.received_packets),
            sent_messages: counted(|traffic| traffic.sent_messages),
            received_messages: counted(|traffic| traffic.received_messages),
            posted: Posted {
                sends: counted(|traffic| traffic.posted.sends),
                writes: counted(|traffic| traffic.posted.writes),
                reads: counted(|traffic| traffic.posted.reads),
                atomics: counted(|traffic| traffic.posted.atomics),
                flushes: counted(|traffic| traffic.posted.flushes),
                local: counted(|traffic| traffic.posted.local),
            },
        }
    }
}
