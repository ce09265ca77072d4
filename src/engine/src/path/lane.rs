//! One direction of a path: how much is in flight, who waits, and whose turn it is.

use super::congestion::{Congestion, Delivered, Lost};
use super::info::{CutCause, Held};
use super::waiting::{Standing, Turn, Waiting};
use crate::limits::LANE_TURN_BYTES;
use crate::tuning::CongestionControl;
use std::time::{Duration, Instant};
use urxe_types::Qpn;

/// One direction of a path.
///
/// Bytes are those of whole packets. What a QP was [released](Self::release) for counts as in
/// flight until it was sent or given back.
#[derive(Debug)]
pub(crate) struct Lane {
    in_flight: u64,
    /// The part of QPs whose peers are silent or have no receive, which is not among it.
    set_aside: u64,
    granted: u64,
    /// QPs that are held, in the order of their turns. One that has gone meanwhile, or has nothing
    /// to send any more, gives its turn back.
    waiting: Waiting,
    /// More packets than there is room for may go, while nothing is heard of the path.
    trial: Option<Trial>,
    /// When the pace allows the next packet.
    next_at: Option<Instant>,
    leaving: Option<Leaving>,
    pub(crate) congestion: Congestion,
    /// What may be in flight until the first bytes have arrived.
    first_window: Option<u64>,
    /// How often a QP had to wait, and for what.
    pub(super) held_by_window: u64,
    pub(super) held_by_pace: u64,
}

/// More packets than there is room for, of as many QPs: where all that is in flight is of QPs that
/// are not answered, they find out whether others would be.
#[derive(Clone, Copy, Debug)]
struct Trial {
    allowed_at: Instant,
    /// How many were allowed then.
    packets: u32,
    /// How many of these may still go.
    left: u32,
    /// What was known of the QP that the last was given to.
    standing: Standing,
}

/// What a QP is released for that is to send one packet of a trial: as a packet may be more than
/// what it was released for, it is one.
pub(crate) const TRIAL: u64 = 1;

/// Bytes that count as in flight no more, since they are sent again, and may be on the path still.
/// They are taken to leave it evenly, and what is sent again takes their place.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    bytes: u64,
    from: Instant,
    step: Duration,
}

/// Steps in which they leave: what follows goes in so many trains. The first step is at once.
const LEAVING_STEPS: u32 = 8;

impl Leaving {
    /// Bytes that are left after so many steps.
    fn after(&self, steps: u32) -> u64 {
        let left = LEAVING_STEPS.saturating_sub(steps + 1);
        self.bytes * u64::from(left) / u64::from(LEAVING_STEPS)
    }

    /// Bytes that are on the path still.
    fn left(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.from).as_nanos();
        let steps = passed / self.step.as_nanos();
        self.after(steps.min(u128::from(LEAVING_STEPS)) as u32)
    }

    /// When no more than so many bytes are left.
    fn at_most(&self, bytes: u64) -> Instant {
        let steps = (0..LEAVING_STEPS).find(|&steps| self.after(steps) <= bytes);
        self.from + self.step * steps.unwrap_or(LEAVING_STEPS)
    }
}

impl Lane {
    /// One of a path of which nothing is known.
    pub(super) fn new(control: CongestionControl, first_window: Option<u64>) -> Lane {
        Lane {
            in_flight: 0,
            set_aside: 0,
            granted: 0,
            waiting: Waiting::default(),
            trial: None,
            next_at: None,
            leaving: None,
            congestion: Congestion::new(control),
            first_window,
            held_by_window: 0,
            held_by_pace: 0,
        }
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        let window = self.congestion.window();
        // CONG-027
        self.first_window.map_or(window, |first| first.min(window))
    }

    /// Bytes in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// QPs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a QP waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Why the QPs that wait do so.
    pub(crate) fn held(&self) -> Held {
        match (self.is_waited_for(), self.has_room(0, 1)) {
            (false, _) => Held::Nothing,
            (true, true) => Held::Pace,
            (true, false) => Held::Window,
        }
    }

    /// Whether a QP may send so much at once that was not released for it: nobody waits, and there
    /// is room. The first thing in flight may always go.
    pub(crate) fn admits(&self, now: Instant, bytes: u64) -> bool {
        self.waiting.is_empty() && self.admits_repeat(now, bytes)
    }

