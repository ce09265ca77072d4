//! What has left the flight, told to the path.

use crate::path::{Delivered, Direction, Lost, PathId, Sample};
use crate::qp::common::Cx;
use crate::qp::send_queue::{Moved, SendQueue};

/// Tells the path what has left the flight.
pub(super) fn settle_flight<H>(
    cx: &mut Cx<'_, H>,
    sq: &mut SendQueue,
    path: PathId,
    is_echoed: bool,
    sample: Option<Sample>,
) {
    let Moved { delivered, lost, unasked, forgotten } = sq.take_moved();
    let now = cx.now;
    // CONG-022: an answer that is marked itself tells of the way that answers take.
    let is_marked = [is_echoed, cx.is_marked];
    let mut cuts = [None; 4];
    let path_of_qp = cx.paths.get_mut(path);
    let round_trip = match sample {
        Some(Sample::Exact(sample)) => Some(sample),
        Some(Sample::AtMost(_)) | None => None,
    };
    let mut has_moved = unasked > 0;
    path_of_qp.lane_mut(Direction::Inward).forget(unasked);
    let least = path_of_qp.round_trip.least();
    for direction in [Direction::Outward, Direction::Inward] {
        let lane = path_of_qp.lane_mut(direction);
        let at = direction as usize;
        has_moved |= delivered[at] + lost[at] + forgotten[at] > 0;
        if lost[at] > 0 {
            let lost = Lost { bytes: lost[at], is_rewound: forgotten[at] > 0 };
            cuts[at] = lane.on_lost(now, lost);
        }
        if forgotten[at] > 0 {
            lane.on_rewound(now, forgotten[at], least);
        }
        if delivered[at] > 0 {
            let is_marked = is_marked[at];
            let delivered = Delivered { bytes: delivered[at], is_marked, round_trip };
            cuts[2 + at] = lane.on_delivered(now, delivered);
        }
    }
    let is_lossy = [Direction::Outward, Direction::Inward]
        .into_iter()
        .any(|direction| path_of_qp.lane(direction).congestion.has_losses());
    path_of_qp.round_trip.set_lossy(is_lossy);
    for cause in cuts.into_iter().flatten() {
        cx.count(cause.counter(), 1);
    }
    if has_moved {
        cx.paths.look_at(path);
    }
}
