//! Calls of threads that have other descriptors.

use super::*;
use crate::{Mirrored, ShareSockets};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A table that all threads of the test have.
#[derive(Debug)]
struct OneTable;

impl ShareSockets for OneTable {
    fn share(&self, socket: OwnedFd) -> Result<(OwnedFd, Mirrored), OwnedFd> {
        Ok((socket, Box::new(())))
    }
}

/// One that has no room.
#[derive(Debug)]
struct Full;

impl ShareSockets for Full {
    fn share(&self, socket: OwnedFd) -> Result<(OwnedFd, Mirrored), OwnedFd> {
        Err(socket)
    }
}

fn shared_by(share: impl ShareSockets + 'static) -> UdpPort {
    let options = UdpOptions { share: Some(Arc::new(share)), ..UdpOptions::default() };
    UdpPort::open(fresh_addr(), &options).unwrap()
}

#[test]
fn pollers_are_served_only_where_all_sockets_are_shared() {
    assert!(!UdpPort::open(fresh_addr(), &UdpOptions::default()).unwrap().serves_pollers());
    assert!(!shared_by(Full).serves_pollers());
    assert!(shared_by(OneTable).serves_pollers());
}

/// What a poller cannot do without descriptors of its own waits for the next call that is none of a
/// poller's, and then a poller can do the same.
#[test]
fn a_poller_opens_no_socket() {
    let (mut a, mut b) = (shared_by(OneTable), shared_by(OneTable));
    let dst = b.caps().addrs[0];
    let flow = Flow { src_port: FIRST_SOURCE_PORT + 3, ..flow(&a.caps(), dst) };
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 1, 64);
    a.set_poller(true);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Blocked);
    assert_eq!(a.counters().tx_datagrams, 0);
    a.set_poller(false);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    a.set_poller(true);
    push_write(&mut batch, &flow, 1, 1, 64);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    b.set_poller(true);
    let mut rx = RxBatch::new(4);
    let mut lengths = Vec::new();
    let begun = Instant::now();
    while lengths.len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{lengths:?}");
        b.recv(Instant::now(), &mut rx).unwrap();
        while let Some((_, datagram)) = rx.next_datagram() {
            lengths.push(datagram.len());
        }
    }
}
