//! The paths of a device, as [`Request::Paths`](super::Request::Paths) asks for them.

use super::Cursor;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// The paths of a device, or part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathPage {
    /// By rising number within each part of the device.
    pub paths: Vec<PathState>,
    /// Where the next page begins, if there is more.
    pub next: Option<Cursor>,
}

/// The way to a peer, which all QPs share that go there with one traffic class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathState {
    /// Its number on this device. That of a path which was long unused goes to another.
    pub number: u32,
    /// Our own address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// Without its ECN bits.
    pub traffic_class: u8,
    /// QPs that go this way.
    pub qps: u32,
    /// How long answers take; `None`: not measured yet.
    pub round_trip: Option<RoundTripState>,
    /// Requests with their data, towards the peer.
    pub outward: LaneState,
    /// Answers to READs and atomics, from the peer.
    pub inward: LaneState,
    /// Whether the peer keeps requests that come before their turn; `None`: not known.
    pub keeps_early: Option<bool>,
    /// Whether it has agreed to acknowledge selectively, and to tell of congestion marks.
    pub acknowledges_selectively: bool,
}

/// How long answers take on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTripState {
    /// The least of the last seconds.
    pub least: Duration,
    /// The smoothed one.
    pub smoothed: Duration,
    /// Its mean deviation.
    pub variation: Duration,
}

/// One direction of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneState {
    /// Bytes in flight, headers included.
    pub in_flight: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// How fast it may go, in bytes per second; `None`: as fast as the window allows.
    pub rate: Option<u64>,
    /// QPs that wait for their turn.
    pub waiting: u32,
    /// What they wait for.
    pub held: PathHold,
    /// The estimate of congestion, in thousandths: 0 is none, 1000 is all that was sent.
    pub congestion: u16,
    /// Why less was sent from some time on, the last time that this was so.
    pub last_cut: Option<PathCut>,
}

/// What the QPs of a path that wait for their turn wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathHold {
    /// None waits.
    Nothing,
    /// For something in flight to arrive.
    Window,
    /// For some time to pass.
    Pace,
}

/// Why less is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathCut {
    /// What arrived was marked by a switch, or met a socket buffer that filled.
    Mark,
    /// The peer sent a congestion notification.
    Notification,
    /// Answers took too long.
    Delay,
    /// Packets were lost.
    Loss,
}
