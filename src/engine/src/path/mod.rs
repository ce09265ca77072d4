//! What is learned on the way to a peer, shared by all QPs that go there: how long an answer takes,
//! how much may be under way, and what the peer is able to do.
//!
//! A path is one pair of addresses with one traffic class. It has two [lanes](Lane), since requests
//! with data and the answers to READs meet different queues. A QP that is held by a lane waits in
//! its list, without a timer, and is [released](Paths::next_release) when there is room: for so
//! many bytes, so that all take turns. What a silent peer has not answered is set aside as long as
//! others are answered, and who of those that wait is answered stands in `waiting.rs`: no QP holds
//! up the others because its peer has gone. `round_trip.rs` and `congestion/` are the estimates,
//! free of any table.

mod congestion;
mod delayed;
mod info;
mod lane;
mod least;
mod peer;
mod round_trip;
mod waiting;

pub(crate) use congestion::{Delivered, Lost};
use delayed::Delayed;
pub use info::{CutCause, Held, LaneInfo, PathInfo, RoundTripInfo};
pub(crate) use lane::{Lane, TRIAL};
pub(crate) use peer::Peer;
pub(crate) use round_trip::{RoundTrip, Sample};
pub(crate) use waiting::Standing;

use crate::limits::{FIRST_ANSWERS, FIRST_TRIED, MAX_UNUSED_PATHS};
use crate::tuning::CongestionControl;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU8;
use std::time::{Duration, Instant};
use urxe_types::Qpn;
use urxe_wire::{Flow, ecn};

/// What makes two ways one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathKey {
    src: IpAddr,
    dst: IpAddr,
    /// Without the ECN bits.
    traffic_class: u8,
}

impl From<&Flow> for PathKey {
    fn from(flow: &Flow) -> PathKey {
        let Flow { src, dst, traffic_class, .. } = *flow;
        PathKey { src, dst, traffic_class: traffic_class & !ecn::MASK }
    }
}

/// A path of this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathId(u32);

impl PathId {
    /// Its place among the [infos](Paths::infos).
    pub(crate) fn place(self) -> u32 {
        self.0
    }
}

/// Which of the two lanes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Requests with their data, towards the peer.
    Outward,
    /// Answers to READs and atomics, from the peer.
    Inward,
}

/// One path.
#[derive(Debug)]
pub(crate) struct Path {
    key: PathKey,
    /// QPs that go this way.
    users: usize,
    /// Its place in [`Paths::unused`], if there are none.
    unused_as: u64,
    /// How long an answer takes.
    pub(crate) round_trip: RoundTrip,
    /// What the peer was seen to do.
    pub(crate) peer: Peer,
    /// By [`Direction`].
    lanes: [Lane; 2],
    /// How often something was heard of that has arrived.
    heard: u16,
    /// How often it has become silent, and once more; after 255 comes 1.
    silences: NonZeroU8,
    /// It stands in [`Paths::ready`].
    is_ready: bool,
    /// It stands in [`Paths::paced`] with this time.
    paced_until: Option<Instant>,
}

impl Path {
    pub(crate) fn lane(&self, direction: Direction) -> &Lane {
        &self.lanes[direction as usize]
    }

    pub(crate) fn lane_mut(&mut self, direction: Direction) -> &mut Lane {
        &mut self.lanes[direction as usize]
    }

    /// Something has arrived.
    pub(crate) fn note_heard(&mut self) {
        self.heard = self.heard.wrapping_add(1);
        self.lanes.iter_mut().for_each(Lane::on_heard);
    }

    /// How often something was heard of that has arrived, modulo 2^16.
    pub(crate) fn heard(&self) -> u16 {
        self.heard
    }

    /// A QP's peer is silent, and nothing was heard of others either. Of others that wait some may
    /// try, if none did for so long.
    pub(crate) fn on_silence(&mut self, now: Instant, pause: Duration) {
        if !self.is_silent() {
            self.silences = self.silences.checked_add(1).unwrap_or(NonZeroU8::MIN);
        }
        // CONG-033: where nothing is known, no fewer than at the beginning.
        let first = if self.round_trip.smoothed().is_some() { 1 } else { FIRST_TRIED };
        self.lanes.iter_mut().for_each(|lane| lane.on_silence(now, pause, first));
    }

