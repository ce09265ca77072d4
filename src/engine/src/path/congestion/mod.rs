//! How much may be in flight in one direction of a path, and how fast it may go.
//!
//! One window, in bytes, follows four signs of congestion, and is cut at most once per round trip:
//!
//! - **Marks**, as DCTCP (RFC 8257) does: by a part of the marked part of what was delivered. Where
//!   the queue marks single packets (RED, RFC 3168), that would be next to nothing, while TCP flows
//!   at the same queue cut for each mark as for a loss: so do we.
//! - **Delay**, as Swift does: where nothing is marked, and round trips are longer than the target,
//!   which is lower while short messages of another share are [delayed](super::delayed). Not where
//!   the way is memory of this process, and what waits there waits for the turns of a thread.
//! - **Loss**, as Westwood does: to what the path was seen to deliver in its least round trip, and
//!   only where something else says that a queue has overflowed. Packets that are lost on the way
//!   for other reasons cost no more than themselves.
//! - **Notifications** (CNP) do not touch the window; they limit the [rate](rate), as DCQCN does.
//!
//! Otherwise the window grows while it is used: at first by all that is delivered, after the first
//! sign of congestion by about a packet per round trip, and faster if no queue is seen for long. A
//! window below one packet is kept by the [pace](Congestion::pace).
//!
//! Everything is computed from `now` when something happens; nothing runs on its own.

#[cfg(test)]
mod model;
mod rate;
mod rounds;
#[cfg(test)]
mod tests;

use super::info::CutCause;
use super::least::Least;
use crate::limits::{FIXED_WINDOW, INITIAL_WINDOW, LONGEST_PACKET, MAX_WINDOW};
use crate::tuning::{CongestionControl, CongestionParameters};
use rate::RateLimit;
use rounds::{Round, Rounds};
use std::time::{Duration, Instant};

/// Bytes that have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) bytes: u64,
    /// Packets that told of it.
    pub(crate) packets: u64,
    /// What told of it also told of congestion on the way.
    pub(crate) is_marked: bool,
    /// How long the last of them took to be answered, if that was measured.
    pub(crate) round_trip: Option<Duration>,
    /// What told of it came from another slot of this process, or another device of it, and how
    /// long that took tells of a thread's turns.
    pub(crate) is_within_process: bool,
    /// Short messages of another share took long just now.
    pub(crate) delays_others: bool,
}

/// Bytes that were lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) bytes: u64,
    /// What was in flight behind them is sent again, too.
    pub(crate) is_rewound: bool,
}

/// The least window, in bytes: below it, a path with the shortest round trips would send a packet
/// in some milliseconds.
const LEAST_WINDOW: f64 = 64.0;

/// What a packet is taken to be long as long as none was sent, in bytes.
const USUAL_PACKET: f64 = 1088.0;

/// What the window grows by in a round trip, in packets: somewhat less than TCP, which has more
/// waits between growth and cut.
const USUAL_GROWTH: f64 = 0.8;
/// From so many packets on, the window grows by that much per round trip; below that by less, so
/// that very many that share a bottleneck do not grow by more than its queue.
const FULL_GROWTH_PACKETS: f64 = 32.0;
/// The least growth per round trip, in packets: equal for all, or those that have little would
/// never catch up.
const LEAST_GROWTH: f64 = 0.5;

/// After so many full round trips without a queue the window grows faster, twice as fast after
/// so many more, and so on up to a part of itself in each.
const CALM_ROUNDS: u32 = 16;
const ROUNDS_PER_DOUBLING: u32 = 4;
const MAX_GROWTH_PART: f64 = 1.0 / 16.0;

/// What is cut of the window where all is marked. More than half (RFC 8257), since others at the
/// same bottleneck cut by half for one mark.
const MARK_CUT: f64 = 0.65;
/// What the first mark cuts.
const FIRST_MARK_CUT: f64 = 0.5;
/// What a round weighs in the part that is marked (RFC 8257, 4.2: 1/16).
const MARK_WEIGHT: f64 = 1.0 / 16.0;
/// The marked part below which marks are taken for gone.
const NO_MARKS: f64 = 0.01;

