//! Ports around ports.

use crate::{
    AddressSockets, Caps, IcmpError, OpenError, PacketSource, Port, PortCounters, RxBatch,
    SendOutcome,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use urxe_wire::batch::TxBatch;

/// A port around another. It says what it does of its own; the rest is left to the inner port.
pub trait Wrapper: Send {
    /// The port inside.
    type Inner: Port + ?Sized;

    /// The port inside.
    fn inner(&self) -> &Self::Inner;

    /// The port inside.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// [`Port::send`] of the whole.
    fn wrap_send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        self.inner_mut().send(now, batch)
    }

    /// [`Port::recv`] of the whole.
    fn wrap_recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        self.inner_mut().recv(now, rx)
    }

    /// When the wrapper itself has something to do.
    fn own_timeout(&self) -> Option<Instant> {
        None
    }

    /// [`Port::flush`] of the wrapper itself.
    fn own_flush(&mut self) {}

    /// [`Port::serves_pollers`] of the whole.
    fn wraps_pollers(&self) -> bool {
        false
    }

    /// What the wrapper itself has counted.
    fn own_counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

impl<W: Wrapper> Port for W {
    fn caps(&self) -> Caps {
        self.inner().caps()
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        self.wrap_send(now, batch)
    }

    fn recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        self.wrap_recv(now, rx)
    }

    fn receive_fill(&mut self, now: Instant) -> Option<f32> {
        self.inner_mut().receive_fill(now)
    }

    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        self.inner_mut().add_address(addr)
    }

    fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
        self.inner_mut().adopt(sockets)
    }

    fn remove_address(&mut self, addr: IpAddr) {
        self.inner_mut().remove_address(addr);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner_mut().join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner_mut().leave(group)
    }

    fn refuse_sources(&mut self, sources: &[PacketSource]) -> bool {
        self.inner_mut().refuse_sources(sources)
    }

    fn serves_pollers(&self) -> bool {
        self.wraps_pollers()
    }

    fn set_poller(&mut self, is_poller: bool) {
        self.inner_mut().set_poller(is_poller);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.own_timeout().into_iter().chain(self.inner().poll_timeout()).min()
    }

    fn flush(&mut self) {
        self.inner_mut().flush();
        self.own_flush();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner().fd()
    }

    fn disarm(&mut self) {
        self.inner_mut().disarm();
    }

    fn arm(&mut self) -> bool {
        self.inner_mut().arm()
    }

    fn has_waiting(&self) -> bool {
        self.inner().has_waiting()
    }

    fn icmp_error(&self, peer: IpAddr) -> Option<IcmpError> {
        self.inner().icmp_error(peer)
    }

    fn counters(&self) -> PortCounters {
        self.inner().counters() + self.own_counters()
    }
}

impl<P: Port + ?Sized> Wrapper for Box<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        self
    }

    fn inner_mut(&mut self) -> &mut P {
        self
    }

    fn wraps_pollers(&self) -> bool {
        (**self).serves_pollers()
    }
}
