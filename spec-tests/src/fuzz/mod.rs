//! What a fuzzer does to the code that reads bytes from outside: each module makes of any bytes a
//! course of events, and panics where something is wrong.
//!
//! | module | whose bytes | what they meet |
//! | --- | --- | --- |
//! | [`packets`] | a stranger's who sees the wire | two engines with QPs of all transports |
//! | [`rings`] | a program's | a data path whose rings change at any time |
//! | [`requests`] | a program's | a daemon: requests in any order, with any descriptors |
//! | [`messages`] | a program's | the decoders of control messages |
//! | [`mads`] | a stranger's | the connection manager |
//! | [`captures`] | a file's | the reader of captures |
//!
//! `spec-tests/fuzz` has a target of libFuzzer for each, and the inputs that it has found;
//! `spec-tests/tests/fuzz.rs` plays those in every test run. `cargo xtask fuzz` looks for more, and
//! [`seeded`] makes inputs where there is no libFuzzer.

pub mod captures;
mod input;
pub mod mads;
pub mod messages;
pub mod packets;
mod recent;
pub mod requests;
pub mod rings;
pub mod seeded;

use input::Input;
use recent::Recent;

/// What is done with an input.
pub type Target = fn(&[u8]);

/// Every target, by its name.
pub const TARGETS: [(&str, Target); 6] = [
    ("packets", packets::run),
    ("rings", rings::run),
    ("requests", requests::run),
    ("messages", messages::run),
    ("mads", mads::run),
    ("captures", captures::run),
];
