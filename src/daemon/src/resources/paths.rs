//! What is known of the ways to peers, page by page.

use super::context::find_device;
use crate::session::{Answer, DaemonCtx, Session};
use urxe_engine::{CutCause, Held, LaneInfo, PathInfo};
use urxe_shm::control::{
    ControlError, LaneState, MAX_MESSAGE, PathCut, PathHold, PathPage, PathState, Reply,
    RoundTripState,
};

/// Bytes of a page that a path takes at most.
const PATH_LEN: usize = 256;

/// Paths of a page.
const PAGE_LEN: usize = (MAX_MESSAGE - 64) / PATH_LEN;

pub(super) fn list(
    session: &Session,
    ctx: &DaemonCtx,
    device: &str,
    after: Option<u32>,
) -> Result<Answer, ControlError> {
    let device = &ctx.devices[find_device(ctx, device)?];
    // CONG-100: a path is nobody's, and tells who talks to whom.
    let first = match session.may_see_all() {
        true => after.map_or(Some(0), |after| after.checked_add(1)),
        false => None,
    };
    let Some(first) = first else { return Ok(Reply::Paths(PathPage::default()).into()) };
    let mut paths = (0..).zip(device.nic.device().paths()).skip(first as usize);
    let page = paths.by_ref().take(PAGE_LEN).map(|(number, path)| state(number, &path));
    let page = PathPage { paths: page.collect(), more: paths.next().is_some() };
    Ok(Reply::Paths(page).into())
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
    use urxe_shm::control::encode;

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
        let page = PathPage { paths: vec![path; PAGE_LEN], more: true };
        encode(&Reply::Paths(page), &mut vec![0; MAX_MESSAGE]).unwrap();
        const { assert!(PAGE_LEN > 100) };
    }
}
