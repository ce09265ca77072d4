//! A daemon's state as bytes: a head that all versions can read, and behind it what only the same
//! version can.

use super::error::{ImageError, UpgradeError};
use super::parcel::Fd;
use crate::broker::SavedBroker;
use crate::config_file::ConfigFile;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use urxe_engine::Counter;
use urxe_nic::{HostCounters, ObjectCounts};
use urxe_port::PortCounters;
use urxe_shm::control::PROTOCOL_VERSION;
use urxe_slot::{DaemonCounters, PathSums};
use urxe_types::TimeOffset;

/// The version of [`State`]: raised with every change of what is written in it, or of what that
/// means. What workers and programs' own slots say to the broker belongs to
/// [`PROTOCOL_VERSION`].
pub(super) const STATE_VERSION: u32 = 3;

/// The most bytes of a state: a few hundred for each id of the connection manager.
pub(super) const MAX_IMAGE: usize = 256 << 20;

const MARK: [u8; 8] = *b"urxed\0up";

/// Mark, version, version of the protocol, length of what follows.
const HEAD: usize = 8 + 4 + 2 + 8;

/// All that a daemon goes on with.
#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    /// The names of what slots count, in the order in which they tell it.
    counted: Vec<String>,
    /// When it was written, in nanoseconds of the clock that times are measured by.
    written: u64,
    pub(crate) control: StateOfControl,
    pub(crate) broker: SavedBroker,
}

/// What is not the broker's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StateOfControl {
    /// The configuration file, if there is one, and what is in effect of it, as TOML.
    pub(crate) file: Option<(PathBuf, String)>,
    /// How many slots there are for the daemon's own user.
    pub(crate) slots: u8,
    /// The socket that programs connect to.
    pub(crate) socket: PathBuf,
    /// Where metrics are to be had.
    pub(crate) metrics: Option<String>,
    /// Both ends of the pipes by which signals come.
    pub(crate) pipes: [[Fd; 2]; 3],
}

/// A moment, from which the times of a state are seen.
#[derive(Clone, Copy)]
pub(crate) struct Times(pub(crate) Instant);

impl Times {
    /// As it is written.
    pub(crate) fn of(self, time: Instant) -> TimeOffset {
        TimeOffset::of(time, self.0)
    }

    /// As it was written.
    pub(crate) fn at(self, offset: TimeOffset) -> Instant {
        offset.from(self.0)
    }
}

/// Counters by name: there may be others in another version.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CountersByName(pub(crate) Vec<(String, u64)>);

impl CountersByName {
    pub(crate) fn of<'a>(
        counters: impl Iterator<Item = (&'static str, u64, &'static str)> + 'a,
    ) -> CountersByName {
        CountersByName(counters.map(|(name, value, _)| (name.to_owned(), value)).collect())
    }

    /// Gives each to something that goes on counting.
    pub(crate) fn each(&self, mut go_on_from: impl FnMut(&str, u64)) {
        self.0.iter().for_each(|(name, value)| go_on_from(name, *value));
    }

    /// Their values in the order of other counters, with 0 for those that are not here.
    pub(crate) fn values<'a>(
        &self,
        order: impl Iterator<Item = (&'static str, u64, &'static str)> + 'a,
    ) -> Vec<u64> {
        let value = |wanted: &str| self.0.iter().find(|(name, _)| name == wanted);
        order.map(|(name, ..)| value(name).map_or(0, |(_, value)| *value)).collect()
    }
}

/// The names of what slots count, in the order in which they tell it.
fn counted() -> Vec<String> {
    let engine = Counter::ALL.iter().map(|counter| counter.name());
    let (port, host) = (PortCounters::default().iter(), HostCounters::default().iter());
    let (daemon, objects) = (DaemonCounters::default().iter(), ObjectCounts::default().iter());
    let sets = port.chain(host).chain(daemon).chain(objects).chain(PathSums::default().iter());
    engine.chain(sets.map(|(name, ..)| name)).map(str::to_owned).collect()
}

