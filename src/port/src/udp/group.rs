//! The sockets of one address for several slots: who gets a datagram is in its destination QPN.
//!
//! All are bound to the same address and port, which makes them a group (`SO_REUSEPORT`), and a
//! program in the kernel picks the one for a datagram by its number in the group: the order in
//! which they were bound. A number is free for another socket as soon as its own is closed, so the
//! group keeps a descriptor of each for as long as it lives, and binds those of slots that come
//! later when they come, with all that stand before them. What the kernel has coalesced goes where
//! its first datagram goes.
//!
//! The first socket is bound as if it were to be alone. So an address that anybody has already
//! cannot be had, another group of the same user included; from then on only sockets of this user
//! can be bound beside it, and those that this group does not know are sent nothing.

use super::UdpOptions;
use super::socket::set_options;
use crate::open;
use crate::os_error;
use crate::sys::option;
use crate::watch::Link;
use crate::{AddressSockets, OpenError};
use socket2::Socket;
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use urxe_types::{Qpn, SLOT_BITS, SlotCount, SlotId};
use urxe_wire::ROCE_PORT;

/// UDP port 4791 of one address, for all slots of a device.
#[derive(Debug)]
pub struct UdpGroup {
    addr: IpAddr,
    interface: Link,
    options: UdpOptions,
    // SLOT-052
    /// By number of the slot; none is closed as long as the group lives.
    sockets: Vec<Socket>,
    /// What each of those that no slot has had dropped when that began.
    unused_since: BTreeMap<usize, u64>,
    /// What came while no slot had the socket that it was for, of those that a slot has again.
    dropped: u64,
}

impl UdpGroup {
    /// Opens UDP port 4791 of one of this machine's addresses for so many slots, and more when they
    /// come. If several interfaces have the address, the one of the name `near` is preferred.
    ///
    /// No slot receives anything before it is [given](Self::give) its socket.
    ///
    /// # Errors
    /// If the address is none of this machine, or cannot be had: another daemon or program has the
    /// port, for example.
    pub fn open(
        addr: IpAddr,
        near: Option<&str>,
        options: &UdpOptions,
        slots: SlotCount,
    ) -> Result<UdpGroup, OpenError> {
        let interface = open::find_interface(addr, near)?;
        // SLOT-051
        let first = open::bind(addr, ROCE_PORT, &interface)?;
        prepare(&first, addr, &interface, options)?;
        let sockets = vec![first];
        let mut group = UdpGroup::of(addr, interface, options, sockets);
        group.unused_since.insert(0, 0);
        group.grow(slots.get())?;
        Ok(group)
    }

    /// Goes on with what another group had in another process, which is gone: the interface, and
    /// its [sockets](Self::sockets) in their order.
    ///
    /// # Errors
    /// If there are none, or the kernel refuses to steer what comes.
    pub fn adopt(
        addr: IpAddr,
        interface: Link,
        options: &UdpOptions,
        sockets: Vec<OwnedFd>,
    ) -> Result<UdpGroup, OpenError> {
        let step = "going on with the sockets of its slots";
        if sockets.is_empty() {
            let source = io::ErrorKind::InvalidInput.into();
            return Err(OpenError::System { addr, step, source });
        }
        let sockets = sockets.into_iter().map(Socket::from).collect();
        let group = UdpGroup::of(addr, interface, options, sockets);
        group.steer().map_err(OpenError::system(addr, step))?;
        Ok(group)
    }

    fn of(addr: IpAddr, interface: Link, options: &UdpOptions, sockets: Vec<Socket>) -> UdpGroup {
        let (options, unused_since) = (options.clone(), BTreeMap::new());
        UdpGroup { addr, interface, options, sockets, unused_since, dropped: 0 }
    }

    /// The interface that it is on.
    pub fn interface(&self) -> &Link {
        &self.interface
    }

    /// The sockets, by number of the slot.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// Binds the sockets of more slots, so that there are so many.
    fn grow(&mut self, slots: usize) -> Result<(), OpenError> {
        let (addr, interface) = (self.addr, &self.interface);
        let mut more = Vec::new();
        while self.sockets.len() + more.len() < slots {
            let socket = open::bind_beside(&self.sockets[0], addr, ROCE_PORT, interface)?;
            prepare(&socket, addr, interface, &self.options)?;
            more.push(socket);
        }
        if more.is_empty() {
            return Ok(());
        }
        let numbers = self.sockets.len()..self.sockets.len() + more.len();
        self.unused_since.extend(numbers.map(|number| (number, 0)));
        self.sockets.append(&mut more);
        self.steer().map_err(OpenError::system(addr, "attaching the filter of its slots"))
    }

