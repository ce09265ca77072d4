//! A network in a page: some lanes, each with its own sender, before one queue. Everything from a
//! seed.

use super::{Congestion, Delivered, Lost};
use crate::tuning::CongestionControl;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

/// Hosts take up to so long for an answer, in nanoseconds: queues are not met in step.
const JITTER: u32 = 4000;

/// The network.
#[derive(Clone, Copy)]
pub(super) struct Network {
    pub(super) control: CongestionControl,
    pub(super) lanes: usize,
    /// Bytes per second.
    pub(super) link: f64,
    /// The round trip without a queue.
    pub(super) round_trip: Duration,
    /// Bytes that wait before the link at most.
    pub(super) queue: u64,
    /// From so many waiting bytes on, packets are marked.
    pub(super) marks_above: Option<u64>,
    /// Of 10,000 packets that find more, so many are marked.
    pub(super) marks: u32,
    /// Of 10,000 packets, so many are lost.
    pub(super) loss: u32,
    pub(super) packet: u64,
    /// What is behind a loss is sent again, too.
    pub(super) goes_back: bool,
    /// The peers send a CNP for what is marked and do not echo it.
    pub(super) notifies: bool,
    /// Each lane begins so much after the one before.
    pub(super) stagger: Duration,
}

impl Default for Network {
    /// 25 Gbit/s, 20 us, what an unprivileged socket buffer holds.
    fn default() -> Self {
        Network {
            control: CongestionControl::default(),
            lanes: 1,
            link: 25e9 / 8.0,
            round_trip: Duration::from_micros(20),
            queue: 200_000,
            marks_above: None,
            marks: 10_000,
            loss: 0,
            packet: 1088,
            goes_back: false,
            notifies: false,
            stagger: Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(Packet),
    Depart,
    Answer { packet: Packet, is_marked: bool, missed: bool },
    Wake(usize),
    Timeout(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    lane: usize,
    number: u64,
    round: u32,
    sent_at: u64,
}

struct Sender {
    congestion: Congestion,
    in_flight: VecDeque<Packet>,
    next: u64,
    expected: u64,
    /// How often it went back.
    round: u32,
    has_missed: bool,
    next_at: Option<Instant>,
    free_at: u64,
    answered_at: u64,
    heard_at: u64,
    wakes: bool,
    is_timed: bool,
    notified_at: Option<u64>,
    delivered: u64,
}

/// A run of a [`Network`].
pub(super) struct Run {
    network: Network,
    start: Instant,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    senders: Vec<Sender>,
    queue: VecDeque<(Packet, bool)>,
    rng: ChaCha8Rng,
}

impl Run {
    pub(super) fn new(network: Network) -> Run {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let start = Instant::now();
        let sender = |_| Sender {
            congestion: Congestion::new(network.control),
            in_flight: VecDeque::new(),
            next: 0,
            expected: 0,
            round: 0,
            has_missed: false,
            next_at: None,
            free_at: 0,
            answered_at: 0,
            heard_at: 0,
            wakes: false,
            is_timed: false,
            notified_at: None,
            delivered: 0,
        };
        let mut run = Run {
            network,
            start,
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            senders: (0..network.lanes).map(sender).collect(),
            queue: VecDeque::new(),
            rng: ChaCha8Rng::seed_from_u64(7),
        };
        for lane in 0..network.lanes {
            let begins = network.stagger.as_nanos() as u64 * lane as u64;
            run.at(begins + lane as u64 * 100, Event::Wake(lane));
        }
        run
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.now)
    }

    /// Lets so much time pass. Returns the bytes that were delivered in it, by lane.
    pub(super) fn pass(&mut self, time: Duration) -> Vec<u64> {
        let end = self.now + time.as_nanos() as u64;
        self.senders.iter_mut().for_each(|sender| sender.delivered = 0);
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.handle(event);
        }
        self.now = end;
        self.senders.iter().map(|sender| sender.delivered).collect()
    }

    /// The part of the link that was used in so much time, and how fair the shares were (Jain).
    pub(super) fn measure(&mut self, time: Duration) -> (f64, f64) {
        let delivered = self.pass(time);
        let total: f64 = delivered.iter().map(|&bytes| bytes as f64).sum();
        let squares: f64 = delivered.iter().map(|&bytes| (bytes as f64).powi(2)).sum();
        let fairness = total * total / (delivered.len() as f64 * squares);
        (total / (self.network.link * time.as_secs_f64()), fairness)
    }

    /// Bytes that wait before the link.
    fn queued(&self) -> u64 {
        self.queue.len() as u64 * self.network.packet
    }

    fn handle(&mut self, event: Event) {
        let half = self.network.round_trip.as_nanos() as u64 / 2;
        match event {
            Event::Arrive(packet) => {
                let waiting = self.queued();
                if waiting + self.network.packet > self.network.queue {
                    return;
                }
                let is_marked = self.network.marks_above.is_some_and(|above| waiting > above)
                    && (self.network.marks == 10_000
                        || self.rng.next_u32() % 10_000 < self.network.marks);
                self.queue.push_back((packet, is_marked));
                if self.queue.len() == 1 {
                    self.at(self.now + self.serialization(), Event::Depart);
                }
            }
            Event::Depart => {
                let Some((packet, is_marked)) = self.queue.pop_front() else { return };
                if !self.queue.is_empty() {
                    self.at(self.now + self.serialization(), Event::Depart);
                }
                if self.rng.next_u32() % 10_000 < self.network.loss {
                    return;
                }
                let sender = &mut self.senders[packet.lane];
                if !self.network.goes_back {
                    sender.delivered += self.network.packet;
                } else if packet.number == sender.expected {
                    sender.expected += 1;
                    sender.has_missed = false;
                    sender.delivered += self.network.packet;
                } else {
                    let is_first = !std::mem::replace(&mut sender.has_missed, true);
                    if packet.number > sender.expected && is_first {
                        let answer = Event::Answer { packet, is_marked: false, missed: true };
                        self.at(self.now + half, answer);
                    }
                    return;
                }
                let answer = Event::Answer { packet, is_marked, missed: false };
                let at = self.now + half + u64::from(self.rng.next_u32() % JITTER);
                let sender = &mut self.senders[packet.lane];
                sender.answered_at = sender.answered_at.max(at);
                let at = sender.answered_at;
                self.at(at, answer);
            }
            Event::Answer { packet, is_marked, missed } => {
                self.answer(packet, is_marked, missed);
                self.send(packet.lane);
            }
            Event::Wake(lane) => {
                self.senders[lane].wakes = false;
                self.send(lane);
            }
            Event::Timeout(lane) => {
                let due = self.senders[lane].heard_at + self.timeout();
                if due > self.now {
                    return self.at(due, event);
                }
                self.senders[lane].is_timed = false;
                let number = self.senders[lane].next;
                self.lose_before(lane, number);
                self.send(lane);
            }
        }
    }

    fn timeout(&self) -> u64 {
        self.network.round_trip.as_nanos() as u64 * 3 + 200_000
    }

    fn serialization(&self) -> u64 {
        (self.network.packet as f64 / self.network.link * 1e9) as u64
    }

    fn answer(&mut self, packet: Packet, is_marked: bool, missed: bool) {
        let (now, size) = (self.instant(), self.network.packet);
        let lane = packet.lane;
        self.senders[lane].heard_at = self.now;
        if missed {
            let expected = self.senders[lane].expected;
            return self.lose_before(lane, expected);
        }
        if !self.network.goes_back {
            self.lose_before(lane, packet.number);
        }
        let sender = &mut self.senders[lane];
        if sender.in_flight.front().is_none_or(|first| first.number != packet.number) {
            return;
        }
        let sent_at = sender.in_flight.front().map_or(0, |first| first.sent_at);
        let in_flight = sender.in_flight.len() as u64 * size;
        let notifies = self.network.notifies;
        let delivered = Delivered {
            bytes: size,
            packets: 1,
            is_marked: is_marked && !notifies,
            round_trip: (sent_at == packet.sent_at)
                .then(|| Duration::from_nanos(self.now - packet.sent_at)),
            is_within_process: false,
            delays_others: false,
        };
        sender.congestion.on_delivered(now, in_flight, delivered);
        sender.in_flight.pop_front();
        if is_marked && notifies && sender.notified_at.is_none_or(|at| self.now >= at + 50_000) {
            sender.notified_at = Some(self.now);
            sender.congestion.on_cnp(now);
        }
    }

    /// Where the peer takes nothing out of order, what is behind is sent again, too.
    fn lose_before(&mut self, lane: usize, number: u64) {
        let (now, size) = (self.instant(), self.network.packet);
        let lost = Lost { bytes: size, is_rewound: self.network.goes_back };
        let sender = &mut self.senders[lane];
        if self.network.goes_back {
            if !sender.in_flight.is_empty() {
                let in_flight = sender.in_flight.len() as u64 * size;
                sender.congestion.on_lost(now, in_flight, lost);
            }
            sender.in_flight.clear();
            sender.next = sender.expected;
            sender.round += 1;
            return;
        }
        while sender.in_flight.front().is_some_and(|first| first.number < number) {
            let in_flight = sender.in_flight.len() as u64 * size;
            sender.congestion.on_lost(now, in_flight, lost);
            sender.in_flight.pop_front();
        }
    }

    fn send(&mut self, lane: usize) {
        let (now, size) = (self.instant(), self.network.packet);
        let (half, serialization) =
            (self.network.round_trip.as_nanos() as u64 / 2, self.serialization());
        loop {
            let sender = &mut self.senders[lane];
            let in_flight = sender.in_flight.len() as u64 * size;
            if in_flight > 0 && in_flight + size > sender.congestion.window() {
                break;
            }
            if let Some(at) = sender.next_at.filter(|&at| at > now) {
                let at = at.duration_since(self.start).as_nanos() as u64;
                if !std::mem::replace(&mut sender.wakes, true) {
                    self.at(at, Event::Wake(lane));
                }
                break;
            }
            sender.next_at = sender.congestion.pace(now, sender.next_at, size, size);
            let (number, round) = (sender.next, sender.round);
            let packet = Packet { lane, number, round, sent_at: self.now };
            sender.next += 1;
            sender.in_flight.push_back(packet);
            let free_at = sender.free_at.max(self.now) + serialization;
            sender.free_at = free_at;
            self.at(free_at + half, Event::Arrive(packet));
        }
        let sender = &mut self.senders[lane];
        if !sender.in_flight.is_empty() && !std::mem::replace(&mut sender.is_timed, true) {
            sender.heard_at = self.now;
            self.at(self.now + self.timeout(), Event::Timeout(lane));
        }
    }
}
