//! Why an upgrade does not take place.

use crate::upgrade::image::{MAX_IMAGE, STATE_VERSION};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use urxe_shm::control::PROTOCOL_VERSION;

/// Why a daemon goes on as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("the daemon is about to end")]
    Ending,
    #[error(
        "{programs} programs are served by threads of this process and would lose their devices, as \
         with a restart; programs of the daemon's own user survive with a slot of their own (`urxe \
         run --in-process`), those of other users anyway"
    )]
    Threads {
        /// How many there are.
        programs: usize,
    },
    #[error("{}: {source}", .program.display())]
    Start {
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    #[error("{}: did not say within {} seconds whether it understands the state of this daemon", .program.display(), .limit.as_secs())]
    Silent {
        program: PathBuf,
        /// How long it was waited for.
        limit: Duration,
    },
    #[error("{}: does not understand the state of this daemon: {said}", .program.display())]
    NotUnderstood {
        program: PathBuf,
        /// What it said.
        said: String,
    },
    #[error("writing the state of this daemon down: {0}")]
    Write(io::Error),
    #[error("the state of this daemon has {0} bytes, expected {MAX_IMAGE} at most")]
    TooLarge(usize),
    #[error("passing on the descriptors of this daemon: {0}")]
    Pass(io::Error),
}

/// Why what is to be a daemon's state is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("state: {0}")]
    Unreadable(io::Error),
    #[error("state: begins with other bytes than that of a urxed")]
    NotAState,
    #[error("state: version {found}, expected {STATE_VERSION}")]
    Version {
        /// What it says.
        found: u32,
    },
    #[error(
        "state: its slots and programs speak version {found} of the protocol, expected {}",
        PROTOCOL_VERSION
    )]
    Protocol {
        /// What it says.
        found: u16,
    },
    #[error("state: {found} bytes, expected {said}")]
    Length {
        /// What it says.
        said: u64,
        /// What there is.
        found: u64,
    },
    #[error("state: not sealed, so that somebody could change it")]
    NotSealed,
    #[error("state: {0}")]
    Malformed(#[from] postcard::Error),
    #[error(
        "state: its slots count {found} things, expected other ones or another order of {expected}"
    )]
    Counters {
        /// How many it has.
        found: usize,
        /// How many there are here.
        expected: usize,
    },
    #[error("state: written {0} ns from now, expected before")]
    Time(u64),
    #[error("state: {what} {number}, expected {expected}")]
    Number {
        what: &'static str,
        number: u64,
        /// In words.
        expected: &'static str,
    },
    #[error("state: {0}")]
    Settings(#[from] crate::config::ConfigError),
    #[error("state: connections of device {device}: {source}")]
    Connections {
        device: String,
        /// What is wrong.
        source: urxe_cm::RestoreError,
    },
    #[error("state: address {0}")]
    Address(#[from] urxe_port::OpenError),
    #[error("the descriptors of the state, at standard input: {0}")]
    Parcel(io::Error),
    #[error("descriptor {0} of the state: expected to be there, and named once")]
    Descriptor(u32),
}

impl From<ImageError> for io::Error {
    fn from(error: ImageError) -> io::Error {
        io::Error::other(error)
    }
}