/// Where less than this part of a round that has marks is marked, the queue marks single packets:
/// one that marks all above a threshold, as DCTCP wants it, marks most of a round or nothing.
const SINGLE_MARKS: f64 = 1.0 / 8.0;
/// What a round with marks weighs in that.
const DENSITY_WEIGHT: f64 = 1.0 / 4.0;
/// What a single mark cuts: as much as CUBIC (RFC 9438, 4.6), so that beside flows that halve their
/// rate for it (Reno, and DCQCN, which grows faster again) there is room for both.
const SINGLE_MARK_CUT: f64 = 0.3;

/// How strongly a round trip above the target is answered, and what is left at least (Swift: 0.8,
/// 0.5).
const DELAY_GAIN: f64 = 0.8;
const LEFT_AFTER_DELAY: f64 = 0.5;
/// By how much the target of a small window is larger.
const MAX_MORE_DELAY: f64 = 3.0;

/// A window up to which it delays nobody, in bytes: two trains.
const SHORT_QUEUE: f64 = 128.0 * 1024.0;

/// A round trip that is by so much longer than the least has met a queue.
const QUEUE: f64 = 1.15;

/// A queue that makes round trips longer by so much of what was seen lately may overflow.
const FULL_QUEUE: f64 = 0.3;
/// How fast the longest round trip is forgotten.
const FORGOTTEN_PER_SAMPLE: f64 = 1.0 / 1024.0;

/// What loss leaves of the window at least, in slow start and later.
const LEFT_AFTER_FIRST_LOSS: f64 = 0.5;
const LEFT_AFTER_LOSS: f64 = 0.5;
/// How much is kept, of what the path delivers in its least round trip.
const DELIVERED_SLACK: f64 = 1.05;
/// The same where all that is in flight is sent again after a loss.
const DELIVERED_SLACK_REWOUND: f64 = 1.03;
/// What a loss for other reasons than congestion leaves of the window at least where all that is in
/// flight is sent again.
const LEFT_AFTER_TRIM: f64 = 0.95;
/// A queue that makes round trips so much longer costs more there than it can be worth.
const VAIN_QUEUE: f64 = 1.1;
/// The part that is lost for no other reason than congestion if it is lost for long.
const MUCH_LOSS: f64 = 0.08;
/// The part below which losses are taken for gone.
const SOME_LOSS: f64 = 0.001;
/// The part of a window that may be lost for other reasons than congestion.
const RANDOM_LOSS: f64 = 0.1;

/// The least round trip is checked with this part of the window, once in so many rounds at most:
/// the less often, the more often nothing was found.
const LEFT_FOR_CHECK: f64 = 0.5;
const ROUNDS_PER_CHECK: u64 = 16;
const MAX_ROUNDS_PER_CHECK: u64 = 1024;
/// A round trip that is by so much shorter than the least was hidden by a queue.
const HIDDEN: f64 = 0.95;

/// After so long without anything to do, what was known of the room on the path is old.
const IDLE: Duration = Duration::from_secs(1);

/// What a round trip is taken for where none was measured.
const USUAL_ROUND_TRIP: f64 = 1e-3;

/// The congestion control of one direction of a path.
#[derive(Debug)]
pub(crate) struct Congestion {
    control: CongestionControl,
    /// In bytes; may be less than a packet.
    window: f64,
    /// Below this the window grows by all that is delivered.
    threshold: f64,
    /// The longest packet that was sent.
    packet: f64,
    least: Least,
    smoothed: Option<f64>,
    /// The longest round trip lately, in seconds.
    longest: f64,
    rounds: Rounds,
    /// The part of what is delivered that is marked, smoothed.
    marked: f64,
    /// There were marks, and not too long ago.
    has_marks: bool,
    /// The part of a round that is marked if any of it is, smoothed over such rounds.
    density: Option<f64>,
    /// Full rounds without a queue.
    calm: u32,
    /// No cut before so many bytes have left the path: they were under way at the last cut.
    spared_until: u64,
    /// No check of the least round trip before this round.
    next_check: u64,
    rounds_per_check: u64,
    check: Option<Check>,
    /// What was found holds for windows below this.
    checked_below: f64,
    last_cut: Option<CutCause>,
    /// Window and threshold before the last cut by loss.
    before_loss: Option<(f64, f64)>,
    /// What was in flight behind the last loss was sent again, too.
    is_rewound: bool,
    limit: Option<RateLimit>,
    used_at: Option<Instant>,
}

