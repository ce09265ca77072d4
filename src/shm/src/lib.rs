//! What `urxed` and a program share: rings, doorbells, memory and control messages.
//!
//! The daemon is the NIC, and this crate is the interface between it and programs. It knows nothing
//! of packets; it knows where bytes lie, in which order they are written, and what may be trusted.
//!
//! - [`ring`]: queues as bytes and as values, their ends, the doorbells.
//! - [`memory`]: memfds, mappings and any other memory of a program.
//! - [`control`]: requests and replies, the socket they travel on, the events that come unasked.
//! - [`client`]: a program's end of all that, and how it waits.
//!
//! Two rules hold for everything that both sides can write (after the example of rust-vmm's
//! `volatile_memory`): no `&` or `&mut` to plain data is ever made into it, only to atomics; and
//! what matters is copied out first, then checked, then used.

#![cfg_attr(loom, allow(dead_code))]

pub mod ring;

// The rest lives in memory that loom cannot watch; under `--cfg loom` only the protocols of the
// rings' indices and of the doorbells are built, for `ring::loom_tests`.
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
mod descriptor_table;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod signals;

#[cfg(not(loom))]
pub use control::socket_path::{
    NoDaemon, SYSTEM_SOCKET, connect_to_daemon, daemon_sockets,
    make_directory as make_socket_directory, socket_path, sysfs_directory,
};