/// The time of the clock that [`Instant`] shows, too.
fn clock() -> Duration {
    // The clock begins with the machine, and has no time before that.
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

impl State {
    /// The state of a daemon, with times as they are seen from a moment that was just now.
    pub(crate) fn new(times: Times, control: StateOfControl, broker: SavedBroker) -> State {
        let then = clock().saturating_sub(times.0.elapsed());
        let written = u64::try_from(then.as_nanos()).unwrap_or(u64::MAX);
        State { counted: counted(), written, control, broker }
    }

    /// What is in effect of the configuration file, if there is one.
    pub(crate) fn config_file(&self) -> Result<Option<ConfigFile>, ImageError> {
        let file = self.control.file.as_ref().map(|(path, text)| ConfigFile::parse(path, text));
        Ok(file.transpose()?)
    }

    /// From where its times are seen.
    pub(crate) fn times(&self) -> Result<Times, ImageError> {
        let (now, then) = (clock(), Duration::from_nanos(self.written));
        let since = now.checked_sub(then);
        let since = since.ok_or_else(|| ImageError::Time((then - now).as_nanos() as u64))?;
        // The clock begins with the machine.
        let now = Instant::now();
        Ok(Times(now.checked_sub(since).unwrap_or(now)))
    }

    /// As bytes.
    ///
    /// # Errors
    /// If it is larger than any may be.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, UpgradeError> {
        let body = postcard::to_stdvec(self)
            .map_err(|error| UpgradeError::Write(io::Error::other(error)))?;
        if body.len() > MAX_IMAGE - HEAD {
            return Err(UpgradeError::TooLarge(body.len() + HEAD));
        }
        let length = (body.len() as u64).to_le_bytes();
        let (version, protocol) = (STATE_VERSION.to_le_bytes(), PROTOCOL_VERSION.to_le_bytes());
        Ok([&MARK[..], &version, &protocol, &length, &body].concat())
    }

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it: first what another version would be told by.
    pub(crate) fn decode(bytes: &[u8]) -> Result<State, ImageError> {
        // UPGRADE-008
        let (mark, rest) = bytes.split_first_chunk::<8>().ok_or(ImageError::NotAState)?;
        if *mark != MARK {
            return Err(ImageError::NotAState);
        }
        let (version, rest) = rest.split_first_chunk::<4>().ok_or(ImageError::NotAState)?;
        let version = u32::from_le_bytes(*version);
        if version != STATE_VERSION {
            return Err(ImageError::Version { found: version });
        }
        let (protocol, rest) = rest.split_first_chunk::<2>().ok_or(ImageError::NotAState)?;
        let protocol = u16::from_le_bytes(*protocol);
        if protocol != PROTOCOL_VERSION {
            return Err(ImageError::Protocol { found: protocol });
        }
        let (length, body) = rest.split_first_chunk::<8>().ok_or(ImageError::NotAState)?;
        let (said, found) = (u64::from_le_bytes(*length), body.len() as u64);
        if said != found {
            return Err(ImageError::Length { said, found });
        }
        let (state, behind): (State, &[u8]) = postcard::take_from_bytes(body)?;
        if !behind.is_empty() {
            return Err(ImageError::Length { said: found - behind.len() as u64, found });
        }
        if state.counted != counted() {
            let (found, expected) = (state.counted.len(), counted().len());
            return Err(ImageError::Counters { found, expected });
        }
        state.times()?;
        state.broker.check(state.control.slots)?;
        Ok(state)
    }
}

/// A file of this process with these bytes, which nobody changes any more.
pub(super) fn sealed(bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("urxed-state", flags)?);
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
    Ok(file)
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Reads such a file.
pub(super) fn read(file: impl AsFd) -> Result<Vec<u8>, ImageError> {
    let unreadable = |error: io::Error| ImageError::Unreadable(error);
    let file = file.as_fd().try_clone_to_owned().map(File::from).map_err(unreadable)?;
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(|errno| unreadable(errno.into()))?;
    if !seals.contains(SEALS) {
        return Err(ImageError::NotSealed);
    }
    let length = file.metadata().map_err(unreadable)?.len();
    if length > MAX_IMAGE as u64 {
        return Err(ImageError::Length { said: MAX_IMAGE as u64, found: length });
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> State {
        let fd = || Fd::for_tests(0);
        let control = StateOfControl {
            file: Some(("/etc/urxe/urxed.toml".into(), "drain = 5\n".into())),
            slots: 2,
            socket: "/run/urxe/urxed.sock".into(),
            metrics: None,
            pipes: [(); 3].map(|()| [fd(), fd()]),
        };
        State::new(Times(Instant::now()), control, SavedBroker::empty())
    }

    fn error(bytes: &[u8]) -> String {
        State::decode(bytes).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_state_of_another_version_or_protocol_is_told_by_its_head_alone() {
        let bytes = state().encode().unwrap();
        assert_eq!(error(&bytes), "");
        let with = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x40;
            bytes.truncate(HEAD);
            error(&bytes)
        };
        assert_eq!(with(0), "state: begins with other bytes than that of a urxed");
        let other = STATE_VERSION ^ 0x40;
        assert_eq!(with(8), format!("state: version {other}, expected {STATE_VERSION}"));
        let said = with(12);
        assert!(said.contains("of the protocol, expected"), "{said}");
    }

    #[test]
    fn a_state_that_is_cut_or_has_more_behind_it_is_refused_with_both_lengths() {
        let bytes = state().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(State::decode(&bytes[..len]).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        let (body, found) = (bytes.len() - HEAD, bytes.len() - HEAD + 1);
        assert_eq!(error(&longer), format!("state: {found} bytes, expected {body}"));
    }

    #[test]
    fn a_file_that_could_be_changed_is_no_state() {
        let bytes = state().encode().unwrap();
        assert_eq!(read(sealed(&bytes).unwrap()).unwrap(), bytes);
        let open = File::from(
            rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)
                .unwrap(),
        );
        assert!(matches!(read(open), Err(ImageError::NotSealed)));
    }

    proptest! {
        #[test]
        fn bytes_of_anybody_are_a_state_or_an_error(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = state().encode().unwrap();
            for (at, byte) in changes {
                let at = HEAD + at.index(bytes.len() - HEAD);
                bytes[at] = byte;
            }
            let _ = State::decode(&bytes);
        }
    }
}
