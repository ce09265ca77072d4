//! Which address a daemon that we start serves, if nobody says.

use crate::roce_port::{self, PortState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Instant;
use urxe_port::watch::{Links, Watch};
use urxe_wire::ROCE_PORT;

/// Addresses that are everywhere behind the default route: they are for documentation.
const FAR_AWAY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The address of this machine by which peers most likely reach it, and programs on it each other:
/// the one that the default route would send from, else the first that is not only local to a
/// link, else loopback.
pub(crate) fn choose() -> IpAddr {
    let mut routed = FAR_AWAY.into_iter().filter_map(source_towards);
    let routed = routed.find(|addr| is_reachable(*addr));
    routed.unwrap_or_else(|| without_route(Watch::open(Instant::now()).links()))
}

/// How many loopback addresses are tried.
const LOOPBACKS: u8 = 32;

/// A loopback address whose port of RoCEv2 is free.
pub(crate) fn free_loopback() -> Option<IpAddr> {
    let addrs = (1..=LOOPBACKS).map(|host| Ipv4Addr::new(127, 0, 0, host).into());
    let mut addrs = addrs.chain([Ipv6Addr::LOCALHOST.into()]);
    addrs.find(|addr| roce_port::state(*addr) == PortState::Free)
}

/// The address that packets to `peer` would have as their source. Sends none.
fn source_towards(peer: IpAddr) -> Option<IpAddr> {
    let any = match peer {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, ROCE_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The best address of a machine that has no default route.
fn without_route(links: &Links) -> IpAddr {
    let up = || links.all().filter(|link| link.up && !link.loopback);
    let addrs = || up().flat_map(|link| &link.addrs).map(|(addr, _)| *addr);
    let found = |is_wanted: fn(&IpAddr) -> bool| {
        addrs().find(|addr| is_wanted(addr) && is_reachable(*addr))
    };
    let found = found(IpAddr::is_ipv4).or_else(|| found(IpAddr::is_ipv6));
    found.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Whether an address means the same machine beyond the next link.
fn is_reachable(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => !addr.is_unspecified() && !addr.is_loopback() && !addr.is_link_local(),
        IpAddr::V6(addr) => {
            !addr.is_unspecified() && !addr.is_loopback() && !addr.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_port::watch::Link;

    fn chosen(links: &[(&str, bool, &[&str])]) -> String {
        let links = links.iter().zip(1..).map(|(&(name, up, addrs), index)| Link {
            name: name.into(),
            index,
            up,
            loopback: name == "lo",
            addrs: addrs.iter().map(|addr| (addr.parse().unwrap(), 24)).collect(),
            ..Link::default()
        });
        without_route(&links.collect()).to_string()
    }

    #[test]
    fn without_a_route_the_first_address_that_others_can_reach_is_taken() {
        let lo = ("lo", true, &["127.0.0.1", "::1"][..]);
        assert_eq!(chosen(&[]), "127.0.0.1");
        assert_eq!(chosen(&[lo]), "127.0.0.1");
        assert_eq!(chosen(&[lo, ("eth0", false, &["10.0.0.1"])]), "127.0.0.1");
        let v6 = ("eth0", true, &["fe80::1", "fd00::1"][..]);
        assert_eq!(chosen(&[lo, v6]), "fd00::1");
        let v4 = ("eth1", true, &["169.254.0.9", "10.0.0.2"][..]);
        assert_eq!(chosen(&[lo, v6, v4]), "10.0.0.2");
    }

    #[test]
    fn the_chosen_address_is_one_of_this_machine() {
        UdpSocket::bind((choose(), 0)).unwrap();
    }
}