    /// The same for what is sent again: it goes before what waits.
    pub(crate) fn admits_repeat(&self, now: Instant, bytes: u64) -> bool {
        self.has_room(self.leaving(now), bytes) && self.next_at.is_none_or(|at| at <= now)
    }

    fn leaving(&self, now: Instant) -> u64 {
        self.leaving.map_or(0, |leaving| leaving.left(now))
    }

    /// Whether there is room for so many bytes while others leave the path.
    fn has_room(&self, leaving: u64, bytes: u64) -> bool {
        let taken = self.taken();
        taken == 0 || taken + leaving + bytes <= self.window()
    }

    /// Bytes that leave no room for others.
    fn taken(&self) -> u64 {
        let set_aside = if self.is_silent() { self.set_aside } else { 0 };
        self.in_flight + self.granted + set_aside
    }

    /// Bytes that there is room for beside what is in flight.
    pub(crate) fn room(&self, now: Instant) -> u64 {
        self.window().saturating_sub(self.taken() + self.leaving(now))
    }

    /// Whether each packet may be one too many at this moment, however much room there is.
    pub(crate) fn is_paced(&self) -> bool {
        self.next_at.is_some() || self.congestion.rate().is_some()
    }

    /// A QP waits for its turn, of whose peer so much is known; it stands here once.
    pub(crate) fn wait(&mut self, qpn: Qpn, standing: Standing) {
        self.waiting.push(Turn { qpn, standing });
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.standing < standing) {
            // Those whose peers may rather have gone have told nothing.
            trial.left = trial.left.max(1);
        }
        // CONG-014
        match self.held() {
            Held::Nothing => {}
            Held::Window => self.held_by_window += 1,
            Held::Pace => self.held_by_pace += 1,
        }
    }

    /// A QP that [waits](Self::wait) does so no more.
    pub(crate) fn stop_waiting(&mut self, qpn: Qpn) {
        self.waiting.remove(qpn);
    }

    /// The QP whose turn it is, and how much it may send; `None` if there is no room now.
    pub(super) fn release(&mut self, now: Instant) -> Option<(Qpn, u64)> {
        let has_room = self.admits_repeat(now, 1);
        let turn = match has_room {
            true => self.waiting.pop()?,
            false if self.is_trial_due() => self.waiting.pop_best()?,
            false => return None,
        };
        let bytes = match has_room {
            true => self.room(now).clamp(1, self.congestion.train(LANE_TURN_BYTES)),
            false => TRIAL,
        };
        if let Some(trial) = self.trial.as_mut().filter(|_| !has_room) {
            trial.standing = turn.standing;
        }
        self.granted += bytes;
        Some((turn.qpn, bytes))
    }

    /// A QP's peer is silent, and nothing was heard of others either. More packets may go than
    /// there is room for, `first` at first, and if nothing was allowed for so long, twice as many
    /// as the last time.
    pub(super) fn on_silence(&mut self, now: Instant, pause: Duration, first: u32) {
        let packets = match self.trial {
            None => {
                self.waiting.doubt();
                first
            }
            Some(trial) if trial.allowed_at + pause > now => return,
            Some(Trial { packets, left: 0, .. }) => packets.saturating_mul(2),
            // There were not so many QPs.
            Some(Trial { packets, .. }) => packets,
        };
        let standing = Standing::Untried;
        self.trial = Some(Trial { allowed_at: now, packets, left: packets, standing });
    }

    /// Something was heard of the path.
    pub(super) fn on_heard(&mut self) {
        self.trial = None;
    }

    /// Whether nothing was heard of the path since a QP's peer was [silent](Self::on_silence).
    pub(super) fn is_silent(&self) -> bool {
        self.trial.is_some()
    }

    /// QPs that may send a packet more together than there is room for, or could.
    pub(crate) fn on_trial(&self) -> u32 {
        self.trial.map_or(1, |trial| trial.packets)
    }

    fn is_trial_due(&self) -> bool {
        self.trial.is_some_and(|trial| self.granted < u64::from(trial.left) * TRIAL)
    }

    /// Bytes in flight count only while the path is silent, until they are
    /// [counted again](Self::count_again).
    pub(crate) fn set_aside(&mut self, bytes: u64) {
        self.in_flight -= bytes;
        self.set_aside += bytes;
    }

    /// Bytes that were set aside count as in flight.
    pub(crate) fn count_again(&mut self, bytes: u64) {
        self.in_flight += bytes;
        self.set_aside -= bytes;
    }

    /// When a QP that waits for the pace alone can go on.
    pub(super) fn released_at(&self) -> Option<Instant> {
        if self.waiting.is_empty() || !self.has_room(0, 1) {
            return None;
        }
        let room = self.window().saturating_sub(self.taken() + 1);
        self.next_at.max(self.leaving.map(|leaving| leaving.at_most(room)))
    }

    /// Bytes were sent, or asked for, in packets so long; `granted` of them out of what a QP was
    /// released for.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, packet: u64, granted: u64) {
        self.on_sent_ahead(bytes, granted);
        self.next_at = self.congestion.pace(now, self.next_at, bytes, packet);
    }

    /// The same of what waits for no pace: nobody else waits longer because of it.
    pub(crate) fn on_sent_ahead(&mut self, bytes: u64, granted: u64) {
        // CONG-034
        self.granted -= granted;
        if let Some(trial) = self.trial.as_mut().filter(|_| granted > 0) {
            trial.left = trial.left.saturating_sub(1);
        }
        self.in_flight += bytes;
    }

    /// A QP gives back what it was released for.
    pub(crate) fn give_back(&mut self, granted: u64) {
        self.granted -= granted;
    }

    /// Bytes in flight have arrived. Returns why the window was cut, if it was.
    pub(crate) fn on_delivered(&mut self, now: Instant, delivered: Delivered) -> Option<CutCause> {
        self.first_window = None;
        let cut = self.congestion.on_delivered(now, self.in_flight, delivered);
        self.in_flight -= delivered.bytes;
        cut
    }

    /// Bytes in flight were lost on the way. Returns why the window was cut, if it was.
    pub(crate) fn on_lost(&mut self, now: Instant, lost: Lost) -> Option<CutCause> {
        let cut = self.congestion.on_lost(now, self.in_flight, lost);
        self.in_flight -= lost.bytes;
        cut
    }

    /// Bytes in flight are sent again, because the peer takes nothing behind what it has missed.
    pub(crate) fn on_rewound(&mut self, now: Instant, bytes: u64, round_trip: Option<Duration>) {
        let left = self.leaving(now);
        self.in_flight -= bytes;
        self.congestion.on_rewound(self.in_flight);
        // REPAIR-060
        self.leaving = round_trip.map(|round_trip| Leaving {
            bytes: bytes + left,
            from: now,
            // It takes time, or the next step would be due for ever.
            step: (round_trip / LEAVING_STEPS).max(Duration::from_nanos(1)),
        });
    }

    /// Bytes are in flight no more, and nothing is known of why: the QP has ended.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.in_flight -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::INITIAL_WINDOW;
    use crate::tuning::CongestionControl;

    const US: Duration = Duration::from_micros(1);
    const TRAIN: u64 = INITIAL_WINDOW / LEAVING_STEPS as u64;

    /// A lane whose window was filled at once, and the time.
    fn filled() -> (Lane, Instant) {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let now = Instant::now();
        let mut lane = Lane::new(CongestionControl::default(), None);
        lane.on_sent(now, INITIAL_WINDOW, 1024, 0);
        (lane, now)
    }

    #[test]
    fn a_rewound_window_is_sent_again_in_trains_over_a_round_trip() {
        let (mut lane, mut now) = filled();
        lane.on_rewound(now, INITIAL_WINDOW, Some(800 * US));
        for train in 1..=u64::from(LEAVING_STEPS) {
            assert!(lane.admits(now, TRAIN), "train {train}");
            lane.on_sent(now, TRAIN, 1024, 0);
            assert!(!lane.admits(now, 1), "train {train}");
            lane.wait(Qpn::new(17), Standing::Answered);
            let next = (train < u64::from(LEAVING_STEPS)).then_some(now + 100 * US);
            assert_eq!(lane.released_at(), next);
            assert_eq!(lane.release(now), None);
            lane.waiting = Waiting::default();
            now += 100 * US;
        }
    }

    #[test]
    fn a_window_sent_again_after_a_silence_goes_in_trains_too() {
        let (mut lane, now) = filled();
        let later = now + 8000 * US;
        lane.on_rewound(later, INITIAL_WINDOW, Some(800 * US));
        assert!(lane.admits(later, TRAIN));
        lane.on_sent(later, TRAIN, 1024, 0);
        assert!(!lane.admits(later, 1));
        assert!(lane.admits(later + 100 * US, TRAIN));
    }

    #[test]
    fn a_turn_is_no_larger_than_the_room_beside_bytes_that_leave_the_path() {
        let (mut lane, now) = filled();
        lane.on_rewound(now, INITIAL_WINDOW, Some(800 * US));
        lane.wait(Qpn::new(17), Standing::Answered);
        assert_eq!(lane.release(now), Some((Qpn::new(17), TRAIN)));
    }

    #[test]
    fn a_time_at_which_bytes_have_left_is_never_now_while_they_are_there() {
        let (mut lane, now) = filled();
        lane.on_rewound(now, INITIAL_WINDOW, Some(Duration::from_nanos(3)));
        lane.on_sent(now, TRAIN, 1024, 0);
        lane.wait(Qpn::new(17), Standing::Answered);
        assert_eq!(lane.release(now), None);
        assert!(lane.released_at() > Some(now));
    }

    #[test]
    fn a_trial_is_one_packet_more_than_there_is_room_for_and_the_next_after_a_pause_is_two() {
        let (mut lane, now) = filled();
        let [one, other] = [17, 18].map(Qpn::new);
        lane.wait(one, Standing::Doubted);
        lane.wait(other, Standing::Doubted);
        assert_eq!(lane.release(now), None);
        lane.on_silence(now, 100 * US, 1);
        // Who has no use for it leaves it to the next.
        assert_eq!(lane.release(now), Some((one, 1)));
        assert_eq!(lane.release(now), None);
        lane.give_back(1);
        assert_eq!(lane.release(now), Some((other, 1)));
        lane.on_sent(now, 1088, 1088, 1);
        lane.wait(one, Standing::Doubted);
        let before = now + 99 * US;
        lane.on_silence(before, 100 * US, 1);
        assert_eq!(lane.release(before), None);
        let after = now + 100 * US;
        lane.on_silence(after, 100 * US, 1);
        let more = [20, 21].map(Qpn::new);
        more.iter().for_each(|&qpn| lane.wait(qpn, Standing::Doubted));
        assert_eq!(lane.release(after), Some((one, 1)));
        assert_eq!(lane.release(after), Some((more[0], 1)));
        assert_eq!(lane.release(after), None);
    }

    #[test]
    fn a_trial_of_a_qp_that_may_have_no_peer_leaves_one_to_a_qp_whose_peer_answers() {
        let (mut lane, now) = filled();
        let [untried, one, other] = [17, 18, 19].map(Qpn::new);
        lane.wait(untried, Standing::Untried);
        lane.on_silence(now, 100 * US, 1);
        assert_eq!(lane.release(now), Some((untried, 1)));
        lane.on_sent(now, 1088, 1088, 1);
        lane.wait(untried, Standing::Untried);
        assert_eq!(lane.release(now), None);
        lane.wait(one, Standing::Answered);
        assert_eq!(lane.release(now), Some((one, 1)));
        lane.on_sent(now, 1088, 1088, 1);
        lane.wait(other, Standing::Answered);
        assert_eq!(lane.release(now), None);
    }

    #[test]
    fn a_flight_set_aside_leaves_room_while_others_are_answered() {
        let (mut lane, now) = filled();
        assert!(!lane.admits(now, 1));
        lane.set_aside(INITIAL_WINDOW);
        assert!(lane.admits(now, INITIAL_WINDOW));
        lane.on_silence(now, 100 * US, 1);
        assert!(!lane.admits(now, 1));
        lane.on_heard();
        assert!(lane.admits(now, INITIAL_WINDOW));
        lane.count_again(INITIAL_WINDOW);
        assert!(!lane.admits(now, INITIAL_WINDOW));
    }

    /// Where each packet takes more than a round trip of the pace.
    #[test]
    fn a_packet_sent_ahead_keeps_nobody_waiting_for_the_pace() {
        let (mut lane, now) = filled();
        lane.on_sent_ahead(INITIAL_WINDOW, 0);
        assert_eq!(lane.in_flight(), 2 * INITIAL_WINDOW);
        assert!(!lane.is_paced());
        lane.on_sent(now, 2 * INITIAL_WINDOW, 1024, 0);
        assert!(lane.is_paced());
    }
}
