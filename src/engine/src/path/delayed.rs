//! Whose short messages wait behind what others send.
//!
//! A long queue costs nothing to who fills it, and all to who waits in it with one short message.
//! Which of the two a message is, only its own round trip tells: a lone short one that takes long
//! has met a queue, and what others send through this device may be what fills it.

use crate::ids::ShareId;
use crate::limits::LONGEST_PACKET;
use std::time::{Duration, Instant};

/// How long a message that was delayed tells of a queue: short messages come now and then.
const TELLS_FOR: Duration = Duration::from_millis(10);

/// The last two shares of which a lone short message was delayed: for any share, one of them is
/// another, if there is another.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    last: [Option<(ShareId, Instant)>; 2],
}

impl Delayed {
    /// A message of this share, so many bytes on the wire and alone in flight, took by so much
    /// longer than the least.
    pub(crate) fn on_lone_message(
        &mut self,
        now: Instant,
        share: ShareId,
        bytes: u64,
        excess: Duration,
        target: Duration,
    ) {
        // CONG-031
        if bytes > LONGEST_PACKET || excess <= target {
            return;
        }
        let [newest, other] = &mut self.last;
        if newest.is_some_and(|(of, _)| of != share) {
            *other = *newest;
        }
        *newest = Some((share, now));
    }

    /// Whether messages of a share other than this one were delayed just now.
    pub(crate) fn beside(&self, now: Instant, share: ShareId) -> bool {
        let is_delayed = |(of, at): (ShareId, Instant)| {
            of != share && now.saturating_duration_since(at) < TELLS_FOR
        };
        self.last.iter().flatten().copied().any(is_delayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const TARGET: Duration = Duration::from_micros(50);
    const ONE: ShareId = ShareId(1);
    const OTHER: ShareId = ShareId(2);

    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    fn start() -> Instant {
        Instant::now()
    }

    /// CONG-031
    #[test]
    fn a_share_is_beside_every_other_one_whose_message_was_delayed_just_now() {
        let (mut delayed, now) = (Delayed::default(), start());
        let beside = |delayed: &Delayed, now| [ONE, OTHER].map(|share| delayed.beside(now, share));
        assert_eq!(beside(&delayed, now), [false, false]);
        delayed.on_lone_message(now, ONE, 80, 51 * US, TARGET);
        assert_eq!(beside(&delayed, now), [false, true], "nobody delays himself");
        delayed.on_lone_message(now, OTHER, 80, 51 * US, TARGET);
        // However often one of them is delayed, the other is remembered.
        for _ in 0..3 {
            delayed.on_lone_message(now, OTHER, 80, 51 * US, TARGET);
        }
        assert_eq!(beside(&delayed, now), [true, true]);
        assert_eq!(beside(&delayed, now + TELLS_FOR), [false, false]);
    }

    /// CONG-031
    #[test]
    fn a_message_that_is_long_or_was_quick_tells_of_no_queue() {
        let (mut delayed, now) = (Delayed::default(), start());
        delayed.on_lone_message(now, ONE, LONGEST_PACKET + 1, 500 * US, TARGET);
        delayed.on_lone_message(now, ONE, LONGEST_PACKET, TARGET, TARGET);
        assert!(!delayed.beside(now, OTHER));
        delayed.on_lone_message(now, ONE, LONGEST_PACKET, TARGET + US, TARGET);
        assert!(delayed.beside(now, OTHER));
    }
}
