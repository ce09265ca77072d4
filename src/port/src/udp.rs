//! The default port: one UDP socket, no privilege.
//!
//! What makes the ICRC computable from here is that the kernel's part of the headers is known. The
//! socket is bound but not connected and has path MTU discovery on, so that IPv4 packets leave with
//! "don't fragment" and identification 0; those cut from one send by `UDP_SEGMENT` count 0, 1, 2 ...
//! (a NIC that cuts in hardware is expected to count likewise). The source port is always 4791.
//!
//! On the way in `UDP_GRO` hands over many datagrams at once. The identification is not shown; two
//! urxe guess each other's, other peers' is recovered from the ICRC (see the crate's
//! documentation).

use crate::caps::{Caps, Segmentation, SourcePort};
use crate::open::{self, Bound, Interface};
use crate::os_error;
use crate::sys::{Message, Received, Receiver, Sender, option};
use crate::{OpenError, Port, PortCounters, RxBatch, SendOutcome};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use urxe_wire::batch::{Run, TxBatch, TxLimits};
use urxe_wire::{Flow, Ident, Outer, ROCE_PORT};

/// Segments that one `UDP_SEGMENT` send may have on every kernel (`UDP_MAX_SEGMENTS`; newer ones
/// take 128, but at 1024 bytes each 64 KiB is the tighter limit already).
const MAX_SEGMENTS: usize = 64;

/// The hop limit that the socket sends with where a flow does not ask for another.
const HOP_LIMIT: u8 = 64;

/// Messages that one call receives at most.
const RECV_MAX: usize = 64;

/// How to open a [`UdpPort`].
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Whether to send many datagrams a call (`UDP_SEGMENT`). Turns itself off where it does not
    /// work.
    pub segmentation: bool,
    /// Bytes of socket buffer to ask for, each way. Without CAP_NET_ADMIN the kernel grants at
    /// most `net.core.rmem_max` and `wmem_max`.
    pub socket_buffer: u32,
}

impl Default for UdpOptions {
    /// Segmentation on; 8 MiB of buffer, half a millisecond at 100 Gbit/s.
    fn default() -> Self {
        UdpOptions { segmentation: true, socket_buffer: 8 << 20 }
    }
}

/// A port over a plain UDP socket.
pub struct UdpPort {
    addr: IpAddr,
    interface: Interface,
    socket: Socket,
    receive_buffer: usize,
    segmentation: Segmentation,
    sender: Sender,
    receiver: Receiver,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens UDP port 4791 of one of this machine's addresses.
    pub fn open(addr: IpAddr, options: &UdpOptions) -> Result<UdpPort, OpenError> {
        let Bound { socket, interface } = open::bind(addr)?;
        set_options(socket.as_fd(), addr, options).map_err(|source| OpenError::System {
            addr,
            step: "setting socket options",
            source,
        })?;
        Ok(UdpPort {
            addr,
            interface,
            receive_buffer: open::receive_buffer(&socket),
            socket,
            segmentation: if options.segmentation { Segmentation::On } else { Segmentation::Off },
            sender: Sender::new(),
            receiver: Receiver::new(RECV_MAX),
            counters: PortCounters::default(),
        })
    }

    /// Deals with a first run that could not be sent. Blocked: try again later.
    fn failed(&mut self, mut error: io::Error, batch: &mut TxBatch) -> SendOutcome {
        let segments = segments_of_first(batch);
        if let Some(errno @ (libc::EIO | libc::EINVAL)) = error.raw_os_error()
            && segments > 1
        {
            match self.send_first_alone(batch) {
                Ok(()) => {
                    self.segmentation = Segmentation::Refused { errno };
                    self.counters.segmentation_refused = 1;
                    batch.split();
                    self.sent(1, batch);
                    return SendOutcome::Done;
                }
                Err(of_one) => error = of_one,
            }
        }
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.counters.tx_blocked += 1;
                return SendOutcome::Blocked;
            }
            Some(libc::EINTR) => {}
            _ => {
                self.counters.count_send_error(&error, segments);
                batch.advance(1);
            }
        }
        SendOutcome::Done
    }

    /// A segmented send was refused. That may be the segmentation's fault, or even one datagram is
    /// too large for the path, which older kernels report the same way. The first datagram, sent by
    /// itself, tells; its identification is 0 either way.
    fn send_first_alone(&mut self, batch: &TxBatch) -> io::Result<()> {
        let Some(run) = batch.runs().next() else { return Ok(()) };
        let alone = Run { bytes: &run.bytes[..run.segment_len], segments: 1, ..run };
        self.counters.tx_calls += 1;
        let message = message(&alone, self.interface.index);
        self.sender.send(self.socket.as_fd(), std::iter::once(message)).map(|_| ())
    }

    fn sent(&mut self, runs: usize, batch: &mut TxBatch) {
        for run in batch.runs().take(runs) {
            self.counters.tx_datagrams += run.segments as u64;
            self.counters.tx_bytes += run.bytes.len() as u64;
        }
        batch.advance(runs);
    }

    /// Takes one received message into the batch.
    fn take(&mut self, place: usize, received: Received, rx: &mut RxBatch) {
        if received.truncated {
            self.counters.rx_truncated += 1;
            return;
        }
        let Some(from) = received.from.filter(|_| received.len > 0) else {
            self.counters.rx_malformed += 1;
            return;
        };
        let flow = Flow {
            src: from.ip(),
            dst: self.addr,
            src_port: from.port(),
            tclass: received.tclass,
            hop_limit: received.hop_limit,
            flow_label: received.flow_label,
        };
        let outer = Outer { flow, ident: Ident::Hidden { guess: 0 } };
        let segment = received.segment.map_or(0, usize::from);
        let datagrams = rx.add(place, 0, received.len, segment, outer);
        self.counters.rx_datagrams += datagrams as u64;
        self.counters.rx_bytes += received.len as u64;
    }
}

