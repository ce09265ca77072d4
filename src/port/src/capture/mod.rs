//! Capturing what passes a port, for tshark, Wireshark and Scapy: pcapng. And [`read`]ing
//! captures, whoever made them.
//!
//! Around [`Fault`](crate::fault::Fault) it records what the engine sees, inside of it what the
//! wire sees.
//!
//! Several captures can share a file that each appends to: they write whole blocks, and each begins
//! a section with an interface that is as all the others.
//!
//! The IP and UDP headers are rebuilt from the flow. What a port does not know is in the file as
//! follows, so that every ICRC in it that is right can be checked:
//!
//! - The IPv4 identification of a sent datagram is the one that its ICRC was made for; that of a
//!   received one is what the port saw, or what the ICRC tells where the port cannot see it. Where
//!   that tells nothing (the datagram is damaged) it is the port's guess.
//! - The UDP checksum is always 0: not there.
//! - Headers of the link are left out.

mod clock;
mod filter;
mod pcapng;
mod read;
mod record;

pub use clock::Clock;
pub use filter::Filter;
pub use pcapng::{CapturedPacket, PacketDirection, PcapNg};
pub use read::{Content, Frame, ReadError, Unusable, read};
pub use record::{BadRecord, Captured, MAX_COUNTED, MAX_RECORD, Record};

use crate::{Port, PortCounters, RxBatch, SendOutcome, Wrapper};
use std::io::{self, BufWriter, Write};
use std::time::{Duration, Instant, SystemTime};
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, Outer, OuterHeaders};

/// How much is written to the file by one call: many packets.
const BUFFER: usize = 64 * 1024;

/// How long packets may stay in the buffer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// A port that captures every datagram that it sends and receives.
///
/// A write that fails ends the capture, under the counter `capture_failed`, and not the port.
pub struct Capture<P, W: Write> {
    inner: P,
    /// `None` once a write has failed.
    file: Option<PcapNg<BufWriter<W>>>,
    clock: Clock,
    /// When to write what is in the buffer, if anything is.
    flush_at: Option<Instant>,
    checker: Checker,
    /// How many datagrams of a batch that was blocked have been captured already.
    recorded: usize,
    counters: PortCounters,
}

impl<P: Port, W: Write + Send> Capture<P, W> {
    /// Begins a capture. `now` and `wall` are the same moment on two clocks: that of the port's
    /// calls and that of the calendar. Nothing is read from either.
    pub fn new(inner: P, out: W, now: Instant, wall: SystemTime) -> Self {
        let caps = inner.caps();
        let name = caps.interface.as_deref().unwrap_or(caps.backend);
        let file = PcapNg::begin(BufWriter::with_capacity(BUFFER, out), name);
        let mut capture = Capture {
            inner,
            file: None,
            clock: Clock::new(now, wall),
            flush_at: None,
            checker: Checker::new(),
            recorded: 0,
            counters: PortCounters::default(),
        };
        match file {
            Ok(file) => capture.file = Some(file),
            Err(_) => capture.counters.capture_failed = 1,
        }
        capture
    }

    fn record(
        &mut self,
        now: Instant,
        direction: PacketDirection,
        flow: &Flow,
        ident: u16,
        fragment: u16,
        bytes: &[u8],
    ) {
        let time = self.clock.nanoseconds(now);
        let headers = OuterHeaders::new(flow, ident, fragment, bytes.len());
        let packet = CapturedPacket::whole(time, direction, headers.as_bytes(), bytes);
        self.write(|file| file.packet(&packet));
        self.flush_at.get_or_insert(now + FLUSH_INTERVAL);
        self.counters.captured += u64::from(self.file.is_some());
    }

    fn record_received(&mut self, now: Instant, outer: &Outer, bytes: &[u8]) {
        let (ident, fragment) = identification(&mut self.checker, outer, bytes);
        self.record(now, PacketDirection::Inbound, &outer.flow, ident, fragment, bytes);
    }

    fn flush_in_time(&mut self, now: Instant) {
        // TAP-009
        if self.flush_at.is_some_and(|at| at <= now) {
            self.own_flush();
        }
    }

    /// Does something to the file, and gives it up if that fails.
    fn write(&mut self, write: impl FnOnce(&mut PcapNg<BufWriter<W>>) -> io::Result<()>) {
        if let Some(file) = &mut self.file
            && write(file).is_err()
        {
            self.file = None;
            self.counters.capture_failed = 1;
        }
    }
}

/// The IPv4 identification of a received datagram, and the two bytes behind it: what the port saw,
/// or what the ICRC tells.
pub fn identification(checker: &mut Checker, outer: &Outer, bytes: &[u8]) -> (u16, u16) {
    match outer.ident {
        Ident::Known { ident, fragment } => (ident, fragment),
        Ident::Hidden { guess } => match checker.check(outer, bytes) {
            Verdict::Recovered { ident } => (ident, DONT_FRAGMENT),
            Verdict::Exact | Verdict::Bad => (guess, DONT_FRAGMENT),
        },
    }
}

impl<P: Port, W: Write + Send> Wrapper for Capture<P, W> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn wrap_send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        if self.file.is_some() {
            for sent in batch.datagrams().skip(self.recorded) {
                self.record(
                    now,
                    PacketDirection::Outbound,
                    sent.flow,
                    sent.ident,
                    DONT_FRAGMENT,
                    sent.bytes,
                );
            }
        }
        let outcome = self.inner.send(now, batch);
        self.recorded = batch.len();
        self.flush_in_time(now);
        outcome
    }

    fn wrap_recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        let datagrams = self.inner.recv(now, rx)?;
        if self.file.is_some() {
            for (outer, bytes) in rx.as_received() {
                self.record_received(now, &outer, bytes);
            }
        }
        self.flush_in_time(now);
        Ok(datagrams)
    }

    fn own_timeout(&self) -> Option<Instant> {
        self.flush_at
    }

    fn own_flush(&mut self) {
        self.flush_at = None;
        self.write(PcapNg::flush);
    }

    fn own_counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
