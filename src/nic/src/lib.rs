//! One data path of a NIC: an engine [`Device`](urxe_engine::Device), its port, and the rings and
//! the memory of the programs that use it; one thread's worth.
//!
//! ```text
//!  rings, doorbells, memory ──► engine_host.rs, queues.rs, staging.rs
//!                                          │
//!  its runner ───────────────► nic.rs ─► engine ─► port ─► wire
//! ```
//!
//! Policy is not here. Sessions, users, quotas, sockets of programs, files and names are the
//! runner's: the daemon, a test, or a program itself.
//!
//! # How to drive it
//!
//! [`Nic`] has the verbs (create, modify, query, destroy) with rings and memory as arguments, and
//! what an event loop calls: [`receive`](Nic::receive) when [`port_fd`](Nic::port_fd) is readable,
//! [`handle_timers`](Nic::handle_timers) when [`deadline`](Nic::deadline) has come,
//! [`ring_doorbell`](Nic::ring_doorbell) when a program has posted, and after any of these
//! [`transmit`](Nic::transmit) while [`is_due`](Nic::is_due) says so. Completions appear in the
//! rings, events in the [`EventPipe`]s that it was given.

#![forbid(unsafe_code)]

mod counters;
mod engine_host;
mod event_channels;
mod event_pipe;
mod failed_qps;
mod floods;
mod guarded;
mod limits;
mod nic;
mod objects;
mod queues;
mod read_ahead;
mod staging;
mod stalls;
mod table;
mod tap;
mod verbs;
mod write_combiner;

pub use counters::{HostCounters, ObjectCounts};
pub use event_pipe::{Delivery, EventPipe, drain};
pub use guarded::guard_addresses;
pub use nic::{Config, Nic, PollerTurn, PortEvent};
pub use objects::{ChannelId, EventTarget, Memory, Mr, OwnerId};
pub use tap::{Owners, TapSpec};
pub use verbs::{
    AttachError, CqSpec, CqStatus, DeviceFull, MemorySpec, QpSpec, QpStatus, Receives, Ring,
    SrqSpec, SrqStatus,
};
