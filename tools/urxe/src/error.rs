//! Why a command failed, and the exit code that says so to a script.

use crate::asking::SAYS_NOTHING;
use crate::link::LinkError;
use crate::output;
use std::io;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The arguments make no sense together; what each alone may be, clap has checked.
    #[error("{0}")]
    Usage(String),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] urxe_verbs::Error),
    /// The daemon at this socket does not answer.
    #[error("the daemon at {0} {SAYS_NOTHING}")]
    Silent(String),
    /// Data that arrived differ from what was sent.
    #[error("wrong data: {0}")]
    WrongData(String),
    /// The other program reported an error.
    #[error("{peer} failed: {reason}")]
    Peer {
        /// Its name.
        peer: String,
        /// Its message.
        reason: String,
    },
    /// The connection to the other program failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Nobody reads standard output any more, so that there is nothing left to do.
    #[error("the reader of standard output has gone")]
    ReaderGone,
    /// Anything else, in a sentence.
    #[error("{0}")]
    Failed(String),
}

impl From<urxe_verbs::PostError> for Error {
    fn from(error: urxe_verbs::PostError) -> Self {
        Error::Verbs(error.into())
    }
}

impl From<urxe_verbs::WcError> for Error {
    fn from(error: urxe_verbs::WcError) -> Self {
        Error::Verbs(error.into())
    }
}

/// What the exit codes mean; shown by `urxe --help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: an operation, the peer or the system
  2  the command line makes no sense
  3  no daemon answers at the socket
  4  wrong data arrived";

impl Error {
    /// The exit code, see [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::ReaderGone => 0,
            Error::Usage(_) => 2,
            Error::Verbs(urxe_verbs::Error::Connect(_)) | Error::Silent(_) => 3,
            Error::WrongData(_) => 4,
            _ => 1,
        }
    }

    /// Says on standard error that `command` failed, if it did, and returns the exit code.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        if !matches!(self, Error::ReaderGone) {
            output::note(format_args!("{command}: {self}"));
        }
        self.exit_code().into()
    }

    /// For `map_err`: the system refused `what`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what: what.into(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_the_code_that_help_lists() {
        let tried = vec![("/run/x".into(), io::ErrorKind::NotFound.into())];
        let no_daemon = urxe_shm::NoDaemon { tried }.into();
        let all = [
            (Error::Failed("x".into()), 1),
            (Error::Usage("x".into()), 2),
            (Error::Verbs(no_daemon), 3),
            (Error::Silent("x".into()), 3),
            (Error::WrongData("x".into()), 4),
            (Error::ReaderGone, 0),
        ];
        for (error, code) in all {
            assert_eq!(error.exit_code(), code);
            assert!(EXIT_CODES.contains(&format!("\n  {code}  ")));
        }
    }
}
