//! Ways to reach the wire.
//!
//! A [`Port`] carries whole RoCE datagrams (the UDP payload, ICRC included) in batches, for one
//! local address, or all those of an interface, and UDP port 4791. It knows no QP and no work
//! request; it knows the outer headers, because the ICRC covers them, and says in [`Caps`] what it
//! can do about them. Which links and addresses there are is what a [`watch::Watch`] knows.
//!
//! | back-end | needs | outer headers |
//! | --- | --- | --- |
//! | [`udp`] | nothing | the kernel writes them; we know what it writes |
//! | [`raw`] | CAP_NET_RAW | written and seen by us, byte for byte |
//! | [`sim`] | nothing | a seeded network in virtual time |
//!
//! [`probe::Probe`] and [`echo::Echo`] are no ports: they ask the network about the way to one.
//!
//! [`fault::Fault`] and [`capture::Capture`] are ports around a port ([`Wrapper`]), and any of them
//! composes: `Capture<Fault<UdpPort>>` is a port like another.
//!
//! # What checks what
//!
//! IPv6 has no field that a plain socket hides, so its ICRC is always checked exactly. The IPv4
//! identification is covered by the ICRC and hidden by a plain UDP socket: [`udp`] hands over
//! [`Ident::Hidden`](urxe_wire::Ident) and the checker recovers the identification, which leaves 16
//! of the 32 bits as the check (exactly checked where the guess is right, as between two urxe).
//! [`raw`] sees the identification and checks exactly.

pub mod capture;
pub mod echo;
pub mod fault;
pub mod offload;
pub mod probe;
pub mod raw;
pub mod sim;
pub mod udp;
pub mod watch;

mod address_sockets;
mod caps;
mod counters;
mod delay_line;
mod error;
mod headers;
mod icmp;
mod impairment;
mod open;
mod os_error;
mod packet_source;
mod receive_gauge;
mod rng;
mod rx_batch;
mod shared_socket;
mod socket_set;
mod sys;
#[cfg(test)]
mod testing;
mod wrapper;

pub use address_sockets::AddressSockets;
pub use caps::{Caps, Segmentation};
pub use counters::PortCounters;
pub use error::OpenError;
pub use icmp::{IcmpError, IcmpReason};
pub use impairment::{Chance, Impairment};
pub use open::check_interface;
pub use packet_source::{PacketSource, Receivers};
pub use rx_batch::RxBatch;
pub use shared_socket::{Mirrored, ShareSockets};
pub use wrapper::Wrapper;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use urxe_wire::batch::TxBatch;

/// How far [`Port::send`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a blocked send has to be continued"]
pub enum SendOutcome {
    /// Every datagram was handed over (or dropped under a counter). The batch is empty.
    Done,
    /// The queue below is full. What was not sent is still in the batch, or held by a wrapper: call
    /// [`Port::send`] again, even with an empty batch, when [`Port::fd`] is ready or
    /// [`Port::poll_timeout`] has come.
    Blocked,
}

/// The local addresses of a device on the wire, usually just one.
///
/// Nothing here blocks and nothing reads a clock: `now` is an argument, and a port that wants to
/// be called at a later time says so in [`poll_timeout`](Self::poll_timeout).
pub trait Port: Send {
    /// What this port can do, and what to build batches for. Changes only in
    /// [`Caps::segmentation`] and what depends on it.
    fn caps(&self) -> Caps;

    /// Sends a batch, in order, and clears it.
    ///
    /// A datagram that cannot be sent for a reason of its own (too large for the path, no route,
    /// forbidden ...) is dropped under a counter of [`PortCounters`] and the rest goes on: RoCE
    /// repairs losses. An error means that the port itself is of no use any more.
    fn send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome>;

    /// Clears `rx`, fills it with what has arrived, and returns how much that was: at least the
    /// number of datagrams in `rx`, for what had to be dropped (and counted) counts here too.
    ///
    /// 0 means that there is nothing more at this moment; with an edge-triggered event loop, call
    /// until then.
    fn recv(&mut self, now: Instant, rx: &mut RxBatch) -> io::Result<usize>;

    /// How full the queue was, from 0 to 1, that the last receives took from: that of the packets
    /// they brought. `None` if nothing came since the last time, or the port cannot know.
    fn receive_fill(&mut self, _now: Instant) -> Option<f32> {
        None
    }

