//! The default port: plain UDP sockets, no privilege.
//!
//! What makes the ICRC computable from here is that the kernel's part of the headers is known. The
//! sockets are bound but not connected and forbid fragments (`IP_PMTUDISC_PROBE`), so that IPv4
//! packets leave with "don't fragment" and identification 0; those cut from one send by
//! `UDP_SEGMENT` count 0, 1, 2 ... (a NIC that cuts in hardware is expected to count likewise). The
//! source port is the one that the sending socket is bound to: 4791, or one of a
//! [pool](UdpOptions::source_ports).
//!
//! On the way in `UDP_GRO` hands over many datagrams at once. All of them have the ECN bits of the
//! first: the kernel joins only datagrams of one traffic class and hop limit, so none loses its
//! mark. (Since Linux 6.9 and the stable kernels of May 2024, "net: gro: add flush check in
//! udp_gro_receive_segment". Before, only the first mark of what was joined counted.) The
//! identification is not shown; two urxe guess each other's, other peers' is recovered from the
//! ICRC (see the crate's documentation).
//!
//! What ICMP says of what was sent from a source port of the pool is read with the next send from
//! there; those of port 4791, which receives, are not asked for it: an error would keep it ready.
//!
//! Each address has a socket, or one for each slot of a device ([`UdpGroup`]). Each multicast group
//! that was joined has another, bound to the group, which all ports of this machine can have
//! together: the kernel gives each a copy. What is for the port itself can do without the kernel
//! ([`UdpOptions::loopback`]), and so can what is for another port of the process
//! ([`UdpOptions::inbox`]).

mod group;
mod inboxes;
mod loopback;
mod pool;
mod receive;
mod refused;
mod socket;
mod source_filter;

use crate::caps::{Caps, Segmentation};
use crate::icmp::IcmpErrors;
use crate::open;
use crate::packet_source::PacketSource;
use crate::receive_gauge::ReceiveGauge;
use crate::socket_set::SocketSet;
use crate::sys::{ErrorQueue, Receiver, SEND_MAX, Sender};
use crate::watch::Link;
use crate::{
    AddressSockets, IcmpError, OpenError, Port, PortCounters, RxBatch, SendOutcome, ShareSockets,
};
pub use group::UdpGroup;
use inboxes::OwnInbox;
pub use inboxes::{InboxOfDevice, Inboxes};
use loopback::Loopback;
use receive::Source;
use socket::{UdpSocket, message};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;
use urxe_types::{SlotCount, SlotId};
use urxe_wire::batch::{Run, TxBatch, TxLimits};
use urxe_wire::{FIRST_SOURCE_PORT, ROCE_PORT, SourcePorts};

/// Segments that one `UDP_SEGMENT` send may have on every kernel (`UDP_MAX_SEGMENTS`; newer ones
/// take 128, but at 1024 bytes each 64 KiB is the tighter limit already).
const MAX_SEGMENTS: usize = 64;

/// Messages that one call receives at most.
const RECV_MAX: usize = 64;

/// After so many calls in a row that received nothing, the next asks for one message: more are not
/// there most likely, and for each buffer that is offered, and to look for a second message, a call
/// takes longer. What else is there is taken by the call after it.
const POLLING: u8 = 2;

/// How often a run is sent again at most that was refused for what ICMP said of earlier ones.
const ICMP_RETRIES: usize = 2;

/// Errors that one look takes from a socket's queue at most; others are found by the next.
const ICMP_READ_MAX: usize = 64;

/// How to open a [`UdpPort`].
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Whether to send many datagrams a call (`UDP_SEGMENT`). Turns itself off where it does not
    /// work.
    pub segmentation: bool,
    /// Bytes of socket buffer to ask for, each way. Without CAP_NET_ADMIN the kernel grants at
    /// most `net.core.rmem_max` and `wmem_max`.
    pub socket_buffer: u32,
    /// How many UDP source ports the flows of one address are spread over; each takes a socket as
    /// soon as it is used. 1: all leave from port 4791.
    pub source_ports: u8,
    /// The slot that the port is for. Slots have source ports of their own.
    pub slot: SlotId,
    /// Whether what goes from an address of the port to an address of the port, for a QP of its
    /// slot, goes through memory. Otherwise the kernel has it, and sends it over its loopback
    /// interface.
    pub loopback: bool,
    /// By what it reaches other ports of this process in the same way, and they it, if there are
    /// any. Needs `loopback`.
    pub inbox: Option<InboxOfDevice>,
    /// Makes the sockets usable for pollers ([`Port::set_poller`]), if there are to be any.
    pub share: Option<Arc<dyn ShareSockets>>,
}

