//! A world to test the engine in: several engines on a simulated network, in virtual time, with
//! programs that post random work and know what must come of it.
//!
//! Everything follows from a seed. Nothing here looks into the engine: what is checked is what a
//! program or a peer could see.
//!
//! | module | |
//! | --- | --- |
//! | [`world`] | engines, hosts and the network; time, one event after the other |
//! | [`host`], [`memory`], [`queues`] | where the programs live, on plain vectors |
//! | [`arena`], [`plan`] | random work requests, and what they must do to memory |
//! | [`rc_workload`], [`traffic`] | programs that post plans and check every completion |
//! | [`datagram_workload`] | programs whose messages may be lost: UC, UD, groups, SRQs |
//! | [`scenario`] | draws machines, networks and connections |
//! | [`cm_workload`] | programs that find each other through connection managers, and die |
//! | [`hostile`] | packets that nobody should send |
//! | [`seeds`] | which runs are made, and how one of them is made again |
//! | [`trace`], [`rng`] | the record of a run, and where its randomness comes from |

#![forbid(unsafe_code)]

pub mod arena;
pub mod cm_workload;
pub mod datagram_workload;
pub mod host;
pub mod hostile;
pub mod memory;
pub mod plan;
pub mod queues;
pub mod rc_workload;
pub mod rng;
pub mod scenario;
pub mod seeds;
pub mod trace;
pub mod traffic;
pub mod world;
