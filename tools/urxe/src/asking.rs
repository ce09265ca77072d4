//! Asking a daemon that may take the connection and say nothing: one that is stopped, or one that
//! ends when its programs have, while systemd keeps its socket for the next.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long a daemon that runs takes for an answer, at the very most.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is said of one that takes longer, to follow its name.
pub(crate) const SAYS_NOTHING: &str = "has taken the connection and says nothing: it is stopped, or \
                                       takes no new program because it is about to end";

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

    /// The answer, however long it takes.
    pub(crate) fn answer(self) -> T {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
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
}
