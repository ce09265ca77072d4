//! A port whose way out is full most of the time.

use crate::{Caps, OpenError, Port, PortCounters, RxBatch, SendOutcome};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use urxe_wire::batch::TxBatch;

/// Sends as many runs as it was given leave to, and is blocked then.
pub(crate) struct Narrow<P> {
    inner: P,
    pub(crate) runs: usize,
}

impl<P: Port> Narrow<P> {
    pub(crate) fn new(inner: P) -> Self {
        Narrow { inner, runs: 0 }
    }
}

impl<P: Port> Port for Narrow<P> {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        while !batch.is_empty() {
            if self.runs == 0 {
                return Ok(SendOutcome::Blocked);
            }
            self.runs -= 1;
            let mut one = TxBatch::new(batch.limits(), 1 << 16);
            for datagram in batch.runs().take(1).flat_map(|run| run.datagrams()) {
                one.push_raw(datagram.flow, datagram.bytes);
            }
            assert_eq!(self.inner.send(now, &mut one)?, SendOutcome::Done);
            batch.advance(1);
        }
        Ok(SendOutcome::Done)
    }

    fn recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        self.inner.recv(now, rx)
    }

    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        self.inner.add_address(addr)
    }

    fn remove_address(&mut self, addr: IpAddr) {
        self.inner.remove_address(addr);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}
