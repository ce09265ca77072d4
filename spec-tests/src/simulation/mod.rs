//! A world to test the engine in: several engines on a simulated network, in virtual time, with
//! programs that post random work and know the results to expect.
//!
//! Everything follows from a seed. Nothing here looks into the engine: what is checked is what a
//! program or a peer could see.
//!
//! | module | |
//! | --- | --- |
//! | [`world`] | engines, hosts and the network; time, one event after the other |
//! | [`host`], [`memory`], [`queues`] | the host of the programs, on plain vectors |
//! | [`arena`], [`plan`] | random work requests, and what they must do to memory |
//! | [`workloads`] | programs that post work and check every completion |
//! | [`scenario`] | draws machines, networks and connections |
//! | [`wide`] | a wider choice of them |
//! | [`hostile`] | malformed and forged packets |
//! | [`seeds`] | which runs are made, and how one of them is repeated |
//! | [`trace`] | the record of a run |

pub mod arena;
pub mod host;
pub mod hostile;
pub mod memory;
pub mod plan;
pub mod queues;
pub mod scenario;
pub mod seeds;
pub mod trace;
pub mod wide;
pub mod workloads;
pub mod world;
