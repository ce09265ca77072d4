//! What receives for one destination: a packet socket, and the UDP socket that makes the kernel
//! agree.

use super::{RawOptions, filter};
use crate::open;
use crate::socket_set::Member;
use crate::sys::{option, packet};
use crate::watch::{Link, Links};
use crate::{AddressSockets, OpenError};
use socket2::{InterfaceIndexOrAddress, Protocol, SockFilter, Socket, Type};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use urxe_types::Slot;

/// What receives for one of our addresses, or for a multicast group.
pub(super) struct RawSocket {
    packet: Socket,
    /// What the datagrams that it receives are sent to.
    dst: IpAddr,
    receive_capacity: usize,
    /// Holds UDP port 4791 of the address, or the membership in the group. Its queue is closed.
    pub(super) _hold: Socket,
}

impl RawSocket {
    /// What receives for one of our addresses, and what sends: what a
    /// [`RawGroup`](super::RawGroup) gives to a slot.
    pub(super) fn of_address(sockets: AddressSockets) -> Result<(RawSocket, Socket), OpenError> {
        let AddressSockets { addr, fds } = sockets;
        let [packet, sender, hold] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|fds| {
                let what = format!("{} sockets, expected three", fds.len());
                io::Error::new(io::ErrorKind::InvalidInput, what)
            })
            .map_err(OpenError::system(addr, "taking its sockets"))?
            .map(Socket::from);
        let receive_capacity = open::receive_capacity(&packet);
        Ok((RawSocket { packet, dst: addr, receive_capacity, _hold: hold }, sender))
    }

    /// What receives for a multicast group: what [`join`] has opened.
    pub(super) fn of_group(sockets: AddressSockets) -> io::Result<RawSocket> {
        let AddressSockets { addr: dst, fds } = sockets;
        let [packet, hold] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| {
                let what = format!("{} sockets, expected two", fds.len());
                io::Error::new(io::ErrorKind::InvalidInput, what)
            })?
            .map(Socket::from);
        let receive_capacity = open::receive_capacity(&packet);
        Ok(RawSocket { packet, dst, receive_capacity, _hold: hold })
    }

    /// See [`open::receive_capacity`].
    pub(super) fn receive_capacity(&self) -> usize {
        self.receive_capacity
    }
}

impl Member for RawSocket {
    fn dst(&self) -> IpAddr {
        self.dst
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packet.as_fd()
    }
}

/// Opens what receives for a multicast group, of which many ports of this machine can be members.
pub(super) fn join(
    group: IpAddr,
    interface: &Link,
    options: &RawOptions,
) -> io::Result<AddressSockets> {
    // What ports of this machine send, this one included, is seen on its way out.
    let packet = packet::socket(!interface.loopback)?;
    let hold = Socket::new(open::domain(group), Type::DGRAM, Some(Protocol::UDP))?;
    open::receive_nothing(&hold)?;
    match group {
        IpAddr::V4(group) => {
            let index = InterfaceIndexOrAddress::Index(interface.index);
            hold.join_multicast_v4_n(&group, &index)?;
        }
        IpAddr::V6(group) => hold.join_multicast_v6(&group, interface.index)?,
    }
    let filter = filter::roce_for_group(group, interface.index, interface.loopback);
    listen(&packet, packet::ALL_PROTOCOLS, &filter, options)?;
    // SLOT-060
    option::lock_filter(packet.as_fd())?;
    Ok(AddressSockets { addr: group, fds: [packet, hold].map(Into::into).into() })
}

/// The socket that receives for one of our addresses what is for a slot.
pub(super) fn packet_socket(
    addr: IpAddr,
    interface: &Link,
    slot: Slot,
    options: &RawOptions,
) -> Result<Socket, OpenError> {
    let packet = packet::socket(false);
    let packet =
        packet.map_err(unprivileged_or(OpenError::system(addr, "making a packet socket")))?;
    let loopback =
        loopback_index().map_err(OpenError::system(addr, "looking for the loopback interface"))?;
    let filter = filter::roce_for(addr, interface.index, loopback, slot);
    listen(&packet, packet::protocol(addr), &filter, options)
        // SLOT-060
        .and_then(|()| option::lock_filter(packet.as_fd()))
        .map_err(OpenError::system(addr, "opening the packet socket"))?;
    Ok(packet)
}

/// The socket that sends from all addresses of a family.
pub(super) fn sender(
    addr: IpAddr,
    interface: &Link,
    options: &RawOptions,
) -> Result<Socket, OpenError> {
    let raw = Socket::new(open::domain(addr), Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
    let raw = raw.map_err(unprivileged_or(OpenError::system(addr, "making a raw socket")))?;
    option::ask_for_send_buffer(raw.as_fd(), options.socket_buffer)
        .map_err(OpenError::system(addr, "sizing buffers"))?;
    raw.set_nonblocking(true).map_err(OpenError::system(addr, "setting O_NONBLOCK"))?;
    open::obey_the_link_mtu(&raw, addr)
        .map_err(OpenError::system(addr, "turning path MTU discovery off"))?;
    let multicast = open::send_to_groups(&raw, addr, interface.index);
    multicast.map_err(OpenError::system(addr, "setting multicast options"))?;
    Ok(raw)
}

/// Opens a packet socket for what the filter lets through.
fn listen(
    packet: &Socket,
    protocol: u16,
    filter: &[SockFilter],
    options: &RawOptions,
) -> io::Result<()> {
    packet.attach_filter(filter)?;
    option::ask_for_receive_buffer(packet.as_fd(), options.socket_buffer)?;
    packet::listen(packet, protocol)
}

/// The sentence for a missing privilege, or another for any other error.
fn unprivileged_or(other: impl Fn(io::Error) -> OpenError) -> impl Fn(io::Error) -> OpenError {
    move |error| match error.kind() {
        io::ErrorKind::PermissionDenied => OpenError::NoPrivilege,
        _ => other(error),
    }
}

/// The loopback interface: what we send to our own address comes in there, whatever interface has
/// the address.
fn loopback_index() -> io::Result<u32> {
    Ok(Links::now()?.all().find(|link| link.loopback).map_or(0, |link| link.index))
}
