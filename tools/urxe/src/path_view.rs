//! The paths of a device as they are shown by `urxe stat` and `urxe res path`.

use crate::units;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use urxe_shm::control::{LaneState, PathCut, PathHold, PathState};

/// One path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathView {
    pub(crate) path: u32,
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) qps: u32,
    /// In microseconds; `None` until it was measured.
    pub(crate) round_trip_us: Option<f64>,
    pub(crate) least_round_trip_us: Option<f64>,
    pub(crate) round_trip_variation_us: Option<f64>,
    /// What goes to the peer.
    pub(crate) outward: LaneView,
    /// What comes from it: answers to READs and atomics.
    pub(crate) inward: LaneView,
    pub(crate) peer_keeps_early: Option<bool>,
    pub(crate) peer_acknowledges_selectively: bool,
}

/// One direction of a path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LaneView {
    pub(crate) in_flight: u64,
    pub(crate) window: u64,
    /// `None`: as fast as the window allows.
    pub(crate) gbit_s: Option<f64>,
    pub(crate) qps_waiting: u32,
    /// What they wait for: `window`, `pace` or `nothing`.
    pub(crate) held_by: &'static str,
    /// From 0 to 1.
    pub(crate) congestion: f64,
    /// Why less was sent the last time: `mark`, `notification`, `delay` or `loss`.
    pub(crate) last_cut: Option<&'static str>,
}

impl From<&PathState> for PathView {
    fn from(path: &PathState) -> PathView {
        let us = |time: std::time::Duration| time.as_nanos() as f64 * 1e-3;
        PathView {
            path: path.number,
            local: path.local,
            peer: path.peer,
            traffic_class: path.traffic_class,
            qps: path.qps,
            round_trip_us: path.round_trip.map(|round_trip| us(round_trip.smoothed)),
            least_round_trip_us: path.round_trip.map(|round_trip| us(round_trip.least)),
            round_trip_variation_us: path.round_trip.map(|round_trip| us(round_trip.variation)),
            outward: LaneView::from(&path.outward),
            inward: LaneView::from(&path.inward),
            peer_keeps_early: path.keeps_early,
            peer_acknowledges_selectively: path.acknowledges_selectively,
        }
    }
}

impl From<&LaneState> for LaneView {
    fn from(lane: &LaneState) -> LaneView {
        LaneView {
            in_flight: lane.in_flight,
            window: lane.window,
            gbit_s: lane.rate.map(|rate| rate as f64 * 8e-9),
            qps_waiting: lane.waiting,
            held_by: match lane.held {
                PathHold::Nothing => "nothing",
                PathHold::Window => "window",
                PathHold::Pace => "pace",
            },
            congestion: f64::from(lane.congestion) / 1000.0,
            last_cut: lane.last_cut.map(|cut| match cut {
                PathCut::Mark => "mark",
                PathCut::Notification => "notification",
                PathCut::Delay => "delay",
                PathCut::Loss => "loss",
            }),
        }
    }
}

impl PathView {
    /// What the peer was seen to do, in a few words.
    pub(crate) fn peer_does(&self) -> &'static str {
        match (self.peer_acknowledges_selectively, self.peer_keeps_early) {
            (true, _) => "acknowledges selectively",
            (false, Some(true)) => "keeps early requests",
            (false, Some(false)) => "goes back to what was lost",
            (false, None) => "not known yet",
        }
    }
}

impl fmt::Display for PathView {
    /// A line for the path and one for each direction, without the last line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathView { path, local, peer, traffic_class, qps, .. } = self;
        write!(f, "path {path}: {local} to {peer}, traffic class {traffic_class}, {qps} QPs")?;
        match (self.round_trip_us, self.least_round_trip_us) {
            (Some(smoothed), Some(least)) => {
                write!(f, ", round trip {smoothed:.1} us (least {least:.1})")?;
            }
            _ => write!(f, ", round trip not measured yet")?,
        }
        writeln!(f, "; recovery at the peer: {}", self.peer_does())?;
        writeln!(f, "  to the peer:   {}", self.outward)?;
        write!(f, "  from the peer: {}", self.inward)
    }
}

impl fmt::Display for LaneView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = units::count;
        write!(f, "{} of {} bytes in flight", count(self.in_flight), count(self.window))?;
        if let Some(gbit_s) = self.gbit_s {
            write!(f, ", {gbit_s:.3} Gbit/s")?;
        }
        if self.qps_waiting > 0 {
            write!(f, ", {} QPs wait for the {}", self.qps_waiting, self.held_by)?;
        }
        match self.last_cut {
            Some(cut) => write!(f, ", congestion {:.2}, last slowed by {cut}", self.congestion),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;
    use urxe_shm::control::RoundTripState;

    /// A path of which everything is known, held by its pace.
    pub(crate) fn path() -> PathState {
        let outward = LaneState {
            in_flight: 65_536,
            window: 1_048_576,
            rate: Some(1_250_000_000),
            waiting: 3,
            held: PathHold::Pace,
            congestion: 125,
            last_cut: Some(PathCut::Notification),
        };
        PathState {
            number: 2,
            local: [10, 0, 0, 1].into(),
            peer: [10, 0, 0, 2].into(),
            traffic_class: 104,
            qps: 5,
            round_trip: Some(RoundTripState {
                least: Duration::from_nanos(10_100),
                smoothed: Duration::from_nanos(12_340),
                variation: Duration::from_micros(1),
            }),
            outward,
            inward: LaneState {
                in_flight: 0,
                rate: None,
                waiting: 0,
                held: PathHold::Nothing,
                congestion: 0,
                last_cut: None,
                ..outward
            },
            keeps_early: Some(true),
            acknowledges_selectively: false,
        }
    }

    #[test]
    fn a_path_says_what_holds_its_qps_and_what_slowed_it() {
        let expected = "\
path 2: 10.0.0.1 to 10.0.0.2, traffic class 104, 5 QPs, round trip 12.3 us (least 10.1); \
recovery at the peer: keeps early requests
  to the peer:   65,536 of 1,048,576 bytes in flight, 10.000 Gbit/s, 3 QPs wait for the pace, \
congestion 0.12, last slowed by notification
  from the peer: 0 of 1,048,576 bytes in flight";
        assert_eq!(PathView::from(&path()).to_string(), expected);
    }

    #[test]
    fn unknown_facts_of_a_path_are_named_so() {
        let path = PathState { round_trip: None, keeps_early: None, ..path() };
        let text = PathView::from(&path).to_string();
        assert!(text.contains("round trip not measured yet"), "{text}");
        assert!(text.contains("not known yet"), "{text}");
    }
}
