//! A port that is blocked most of the time.

use crate::{Port, SendOutcome, Wrapper};
use std::io;
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

impl<P: Port> Wrapper for Narrow<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn wrap_send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
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
}
