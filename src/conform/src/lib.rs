//! Black-box conformance checks for any RoCEv2 endpoint.
//!
//! A check is a short script: the state of a connection, packets out, packets expected. It knows
//! nothing of the device but what the wire shows, or what an [agent] on the device tells.
//!
//! ```text
//!   check  -- packets, expectations -->  Script  -- datagrams -->  Link (a port, a simulation)
//!                                          |
//!                                          +-- "a QP, please" -->  Device (perftest, agent, ...)
//! ```
//!
//! | module | |
//! | --- | --- |
//! | [`checks`] | the list |
//! | [`check`] | what a check is, and how it ends |
//! | [`rules`] | the rules that checks ask about |
//! | [`script`] | what a check is written with |
//! | [`packet`], [`expect`] | what is sent, what is waited for |
//! | [`arrived`] | what came |
//! | [`device`] | the ways to a device under test, and what a check wants of it |
//! | [`agent`] | the program on the device that does what it is told |
//! | [`link`] | how packets and time reach a check |
//! | [`pace`] | how long the device takes for an answer |
//! | [`run`] | plays checks, as often as it takes to be sure |
//! | [`verdict`] | what is said of a device |
//! | [`known`] | which results are known of a device and accepted |
//! | [`report`] | what is written of a run |

pub mod agent;
pub mod arrived;
pub mod check;
pub mod checks;
pub mod device;
pub mod expect;
pub mod known;
pub mod link;
pub mod pace;
pub mod packet;
pub mod report;
pub mod rules;
pub mod run;
pub mod script;
#[cfg(test)]
mod testing;
pub mod verdict;

pub use arrived::Arrived;
pub use check::{Check, Outcome, Risk, Stop};
pub use script::Script;
