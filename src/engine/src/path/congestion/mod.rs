//! How much may be in flight in one direction of a path, and how fast it may go.

use super::info::CutCause;
use crate::limits::{INITIAL_WINDOW, MAX_WINDOW};
use crate::tuning::CongestionControl;
use std::time::{Duration, Instant};

/// Bytes that have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) bytes: u64,
    /// What told of it also told of congestion on the way.
    pub(crate) is_marked: bool,
    /// How long the last of them took to be answered, if that was measured.
    pub(crate) round_trip: Option<Duration>,
}

/// The congestion control of one direction of a path.
#[derive(Debug)]
pub(crate) struct Congestion {
    window: u64,
    threshold: u64,
    cut_at: Option<Instant>,
}

impl Congestion {
    /// That of a path of which nothing is known.
    pub(super) fn new(_control: CongestionControl) -> Congestion {
        Congestion { window: INITIAL_WINDOW, threshold: MAX_WINDOW, cut_at: None }
    }

    /// How fast it may go, in bytes per second; `None`: as fast as the window allows.
    pub(super) fn rate(&self) -> Option<u64> {
        None
    }

    /// The estimate of congestion, from 0 to 1.
    pub(super) fn estimate(&self) -> f32 {
        0.0
    }

    /// Why less was sent from some time on, the last time that this was so.
    pub(super) fn last_cut(&self) -> Option<CutCause> {
        None
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// When the next packet may follow after so many bytes that are sent now; `None`: at once.
    pub(crate) fn pace(
        &mut self,
        _now: Instant,
        _next_at: Option<Instant>,
        _bytes: u64,
    ) -> Option<Instant> {
        None
    }

    /// Bytes have arrived; `in_flight` counts them still.
    pub(crate) fn on_delivered(&mut self, _now: Instant, in_flight: u64, delivered: Delivered) {
        if in_flight * 2 < self.window {
            return;
        }
        let growth = match self.window < self.threshold {
            true => delivered.bytes,
            false => delivered.bytes * 4096 / self.window,
        };
        self.window = (self.window + growth).min(MAX_WINDOW);
    }

    /// Bytes were lost; `in_flight` counts them still.
    pub(crate) fn on_lost(&mut self, now: Instant, _in_flight: u64, _bytes: u64) {
        let is_recent =
            self.cut_at.is_some_and(|at| now.duration_since(at) < Duration::from_micros(200));
        if !is_recent {
            self.cut_at = Some(now);
            self.window = (self.window * 7 / 10).max(16 << 10);
            self.threshold = self.window;
        }
    }
}
