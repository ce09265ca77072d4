//! What `urxed` and a program share: rings, doorbells, memory and control messages.
//!
//! The daemon is the NIC, and this crate is the interface between it and programs. It knows nothing
//! of packets; it knows where bytes lie, in which order they are written, and what may be trusted.
//!
//! - [`layout`]: the rings' bytes, which are those of the kernel's `rdma_rxe` user ABI, so that
//!   the stock `librxe` can post into them too. [`geometry`]: how large a ring is.
//! - [`entry`]: ring entries as plain values; decoding never trusts what it reads.
//! - [`cursor`]: the protocol of the two indices. [`ring`]: the six typed ends built on it.
//! - [`doorbell`]: how a program says "look at this QP", and how a sleeping daemon is woken.
//! - [`region`]: memfds and mappings. [`arena`]: room for rings inside a session's memfd.
//!   [`session_memory`]: that memfd in one's own address space.
//!   [`process_memory`]: any other memory of a program. [`remap`]: how such memory becomes shared.
//!   [`store_order`]: in which order a program sees what is written to its memory.
//! - [`control`]: requests and replies. [`channel`]: the socket they travel on. [`event`]: what
//!   the daemon says unasked, through pipes.
//! - [`client`]: a program's end of all that. [`process`]: noticing that it has forked.
//! - [`yield_policy`]: how both ends take turns where cores are scarce. [`poll_backoff`]: how a
//!   program that polls does. [`completion_notifier`]: how it sleeps until there is something to
//!   find. [`lookout`]: when it looks whether there is a daemon.
//!
//! Two laws hold for everything that both sides can write (after the example of rust-vmm's
//! `volatile_memory`): no `&` or `&mut` to plain data is ever made into it, only to atomics; and
//! what matters is copied out first, then checked, then used.

#![cfg_attr(loom, allow(dead_code))]

#[cfg(all(test, loom))]
mod loom_tests;
mod sync;

pub mod cursor;
pub mod doorbell;

// The rest lives in memory that loom cannot watch; under `--cfg loom` only the two protocols
// above are built, for `loom_tests`.
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod completion_notifier;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod entry;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
pub mod geometry;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod lookout;
#[cfg(not(loom))]
pub mod poll_backoff;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod process_memory;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod remap;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod session_memory;
#[cfg(not(loom))]
mod socket_path;
#[cfg(not(loom))]
pub mod store_order;
#[cfg(not(loom))]
pub mod yield_policy;

#[cfg(not(loom))]
pub use socket_path::{
    NoDaemon, SYSTEM_SOCKET, connect_to_daemon, daemon_sockets,
    make_directory as make_socket_directory, socket_path, sysfs_directory,
};
