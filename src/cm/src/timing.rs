//! Timeouts and retries.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use urxe_types::TimeCode;

/// Timeouts and retries of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The wait before the first retry; each further one is twice as long, up to
    /// `response_timeout`.
    pub first_wait: TimeCode,
    /// The CM response timeout of both sides, as a REQ has it.
    pub response_timeout: TimeCode,
    /// Max CM retries, as a REQ has it: of REQ, REP, DREQ and SIDR REQ, at most 15.
    pub max_retries: u8,
    /// The service timeout of our MRAs: how much longer than that our program may take.
    pub service_timeout: TimeCode,
    /// The ACK timeout of connections that do not choose one.
    pub ack_timeout: TimeCode,
    /// How long a request waits for a listener where one has just ended, and how long that is just.
    pub listener_gap: TimeCode,
}

impl Default for Timing {
    /// The kernel's, but for the first waits, which are shorter, and the gap, which it has not.
    fn default() -> Timing {
        Timing {
            first_wait: TimeCode::new(15),
            response_timeout: TimeCode::new(20),
            max_retries: 15,
            service_timeout: TimeCode::new(24),
            ack_timeout: TimeCode::new(17),
            listener_gap: TimeCode::new(15),
        }
    }
}

impl Timing {
    /// How long after it was first sent an unanswered message is given up.
    pub fn give_up(&self) -> Duration {
        Retries::new(self, self.max_retries).sum()
    }

    /// How long a last reply is kept for duplicates: until a peer with the same timing has given
    /// up, so that neither it nor our program sees two outcomes.
    pub fn linger(&self) -> Duration {
        self.give_up()
    }
}

/// The waits for the answer to one message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Retries {
    wait: TimeCode,
    longest: TimeCode,
    left: u8,
}

impl Retries {
    pub(crate) fn new(timing: &Timing, max_retries: u8) -> Retries {
        let longest = timing.response_timeout;
        Retries { wait: timing.first_wait.min(longest), longest, left: max_retries }
    }

    /// None yet, of a peer that takes so long to respond.
    pub(crate) fn of_peer(response_timeout: TimeCode) -> Retries {
        Retries { wait: response_timeout, longest: response_timeout, left: 0 }
    }

    /// For a peer that takes so long to respond, and is to be asked again so often at most: all
    /// together is no less than if each wait were that long, unless that is more than we ever
    /// wait. The first waits are as short as that allows.
    pub(crate) fn for_peer(
        timing: &Timing,
        max_retries: u8,
        response_timeout: TimeCode,
    ) -> Retries {
        let ours = Retries::new(timing, max_retries);
        let of_peer = response_timeout.duration() * (u32::from(max_retries) + 1);
        let needed = of_peer.min(timing.give_up());
        let from = |code: u8, to: TimeCode| (code..=to.code()).map(TimeCode::new);
        from(timing.response_timeout.code(), response_timeout.max(timing.response_timeout))
            .flat_map(|longest| from(ours.wait.code(), longest).map(move |wait| (wait, longest)))
            .map(|(wait, longest)| Retries { wait, longest, ..ours })
            .find(|retries| retries.sum() >= needed)
            .unwrap_or(ours)
    }

    /// All waits together.
    fn sum(mut self) -> Duration {
        let mut sum = self.wait();
        while self.next() {
            sum += self.wait();
        }
        sum
    }

    /// How long the peer may take to respond, as far as that is known.
    pub(crate) fn longest(&self) -> TimeCode {
        self.longest
    }

    /// The present wait.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.duration()
    }

    /// Goes on to the next retry; `false` if there is none.
    pub(crate) fn next(&mut self) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        if self.wait < self.longest {
            self.wait = TimeCode::new(self.wait.code() + 1);
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_response_time() {
        let mut retries = Retries::new(&Timing::default(), 15);
        let mut codes = vec![retries.wait.code()];
        while retries.next() {
            codes.push(retries.wait.code());
        }
        assert_eq!(codes, [15, 16, 17, 18, 19, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20]);
        assert_eq!(Timing::default().give_up().as_secs(), 51);
    }

    #[test]
    fn a_peer_that_allows_few_retries_has_its_time_all_the_same() {
        let timing = Timing::default();
        for code in 0..=24 {
            for max_retries in 0..16 {
                let timeout = TimeCode::new(code);
                let retries = Retries::for_peer(&timing, max_retries, timeout);
                assert_eq!(retries.left, max_retries);
                let needed = timeout.duration() * (u32::from(max_retries) + 1);
                assert!(retries.sum() >= needed.min(timing.give_up()), "{code}, {max_retries}");
                assert!(retries.sum() <= 3 * timing.give_up(), "{code}, {max_retries}");
            }
        }
        let codes = |max_retries, code| {
            let retries = Retries::for_peer(&timing, max_retries, TimeCode::new(code));
            (retries.wait.code(), retries.longest.code())
        };
        // The usual one is as among ourselves.
        assert_eq!(codes(15, 20), (15, 20));
        assert_eq!(codes(3, 20), (20, 20));
        assert_eq!(codes(0, 22), (22, 22));
        assert_eq!(codes(3, 10), (15, 20));
    }

    #[test]
    fn longest_wait_does_not_wrap() {
        let longest = Timing { response_timeout: TimeCode::MAX, ..Timing::default() };
        let mut retries = Retries { wait: TimeCode::MAX, ..Retries::new(&longest, 1) };
        assert!(retries.next());
        assert_eq!(retries.wait, TimeCode::MAX);
        assert!(!retries.next());
    }
}
