//! How packets and time reach a check: a real port and the clock, or a simulated network.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use urxe_port::{Port, RxBatch, SendOutcome};
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
    /// If the port is of no use any more; `Unsupported`: it cannot send with such outer headers.
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

impl<P: Port> Link for PortLink<P> {
    fn local(&self) -> IpAddr {
        self.addr
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn send(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> io::Result<()> {
        push_damaged(&mut self.tx, datagrams);
        let unsendable = self.port.counters().tx_wrong_flow;
        let end = self.now() + SEND_TIMEOUT;
        while self.port.send(Instant::now(), &mut self.tx)? == SendOutcome::Blocked {
            if self.now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        if self.port.counters().tx_wrong_flow > unsendable {
            let reason = "this port cannot send with such addresses or such a source port";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(())
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<(Outer, Vec<u8>)>> {
        loop {
            if let Some((outer, bytes)) = self.rx.next_datagram() {
                return Ok(Some((*outer, bytes.to_vec())));
            }
            if self.port.recv(Instant::now(), &mut self.rx)? > 0 {
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
}