impl UdpOptions {
    /// How many send sockets an address has beside the one of port 4791.
    fn pool_ports(&self) -> u8 {
        if self.source_ports > 1 { self.source_ports } else { 0 }
    }

    /// The lowest of their ports.
    fn first_pool_port(&self) -> u16 {
        // There is room for the most ports of the most slots.
        const {
            assert!(
                SlotCount::MAX.get() * u8::MAX as usize
                    <= u16::MAX as usize - FIRST_SOURCE_PORT as usize
            )
        };
        // SLOT-056
        FIRST_SOURCE_PORT + self.slot.index() as u16 * u16::from(self.pool_ports())
    }
}

impl Default for UdpOptions {
    /// Segmentation on; 8 MiB of buffer, half a millisecond at 100 Gbit/s; 16 source ports, more
    /// than a network has paths or a NIC queues that one thread could fill; slot 0; all through the
    /// kernel.
    fn default() -> Self {
        let (segmentation, socket_buffer, source_ports) = (true, 8 << 20, 16);
        UdpOptions {
            segmentation,
            socket_buffer,
            source_ports,
            slot: SlotId::BROKER,
            loopback: false,
            inbox: None,
            share: None,
        }
    }
}

/// A port over plain UDP sockets.
pub struct UdpPort {
    options: UdpOptions,
    sockets: SocketSet<UdpSocket>,
    segmentation: Segmentation,
    /// Flow labels are sent as the flows have them.
    labels: bool,
    /// The calls are a poller's.
    is_poller: bool,
    /// What was shared with pollers is not open any more where they are.
    lost_by_pollers: bool,
    sender: Sender,
    receiver: Receiver,
    /// The way to ourselves, if that does not lead through the kernel.
    loopback: Option<Loopback>,
    /// What other ports of the process send us.
    inbox: Option<OwnInbox>,
    /// Which is to be received from next.
    next_source: Source,
    /// Calls that received nothing since one did.
    empty_calls: u8,
    errors: ErrorQueue,
    icmp: IcmpErrors,
    gauge: ReceiveGauge,
    /// What the sockets had dropped when they began to refuse sources, while they do.
    refuses_since: Option<u64>,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens UDP port 4791 of one of this machine's addresses.
    pub fn open(addr: IpAddr, options: &UdpOptions) -> Result<UdpPort, OpenError> {
        let interface = open::find_interface(addr, None)?;
        let mut port = UdpPort::on(interface, options)?;
        port.add_address(addr)?;
        Ok(port)
    }

    /// A port for the addresses of an interface, without any yet: they are to be
    /// [added](Port::add_address). The interface need not be there either.
    pub fn open_interface(name: &str, options: &UdpOptions) -> Result<UdpPort, OpenError> {
        UdpPort::on(open::interface_expected(name), options)
    }

    fn on(interface: Link, options: &UdpOptions) -> Result<UdpPort, OpenError> {
        let sockets = SocketSet::new(interface)?;
        let loopback = options.loopback.then(Loopback::new);
        let inbox = options.inbox.as_ref().filter(|_| options.loopback);
        let inbox = inbox.and_then(|inbox| OwnInbox::open(inbox, options.slot));
        if let Some(inbox) = &inbox {
            sockets.watch(inbox.waker())?;
        }
        Ok(UdpPort {
            sockets,
            options: options.clone(),
            segmentation: if options.segmentation { Segmentation::On } else { Segmentation::Off },
            labels: true,
            is_poller: false,
            lost_by_pollers: false,
            sender: Sender::new(),
            receiver: Receiver::new(RECV_MAX),
            loopback,
            inbox,
            next_source: Source::default(),
            empty_calls: 0,
            errors: ErrorQueue::new(),
            icmp: IcmpErrors::default(),
            gauge: ReceiveGauge::default(),
            refuses_since: None,
            counters: PortCounters::default(),
        })
    }