/// A check of the least round trip.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// The least before, in seconds.
    least: f64,
    /// The window before.
    window: f64,
    /// It ends with this round.
    until: u64,
}

impl Congestion {
    /// That of a path of which nothing is known.
    pub(super) fn new(control: CongestionControl) -> Congestion {
        let window = match control {
            // CONG-001
            CongestionControl::Off => FIXED_WINDOW,
            // CONG-002
            CongestionControl::On(_) => INITIAL_WINDOW,
        };
        Congestion {
            control,
            window: window as f64,
            threshold: MAX_WINDOW as f64,
            packet: USUAL_PACKET,
            least: Least::default(),
            smoothed: None,
            longest: 0.0,
            rounds: Rounds::default(),
            marked: 0.0,
            has_marks: false,
            density: None,
            calm: 0,
            spared_until: 0,
            next_check: 0,
            rounds_per_check: ROUNDS_PER_CHECK,
            check: None,
            checked_below: 0.0,
            last_cut: None,
            before_loss: None,
            is_rewound: false,
            limit: None,
            used_at: None,
        }
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window as u64
    }

    /// How fast it may go, in bytes per second; `None`: as fast as the window allows.
    pub(super) fn rate(&self) -> Option<u64> {
        self.limit.as_ref().map(|limit| limit.rate() as u64)
    }

    /// The estimate of congestion, from 0 to 1.
    pub(super) fn estimate(&self) -> f32 {
        self.limit.as_ref().map_or(self.marked, RateLimit::estimate) as f32
    }

    /// Whether packets are lost, and not just one long ago.
    pub(crate) fn has_losses(&self) -> bool {
        self.rounds.loss() > SOME_LOSS
    }

    /// Why less was sent from some time on, the last time that this was so.
    pub(super) fn last_cut(&self) -> Option<CutCause> {
        self.last_cut
    }

    /// When the next packet may follow after so many bytes that are sent now, in packets so
    /// long; `None`: at once.
    pub(crate) fn pace(
        &mut self,
        now: Instant,
        next_at: Option<Instant>,
        bytes: u64,
        packet: u64,
    ) -> Option<Instant> {
        let CongestionControl::On(parameters) = self.control else { return None };
        self.restart_if_idle(now);
        let longest = LONGEST_PACKET as f64;
        self.packet = (packet as f64).clamp(self.packet.min(longest), longest);
        let by_limit = match &mut self.limit {
            Some(limit) => {
                let next = limit.on_sent(now, &parameters.rate, bytes, self.packet);
                self.end_limit_if_needless();
                next
            }
            None => None,
        };
        if self.window >= bytes as f64 {
            return by_limit;
        }
        // CONG-004
        let round_trip = self.smoothed.unwrap_or(USUAL_ROUND_TRIP);
        let interval = Duration::from_secs_f64(bytes as f64 / self.window * round_trip);
        let by_window = next_at.map_or(now, |at| at.max(now)) + interval;
        Some(by_limit.map_or(by_window, |by_limit| by_limit.max(by_window)))
    }

    /// What may be sent at once, of so many bytes.
    pub(super) fn train(&self, bytes: u64) -> u64 {
        // CONG-012
        self.limit.as_ref().map_or(bytes, |limit| bytes.min(limit.train(self.packet) as u64))
    }

