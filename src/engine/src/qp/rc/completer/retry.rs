//! When to give up waiting: the ACK timeout, the RNR timer, and the early probe.

use super::readiness::Readiness;
use crate::limits::{
    MAX_PROBE_INTERVAL, MAX_UNKNOWN_ACK_TIMEOUT, MIN_ACK_TIMEOUT, UNKNOWN_ROUND_TRIP,
};
use crate::path::{Path, RoundTrip, Sample};
use crate::qp::parameters::RequesterParameters;
use crate::qp::rc::values::{Allowance, Probed, Sent};
use std::num::NonZeroU8;
use std::time::{Duration, Instant};
use urxe_types::Psn;

/// Which timer ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// The ACK timeout: a try is lost.
    Ack,
    /// The answer is late: ask again, at no cost in tries.
    Probe,
    /// The RNR wait is over.
    Rnr,
}

/// The timers and tries of one requester.
#[derive(Debug)]
pub(super) struct Retry {
    /// The ACK timeout; `None` waits for ever.
    ack_timeout: Option<Duration>,
    /// Tries after a timeout or a sequence error.
    retry_cnt: u8,
    /// Tries after an RNR NAK; 7 is for ever.
    rnr_retry: u8,
    /// What an answer may take longer than usual, at least, before a probe.
    least_margin: Duration,
    ack_deadline: Option<Instant>,
    probe_deadline: Option<Instant>,
    /// While no round trip of the path is known: which look at it is due at `probe_deadline`,
    /// counted from 1. 0 if a probe is due then.
    looks: u8,
    /// Both timers run from this time on, and from no earlier.
    armed_at: Option<Instant>,
    /// Something was sent since the last ACK timeout, and since all is to be sent again.
    has_sent: bool,
    rnr_deadline: Option<Instant>,
    /// Tries left before a timeout or sequence error ends the QP.
    tries: u8,
    /// Tries left before an RNR NAK ends the QP; 7 stays 7.
    rnr_tries: u8,
    /// A try was taken because this PSN was lost, and nothing was acknowledged since: further
    /// signs of the same loss change nothing.
    lost_at: Option<Psn>,
    /// The same for the PSN that the peer said to miss, which may not be the oldest without its
    /// answer.
    missing_at: Option<Psn>,
    /// ACK timeouts since the last progress.
    timeouts: u8,
    /// Probes since the last progress.
    probes: u8,
    /// What the path had [heard](crate::path::Path::heard) at the first of them.
    heard: u16,
    /// The [silences](Path::silences) of the path before the last answer; `None` if there was none
    /// since the ACK timeout.
    answered_after: Option<NonZeroU8>,
    /// A packet whose acknowledgement is being timed.
    timed: Option<Timed>,
    /// The last probe.
    probed: Option<Probed>,
    /// The oldest packet when its answer was late, which may come all the same.
    late: Option<Psn>,
    readiness: Readiness,
}

/// A packet whose acknowledgement is being timed.
#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: Psn,
    at: Instant,
    /// It was sent again meanwhile, or waits at the peer for what was: when it arrived will not be
    /// known.
    is_ambiguous: bool,
}

impl Retry {
    pub(super) fn new(parameters: RequesterParameters, least_margin: Duration) -> Retry {
        Retry {
            ack_timeout: parameters.ack_timeout,
            retry_cnt: parameters.retry_cnt,
            rnr_retry: parameters.rnr_retry,
            least_margin,
            ack_deadline: None,
            probe_deadline: None,
            looks: 0,
            armed_at: None,
            has_sent: false,
            rnr_deadline: None,
            tries: parameters.retry_cnt,
            rnr_tries: parameters.rnr_retry,
            lost_at: None,
            missing_at: None,
            timeouts: 0,
            probes: 0,
            heard: 0,
            answered_after: None,
            timed: None,
            probed: None,
            late: None,
            readiness: Readiness::new(),
        }
    }

    /// Goes on with these parameters. Tries count by them from the next progress on.
    pub(super) fn update(&mut self, parameters: RequesterParameters) {
        self.ack_timeout = parameters.ack_timeout;
        self.retry_cnt = parameters.retry_cnt;
        self.rnr_retry = parameters.rnr_retry;
    }

