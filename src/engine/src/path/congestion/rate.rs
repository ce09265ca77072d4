//! The rate that congestion notifications leave: DCQCN's reaction point (Zhu et al., SIGCOMM 2015,
//! section 3.2), computed when something happens.

use crate::tuning::RateParameters;
use std::time::{Duration, Instant};

/// What is sent at once: what the rate allows in so long, and two packets at least.
const TRAIN: Duration = Duration::from_micros(75);
const TRAIN_PACKETS: f64 = 2.0;

/// Steps of growth that are done at once, however long nothing happened.
const MAX_STEPS: u32 = 256;

/// A rate that limits what is sent.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// Bytes per second.
    rate: f64,
    /// To what it goes back, in bytes per second.
    target: f64,
    /// The estimate of congestion (alpha), which nobody told of since then.
    estimate: f64,
    estimated_at: Instant,
    cut_at: Option<Instant>,
    grown_at: Instant,
    /// Bytes sent since it grew by them.
    sent: u64,
    /// Steps since the last cut, by time and by bytes.
    time_steps: u32,
    byte_steps: u32,
    /// When what was sent would have gone, had it gone evenly.
    even_at: Option<Instant>,
}

impl RateLimit {
    /// One that begins at a rate, in bytes per second.
    pub(super) fn new(now: Instant, rate: f64) -> RateLimit {
        RateLimit {
            rate,
            target: rate,
            estimate: 1.0,
            estimated_at: now,
            cut_at: None,
            grown_at: now,
            sent: 0,
            time_steps: 0,
            byte_steps: 0,
            even_at: None,
        }
    }

    /// Bytes per second.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// The estimate of congestion, from 0 to 1.
    pub(super) fn estimate(&self) -> f64 {
        self.estimate
    }

    /// A notification has come. Returns whether it made the rate less.
    pub(super) fn on_cnp(&mut self, now: Instant, parameters: &RateParameters) -> bool {
        self.advance(now, parameters);
        // CONG-010
        if self.cut_at.is_some_and(|at| now.duration_since(at) < parameters.cut_interval) {
            return false;
        }
        self.target = self.rate;
        let left = (1.0 - self.estimate / 2.0).max(parameters.least_after_cut);
        self.rate = (self.rate * left).max(parameters.least_rate);
        self.estimate += (1.0 - self.estimate) * parameters.weight;
        self.estimated_at = now;
        self.cut_at = Some(now);
        self.grown_at = now;
        (self.sent, self.time_steps, self.byte_steps) = (0, 0, 0);
        true
    }

    /// So many bytes are sent now. Returns when the next packet may follow; `None`: at once.
    pub(super) fn on_sent(
        &mut self,
        now: Instant,
        parameters: &RateParameters,
        bytes: u64,
        packet: f64,
    ) -> Option<Instant> {
        self.advance(now, parameters);
        self.sent += bytes;
        let steps = (self.sent / parameters.growth_bytes.max(1)).min(u64::from(MAX_STEPS));
        self.sent %= parameters.growth_bytes.max(1);
        for _ in 0..steps {
            self.byte_steps += 1;
            self.grow(parameters);
        }
        let even_at = self.even_at.map_or(now, |at| at.max(now))
            + Duration::from_secs_f64(bytes as f64 / self.rate);
        self.even_at = Some(even_at);
        let ahead = even_at.duration_since(now).as_secs_f64() * self.rate;
        // CONG-012: the whole train is waited for, so that it can go at once.
        (ahead > self.train(packet) - packet / 2.0).then_some(even_at)
    }

    /// What may be sent at once, in bytes.
    pub(super) fn train(&self, packet: f64) -> f64 {
        (self.rate * TRAIN.as_secs_f64()).max(packet * TRAIN_PACKETS)
    }

    /// What has become of estimate and rate until now.
    fn advance(&mut self, now: Instant, parameters: &RateParameters) {
        let falls = whole_intervals(&mut self.estimated_at, now, parameters.estimate_interval);
        self.estimate *= (1.0 - parameters.weight).powi(falls as i32);
        for _ in 0..whole_intervals(&mut self.grown_at, now, parameters.growth_interval) {
            self.time_steps += 1;
            self.grow(parameters);
        }
    }

    fn grow(&mut self, parameters: &RateParameters) {
        let (more, less) = match self.time_steps > self.byte_steps {
            true => (self.time_steps, self.byte_steps),
            false => (self.byte_steps, self.time_steps),
        };
        // Fast recovery, additive increase, hyper increase.
        self.target += match parameters.recovery_steps {
            steps if less > steps => parameters.hyper * f64::from(less - steps),
            steps if more > steps => parameters.additive,
            _ => 0.0,
        };
        self.rate = (self.rate + self.target) / 2.0;
    }
}

/// How many whole intervals have passed since then, which moves on by them; not more than are
/// worked off at once.
fn whole_intervals(since: &mut Instant, now: Instant, interval: Duration) -> u32 {
    let interval = interval.max(Duration::from_micros(1));
    let intervals = now.duration_since(*since).as_nanos() / interval.as_nanos();
    if intervals > u128::from(MAX_STEPS) {
        *since = now;
        return MAX_STEPS;
    }
    *since += interval * intervals as u32;
    intervals as u32
}
