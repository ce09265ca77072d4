//! The vocabulary of the verbs, each word once: what a QP, a right, a work request, a completion
//! and a number of the wire is. All other crates carry these types and do not translate them.
//!
//! Beside them stands what the other crates make of: sets of [`counters!`], [`Slab`]s and
//! [`ReplyLimit`]s.
//!
//! There is no I/O here, no clock and no bytes of a wire or a ring; but a type can only be made of
//! values that it may have, so that a check stands where bytes become types and nowhere else.
//!
//! The names are those of `libibverbs` and of the InfiniBand Architecture Specification.

#![forbid(unsafe_code)]

mod access;
mod address;
mod counters;
mod flush;
mod keys;
mod msn;
mod mtu;
mod psn;
mod qp;
mod qpn;
mod reply_limit;
mod slab;
mod slot;
mod time;
mod time_offset;
mod traffic;
mod wc;
mod wr;

pub use access::{Access, MwType};
pub use address::{AddressVector, AhId, Gid};
pub use flush::{FlushPlacement, FlushSelectivity};
pub use keys::{Lkey, Pkey, Qkey, Rkey};
pub use msn::Msn;
pub use mtu::{NoPathMtu, PathMtu};
pub use psn::Psn;
pub use qp::{QpAttr, QpState, QpType};
pub use qpn::{Qpn, TooManyBits};
pub use reply_limit::{Rate, ReplyLimit};
pub use slab::{SLAB_CAPACITY, Slab, index_of};
pub use slot::{NoSlotCount, NoSuchSlot, SLOT_BITS, Slot, SlotCount, SlotId};
pub use time::{RnrTimer, TimeCode};
pub use time_offset::TimeOffset;
pub use traffic::{Posted, Traffic};
pub use wc::{Completion, GrhKind, WcOpcode, WcStatus};
pub use wr::{
    DatagramPath, Destination, EntryError, Extra, RecvWqe, SendData, SendOp, SendWqe, SendWr, Sge,
};
