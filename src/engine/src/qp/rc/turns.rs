//! A QP's place in the two lanes of its path: how much it was released for, and whether it waits.

use crate::path::{Direction, Lane, Standing, TRIAL};
use std::time::Instant;
use urxe_types::Qpn;

/// What one QP has of the lanes of its path, by direction. Bytes are no more than a window.
#[derive(Debug, Default)]
pub(super) struct Turns {
    granted: [u32; 2],
    /// Bytes in flight that do not count for the lane.
    set_aside: [u32; 2],
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
        bytes: u64,
        qpn: Qpn,
        standing: Standing,
    ) -> bool {
        if self.may_follow(lane, direction, now, bytes) {
            return true;
        }
        self.wait(lane, direction, qpn, standing);
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

    /// Whether it was released for one packet, to find out whether its peer answers.
    pub(super) fn is_on_trial(&self, direction: Direction) -> bool {
        u64::from(self.granted[direction as usize]) == TRIAL
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
            granted => u64::from(granted).min(lane.window()),
        };
        (room / bytes).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// The QP waits for its turn, of whose peer so much is known.
    pub(super) fn wait(
        &mut self,
        lane: &mut Lane,
        direction: Direction,
        qpn: Qpn,
        standing: Standing,
    ) {
        if !std::mem::replace(&mut self.is_waiting[direction as usize], true) {
            lane.wait(qpn, standing);
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
        // CONG-033: whoever is answered does not wait for the pace of what is tried.
        if self.is_on_trial(direction) {
            return self.on_sent_ahead(lane, direction, bytes);
        }
        let used = self.use_granted(direction, bytes);
        lane.on_sent(now, bytes, bytes / u64::from(packets.max(1)), used);
    }

    /// So much was sent, whatever the lane has room for.
    pub(super) fn on_sent_ahead(&mut self, lane: &mut Lane, direction: Direction, bytes: u64) {
        let used = self.use_granted(direction, bytes);
        lane.on_sent_ahead(bytes, used);
    }

    /// Takes so much of what it was released for as there is.
    fn use_granted(&mut self, direction: Direction, bytes: u64) -> u64 {
        let granted = &mut self.granted[direction as usize];
        let used = bytes_of(bytes).min(*granted);
        *granted -= used;
        used.into()
    }

    /// Its turn in a lane has come: it may send so much.
    pub(super) fn on_released(&mut self, direction: Direction, bytes: u64) {
        self.is_waiting[direction as usize] = false;
        self.granted[direction as usize] += bytes_of(bytes);
    }

    /// Its turn in a lane has come, and it has no use for it.
    pub(super) fn on_refused(&mut self, direction: Direction) {
        self.is_waiting[direction as usize] = false;
    }

    /// It waits for no turn in a lane any more.
    pub(super) fn stop_waiting(&mut self, lane: &mut Lane, direction: Direction, qpn: Qpn) {
        if std::mem::take(&mut self.is_waiting[direction as usize]) {
            lane.stop_waiting(qpn);
        }
    }

    /// Gives back what is left of its turn. Returns whether there was anything.
    pub(super) fn give_back(&mut self, lane: &mut Lane, direction: Direction) -> bool {
        let left = std::mem::take(&mut self.granted[direction as usize]);
        if left > 0 {
            lane.give_back(left.into());
        }
        left > 0
    }

    /// What the QP has in flight does not count for the lane, until it is counted again.
    pub(super) fn set_aside(&mut self, lane: &mut Lane, direction: Direction, in_flight: u64) {
        let bytes = bytes_of(in_flight);
        self.set_aside[direction as usize] += bytes;
        lane.set_aside(bytes.into());
    }

    /// Whether anything is set aside.
    pub(super) fn has_set_aside(&self) -> bool {
        self.set_aside != [0; 2]
    }

    /// What was set aside counts again.
    pub(super) fn count_again(&mut self, lane: &mut Lane, direction: Direction) {
        lane.count_again(std::mem::take(&mut self.set_aside[direction as usize]).into());
    }
}

/// A number of bytes within a window.
fn bytes_of(bytes: u64) -> u32 {
    bytes.try_into().unwrap_or(u32::MAX)
}