    /// Whether nothing was heard of it since it [became silent](Self::on_silence).
    pub(crate) fn is_silent(&self) -> bool {
        self.lanes.iter().any(Lane::is_silent)
    }

    /// A number that is another after it has become silent, for 255 times.
    pub(crate) fn silences(&self) -> NonZeroU8 {
        self.silences
    }

    /// What is known of a QP's peer that answered last after these [silences](Self::silences).
    pub(crate) fn standing(&self, answered_after: Option<NonZeroU8>) -> Standing {
        match answered_after {
            None => Standing::Untried,
            Some(silences) if silences == self.silences => Standing::Answered,
            Some(_) => Standing::Doubted,
        }
    }

    /// When the pace lets the next QP go on that waits for nothing else.
    fn released_at(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(Lane::released_at).min()
    }
}

/// A QP that was held may send so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) path: PathId,
    pub(crate) qpn: Qpn,
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
}

/// The paths of a device.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    control: CongestionControl,
    paths: Vec<Path>,
    by_key: HashMap<PathKey, PathId>,
    /// Paths without users, the longest unused first. They are kept for those that come back.
    unused: BTreeMap<u64, PathId>,
    /// How often a path lost its last user.
    left: u64,
    /// Paths that may have room for QPs that wait.
    ready: VecDeque<PathId>,
    /// When to look at which path on which QPs wait for the pace. A path stands here at most once
    /// with the time that it knows of; other entries of it are leftovers.
    paced: BinaryHeap<Reverse<(Instant, PathId)>>,
    /// Whose short messages wait.
    pub(crate) delayed: Delayed,
}

impl Paths {
    /// Those of a device that knows nobody yet.
    pub(crate) fn new(control: CongestionControl) -> Paths {
        Paths { control, ..Paths::default() }
    }

