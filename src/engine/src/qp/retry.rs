//! When to give up waiting: the ACK timeout, the RNR timer, the early probe, and how much may be
//! in flight meanwhile.

use super::readiness::Readiness;
use crate::limits::{
    INITIAL_WINDOW, MAX_PROBE_INTERVAL, MAX_UNKNOWN_ACK_TIMEOUT, MAX_WINDOW, MIN_ACK_TIMEOUT,
    MIN_WINDOW_PACKETS,
};
use std::time::{Duration, Instant};
use urxe_types::Psn;

/// The ACK timeout of a code: 4.096 us << code; code 0 waits for ever (IBTA 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// Which timer ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The ACK timeout: a try is lost.
    Ack,
    /// The answer is late: ask again, at no cost in tries.
    Probe,
    /// The RNR wait is over.
    Rnr,
}

/// The timers and tries of one requester.
#[derive(Debug)]
pub(crate) struct Retry {
    ack_deadline: Option<Instant>,
    probe_deadline: Option<Instant>,
    rnr_deadline: Option<Instant>,
    /// Tries left before a timeout or sequence error ends the QP.
    pub(crate) tries: u8,
    /// Tries left before an RNR NAK ends the QP; 7 stays 7.
    pub(crate) rnr_tries: u8,
    /// The retransmission began at this PSN, and nothing was acknowledged since: further signs
    /// of the same loss change nothing.
    pub(crate) rewound_at: Option<Psn>,
    probe_interval: Duration,
    /// Twice what was waited for an answer in vain.
    backed_off: Duration,
    smoothed_rtt: Option<Duration>,
    /// A packet whose acknowledgement is being timed, never one sent twice (Karn's rule).
    timed: Option<(Psn, Instant)>,
    /// The PSN that was last repeated as a probe, and the one after all that was sent before.
    probed: Option<(Psn, Psn)>,
    pub(crate) window: Window,
    pub(crate) readiness: Readiness,
}

impl Retry {
    pub(crate) fn new(tries: u8, rnr_tries: u8, mtu: u32) -> Retry {
        Retry {
            ack_deadline: None,
            probe_deadline: None,
            rnr_deadline: None,
            tries,
            rnr_tries,
            rewound_at: None,
            probe_interval: Duration::ZERO,
            backed_off: Duration::ZERO,
            smoothed_rtt: None,
            timed: None,
            probed: None,
            window: Window::new(mtu),
            readiness: Readiness::new(),
        }
    }

    /// Whether the requester must keep silent because of an RNR NAK.
    pub(crate) fn is_rnr_waiting(&self) -> bool {
        self.rnr_deadline.is_some()
    }

