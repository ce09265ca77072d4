//! A daemon of a test's own: on loopback addresses that are free, at a socket of its own, without
//! anything installed or running, in one line.
//!
//! ```
//! use urxe_daemon::testing::TestDaemon;
//!
//! let daemon = TestDaemon::start(2)?;
//! assert_eq!(daemon.devices()[1].name, "urxe1");
//! // Programs, and this one, find it at `daemon.socket()`: with the client library, by
//! // `Context::open(&OpenOptions::new().socket(daemon.socket()))`.
//! # Ok::<(), urxe_daemon::StartError>(())
//! ```
//!
//! Tests run side by side, each with its own, and a daemon goes with its value. What one sends to
//! the devices of another arrives, as over any network.

use crate::config::Config;
use crate::daemon::{Daemon, Handle, StartError};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use tempfile::TempDir;
use urxe_port::OpenError;

/// How often other addresses are chosen, should somebody have had one of the first.
const ATTEMPTS: usize = 100;

/// A running daemon with a socket in a directory of its own. Both go when it is dropped.
#[derive(Debug)]
pub struct TestDaemon {
    // In this order: the daemon ends before its directory does.
    handle: Handle,
    _directory: TempDir,
}

impl TestDaemon {
    /// Starts one with so many devices, at least one, on an address each: `urxe0`, `urxe1` ...
    ///
    /// # Errors
    /// As [`Daemon::start`]; an address that somebody else has is none, another is taken then.
    pub fn start(devices: usize) -> Result<TestDaemon, StartError> {
        TestDaemon::start_with(devices, |_| ())
    }

    /// The same, with a configuration that is changed beforehand: faults, a capture, or anything
    /// but addresses and socket.
    ///
    /// ```
    /// # use urxe_daemon::testing::TestDaemon;
    /// let lossy = TestDaemon::start_with(1, |config| {
    ///     config.fault = Some("drop=1%,seed=7".parse().expect("a fault specification"));
    /// })?;
    /// # Ok::<(), urxe_daemon::StartError>(())
    /// ```
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        devices: usize,
        change: impl Fn(&mut Config),
    ) -> Result<TestDaemon, StartError> {
        let system = |step| move |source| StartError::System { step, source };
        let directory = TempDir::with_prefix("urxe-test-");
        let directory = directory.map_err(system("making a directory for the socket"))?;
        let mut attempt = 0;
        loop {
            let addrs = random_addrs(devices).map_err(system("getting random numbers"))?;
            let mut config = Config::new(addrs);
            change(&mut config);
            config.socket = directory.path().join("urxed.sock");
            match Daemon::start(config) {
                Ok(handle) => return Ok(TestDaemon { handle, _directory: directory }),
                Err(StartError::Port(OpenError::PortTaken { .. })) if attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Deref for TestDaemon {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

/// Addresses of the loopback network, which has 16 million of them, but none that people type.
fn random_addrs(count: usize) -> io::Result<BTreeSet<IpAddr>> {
    let mut addrs = BTreeSet::new();
    // More than any daemon has is refused by it, and not looked for here.
    while addrs.len() < count.min(urxe_slot::limits::MAX_DEVICES + 1) {
        let [net, subnet, host, ..] = getrandom::u64()?.to_le_bytes();
        addrs.insert(Ipv4Addr::new(127, net | 0x80, subnet, host.clamp(1, 254)).into());
    }
    Ok(addrs)
}