    /// A QP goes this way from now on.
    pub(crate) fn join(&mut self, key: PathKey) -> PathId {
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.insert(key),
        };
        let path = &mut self.paths[id.0 as usize];
        if path.users == 0 {
            self.unused.remove(&path.unused_as);
        }
        path.users += 1;
        id
    }

    fn insert(&mut self, key: PathKey) -> PathId {
        let path = Path {
            key,
            users: 0,
            unused_as: 0,
            round_trip: RoundTrip::default(),
            peer: Peer::default(),
            lanes: [Lane::new(self.control, None), Lane::new(self.control, Some(FIRST_ANSWERS))],
            heard: 0,
            silences: NonZeroU8::MIN,
            is_ready: false,
            paced_until: None,
        };
        let id = match self.unused.len() >= MAX_UNUSED_PATHS {
            true => self.unused.pop_first(),
            false => None,
        };
        let id = match id {
            Some((_, id)) => {
                let replaced = std::mem::replace(self.get_mut(id), path);
                self.by_key.remove(&replaced.key);
                id
            }
            None => {
                self.paths.push(path);
                PathId(self.paths.len() as u32 - 1)
            }
        };
        self.by_key.insert(key, id);
        id
    }

    /// A QP goes this way no more; it has nothing in flight.
    pub(crate) fn leave(&mut self, id: PathId) {
        let path = &mut self.paths[id.0 as usize];
        path.users -= 1;
        if path.users == 0 {
            self.left += 1;
            path.unused_as = self.left;
            self.unused.insert(self.left, id);
        }
    }

    /// Whether a QP goes to this address.
    pub(crate) fn has_users_to(&self, peer: IpAddr) -> bool {
        self.paths.iter().any(|path| path.users > 0 && path.key.dst == peer)
    }

    pub(crate) fn get(&self, id: PathId) -> &Path {
        &self.paths[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> &mut Path {
        &mut self.paths[id.0 as usize]
    }

    /// Something has left a lane of this path: those that wait may have room.
    pub(crate) fn look_at(&mut self, id: PathId) {
        let path = &mut self.paths[id.0 as usize];
        if !path.is_ready && path.lanes.iter().any(Lane::is_waited_for) {
            path.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// The QP that was released has no use for it.
    pub(crate) fn give_back(&mut self, release: Release) {
        let Release { path, direction, bytes, .. } = release;
        self.get_mut(path).lane_mut(direction).give_back(bytes);
        self.look_at(path);
    }

    /// The next QP that may go on, if there is one.
    pub(crate) fn next_release(&mut self, now: Instant) -> Option<Release> {
        while let Some(&id) = self.ready.front() {
            let path = &mut self.paths[id.0 as usize];
            for direction in [Direction::Outward, Direction::Inward] {
                if let Some((qpn, bytes)) = path.lanes[direction as usize].release(now) {
                    return Some(Release { path: id, qpn, direction, bytes });
                }
            }
            path.is_ready = false;
            self.ready.pop_front();
            if let Some(at) = path.released_at()
                && path.paced_until.is_none_or(|until| at < until)
            {
                path.paced_until = Some(at);
                self.paced.push(Reverse((at, id)));
            }
        }
        None
    }

    /// When the pace of a path may let the next QP go on.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.paced.peek().map(|&Reverse((at, _))| at)
    }

    /// Sees to the paths whose pace may let a QP go on by `now`. One whose pace has become slower
    /// meanwhile is looked at once more, later.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(at) = self.poll_timeout().filter(|&at| at <= now)
            && let Some(Reverse((_, id))) = self.paced.pop()
        {
            let path = self.get_mut(id);
            if path.paced_until == Some(at) {
                path.paced_until = None;
                self.look_at(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> PathKey {
        let addr = |number: u32| IpAddr::from(number.to_be_bytes());
        PathKey { src: addr(1), dst: addr(0x0a00_0000 + number), traffic_class: 0 }
    }

    /// CONG-033
    #[test]
    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    fn on_a_silent_path_of_which_nothing_is_known_as_many_try_as_may_begin() {
        let now = Instant::now();
        let tried = |sample: Option<Sample>| {
            let mut paths = Paths::default();
            let id = paths.join(key(0));
            let path = paths.get_mut(id);
            sample.into_iter().for_each(|sample| path.round_trip.on_sample(now, sample));
            path.lane_mut(Direction::Outward).on_sent(now, crate::limits::INITIAL_WINDOW, 1024, 0);
            for qpn in 1..100 {
                path.lane_mut(Direction::Outward).wait(Qpn::new(qpn), Standing::Untried);
            }
            path.on_silence(now, Duration::from_secs(1));
            paths.look_at(id);
            std::iter::from_fn(|| paths.next_release(now)).count()
        };
        assert_eq!(tried(None), 16);
        assert_eq!(tried(Some(Sample::Exact(Duration::from_millis(1)))), 1);
    }

    #[test]
    fn a_path_that_comes_back_is_known() {
        let mut paths = Paths::default();
        let id = paths.join(key(0));
        paths.get_mut(id).peer.refuses_parts = true;
        paths.leave(id);
        let back = paths.join(key(0));
        assert!(paths.get(back).peer.refuses_parts);
    }

    #[test]
    fn the_path_unused_for_longest_makes_room_and_one_in_use_does_not() {
        let mut paths = Paths::default();
        let most = MAX_UNUSED_PATHS as u32;
        let ids: Vec<PathId> = (0..most + 2).map(|number| paths.join(key(number))).collect();
        for &id in &ids[2..] {
            paths.leave(id);
        }
        // One in use again is not among them, and then it is the last.
        let back = paths.join(key(2));
        paths.leave(back);
        assert_eq!(paths.join(key(most + 2)), ids[3]);
        assert!(!paths.by_key.contains_key(&key(3)));
        let kept: Vec<PathId> = [0, 1, 2].map(|number| paths.join(key(number))).to_vec();
        assert_eq!(kept, ids[..3]);
        assert_eq!(paths.paths.len(), ids.len());
    }
}
