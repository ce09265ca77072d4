//! A judge of captures: the responders in a capture, compared with our engine in their place.
//!
//! The requests of the capture are handed to an engine, which is set up as the responder must have
//! been; what it answers is compared with what the capture holds. `urxe replay` prints the result.
//!
//! | module | |
//! | --- | --- |
//! | [`trace`] | the packets of the file |
//! | [`flows`] | which of them belong to one connection |
//! | [`survey`], [`memory`] | what the responder must have been like: its QP, its memory |
//! | [`machine`], [`program`] | our engine in its place, and the program behind it |
//! | [`judge`], [`lane`] | packet after packet, response beside response |
//! | [`finding`], [`report`] | what differs, what is free to differ, and how it is told |

mod finding;
mod flows;
mod judge;
mod lane;
mod machine;
mod memory;
mod program;
mod report;
mod survey;
mod trace;

pub use report::Report;
pub use trace::{Trace, Unreadable};

use flows::Flows;
use judge::Replay;

/// Replays a capture. The report calls it by `name`.
pub fn judge(name: String, mut trace: Trace) -> Report {
    let flows = Flows::of(&mut trace);
    let replay = Replay::run(&trace, &flows);
    Report::new(name, &trace, &flows, replay)
}

#[cfg(test)]
mod tests;
