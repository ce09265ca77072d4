//! Rights on memory, and kinds of memory window.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// Rights on memory, or of a QP's peer: `ibv_access_flags`, with the same bits.
    ///
    /// Bits without a name are kept: a program may ask for a right that has no meaning here
    /// (`IBV_ACCESS_RELAXED_ORDERING`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Access: u32 {
        /// The owner's receives and reads may write.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the MR.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 at the first byte.
        const ZERO_BASED = 1 << 5;
        /// The memory need not be pinned.
        const ON_DEMAND = 1 << 6;
        /// The memory is made of huge pages.
        const HUGETLB = 1 << 7;
        /// The peer may FLUSH for global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may FLUSH for persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        const _ = !0;
    }
}

impl Access {
    /// Whether memory that is registered for this must be writable. That is so with
    /// [`MW_BIND`](Self::MW_BIND) too, because a window may let the peer write.
    pub fn needs_writable(self) -> bool {
        self.intersects(
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND,
        )
    }
}

/// Kinds of memory window: `ibv_mw_type`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum MwType {
    /// Bound by `ibv_bind_mw`; opens to every QP of its protection domain.
    One = 1,
    /// Type 2B: bound by a posted work request; opens to the QP that it was bound on only.
    Two = 2,
}
