//! The connection manager: how programs find each other and agree on a connection, as `rdma_cm`
//! does it (IBTA chapter 12 and annex A11).
//!
//! It does no I/O: management datagrams of QP1 come in and go out as bytes, time and randomness are
//! arguments. [`Manager`] says how it is driven. It touches no QP: it tells to which attributes one
//! is to be set ([`Manager::qp_attr`]), and the caller does it.
//!
//! # A connection
//!
//! ```text
//!         active side                                passive side
//!   connect() ─ REQ-SENT ──────── REQ ────────► REQ-RECEIVED ─ ConnectRequest
//!                  │      ◄─── MRA: "later" ──       │ accept()
//!   ConnectResponse◄───────────── REP ────────── REP-SENT
//!            REP-RECEIVED                            │
//!  establish() ─ ESTABLISHED ──── RTU ────────► ESTABLISHED ─ Established
//!
//!      either side ends it:
//! disconnect() ─ DREQ-SENT ────── DREQ ───────► TIME-WAIT ─ Disconnected
//!  Disconnected ─ TIME-WAIT ◄──── DREP ──────────    │
//!  TimewaitExit ─ gone                             gone ─ TimewaitExit
//! ```
//!
//! Datagrams have no connection: one SIDR REQ asks for the QP of a service, one SIDR REP names it.
//!
//! # Loss: retries, duplicates and timers
//!
//! REQ, REP, DREQ and SIDR REQ are sent again until they are answered: first after 134 ms, then
//! after twice as long each time up to the response timeout of 4.3 s, 15 times in all; a REP as
//! often and as long as the peer's REQ allows, up to that. This copes with more loss, and gives up
//! sooner (after 51 s), than the kernel, which waits 6 s each time. A duplicate of a message is
//! answered with the same reply. So:
//!
//! | state | ends after | with |
//! | --- | --- | --- |
//! | REQ-SENT, SIDR-REQ-SENT | 51 s | [`Event::Unreachable`] |
//! | REP-SENT | 51 s, or less by the REQ | [`Event::Unreachable`]; a REJ is sent, then as below |
//! | a REJ or SIDR REP was sent | 51 s | nothing: it is kept for duplicates |
//! | DREQ-SENT | 51 s | [`Event::Disconnected`], then TIME-WAIT |
//! | TIME-WAIT | the ACK timeout of the connection: 0.5 s, at most 69 s | [`Event::TimewaitExit`] |
//!
//! An MRA of the peer gives it 69 s more, up to 15 times, so REQ-SENT ends after 20 minutes at the
//! latest; meanwhile the REQ is sent every 4.3 s, since the peer's reply may get lost. REQ-RECEIVED
//! lasts until the program decides, and ESTABLISHED until one of the programs disconnects: whether
//! the peer still lives is for the QP's own retries to find out.
//!
//! # What is trusted
//!
//! Nothing. A message counts only if it comes from the address of the connection's peer and carries
//! both its communication IDs, which are random; every other one is dropped and counted
//! ([`CmCounter`]). A REQ carries nothing that a stranger could not know, so it ends no connection:
//! where it says that its peer has lost one, the peer is asked, in a way that only one that has
//! lost it answers. Pending requests are bounded in number, per listener and in all.
//! An address can be forged as well: what is sent to one that has not shown that it gets our
//! messages is bounded in rate, for each and for all together, but for one answer to each request
//! that a program has accepted or rejected.
//!
//! # Where things are
//!
//! `commands.rs` is what programs ask for, `receive.rs` and `connection_messages.rs` what peers
//! send, `connection.rs` one connection with its state and timer, `timing.rs` the waits between
//! retries, `saved.rs` a manager as a value, `manager.rs` the tables and queues, `listener.rs` who
//! gets a request, `held.rs` those that wait for a listener.

#![forbid(unsafe_code)]

mod commands;
mod connection;
mod connection_messages;
mod counters;
mod error;
mod event;
mod held;
pub mod limits;
mod listener;
mod manager;
mod parameters;
mod receive;
mod saved;
mod timing;

pub use connection::State;
pub use counters::{CmCounter, CmCounters};
pub use error::{CommandError, ConnectError, ListenError};
pub use event::{ConnectRequest, ConnectResponse, DisconnectCause, Event, SidrReply, SidrRequest};
pub use listener::{Listen, ListenOn, ListenerId, Service};
pub use manager::{Config, ConnId, Manager, Outgoing};
pub use parameters::{Accept, Connect, Path, Qp, Resolve, SidrAnswer};
pub use saved::{RestoreError, Saved};
pub use timing::Timing;