    /// The address that can send the first run, with the source port: that of the flow, which
    /// becomes 4791 if its own cannot be had.
    fn source_of_first(&mut self, batch: &mut TxBatch) -> Option<(usize, u16)> {
        let flow = *batch.runs().next()?.flow;
        let index =
            self.sockets.position(flow.src).filter(|&index| self.sockets[index].can_send(&flow))?;
        let (socket, interface) = self.sockets.member_and_interface(index);
        let sends = match socket.sends_from(flow.src_port) {
            Some(sends) => sends,
            None => {
                let opened = socket.open_sender(flow.src_port, interface, &self.options);
                self.counters.source_ports_refused += u64::from(!opened);
                opened
            }
        };
        if sends {
            return Some((index, flow.src_port));
        }
        // WIRE-034
        batch.replace_source_port(flow.src, flow.src_port, ROCE_PORT);
        Some((index, ROCE_PORT))
    }

    /// Whether a poller can send these: nothing is to be opened for it first, and no socket is
    /// watched for room.
    fn is_for_pollers(&self, batch: &TxBatch) -> bool {
        let is_known = |run: Run<'_>| {
            let from = self.sockets.position(run.flow.src).map(|index| &self.sockets[index]);
            from.is_none_or(|socket| socket.sends_from(run.flow.src_port).is_some())
        };
        !self.sockets.waits_for_room() && batch.runs().all(is_known)
    }

    /// Whether a call has failed since it was a poller's, whose program has closed what it was not
    /// to close. Takes note of that: pollers cannot be served any more.
    fn is_lost_by_poller(&mut self, error: &io::Error) -> bool {
        // OWN-032
        let is_lost =
            self.is_poller && matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK));
        self.lost_by_pollers |= is_lost;
        is_lost
    }

    /// Takes note of what ICMP has said of what was sent from a source port. Returns whether there
    /// was anything.
    fn read_icmp(&mut self, now: Instant, (index, src_port): (usize, u16)) -> bool {
        let socket = self.sockets[index].sender(src_port);
        let before = self.counters.icmp_errors;
        for _ in 0..ICMP_READ_MAX {
            let Ok(Some(queued)) = self.errors.next(socket) else { break };
            if queued.is_icmp {
                self.counters.icmp_errors += 1;
                self.icmp.note(now, queued);
            }
        }
        self.counters.icmp_errors > before
    }

    /// What the kernel has dropped so far because its source was refused: all that it drops
    /// meanwhile.
    fn refused(&self, dropped: u64) -> u64 {
        let now = self.refuses_since.map_or(0, |before| dropped.saturating_sub(before));
        self.counters.rx_refused + now
    }

    fn sent(&mut self, runs: usize, batch: &mut TxBatch) {
        for run in batch.runs().take(runs) {
            self.counters.tx_datagrams += run.segments as u64;
            self.counters.tx_bytes += run.bytes.len() as u64;
        }
        batch.advance(runs);
    }
}

impl Port for UdpPort {
    fn caps(&self) -> Caps {
        Caps {
            backend: "udp",
            addrs: self.sockets.addresses().collect(),
            interface: Some(self.sockets.interface().name.clone()),
            link_mtu: self.sockets.interface().mtu,
            tx_limits: match self.segmentation {
                Segmentation::On => TxLimits::segmented(MAX_SEGMENTS),
                _ => TxLimits::SINGLE,
            },
            source_ports: match self.options.pool_ports() {
                0 => SourcePorts::Fixed(ROCE_PORT),
                count => SourcePorts::Pool { first: self.options.first_pool_port(), count },
            },
            sees_ident: false,
            segmentation: self.segmentation,
        }
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        if !self.loop_back(now, batch) || (self.is_poller && !self.is_for_pollers(batch)) {
            return Ok(SendOutcome::Blocked);
        }
        self.sockets.room_or_not()?;
        if self.segmentation != Segmentation::On && batch.limits().max_segments > 1 {
            batch.split();
        }
        // One call for each source.
        batch.group_by_source();
        let mut refused = 0;
        while !batch.is_empty() {
            let Some((index, src_port)) = self.source_of_first(batch) else {
                self.counters.tx_wrong_flow += segments_of_first(batch) as u64;
                batch.advance(1);
                continue;
            };
            let (socket, labels) = (&self.sockets[index], self.labels);
            let messages = batch
                .runs()
                .take_while(|run| run.flow.src_port == src_port && socket.can_send(run.flow))
                .map(|run| message(&run, labels, &self.sockets));
            let mut offered = 0;
            let messages = messages.take(SEND_MAX).inspect(|_| offered += 1);
            self.counters.tx_calls += 1;
            match self.sender.send(socket.sender(src_port), messages) {
                Ok(runs) => {
                    refused = 0;
                    self.sent(runs, batch);
                    // The error that ended the call is not told: it goes on behind this.
                    if runs < offered {
                        self.read_icmp(now, (index, src_port));
                    }
                }
                Err(error) => {
                    // COUNT-018: the kernel tells it to whatever is sent next from that port.
                    if error.kind() != io::ErrorKind::WouldBlock
                        && refused < ICMP_RETRIES
                        && self.read_icmp(now, (index, src_port))
                    {
                        refused += 1;
                        continue;
                    }
                    refused = 0;
                    if self.failed((index, src_port), error, batch)? == SendOutcome::Blocked {
                        return Ok(SendOutcome::Blocked);
                    }
                }
            }
        }
        Ok(SendOutcome::Done)
    }

