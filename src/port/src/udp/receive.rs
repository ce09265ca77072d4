//! What a port receives: from its sockets, from other ports of its process, and from itself.
//!
//! Each has its turn: what comes from the network, for another program perhaps, is not to wait for
//! all that QPs of this machine send each other, nor they for it.

use super::{POLLING, UdpPort};
use crate::RxBatch;
use crate::os_error;
use crate::socket_set::Member;
use crate::sys::Received;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use urxe_wire::{Flow, Ident, Outer};

/// How many [sources](Source) there are.
const SOURCES: usize = 3;

/// Where a port receives from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Source {
    #[default]
    Itself,
    OtherPorts,
    Network,
}

impl Source {
    /// Which is asked after this one.
    pub(super) fn next(self) -> Source {
        match self {
            Source::Itself => Source::OtherPorts,
            Source::OtherPorts => Source::Network,
            Source::Network => Source::Itself,
        }
    }
}

impl UdpPort {
    /// [`Port::recv`](crate::Port::recv) into an empty batch.
    pub(super) fn recv_in_turn(&mut self, rx: &mut RxBatch) -> io::Result<usize> {
        for _ in 0..SOURCES {
            let received = match self.next_source {
                Source::Itself => self.loopback.as_mut().map_or(0, |itself| itself.receive(rx)),
                Source::OtherPorts => self.recv_from_other_ports(rx),
                Source::Network => self.recv_from_network(rx)?,
            };
            self.next_source = self.next_source.next();
            if received > 0 {
                return Ok(received);
            }
        }
        // None has anything: those are asked first again that take no system call.
        self.next_source = Source::default();
        // What came in since they were asked may have been told to the network's turn alone.
        Ok(self.recv_from_other_ports(rx))
    }

    fn recv_from_other_ports(&mut self, rx: &mut RxBatch) -> usize {
        let Some(fill) = self.inbox.as_ref().and_then(|inbox| inbox.receive(rx)) else { return 0 };
        self.gauge.note(fill);
        self.counters.rx_datagrams += rx.len() as u64;
        self.counters.rx_bytes += rx.bytes() as u64;
        rx.len()
    }

    fn recv_from_network(&mut self, rx: &mut RxBatch) -> io::Result<usize> {
        while let Some(socket) = match self.is_poller {
            true => self.sockets.next_for_poller(),
            false => self.sockets.next_ready()?,
        } {
            self.counters.rx_calls += 1;
            let from = &self.sockets[socket];
            self.gauge.before(from.as_fd());
            let buffers = match self.empty_calls < POLLING {
                true => rx.buffers(),
                false => &mut rx.buffers()[..1],
            };
            let messages = match self.receiver.recv(from.as_fd(), buffers) {
                Ok(messages) => messages,
                Err(error) if os_error::is_passing(&error) => return Ok(1),
                Err(error) if self.is_lost_by_poller(&error) => return Ok(0),
                Err(error) => return Err(error),
            };
            self.empty_calls = if messages > 0 { 0 } else { self.empty_calls.saturating_add(1) };
            let from = &self.sockets[socket];
            let (dst, bytes) = (from.dst(), self.receiver.bytes(messages));
            self.gauge.after(bytes, from.receive_capacity(), messages == rx.buffers().len());
            for index in 0..messages {
                self.take(dst, index, self.receiver.received(index), rx);
            }
            // One of several may only have been ready to send.
            self.sockets.note_received(socket, messages > 0);
            if messages > 0 || self.sockets.is_single() || self.is_poller {
                return Ok(messages.max(rx.len()));
            }
        }
        Ok(0)
    }

    /// Takes one received message into the batch.
    fn take(&mut self, dst: IpAddr, index: usize, received: Received, rx: &mut RxBatch) {
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
            dst,
            src_port: from.port(),
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            flow_label: received.flow_label,
        };
        let outer = Outer { flow, ident: Ident::Hidden { guess: 0 } };
        let segment = received.segment.map_or(0, usize::from);
        let datagrams = rx.add(index, 0, received.len, segment, outer);
        self.counters.rx_datagrams += datagrams as u64;
        self.counters.rx_bytes += received.len as u64;
    }
}
