//! What opening any socket port has in common: the interface that has the address, and the bind.

use crate::OpenError;
use crate::sys::option;
use crate::watch::{Link, Links};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use urxe_wire::largest_path_mtu;

/// The hop limit that sockets send with where a flow does not ask for another.
pub(crate) const HOP_LIMIT: u8 = 64;

/// A UDP socket bound to a port of an address of `interface`, which nobody has.
pub(crate) fn bind(addr: IpAddr, port: u16, interface: &Link) -> Result<Socket, OpenError> {
    let socket = udp_socket(addr)?;
    bind_socket(&socket, addr, port, interface)?;
    Ok(socket)
}

/// Another UDP socket bound to what `first` is bound to.
pub(crate) fn bind_beside(
    first: &Socket,
    addr: IpAddr,
    port: u16,
    interface: &Link,
) -> Result<Socket, OpenError> {
    let socket = udp_socket(addr)?;
    for one in [first, &socket] {
        one.set_reuse_port(true).map_err(OpenError::system(addr, "setting SO_REUSEPORT"))?;
    }
    bind_socket(&socket, addr, port, interface)?;
    Ok(socket)
}

fn udp_socket(addr: IpAddr) -> Result<Socket, OpenError> {
    let socket = match Socket::new(domain(addr), Type::DGRAM, Some(Protocol::UDP)) {
        Ok(socket) => socket,
        Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            return Err(OpenError::FamilyNotSupported { addr });
        }
        Err(e) => return Err(OpenError::system(addr, "making a UDP socket")(e)),
    };
    if addr.is_ipv6() {
        socket.set_only_v6(true).map_err(OpenError::system(addr, "setting IPV6_V6ONLY"))?;
    }
    socket.set_nonblocking(true).map_err(OpenError::system(addr, "setting O_NONBLOCK"))?;
    Ok(socket)
}

fn bind_socket(
    socket: &Socket,
    addr: IpAddr,
    port: u16,
    interface: &Link,
) -> Result<(), OpenError> {
    let name = socket_addr(addr, port, interface.index);
    socket.bind(&name.into()).map_err(|e| match e.kind() {
        // ADDR-009
        io::ErrorKind::AddrInUse => OpenError::PortTaken { addr },
        io::ErrorKind::AddrNotAvailable => OpenError::NotYetUsable { addr },
        _ => OpenError::system(addr, "binding its UDP port")(e),
    })
}

/// The address family of sockets for `addr`.
pub(crate) fn domain(addr: IpAddr) -> Domain {
    if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 }
}

/// A socket address; one of a single link is on the link `interface`.
pub(crate) fn socket_addr(addr: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match addr {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, interface).into()
        }
        _ => SocketAddr::new(addr, port),
    }
}

/// Only multicast groups can be joined and left.
pub(crate) fn check_group(group: IpAddr) -> io::Result<()> {
    if group.is_multicast() {
        return Ok(());
    }
    let sentence =
        format!("group {group}: not a multicast address, expected 224.0.0.0/4 or ff00::/8");
    Err(io::Error::new(io::ErrorKind::InvalidInput, sentence))
}

/// Has "don't fragment" on what a socket sends, and lets it send what its interface takes.
///
/// What ICMP has said of the path is not heeded: routers far away may say that, and whoever forges
/// it. A smaller packet could not be sent in its place, and a path that takes less loses them.
pub(crate) fn obey_the_link_mtu(socket: &Socket, addr: IpAddr) -> io::Result<()> {
    let (level, name, probe) = match addr {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    option::set(socket.as_fd(), level, name, probe)
}

/// Lets a socket send to groups: over its own interface, as far as any other datagram, and with a
/// copy (which is the default) to the members on this machine.
pub(crate) fn send_to_groups(socket: &Socket, addr: IpAddr, interface: u32) -> io::Result<()> {
    if addr.is_ipv4() {
        option::set_multicast_interface_v4(socket.as_fd(), interface)?;
        socket.set_multicast_ttl_v4(HOP_LIMIT.into())
    } else {
        socket.set_multicast_if_v6(interface)?;
        socket.set_multicast_hops_v6(HOP_LIMIT.into())
    }
}

/// Closes the receive queue of a socket that only holds its port, or only sends: what comes there
/// is dropped, and no peer is told that there is no such port.
pub(crate) fn receive_nothing(socket: &Socket) -> io::Result<()> {
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])
}

