//! RoCEv2 between bytes and meaning.
//!
//! One file per header, each with its diagram; [`Opcode`] knows which headers a packet has,
//! [`Packet`] reads and [`Headers`] writes them, [`icrc`] computes and checks the invariant CRC
//! together with the [outer headers](Flow) that it covers, and [`batch`] lays finished datagrams
//! into memory the way that a segmenting socket sends them.
//!
//! What this crate does not do: no I/O, no clock, no randomness, no state of any connection.
//!
//! # Panics
//!
//! Whatever comes from outside never panics: every `parse`, [`icrc::Checker::check`] and every
//! `from_…` take any bytes. What our own code hands in is held to the stated contract: `emit` and
//! [`icrc::stamp`] panic on a buffer that is too short, and [`Headers::emit`] panics on a missing
//! header.
//!
//! # Names
//!
//! Those of the InfiniBand Architecture Specification (its volume 1, with annex A17 for RoCEv2)
//! and of the verbs: BTH, RETH, AETH, PSN, MSN, QPN, rkey, P_Key, Q_Key.

#![forbid(unsafe_code)]

mod aeth;
mod atomic;
pub mod batch;
mod bth;
mod deth;
mod feth;
pub mod icrc;
mod ieth;
mod immdt;
mod keys;
mod msn;
mod mtu;
mod opcode;
mod outer;
mod packet;
mod psn;
mod qpn;
mod reth;
#[cfg(test)]
mod testing;
mod u24;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use keys::{Lkey, Pkey, Qkey, Rkey};
pub use msn::Msn;
pub use mtu::PathMtu;
pub use opcode::{Opcode, Operation, Position, Transport};
pub use outer::{DONT_FRAGMENT, Flow, Ident, MAX_UDP_PAYLOAD, Outer, ROCE_PORT};
pub use packet::{Headers, Packet, ParseError};
pub use psn::Psn;
pub use qpn::Qpn;
pub use reth::Reth;
