//! How the engine fares on networks like real ones: losses, long paths, many QPs, shared lines.
//!
//! Each scenario gives rows of figures, some of which have a bound that must hold. `cargo xtask
//! scale` shows them, and the tests of `tests/scale.rs` hold the engine to the bounds.

mod beside;
mod incast;
mod long_paths;
mod loss;
mod many_qps;
mod neighbours;
mod setting;
mod table;

pub use table::{Bound, Figure, Row, table};

/// How much of a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As much as shows whether the bounds hold.
    Short,
    /// More cases, for longer.
    Long,
}

impl Extent {
    fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Extent::Short => short,
            Extent::Long => long,
        }
    }
}

/// Takes a row as soon as it is there.
pub type Sink<'a> = &'a mut dyn FnMut(Row);

/// Something to try.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    run: fn(Extent, Sink<'_>),
}

impl Scenario {
    /// Runs it; each row is given to `sink` as it is there.
    pub fn run(&self, extent: Extent, sink: Sink<'_>) {
        (self.run)(extent, sink);
    }
}

/// All of them.
pub const SCENARIOS: [Scenario; 9] = [
    Scenario {
        name: "loss",
        about: "One QP, 16 messages under way, losses each way; 25 Gbit/s, 10 us each way, 200 KB \
                before the receiver, path MTU 1024.",
        run: loss::goodput,
    },
    Scenario {
        name: "latency",
        about: "Small messages, one at a time, 1 % lost each way; the same network.",
        run: loss::latency,
    },
    Scenario {
        name: "long-paths",
        about: "One QP, 256 MiB under way, 10 Gbit/s, path MTU 4096; the second half of the \
                time is measured.",
        run: long_paths::run,
    },
    Scenario {
        name: "many-qps",
        about: "QPs of two machines that start together; 25 Gbit/s, 10 us each way, 200 KB.",
        run: many_qps::run,
    },
    Scenario {
        name: "incast",
        about: "Many machines, one line of 25 Gbit/s, 200 KB before it; 4 messages of 64 KiB under \
                way on each QP, 100 ms.",
        run: incast::run,
    },
    Scenario {
        name: "latecomers",
        about: "4 machines and one line, each begins 10 ms after the one before.",
        run: incast::latecomers,
    },
    Scenario {
        name: "stalls",
        about: "8 machines and one line, of which one does nothing for 1 ms now and then.",
        run: incast::stalls,
    },
    Scenario {
        name: "beside",
        about: "One of ours beside one other flow at a bottleneck of 25 Gbit/s, 10 us each way: \
                marked by RED (5 KB, 200 KB, 1 %), or 200 KB unmarked.",
        run: beside::run,
    },
    Scenario {
        name: "neighbours",
        about: "Small messages, one at a time, beside 128 of 64 KiB on another QP; 25 Gbit/s, 10 us \
                each way, 4 MiB before the receiver.",
        run: neighbours::run,
    },
];