/// Opens the receive queue of a socket again, if it was closed.
pub(crate) fn receive_anything(socket: &Socket) -> io::Result<()> {
    match socket.detach_filter() {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// How much memory a socket's receive queue may take: twice what was granted, since the kernel
/// counts half for its own bookkeeping (socket(7), `SO_RCVBUF`).
pub(crate) fn receive_capacity(socket: &Socket) -> usize {
    socket.recv_buffer_size().unwrap_or(0)
}

/// Finds the interface of `addr`, and checks that RoCE fits through it. Of several with this
/// address (a link-local one need not be unique), the one of the name `near` is preferred.
pub(crate) fn find_interface(addr: IpAddr, near: Option<&str>) -> Result<Link, OpenError> {
    let links = Links::now().map_err(OpenError::system(addr, "listing the network interfaces"))?;
    let ours = || links.all().flat_map(all_addresses).collect();
    if addr.is_unspecified() || addr.is_multicast() {
        return Err(OpenError::NotOneAddress { addr, ours: ours() });
    }
    let Some(found) = with_address(&links, addr, near) else {
        // ADDR-009
        return Err(OpenError::NotOurs { addr, ours: ours() });
    };
    let needed = mtu_needed(addr.is_ipv6());
    if found.mtu < needed {
        let (interface, mtu) = (found.name.clone(), found.mtu);
        return Err(OpenError::MtuTooSmall { interface, mtu, needed });
    }
    Ok(found.clone())
}

/// The interface of an address whose sockets are there already. `None` if the address has gone
/// since they were opened, or the system does not say.
pub(crate) fn interface_of_opened(addr: IpAddr, near: &str) -> Option<Link> {
    with_address(&Links::now().ok()?, addr, Some(near)).cloned()
}

/// Of the interfaces with an address the one of the name `near`, else one that leads out of this
/// machine, else the first.
fn with_address<'a>(links: &'a Links, addr: IpAddr, near: Option<&str>) -> Option<&'a Link> {
    // One that is tentative still is found too: to bind to it tells what is wrong.
    let has_it = |link: &Link| link.has(addr) || all_addresses(link).any(|own| own == addr);
    let near = near.and_then(|name| links.named(name)).filter(|link| has_it(link));
    near.or_else(|| links.preferred(has_it))
}

/// Whether there is an interface of this name, which need not have any address.
///
/// # Errors
/// If there is none, or the system does not say.
pub fn check_interface(name: &str) -> Result<(), OpenError> {
    interface_named(name).map(|_| ())
}

/// The interface of a name; one of which nothing else is known while there is none. An address that
/// is added says which it is.
pub(crate) fn interface_expected(name: &str) -> Link {
    interface_named(name).unwrap_or_else(|_| Link { name: name.to_owned(), ..Link::default() })
}

/// The interface of a name, whatever addresses it has.
pub(crate) fn interface_named(name: &str) -> Result<Link, OpenError> {
    let interface = name.to_owned();
    match Links::now() {
        Ok(links) => links.named(name).cloned().ok_or_else(|| OpenError::NoSuchInterface {
            interface,
            ours: links.all().map(|link| link.name.clone()).collect(),
        }),
        Err(source) => Err(OpenError::Interface { interface, step: "looking for it", source }),
    }
}

fn all_addresses(link: &Link) -> impl Iterator<Item = IpAddr> {
    link.addrs.iter().chain(&link.tentative).map(|&(addr, _)| addr)
}

/// The smallest link MTU that carries RoCE at all, in bytes.
fn mtu_needed(ipv6: bool) -> u32 {
    let fits = |mtu: &u32| largest_path_mtu(*mtu, ipv6).is_some();
    (0..u32::from(u16::MAX)).find(fits).unwrap_or(u32::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use urxe_types::PathMtu;

    #[test]
    fn every_address_of_the_loopback_network_is_on_lo() {
        for addr in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 3, 2, 1)] {
            let interface = find_interface(addr.into(), None).unwrap();
            assert_eq!(interface.name, "lo");
            assert!(interface.mtu >= mtu_needed(false));
        }
    }

    #[test]
    fn a_foreign_address_is_refused_with_a_list_of_ours() {
        // 192.0.2.0/24 is for documentation.
        let error = find_interface(Ipv4Addr::new(192, 0, 2, 1).into(), None).unwrap_err();
        let OpenError::NotOurs { ours, .. } = &error else { panic!("{error}") };
        assert!(ours.contains(&Ipv4Addr::LOCALHOST.into()), "{error}");
    }

    #[test]
    fn a_wildcard_is_not_an_address() {
        for addr in [Ipv4Addr::UNSPECIFIED.into(), IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
            assert!(matches!(find_interface(addr, None), Err(OpenError::NotOneAddress { .. })));
        }
    }

    #[test]
    fn the_smallest_mtu_is_that_of_256_bytes_and_no_more() {
        for ipv6 in [false, true] {
            let needed = mtu_needed(ipv6);
            assert_eq!(largest_path_mtu(needed, ipv6), Some(PathMtu::Mtu256));
            assert_eq!(largest_path_mtu(needed - 1, ipv6), None);
        }
    }
}
