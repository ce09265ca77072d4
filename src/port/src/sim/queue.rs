//! Queues that many senders share: those of hosts and of switches.

use crate::rng::Rng;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_wire::ecn;

/// Which queue of the network is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueId {
    /// What leaves this host, whoever it is for.
    Uplink(IpAddr),
    /// What goes from one group of hosts to another.
    Trunk(u16, u16),
    /// What comes to this host, whoever sent it: the last queue. It stands for the switch's port
    /// and the receiver's socket buffer together, so what the host has not received yet takes room
    /// in it.
    Downlink(IpAddr),
}

/// A queue and the line behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Bits per second, counting whole IP packets.
    pub rate: u64,
    /// Bytes of whole IP packets that wait at most; what comes then is lost. `None`: any number.
    pub limit: Option<usize>,
    /// Which packets are marked "congestion experienced".
    pub marking: Option<Marking>,
}

impl Queue {
    /// A queue that never loses and never marks.
    pub fn unlimited(rate: u64) -> Queue {
        Queue { rate, limit: None, marking: None }
    }

    /// A queue that loses what does not fit, and never marks.
    pub fn taildrop(rate: u64, limit: usize) -> Queue {
        Queue { rate, limit: Some(limit), marking: None }
    }
}

/// Marking by the length of the queue that a packet finds (RED on the instantaneous length).
///
/// A packet of a flow that cannot be marked is dropped instead (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Up to so many bytes, nothing is marked.
    pub min: usize,
    /// Above so many, everything.
    pub max: usize,
    /// The chance just below `max`; between, it grows evenly from 0.
    pub chance_at_max: f64,
}

impl Marking {
    /// Everything that finds more than so many bytes.
    pub fn step(above: usize) -> Marking {
        Marking { min: above, max: above, chance_at_max: 1.0 }
    }

    fn chance(&self, waiting: usize) -> f64 {
        if waiting > self.max {
            1.0
        } else if waiting <= self.min {
            0.0
        } else {
            self.chance_at_max * (waiting - self.min) as f64 / (self.max - self.min) as f64
        }
    }
}

/// What a queue did so far, in packets but for `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Taken in.
    pub packets: u64,
    /// Bytes of these, as whole IP packets.
    pub bytes: u64,
    /// Lost because it was full.
    pub full: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
    /// Lost where others are marked, because their flow does not understand marks.
    pub unmarkable: u64,
}

#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) queue: Queue,
    pub(super) counters: QueueCounters,
    rng: Rng,
    /// When what is in the queue will have left.
    free_at: Option<Instant>,
    /// Bytes that take room.
    waiting: usize,
    /// When each packet leaves, and its bytes: those that time takes away.
    leaving: VecDeque<(Instant, usize)>,
    /// Packets take room until the host has received them.
    until_received: bool,
}

impl QueueState {
    pub(super) fn new(queue: Queue, rng: Rng, until_received: bool) -> QueueState {
        QueueState {
            queue,
            counters: QueueCounters::default(),
            rng,
            free_at: None,
            waiting: 0,
            leaving: VecDeque::new(),
            until_received,
        }
    }

    /// Takes in a packet. When it has left the line behind the queue, and whether it was marked;
    /// `None`: it is lost.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        traffic_class: &mut u8,
        len: usize,
    ) -> Option<(Instant, bool)> {
        let waiting = self.waiting(now);
        if self.queue.limit.is_some_and(|limit| waiting + len > limit) {
            self.counters.full += 1;
            return None;
        }
        let chance = self.queue.marking.map_or(0.0, |marking| marking.chance(waiting));
        // Draws the same number of times whatever comes out.
        let hit = ((self.rng.next_u64() >> 11) as f64) < chance * (1u64 << 53) as f64;
        if hit && !mark(traffic_class) {
            self.counters.unmarkable += 1;
            return None;
        }
        self.counters.marked += u64::from(hit);
        let at = self.free_at.map_or(now, |at| at.max(now)) + transmission(self.queue.rate, len);
        self.free_at = Some(at);
        self.waiting += len;
        if !self.until_received {
            self.leaving.push_back((at, len));
        }
        self.counters.packets += 1;
        self.counters.bytes += len as u64;
        Some((at, hit))
    }

    /// Bytes that wait.
    pub(super) fn waiting(&mut self, now: Instant) -> usize {
        while let Some((_, len)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.waiting -= len;
            self.leaving.pop_front();
        }
        self.waiting
    }

    /// The host has received a packet.
    pub(super) fn received(&mut self, len: usize) {
        self.waiting = self.waiting.saturating_sub(len);
    }

    /// How full it is, from 0 to 1; `None` where it is never full.
    pub(super) fn fill(&self) -> Option<f32> {
        self.queue.limit.map(|limit| self.waiting as f32 / limit.max(1) as f32)
    }
}