    /// Bytes have arrived; `in_flight` counts them still. Returns why the window was cut, if it
    /// was.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        in_flight: u64,
        delivered: Delivered,
    ) -> Option<CutCause> {
        let CongestionControl::On(parameters) = self.control else { return None };
        self.used_at = Some(now);
        let mut is_to_drain = false;
        if let Some(sample) = delivered.round_trip {
            is_to_drain = self.on_sample(now, sample);
        }
        let is_used = in_flight as f64 * 2.0 >= self.window;
        let least = self.least();
        let ended = self.rounds.on_delivered(now, in_flight, delivered, is_used, least);
        let mut cut = None;
        // CONG-005
        if delivered.is_marked && self.may_cut() {
            cut = Some(self.cut_by_marks(in_flight, CutCause::Mark));
        } else if is_used && self.may_cut() {
            self.grow(delivered.bytes as f64);
        }
        if let Some(round) = ended {
            self.end_check();
            cut = cut.or(self.end_round(&parameters, in_flight, &round, &delivered));
        }
        if is_to_drain {
            self.next_check = 0;
            self.check_least(in_flight);
        }
        cut
    }

    /// Bytes were lost; `in_flight` counts them still. Returns why the window was cut, if it was.
    pub(crate) fn on_lost(&mut self, now: Instant, in_flight: u64, lost: Lost) -> Option<CutCause> {
        if self.control == CongestionControl::Off {
            return None;
        }
        let Lost { bytes, is_rewound } = lost;
        self.used_at = Some(now);
        self.is_rewound = is_rewound;
        let lost = self.rounds.on_lost(bytes);
        self.calm = 0;
        if !self.may_cut() {
            return None;
        }
        if !self.tells_of_congestion(lost) {
            match is_rewound {
                true => self.trim(),
                false => drop(self.check_least(in_flight)),
            }
            return None;
        }
        let left = match self.is_in_slow_start() {
            true => LEFT_AFTER_FIRST_LOSS,
            false => LEFT_AFTER_LOSS,
        };
        // CONG-008
        let window = self.delivered_in_least().max(self.window * left);
        Some(self.cut(in_flight, CutCause::Loss, window))
    }

    /// What is in flight beyond what the path needs only waits, and was sent in vain.
    fn trim(&mut self) {
        let seen = self.rounds.least_lately().zip(self.least());
        let is_vain = seen.is_some_and(|(lately, least)| lately > least * VAIN_QUEUE);
        // CONG-112
        if is_vain && !self.is_in_slow_start() && self.check.is_none() {
            let needed = self.delivered_in_least().max(self.window * LEFT_AFTER_TRIM);
            self.window = self.window.min(needed);
            self.threshold = self.window;
        }
    }

    /// What was in flight is sent again, but for so many bytes: it will never leave the path.
    pub(super) fn on_rewound(&mut self, in_flight: u64) {
        self.spared_until = self.spared_until.min(self.rounds.left() + in_flight);
    }

    /// The peer has sent a congestion notification. Returns why less is sent from now on, if so.
    pub(crate) fn on_cnp(&mut self, now: Instant) -> Option<CutCause> {
        let CongestionControl::On(parameters) = self.control else { return None };
        let rate = self.rounds.rate().unwrap_or(self.window_rate()).max(1.0);
        let limit = self.limit.get_or_insert_with(|| RateLimit::new(now, rate));
        // CONG-010
        let has_cut = limit.on_cnp(now, &parameters.rate);
        self.threshold = self.threshold.min(self.window);
        has_cut.then(|| {
            self.last_cut = Some(CutCause::Notification);
            CutCause::Notification
        })
    }

    fn is_in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// What was sent after the last cut has come back.
    fn may_cut(&self) -> bool {
        self.rounds.left() >= self.spared_until
    }

    fn least(&self) -> Option<f64> {
        self.least.get().map(|least| least.as_secs_f64())
    }

    /// The rate that the window stands for.
    fn window_rate(&self) -> f64 {
        self.window / self.smoothed.unwrap_or(USUAL_ROUND_TRIP)
    }

    /// What the path was seen to deliver in its least round trip.
    fn delivered_in_least(&self) -> f64 {
        let slack = match self.is_rewound {
            true => DELIVERED_SLACK_REWOUND,
            false => DELIVERED_SLACK,
        };
        match (self.rounds.rate(), self.least()) {
            (Some(rate), Some(least)) => (rate * least * slack).min(self.window),
            _ => 0.0,
        }
    }

    /// Takes a round trip; whether there was a queue all the time for long.
    fn on_sample(&mut self, now: Instant, sample: Duration) -> bool {
        let seconds = sample.as_secs_f64();
        self.smoothed = Some(match self.smoothed {
            Some(smoothed) => smoothed + (seconds - smoothed) / 8.0,
            None => seconds,
        });
        self.rounds.on_sample(seconds);
        let forgotten = (self.longest - seconds).max(0.0) * FORGOTTEN_PER_SAMPLE;
        self.longest = (self.longest - forgotten).max(seconds);
        let before = self.least();
        self.least.on_sample(now, sample)
            && before.zip(self.least()).is_some_and(|(before, after)| is_queue(before, after))
    }

    /// Whether the last round trips were longer than the least.
    fn is_queue_seen(&self) -> bool {
        let seen = self.rounds.least_lately().zip(self.least());
        seen.is_some_and(|(lately, least)| is_queue(least, lately))
    }

    /// Whether the last round trips were so long that what was lost may have found a queue full.
    fn is_queue_full(&self) -> bool {
        let Some((lately, least)) = self.rounds.least_lately().zip(self.least()) else {
            return false;
        };
        is_queue(least, lately) && lately - least > (self.longest - least) * FULL_QUEUE
    }

    /// Whether so many bytes lost in one round are more than what is lost for other reasons.
    fn tells_of_congestion(&self, lost: u64) -> bool {
        let random = (self.window * RANDOM_LOSS).max((self.packet * 2.0).min(self.window / 2.0));
        // CONG-007
        lost as f64 > random || self.rounds.loss() > MUCH_LOSS || self.is_queue_full()
    }

    /// What was taken for lost has arrived: a cut because of that is taken back.
    pub(crate) fn on_not_lost(&mut self) {
        // CONG-030
        if let Some((window, threshold)) = self.before_loss.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    /// Cuts the window, which is then spared until what is in flight has left.
    fn cut(&mut self, in_flight: u64, cause: CutCause, window: f64) -> CutCause {
        let before = (self.window, self.threshold);
        self.before_loss = (cause == CutCause::Loss).then_some(before);
        self.window = window.max(LEAST_WINDOW);
        self.threshold = self.window;
        self.spared_until = self.rounds.left() + in_flight;
        self.calm = 0;
        self.last_cut = Some(cause);
        cause
    }

    fn grow(&mut self, bytes: f64) {
        let growth = match self.is_in_slow_start() {
            true => bytes,
            false => self.growth_per_round() * (bytes / self.window).min(1.0),
        };
        // CONG-003
        self.window = (self.window + growth).min(MAX_WINDOW as f64);
    }

    fn growth_per_round(&self) -> f64 {
        let packets = self.window / self.packet;
        let usual = USUAL_GROWTH
            * self.packet
            * (packets / FULL_GROWTH_PACKETS).sqrt().clamp(LEAST_GROWTH, 1.0);
        let doublings = self.calm.saturating_sub(CALM_ROUNDS) / ROUNDS_PER_DOUBLING;
        let fast = (usual * f64::from(1 << doublings.min(16))).min(self.window * MAX_GROWTH_PART);
        usual.max(fast)
    }

    /// Cuts the window by a part of the marked part, or as for a loss.
    fn cut_by_marks(&mut self, in_flight: u64, cause: CutCause) -> CutCause {
        let part = match (self.are_marks_single(), self.has_marks) {
            // CONG-111
            (true, _) => SINGLE_MARK_CUT,
            (false, true) => self.marked * MARK_CUT,
            (false, false) => FIRST_MARK_CUT,
        };
        // CONG-005: a window that the path needs is no queue.
        let needed = match self.has_marks || self.is_in_slow_start() {
            true => 0.0,
            false => self.delivered_in_least(),
        };
        self.marked = if self.has_marks { self.marked } else { FIRST_MARK_CUT };
        self.has_marks = true;
        self.cut(in_flight, cause, (self.window * (1.0 - part)).max(needed))
    }

    /// Whether the queue marks packets here and there, and not all that come while it is long.
    fn are_marks_single(&self) -> bool {
        self.density.is_some_and(|density| density < SINGLE_MARKS)
    }

    /// About a round trip has passed.
    fn end_round(
        &mut self,
        parameters: &CongestionParameters,
        in_flight: u64,
        round: &Round,
        delivered: &Delivered,
    ) -> Option<CutCause> {
        let part = self.marked_part(round);
        self.marked += (part - self.marked) * MARK_WEIGHT;
        if part > 0.0 {
            let density = self.density.unwrap_or(part);
            self.density = Some(density + (part - density) * DENSITY_WEIGHT);
        }
        self.has_marks &= self.marked > NO_MARKS;
        let is_calm = round.is_used && round.marked == 0 && !self.is_queue_seen();
        self.calm = if is_calm { self.calm.saturating_add(1) } else { 0 };
        // CONG-038
        if delivered.is_within_process {
            return None;
        }
        let (lately, least) = round.least.zip(self.least())?;
        let target = self.delay_target(parameters, delivered.delays_others);
        // What a check finds in its first round is the queue that was there before.
        let may_end_slow_start = self.is_in_slow_start() && self.check.is_none();
        if may_end_slow_start && lately > least + (least / 4.0).max(target / 4.0) {
            self.threshold = self.window;
        }
        // A machine that was busy for a moment is no queue: it takes two rounds to show one.
        let lately = round.least_of_two.unwrap_or(lately);
        let excess = lately - (least + target);
        // CONG-006
        if excess <= 0.0 || self.has_marks || !self.may_cut() {
            return None;
        }
        if self.check_least(in_flight) {
            return None;
        }
        let left = (1.0 - DELAY_GAIN * excess / lately).max(LEFT_AFTER_DELAY);
        Some(self.cut(in_flight, CutCause::Delay, self.window * left))
    }

    /// The part of the packets of a round that were marked. An acknowledgement tells only that one
    /// at least was among those that it is for.
    fn marked_part(&self, round: &Round) -> f64 {
        let told = round.marked as f64 / round.delivered.max(1) as f64;
        let packets = round.delivered as f64 / self.packet / round.deliveries.max(1) as f64;
        let packets = packets.max(1.0);
        // CONG-005: few marks are of one packet each, and where all tell of one, all are marked.
        told / (packets - (packets - 1.0) * told)
    }

    /// How much longer than the least a round trip may take, in seconds: with a small window more,
    /// so that those that share a queue come to share it evenly.
    fn delay_target(&self, parameters: &CongestionParameters, delays_others: bool) -> f64 {
        let packets = self.window / self.packet;
        let more = (4.0 / packets.sqrt() - 0.25).clamp(0.0, MAX_MORE_DELAY);
        // CONG-031
        let target = match delays_others && self.window > SHORT_QUEUE {
            true => parameters.delay_target_beside_others.min(parameters.delay_target),
            false => parameters.delay_target,
        };
        target.as_secs_f64() * (1.0 + more)
    }

    /// Sees, not too often, how long a round trip is with far less in flight, and returns to the
    /// window of now. Whoever came to a queue that others had filled knows of no shorter one, would
    /// take a full queue for an empty one, and would never make room.
    fn check_least(&mut self, in_flight: u64) -> bool {
        let is_known = self.rounds.count() < self.next_check && self.window < self.checked_below;
        if self.is_in_slow_start() || is_known {
            return false;
        }
        let Some(least) = self.least() else { return false };
        // CONG-013
        self.check = Some(Check { least, window: self.window, until: self.rounds.count() + 3 });
        self.next_check = self.rounds.count() + self.rounds_per_check;
        self.checked_below = self.window * 2.0;
        self.spared_until = self.rounds.left() + in_flight;
        self.threshold = self.window;
        self.window = (self.window * LEFT_FOR_CHECK).max(LEAST_WINDOW);
        true
    }

    /// Sees what a check has found.
    fn end_check(&mut self) {
        let Some(check) = self.check else { return };
        if self.least().is_some_and(|least| least < check.least * HIDDEN) {
            self.check = None;
            self.rounds_per_check = ROUNDS_PER_CHECK;
            self.window = self.window.min(check.window / 2.0);
            self.threshold = self.window;
        } else if self.rounds.count() >= check.until {
            self.check = None;
            self.rounds_per_check = (self.rounds_per_check * 2).min(MAX_ROUNDS_PER_CHECK);
        }
    }

    /// What was known of the room on the path is old: begins again, up to where it was.
    fn restart_if_idle(&mut self, now: Instant) {
        let used_at = self.used_at.replace(now);
        if used_at.is_some_and(|at| now.duration_since(at) > IDLE) {
            // CONG-009
            self.threshold = self.threshold.min(MAX_WINDOW as f64).max(self.window);
            self.window = self.window.min(INITIAL_WINDOW as f64);
            self.limit = None;
        }
    }

    /// A limit far above what the window needs limits nothing.
    fn end_limit_if_needless(&mut self) {
        let needed = self.window_rate();
        // CONG-011
        if self.limit.as_ref().is_some_and(|limit| limit.rate() > needed * 2.0) {
            self.limit = None;
        }
    }
}

/// Whether a round trip is longer than the least by more than chance.
fn is_queue(least: f64, round_trip: f64) -> bool {
    round_trip > least * QUEUE
}
