//! One direction of a path: how much is in flight, who waits, and whose turn it is.

use super::congestion::{Congestion, Delivered};
use super::info::{CutCause, Held};
use crate::limits::LANE_TURN_BYTES;
use crate::tuning::CongestionControl;
use std::collections::VecDeque;
use std::time::Instant;
use urxe_types::Qpn;

/// One direction of a path.
///
/// Bytes are those of whole packets. What a QP was [released](Self::release) for counts as in
/// flight until it was sent or given back.
#[derive(Debug)]
pub(crate) struct Lane {
    in_flight: u64,
    granted: u64,
    /// QPs that are held, in the order of their turns. One that has gone meanwhile, or has nothing
    /// to send any more, gives its turn back.
    waiting: VecDeque<Qpn>,
    /// When the pace allows the next packet.
    next_at: Option<Instant>,
    pub(crate) congestion: Congestion,
    /// What may be in flight until the first bytes have arrived.
    first_window: Option<u64>,
    /// How often a QP had to wait, and for what.
    pub(super) held_by_window: u64,
    pub(super) held_by_pace: u64,
}

impl Lane {
    /// One of a path of which nothing is known.
    pub(super) fn new(control: CongestionControl, first_window: Option<u64>) -> Lane {
        Lane {
            in_flight: 0,
            granted: 0,
            waiting: VecDeque::new(),
            next_at: None,
            congestion: Congestion::new(control),
            first_window,
            held_by_window: 0,
            held_by_pace: 0,
        }
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        let window = self.congestion.window();
        // CONG-027
        self.first_window.map_or(window, |first| first.min(window))
    }

    /// Bytes in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// QPs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a QP waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Why the QPs that wait do so.
    pub(crate) fn held(&self) -> Held {
        match (self.is_waited_for(), self.has_room(1)) {
            (false, _) => Held::Nothing,
            (true, true) => Held::Pace,
            (true, false) => Held::Window,
        }
    }

    /// Whether a QP may send so much at once that was not released for it: nobody waits, and there
    /// is room. The first thing in flight may always go.
    pub(crate) fn admits(&self, now: Instant, bytes: u64) -> bool {
        self.waiting.is_empty() && self.admits_repeat(now, bytes)
    }

    /// The same for what is sent again: it goes before what waits.
    pub(crate) fn admits_repeat(&self, now: Instant, bytes: u64) -> bool {
        self.has_room(bytes) && self.next_at.is_none_or(|at| at <= now)
    }

    fn has_room(&self, bytes: u64) -> bool {
        let taken = self.in_flight + self.granted;
        taken == 0 || taken + bytes <= self.window()
    }

    /// Bytes that there is room for beside what is in flight.
    pub(crate) fn room(&self) -> u64 {
        self.window().saturating_sub(self.in_flight + self.granted)
    }

    /// Whether each packet may be one too many at this moment, however much room there is.
    pub(crate) fn is_paced(&self) -> bool {
        self.next_at.is_some() || self.congestion.rate().is_some()
    }

    /// A QP waits for its turn; it stands here once.
    pub(crate) fn wait(&mut self, qpn: Qpn) {
        self.waiting.push_back(qpn);
        // CONG-014
        match self.held() {
            Held::Nothing => {}
            Held::Window => self.held_by_window += 1,
            Held::Pace => self.held_by_pace += 1,
        }
    }

    /// The QP whose turn it is, and how much it may send; `None` if there is no room now.
    pub(super) fn release(&mut self, now: Instant) -> Option<(Qpn, u64)> {
        if !self.admits_repeat(now, 1) {
            return None;
        }
        let qpn = self.waiting.pop_front()?;
        let bytes = self.room().clamp(1, self.congestion.train(LANE_TURN_BYTES));
        self.granted += bytes;
        Some((qpn, bytes))
    }

    /// When a QP that waits for the pace alone can go on.
    pub(super) fn released_at(&self) -> Option<Instant> {
        self.next_at.filter(|_| !self.waiting.is_empty() && self.has_room(1))
    }

    /// Bytes were sent, or asked for, in packets so long; `granted` of them out of what a QP was
    /// released for.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, packet: u64, granted: u64) {
        self.granted -= granted;
        self.in_flight += bytes;
        self.next_at = self.congestion.pace(now, self.next_at, bytes, packet);
    }

    /// A QP gives back what it was released for.
    pub(crate) fn give_back(&mut self, granted: u64) {
        self.granted -= granted;
    }

    /// Bytes in flight have arrived. Returns why the window was cut, if it was.
    pub(crate) fn on_delivered(&mut self, now: Instant, delivered: Delivered) -> Option<CutCause> {
        self.first_window = None;
        let cut = self.congestion.on_delivered(now, self.in_flight, delivered);
        self.in_flight -= delivered.bytes;
        cut
    }

    /// Bytes in flight were lost on the way. Returns why the window was cut, if it was.
    pub(crate) fn on_lost(&mut self, now: Instant, bytes: u64) -> Option<CutCause> {
        let cut = self.congestion.on_lost(now, self.in_flight, bytes);
        self.in_flight -= bytes;
        cut
    }

    /// Bytes are in flight no more, and nothing is known of why: the QP has ended, or sends them
    /// again because the peer takes nothing behind what it has missed.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.in_flight -= bytes;
    }
}
