//! Why a program ended.

use std::io;
use urxe_daemon::StartError;

/// Why a program ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A verb failed, or a work request did.
    #[error(transparent)]
    Verbs(#[from] urxe_verbs::Error),
    /// No daemon could be started for the run.
    #[error(transparent)]
    Daemon(#[from] StartError),
    /// A system call failed.
    #[error("{step}: {source}")]
    Io {
        /// What was to be done.
        step: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// The nodes did not meet.
    #[error("meeting the other nodes: {0}")]
    Meeting(String),
    /// A node failed, and has said why.
    #[error("node {rank} failed")]
    Node {
        /// Which one.
        rank: usize,
    },
    /// A signal ended it.
    #[error("ended by a signal")]
    Interrupted,
    /// Arguments contradict each other.
    #[error("{0}")]
    Usage(&'static str),
    /// The arguments of a way to run an application do not go with those that were given.
    #[error("{0}")]
    Arguments(String),
    /// There could be no network for the nodes.
    #[error("making a network of namespaces: {0}")]
    Network(String),
    /// A guarantee of the algorithm was broken.
    #[error("{0}")]
    Broken(String),
}

impl Error {
    pub(crate) fn io(step: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { step, source }
    }
}

impl From<urxe_verbs::PostError> for Error {
    fn from(error: urxe_verbs::PostError) -> Error {
        Error::Verbs(error.into())
    }
}

impl From<urxe_verbs::WcError> for Error {
    fn from(error: urxe_verbs::WcError) -> Error {
        Error::Verbs(error.into())
    }
}
