//! Route netlink sockets: where the kernel tells of links and addresses.

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
use std::mem;

/// Makes a socket that is told of every change of a link or of an address, and can ask for all.
pub(crate) fn socket() -> io::Result<Socket> {
    let route = Protocol::from(libc::NETLINK_ROUTE);
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(route))?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a sockaddr_nl is plain old data and fits into the storage, as every socket address
    // does; port 0 means that the kernel chooses one.
    let name = unsafe { storage.view_as::<libc::sockaddr_nl>() };
    name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    name.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as _;
    let len = mem::size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the storage holds a sockaddr_nl of that length, written just now.
    let name = unsafe { SockAddr::new(storage, len) };
    socket.bind(&name)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
