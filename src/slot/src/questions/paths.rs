//! What is known of the ways to peers, page by page.

use crate::Allotment;
use crate::pages::{PATHS_PER_PAGE, behind};
use urxe_engine::{CutCause, Held, LaneInfo, PathInfo};
use urxe_nic::Nic;
use urxe_shm::control::{LaneState, PathCut, PathHold, PathPage, PathState, RoundTripState};

/// The paths behind a number.
pub(super) fn list(nic: &Nic, allotment: Allotment, after: Option<u32>) -> PathPage {
    let Some(first) = after.map_or(Some(0), |after| after.checked_add(1)) else {
        return PathPage::default();
    };
    let mut paths = (0..).zip(nic.device().paths()).skip(first as usize);
    let page: Vec<(u32, PathInfo)> = paths.by_ref().take(PATHS_PER_PAGE).collect();
    let last = page.last().map(|&(number, _)| number).filter(|_| paths.next().is_some());
    let next = last.map(|last| behind(allotment.slot.id().index(), last));
    let state = |(number, path): &(u32, PathInfo)| state(allotment.numbering.shown(*number), path);
    PathPage { paths: page.iter().map(state).collect(), next }
}

fn state(number: u32, path: &PathInfo) -> PathState {
    PathState {
        number,
        local: path.local,
        peer: path.peer,
        traffic_class: path.traffic_class,
        qps: path.users as u32,
        round_trip: path.round_trip.map(|round_trip| RoundTripState {
            least: round_trip.least,
            smoothed: round_trip.smoothed,
            variation: round_trip.variation,
        }),
        outward: lane(&path.outward),
        inward: lane(&path.inward),
        keeps_early: path.keeps_early,
        acknowledges_selectively: path.acknowledges_selectively,
    }
}

fn lane(lane: &LaneInfo) -> LaneState {
    LaneState {
        in_flight: lane.in_flight,
        window: lane.window,
        rate: lane.rate,
        waiting: lane.waiting as u32,
        held: match lane.held {
            Held::Nothing => PathHold::Nothing,
            Held::Window => PathHold::Window,
            Held::Pace => PathHold::Pace,
        },
        congestion: (lane.congestion * 1000.0) as u16,
        last_cut: lane.last_cut.map(|cut| match cut {
            CutCause::Mark => PathCut::Mark,
            CutCause::Notification => PathCut::Notification,
            CutCause::Delay => PathCut::Delay,
            CutCause::Loss => PathCut::Loss,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;
    use std::time::Duration;
    use urxe_shm::control::{Cursor, MAX_MESSAGE, Reply, encode};

    #[test]
    fn a_page_filled_to_the_brim_fits_into_a_message() {
        let lane = LaneState {
            in_flight: u64::MAX,
            window: u64::MAX,
            rate: Some(u64::MAX),
            waiting: u32::MAX,
            held: PathHold::Pace,
            congestion: u16::MAX,
            last_cut: Some(PathCut::Loss),
        };
        let longest = Duration::new(u64::MAX, 999_999_999);
        let path = PathState {
            number: u32::MAX,
            local: Ipv6Addr::from([0xff; 16]).into(),
            peer: Ipv6Addr::from([0xff; 16]).into(),
            traffic_class: u8::MAX,
            qps: u32::MAX,
            round_trip: Some(RoundTripState {
                least: longest,
                smoothed: longest,
                variation: longest,
            }),
            outward: lane,
            inward: lane,
            keeps_early: Some(true),
            acknowledges_selectively: true,
        };
        let next = Some(Cursor { slot: u8::MAX, after: Some(u32::MAX) });
        let page = PathPage { paths: vec![path; PATHS_PER_PAGE], next };
        encode(&Reply::Paths(page), &mut vec![0; MAX_MESSAGE]).unwrap();
        const { assert!(PATHS_PER_PAGE > 100) };
    }
}
