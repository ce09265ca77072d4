//! What has left the flight, told to the path: at once, but for answers to READs of which many more
//! are under way. Those come one behind the other, and each tells the path little.

use crate::path::{Delivered, Direction, Lost, PathId, Sample};
use crate::qp::common::Cx;
use crate::qp::send_queue::{Moved, SendQueue};

/// So many answers are told of together at most.
const TOLD_TOGETHER: u8 = 8;

/// The part of what a QP has in flight that the path may not have been told of.
const UNTOLD_PART: u64 = 8;

/// Packets of which the path is yet to be told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Untold {
    packets: u8,
    /// The last of them was an answer to a READ that came in its turn.
    more_to_come: bool,
}

impl Untold {
    /// Another packet has come.
    pub(super) fn add(&mut self) {
        self.packets = self.packets.saturating_add(1);
        self.more_to_come = false;
    }

    /// It was an answer to a READ that came in its turn: what is in flight still comes behind it.
    pub(super) fn expect_more(&mut self) {
        self.more_to_come = true;
    }

    /// Whether the path can be told of them with one of those that follow: until then it counts a
    /// small part too much as in flight, and what follows is under way, or is missed by the timers.
    pub(super) fn can_wait(self, sq: &SendQueue) -> bool {
        // CONG-028
        self.more_to_come
            && self.packets < TOLD_TOGETHER
            && sq.delivered_since_told() * UNTOLD_PART <= sq.bytes_in_flight()
    }
}

/// Tells the path what has left the flight, by these packets, and whether they told of congestion,
/// by direction.
pub(super) fn settle_flight<H>(
    cx: &mut Cx<'_, H>,
    sq: &mut SendQueue,
    path: PathId,
    untold: &mut Untold,
    is_marked: [bool; 2],
    sample: Option<Sample>,
) {
    let packets = u64::from(std::mem::take(untold).packets.max(1));
    let Moved { delivered, lost, gone, forgotten } = sq.take_moved();
    let now = cx.now;
    let mut cuts = [None; 4];
    let share = cx.qp.init.share;
    let delays_others = cx.paths.delayed.beside(now, share);
    let path_of_qp = cx.paths.get_mut(path);
    let round_trip = match sample {
        Some(Sample::Exact(sample)) => Some(sample),
        Some(Sample::AtMost(_)) | None => None,
    };
    let mut has_moved = false;
    let least = path_of_qp.round_trip.least();
    for direction in [Direction::Outward, Direction::Inward] {
        let lane = path_of_qp.lane_mut(direction);
        let at = direction as usize;
        has_moved |= delivered[at] + lost[at] + forgotten[at] > 0;
        if gone[at] > 0 {
            has_moved = true;
            lane.forget(gone[at].into());
        }
        if lost[at] > 0 {
            let lost = Lost { bytes: lost[at], is_rewound: forgotten[at] > 0 };
            cuts[at] = lane.on_lost(now, lost);
        }
        if forgotten[at] > 0 {
            lane.on_rewound(now, forgotten[at], least);
        }
        if delivered[at] > 0 {
            let is_marked = is_marked[at];
            let delivered = Delivered {
                bytes: delivered[at],
                packets,
                is_marked,
                round_trip,
                is_within_process: cx.is_within_process,
                delays_others,
            };
            cuts[2 + at] = lane.on_delivered(now, delivered);
        }
    }
    let is_lossy = [Direction::Outward, Direction::Inward]
        .into_iter()
        .any(|direction| path_of_qp.lane(direction).congestion.has_losses());
    path_of_qp.round_trip.set_lossy(is_lossy);
    let bytes = delivered[0] + delivered[1];
    if bytes > 0 {
        path_of_qp.note_heard();
    }
    if let Some((sample, least)) = round_trip.zip(least)
        && let Some(parameters) = cx.config.tuning.congestion.parameters()
        && sq.bytes_in_flight() == 0
    {
        let target = parameters.delay_target_beside_others;
        let excess = sample.saturating_sub(least);
        cx.paths.delayed.on_lone_message(now, share, bytes, excess, target);
    }
    for cause in cuts.into_iter().flatten() {
        cx.count(cause.counter(), 1);
    }
    if has_moved {
        cx.paths.look_at(path);
    }
}
