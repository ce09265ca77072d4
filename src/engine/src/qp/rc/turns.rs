//! A QP's place in the two lanes of its path: how much it was released for, and whether it waits.

use crate::path::{Direction, Lane};
use std::time::Instant;
use urxe_types::Qpn;

/// What one QP has of the lanes of its path, by direction.
#[derive(Debug, Default)]
pub(super) struct Turns {
    granted: [u64; 2],
    is_waiting: [bool; 2],
}

impl Turns {
    /// Whether so much may be sent now; if not, the QP waits in the lane. What it was released for
    /// may be exceeded by a part of a packet.
    pub(super) fn admit(
        &mut self,
        lane: &mut Lane,
        direction: Direction,
        now: Instant,
        qpn: Qpn,
        bytes: u64,
    ) -> bool {
        if self.may_follow(lane, direction, now, bytes) {
            return true;
        }
        self.wait(lane, direction, qpn);
        false
    }

    /// Whether so much could be sent now.
    pub(super) fn may_follow(
        &self,
        lane: &Lane,
        direction: Direction,
        now: Instant,
        bytes: u64,
    ) -> bool {
        self.granted[direction as usize] > 0
            || (!self.is_waiting[direction as usize] && lane.admits(now, bytes))
    }

    /// Whether so much may be sent again now: that goes before what others wait to send.
    pub(super) fn may_repeat(
        &self,
        lane: &Lane,
        direction: Direction,
        now: Instant,
        bytes: u64,
    ) -> bool {
        self.granted[direction as usize] > 0 || lane.admits_repeat(now, bytes)
    }

    /// How many packets of so many bytes may be sent together now, of which one may be.
    pub(super) fn packets_at_once(
        &self,
        lane: &Lane,
        direction: Direction,
        now: Instant,
        bytes: u64,
    ) -> u32 {
        let room = match self.granted[direction as usize] {
            0 => lane.room(now),
            granted => granted.min(lane.window()),
        };
        (room / bytes).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// The QP waits for its turn.
    pub(super) fn wait(&mut self, lane: &mut Lane, direction: Direction, qpn: Qpn) {
        if !std::mem::replace(&mut self.is_waiting[direction as usize], true) {
            lane.wait(qpn);
        }
    }

    /// So much was sent.
    pub(super) fn on_sent(
        &mut self,
        lane: &mut Lane,
        direction: Direction,
        now: Instant,
        bytes: u64,
        packets: u32,
    ) {
        let granted = &mut self.granted[direction as usize];
        let used = bytes.min(*granted);
        *granted -= used;
        lane.on_sent(now, bytes, bytes / u64::from(packets.max(1)), used);
    }

    /// Its turn in a lane has come: it may send so much.
    pub(super) fn on_released(&mut self, direction: Direction, bytes: u64) {
        self.is_waiting[direction as usize] = false;
        self.granted[direction as usize] += bytes;
    }

    /// Its turn in a lane has come, and it has no use for it.
    pub(super) fn on_refused(&mut self, direction: Direction) {
        self.is_waiting[direction as usize] = false;
    }

    /// Gives back what is left of its turn. Returns whether there was anything.
    pub(super) fn give_back(&mut self, lane: &mut Lane, direction: Direction) -> bool {
        let left = std::mem::take(&mut self.granted[direction as usize]);
        if left > 0 {
            lane.give_back(left);
        }
        left > 0
    }
}
