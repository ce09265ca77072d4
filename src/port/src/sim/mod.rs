//! A seeded network in virtual time.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use urxe_port::sim::{Link, SimNetwork};
//! use urxe_port::{Chance, Impairment, Port, RxBatch};
//!
//! let lossy = Impairment { drop: Chance::percent(1.0), ..Impairment::default() };
//! let network = SimNetwork::new(7, Link { impairment: lossy, ..Link::default() });
//! let mut a = network.attach("10.0.0.1".parse()?)?;
//! let mut b = network.attach("10.0.0.2".parse()?)?;
//! let mut now = Instant::now(); // any will do: nothing here reads a clock
//! // a.send(now, &mut batch) ...
//! while let Some(next) = network.next_event() {
//!     now = now.max(next);
//!     b.recv(now, &mut RxBatch::default())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A datagram passes, in this order, the queue of the host that sends it
//! ([`QueueId::Uplink`]), the [`Link`] between the two addresses, the queue between their groups
//! ([`QueueId::Trunk`]), and the queue of the host that it is for ([`QueueId::Downlink`]). A link
//! is there always, with a rate and losses of its own; the queues only where
//! [`set_queue`](SimNetwork::set_queue) says so, and all senders share them.
//!
//! The same seed and the same calls give the same deliveries: every link and every queue draws from
//! a generator of its own, and nothing depends on the order of a hash table. The datagrams cross in
//! one address space, but their outer headers are those of a raw port, identification and all, so
//! that the ICRC is checked exactly.

mod network;
mod queue;

pub use crate::rng::Rng;
pub use queue::{Marking, Queue, QueueCounters, QueueId};

use crate::{Caps, Impairment, OpenError, Port, PortCounters, RxBatch, SendOutcome, caps, open};
use network::{EndpointId, Network};
use parking_lot::Mutex;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_types::{SlotCount, SlotId};
use urxe_wire::SourcePorts;
use urxe_wire::batch::{TxBatch, TxLimits};

/// What a direction of a link between two addresses does. The default carries everything at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Losses, delays and the like.
    pub impairment: Impairment,
    /// Bits per second, counting whole IP packets; `None`: no limit. What comes faster queues.
    pub rate: Option<u64>,
    /// The queue is full when a datagram would wait longer than this; then it is lost. `None`:
    /// never.
    pub queue_limit: Option<Duration>,
    /// A datagram of an ECN-capable flow that waits longer than this is marked "congestion
    /// experienced". `None`: never.
    pub mark_above: Option<Duration>,
}

/// Two endpoints of a network want one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the simulated network has an endpoint {addr} already; every endpoint needs its own address"
)]
pub struct AddressTaken {
    pub addr: IpAddr,
}

/// What the network as a whole did. Counts of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Handed over to the endpoint they were for; duplicates count.
    pub delivered: u64,
    /// Lost by chance.
    pub dropped: u64,
    /// Lost because a queue was full, or would have been marked in one and could not be.
    pub queue_full: u64,
    /// Lost because of a partition.
    pub partitioned: u64,
    /// Arrived, or will arrive, twice.
    pub duplicated: u64,
    /// Held back so that later ones overtake.
    pub reordered: u64,
    /// With a bit flipped.
    pub corrupted: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
}

/// The MTU of every simulated interface, in bytes: room for the largest RoCE path MTU.
const LINK_MTU: u32 = 9000;

/// A network of endpoints; the handle can be cloned.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    network: Arc<Mutex<Network>>,
}

impl SimNetwork {
    /// A network in which every link is like `link`, unless [`set_link`](Self::set_link) says
    /// otherwise.
    pub fn new(seed: u64, link: Link) -> Self {
        SimNetwork { network: Arc::new(Mutex::new(Network::new(seed, link))) }
    }

    /// Adds an endpoint. It leaves the network when the port is dropped.
    ///
    /// # Errors
    /// If the address is taken.
    pub fn attach(&self, addr: IpAddr) -> Result<SimPort, AddressTaken> {
        self.attach_host(addr, SlotCount::ONE)?;
        Ok(self.port(addr, SlotId::BROKER))
    }

