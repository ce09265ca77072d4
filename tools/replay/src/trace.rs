//! What a capture holds, in order: packets that were understood, and why the others were not.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use urxe_port::capture::{self, Content, Frame, ReadError};
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Headers, Outer, Packet};

/// A packet of RoCEv2.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    /// The number of its frame, as other programs count.
    pub(crate) frame: u64,
    /// Since the first packet. Never less than that of the packet before.
    pub(crate) at: Duration,
    pub(crate) outer: Outer,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// Whether its ICRC is right.
    pub(crate) intact: bool,
}

impl Captured {
    /// Whether it is a request, for the responder.
    pub(crate) fn is_request(&self) -> bool {
        self.headers.bth.opcode.is_request()
    }
}

/// Frames that cannot be used, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) count: u64,
    pub(crate) first_frame: u64,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}", path = path.display())]
pub struct Unreadable {
    path: PathBuf,
    reason: String,
}

/// A capture.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub(crate) packets: Vec<Captured>,
    /// Frames of something else.
    pub(crate) others: u64,
    /// Frames that cannot be used, by reason.
    pub(crate) unused: BTreeMap<String, Unused>,
    clock: Clock,
    checker: Checker,
}

/// Makes times of a capture, which may run backwards, such that never do.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    first: Option<Duration>,
    now: Duration,
}

impl Clock {
    fn at(&mut self, time: Duration) -> Duration {
        let first = *self.first.get_or_insert(time);
        self.now = self.now.max(time.saturating_sub(first));
        self.now
    }
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no capture. One that ends early is used as far as it goes.
    pub fn read(path: &Path) -> Result<Trace, Unreadable> {
        let unreadable = |reason: &dyn std::fmt::Display| Unreadable {
            path: path.to_owned(),
            reason: reason.to_string(),
        };
        let file = File::open(path).map_err(|error| unreadable(&error))?;
        let mut trace = Trace::default();
        match capture::read(file, |frame| trace.push(&frame)) {
            Ok(()) => Ok(trace),
            Err(error @ ReadError::NotACapture) => Err(unreadable(&error)),
            Err(error @ ReadError::Damaged(frame)) => {
                trace.cannot_use(frame, format!("the file {error}"));
                Ok(trace)
            }
        }
    }

    /// Adds a frame.
    pub fn push(&mut self, frame: &Frame<'_>) {
        let at = self.clock.at(frame.time);
        let (outer, bytes) = match frame.content {
            Content::Roce { outer, bytes } => (outer, bytes),
            Content::Unusable(why) => return self.cannot_use(frame.number, why.to_string()),
            Content::Other => return self.others += 1,
        };
        match Packet::parse(bytes) {
            Err(why) => self.cannot_use(frame.number, format!("not understood: {why}")),
            Ok(Packet { headers, payload }) => self.packets.push(Captured {
                frame: frame.number,
                at,
                outer,
                headers,
                payload: payload.to_vec(),
                intact: self.checker.check(&outer, bytes) != Verdict::Bad,
            }),
        }
    }

    /// Says that a frame is of no use.
    pub(crate) fn cannot_use(&mut self, frame: u64, why: String) {
        let unused = self.unused.entry(why).or_insert(Unused { count: 0, first_frame: frame });
        unused.count += 1;
    }
}