impl Port for UdpPort {
    fn caps(&self) -> Caps {
        Caps {
            backend: "udp",
            addr: self.addr,
            interface: Some(self.interface.name.clone()),
            link_mtu: self.interface.mtu,
            tx_limits: match self.segmentation {
                Segmentation::On => TxLimits::segmented(MAX_SEGMENTS),
                _ => TxLimits::SINGLE,
            },
            source_port: SourcePort::Fixed(ROCE_PORT),
            sees_ident: false,
            receive_buffer: self.receive_buffer,
            segmentation: self.segmentation,
        }
    }

    fn send(&mut self, _now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        if self.segmentation != Segmentation::On && batch.limits().max_segments > 1 {
            batch.split();
        }
        while !batch.is_empty() {
            let (local, interface) = (self.addr, self.interface.index);
            let messages = batch
                .runs()
                .take_while(|run| can_send(local, run.flow))
                .map(|run| message(&run, interface));
            self.counters.tx_calls += 1;
            match self.sender.send(self.socket.as_fd(), messages) {
                Ok(0) => {
                    self.counters.tx_wrong_flow += segments_of_first(batch) as u64;
                    batch.advance(1);
                }
                Ok(runs) => self.sent(runs, batch),
                Err(error) => {
                    if self.failed(error, batch) == SendOutcome::Blocked {
                        return Ok(SendOutcome::Blocked);
                    }
                }
            }
        }
        Ok(SendOutcome::Done)
    }

    fn recv(&mut self, _now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        self.counters.rx_calls += 1;
        let messages = match self.receiver.recv(self.socket.as_fd(), rx.buffers()) {
            Ok(messages) => messages,
            Err(error) if os_error::is_passing(&error) => return Ok(1),
            Err(error) => return Err(error),
        };
        for place in 0..messages {
            self.take(place, self.receiver.received(place), rx);
        }
        Ok(messages.max(rx.len()))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> PortCounters {
        let rx_overflow = option::receive_drops(self.socket.as_fd());
        PortCounters { rx_overflow, ..self.counters }
    }
}

/// Whether the kernel will send a flow's datagrams as the flow says, so that the ICRC is right.
fn can_send(local: IpAddr, flow: &Flow) -> bool {
    flow.src == local && flow.src_port == ROCE_PORT && flow.dst.is_ipv4() == local.is_ipv4()
}

/// How many datagrams the first unsent run has.
fn segments_of_first(batch: &TxBatch) -> usize {
    batch.runs().next().map_or(0, |run| run.segments)
}

/// How a run is sent.
fn message<'a>(run: &Run<'a>, interface: u32) -> Message<'a> {
    let flow = run.flow;
    Message {
        parts: [run.bytes, &[]],
        to: match open::socket_addr(flow.dst, ROCE_PORT, interface) {
            SocketAddr::V6(mut to) => {
                to.set_flowinfo(flow.flow_label & 0xf_ffff);
                to.into()
            }
            to => to,
        },
        segment: (run.segments > 1).then_some(run.segment_len as u16),
        tclass: (flow.tclass != 0).then_some(flow.tclass),
        // A hop limit of 0 would not leave the machine; the kernel refuses it.
        hop_limit: (flow.hop_limit != HOP_LIMIT && flow.hop_limit != 0).then_some(flow.hop_limit),
    }
}