    /// What may be sent to a peer that may be short of receives.
    pub(super) fn allowance(&self, path: &Path) -> Allowance {
        Allowance {
            may_send: self.readiness.may_send(),
            is_next_the_last: self.readiness.is_next_the_last(),
            standing: path.standing(self.answered_after),
        }
    }

    /// Takes one of the tries after a timeout or sequence error. Returns whether there was one.
    pub(super) fn take_try(&mut self) -> bool {
        let left = self.tries.checked_sub(1);
        self.tries = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes one of the tries after an RNR NAK. Returns whether there was one.
    pub(super) fn take_rnr_try(&mut self) -> bool {
        // RC-REQ-039: the peer is there: only its silence uses up the other tries.
        if !fault!(RnrUsesRetryCnt) {
            self.tries = self.retry_cnt;
        } else if !self.take_try() {
            return false;
        }
        match self.rnr_tries {
            0 => return false,
            // RC-REQ-024
            7 if !fault!(RnrSevenIsFinite) => {}
            // RC-REQ-023
            _ => self.rnr_tries -= 1,
        }
        true
    }

    /// Whether a try was taken because `psn` was lost, and nothing was acknowledged since.
    pub(super) fn has_lost_at(&self, psn: Psn) -> bool {
        self.lost_at == Some(psn)
    }

    /// Whether a try was taken because the peer misses `psn`, and nothing was acknowledged since.
    pub(super) fn is_known_missing(&self, psn: Psn) -> bool {
        self.has_lost_at(psn) || self.missing_at == Some(psn)
    }

    /// Whether the requester must keep silent because of an RNR NAK.
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.rnr_deadline.is_some()
    }

