//! Which device has an address, and which leads to one.

use crate::broker::device::RdmaDevice;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use urxe_wire::ROCE_PORT;

/// The device that an address is of. A link-local one may be of several, so it must come with the
/// number of the interface.
pub(super) fn device_of(devices: &[RdmaDevice], addr: SocketAddr) -> Option<usize> {
    devices.iter().position(|device| {
        let has_it = device.nic.device().gids().contains(&Some(addr.ip()));
        has_it && interface_of(addr).is_none_or(|index| device.link.index == Some(index))
    })
}

/// The interface that a link-local address is of.
fn interface_of(addr: SocketAddr) -> Option<u32> {
    match addr {
        // ADDR-019
        SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() => Some(addr.scope_id()),
        _ => None,
    }
}

/// Whether it is a link-local address of no particular interface, with which nothing can be done.
pub(super) fn lacks_interface(addr: SocketAddr) -> bool {
    interface_of(addr) == Some(0)
}

/// What a program means by an address of its own: one of the loopback network that no device serves
/// means any, as in the kernel. On a port of its own it leads to every device, and beside the
/// wildcard it is the wildcard.
pub(super) fn meant(devices: &[RdmaDevice], addr: SocketAddr) -> SocketAddr {
    // CM-030
    let is_any = addr.ip().is_loopback() && device_of(devices, addr).is_none();
    match is_any {
        true => SocketAddr::new(wildcard_for(addr).ip(), addr.port()),
        false => addr,
    }
}

/// What a program means by the address of a peer to whom its packets go from this one: one of the
/// loopback network means the program itself. But an address of that network leads to others of it,
/// which may be of other daemons: so from there only localhost does, and only where `is_served`
/// says that no other daemon has it.
pub(super) fn meant_peer(
    devices: &[RdmaDevice],
    from: IpAddr,
    peer: SocketAddr,
    is_served: impl Fn(IpAddr) -> bool,
) -> SocketAddr {
    let localhost = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    // CM-030
    let may_be_another = !localhost.contains(&peer.ip()) || is_served(peer.ip());
    match from.is_loopback() && may_be_another {
        true => peer,
        false => meant(devices, peer),
    }
}

/// Whether another socket has the port of RoCEv2 of an address.
pub(super) fn is_served_elsewhere(addr: IpAddr) -> bool {
    let taken = UdpSocket::bind((addr, ROCE_PORT)).map_err(|error| error.kind());
    matches!(taken, Err(ErrorKind::AddrInUse))
}

/// Why an address cannot be bound to that no device serves: the machine has it, or has not.
pub(super) fn why_not_served(addr: SocketAddr) -> Errno {
    match UdpSocket::bind(SocketAddr::new(addr.ip(), 0)) {
        Err(error) if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) => {
            Errno::ADDRNOTAVAIL
        }
        _ => Errno::NODEV,
    }
}

/// The device that leads to an address, and the address of it that packets go from.
///
/// What is ours is reached through its own device. Of everything else the system knows the way; if
/// its way goes over none of our devices, as between addresses of the loopback network, the first
/// with an address from which there is one takes it.
///
/// # Errors
/// If there is none, or the system knows no way; or it is another address of this machine, and no
/// daemon serves it.
pub(super) fn way_to(
    devices: &[RdmaDevice],
    src: Option<SocketAddr>,
    dst: SocketAddr,
) -> Result<IpAddr, Errno> {
    if let Some(src) = src {
        // Nothing is to be chosen, but there must be a way.
        return source_of_system(src, dst).map(|_| src.ip());
    }
    if device_of(devices, dst).is_some() {
        return Ok(dst.ip());
    }
    let source = source_of_system(wildcard_for(dst), dst)?;
    // CM-030: one of the loopback network may mean the program itself.
    if source == dst.ip() && !source.is_loopback() && !is_served_elsewhere(source) {
        return Err(Errno::NODEV);
    }
    let gids =
        devices.iter().flat_map(|device| device.nic.device().gids().iter().flatten().copied());
    // To a group a device sends over its own interface, wherever the system would.
    let leads =
        |ip| dst.ip().is_multicast() || source_of_system(SocketAddr::new(ip, 0), dst).is_ok();
    choose(source, gids.collect(), dst, leads).ok_or(Errno::NODEV)
}

/// The address that the system would take, or the first that could stand for it and from which
/// there is a way; for one of the loopback network, first of all another one of it. A link-local
/// one cannot, nor can anything for it: it leads nowhere but along its own link.
fn choose(
    source: IpAddr,
    ours: Vec<IpAddr>,
    dst: SocketAddr,
    leads: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    if ours.contains(&source) {
        return Some(source);
    }
    let is_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let fits = |ip: &IpAddr| ip.is_ipv4() == dst.is_ipv4() && !is_local(*ip);
    let mut fitting: Vec<_> =
        ours.into_iter().filter(|_| !is_local(dst.ip())).filter(fits).collect();
    // A stable sort: those of a kind stay in their order.
    fitting.sort_by_key(|ip| !(ip.is_loopback() && dst.ip().is_loopback()));
    fitting.into_iter().find(|ip| leads(*ip))
}

