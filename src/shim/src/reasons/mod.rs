//! Why something was refused or has failed, in sentences on stderr: programs hear a number only.
//!
//! `URXE_LOG` says how much of that there is, from nothing at all, which is the default, on:
//!
//! - `error`: verbs that were refused, and work requests that have failed.
//! - `warn`: also what a program may live with: flushed work requests, a full queue, and what the
//!   device does not have.
//! - `info`: also what is no failure.
//! - `debug`: also what libraries ask only to find out what there is.
//!
//! The sentences are the daemon's; a Rust program has the same in its errors. Each is said once:
//! how often it comes again is counted, and said at ten times, a hundred times and so on. A table
//! of bounded size knows what was said ([`repeats`]), so that a program which fails for ever is
//! not drowned.
//!
//! Anything may be going on in the program: nothing here waits, takes a lock, or writes to
//! anything but the stderr that the program was started with ([`stderr`]). A sentence that cannot
//! be written at once is lost.

mod repeats;
mod stderr;

use crate::refused::Refused;
pub(crate) use repeats::key_of;
use repeats::{Repeats, Turn};
use rustix::io::Errno;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use urxe_shm::control::errnos;

/// Says how much is told.
const LOG: &str = "URXE_LOG";

/// Keeps everything away, if it has any value.
const QUIET: &str = "URXE_QUIET";

/// How much somebody must want to know in order to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// Said whatever `URXE_LOG` is: the program's data path has changed, or is gone.
    Always = 0,
    /// A refusal, or a work request that failed.
    Error = 1,
    /// A failure that the program may have reckoned with.
    Warn = 2,
    /// No failure.
    Info = 3,
    /// Of interest to who looks for an error of ours.
    Debug = 4,
}

impl Level {
    const NAMED: [(&str, Level); 4] = [
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];

    fn parse(name: &str) -> Option<Level> {
        let found = Level::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|&(_, level)| level)
    }
}

/// What was said already.
static SAID: Repeats = Repeats::new();

/// The most that is told, or that nobody has looked yet.
static MOST: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = u8::MAX;

/// Whether somebody wants to be told of this.
#[inline]
pub(crate) fn is_told(level: Level) -> bool {
    let most = match MOST.load(Ordering::Relaxed) {
        UNKNOWN => find_most(),
        most => most,
    };
    level as u8 <= most
}

/// Looks into the environment, which the program cannot change for us afterwards.
#[cold]
fn find_most() -> u8 {
    let wanted = std::env::var_os(LOG).unwrap_or_default();
    let level = wanted.to_str().and_then(Level::parse);
    let most = level.unwrap_or(Level::Always) as u8;
    let is_first = MOST.swap(most, Ordering::Relaxed) == UNKNOWN;
    // WHY-003
    if is_first && level.is_none() && !wanted.is_empty() {
        say(Level::Always, &format!("{LOG} is {wanted:?}: expected error, warn, info or debug"));
    }
    most
}

/// Says something, unless it is more than somebody wants to know, or was said before.
pub(crate) fn say(level: Level, sentence: &str) {
    say_with(level, key_of(&sentence), || sentence);
}

/// The same, with what makes two sentences one cause. The sentence is made only if it is said.
pub(crate) fn say_with<S: Display>(level: Level, cause: u64, sentence: impl FnOnce() -> S) {
    if !is_told(level) || std::env::var_os(QUIET).is_some_and(|value| !value.is_empty()) {
        return;
    }
    let mut line = stderr::Line::new();
    // What a line has no room for is cut off.
    let _ = match SAID.note(cause) {
        Turn::First => write!(line, "{}", sentence()),
        Turn::Again(count) => write!(line, "({count} times by now) {}", sentence()),
        Turn::Counted => return,
        Turn::NoRoom => {
            write!(line, "more reasons than {} are not told one by one", repeats::MOST_CAUSES)
        }
    };
    line.send();
}

/// Tells why a verb was refused, and gives back what the program's library hears of that.
pub(crate) fn refused(verb: &str, refused: &Refused) -> Errno {
    let errno = refused.errno;
    if is_told(refused.level()) {
        // WHY-001
        let sentence = format!("{verb}: {} ({})", refused.sentence(), errnos::name(errno));
        say(refused.level(), &sentence);
    }
    errno
}

/// Tells that there is no device, because there is no daemon.
pub(crate) fn no_daemon() {
    if is_told(Level::Error) {
        // WHY-004
        let socket = urxe_shm::socket_path();
        let socket = socket.display();
        say(Level::Error, &format!("no RDMA device: no urxed answers at {socket}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_an_order() {
        assert_eq!(Level::parse("warn"), Some(Level::Warn));
        assert_eq!(Level::parse("DEBUG"), Some(Level::Debug));
        assert_eq!((Level::parse(""), Level::parse("off"), Level::parse("2")), (None, None, None));
        assert!(Level::NAMED.is_sorted_by_key(|&(_, level)| level));
        assert!(Level::Always < Level::Error);
    }
}