    /// The next time at which [`expire`](Self::expire) has something to say.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.ack_deadline, self.probe_deadline, self.rnr_deadline].into_iter().flatten().min()
    }

    /// Something was sent that will be answered.
    pub(crate) fn on_sent(&mut self, now: Instant, timeout: Option<Duration>, min_probe: Duration) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.ack_deadline_from(now, timeout);
        }
        if self.probe_deadline.is_none() {
            self.arm_probe(now, min_probe);
        }
    }

    /// Takes the time until `psn` is acknowledged, unless another packet is being timed.
    pub(crate) fn time_packet(&mut self, now: Instant, psn: Psn) {
        self.timed.get_or_insert((psn, now));
    }

    /// `psn` was repeated to draw an answer, after everything before `sent` was sent.
    pub(crate) fn on_probe_sent(&mut self, psn: Psn, sent: Psn) {
        self.probed = Some((psn, sent));
        self.timed = self.timed.filter(|&(timed, _)| timed != psn);
    }

    /// Whether it is known how long an answer takes on this path.
    pub(crate) fn knows_path(&self) -> bool {
        self.smoothed_rtt.is_some()
    }

    /// Whether an acknowledgement of `psn` means that the peer has the probe and that what was sent
    /// behind it, before it was repeated, was lost; asked once.
    pub(crate) fn take_probed(&mut self, psn: Psn) -> bool {
        self.probed.take().is_some_and(|(probed, sent)| probed == psn && sent != psn.next())
    }

    /// The PSN being timed.
    pub(crate) fn timed_psn(&self) -> Option<Psn> {
        self.timed.map(|(psn, _)| psn)
    }

    /// The timed packet was acknowledged.
    pub(crate) fn on_timed_acknowledged(&mut self, now: Instant) {
        let Some((_, sent)) = self.timed.take() else { return };
        let sample = now.saturating_duration_since(sent);
        self.smoothed_rtt = Some(match self.smoothed_rtt {
            Some(rtt) => (rtt * 7 + sample) / 8,
            None => sample,
        });
    }

    /// Something new was acknowledged: the tries count afresh. `waiting` says whether more is.
    pub(crate) fn on_progress(
        &mut self,
        now: Instant,
        waiting: bool,
        timeout: Option<Duration>,
        min_probe: Duration,
    ) {
        self.rewound_at = None;
        // On a path of which nothing is known, an answer that came at last was maybe late and not
        // lost: what was waited in vain before it is what is known.
        if self.knows_path() {
            self.probe_interval = Duration::ZERO;
        }
        if self.is_rnr_waiting() {
            return;
        }
        self.ack_deadline = self.ack_deadline_from(now, timeout.filter(|_| waiting));
        self.probe_deadline = None;
        if waiting {
            self.arm_probe(now, min_probe);
        }
    }

    /// When a try is lost that begins now. A timeout that is shorter than what the path takes would
    /// lose tries, and repeat everything, for nothing: it is made as long as that needs.
    fn ack_deadline_from(&self, now: Instant, timeout: Option<Duration>) -> Option<Instant> {
        let path = match self.smoothed_rtt {
            Some(_) => self.four_trips(),
            None => self.backed_off.min(MAX_UNKNOWN_ACK_TIMEOUT),
        };
        timeout.map(|timeout| now + timeout.max(MIN_ACK_TIMEOUT).max(path))
    }

    /// Four times as long as an answer took so far.
    fn four_trips(&self) -> Duration {
        self.smoothed_rtt.map_or(Duration::ZERO, |rtt| rtt * 4).min(MAX_PROBE_INTERVAL)
    }

    fn arm_probe(&mut self, now: Instant, min_probe: Duration) {
        if self.probe_interval.is_zero() {
            self.probe_interval = self.four_trips().max(min_probe);
        }
        self.probe_deadline = Some(now + self.probe_interval);
    }

    /// A retransmission begins at `psn`.
    pub(crate) fn on_rewind(&mut self, psn: Psn) {
        self.rewound_at = Some(psn);
        self.timed = None;
        self.readiness.on_rewind();
    }

    /// Silence until `now + wait`; the other timers rest.
    pub(crate) fn wait_rnr(&mut self, now: Instant, wait: Duration) {
        self.rnr_deadline = Some(now + wait);
        self.ack_deadline = None;
        self.probe_deadline = None;
    }

    /// Stops everything.
    pub(crate) fn stop(&mut self) {
        self.ack_deadline = None;
        self.probe_deadline = None;
        self.rnr_deadline = None;
    }

    /// Takes one timer that has run out by `now`. An ACK timeout arms itself again, a probe with
    /// twice the interval.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Option<Duration>) -> Option<Expired> {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
            return Some(Expired::Rnr);
        }
        if self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = self.ack_deadline_from(now, timeout);
            return Some(Expired::Ack);
        }
        if self.probe_deadline.is_some_and(|at| at <= now) {
            let doubled = (self.probe_interval * 2).min(MAX_PROBE_INTERVAL);
            self.probe_interval = self.probe_interval.max(doubled);
            self.backed_off = self.probe_interval;
            self.probe_deadline = Some(now + self.probe_interval);
            return Some(Expired::Probe);
        }
        None
    }
}

/// How many packets may be in flight: grows with what is acknowledged and is halved by a loss, as
/// TCP Reno's congestion window (RFC 5681).
#[derive(Debug)]
pub(crate) struct Window {
    packets: u32,
    max: u32,
    threshold: u32,
    /// Packets acknowledged towards the next growth by one.
    credit: u32,
}

impl Window {
    fn new(mtu: u32) -> Window {
        let packets = (INITIAL_WINDOW / mtu).max(MIN_WINDOW_PACKETS);
        let max = (MAX_WINDOW / mtu).max(packets);
        Window { packets, max, threshold: max, credit: 0 }
    }

    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    pub(crate) fn on_acknowledged(&mut self, packets: u32) {
        if self.packets < self.threshold {
            self.packets = (self.packets + packets).min(self.threshold);
            return;
        }
        self.credit += packets;
        if self.credit >= self.packets {
            self.credit -= self.packets;
            self.packets = (self.packets + 1).min(self.max);
        }
    }