    /// The address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Gives a slot its socket, which receives from now on.
    ///
    /// # Errors
    /// If there are too many descriptors, or one that the slot needs cannot be bound any more.
    pub fn give(&mut self, slot: SlotId) -> Result<AddressSockets, OpenError> {
        let addr = self.addr;
        // SLOT-100
        self.grow(slot.index() + 1)?;
        let socket = &self.sockets[slot.index()];
        let step = "giving a slot its socket";
        let given = socket.try_clone().map_err(OpenError::system(addr, step))?;
        open::receive_anything(socket).map_err(OpenError::system(addr, step))?;
        if let Some(before) = self.unused_since.remove(&slot.index()) {
            self.dropped += dropped_since(socket, before);
        }
        Ok(AddressSockets { addr, fds: vec![given.into()] })
    }

    /// Says that a slot is gone: what comes for it is dropped until it is given to another, and
    /// what has come is forgotten. Descriptors that others still have of it receive nothing.
    ///
    /// # Errors
    /// If the kernel refuses it, for want of memory for example.
    pub fn take_back(&mut self, slot: SlotId) -> io::Result<()> {
        // One that was never given its socket may have none.
        let Some(socket) = self.sockets.get(slot.index()) else { return Ok(()) };
        let before = option::receive_drops(socket.as_fd());
        self.unused_since.entry(slot.index()).or_insert(before);
        open::receive_nothing(socket)?;
        // SLOT-053: nothing joins what has come before, so this ends.
        let mut first_byte = [MaybeUninit::uninit()];
        loop {
            match socket.recv(&mut first_byte) {
                Ok(_) => self.dropped += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if os_error::is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What came for slots that nobody runs and was dropped: datagrams, of which the kernel may
    /// have joined some to one.
    pub fn dropped(&self) -> u64 {
        let unused = self.unused_since.iter().filter_map(|(&number, &before)| {
            Some(dropped_since(self.sockets.get(number)?, before))
        });
        // COUNT-021
        self.dropped + unused.sum::<u64>()
    }

    /// Lets the kernel send each slot what is for it, again: whoever has a socket of the group can
    /// end that, and slots get what is for others then.
    ///
    /// # Errors
    /// If the kernel refuses it, for want of memory for example.
    pub fn steer(&self) -> io::Result<()> {
        match self.sockets.len() {
            // The kernel makes a group of two or more.
            1 => Ok(()),
            slots => option::attach_reuseport_filter(self.sockets[0].as_fd(), &steering(slots)),
        }
    }
}

/// What a socket has dropped since it had dropped so much.
fn dropped_since(socket: &Socket, before: u64) -> u64 {
    option::receive_drops(socket.as_fd()).saturating_sub(before)
}

/// Makes a socket one that [`UdpSocket`](super::socket::UdpSocket) takes, with its queue closed.
fn prepare(
    socket: &Socket,
    addr: IpAddr,
    interface: &Link,
    options: &UdpOptions,
) -> Result<(), OpenError> {
    open::receive_nothing(socket)
        .and_then(|()| set_options(socket, addr, options))
        .map_err(OpenError::system(addr, "setting socket options"))?;
    open::send_to_groups(socket, addr, interface.index)
        .map_err(OpenError::system(addr, "setting multicast options"))
}

/// What [`SlotCount::slot_of`] says, for the kernel: it looks at a UDP payload and returns a number
/// in the group. One that is too short to load from is the first's.
fn steering(slots: usize) -> [libc::sock_filter; 7] {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    use libc::{BPF_RSH, BPF_W};
    const DEST_QP_WORD: u32 = 4;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    const BPF_A: u32 = 0x10;
    [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, DEST_QP_WORD),
        step(BPF_ALU | BPF_AND | BPF_K, 0, 0, Qpn::MULTICAST.get()),
        step(BPF_JMP | BPF_JEQ | BPF_K, 3, 0, Qpn::MULTICAST.get()),
        step(BPF_ALU | BPF_RSH | BPF_K, 0, 0, 24 - SLOT_BITS),
        step(BPF_JMP | BPF_JGE | BPF_K, 1, 0, slots as u32),
        // SLOT-050
        step(BPF_RET | BPF_A, 0, 0, 0),
        step(BPF_RET | BPF_K, 0, 0, SlotId::BROKER.index() as u32),
    ]
}
