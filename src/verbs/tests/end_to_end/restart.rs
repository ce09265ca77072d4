//! What programs have when their daemon, or that of their peer, was started anew at its socket and
//! its addresses.

use crate::{ALL, Net, Side, kind_of_run, start, start_at};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_daemon::{Handle, StartError};
use urxe_verbs::*;

/// Ends a daemon, and starts the next in its place.
fn restarted(daemon: Handle) -> Handle {
    let socket = daemon.socket().to_owned();
    let addrs: Vec<IpAddr> =
        daemon.devices().iter().flat_map(|device| device.addrs.clone()).collect();
    drop(daemon);
    let begun = Instant::now();
    loop {
        match start_at(&socket, addrs.clone()) {
            // A program that another test starts has the port: our sockets, until it is executed.
            Err(StartError::Port(_)) if begun.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            started => return started.unwrap(),
        }
    }
}

fn write(from: &Side, to: &Side, text: &[u8]) {
    let there = to.mr.remote_buf(..).unwrap();
    from.qp.post_send(&[SendWr::write(1, Inline(text), there).signaled()]).unwrap();
    from.done();
    assert_eq!(to.bytes(0, text.len()), text);
}

#[test]
fn objects_end_with_their_daemon_and_the_device_of_the_next_can_be_opened() {
    let Net { near, far, daemon } = Net::new();
    write(&near, &far, b"before");
    let daemon = restarted(daemon.unwrap());
    for side in [&near, &far] {
        assert!(matches!(side.context.alloc_pd(), Err(Error::DaemonGone { .. })));
        assert!(matches!(side.qp.query(), Err(Error::DaemonGone { .. })));
        let post = side.qp.post_send(&[SendWr::send(1, Inline(b"lost")).signaled()]);
        assert!(matches!(post.unwrap_err().reason, PostReason::DaemonGone { .. }));
    }
    assert_eq!(far.bytes(0, 6), b"before", "its memory is its own");

    let [anew, other] = ["urxe0", "urxe1"].map(|name| Side::of(&daemon, name));
    anew.qp.connect(&other.qp.endpoint().unwrap(), ALL).unwrap();
    other.qp.connect(&anew.qp.endpoint().unwrap(), ALL).unwrap();
    write(&anew, &other, b"after");
    // Nothing of the next daemon goes with handles of the former.
    drop((near, far));
    write(&anew, &other, b"still");
}

#[test]
fn a_peer_of_a_restarted_daemon_fails_by_its_retries_and_can_be_connected_anew() {
    let subnet = 50 + kind_of_run();
    let [ours, theirs] = [1, 2].map(|host| start([[127, subnet, 0, host].into()]).unwrap());
    let (near, far) = (Side::of(&ours, "urxe0"), Side::of(&theirs, "urxe0"));
    near.qp.connect(&far.qp.endpoint().unwrap(), ALL).unwrap();
    far.qp.connect(&near.qp.endpoint().unwrap(), ALL).unwrap();
    write(&near, &far, b"before");

    let theirs = restarted(theirs);
    let there = far.mr.remote_buf(..).unwrap();
    near.qp.post_send(&[SendWr::write(2, Inline(b"lost"), there).signaled()]).unwrap();
    let failed = near.next();
    assert_eq!((failed.wr_id, failed.status), (2, WcStatus::RetryExceeded));

    let anew = Side::of(&theirs, "urxe0");
    near.qp.to_reset().unwrap();
    near.qp.connect(&anew.qp.endpoint().unwrap(), ALL).unwrap();
    anew.qp.connect(&near.qp.endpoint().unwrap(), ALL).unwrap();
    write(&near, &anew, b"after");
}
