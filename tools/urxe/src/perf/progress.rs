//! A line that shows the progress of long runs, on a terminal only.

use super::report::Row;
use crate::units::{count, figure};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How often the line changes.
const INTERVAL: Duration = Duration::from_millis(500);

/// Progress with one length.
pub(super) struct Progress {
    size: u32,
    /// When it changes next, after the beginning.
    next: Duration,
    shown: bool,
}

impl Progress {
    pub(super) fn new(size: u32) -> Self {
        let watched = io::stderr().is_terminal();
        // A run shorter than two intervals shows nothing.
        Progress { size, next: if watched { 2 * INTERVAL } else { Duration::MAX }, shown: false }
    }

    /// Shows how many messages there are after `elapsed`, if it is time to.
    pub(super) fn tick(&mut self, elapsed: Duration, messages: impl FnOnce() -> u64) {
        if elapsed < self.next {
            return;
        }
        self.next = elapsed + INTERVAL;
        self.shown = true;
        let messages = messages();
        let row = Row::bandwidth(self.size, messages, elapsed);
        let gbit = row.bandwidth.map_or(0.0, |bandwidth| bandwidth.bandwidth_gbit_s);
        let (messages, seconds) = (count(messages), elapsed.as_secs());
        let line = format!("{} bytes: {seconds} s, {messages} messages", self.size);
        let _ = write!(io::stderr(), "\r\x1b[K{line}, {} Gbit/s", figure(gbit));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
