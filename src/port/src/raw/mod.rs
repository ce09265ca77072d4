//! A port that writes and sees every byte of the headers. Needs CAP_NET_RAW.
//!
//! Out: raw sockets with our own IP header, "don't fragment" set, a counting IPv4 identification,
//! the flow's UDP source port, and UDP checksum 0 as kernel rxe sends it. A flow's source is one of
//! the port's addresses, unless it may [forge](RawOptions::forge) others, for conformance tests.
//!
//! In: a packet socket, with a filter for our address and UDP port 4791. It sees what the interface
//! received, so a super-packet that a segmenting peer on the same machine sent arrives whole, with
//! the segment length beside it; its segments have identifications that count up. (Linux before 6.2
//! cannot say the segment length of UDP; such packets are lost there, under `rx_truncated`.)
//!
//! A UDP socket is bound to the port all the same, with its queue closed: without one the kernel
//! would tell every peer that there is no such port.

mod filter;
mod group;
mod socket;

use crate::caps::{Caps, Segmentation};
use crate::headers;
use crate::open;
use crate::os_error;
use crate::receive_gauge::ReceiveGauge;
use crate::socket_set::SocketSet;
use crate::sys::packet::{self, VNET_HEADER_LEN};
use crate::sys::{Message, Receiver, SEND_MAX, Sender};
use crate::watch::Link;
use crate::{AddressSockets, OpenError, Port, PortCounters, RxBatch, SendOutcome};
pub use group::RawGroup;
use socket::RawSocket;
use socket2::Socket;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use urxe_types::Slot;
use urxe_wire::batch::{Datagram, IdentPolicy, TxBatch, TxLimits};
use urxe_wire::{DONT_FRAGMENT, Flow, OuterHeaders, SourcePorts};

/// Messages that one call receives at most.
const RECV_MAX: usize = 64;

/// When to try again after sending was blocked. The event loop watches the packet socket, which
/// says nothing about the raw one.
const BLOCKED_RETRY: Duration = Duration::from_micros(50);

/// How to open a [`RawPort`].
#[derive(Clone, Debug)]
pub struct RawOptions {
    /// Bytes of socket buffer to ask for, each way.
    pub socket_buffer: u32,
    /// The IPv4 identification of the first datagram of a batch; `None`: a random one.
    pub first_ident: Option<u16>,
    /// Whether to send from addresses that the port has not.
    pub forge: bool,
}

impl Default for RawOptions {
    /// 8 MiB of buffer, a random identification, nothing forged.
    fn default() -> Self {
        RawOptions { socket_buffer: 8 << 20, first_ident: None, forge: false }
    }
}

/// Opens the sockets with which a [`RawPort`] on an interface is a member of a multicast group, for
/// one that has not the right to open them: it is to [adopt](Port::adopt) them.
///
/// # Errors
/// As those of [`Port::join`].
pub fn join(group: IpAddr, interface: &str, options: &RawOptions) -> io::Result<AddressSockets> {
    open::check_group(group)?;
    let interface = open::interface_named(interface).map_err(io::Error::other)?;
    socket::join(group, &interface, options)
}

/// A port over raw and packet sockets.
pub struct RawPort {
    options: RawOptions,
    /// Send, one for each address family that the port has or had an address of.
    raw_v4: Option<Socket>,
    raw_v6: Option<Socket>,
    /// Receive.
    sockets: SocketSet<RawSocket>,
    first_ident: u16,
    sender: Sender,
    /// Headers of the datagrams that one call sends.
    headers: Vec<OuterHeaders>,
    receiver: Receiver,
    gauge: ReceiveGauge,
    /// Set while sending is blocked.
    retry_at: Option<Instant>,
    counters: PortCounters,
}

impl RawPort {
    /// Opens UDP port 4791 of one of this machine's addresses.
    pub fn open(addr: IpAddr, options: &RawOptions) -> Result<RawPort, OpenError> {
        let interface = open::find_interface(addr, None)?;
        let mut port = RawPort::on(interface, options)?;
        port.add_address(addr)?;
        Ok(port)
    }

