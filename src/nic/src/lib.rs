//! One data path of a NIC: an engine [`Device`](urxe_engine::Device), its port, and the rings and
//! the memory of the programs that use it; one thread's worth.
//!
//! ```text
//!  rings, doorbells, memory ──► engine_host.rs, queues.rs, convert.rs, staging.rs
//!                                          │
//!  whoever runs it ──────────► nic.rs ─► engine ─► port ─► wire
//! ```
//!
//! What is not here: who may have what. Sessions, users, quotas, sockets of programs, files and
//! names are of whoever runs the data path: the daemon, a test, or a program itself.

#![forbid(unsafe_code)]

mod convert;
mod counters;
pub mod engine_host;
pub mod event_pipe;
mod limits;
mod nic;
pub mod objects;
pub mod queues;
mod read_ahead;
pub mod slab;
mod staging;
mod write_combiner;

pub use counters::HostCounters;
pub use engine_host::{ProgramHost, Region};
pub use event_pipe::{EventPipe, drain};
pub use nic::{AttachError, Config, CreateError, Nic, PortEvent, Queues, Recv};
pub use objects::{EventTarget, Owner};
