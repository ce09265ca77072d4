//! What proves the rules of `rules/`, apart from the tests that stand with the code.
//!
//! | module | |
//! | --- | --- |
//! | [`simulation`] | several engines on a simulated network, in virtual time |
//! | [`load`] | many engines under load on one network: how much arrives, when, at what cost |
//! | [`scale`] | scenarios of load, with the bounds that must hold |
//! | [`rng`] | where the randomness of a run comes from |

#![forbid(unsafe_code)]

pub mod load;
pub mod rng;
pub mod scale;
pub mod simulation;