    /// Adds an endpoint for each slot of a host, in their order. Each gets what is sent to its
    /// QPNs, and leaves the network when its port is dropped; what comes for it then is lost.
    ///
    /// # Errors
    /// If the address is taken.
    pub fn attach_slots(
        &self,
        addr: IpAddr,
        slots: SlotCount,
    ) -> Result<Vec<SimPort>, AddressTaken> {
        self.attach_host(addr, slots)?;
        Ok(slots.slots().map(|slot| self.port(addr, slot.id())).collect())
    }

    fn attach_host(&self, addr: IpAddr, slots: SlotCount) -> Result<(), AddressTaken> {
        if self.network.lock().attach(addr, slots) { Ok(()) } else { Err(AddressTaken { addr }) }
    }

    fn port(&self, addr: IpAddr, slot: SlotId) -> SimPort {
        let (network, counters) = (Arc::clone(&self.network), PortCounters::default());
        SimPort { network, addr, slot, counters }
    }

    /// Changes the link from one address to another, for datagrams sent from now on. The way back
    /// is a link of its own.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, link: Link) {
        self.network.lock().set_link(from, to, link);
    }

    /// Puts a queue where `id` says, for all that comes there from now on, or changes it.
    pub fn set_queue(&self, id: QueueId, queue: Queue) {
        self.network.lock().set_queue(id, queue);
    }

    /// Puts a host into a group, of which there are trunks between. Without this it is in group 0.
    pub fn set_group(&self, host: IpAddr, group: u16) {
        self.network.lock().set_group(host, group);
    }

    /// Bytes that wait in a queue, and what it did so far; `None`: there is no such queue.
    pub fn queue(&self, now: Instant, id: QueueId) -> Option<(usize, QueueCounters)> {
        self.network.lock().queue(now, id)
    }

    /// Loses everything that is sent between two addresses, either way, during a period. It adds to
    /// earlier partitions.
    pub fn partition(&self, a: IpAddr, b: IpAddr, during: Range<Instant>) {
        self.network.lock().partition(a, b, during);
    }

    /// When the next datagram reaches any endpoint, or a queue on its way there; `None`: nothing is
    /// in flight. In the past if one has arrived and was not received yet.
    pub fn next_event(&self) -> Option<Instant> {
        self.network.lock().next_event()
    }

    /// An endpoint to which something has arrived; `None`: there is no other. None is named again
    /// before it has received, so [`next_event`](Self::next_event) does not count it until then.
    pub fn take_arrival(&self, now: Instant) -> Option<(IpAddr, SlotId)> {
        self.network.lock().take_arrival(now)
    }

    /// What the network did so far.
    pub fn counters(&self) -> SimCounters {
        self.network.lock().counters
    }
}

/// An endpoint of a [`SimNetwork`].
#[derive(Debug)]
pub struct SimPort {
    network: Arc<Mutex<Network>>,
    addr: IpAddr,
    slot: SlotId,
    counters: PortCounters,
}

impl SimPort {
    fn id(&self) -> EndpointId {
        (self.addr, self.slot)
    }
}

impl Port for SimPort {
    fn caps(&self) -> Caps {
        Caps {
            backend: "sim",
            addrs: vec![self.addr],
            interface: None,
            link_mtu: LINK_MTU,
            // As the udp port has it, so that runs are built and cut in simulations too.
            tx_limits: TxLimits::segmented(64),
            source_ports: SourcePorts::All,
            sees_ident: true,
            segmentation: caps::Segmentation::On,
        }
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        self.network.lock().send(now, self.addr, batch, &mut self.counters);
        batch.clear();
        Ok(SendOutcome::Done)
    }

    fn recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        Ok(self.network.lock().recv(now, self.id(), rx, &mut self.counters))
    }

    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        if addr == self.addr {
            return Ok(());
        }
        let (step, source) = ("adding to a simulated port", io::ErrorKind::Unsupported.into());
        Err(OpenError::System { addr, step, source })
    }

    /// Does nothing: an endpoint has its address for life.
    fn remove_address(&mut self, _addr: IpAddr) {}

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        self.network.lock().join(group, self.id());
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        open::check_group(group)?;
        self.network.lock().leave(group, self.id());
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.network.lock().next_arrival(self.id())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn receive_fill(&mut self, _now: Instant) -> Option<f32> {
        self.network.lock().take_fill(self.id())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.network.lock().detach(self.id());
    }
}

#[cfg(test)]
mod tests;
