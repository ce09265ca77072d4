//! What a capture holds, in order: packets that were understood, and why the others were not.

use crate::finding::Tally;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use urxe_port::capture::{self, Content, Frame, ReadError};
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Headers, Outer, Packet, Request};

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
        self.headers.body.is_request()
    }

    /// The request of a connection that it is.
    pub(crate) fn request(&self) -> Option<Request> {
        self.headers.body.request()
    }
}

/// Why a file is not a capture that can be replayed.
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
    /// Frames of other protocols.
    pub(crate) other_frames: u64,
    /// Frames that cannot be used, by reason.
    pub(crate) unused: Tally<String>,
    clock: Clock,
    checker: Checker,
}

/// Makes times that never run backwards of those of a capture, which may.
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
                trace.record_unused(frame, format!("the file {error}"));
                Ok(trace)
            }
        }
    }

    /// Adds a frame.
    pub fn push(&mut self, frame: &Frame<'_>) {
        let at = self.clock.at(frame.time);
        let (outer, bytes) = match frame.content {
            Content::Roce { outer, bytes } => (outer, bytes),
            Content::Unusable(reason) => {
                return self.record_unused(frame.number, reason.to_string());
            }
            Content::Other => return self.other_frames += 1,
        };
        match Packet::parse(bytes) {
            Err(error) => self.record_unused(frame.number, format!("not understood: {error}")),
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

    /// Counts a frame that cannot be used.
    pub(crate) fn record_unused(&mut self, frame: u64, reason: String) {
        self.unused.add(reason, frame, 1);
    }
}
