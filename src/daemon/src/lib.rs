//! `urxed`: the RoCEv2 NIC in user space.
//!
//! This is where the other crates come together. Programs connect to a Unix socket and share
//! memory with the daemon; a [data path](urxe_nic::Nic) for each device takes what they post
//! through the [engine](urxe_engine) and a [port](urxe_port) to the wire.
//!
//! ```text
//!             programs
//!        connect │ ╲ requests, rings, doorbells, memory
//!                ▼  ╲
//!  broker/ ── link ──► slot  slot ...        each has all devices: engine, port, wire
//!   │  connections, addresses, links,        each serves some of the programs, in one thread
//!   │  what is shown of all
//!   └── sockets of each address, for all slots: the QPN says whose a packet is
//! ```
//!
//! A [slot](urxe_slot) is the whole data path once, and slots share nothing but the
//! [inboxes](urxe_port::udp::Inboxes) in which those of the daemon's own user leave packets for
//! each other. The broker does what is for all of them, and is not on the way of data.
//!
//! # No trust between programs
//!
//! A program can neither read or write memory of another nor end it. Its handles mean nothing in
//! another session, its rings are copied before they are looked at, what it can make the daemon do
//! in one turn is bounded ([`urxe_slot::limits`]), what it can use up has a quota, and when it
//! dies, exactly what it owned goes.
//!
//! # Inside another program
//!
//! [`Daemon::start`] runs a NIC in threads of the caller, for tests and for programs that bring
//! their own; [`testing`] has one for a `#[test]` in one line.

#![forbid(unsafe_code)]

mod broker;
mod cli;
mod config;
mod config_file;
mod congestion;
mod counters;
mod daemon;
pub mod limits;
mod log;
mod metrics;
mod opening;
mod reload;
mod service;
mod signals;
mod slot_plan;
mod starting;
pub mod testing;
mod upgrade;
mod worker;

pub use cli::{Arguments, run};
pub use config::{Config, ConfigError, Loopback, PortBackend, Settings, SocketMode, Wire};
pub use congestion::{Congestion, CongestionError};
pub use counters::counter_meanings;
pub use daemon::{Daemon, DeviceSummary, Handle, StartError};
pub use log::{LogFilter, LogFormat};
pub use metrics::MetricsAddress;
pub use worker::run_if_worker;

/// The version, with the commit that this was built from and its day, where that was known.
pub const VERSION: &str = env!("URXE_VERSION");