    fn recv(&mut self, _now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        self.recv_in_turn(rx)
    }

    fn receive_fill(&mut self, _now: Instant) -> Option<f32> {
        self.gauge.take()
    }

    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        if self.sockets.position(addr).is_some() {
            return Ok(());
        }
        let near = &self.sockets.interface().name;
        let mut group = UdpGroup::open(addr, Some(near), &self.options, SlotCount::ONE)?;
        self.adopt(group.give(SlotId::BROKER)?)
    }

    fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
        let (addr, options) = (sockets.addr, &self.options);
        let groups = self.sockets.add_address(addr, || UdpSocket::of_address(sockets, options))?;
        for group in groups {
            // MCAST-013
            self.counters.groups_lost += u64::from(self.join(group).is_err());
        }
        if let Some(inbox) = &self.inbox {
            inbox.add_address(addr);
        }
        Ok(())
    }

    fn remove_address(&mut self, addr: IpAddr) {
        self.sockets.close(addr);
        if let Some(inbox) = &self.inbox {
            inbox.remove_address(addr);
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        if self.sockets.position(group).is_some() {
            return Ok(());
        }
        let own = self.sockets.addresses().find(|addr| addr.is_ipv4() == group.is_ipv4());
        self.sockets.push(UdpSocket::of_group(group, own, self.sockets.interface(), &self.options)?)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        self.sockets.close(group);
        Ok(())
    }

    fn refuse_sources(&mut self, sources: &[PacketSource]) -> bool {
        let dropped = self.sockets.receive_drops();
        self.counters.rx_refused = self.refused(dropped);
        self.refuses_since = (!sources.is_empty()).then_some(dropped);
        let mut all_do = true;
        for socket in self.sockets.iter() {
            all_do &= socket.refuse_sources(sources).is_ok();
        }
        all_do
    }

    fn serves_pollers(&self) -> bool {
        !self.lost_by_pollers && self.sockets.iter().all(UdpSocket::is_shared)
    }

    fn set_poller(&mut self, is_poller: bool) {
        self.is_poller = is_poller;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.loopback.as_ref().and_then(Loopback::since)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.as_fd())
    }

    fn disarm(&mut self) {
        if let Some(inbox) = &self.inbox {
            inbox.disarm();
        }
    }

    fn arm(&mut self) -> bool {
        self.inbox.as_ref().is_none_or(OwnInbox::arm)
    }

    fn has_waiting(&self) -> bool {
        self.inbox.as_ref().is_some_and(OwnInbox::has_waiting)
    }

    fn icmp_error(&self, peer: IpAddr) -> Option<IcmpError> {
        self.icmp.of(peer)
    }

    fn counters(&self) -> PortCounters {
        let dropped = self.sockets.receive_drops();
        // COUNT-024
        let rx_refused = self.refused(dropped);
        let rx_overflow = dropped.saturating_sub(rx_refused);
        PortCounters { rx_overflow, rx_refused, ..self.counters }
    }
}

/// How many datagrams the first unsent run has.
fn segments_of_first(batch: &TxBatch) -> usize {
    batch.runs().next().map_or(0, |run| run.segments)
}

#[cfg(test)]
mod tests;