    /// The next time at which [`expire`](Self::expire) has something to say.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.ack_deadline, self.probe_deadline, self.rnr_deadline].into_iter().flatten().min()
    }

    /// Whether a timer has run out by `now`.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        let probe = self.probe_deadline.filter(|_| self.looks == 0);
        [self.ack_deadline, probe, self.rnr_deadline].into_iter().flatten().any(|at| at <= now)
    }

    /// A packet was sent.
    pub(super) fn on_sent(&mut self, now: Instant, sent: Sent, round_trip: &RoundTrip) {
        if sent.asks_for_ack && !sent.is_repeated {
            self.timed.get_or_insert(Timed { psn: sent.psn, at: now, is_ambiguous: false });
        }
        if sent.takes_receive {
            self.readiness.on_sent(sent.psn);
        }
        self.on_sent_any(now, round_trip);
    }

    /// Something was sent, be it again: from now on it is waited for.
    pub(super) fn on_sent_any(&mut self, now: Instant, round_trip: &RoundTrip) {
        // RC-REQ-058
        if !std::mem::replace(&mut self.has_sent, true) {
            self.ack_deadline = None;
        }
        self.arm(now, round_trip);
    }

    /// Something is yet to be answered.
    pub(super) fn arm(&mut self, now: Instant, round_trip: &RoundTrip) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.ack_deadline_from(now, round_trip);
        }
        if self.probe_deadline.is_none() {
            self.arm_probe(now, round_trip);
        }
    }

    /// A probe is due if there is no answer by when one comes on this path.
    fn arm_probe(&mut self, now: Instant, round_trip: &RoundTrip) {
        let interval = self.probe_interval(round_trip);
        // RC-REQ-059
        (self.looks, self.probe_deadline) = match round_trip.smoothed() {
            Some(_) => (0, Some(now + interval)),
            None => (1, Some(now + interval.min(FIRST_LOOK))),
        };
    }

    /// How much longer an answer may take that was waited for until a look; `None` if it is late.
    fn left_after_look(&mut self, round_trip: &RoundTrip) -> Option<Duration> {
        let looks = std::mem::take(&mut self.looks);
        if looks == 0 {
            return None;
        }
        let waited = FIRST_LOOK * ((1 << looks) - 1);
        let left = self.probe_interval(round_trip).saturating_sub(waited);
        if left.is_zero() {
            return None;
        }
        if round_trip.smoothed().is_some() {
            return Some(left);
        }
        self.looks = looks + 1;
        Some(left.min(FIRST_LOOK * (1 << looks)))
    }

    /// The peer has answered, after these [silences](Path::silences) of its path.
    pub(super) fn on_answered(&mut self, silences: NonZeroU8) {
        self.answered_after = Some(silences);
    }

    /// Another probe is due, and its path has heard so much until now. Returns whether the peer is
    /// silent, and nothing was heard of others either.
    pub(super) fn note_silence(&mut self, heard: u16) -> bool {
        if self.probes == 1 {
            self.heard = heard;
        }
        self.is_silent() && self.heard == heard
    }

    /// Whether the peer leaves probes unanswered.
    pub(super) fn is_silent(&self) -> bool {
        self.probes > 1
    }

    /// Whether the peer leaves probes unanswered, or has no receive.
    pub(super) fn is_kept_waiting(&self) -> bool {
        self.is_silent() || self.readiness.is_refused()
    }

    /// Whether it does so while something is heard of others.
    pub(super) fn is_silent_beside_others(&self, heard: u16) -> bool {
        self.is_silent() && self.heard != heard
    }

    fn end_silence(&mut self) {
        self.timeouts = 0;
        self.probes = 0;
    }

    /// Whether the probe that is due is the first since there was progress.
    pub(super) fn is_first_probe(&self) -> bool {
        self.probes == 1
    }

    /// The oldest packet was repeated to draw an answer.
    pub(super) fn on_probed(&mut self, probed: Probed) {
        self.probed = Some(probed);
        self.readiness.on_oldest_repeated(probed.psn);
        self.doubt_sample(|timed| timed == probed.psn);
    }

    /// The answer to the oldest packet is late, which is sent again.
    pub(super) fn on_late(&mut self, oldest: Psn) {
        self.late = Some(oldest);
    }

    /// Whether this packet was sent again because its answer was late; asked once.
    pub(super) fn take_late(&mut self, psn: Psn) -> bool {
        self.late.take_if(|late| *late == psn).is_some()
    }

    /// The probe that the peer has if it answers `psn`, so that what was sent before and has not
    /// arrived was lost; asked once. An answer that comes too early is to the packet that
    /// was probed for. With `tells_all` the answer names all that the peer has, and tells as much
    /// if it has gone on from the probe.
    pub(super) fn take_probed(
        &mut self,
        now: Instant,
        psn: Psn,
        tells_all: bool,
        round_trip: &RoundTrip,
    ) -> Option<Probed> {
        // REPAIR-065
        let has_it = |probed: Psn| probed == psn || (tells_all && probed.precedes(psn));
        let probed = self.probed.take_if(|probed| has_it(probed.psn))?;
        let is_answer = round_trip.least().is_none_or(|least| now >= probed.at + least * 3 / 4);
        // RC-REQ-027
        (is_answer && probed.psn.next().precedes(probed.sent)).then_some(probed)
    }

    /// The time that the packet being timed took, if it is one of those that are known to have
    /// arrived.
    pub(super) fn take_sample(
        &mut self,
        now: Instant,
        has_arrived: impl Fn(Psn) -> bool,
    ) -> Option<Sample> {
        let timed = self.timed.take_if(|timed| has_arrived(timed.psn))?;
        // What it tells is to be waited for from now on.
        self.armed_at = None;
        let took = now.saturating_duration_since(timed.at);
        Some(match timed.is_ambiguous {
            // Karn's rule (RFC 6298).
            true => Sample::AtMost(took),
            false => Sample::Exact(took),
        })
    }

    /// Everything before `una` is acknowledged: the tries count afresh.
    pub(super) fn on_acknowledged(&mut self, una: Psn) {
        self.restore_tries();
        self.rnr_tries = self.rnr_retry;
        self.readiness.on_acknowledged(una);
        self.lost_at = None;
        self.missing_at = None;
    }

    /// The peer has carried out or answered something more, be it after what is missing.
    pub(super) fn restore_tries(&mut self) {
        // RC-REQ-019
        if !fault!(ProgressRestoresNothing) {
            self.tries = self.retry_cnt;
        }
    }

    /// The peer has done something new. `waiting` says whether something is yet to be answered.
    pub(super) fn on_progress(&mut self, now: Instant, waiting: bool, round_trip: &RoundTrip) {
        // The timers run from now already: of many answers that come together, one sets them.
        let is_armed = self.armed_at == Some(now)
            && self.probe_deadline.is_some()
            && waiting
            && (self.probes, self.timeouts) == (0, 0);
        self.end_silence();
        if self.is_rnr_waiting() || is_armed {
            return;
        }
        self.ack_deadline = None;
        self.probe_deadline = None;
        if waiting {
            self.arm(now, round_trip);
            self.armed_at = Some(now);
        }
    }

    /// When a try is lost that begins now. A timeout that is shorter than what the path takes would
    /// lose tries, and repeat everything, for nothing: it is made as long as that needs.
    fn ack_deadline_from(&self, now: Instant, round_trip: &RoundTrip) -> Option<Instant> {
        let timeout = match self.ack_timeout {
            Some(_) if fault!(TimeoutNever) => return None,
            None if fault!(TimeoutOfCodeZero) => MIN_ACK_TIMEOUT,
            timeout => timeout?,
        };
        let path = match round_trip.smoothed() {
            // RC-REQ-056
            Some(smoothed) => {
                let least = round_trip.least().unwrap_or(smoothed);
                let longest = (timeout * 4).max(UNKNOWN_ROUND_TRIP) + least * 4;
                (smoothed * 4).min(MAX_PROBE_INTERVAL).min(longest)
            }
            // RC-REQ-043: the standard lets it be four times as long.
            None => {
                let doubled = MIN_ACK_TIMEOUT * (1 << self.timeouts.min(MAX_DOUBLINGS));
                let late = round_trip.doubtful() * 2;
                let longer = match timeout < MIN_ACK_TIMEOUT {
                    true => late.max(doubled.min(MAX_UNKNOWN_ACK_TIMEOUT)),
                    false if round_trip.is_doubtful_twice() => late,
                    false => Duration::ZERO,
                };
                longer.max((timeout * 4).min(UNKNOWN_ROUND_TRIP))
            }
        };
        // RC-REQ-020
        let deadline = timeout.max(MIN_ACK_TIMEOUT).max(path);
        Some(now + deadline / if fault!(TimeoutEarly) { 8 } else { 1 })
    }

    /// How long the next probe is waited for.
    pub(super) fn probe_interval(&self, round_trip: &RoundTrip) -> Duration {
        let first = round_trip.probe_timeout(self.least_margin);
        // RC-REQ-026
        let doubled = first * (1 << self.probes.min(MAX_DOUBLINGS));
        doubled.min(MAX_PROBE_INTERVAL).max(first)
    }

    /// Something was lost that is sent again from `psn` on.
    pub(super) fn on_lost(&mut self, psn: Psn) {
        self.lost_at = Some(psn);
    }

    /// The peer misses `psn`, which is sent again, and waited for from now on.
    pub(super) fn on_missing(&mut self, now: Instant, psn: Psn, round_trip: &RoundTrip) {
        self.missing_at = Some(psn);
        self.doubt_sample(|timed| !timed.precedes(psn));
        self.on_progress(now, true, round_trip);
    }

    /// Packets were lost, and are sent again alone.
    pub(super) fn on_losses(&mut self, is_lost: impl Fn(Psn) -> bool) {
        self.doubt_sample(is_lost);
    }

    /// When the packet being timed arrives will not be known, if it is one of these.
    fn doubt_sample(&mut self, is_one: impl Fn(Psn) -> bool) {
        if let Some(timed) = self.timed.as_mut().filter(|timed| is_one(timed.psn)) {
            // RC-REQ-054
            timed.is_ambiguous = true;
        }
    }

    /// Everything is to be sent again, for this PSN was lost.
    pub(super) fn on_rewind(&mut self, psn: Psn) {
        self.forget_sent();
        self.lost_at = Some(psn);
    }

    /// Everything is to be sent again, on another path, of which nothing is known by this.
    pub(super) fn on_other_path(&mut self) {
        self.forget_sent();
        self.lost_at = None;
        self.answered_after = None;
    }

    /// What was sent tells nothing any more.
    fn forget_sent(&mut self) {
        self.has_sent = false;
        self.probed = None;
        self.missing_at = None;
        self.doubt_sample(|_| true);
        self.readiness.on_rewind();
    }

    /// The peer had no receive, and asks for this wait. Until it is over there is silence, and the
    /// other timers rest.
    pub(super) fn wait_rnr(&mut self, now: Instant, wait: Duration) {
        let wait = self.readiness.on_refused(now, wait) / if fault!(RnrWaitShort) { 16 } else { 1 };
        // RC-REQ-025: the other two timers do not run meanwhile.
        self.rnr_deadline = Some(now + wait);
        self.has_sent = false;
        self.ack_deadline = None;
        self.probe_deadline = None;
        self.end_silence();
    }

    /// Stops everything.
    pub(super) fn stop(&mut self) {
        self.ack_deadline = None;
        self.probe_deadline = None;
        self.rnr_deadline = None;
    }

    /// Takes one timer that has run out by `now`. An ACK timeout arms itself again, a probe with
    /// twice the interval. While a QP waits for its turn to send again, it loses no tries.
    pub(super) fn expire(&mut self, now: Instant, round_trip: &RoundTrip) -> Option<Expired> {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
            self.lost_at = None;
            self.missing_at = None;
            return Some(Expired::Rnr);
        }
        if self.ack_deadline.is_some_and(|at| at <= now) {
            let is_try_lost = std::mem::take(&mut self.has_sent);
            if is_try_lost {
                self.timeouts = self.timeouts.saturating_add(1);
                self.answered_after = None;
            }
            self.ack_deadline = self.ack_deadline_from(now, round_trip);
            if is_try_lost {
                return Some(Expired::Ack);
            }
        }
        if self.probe_deadline.is_some_and(|at| at <= now) {
            if let Some(left) = self.left_after_look(round_trip) {
                self.probe_deadline = Some(now + left);
                return None;
            }
            self.probes = self.probes.saturating_add(1);
            self.arm_probe(now, round_trip);
            return Some(Expired::Probe);
        }
        None
    }
}