    /// A port for the addresses of an interface, without any yet: they are to be
    /// [added](Port::add_address). The interface need not be there either.
    pub fn open_interface(name: &str, options: &RawOptions) -> Result<RawPort, OpenError> {
        RawPort::on(open::interface_expected(name), options)
    }

    fn on(interface: Link, options: &RawOptions) -> Result<RawPort, OpenError> {
        let first_ident = match options.first_ident {
            Some(ident) => ident,
            None => getrandom::u32().map_err(|error| OpenError::Interface {
                interface: interface.name.clone(),
                step: "getting a random number",
                source: error.into(),
            })? as u16,
        };
        Ok(RawPort {
            sockets: SocketSet::new(interface)?,
            first_ident,
            options: options.clone(),
            raw_v4: None,
            raw_v6: None,
            sender: Sender::new(),
            headers: Vec::with_capacity(SEND_MAX),
            receiver: Receiver::new(RECV_MAX),
            gauge: ReceiveGauge::default(),
            retry_at: None,
            counters: PortCounters::default(),
        })
    }

    /// Drops the first datagram of the batch under a counter.
    fn give_up(&mut self, error: &io::Error, batch: &mut TxBatch) {
        self.counters.count_send_error(error, 1);
        batch.advance(1);
    }

    fn sent(&mut self, datagrams: usize, batch: &mut TxBatch) {
        let bytes: usize = batch.datagrams().take(datagrams).map(|d| d.bytes.len()).sum();
        self.counters.tx_datagrams += datagrams as u64;
        self.counters.tx_bytes += bytes as u64;
        batch.advance(datagrams);
    }

    /// Takes one received packet into the batch.
    fn take(&mut self, index: usize, rx: &mut RxBatch) {
        let received = self.receiver.received(index);
        if received.truncated {
            self.counters.rx_truncated += 1;
            return;
        }
        let ip_at = VNET_HEADER_LEN + received.network_at;
        let packet = &rx.buffer(index)[..received.len];
        let segment = packet.first_chunk().map(packet::segment_len);
        let parsed = packet.get(ip_at..).and_then(headers::parse);
        let (Some(segment), Some(parsed)) = (segment, parsed) else {
            self.counters.rx_malformed += 1;
            return;
        };
        let start = ip_at + parsed.start;
        let datagrams = rx.add(index, start, parsed.len, segment, parsed.outer);
        self.counters.rx_datagrams += datagrams as u64;
        self.counters.rx_bytes += parsed.len as u64;
    }
}

