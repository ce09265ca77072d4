//! A port that writes and sees every byte of the headers. Needs CAP_NET_RAW.
//!
//! Out: raw sockets with our own IP header, "don't fragment" set, a counting IPv4 identification,
//! the flow's UDP source port, and UDP checksum 0 as kernel rxe sends it. Nothing here checks that
//! a flow's source address is ours: for conformance tests that is a feature.
//!
//! In: a packet socket, with a filter for our address and UDP port 4791. It sees what the interface
//! received, so a super-packet that a segmenting peer on the same machine sent arrives whole, with
//! the segment length beside it; its segments have identifications that count up. (Linux before 6.2
//! cannot say the segment length of UDP; such packets are lost there, under `rx_truncated`.)
//!
//! A UDP socket is bound to the port all the same, with its queue closed: without one the kernel
//! would tell every peer that there is no such port.

mod filter;

use crate::caps::{Caps, Segmentation, SourcePort};
use crate::headers::{self, Headers};
use crate::open::{self, Bound, Interface};
use crate::os_error;
use crate::sys::packet::{self, VNET_HEADER_LEN};
use crate::sys::{Message, Receiver, SEND_MAX, Sender, option};
use crate::{OpenError, Port, PortCounters, RxBatch, SendOutcome};
use pnet::datalink;
use socket2::{Protocol, Socket, Type};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use urxe_wire::batch::{Datagram, IdentPolicy, TxBatch, TxLimits};
use urxe_wire::{DONT_FRAGMENT, Flow};

/// Messages that one call receives at most.
const RECV_MAX: usize = 64;

/// When to try again after the way out was full. The event loop watches the packet socket, which
/// says nothing about the raw one.
const BLOCKED_RETRY: Duration = Duration::from_micros(50);

/// How to open a [`RawPort`].
#[derive(Clone, Debug)]
pub struct RawOptions {
    /// Bytes of socket buffer to ask for, each way.
    pub socket_buffer: u32,
    /// The IPv4 identification of the first datagram of a batch; `None`: a random one.
    pub first_ident: Option<u16>,
}

impl Default for RawOptions {
    /// 8 MiB of buffer, a random identification.
    fn default() -> Self {
        RawOptions { socket_buffer: 8 << 20, first_ident: None }
    }
}

/// A port over raw and packet sockets.
pub struct RawPort {
    addr: IpAddr,
    interface: Interface,
    /// Holds UDP port 4791; its queue is closed.
    _bound: Socket,
    /// Sends.
    raw: Socket,
    /// Receives.
    packet: Socket,
    receive_buffer: usize,
    first_ident: u16,
    sender: Sender,
    /// Headers of the datagrams that one call sends.
    headers: Vec<Headers>,
    receiver: Receiver,
    /// Set while the way out is full.
    retry_at: Option<Instant>,
    counters: PortCounters,
}

