//! Round trips counted by what has left the path: what was in flight when one began, has left when
//! it ends.

use super::Delivered;
use std::time::Instant;

/// For so many rounds the largest rate is remembered.
const REMEMBERED: usize = 10;

/// What a round weighs in the smoothed loss.
const LOSS_WEIGHT: f64 = 1.0 / 16.0;

/// What happened in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    began: Instant,
    /// It ends when so many bytes have left the path since the beginning.
    ends_at: u64,
    pub(super) delivered: u64,
    pub(super) marked: u64,
    /// Packets that told of it: acknowledgements, or answers.
    pub(super) deliveries: u64,
    lost: u64,
    /// The least round trip in it, in seconds.
    pub(super) least: Option<f64>,
    /// The least round trip in it and in the round before.
    pub(super) least_of_two: Option<f64>,
    /// The window was used by half at least.
    pub(super) is_used: bool,
}

/// The rounds of one direction of a path.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Bytes that have left the path: delivered or lost.
    left: u64,
    round: Option<Round>,
    /// The least round trip of the last round in which there was one.
    least_before: Option<f64>,
    /// Delivered bytes per second in each of the last rounds.
    rates: [f64; REMEMBERED],
    next_rate: usize,
    count: u64,
    /// The part that is lost, smoothed.
    loss: f64,
}

impl Rounds {
    /// Bytes that have left the path so far.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Rounds that have ended.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The part of what leaves the path that is lost, smoothed over some rounds.
    pub(super) fn loss(&self) -> f64 {
        self.loss
    }

    /// The largest rate of the last rounds, in delivered bytes per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.into_iter().reduce(f64::max).filter(|&rate| rate > 0.0)
    }

    /// The least round trip of this round and the one before, in seconds.
    pub(super) fn least_lately(&self) -> Option<f64> {
        let now = self.round.and_then(|round| round.least);
        match (now, self.least_before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }

    /// A round trip took so many seconds.
    pub(super) fn on_sample(&mut self, seconds: f64) {
        if let Some(round) = &mut self.round {
            round.least = Some(round.least.map_or(seconds, |least| least.min(seconds)));
        }
    }

    /// Bytes have arrived. Returns the round that they end.
    pub(super) fn on_delivered(
        &mut self,
        now: Instant,
        in_flight: u64,
        delivered: Delivered,
        is_used: bool,
        least: Option<f64>,
    ) -> Option<Round> {
        let Delivered { bytes, packets, is_marked, round_trip, .. } = delivered;
        self.left += bytes;
        let ends_at = self.left + in_flight.saturating_sub(bytes);
        let next = Round {
            began: now,
            ends_at,
            delivered: 0,
            marked: 0,
            deliveries: 0,
            lost: 0,
            least: None,
            least_of_two: None,
            is_used: false,
        };
        let round = self
            .round
            .get_or_insert(Round { least: round_trip.map(|sample| sample.as_secs_f64()), ..next });
        round.delivered += bytes;
        round.deliveries += packets;
        round.marked += if is_marked { bytes } else { 0 };
        round.is_used |= is_used;
        // What was forgotten meanwhile never leaves.
        round.ends_at = round.ends_at.min(ends_at);
        if self.left < round.ends_at {
            return None;
        }
        let ended = std::mem::replace(round, next);
        self.count += 1;
        let lost = ended.lost as f64 / (ended.lost + ended.delivered) as f64;
        self.loss += (lost - self.loss) * LOSS_WEIGHT;
        let took = now.duration_since(ended.began).as_secs_f64().max(least.unwrap_or(0.0));
        if took > 0.0 {
            self.rates[self.next_rate] = ended.delivered as f64 / took;
            self.next_rate = (self.next_rate + 1) % REMEMBERED;
        }
        let least_of_two = self.least_before.into_iter().chain(ended.least).reduce(f64::min);
        self.least_before = ended.least.or(self.least_before);
        Some(Round { least_of_two, ..ended })
    }

    /// Bytes were lost. Returns how many so far in this round.
    pub(super) fn on_lost(&mut self, bytes: u64) -> u64 {
        self.left += bytes;
        match &mut self.round {
            Some(round) => {
                round.lost += bytes;
                round.lost
            }
            None => bytes,
        }
    }
}
