//! How long what is waited for.

use std::time::Duration;
use urxe_types::TimeCode;

/// The times of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long to wait for the first answer; each further wait is twice as long, up to
    /// `response_timeout`.
    pub first_wait: TimeCode,
    /// In which time each side answers the other, as a REQ tells.
    pub response_timeout: TimeCode,
    /// How often REQ, REP, DREQ and SIDR REQ are repeated, at most 15.
    pub max_retries: u8,
    /// How much longer than that a program may take with a request, as an MRA tells.
    pub service_timeout: TimeCode,
    /// The ACK timeout of connections that do not choose one.
    pub ack_timeout: TimeCode,
}

impl Default for Timing {
    /// The kernel's, but for the first waits, which are shorter.
    fn default() -> Timing {
        Timing {
            first_wait: TimeCode::new(15),
            response_timeout: TimeCode::new(20),
            max_retries: 15,
            service_timeout: TimeCode::new(24),
            ack_timeout: TimeCode::new(17),
        }
    }
}

impl Timing {
    /// When a message that nobody answers is given up, counted from when it was first sent.
    pub fn give_up(&self) -> Duration {
        let mut repeats = Repeats::new(self, self.max_retries);
        let mut sum = repeats.wait();
        while repeats.next() {
            sum += repeats.wait();
        }
        sum
    }

    /// How long an answer is kept to be given again: a peer like us asks no more after that, so it
    /// is told one thing only, and so is our program.
    pub fn keep_answer(&self) -> Duration {
        self.give_up()
    }
}

/// The waits for one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeats {
    wait: TimeCode,
    longest: TimeCode,
    left: u8,
}

impl Repeats {
    pub(crate) fn new(timing: &Timing, max_retries: u8) -> Repeats {
        let longest = timing.response_timeout;
        Repeats { wait: timing.first_wait.min(longest), longest, left: max_retries }
    }

    /// How long to wait now.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.duration()
    }

    /// Goes on to the next try; `false` if there is none.
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
        let mut repeats = Repeats::new(&Timing::default(), 15);
        let mut codes = vec![repeats.wait.code()];
        while repeats.next() {
            codes.push(repeats.wait.code());
        }
        assert_eq!(codes, [15, 16, 17, 18, 19, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20]);
        assert_eq!(Timing::default().give_up().as_secs(), 51);
    }

    #[test]
    fn the_longest_wait_of_all_does_not_wrap() {
        let longest = Timing { response_timeout: TimeCode::MAX, ..Timing::default() };
        let mut repeats = Repeats { wait: TimeCode::MAX, ..Repeats::new(&longest, 1) };
        assert!(repeats.next());
        assert_eq!(repeats.wait, TimeCode::MAX);
        assert!(!repeats.next());
    }
}
