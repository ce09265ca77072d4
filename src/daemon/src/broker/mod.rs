//! The broker: who may connect and where they are served, addresses and links, connections, and
//! what is shown of all slots together.
//!
//! ```text
//!  programs ──► event_loop.rs ─► slots.rs ── link ──► slots    a program's socket goes on at once
//!                    │  ▲
//!                    ▼  └── requests of programs that are not their slot's alone
//!     cm/  connections between programs, over QP1      gather.rs  `urxe res`, `urxe stat`
//!      │                                               kept_histories.rs  of slots that have ended
//!      │                                               snapshot.rs  the same for other threads
//!      │                                               captures.rs  `urxe capture`, of all slots
//!      └─► device.rs ◄─ addresses and links ─► addresses.rs ─► sysfs/  files, for rdma-core
//!              └─► sockets.rs  the sockets of an address, for all slots
//! ```
//!
//! It waits for nobody: not for a slot, and not for a program, of which it touches neither memory
//! nor descriptors. It accepts a program's socket, asks the kernel whose it is, and passes it on;
//! even to close it is another thread's, since what a program has sent along may make
//! that take its time.

mod account;
pub(crate) mod addresses;
mod admission;
mod captures;
pub(crate) mod cm;
pub(crate) mod device;
mod event_loop;
mod gather;
mod kept_histories;
pub(crate) mod sessions;
mod slot_entry;
mod slots;
pub(crate) mod snapshot;
pub(crate) mod sockets;
mod sysfs;
mod worker;

pub(crate) use event_loop::{
    Beginning, Changeable, Changer, ControlToPass, EventLoop, SavedBroker, Upgrader,
};
pub(crate) use slots::DevicePlan;

use cm::Cm;
use device::RdmaDevice;
use std::time::Instant;
use urxe_slot::DaemonCounters;

/// What requests are about: the daemon as the broker has it.
pub(crate) struct BrokerCtx {
    pub(crate) devices: Vec<RdmaDevice>,
    /// The connection manager.
    pub(crate) cm: Cm,
    /// When this turn of the event loop began.
    pub(crate) now: Instant,
    /// The daemon's own counters, as far as they are not the slots'.
    pub(crate) counters: DaemonCounters,
}
