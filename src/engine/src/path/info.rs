//! What can be shown of paths.

use super::{Direction, Lane, Path, Paths, RoundTrip};
use crate::counters::Counter;
use std::net::IpAddr;
use std::time::Duration;

/// The way to a peer, shared by all QPs that go there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathInfo {
    /// Our own address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// The traffic class, without its ECN bits.
    pub traffic_class: u8,
    /// QPs that go this way.
    pub users: usize,
    /// How long answers take, once that was measured.
    pub round_trip: Option<RoundTripInfo>,
    /// Requests with their data, towards the peer.
    pub outward: LaneInfo,
    /// Answers to READs and atomics, from the peer.
    pub inward: LaneInfo,
    /// Whether the peer keeps requests that come before their turn; `None`: not known.
    pub keeps_early: Option<bool>,
    /// The peer acknowledges selectively, and tells of marks: it agreed to.
    pub acknowledges_selectively: bool,
}

/// How long answers take on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTripInfo {
    /// The least of the last seconds.
    pub least: Duration,
    /// The smoothed one.
    pub smoothed: Duration,
    /// Its mean deviation.
    pub variation: Duration,
}

/// One direction of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneInfo {
    /// Bytes in flight, headers included.
    pub in_flight: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// How fast it may go, in bytes per second; `None`: as fast as the window allows.
    pub rate: Option<u64>,
    /// QPs that wait for their turn.
    pub waiting: usize,
    /// What they wait for.
    pub held: Held,
    /// Times that a QP had to wait for the window.
    pub held_by_window: u64,
    /// Times that a QP had to wait for the pace.
    pub held_by_pace: u64,
    /// The estimate of congestion, by marks or by notifications: 0 is none, 1 is all of it.
    pub congestion: f32,
    /// Why less was sent from some time on, the last time that this was so.
    pub last_cut: Option<CutCause>,
}

/// What the QPs of a path that wait for their turn wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// None waits.
    Nothing,
    /// The window: for something in flight to arrive.
    Window,
    /// The pace: for some time to pass.
    Pace,
}

/// Why less is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutCause {
    /// What arrived was marked by a switch, or met a socket buffer that filled.
    Mark,
    /// The peer sent a congestion notification.
    Notification,
    /// Answers took too long.
    Delay,
    /// Packets were lost.
    Loss,
}

impl CutCause {
    /// What counts it.
    pub(crate) fn counter(self) -> Counter {
        match self {
            CutCause::Mark => Counter::CutsByMark,
            CutCause::Notification => Counter::CutsByNotification,
            CutCause::Delay => Counter::CutsByDelay,
            CutCause::Loss => Counter::CutsByLoss,
        }
    }
}

impl Paths {
    /// What can be shown of each path.
    pub(crate) fn infos(&self) -> impl Iterator<Item = PathInfo> + '_ {
        self.paths.iter().map(Path::info)
    }
}

impl Path {
    fn info(&self) -> PathInfo {
        PathInfo {
            local: self.key.src,
            peer: self.key.dst,
            traffic_class: self.key.traffic_class,
            users: self.users,
            round_trip: self.round_trip.info(),
            outward: self.lane(Direction::Outward).info(),
            inward: self.lane(Direction::Inward).info(),
            keeps_early: self.peer.keeps_early,
            acknowledges_selectively: self.peer.acknowledges_selectively,
        }
    }
}

impl Lane {
    fn info(&self) -> LaneInfo {
        LaneInfo {
            in_flight: self.in_flight(),
            window: self.window(),
            rate: self.congestion.rate(),
            waiting: self.waiting(),
            held: self.held(),
            held_by_window: self.held_by_window,
            held_by_pace: self.held_by_pace,
            congestion: self.congestion.estimate(),
            last_cut: self.congestion.last_cut(),
        }
    }
}

impl RoundTrip {
    fn info(&self) -> Option<RoundTripInfo> {
        Some(RoundTripInfo {
            least: self.least()?,
            smoothed: self.smoothed()?,
            variation: self.variation()?,
        })
    }
}
