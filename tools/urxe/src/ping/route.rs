//! The way as this machine knows it: the name, the route, and the neighbour that packets go to
//! first.

use super::netlink::{self, Hop, Neighbour};
use super::report::{Facts, Finding, Found, State};
use netlink_packet_route::neighbour::NeighbourState;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_port::probe::Probe;
use urxe_port::watch::{Link, Links};
use urxe_wire::ROCE_PORT;

/// How long a neighbour may take to be found: the kernel asks three times, once a second.
const NEIGHBOUR_WAIT: Duration = Duration::from_millis(3500);

/// How long to wait before the kernel is asked again.
const NEIGHBOUR_INTERVAL: Duration = Duration::from_millis(10);

/// How long a neighbour may be unknown to the kernel when a packet has been sent.
const UNKNOWN_WAIT: Duration = Duration::from_millis(100);

/// A route to the peer.
pub(super) struct Route {
    pub(super) probe: Probe,
    /// The interface, if that is known.
    link: Option<Link>,
    /// Who gets the packets first, if the kernel says.
    hop: Option<Hop>,
}

impl Route {
    /// The address of this machine that packets come from.
    pub(super) fn source(&self) -> IpAddr {
        self.probe.source().ip()
    }

    /// The address of the peer.
    pub(super) fn peer(&self) -> SocketAddr {
        self.probe.peer()
    }

    /// The longest IP packet of the interface, in bytes, if that is known.
    pub(super) fn interface_mtu(&self) -> Option<u32> {
        self.link.as_ref().map(|link| link.mtu)
    }

    /// The peer is this machine itself.
    pub(super) fn is_local(&self) -> bool {
        self.hop.as_ref().is_some_and(|hop| hop.local) || self.source() == self.peer().ip()
    }
}

/// The addresses of a name, or of an address as text.
pub(super) fn resolve(host: &str) -> Found<Vec<SocketAddr>> {
    let found = (host, ROCE_PORT).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let mut addresses = match found {
        Ok(addresses) => addresses,
        Err(error) => {
            let finding = Finding::failed(
                format!("{host} has no address: {error}"),
                "check the spelling, /etc/hosts and the name server (`getent hosts NAME`); an \
                 address does as well",
            );
            return (finding, None);
        }
    };
    let is_host = |addr: &SocketAddr| {
        let ip = addr.ip();
        !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::from([255; 4])
    };
    addresses.retain(is_host);
    let ips: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    let Some(first) = ips.first() else {
        let says = format!("{host} is no address of a host");
        return (Finding::failed(says, "give the address of one machine's interface"), None);
    };
    let mut says = match host.parse::<IpAddr>() {
        Ok(address) => format!("{address} is an address"),
        Err(_) => format!("{host} is {first}"),
    };
    for other in &ips[1..] {
        let _ = write!(says, ", {other}");
    }
    (Finding::ok(says).with(Facts::Name { addresses: ips }), Some(addresses))
}

/// The first of the addresses to which there is a route.
pub(super) fn find(peers: &[SocketAddr], source: Option<IpAddr>) -> Found<Route> {
    let mut first_error = None;
    let fits = |peer: &&SocketAddr| source.is_none_or(|ip| ip.is_ipv4() == peer.is_ipv4());
    if let (Some(source), false) = (source, peers.iter().any(|peer| fits(&peer))) {
        return (no_peer_of_family(peers, source), None);
    }
    let probe = peers.iter().filter(fits).find_map(|peer| {
        let opened = Probe::open(source, *peer);
        opened.map_err(|error| first_error.get_or_insert((*peer, error)).0).ok()
    });
    let Some(probe) = probe else {
        let finding = first_error.map_or_else(
            || Finding::failed("there is no address to go to", "give another HOST"),
            |(peer, error)| no_route(peer, source, &error),
        );
        return (finding, None);
    };
    let (from, to) = (probe.source(), probe.peer());
    let scope = match from {
        SocketAddr::V6(from) => Some(from.scope_id()).filter(|scope| *scope != 0),
        SocketAddr::V4(_) => None,
    };
    let hop = netlink::first_hop(from.ip(), to.ip(), scope).ok();
    let links = Links::now().unwrap_or_default();
    let interface = hop.as_ref().and_then(|hop| hop.interface);
    let link = match interface {
        Some(index) => links.all().find(|link| link.index == index),
        None => links.with_address(from.ip()),
    };
    let gateway = hop.as_ref().and_then(|hop| hop.gateway);
    let mut says = format!("to {} from {}", to.ip(), from.ip());
    if let Some(link) = link {
        let _ = write!(says, " over {} (MTU {})", link.name, link.mtu);
    }
    match (&hop, gateway) {
        (Some(hop), _) if hop.local => says += ", an address of this machine",
        (_, Some(gateway)) => {
            let _ = write!(says, ", first to the router {gateway}");
        }
        (Some(_), None) => says += ", on the same link",
        (None, None) => says += "; whether over a router, the kernel does not say",
    }
    let facts = Facts::Route {
        source: from.ip(),
        interface: link.map(|link| link.name.clone()),
        interface_mtu: link.map(|link| link.mtu),
        gateway,
    };
    let link = link.cloned();
    (Finding::ok(says).with(facts), Some(Route { probe, link, hop }))
}