/// How long a packet takes at a rate.
pub(super) fn transmission(rate: u64, len: usize) -> Duration {
    Duration::from_nanos(len as u64 * 8 * 1_000_000_000 / rate.max(1))
}

/// Marks a packet; false: its flow does not understand that.
pub(super) fn mark(traffic_class: &mut u8) -> bool {
    let capable = *traffic_class & ecn::MASK != ecn::NOT_CAPABLE;
    if capable {
        *traffic_class |= ecn::CONGESTION_EXPERIENCED;
    }
    capable
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    /// A packet of 1000 bytes takes 1 us.
    const RATE: u64 = 8_000_000_000;

    fn state(queue: Queue) -> QueueState {
        QueueState::new(queue, Rng::new(1), false)
    }

    /// How many of `packets` that find so many bytes are marked.
    fn marked_at(waiting: usize, marking: Marking, packets: usize) -> u64 {
        let queue = Queue { marking: Some(marking), ..Queue::unlimited(RATE) };
        let mut state = QueueState::new(queue, Rng::new(1), true);
        for _ in 0..packets {
            state.waiting = waiting;
            state.pass(Instant::now(), &mut ecn::CAPABLE.clone(), 1000);
        }
        state.counters.marked
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let now = Instant::now();
        let mut state = state(Queue::unlimited(RATE));
        let mut leaves = |at, len| state.pass(at, &mut 0, len).map(|(at, _)| at - now);
        assert_eq!(leaves(now, 1000), Some(US));
        assert_eq!(leaves(now, 2000), Some(3 * US));
        assert_eq!(leaves(now + 10 * US, 1000), Some(11 * US), "the line was idle before");
    }

    #[test]
    fn a_full_queue_loses_packets_until_others_have_left() {
        let now = Instant::now();
        let mut state = state(Queue::taildrop(RATE, 3000));
        let mut takes = |at| state.pass(at, &mut 0, 1000).is_some();
        assert_eq!([(); 5].map(|()| takes(now)), [true, true, true, false, false]);
        assert!(takes(now + US), "one has left");
        assert!(!takes(now + US));
        assert_eq!(state.counters.full, 3);
        assert_eq!((state.counters.packets, state.counters.bytes), (4, 4000));
    }

    #[test]
    fn the_chance_of_a_mark_grows_evenly_between_the_thresholds() {
        let marking = Marking { min: 10_000, max: 20_000, chance_at_max: 0.1 };
        assert_eq!(marked_at(10_000, marking, 1000), 0);
        assert_eq!(marked_at(20_001, marking, 1000), 1000);
        let halfway = marked_at(15_000, marking, 10_000);
        assert!((400..600).contains(&halfway), "{halfway} of 10,000, expected about 500");
    }

    #[test]
    fn a_step_marks_everything_above_and_nothing_below() {
        assert_eq!(marked_at(5_000, Marking::step(5_000), 100), 0);
        assert_eq!(marked_at(5_001, Marking::step(5_000), 100), 100);
    }

    #[test]
    fn a_packet_that_cannot_be_marked_is_dropped_in_its_place() {
        let queue = Queue { marking: Some(Marking::step(0)), ..Queue::unlimited(RATE) };
        let mut state = state(queue);
        let now = Instant::now();
        let mut class = 0;
        assert!(state.pass(now, &mut class, 1000).is_some(), "it finds nothing before it");
        assert_eq!(state.pass(now, &mut class, 1000), None);
        let mut class = ecn::CAPABLE;
        assert!(state.pass(now, &mut class, 1000).is_some_and(|(_, marked)| marked));
        assert_eq!(class, ecn::CONGESTION_EXPERIENCED);
        assert_eq!((state.counters.unmarkable, state.counters.marked), (1, 1));
    }
}
