//! The connection manager: how programs find each other and agree on a connection, as rdma_cm does
//! it (IBTA chapter 12 and annex A11).
//!
//! Like the engine it does no I/O: management datagrams of QP1 come in and go out as
//! bytes, time and randomness are arguments. [`Manager`] says how it is driven. It touches no QP:
//! what a QP is to be set to, it tells ([`Manager::qp_attr`]), and the caller does it.
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
//! # What may get lost
//!
//! REQ, REP, DREQ and SIDR REQ are repeated until they are answered: first after 134 ms, then after
//! twice as long each time up to the response time of 4.3 s, 15 times in all. That is more patient
//! with loss, and gives up sooner (after 51 s) than the kernel, which waits 6 s each time. The
//! answers are given again whenever the question comes again. So:
//!
//! | what nobody answers | ends after | as |
//! | --- | --- | --- |
//! | REQ, SIDR REQ | 51 s | [`Event::Unreachable`] |
//! | REP | 51 s | [`Event::Unreachable`]; then as a rejection |
//! | DREQ | 51 s | [`Event::Disconnected`], then TIME-WAIT |
//! | TIME-WAIT | the ACK timeout of the connection: 0.5 s, at most 69 s | [`Event::TimewaitExit`] |
//! | a rejection, a SIDR REP | 51 s | nothing: it is kept, to give it again |
//!
//! A peer that says with MRA that its program needs time is given 69 s more, up to 15 times, so a
//! REQ ends after 20 minutes at the very latest; meanwhile it is repeated every 4.3 s, lest the
//! program's word be lost and nobody notice. A request lasts as long as the program takes to
//! answer it, and an established connection as long as its programs want: nothing asks whether the
//! peer still lives, which is for the QP's own retries to find out.
//!
//! # What is trusted
//!
//! Nothing. A message counts only if it comes from the address that the connection is with and
//! names both its numbers, which are random; what does not count is dropped under a name
//! ([`CmCounter`]). Requests of strangers are bounded in number, per listener and in all.

#![forbid(unsafe_code)]

mod answers;
mod commands;
mod connection;
mod counters;
mod error;
mod event;
pub mod limits;
mod listener;
mod manager;
mod parameters;
mod receive;
mod schedule;

pub use connection::State;
pub use counters::{CmCounter, CmCounters};
pub use error::{CommandError, ConnectError, ListenError};
pub use event::{ConnectRequest, ConnectResponse, Ending, Event, SidrReply, SidrRequest};
pub use listener::{Listen, ListenOn, ListenerId, Service};
pub use manager::{Config, ConnId, Manager, Outgoing};
pub use parameters::{Accept, Connect, Path, Qp, Resolve, SidrAnswer};
pub use schedule::Timing;