    /// Adds a local address: from now on its datagrams are sent and received. It does not matter
    /// if the port has it already.
    ///
    /// Where the address is on another interface than the port was (the old one may be gone), the
    /// port goes there, with its memberships in multicast groups. One that it cannot have there is
    /// lost, under `groups_lost`.
    ///
    /// # Errors
    /// As when a port is opened; the other addresses are not touched.
    fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError>;

    /// Adds a local address by sockets that were opened elsewhere, for this slot. Otherwise it is
    /// as [`add_address`](Self::add_address). Or [joins](Self::join) a multicast group by sockets
    /// of [`raw::join`].
    ///
    /// # Errors
    /// If these are not what this port opens for an address, or it is one that has no sockets. That
    /// the address has gone since they were opened is none: it will be
    /// [taken away](Self::remove_address).
    fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
        let (step, source) = ("adopting sockets", io::ErrorKind::Unsupported.into());
        Err(OpenError::System { addr: sockets.addr, step, source })
    }

    /// Takes a local address away. It does not matter if it was not there.
    ///
    /// What is still to be sent from there is dropped under `tx_wrong_flow`: after this a blocked
    /// [`send`](Self::send) is to be continued at once, for it may have waited for this address.
    fn remove_address(&mut self, addr: IpAddr);

    /// Receives what is sent to a multicast group from now on, over the interface of the port's
    /// addresses; what the port itself sends there too. Any number of ports of one machine can be
    /// members of one group. It does not matter if this one is already.
    ///
    /// # Errors
    /// If `group` is no multicast address (`InvalidInput`), or the kernel refuses: no route for
    /// multicast over this interface, or more memberships than it allows.
    fn join(&mut self, group: IpAddr) -> io::Result<()>;

    /// Receives no more of what is sent to a multicast group. It does not matter if the port was
    /// no member.
    ///
    /// # Errors
    /// If `group` is no multicast address (`InvalidInput`).
    fn leave(&mut self, group: IpAddr) -> io::Result<()>;

    /// Has what comes from these sources dropped from now on as early as can be, under
    /// `rx_refused`, and from all others taken. Returns whether it does: a port may know no way, or
    /// the kernel refuse it, and what comes from there is received then.
    fn refuse_sources(&mut self, _sources: &[PacketSource]) -> bool {
        false
    }

    /// Whether [pollers](Self::set_poller) can send and receive at this time.
    fn serves_pollers(&self) -> bool {
        false
    }

    /// Has the next calls of [`send`](Self::send) and [`recv`](Self::recv) come from a poller,
    /// until this is taken back: a thread of the same process that has another table of
    /// descriptors, in which there are only the sockets that were [shared](ShareSockets). What
    /// needs other descriptors waits for the next call that is none of a poller's; a blocked send
    /// is tried again with each call.
    fn set_poller(&mut self, _is_poller: bool) {}

    /// When to call [`recv`](Self::recv) and [`send`](Self::send) (with whatever batch, an empty
    /// one too) although no descriptor is ready: a delayed datagram is due then. `None`: never.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Writes what is yet to be written of a capture: the process may end soon.
    fn flush(&mut self) {}

    /// The descriptor for the event loop: readable when [`recv`](Self::recv) has something, unless
    /// the port is [disarmed](Self::disarm), or a blocked [`send`](Self::send) can go on. The same
    /// as long as the port lives. `None` where time alone decides.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Until it is [armed](Self::arm) again, [`fd`](Self::fd) need not tell of what comes: for an
    /// event loop that does not sleep, and asks [`has_waiting`](Self::has_waiting) in every turn.
    /// It saves senders of this process a system call for each batch.
    fn disarm(&mut self) {}

    /// Has [`fd`](Self::fd) tell of what comes from now on, as it does at first. Returns whether
    /// nothing had come before, of which it might not tell.
    #[must_use = "what has come already is told of by this alone"]
    fn arm(&mut self) -> bool {
        true
    }

    /// Whether something has come that [`fd`](Self::fd) does not tell of while the port is
    /// [disarmed](Self::disarm).
    fn has_waiting(&self) -> bool {
        false
    }

    /// What routers and hosts said last of what was sent to a peer (ICMP). `None` if nothing was
    /// said, or the port does not hear it.
    fn icmp_error(&self, _peer: IpAddr) -> Option<IcmpError> {
        None
    }

    /// What has happened so far. Makes a system call on some ports; not for every packet.
    fn counters(&self) -> PortCounters;
}
