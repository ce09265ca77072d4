//! What proves the rules of `src/conform/rules`, apart from the tests that stand with the code.
//!
//! | module | |
//! | --- | --- |
//! | [`attack`] | attacks on a live daemon, with a victim beside each |
//! | [`simulation`] | several engines on a simulated network, in virtual time |
//! | [`load`] | many engines under load on one network: how much arrives, when, at what cost |
//! | [`cross_traffic`] | other senders that share a line with the engines |
//! | [`scale`] | scenarios of load, with the bounds that must hold |
//! | [`conform`] | the checks of `urxe conform`, asked of engines in the simulation |
//! | [`fuzz`] | what a fuzzer does to the code that reads bytes from outside |
//! | [`rng`] | where the randomness of a run comes from |

#![forbid(unsafe_code)]

pub mod attack;
pub mod conform;
pub mod cross_traffic;
pub mod fuzz;
pub mod load;
pub mod rng;
pub mod scale;
pub mod simulation;