impl RawPort {
    /// Opens UDP port 4791 of one of this machine's addresses.
    pub fn open(addr: IpAddr, options: &RawOptions) -> Result<RawPort, OpenError> {
        let system = |step| move |source| OpenError::System { addr, step, source };
        let raw =
            Socket::new(open::domain(addr), Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
                .map_err(unprivileged_or(system("making a raw socket")))?;
        let packet = packet::socket().map_err(unprivileged_or(system("making a packet socket")))?;
        let Bound { socket: bound, interface } = open::bind(addr)?;
        bound.attach_filter(&filter::nothing()).map_err(system("closing the bound socket"))?;

        let filter = filter::roce_for(addr, interface.index, loopback_index());
        let buffer = i32::try_from(options.socket_buffer).unwrap_or(i32::MAX);
        packet.attach_filter(&filter).map_err(system("attaching the packet filter"))?;
        option::ask_for_buffers(packet.as_fd(), buffer).map_err(system("sizing buffers"))?;
        option::ask_for_buffers(raw.as_fd(), buffer).map_err(system("sizing buffers"))?;
        raw.set_nonblocking(true).map_err(system("setting O_NONBLOCK"))?;
        packet::listen(&packet, addr).map_err(system("binding the packet socket"))?;

        Ok(RawPort {
            addr,
            interface,
            _bound: bound,
            raw,
            receive_buffer: open::receive_buffer(&packet),
            packet,
            // The standard library's hash maps are seeded by the system: randomness enough here.
            first_ident: options
                .first_ident
                .unwrap_or_else(|| RandomState::new().hash_one(addr) as u16),
            sender: Sender::new(),
            headers: Vec::with_capacity(SEND_MAX),
            receiver: Receiver::new(RECV_MAX),
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
    fn take(&mut self, place: usize, rx: &mut RxBatch) {
        let received = self.receiver.received(place);
        if received.truncated {
            self.counters.rx_truncated += 1;
            return;
        }
        let ip_at = VNET_HEADER_LEN + received.network_at;
        let packet = &rx.buffer(place)[..received.len];
        let segment = packet.first_chunk().map(packet::segment_len);
        let parsed = packet.get(ip_at..).and_then(headers::parse);
        let (Some(segment), Some(parsed)) = (segment, parsed) else {
            self.counters.rx_malformed += 1;
            return;
        };
        let start = ip_at + parsed.start;
        let datagrams = rx.add(place, start, parsed.len, segment, parsed.outer);
        self.counters.rx_datagrams += datagrams as u64;
        self.counters.rx_bytes += parsed.len as u64;
    }
}

impl Port for RawPort {
    fn caps(&self) -> Caps {
        Caps {
            backend: "raw",
            addr: self.addr,
            interface: Some(self.interface.name.clone()),
            link_mtu: self.interface.mtu,
            tx_limits: TxLimits {
                ident: IdentPolicy::Counting { next: self.first_ident },
                ..TxLimits::SINGLE
            },
            source_port: SourcePort::OfFlow,
            sees_ident: true,
            receive_buffer: self.receive_buffer,
            segmentation: Segmentation::Unavailable,
        }
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        self.retry_at = None;
        if batch.limits().max_segments > 1 {
            batch.split();
        }
        while !batch.is_empty() {
            let (ipv4, interface) = (self.addr.is_ipv4(), self.interface.index);
            self.headers.clear();
            self.headers.extend(
                sendable(batch, ipv4)
                    .map(|d| headers::emit(d.flow, d.ident, DONT_FRAGMENT, d.bytes.len())),
            );
            let with_headers = sendable(batch, ipv4).zip(&self.headers);
            let messages = with_headers.map(|(datagram, (header, len))| Message {
                parts: [&header[..*len], datagram.bytes],
                to: open::socket_addr(datagram.flow.dst, 0, interface),
                segment: None,
                tclass: None,
                hop_limit: None,
            });
            self.counters.tx_calls += 1;
            match self.sender.send(self.raw.as_fd(), messages) {
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
        self.counters.rx_calls += 1;
        let packets = match self.receiver.recv(self.packet.as_fd(), rx.buffers()) {
            Ok(packets) => packets,
            // A super-packet that this kernel cannot describe; it has thrown it away.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.counters.rx_truncated += 1;
                return Ok(1);
            }
            Err(error) if os_error::is_passing(&error) => return Ok(1),
            Err(error) => return Err(error),
        };
        for place in 0..packets {
            self.take(place, rx);
        }
        Ok(packets.max(rx.len()))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.packet.as_fd())
    }

    fn counters(&self) -> PortCounters {
        let rx_overflow = option::receive_drops(self.packet.as_fd());
        PortCounters { rx_overflow, ..self.counters }
    }
}

/// The datagrams that the next call can send: those up to one of the other address family.
fn sendable(batch: &TxBatch, ipv4: bool) -> impl Iterator<Item = Datagram<'_>> {
    let is_family = move |flow: &Flow| flow.src.is_ipv4() == ipv4 && flow.dst.is_ipv4() == ipv4;
    batch.datagrams().take_while(move |d| is_family(d.flow)).take(SEND_MAX)
}

/// The loopback interface: what we send to our own address comes in there, whatever interface has
/// the address.
fn loopback_index() -> u32 {
    datalink::interfaces().iter().find(|i| i.is_loopback()).map_or(0, |i| i.index)
}

/// The sentence for a missing privilege, or another for any other error.
fn unprivileged_or(other: impl Fn(io::Error) -> OpenError) -> impl Fn(io::Error) -> OpenError {
    move |error| match error.kind() {
        io::ErrorKind::PermissionDenied => OpenError::NoPrivilege,
        _ => other(error),
    }
}

#[cfg(test)]
mod tests;
