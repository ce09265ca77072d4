//! What proves the rules of `rules/`, apart from the tests that stand with the code.
//!
//! | module | |
//! | --- | --- |
//! | [`simulation`] | several engines on a simulated network, in virtual time |
//! | [`rng`] | where the randomness of a run comes from |

#![forbid(unsafe_code)]

pub mod rng;
pub mod simulation;
