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
        let mut retries = Retries::new(self, self.max_retries);
        let mut sum = retries.wait();
        while retries.next() {
            sum += retries.wait();
        }
        sum
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
    fn longest_wait_does_not_wrap() {
        let longest = Timing { response_timeout: TimeCode::MAX, ..Timing::default() };
        let mut retries = Retries { wait: TimeCode::MAX, ..Retries::new(&longest, 1) };
        assert!(retries.next());
        assert_eq!(retries.wait, TimeCode::MAX);
        assert!(!retries.next());
    }
}