fn no_peer_of_family(peers: &[SocketAddr], source: IpAddr) -> Finding {
    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let peers: Vec<String> = peers.iter().map(|peer| peer.ip().to_string()).collect();
    Finding::failed(
        format!(
            "--source {source}: the peer has no address of {family}, only {}",
            peers.join(", ")
        ),
        "give --source an address of the same family as the peer's, or leave it out",
    )
}

fn no_route(peer: SocketAddr, source: Option<IpAddr>, error: &io::Error) -> Finding {
    let to = peer.ip();
    let is_link_local = matches!(to, IpAddr::V6(ip) if ip.is_unicast_link_local());
    match (error.kind(), source) {
        (io::ErrorKind::AddrNotAvailable, Some(source)) => Finding::failed(
            format!("this machine has no address {source}"),
            "give --source one of its addresses (`ip addr`), or leave it out",
        ),
        (io::ErrorKind::InvalidInput, _) if is_link_local => Finding::failed(
            format!("{to} is the address of a host on some link, which must be named"),
            format!("name the interface too: {to}%eth0"),
        ),
        _ => Finding::failed(
            format!("there is no route to {to}: {error}"),
            format!(
                "`ip route get {to}` asks the kernel; usual causes: the interface is down or has \
                 no address of that network (`ip addr`), or there is no default route"
            ),
        ),
    }
}

/// Whether the first that packets go to is there.
pub(super) fn find_neighbour(route: &Route) -> Found<()> {
    if route.is_local() {
        return (Finding::ok("none is needed: packets do not leave this machine"), Some(()));
    }
    // So that the kernel looks for it; what comes of it is asked for later.
    let _ = route.probe.send(0);
    let addr = route.hop.as_ref().and_then(|hop| hop.gateway).unwrap_or(route.peer().ip());
    let what = if addr == route.peer().ip() { "the peer" } else { "the router" };
    let (Some(link), Some(_)) = (&route.link, &route.hop) else {
        return (not_told(what, addr, "netlink is closed to this program"), Some(()));
    };
    let start = Instant::now();
    loop {
        let neighbour = match netlink::neighbour(link.index, addr) {
            Ok(neighbour) => neighbour,
            Err(error) => return (not_told(what, addr, &error.to_string()), Some(())),
        };
        let waited = start.elapsed();
        match judge(what, addr, neighbour) {
            Verdict::Is(finding) => {
                let reached = (finding.state != State::Failed).then_some(());
                return (finding, reached);
            }
            Verdict::Wait(finding) if waited >= NEIGHBOUR_WAIT => return (finding, None),
            Verdict::Unknown if waited >= UNKNOWN_WAIT => {
                return (not_told(what, addr, "it has no entry in the kernel's table"), Some(()));
            }
            Verdict::Wait(_) | Verdict::Unknown => sleep(NEIGHBOUR_INTERVAL),
        }
    }
}

/// What the kernel's state of a neighbour means.
enum Verdict {
    Is(Finding),
    /// It may become better; this, if it does not.
    Wait(Finding),
    Unknown,
}

