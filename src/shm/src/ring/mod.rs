//! The rings: queues as bytes and as values, their ends, the doorbells.
//!
//! - [`layout`]: the rings' bytes, which are those of the kernel's `rdma_rxe` user ABI, so that
//!   the stock `librxe` can post into them too. [`geometry`]: how large a ring is.
//! - [`entry`]: ring entries as plain values; decoding never trusts what it reads.
//! - [`cursor`]: the protocol of the two indices.
//! - [`doorbell`]: how a program says "look at this QP", and how a sleeping daemon is woken.
//!   [`completion_notifier`]: how a program sleeps until there is something to find.

pub mod cursor;
pub mod doorbell;
#[cfg(all(test, loom))]
mod loom_tests;
mod sync;

#[cfg(not(loom))]
pub mod completion_notifier;
#[cfg(not(loom))]
mod ends;
#[cfg(not(loom))]
pub mod entry;
#[cfg(not(loom))]
mod flush;
#[cfg(not(loom))]
pub mod geometry;
#[cfg(not(loom))]
pub mod layout;

#[cfg(not(loom))]
pub use ends::{
    CqConsumer, CqError, CqProducer, MoveError, RingError, RqConsumer, RqProducer, SqConsumer,
    SqProducer,
};
#[cfg(not(loom))]
pub use flush::{FlushCq, Posted};
