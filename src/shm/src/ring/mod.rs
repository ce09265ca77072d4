//! The rings: queues as bytes and as values, their ends, the doorbells.
//!
//! - [`layout`]: the rings' bytes, which are those of the kernel's `rdma_rxe` user ABI, so that
//!   the stock `librxe` can post into them too. [`geometry`]: how large a ring is.
//! - [`entry`]: ring entries as plain values; decoding never trusts what it reads.
//! - [`cursor`]: the protocol of the two indices.
//! - [`doorbell`]: how a program says "look at this QP", and how a sleeping daemon is woken.
//!   [`completion_notifier`]: how a program sleeps until there is something to find.
//!
//! The six ends:
//!
//! | ring | program | daemon |
//! |------|---------|--------|
//! | SQ   | [`SqProducer`] | [`SqConsumer`] |
//! | RQ   | [`RqProducer`] | [`RqConsumer`] |
//! | CQ   | [`CqConsumer`] | [`CqProducer`] |
//!
//! An SRQ is an RQ that belongs to no QP. The daemon's end is made first and writes the header;
//! the program's end checks it. Each end is used by one thread at a time (`&mut self`).
//!
//! When the daemon is gone, the program stands in for it: [`FlushCq`].
//!
//! A CQ and an SRQ can get another size: the daemon moves what is in the ring to a new one, and
//! the program attaches to that. Meanwhile the program keeps its hands off the old ring.

pub mod cursor;
pub mod doorbell;
#[cfg(all(test, loom))]
mod loom_tests;
mod sync;
#[cfg(all(test, not(loom)))]
mod testing;

#[cfg(not(loom))]
mod completion;
#[cfg(not(loom))]
pub mod completion_notifier;
#[cfg(not(loom))]
pub mod entry;
#[cfg(not(loom))]
mod flush;
#[cfg(not(loom))]
pub mod geometry;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod recv;
#[cfg(not(loom))]
mod send;

#[cfg(not(loom))]
pub use completion::{CqConsumer, CqError, CqProducer};
#[cfg(not(loom))]
pub use flush::{FlushCq, Posted};
#[cfg(not(loom))]
pub use queue::{MoveError, RingError};
#[cfg(not(loom))]
pub use recv::{RqConsumer, RqProducer};
#[cfg(not(loom))]
pub use send::{SqConsumer, SqProducer};