/// The wildcard of an address's family, and no port.
pub(super) fn wildcard_for(addr: SocketAddr) -> SocketAddr {
    let any = match addr {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, 0)
}

/// The address from which the system would send.
fn source_of_system(mut src: SocketAddr, mut dst: SocketAddr) -> Result<IpAddr, Errno> {
    // The ports do not matter, but there is nothing to connect to at port 0.
    src.set_port(0);
    dst.set_port(1);
    let connect = || {
        let socket = UdpSocket::bind(src)?;
        socket.connect(dst)?;
        socket.local_addr()
    };
    let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::NETUNREACH);
    connect().map(|source| source.ip()).map_err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_means_the_program_itself_unless_another_daemon_has_it() {
        let [real, loopback] = ["10.0.0.1", "127.9.9.9"].map(|ip| ip.parse().unwrap());
        let meant = |from, peer: &str, is_served| {
            let peer = SocketAddr::new(peer.parse().unwrap(), 7174);
            meant_peer(&[], from, peer, |_| is_served).ip().to_string()
        };
        for (localhost, itself) in [("127.0.0.1", "0.0.0.0"), ("::1", "::")] {
            assert_eq!(meant(loopback, localhost, false), itself);
            assert_eq!(meant(loopback, localhost, true), localhost);
            assert_eq!(meant(real, localhost, true), itself);
        }
        assert_eq!(meant(loopback, "127.9.9.8", false), "127.9.9.8");
        assert_eq!(meant(real, "127.9.9.8", false), "0.0.0.0");
        assert_eq!(meant(real, "10.0.0.2", false), "10.0.0.2");
    }

    #[test]
    fn a_port_that_a_socket_has_is_served_elsewhere() {
        // Of a network of the tests' own, one that is free.
        let at = |host| Ipv4Addr::new(127, 131, (std::process::id() % 256) as u8, host);
        let other = (1..=254).find_map(|host| UdpSocket::bind((at(host), ROCE_PORT)).ok());
        let other = other.expect("one of 254 addresses is free");
        let addr = other.local_addr().unwrap().ip();
        assert!(is_served_elsewhere(addr));
        drop(other);
        assert!(!is_served_elsewhere(addr));
    }

    #[test]
    fn the_source_is_the_systems_or_the_first_that_could_stand_for_it() {
        let ours = ["fe80::1", "10.0.0.1", "10.0.0.2", "127.0.0.2", "fd00::1"];
        let ours = ours.map(|ip| ip.parse().unwrap());
        let chosen = |source: &str, dst: &str| {
            let dst = SocketAddr::new(dst.parse().unwrap(), 7174);
            // As the system has it: the loopback network leads nowhere else.
            let leads = |ip: IpAddr| dst.ip().is_loopback() || !ip.is_loopback();
            choose(source.parse().unwrap(), ours.to_vec(), dst, leads).map(|ip| ip.to_string())
        };
        assert_eq!(chosen("10.0.0.2", "10.0.0.9").as_deref(), Some("10.0.0.2"));
        assert_eq!(chosen("127.0.0.1", "127.0.0.9").as_deref(), Some("127.0.0.2"));
        assert_eq!(chosen("10.0.0.7", "10.0.0.9").as_deref(), Some("10.0.0.1"));
        assert_eq!(chosen("fd00::9", "fd00::2").as_deref(), Some("fd00::1"));
        assert_eq!(chosen("fe80::1", "fe80::2").as_deref(), Some("fe80::1"));
        assert_eq!(chosen("fe80::9", "fe80::2"), None);
        let dst = SocketAddr::new([10, 0, 0, 9].into(), 7174);
        let loopback = [127, 0, 0, 2].into();
        assert_eq!(choose([10, 0, 0, 7].into(), vec![loopback], dst, |_| false), None);
    }

    #[test]
    fn where_the_system_knows_no_way_it_says_why() {
        let nowhere = SocketAddr::new(Ipv4Addr::BROADCAST.into(), 7174);
        assert_eq!(way_to(&[], None, nowhere), Err(Errno::ACCESS));
        let ourselves = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7174);
        assert_eq!(way_to(&[], None, ourselves), Err(Errno::NODEV));
        assert_eq!(way_to(&[], Some(ourselves), ourselves), Ok(ourselves.ip()));
        let foreign = SocketAddr::new([192, 0, 2, 1].into(), 0);
        assert_eq!(way_to(&[], Some(foreign), ourselves), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(why_not_served(foreign), Errno::ADDRNOTAVAIL);
        assert_eq!(why_not_served(ourselves), Errno::NODEV);
    }
}