    pub(crate) fn on_loss(&mut self) {
        self.packets = (self.packets / 2).max(MIN_WINDOW_PACKETS);
        self.threshold = self.packets;
        self.credit = 0;
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
mod tests {
    use super::*;
    use urxe_types::RnrTimer;

    const MS: Duration = Duration::from_millis(1);

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
        let t0 = Instant::now();
        let mut retry = Retry::new(7, 7, 1024);
        let timeout = Some(10 * MS);
        retry.on_sent(t0, timeout, Duration::from_secs(9));
        assert_eq!(retry.expire(t0 + 9 * MS, timeout), None);
        assert_eq!(retry.expire(t0 + 10 * MS, timeout), Some(Expired::Ack));
        assert_eq!(retry.expire(t0 + 19 * MS, timeout), None);
        assert_eq!(retry.expire(t0 + 20 * MS, timeout), Some(Expired::Ack));
        retry.on_progress(t0 + 21 * MS, false, timeout, MS);
        assert_eq!(retry.deadline(), None);
    }

    #[test]
    fn probes_back_off_and_wait_at_least_four_round_trips() {
        let t0 = Instant::now();
        let mut retry = Retry::new(7, 7, 1024);
        retry.time_packet(t0, Psn::new(0));
        retry.on_timed_acknowledged(t0 + 2 * MS);
        retry.on_sent(t0, None, MS);
        assert_eq!(retry.deadline(), Some(t0 + 8 * MS));
        assert_eq!(retry.expire(t0 + 8 * MS, None), Some(Expired::Probe));
        assert_eq!(retry.deadline(), Some(t0 + 24 * MS));
    }

    #[test]
    fn an_ack_timeout_is_never_shorter_than_a_tick_or_four_round_trips() {
        let t0 = Instant::now();
        let deadline = |code, rtt: Option<Duration>| {
            let mut retry = Retry::new(7, 7, 1024);
            if let Some(rtt) = rtt {
                retry.time_packet(t0, Psn::new(0));
                retry.on_timed_acknowledged(t0 + rtt);
            }
            retry.on_sent(t0, ack_timeout(code), Duration::from_secs(3600));
            retry.deadline().map(|at| at - t0)
        };
        assert_eq!(deadline(1, None), Some(4 * MS));
        assert_eq!(deadline(9, Some(MS)), Some(4 * MS));
        assert_eq!(deadline(9, Some(3 * MS)), Some(12 * MS));
        assert_eq!(deadline(14, Some(3 * MS)), ack_timeout(14));
        // A peer that answers late does not make it endless.
        assert_eq!(deadline(9, Some(3600 * 1000 * MS)), Some(MAX_PROBE_INTERVAL));
        assert_eq!(deadline(0, Some(MS)), Some(Duration::from_secs(3600)), "that of the probe");
    }

    #[test]
    fn time_waited_in_vain_counts_until_the_path_is_known() {
        let t0 = Instant::now();
        let timeout = ack_timeout(1);
        let mut retry = Retry::new(7, 7, 1024);
        retry.time_packet(t0, Psn::new(1));
        retry.on_sent(t0, timeout, MS);
        assert_eq!(retry.expire(t0 + MS, timeout), Some(Expired::Probe));
        retry.on_probe_sent(Psn::new(0), Psn::new(2));
        assert_eq!(retry.timed_psn(), Some(Psn::new(1)), "another packet was repeated");
        assert_eq!(retry.expire(t0 + 3 * MS, timeout), Some(Expired::Probe));
        retry.on_probe_sent(Psn::new(1), Psn::new(2));
        assert_eq!(retry.timed_psn(), None, "which of the two is acknowledged is not known");
        assert_eq!(retry.expire(t0 + 7 * MS, timeout), Some(Expired::Ack));
        assert_eq!(retry.expire(t0 + 7 * MS, timeout), Some(Expired::Probe));
        // What was late comes. What is sent next has 8 ms before it is taken for lost.
        let t1 = t0 + 8 * MS;
        retry.on_progress(t1, true, timeout, MS);
        assert_eq!(retry.deadline(), Some(t1 + 8 * MS));
        retry.time_packet(t1, Psn::new(2));
        retry.on_timed_acknowledged(t1 + 6 * MS);
        retry.on_progress(t1 + 6 * MS, true, timeout, MS);
        assert_eq!(retry.deadline(), Some(t1 + 30 * MS), "four round trips");
    }

    #[test]
    fn the_window_grows_with_acknowledgements_and_is_halved_by_a_loss() {
        let mut window = Window::new(1024);
        assert_eq!(window.packets(), 64);
        window.on_acknowledged(64);
        assert_eq!(window.packets(), 128);
        window.on_loss();
        assert_eq!(window.packets(), 64);
        window.on_acknowledged(64);
        assert_eq!(window.packets(), 65);
        for _ in 0..20 {
            window.on_loss();
        }
        assert_eq!(window.packets(), MIN_WINDOW_PACKETS);
    }
}