/// On a path of which no round trip is known, a QP looks after this time whether one is by now, and
/// then after twice as long, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// Enough to come from microseconds to the longest interval.
const MAX_DOUBLINGS: u8 = 16;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
mod tests {
    use super::*;
    use urxe_types::{RnrTimer, TimeCode};

    const MS: Duration = Duration::from_millis(1);

    fn ack_timeout(code: u8) -> Option<Duration> {
        TimeCode::new(code).ack_timeout()
    }

    fn retry(ack_timeout: Option<Duration>, least_margin: Duration) -> Retry {
        let parameters =
            RequesterParameters { max_rd_atomic: 1, ack_timeout, retry_cnt: 7, rnr_retry: 7 };
        Retry::new(parameters, least_margin)
    }

    fn unknown() -> RoundTrip {
        RoundTrip::default()
    }

    /// A path on which every answer took so long.
    fn known(sample: Duration) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        for _ in 0..50 {
            round_trip.on_sample(Instant::now(), Sample::Exact(sample));
        }
        round_trip
    }

    #[test]
    fn codes_have_the_durations_of_the_standard() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(12).duration(), Duration::from_micros(640));
        assert_eq!(RnrTimer::new(31).duration(), Duration::from_micros(491_520));
    }

    #[test]
    fn an_ack_timeout_recurs_until_there_is_progress() {
        let (t0, path) = (Instant::now(), known(MS));
        let mut retry = retry(Some(10 * MS), Duration::from_secs(9));
        retry.on_sent_any(t0, &path);
        assert_eq!(retry.expire(t0 + 9 * MS, &path), None);
        assert_eq!(retry.expire(t0 + 10 * MS, &path), Some(Expired::Ack));
        retry.on_sent_any(t0 + 10 * MS, &path);
        assert_eq!(retry.expire(t0 + 19 * MS, &path), None);
        assert_eq!(retry.expire(t0 + 20 * MS, &path), Some(Expired::Ack));
        retry.on_progress(t0 + 21 * MS, false, &path);
        assert_eq!(retry.deadline(), None);
    }

    /// RC-REQ-058
    #[test]
    fn an_ack_timeout_before_anything_is_sent_again_costs_nothing_and_runs_anew_then() {
        let (t0, path) = (Instant::now(), known(MS));
        let mut retry = retry(Some(10 * MS), Duration::from_secs(9));
        retry.on_sent_any(t0, &path);
        assert_eq!(retry.expire(t0 + 10 * MS, &path), Some(Expired::Ack));
        retry.on_rewind(Psn::new(7));
        for tens in 2..9 {
            assert_eq!(retry.expire(t0 + tens * 10 * MS, &path), None, "it waits for its turn");
        }
        let sent_at = t0 + 95 * MS;
        retry.on_sent_any(sent_at, &path);
        assert_eq!(retry.expire(sent_at + 9 * MS, &path), None);
        assert_eq!(retry.expire(sent_at + 10 * MS, &path), Some(Expired::Ack));
    }

    #[test]
    fn probes_wait_a_round_trip_and_what_it_varies_and_then_back_off() {
        let (t0, path) = (Instant::now(), known(2 * MS));
        let mut retry = retry(None, MS);
        retry.arm(t0, &path);
        assert_eq!(retry.deadline(), Some(t0 + 3 * MS));
        assert_eq!(retry.expire(t0 + 3 * MS, &path), Some(Expired::Probe));
        assert_eq!(retry.deadline(), Some(t0 + 9 * MS));
        retry.on_progress(t0 + 4 * MS, true, &path);
        assert_eq!(retry.deadline(), Some(t0 + 7 * MS), "there is progress");
    }

    #[test]
    fn a_peer_is_silent_from_the_second_probe_on_and_the_path_if_nothing_is_heard_of_it() {
        let (mut retry, round_trip) = (retry(ack_timeout(20), MS), known(MS));
        let mut now = Instant::now();
        let mut probe = |retry: &mut Retry, heard| {
            retry.arm(now, &round_trip);
            now = retry.deadline().unwrap();
            assert_eq!(retry.expire(now, &round_trip), Some(Expired::Probe));
            let path_is_silent = retry.note_silence(heard);
            (retry.is_silent(), path_is_silent)
        };
        assert_eq!(probe(&mut retry, 65_535), (false, false));
        assert_eq!(probe(&mut retry, 65_535), (true, true));
        assert_eq!(probe(&mut retry, 0), (true, false));
        retry.on_progress(Instant::now(), false, &round_trip);
        assert!(!retry.is_silent());
        assert_eq!(probe(&mut retry, 1), (false, false));
        assert_eq!(probe(&mut retry, 1), (true, true), "what was heard before says nothing");
    }

    #[test]
    fn nothing_is_late_on_a_path_of_which_nothing_is_known() {
        let t0 = Instant::now();
        let mut retry = retry(None, MS);
        retry.arm(t0, &unknown());
        let looks = std::iter::from_fn(|| {
            let at = retry.deadline().unwrap();
            retry.expire(at, &unknown()).is_none().then_some((at - t0).as_millis())
        });
        assert_eq!(looks.collect::<Vec<_>>(), [1, 3, 7, 15, 31, 63, 127]);
        let again = t0 + UNKNOWN_ROUND_TRIP;
        assert_eq!(retry.deadline(), Some(again + FIRST_LOOK), "the next after the probe");
    }

    /// RC-REQ-059
    #[test]
    fn an_answer_is_late_by_a_round_trip_that_is_known_since_it_is_waited_for() {
        let t0 = Instant::now();
        let mut retry = retry(None, MS);
        retry.arm(t0, &unknown());
        assert_eq!(retry.expire(t0 + MS, &unknown()), None);
        assert_eq!(retry.deadline(), Some(t0 + 3 * MS));
        // Another QP has measured it.
        assert_eq!(retry.expire(t0 + 3 * MS, &known(4 * MS)), None);
        assert_eq!(retry.deadline(), Some(t0 + 5 * MS), "not before one has passed");
        assert_eq!(retry.expire(t0 + 5 * MS, &known(4 * MS)), Some(Expired::Probe));
        retry.on_progress(t0 + 5 * MS, true, &unknown());
        assert_eq!(retry.expire(t0 + 8 * MS, &unknown()), None);
        assert_eq!(retry.expire(t0 + 12 * MS, &known(MS)), Some(Expired::Probe), "it has passed");
    }

    #[test]
    fn an_ack_timeout_is_never_shorter_than_a_tick_or_four_round_trips() {
        let t0 = Instant::now();
        let deadline = |code, path: &RoundTrip| {
            let mut retry = retry(ack_timeout(code), Duration::from_secs(3600));
            retry.arm(t0, path);
            retry.deadline().map(|at| at - t0)
        };
        assert_eq!(deadline(1, &known(Duration::from_micros(1))), Some(MIN_ACK_TIMEOUT));
        assert_eq!(deadline(9, &known(MS)), Some(4 * MS));
        assert_eq!(deadline(9, &known(3 * MS)), Some(12 * MS));
        assert_eq!(deadline(14, &known(3 * MS)), ack_timeout(14));
        // A peer that answers late does not make it endless.
        assert_eq!(deadline(9, &known(3600 * 1000 * MS)), Some(MAX_PROBE_INTERVAL));
    }

    #[test]
    fn an_ack_timeout_on_a_short_path_is_no_longer_than_the_standard_lets_it_be() {
        let t0 = Instant::now();
        // Answers take a millisecond, but for one in eight.
        let mut path = known(MS);
        for at in 0..64 {
            path.on_sample(t0, Sample::Exact(if at % 8 == 7 { 1000 * MS } else { MS }));
        }
        assert!(path.smoothed() > Some(125 * MS));
        let deadline = |code| {
            let mut retry = retry(ack_timeout(code), Duration::from_secs(3600));
            retry.arm(t0, &path);
            retry.deadline().map(|at| at - t0)
        };
        assert_eq!(deadline(14), ack_timeout(16).map(|four_times| four_times + 4 * MS));
        assert_eq!(deadline(8), Some(UNKNOWN_ROUND_TRIP + 4 * MS), "nor does it lose tries");
    }

    #[test]
    fn an_ack_timeout_on_a_path_of_which_nothing_is_known_is_four_times_as_long() {
        let t0 = Instant::now();
        let deadline = |code| {
            let mut retry = retry(ack_timeout(code), Duration::from_secs(3600));
            retry.arm(t0, &unknown());
            retry.ack_deadline.map(|at| at - t0)
        };
        assert_eq!(deadline(1), Some(MIN_ACK_TIMEOUT));
        assert_eq!(deadline(10), ack_timeout(12));
        assert_eq!(deadline(14), Some(UNKNOWN_ROUND_TRIP));
        assert_eq!(deadline(18), ack_timeout(18), "no shorter than the program says");
    }

    #[test]
    fn a_short_ack_timeout_is_doubled_while_nothing_is_known_of_the_path() {
        let (mut now, path) = (Instant::now(), unknown());
        let mut retry = retry(ack_timeout(1), Duration::from_secs(3600));
        for millis in [4, 8, 16, 32, 64, 64] {
            retry.on_sent_any(now, &path);
            assert_eq!(retry.ack_deadline, Some(now + millis * MS));
            now += millis * MS;
            assert_eq!(retry.expire(now, &path), Some(Expired::Ack));
        }
    }

    #[test]
    fn an_ack_timeout_exceeds_four_times_its_code_only_where_no_answer_comes_in_time() {
        let (mut now, mut path) = (Instant::now(), unknown());
        let mut retry = retry(ack_timeout(12), Duration::from_secs(3600));
        for _ in 0..3 {
            retry.on_sent_any(now, &path);
            let four_times = ack_timeout(14).unwrap();
            assert_eq!(retry.ack_deadline, Some(now + four_times));
            now += four_times;
            assert_eq!(retry.expire(now, &path), Some(Expired::Ack));
            // Its packet may have been lost.
            path.on_sample(now, Sample::AtMost(90 * MS));
            retry.on_progress(now, true, &path);
            if path.is_doubtful_twice() {
                break;
            }
        }
        assert_eq!(retry.ack_deadline, Some(now + 180 * MS));
    }

    fn sent(psn: u32) -> Sent {
        let psn = Psn::new(psn);
        Sent { packets: 1, psn, is_repeated: false, asks_for_ack: true, takes_receive: false }
    }

    #[test]
    fn the_answer_to_a_packet_that_was_repeated_took_no_longer_than_it_seems() {
        let (t0, path) = (Instant::now(), known(MS));
        let mut retry = retry(None, MS);
        retry.on_sent(t0, sent(0), &path);
        assert_eq!(retry.take_sample(t0 + 9 * MS, |_| false), None);
        assert_eq!(retry.take_sample(t0 + 9 * MS, |_| true), Some(Sample::Exact(9 * MS)));
        retry.on_sent(t0, sent(0), &path);
        retry.on_rewind(Psn::new(0));
        assert_eq!(retry.take_sample(t0 + 9 * MS, |_| true), Some(Sample::AtMost(9 * MS)));
    }

    #[test]
    fn a_packet_that_was_lost_or_waited_for_one_that_was_is_no_exact_sample() {
        let (t0, path) = (Instant::now(), known(MS));
        let sample = |doubt: &dyn Fn(&mut Retry)| {
            let mut retry = retry(None, MS);
            retry.on_sent(t0, sent(5), &path);
            doubt(&mut retry);
            retry.take_sample(t0 + MS, |_| true)
        };
        let psn = Psn::new;
        assert_eq!(sample(&|retry| retry.on_losses(|lost| lost == psn(5))), at_most(MS));
        assert_eq!(sample(&|retry| retry.on_losses(|lost| lost == psn(4))), exact(MS));
        assert_eq!(sample(&|retry| retry.on_missing(t0, psn(5), &path)), at_most(MS));
        assert_eq!(sample(&|retry| retry.on_missing(t0, psn(4), &path)), at_most(MS));
        assert_eq!(sample(&|retry| retry.on_missing(t0, psn(6), &path)), exact(MS));
    }

    fn exact(time: Duration) -> Option<Sample> {
        Some(Sample::Exact(time))
    }

    fn at_most(time: Duration) -> Option<Sample> {
        Some(Sample::AtMost(time))
    }

    #[test]
    fn an_answer_too_early_to_be_the_probes_ends_nothing() {
        let (t0, path) = (Instant::now(), known(4 * MS));
        let probed = Probed { psn: Psn::new(7), sent: Psn::new(9), repeats_made: 0, at: t0 };
        for (after, expected) in [(2, false), (3, true)] {
            let mut retry = retry(None, MS);
            retry.on_probed(probed);
            assert!(retry.take_probed(t0 + after * MS, Psn::new(8), false, &path).is_none());
            let answered = retry.take_probed(t0 + after * MS, Psn::new(7), false, &path);
            assert_eq!(answered.is_some(), expected);
        }
    }

    /// REPAIR-065
    #[test]
    fn a_peer_that_names_all_it_has_has_a_probe_if_it_has_gone_on_from_it() {
        let (t0, path) = (Instant::now(), known(4 * MS));
        let probed = Probed { psn: Psn::new(7), sent: Psn::new(20), repeats_made: 0, at: t0 };
        let mut retry = retry(None, MS);
        retry.on_probed(probed);
        assert!(retry.take_probed(t0 + 4 * MS, Psn::new(6), true, &path).is_none());
        assert!(retry.take_probed(t0 + 4 * MS, Psn::new(9), true, &path).is_some());
        retry.on_probed(probed);
        retry.on_rewind(Psn::new(7));
        assert!(retry.take_probed(t0 + 4 * MS, Psn::new(9), true, &path).is_none());
    }
}
