//! `urxed`: the RoCEv2 NIC in user space.
//!
//! This is where the other rooms meet. Programs connect to a Unix socket and share memory with the
//! daemon; a [data path](urxe_nic::Nic) for each device takes what they post through the
//! [engine](urxe_engine) and a [port](urxe_port) to the wire. One thread does all of it, in turns.
//!
//! ```text
//!  programs ── socket ──► session.rs ─► resources/   requests, one kind of object each
//!     │                   objects.rs       ▼         tables of what each program has
//!     └── rings, doorbells, memory ──► urxe_nic ─► engine ─► port ─► wire
//!                                          ▲
//!                   event_loop.rs ─► device.rs ◄─ cm/   connections between programs, over the
//!                                       ▲                engine's messages on QP1
//!    addresses and links ─► addresses.rs ─► sysfs/       the devices as files, for rdma-core
//! ```
//!
//! # No trust between programs
//!
//! A program can harm only itself. Its handles mean nothing in another session, its rings are
//! copied before they are looked at, what it can make the daemon do in one turn is bounded
//! ([`limits`]), what it can use up has a quota, and when it dies, exactly what it owned goes.
//!
//! # Inside another program
//!
//! [`Daemon::start`] runs a NIC in a thread of the caller, for tests and for programs that bring
//! their own.

#![forbid(unsafe_code)]

mod addresses;
mod alarm;
mod cli;
mod cm;
mod config;
mod congestion;
mod counters;
mod daemon;
mod device;
mod event_loop;
pub mod limits;
mod objects;
mod resources;
mod session;
mod sysfs;

pub use cli::{Arguments, run};
pub use config::{Config, ConfigError, PortBackend, Settings, SocketMode, Wire};
pub use congestion::{Congestion, CongestionError};
pub use daemon::{Daemon, DeviceSummary, Handle, StartError};
