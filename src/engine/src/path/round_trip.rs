//! How long an answer takes.

use super::least::Least;
use crate::limits::{MAX_PROBE_INTERVAL, UNKNOWN_ROUND_TRIP};
use std::time::{Duration, Instant};

/// Where packets are lost, a probe is waited for no less than this part of what it is elsewhere: a
/// round trip that takes no time must not have it sent without a pause.
const LEAST_PART_OF_MARGIN: u32 = 8;

/// The round trip of a path, estimated as TCP does (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    estimate: Option<Estimate>,
    /// The least that an answer took of which it is not known what it answers: no round trip takes
    /// longer.
    bound: Option<Duration>,
    /// There was more than one of these.
    is_twice: bool,
    /// Packets are lost on this path.
    is_lossy: bool,
    backoff: Option<Backoff>,
}

/// Answers were late that were not lost: whoever has to answer was kept from the processor.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    /// How many times the margin before a probe is doubled.
    doublings: u32,
    /// When one time less is enough.
    until: Instant,
}

/// The margin before a probe is doubled so many times at most.
const MAX_BACKOFF: u32 = 5;

/// How long it stays so after the last answer that was late and not lost.
const BACKOFF_LASTS: Duration = Duration::from_secs(2);

/// How long an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    Exact(Duration),
    /// It may be an answer to something that was sent again later.
    AtMost(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    least: Least,
}

impl RoundTrip {
    /// An answer took so long.
    pub(crate) fn on_sample(&mut self, now: Instant, sample: Sample) {
        let sample = match sample {
            Sample::Exact(sample) => sample,
            Sample::AtMost(bound) => {
                self.is_twice |= self.bound.is_some();
                self.bound = Some(self.bound.map_or(bound, |before| before.min(bound)));
                return;
            }
        };
        if let Some(Backoff { doublings, until }) = self.backoff
            && until <= now
        {
            self.backoff = doublings
                .checked_sub(1)
                .map(|doublings| Backoff { doublings, until: now + BACKOFF_LASTS });
        }
        let mut least = self.estimate.map_or_else(Least::default, |estimate| estimate.least);
        least.on_sample(now, sample);
        let (smoothed, variation) = match self.estimate {
            None => (sample, sample / 2),
            Some(Estimate { smoothed, variation, .. }) => {
                ((smoothed * 7 + sample) / 8, (variation * 3 + smoothed.abs_diff(sample)) / 4)
            }
        };
        self.estimate = Some(Estimate { smoothed, variation, least });
    }

    /// Something was sent again, and its answer had only been late.
    pub(crate) fn on_needless_repeat(&mut self, now: Instant) {
        // REPAIR-104
        let doublings = self.backoff.map_or(1, |backoff| backoff.doublings + 1);
        let (doublings, until) = (doublings.min(MAX_BACKOFF), now + BACKOFF_LASTS);
        self.backoff = Some(Backoff { doublings, until });
    }

    /// The smoothed round trip, once one was measured.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// How far round trips are from the smoothed one, on average.
    pub(crate) fn variation(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.variation)
    }

    /// The least round trip of the last seconds, once one was measured.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.estimate?.least.get()
    }

    /// The least that an answer took of which it is not known what it answers, at most
    /// [`MAX_PROBE_INTERVAL`]; nothing if there was none.
    pub(crate) fn doubtful(&self) -> Duration {
        self.bound.unwrap_or_default().min(MAX_PROBE_INTERVAL)
    }

    /// Whether this is so of more than one answer: of one, a packet may have been lost.
    pub(crate) fn is_doubtful_twice(&self) -> bool {
        self.is_twice
    }

    /// Whether packets are lost on this path: an answer that is late was lost rather than delayed.
    pub(crate) fn set_lossy(&mut self, is_lossy: bool) {
        self.is_lossy = is_lossy;
    }

    /// Whether packets are lost on this path.
    pub(crate) fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// How long an answer may take before it is taken for late. `least_margin` is what it may take
    /// longer than usual at least. As long as nothing is known, nothing on Earth is late before
    /// [`UNKNOWN_ROUND_TRIP`].
    pub(crate) fn probe_timeout(&self, least_margin: Duration) -> Duration {
        let Some(Estimate { smoothed, variation, .. }) = self.estimate else {
            // RC-REQ-057: RFC 6298 says this of the first that is known.
            let timeout = self.bound.map_or(UNKNOWN_ROUND_TRIP, |bound| {
                (bound * 3).max(bound + least_margin).min(MAX_PROBE_INTERVAL)
            });
            return timeout.max(least_margin);
        };
        // REPAIR-100
        let least_margin = match self.is_lossy {
            true => (smoothed / 2).clamp(least_margin / LEAST_PART_OF_MARGIN, least_margin),
            false => least_margin,
        };
        // REPAIR-104
        let doublings = self.backoff.map_or(0, |backoff| backoff.doublings);
        let least_margin = least_margin * (1 << doublings);
        // RFC 8985: srtt and four variations.
        (smoothed + (variation * 4).max(least_margin)).min(MAX_PROBE_INTERVAL.max(least_margin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// The margin before a probe on a path whose round trips all take so long.
    fn margin(round_trip: Duration, is_lossy: bool) -> Duration {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let now = Instant::now();
        let mut path = RoundTrip::default();
        for _ in 0..50 {
            path.on_sample(now, Sample::Exact(round_trip));
        }
        path.set_lossy(is_lossy);
        path.probe_timeout(100 * US) - round_trip
    }

    #[test]
    fn where_packets_are_lost_an_answer_is_late_sooner() {
        assert_eq!(margin(40 * US, false), 100 * US);
        assert_eq!(margin(40 * US, true), 20 * US);
        assert_eq!(margin(4000 * US, true), 100 * US, "never later than elsewhere");
        assert_eq!(margin(Duration::ZERO, true), 12500 * US / 1000, "never at once");
    }

    #[test]
    fn where_answers_come_late_and_are_not_lost_they_are_waited_for_longer_for_a_while() {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let mut now = Instant::now();
        let mut path = RoundTrip::default();
        let margin = |path: &mut RoundTrip, now| {
            for _ in 0..50 {
                path.on_sample(now, Sample::Exact(40 * US));
            }
            (path.probe_timeout(100 * US) - 40 * US).as_micros()
        };
        let mut margins = Vec::new();
        for _ in 0..7 {
            path.on_needless_repeat(now);
            margins.push(margin(&mut path, now));
        }
        assert_eq!(margins, [200, 400, 800, 1600, 3200, 3200, 3200]);
        margins.clear();
        for _ in 0..7 {
            now += BACKOFF_LASTS;
            margins.push(margin(&mut path, now));
        }
        assert_eq!(margins, [1600, 800, 400, 200, 100, 100, 100]);
    }

    #[test]
    fn a_doubtful_answer_bounds_the_round_trip() {
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let now = Instant::now();
        let mut path = RoundTrip::default();
        let mut timeout_after = |took: Duration| {
            path.on_sample(now, Sample::AtMost(took));
            path.probe_timeout(100 * US)
        };
        let ms = 1000 * US;
        assert_eq!(timeout_after(150 * ms), 450 * ms);
        assert_eq!(timeout_after(250 * ms), 450 * ms, "another may have taken longer");
        assert_eq!(timeout_after(ms), 3 * ms);
        assert_eq!(timeout_after(20 * US), 120 * US);
    }
}
