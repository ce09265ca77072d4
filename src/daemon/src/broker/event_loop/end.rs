//! When the daemon ends: told to, at once or after its programs, or by itself.

use super::EventLoop;
use crate::log::DAEMON;
use mio::unix::SourceFd;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

impl EventLoop {
    /// When the daemon is to end, as far as that is known. A program that has connected is there,
    /// even if it has said nothing yet.
    pub(super) fn end_at(&self) -> Option<Instant> {
        let linger = match self.drained_by {
            Some(_) => Some(Duration::ZERO),
            None => self.changeable.linger,
        };
        let alone = linger.filter(|_| self.is_alone()).map(|linger| self.alone_since + linger);
        alone.into_iter().chain(self.drained_by).min()
    }

    fn is_alone(&self) -> bool {
        self.open_sessions == 0 && !self.admission.has_waiting()
    }

    /// The daemon was told to end. Returns whether it goes on nevertheless, for the programs that
    /// it has: until the last one is gone, for as long as it drains, and not if it is told twice.
    pub(super) fn drain(&mut self, now: Instant) -> bool {
        let mut told = [0; 2];
        // Whatever keeps it from being read, it was told.
        let times = rustix::io::read(&self.stop, &mut told).unwrap_or(told.len());
        let Some(drain) = self.changeable.drain else { return false };
        if times > 1 || self.drained_by.is_some() || self.is_alone() {
            return false;
        }
        self.drained_by = Some(now + drain);
        if let Some(listener) = self.listener.take() {
            // A service manager has the same socket, so that closing it would not be enough. It
            // fails only if the socket is not watched.
            let fd = listener.as_fd().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        tracing::info!(
            target: DAEMON,
            "ending, as soon as {} programs are gone or in {} seconds; at once if told again",
            self.open_sessions,
            drain.as_secs()
        );
        true
    }

    /// Says that the daemon ends, and why: told to end now, or by itself.
    pub(super) fn say_why_it_ends(&self, is_told: bool) {
        let programs = self.open_sessions;
        let why = match (is_told, self.drained_by.is_some(), self.is_alone()) {
            (true, _, true) => "it was told to".to_owned(),
            (true, _, false) => format!("it was told to, and {programs} programs are still there"),
            (false, true, true) => "it was told to, and no program is left".to_owned(),
            (false, true, false) => {
                format!("it has drained long enough, and {programs} programs are still there")
            }
            (false, false, _) => {
                let linger = self.changeable.linger.unwrap_or_default().as_secs();
                format!("no program has been there for {linger} seconds")
            }
        };
        tracing::info!(target: DAEMON, "ends, because {why}");
    }
}
