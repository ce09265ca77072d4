//! How packets and time reach a check: a real port and the clock, or a simulated network.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use urxe_port::{Port, PortCounters, RxBatch, SendOutcome};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Flow, Outer};

/// The tester's end of the network.
pub trait Link {
    /// The address that it sends from.
    fn local(&self) -> IpAddr;

    /// The time.
    fn now(&self) -> Instant;

    /// Sends datagrams, each the UDP payload with room for the ICRC and the bits of the ICRC that
    /// are to be inverted.
    ///
    /// # Errors
    /// If not all of them were sent; `Unsupported`: it cannot send with such outer headers.
    fn send(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> io::Result<()>;

    /// The next datagram that has come, or comes before `until`. Time passes meanwhile, to `until`
    /// if nothing comes.
    ///
    /// # Errors
    /// If the port is of no use any more.
    fn receive(&mut self, until: Instant) -> io::Result<Option<(Outer, Vec<u8>)>>;

    /// A number that no check before has had, most likely: the device may remember what was said
    /// to it by earlier ones, and by earlier runs.
    fn unique(&self) -> u32;

    /// Whether outer headers are seen byte for byte, as a packet socket shows them.
    fn sees_headers(&self) -> bool;

    /// Bytes of the largest IP packet that it sends and receives, if there is a largest.
    fn largest_packet(&self) -> Option<usize> {
        None
    }
}

/// Puts what [`Link::send`] is given into a batch, with the right ICRC but for the bits that are to
/// be inverted.
pub fn push_damaged(tx: &mut TxBatch, datagrams: &[(Flow, Vec<u8>, u32)]) {
    for (flow, bytes, damage) in datagrams {
        let placed = tx.push_raw(flow, bytes);
        if let Some(icrc) = placed.last_chunk_mut() {
            *icrc = (u32::from_le_bytes(*icrc) ^ damage).to_le_bytes();
        }
    }
}

/// A port of this machine.
pub struct PortLink<P> {
    port: P,
    addr: IpAddr,
    tx: TxBatch,
    rx: RxBatch,
}

/// Bytes of datagrams that are sent at once at most.
const TX_CAPACITY: usize = 1 << 20;
/// What a port counts under these names it has dropped.
const NOT_SENT: [&str; 6] =
    ["tx_too_large", "tx_unreachable", "tx_refused", "tx_forbidden", "tx_no_buffer", "tx_failed"];
/// How long a socket whose buffer is full is waited for.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

impl<P: Port> PortLink<P> {
    /// The tester sends from `addr`, which the port has.
    pub fn new(port: P, addr: IpAddr) -> PortLink<P> {
        let tx = TxBatch::new(port.caps().tx_limits, TX_CAPACITY);
        PortLink { port, addr, tx, rx: RxBatch::new(8) }
    }

    /// Waits until the port can be read from, or until then.
    fn wait(&self, until: Instant) -> io::Result<()> {
        let Some(fd) = self.port.fd() else { return Ok(()) };
        let left = until.saturating_duration_since(self.now());
        let timeout = rustix::event::Timespec::try_from(left).ok();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why datagrams were not sent between these counts: a device does not answer what never came.
fn unsent(before: &PortCounters, after: &PortCounters) -> Option<io::Error> {
    if after.tx_wrong_flow > before.tx_wrong_flow {
        let reason = "this port cannot send with such addresses or such a source port";
        return Some(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let counts = before.iter().zip(after.iter()).map(|(before, (name, count, meaning))| {
        let is_a_failure = NOT_SENT.contains(&name);
        (if is_a_failure { count.saturating_sub(before.1) } else { 0 }, name, meaning)
    });
    let (count, name, meaning) = counts.max_by_key(|(count, ..)| *count)?;
    (count > 0).then(|| io::Error::other(format!("{count} datagrams ({name}): {meaning}")))
}

impl<P: Port> Link for PortLink<P> {
    fn local(&self) -> IpAddr {
        self.addr
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn send(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> io::Result<()> {
        push_damaged(&mut self.tx, datagrams);
        let before = self.port.counters();
        let end = self.now() + SEND_TIMEOUT;
        while self.port.send(Instant::now(), &mut self.tx)? == SendOutcome::Blocked {
            if self.now() > end {
                self.tx.clear();
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        unsent(&before, &self.port.counters()).map_or(Ok(()), Err)
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<(Outer, Vec<u8>)>> {
        loop {
            if let Some((outer, bytes)) = self.rx.next_datagram() {
                return Ok(Some((*outer, bytes.to_vec())));
            }
            if self.port.recv(Instant::now(), &mut self.rx)? > 0 {
                self.rx.keep_order();
                continue;
            }
            if self.now() >= until {
                return Ok(None);
            }
            self.wait(until)?;
        }
    }

    fn unique(&self) -> u32 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| (since.as_nanos() >> 8) as u32)
    }

    fn sees_headers(&self) -> bool {
        self.port.caps().sees_ident
    }

    fn largest_packet(&self) -> Option<usize> {
        Some(self.port.caps().link_mtu as usize).filter(|&mtu| mtu > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(after: PortCounters) -> Option<io::Error> {
        let before = PortCounters { tx_datagrams: 3, tx_failed: 1, ..PortCounters::default() };
        unsent(&before, &(before + after))
    }

    #[test]
    fn datagrams_that_the_port_dropped_are_told_of() {
        let none = PortCounters::default();
        for (after, name) in [
            (PortCounters { tx_too_large: 1, ..none }, "tx_too_large"),
            (PortCounters { tx_unreachable: 1, ..none }, "tx_unreachable"),
            (PortCounters { tx_refused: 1, ..none }, "tx_refused"),
            (PortCounters { tx_forbidden: 2, tx_datagrams: 1, ..none }, "tx_forbidden"),
            (PortCounters { tx_no_buffer: 1, ..none }, "tx_no_buffer"),
            (PortCounters { tx_failed: 1, ..none }, "tx_failed"),
        ] {
            let error = error(after).expect("something was dropped");
            assert_eq!(error.kind(), io::ErrorKind::Other);
            assert!(error.to_string().contains(name), "{error}");
        }
        let wrong_flow = error(PortCounters { tx_wrong_flow: 1, ..none });
        assert_eq!(wrong_flow.map(|error| error.kind()), Some(io::ErrorKind::Unsupported));
        let sent = PortCounters { tx_datagrams: 9, tx_calls: 1, tx_blocked: 1, ..none };
        assert!(error(sent).is_none());
    }

    #[test]
    fn each_counter_of_what_was_not_sent_is_looked_at() {
        let of_port = PortCounters::default()
            .iter()
            .filter(|(_, _, meaning)| meaning.starts_with("Not sent"));
        for (name, ..) in of_port {
            assert!(NOT_SENT.contains(&name) || name == "tx_wrong_flow", "{name}");
        }
    }
}