fn judge(what: &str, addr: IpAddr, neighbour: Option<Neighbour>) -> Verdict {
    let Some(Neighbour { state, link_address }) = neighbour else { return Verdict::Unknown };
    let link_address = link_address.as_deref().filter(|bytes| !bytes.is_empty()).map(colons);
    let silent = || {
        Finding::failed(
            format!("{what} {addr} does not say where it is (ARP or ND)"),
            "it is down, has another address, or is not on this link: check its address and the \
             prefix length of ours (`ip addr`), cable, VLAN and switch",
        )
    };
    let how = match state {
        NeighbourState::Reachable => "was there a moment ago",
        NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => {
            "was there some time ago, and is asked again"
        }
        NeighbourState::Permanent => "was entered by hand",
        NeighbourState::Noarp => "needs not to be looked for on this link",
        NeighbourState::Incomplete => return Verdict::Wait(silent()),
        NeighbourState::Failed => return Verdict::Is(silent()),
        _ => return Verdict::Unknown,
    };
    let mut says = format!("{what} {addr}");
    if let Some(link_address) = &link_address {
        let _ = write!(says, " at {link_address}");
    }
    let _ = write!(says, " {how}");
    Verdict::Is(Finding::ok(says).with(Facts::Neighbour { neighbour: addr, link_address }))
}

fn not_told(what: &str, addr: IpAddr, why: &str) -> Finding {
    let says = format!("whether {what} {addr} is there cannot be told: {why}");
    Finding::unknown(says, format!("`ip neigh show {addr}` may tell more"))
}

/// A hardware address as people write it.
fn colons(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(state: NeighbourState) -> String {
        let neighbour = Neighbour { state, link_address: Some(vec![2, 0, 0, 0, 0, 0xab]) };
        match judge("the peer", [10, 0, 0, 2].into(), Some(neighbour)) {
            Verdict::Is(finding) => format!("{:?}: {}", finding.state, finding.says),
            Verdict::Wait(_) => "wait".into(),
            Verdict::Unknown => "unknown".into(),
        }
    }

    #[test]
    fn a_neighbour_is_there_missing_or_still_looked_for() {
        let there = says(NeighbourState::Reachable);
        assert_eq!(there, "Ok: the peer 10.0.0.2 at 02:00:00:00:00:ab was there a moment ago");
        assert!(says(NeighbourState::Failed).starts_with("Failed: the peer 10.0.0.2 does not"));
        assert_eq!(says(NeighbourState::Incomplete), "wait");
        assert_eq!(says(NeighbourState::None), "unknown");
        assert!(matches!(judge("the peer", [10, 0, 0, 2].into(), None), Verdict::Unknown));
    }

    #[test]
    fn addresses_that_are_of_no_host_are_refused() {
        for host in ["0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255", "::"] {
            let (finding, found) = resolve(host);
            assert_eq!((finding.state, found), (State::Failed, None), "{host}");
        }
        let (finding, found) = resolve("127.0.0.9");
        assert_eq!(finding.says, "127.0.0.9 is an address");
        assert_eq!(found.unwrap(), ["127.0.0.9:4791".parse().unwrap()]);
    }

    #[test]
    fn a_missing_route_names_what_to_change() {
        let peer = "127.0.0.1:4791".parse().unwrap();
        let (finding, route) = find(&[peer], Some([192, 0, 2, 1].into()));
        assert!(route.is_none() && finding.says.contains("no address 192.0.2.1"), "{finding:?}");
        let far = "[::1]:4791".parse().unwrap();
        let (finding, route) = find(&[far, peer], Some([127, 0, 0, 1].into()));
        assert!(finding.says.contains("from 127.0.0.1"), "{finding:?}");
        assert_eq!(route.map(|route| route.peer()), Some(peer), "that of the family is taken");
        let (finding, route) = find(&[far], Some([127, 0, 0, 1].into()));
        let says = "--source 127.0.0.1: the peer has no address of IPv4, only ::1";
        assert!(route.is_none() && finding.says == says, "{finding:?}");
        let peer = "[fe80::1]:4791".parse().unwrap();
        let finding = no_route(peer, None, &io::ErrorKind::InvalidInput.into());
        assert!(finding.advice.unwrap().contains("fe80::1%eth0"));
    }

    #[test]
    fn packets_to_this_machine_need_no_neighbour() {
        let peer = "127.0.0.9:4791".parse().unwrap();
        let (finding, route) = find(&[peer], None);
        assert!(finding.says.contains("an address of this machine"), "{finding:?}");
        let (finding, there) = find_neighbour(&route.unwrap());
        assert!(there.is_some() && finding.state == State::Ok, "{finding:?}");
    }
}