fn set_options(fd: BorrowedFd<'_>, addr: IpAddr, options: &UdpOptions) -> io::Result<()> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_UDP};
    let set = |level, name, value| option::set(fd, level, name, value);
    if addr.is_ipv4() {
        set(IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(IPPROTO_IP, libc::IP_TTL, HOP_LIMIT.into())?;
        set(IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set(IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    } else {
        set(IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
        // The flow's label, not one of the kernel's own.
        set(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0)?;
        set(IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
        // Brings the traffic class too.
        set(IPPROTO_IPV6, libc::IPV6_FLOWINFO, 1)?;
        set(IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        // Kernel rxe sends no UDP checksum over IPv6 either.
        set(SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    set(SOL_UDP, libc::UDP_GRO, 1)?;
    option::ask_for_buffers(fd, i32::try_from(options.socket_buffer).unwrap_or(i32::MAX))
}

/// From linux/in6.h.
const IPV6_AUTOFLOWLABEL: libc::c_int = 70;
/// From linux/udp.h: take IPv6 datagrams without a checksum.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use std::net::Ipv6Addr;
    use urxe_wire::Opcode;
    use urxe_wire::icrc::Verdict;

    fn open(addr: IpAddr) -> UdpPort {
        UdpPort::open(addr, &UdpOptions::default()).unwrap()
    }

    fn pair() -> (UdpPort, UdpPort) {
        (open(fresh_addr()), open(fresh_addr()))
    }

    /// Sends a mix of lengths in both directions and checks every byte of it.
    fn round_trip(a: &mut UdpPort, b: &mut UdpPort) {
        let flow = flow(&a.caps(), b.caps().addr);
        let mut batch = batch(&a.caps());
        for (psn, mtu, packets) in [(0, 1024, 64), (100, 4096, 16), (200, 256, 5), (300, 1024, 2)] {
            push_write(&mut batch, &flow, psn, packets, mtu);
        }
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 400, 1);
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 401, 3);
        let sent: Vec<Vec<u8>> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
        let (runs, datagrams) = (batch.runs().count(), sent.len());
        assert!(runs < datagrams / 4, "{runs} runs of {datagrams} datagrams");

        let arrived = carry(a, &mut batch, b, datagrams);
        for (got, sent) in arrived.iter().zip(&sent) {
            assert_eq!(got.bytes, *sent);
            assert_eq!(got.verdict, Verdict::Exact, "PSN {}", got.psn());
            assert_eq!(got.outer.flow, flow);
        }
        assert_eq!(a.counters().tx_datagrams, datagrams as u64);
        assert_eq!(b.counters().rx_datagrams, datagrams as u64);
        assert_eq!(b.counters().rx_bytes, a.counters().tx_bytes);
    }

    #[test]
    fn whole_batches_cross_ipv4_with_every_icrc_exact() {
        let (mut a, mut b) = pair();
        round_trip(&mut a, &mut b);
        round_trip_back(a, b);
    }

    fn round_trip_back(mut a: UdpPort, mut b: UdpPort) {
        a.counters = PortCounters::default();
        b.counters = PortCounters::default();
        round_trip(&mut b, &mut a);
    }

    #[test]
    fn whole_batches_cross_ipv6_with_every_icrc_exact() {
        let addr = Ipv6Addr::LOCALHOST.into();
        let mut a = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
        // There is but one ::1, so the port talks to itself.
        let flow = flow(&a.caps(), addr);
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &flow, 0, 60, 1024);
        push_write(&mut batch, &flow, 100, 3, 4096);
        let sent: Vec<Vec<u8>> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
        assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        let mut arrived = Vec::new();
        while arrived.len() < sent.len() {
            wait_readable(&a);
            arrived.extend(recv_all(&mut a, Instant::now()));
        }
        for (got, sent) in arrived.iter().zip(&sent) {
            assert_eq!((&got.bytes, got.verdict), (sent, Verdict::Exact));
            assert_eq!(got.outer.flow, flow);
        }
    }

    #[test]
    fn a_run_goes_out_in_one_call_and_comes_in_as_one_message() {
        let (mut a, mut b) = pair();
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 40, 1024);
        assert_eq!(batch.runs().count(), 2, "the FIRST is longer than the MIDDLEs");
        carry(&mut a, &mut batch, &mut b, 40);
        assert_eq!(a.counters().tx_calls, 1);
        assert_eq!(b.counters().rx_calls, 2, "one for both messages, one to see that it was all");
    }

    #[test]
    fn traffic_class_and_hop_limit_are_the_flows() {
        let (mut a, mut b) = pair();
        for (tclass, hop_limit) in [(0x69, 64), (0, 3), (0x02, 255), (0x03, 1)] {
            let flow = Flow { tclass, hop_limit, ..flow(&a.caps(), b.caps().addr) };
            let mut batch = batch(&a.caps());
            push_write(&mut batch, &flow, 0, 4, 256);
            let arrived = carry(&mut a, &mut batch, &mut b, 4);
            assert!(arrived.iter().all(|d| d.outer.flow == flow), "{:?}", arrived[0].outer);
        }
    }

    /// Makes the kernel refuse `UDP_SEGMENT`, as it does for devices without checksum offload: it
    /// wants checksums for segmenting.
    fn refuse_segmentation(port: &UdpPort) {
        option::set(port.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    }

    #[test]
    fn refused_segmentation_is_turned_off_for_good_and_nothing_is_lost() {
        let (mut a, mut b) = pair();
        refuse_segmentation(&a);
        let flow = flow(&a.caps(), b.caps().addr);
        let mut old = batch(&a.caps());
        for first_psn in [0, 100] {
            push_write(&mut old, &flow, first_psn, 40, 1024);
            let arrived = carry(&mut a, &mut old, &mut b, 40);
            assert_eq!(psns(&arrived), (first_psn..first_psn + 40).collect::<Vec<_>>());
            assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
        }
        assert_eq!(a.caps().segmentation, Segmentation::Refused { errno: libc::EINVAL });
        assert_eq!(a.caps().tx_limits, TxLimits::SINGLE);
        assert_eq!(a.counters().segmentation_refused, 1);

        // A batch that was made before and has not seen the refusal.
        let mut other = TxBatch::new(TxLimits::segmented(64), 1 << 20);
        push_write(&mut other, &flow, 200, 40, 1024);
        let arrived = carry(&mut a, &mut other, &mut b, 40);
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    }

    #[test]
    fn without_segmentation_everything_crosses_too() {
        let options = UdpOptions { segmentation: false, ..UdpOptions::default() };
        let mut a = UdpPort::open(fresh_addr(), &options).unwrap();
        let mut b = open(fresh_addr());
        assert_eq!(a.caps().segmentation, Segmentation::Off);
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 100, 1024);
        let arrived = carry(&mut a, &mut batch, &mut b, 100);
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    }

    #[test]
    fn datagrams_that_cannot_go_are_counted_and_the_others_go() {
        let (mut a, mut b) = pair();
        let good = flow(&a.caps(), b.caps().addr);
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &Flow { src_port: 50000, ..good }, 0, 3, 256);
        push_write(&mut batch, &Flow { src: fresh_addr(), ..good }, 10, 4, 256);
        push_write(&mut batch, &Flow { dst: Ipv6Addr::LOCALHOST.into(), ..good }, 20, 5, 256);
        // Limited broadcast needs SO_BROADCAST, which we do not set.
        push_write(&mut batch, &Flow { dst: [255; 4].into(), ..good }, 30, 6, 256);
        push_write(&mut batch, &good, 40, 7, 256);
        let arrived = carry(&mut a, &mut batch, &mut b, 7);
        assert_eq!(psns(&arrived), (40..47).collect::<Vec<_>>());
        let counters = a.counters();
        assert_eq!((counters.tx_wrong_flow, counters.tx_forbidden), (12, 6));
        assert_eq!(counters.tx_datagrams, 7);
        assert_eq!(a.caps().segmentation, Segmentation::On);
    }

    #[test]
    fn a_full_receiver_loses_datagrams_and_says_so() {
        let (mut a, mut b) = pair();
        option::set(b.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 200, 4096);
        assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        let arrived = recv_all(&mut b, Instant::now()).len() as u64;
        assert!(arrived < 200);
        assert!(b.counters().rx_overflow > 0, "{:?}", b.counters());
    }

    #[test]
    fn an_empty_datagram_is_counted_as_malformed() {
        let (a, mut b) = pair();
        a.socket.send_to(&[], &std::net::SocketAddr::new(b.caps().addr, ROCE_PORT).into()).unwrap();
        wait_readable(&b);
        assert!(recv_all(&mut b, Instant::now()).is_empty());
        assert_eq!(b.counters().rx_malformed, 1);
    }

    #[test]
    fn a_second_port_on_one_address_is_told_who_has_it() {
        let addr = fresh_addr();
        let _first = open(addr);
        let Err(error) = UdpPort::open(addr, &UdpOptions::default()) else {
            panic!("opened twice")
        };
        assert!(matches!(error, OpenError::PortTaken { .. }), "{error}");
    }
}