impl Port for RawPort {
    fn caps(&self) -> Caps {
        Caps {
            backend: "raw",
            addrs: self.sockets.addresses().collect(),
            interface: Some(self.sockets.interface().name.clone()),
            link_mtu: self.sockets.interface().mtu,
            tx_limits: TxLimits {
                ident: IdentPolicy::Counting { next: self.first_ident },
                ..TxLimits::SINGLE
            },
            source_ports: SourcePorts::All,
            sees_ident: true,
            segmentation: Segmentation::Unavailable,
        }
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        self.retry_at = None;
        if batch.limits().max_segments > 1 {
            batch.split();
        }
        while !batch.is_empty() {
            let interface = self.sockets.interface().index;
            let Some(src) = batch.runs().next().map(|run| run.flow.src) else { break };
            let raw = if src.is_ipv4() { &self.raw_v4 } else { &self.raw_v6 };
            // ADDR-023: it may have been taken away, and be another machine's now.
            let may_send = self.options.forge || self.sockets.position(src).is_some();
            let Some(raw) = raw.as_ref().filter(|_| may_send) else {
                self.counters.tx_wrong_flow += 1;
                batch.advance(1);
                continue;
            };
            self.headers.clear();
            self.headers.extend(
                sendable(batch, src)
                    .map(|d| OuterHeaders::new(d.flow, d.ident, DONT_FRAGMENT, d.bytes.len())),
            );
            let with_headers = sendable(batch, src).zip(&self.headers);
            let messages = with_headers.map(|(datagram, headers)| Message {
                parts: [headers.as_bytes(), datagram.bytes],
                to: open::socket_addr(datagram.flow.dst, 0, interface),
                segment: None,
                traffic_class: None,
                hop_limit: None,
            });
            self.counters.tx_calls += 1;
            match self.sender.send(raw.as_fd(), messages) {
                Ok(0) => {
                    self.counters.tx_wrong_flow += 1;
                    batch.advance(1);
                }
                Ok(datagrams) => self.sent(datagrams, batch),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.counters.tx_blocked += 1;
                        self.retry_at = Some(now + BLOCKED_RETRY);
                        return Ok(SendOutcome::Blocked);
                    }
                    Some(libc::EINTR) => {}
                    _ => self.give_up(&error, batch),
                },
            }
        }
        Ok(SendOutcome::Done)
    }

    fn recv(&mut self, _now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        while let Some(socket) = self.sockets.next_ready()? {
            self.counters.rx_calls += 1;
            let from = &self.sockets[socket];
            self.gauge.before(from.as_fd());
            let packets = match self.receiver.recv(from.as_fd(), rx.buffers()) {
                Ok(packets) => packets,
                // A super-packet that this kernel cannot describe; it has thrown it away.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.counters.rx_truncated += 1;
                    return Ok(1);
                }
                Err(error) if os_error::is_passing(&error) => return Ok(1),
                Err(error) => return Err(error),
            };
            let bytes = self.receiver.bytes(packets);
            self.gauge.after(bytes, from.receive_capacity(), packets == rx.buffers().len());
            for index in 0..packets {
                self.take(index, rx);
            }
            if packets > 0 || self.sockets.is_single() {
                return Ok(packets.max(rx.len()));
            }
        }
        Ok(0)
    }

    fn receive_fill(&mut self, _now: Instant) -> Option<f32> {
        self.gauge.take()
    }

    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        if self.sockets.position(addr).is_some() {
            return Ok(());
        }
        let near = &self.sockets.interface().name;
        let group = RawGroup::open(addr, Some(near), &self.options)?;
        self.adopt(group.give(Slot::ALONE)?)
    }

    fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
        let (addr, mut raw) = (sockets.addr, None);
        if addr.is_multicast() {
            if self.sockets.position(addr).is_some() {
                return Ok(());
            }
            let joined = RawSocket::of_group(sockets).and_then(|joined| self.sockets.push(joined));
            return joined.map_err(OpenError::system(addr, "taking the sockets of a group"));
        }
        let groups = self.sockets.add_address(addr, || {
            let (socket, sender) = RawSocket::of_address(sockets)?;
            raw = Some(sender);
            Ok(socket)
        })?;
        if let Some(raw) = raw {
            *(if addr.is_ipv4() { &mut self.raw_v4 } else { &mut self.raw_v6 }) = Some(raw);
        }
        for group in groups {
            // MCAST-013: a slot of another user has not the right.
            self.counters.groups_lost += u64::from(self.join(group).is_err());
        }
        Ok(())
    }

    fn remove_address(&mut self, addr: IpAddr) {
        self.sockets.close(addr);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        if self.sockets.position(group).is_some() {
            return Ok(());
        }
        let sockets = socket::join(group, self.sockets.interface(), &self.options)?;
        self.sockets.push(RawSocket::of_group(sockets)?)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        self.sockets.close(group);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.as_fd())
    }

    fn counters(&self) -> PortCounters {
        PortCounters { rx_overflow: self.sockets.receive_drops(), ..self.counters }
    }
}

/// The datagrams that the next call can send: those up to one from another address.
fn sendable(batch: &TxBatch, src: IpAddr) -> impl Iterator<Item = Datagram<'_>> {
    let is_next = move |flow: &Flow| flow.src == src && flow.dst.is_ipv4() == src.is_ipv4();
    batch.datagrams().take_while(move |d| is_next(d.flow)).take(SEND_MAX)
}

#[cfg(test)]
mod tests;
