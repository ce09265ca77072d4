//! A judge of captures: the responders in a capture, compared with our engine in their place.
//!
//! The requests of the capture are handed to an engine, whose state is set up as that of the
//! responder must have been; its responses are compared with the captured ones. No packet is sent.
//! `urxe replay` prints the [`Report`].
//!
//! | module | |
//! | --- | --- |
//! | `trace` | the packets of the capture |
//! | `flow_table` | which of them belong to one connection |
//! | `survey`, `memory` | the state of the responder, inferred: its QP, its memory |
//! | `reference`, `program` | our engine in its place, and the program of it |
//! | `replay`, `comparison` | hands over the requests, compares the responses |
//! | `finding`, `report` | differences, deviations that are allowed, and the report |

mod comparison;
mod finding;
mod flow_table;
mod memory;
mod program;
mod reference;
mod replay;
mod report;
mod survey;
mod trace;

pub use finding::{Difference, Occurrences, Tolerance};
pub use report::{DirectionReport, Report, Tolerated, Unused};
pub use trace::{Trace, Unreadable};

use flow_table::FlowTable;
use replay::Replay;

/// Replays a capture and judges every responder in it. The report calls the capture `name`.
pub fn judge(name: String, mut trace: Trace) -> Report {
    let flows = FlowTable::of(&mut trace);
    let replay = Replay::run(&trace, &flows);
    Report::new(name, &trace, &flows, replay)
}

#[cfg(test)]
mod tests;
