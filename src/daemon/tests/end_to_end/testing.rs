//! Daemons for the tests of others.

use crate::harness::Client;
use std::path::PathBuf;
use urxe_daemon::testing::TestDaemon;

#[test]
fn test_daemons_run_side_by_side_and_leave_nothing() {
    let daemons: Vec<TestDaemon> = (0..3).map(|_| TestDaemon::start(2).unwrap()).collect();
    for daemon in &daemons {
        let mut client = Client::connect(daemon.socket());
        client.open("urxe0");
        client.open("urxe1");
    }
    let directories: Vec<PathBuf> =
        daemons.iter().map(|daemon| daemon.socket().parent().unwrap().into()).collect();
    drop(daemons);
    assert!(directories.iter().all(|directory| !directory.exists()), "{directories:?}");
}

#[test]
fn a_test_daemon_without_devices_or_with_too_many_is_refused() {
    for wrong in [0, 100_000] {
        TestDaemon::start(wrong).unwrap_err();
    }
}
