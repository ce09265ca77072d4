//! Asking a daemon that may take the connection and say nothing: one that is stopped, or one that
//! ends when its programs have, while systemd keeps its socket for the next.

use crate::error::Error;
use crate::output;
use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use urxe_types::SlotCount;
use urxe_verbs::{Context, OpenOptions};

/// How long a daemon that runs takes for an answer, at the very most.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for an answer to which slots have to contribute: the daemon waits for each that says
/// nothing, one after the other.
pub(crate) const GATHER_TIMEOUT: Duration = urxe_daemon::limits::ANSWER_TIMEOUT
    .saturating_mul(SlotCount::MAX.get() as u32)
    .saturating_add(ANSWER_TIMEOUT);

/// How long an answer is still waited for when the user has ended the command: longer than one that
/// is on its way takes.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether the user has ended the command.
const LOOK_FOR_STOP: Duration = Duration::from_millis(100);

/// What is said of one that takes longer, to follow its name.
pub(crate) const SAYS_NOTHING: &str = "has taken the connection and says nothing: it is stopped, or \
                                       takes no new program because it is about to end";

/// Opens a device to use it, and not to ask about it: one whose daemon says nothing is waited for,
/// as programs of verbs wait between two daemons of a service, and the user is told.
pub(crate) fn open(command: &str, options: &OpenOptions) -> Result<Context, Error> {
    let options = options.clone();
    let asked = Asked::begin(move || Context::open(&options)).within(ANSWER_TIMEOUT);
    let opened = asked.unwrap_or_else(|asked| asked.say_and_wait(command, "the daemon"));
    Ok(opened?)
}

/// A question that another thread waits for the answer of. If nobody waits for that any more, the
/// thread stays until the process ends.
pub(crate) struct Asked<T> {
    thread: JoinHandle<T>,
    /// Nothing comes here; it hangs up when the thread ends.
    ended: Receiver<Infallible>,
}

impl<T: Send + 'static> Asked<T> {
    pub(crate) fn begin(question: impl FnOnce() -> T + Send + 'static) -> Asked<T> {
        let (runs, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _runs = runs;
            question()
        });
        Asked { thread, ended }
    }

    /// The answer, unless it takes longer than this.
    pub(crate) fn within(self, wait: Duration) -> Result<T, Asked<T>> {
        match self.ended.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Err(self),
            Err(RecvTimeoutError::Disconnected) => Ok(self.answer()),
            Ok(nothing) => match nothing {},
        }
    }

    /// The same, or unless the user ends the command before.
    pub(crate) fn unless_stopped(
        mut self,
        wait: Duration,
        stop: &AtomicBool,
    ) -> Result<T, Asked<T>> {
        let mut deadline = Deadline::new(wait, stop);
        while let Some(slice) = deadline.next_slice() {
            match self.within(slice) {
                Ok(answer) => return Ok(answer),
                Err(asked) => self = asked,
            }
        }
        Err(self)
    }

    /// The answer, however long it takes, for which the user is told that this command waits.
    pub(crate) fn say_and_wait(self, command: &str, daemon: &str) -> T {
        output::note(format_args!("urxe {command}: {daemon} {SAYS_NOTHING}; waiting"));
        self.answer()
    }

    /// The answer, however long it takes.
    pub(crate) fn answer(self) -> T {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// How long an answer is waited for that the user may be tired of waiting for.
pub(crate) struct Deadline<'a> {
    stop: &'a AtomicBool,
    was_stopped: bool,
    /// `None`: never.
    end: Option<Instant>,
}

impl<'a> Deadline<'a> {
    /// Waits so long, or until a moment after `stop` is set.
    pub(crate) fn new(wait: Duration, stop: &'a AtomicBool) -> Deadline<'a> {
        Deadline { stop, was_stopped: false, end: Instant::now().checked_add(wait) }
    }

    /// How long to wait before this is asked again; `None` when it is over.
    pub(crate) fn next_slice(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if !self.was_stopped && self.stop.load(Ordering::Relaxed) {
            self.was_stopped = true;
            let end = now + STOPPED_TIMEOUT;
            self.end = Some(self.end.map_or(end, |before| before.min(end)));
        }
        let left = self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        (!left.is_zero()).then(|| left.min(LOOK_FOR_STOP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_takes_too_long_may_be_waited_for_all_the_same() {
        let (answer, question) = mpsc::channel();
        let asked = Asked::begin(move || question.recv().unwrap_or(0));
        let asked = asked.within(Duration::from_millis(1)).expect_err("there is none yet");
        answer.send(7).unwrap();
        assert_eq!(asked.answer(), 7);
        assert!(matches!(Asked::begin(|| 8).within(ANSWER_TIMEOUT), Ok(8)));
    }

    #[test]
    fn an_answer_is_waited_for_until_a_moment_after_the_user_has_ended_it() {
        let stop = AtomicBool::new(false);
        let mut deadline = Deadline::new(Duration::MAX, &stop);
        assert_eq!(deadline.next_slice(), Some(LOOK_FOR_STOP));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(deadline.next_slice(), Some(LOOK_FOR_STOP), "it may be on its way");
        deadline.end = Some(Instant::now());
        assert_eq!(deadline.next_slice(), None);
        let (_answer, question) = mpsc::channel::<()>();
        let asked = Asked::begin(move || question.recv());
        assert!(asked.unless_stopped(Duration::MAX, &stop).is_err());
    }
}
