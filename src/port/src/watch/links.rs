//! The machine's links and their addresses.

use super::message::{AddressState, Message};
use super::route_socket::RouteSocket;
use netlink_packet_route::link::LinkFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// A link (network interface).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// It is set up, and its other end is there (`IFF_UP` and `IFF_RUNNING`): packets can pass. A
    /// VLAN or a bond is as its lower links let it be.
    pub up: bool,
    /// Nothing leaves the machine here.
    pub loopback: bool,
    /// Its hardware address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Its addresses that can be used, with the lengths of their prefixes, in the order in which
    /// they came.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Those that cannot be used yet, for the kernel is finding out whether another machine has
    /// them.
    pub tentative: Vec<(IpAddr, u8)>,
}

impl Link {
    /// Whether an address is this link's. All of a loopback link's network is: 127.0.0.2 is,
    /// although only 127.0.0.1 is listed.
    pub fn has(&self, addr: IpAddr) -> bool {
        self.addrs.iter().any(|&(own, prefix)| {
            own == addr || self.loopback && addr.is_ipv4() && in_network(addr, own, prefix)
        })
    }
}

/// Whether an IPv4 address is in the network of another.
fn in_network(addr: IpAddr, own: IpAddr, prefix: u8) -> bool {
    let (IpAddr::V4(addr), IpAddr::V4(own)) = (addr, own) else { return false };
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (addr.to_bits() ^ own.to_bits()) & mask == 0
}

/// All links of this machine (of its network namespace, to be exact).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    by_index: BTreeMap<u32, Link>,
}

impl Links {
    /// All of them, by their numbers.
    pub fn all(&self) -> impl Iterator<Item = &Link> {
        self.by_index.values()
    }

    /// The link of a name.
    pub fn named(&self, name: &str) -> Option<&Link> {
        self.by_index.values().find(|link| link.name == name)
    }

    /// What there is at the moment.
    ///
    /// # Errors
    /// If the kernel does not say: a sandbox forbids netlink sockets, for example.
    pub fn now() -> io::Result<Links> {
        RouteSocket::open(&[])?.dump()
    }

    /// The link that has an address; of several, one that leads out of this machine.
    pub fn with_address(&self, addr: IpAddr) -> Option<&Link> {
        self.preferred(|link| link.has(addr))
    }

    /// The first link of a kind that leads out of this machine, else the first.
    pub(crate) fn preferred(&self, is_of_kind: impl Fn(&Link) -> bool) -> Option<&Link> {
        let all = || self.all().filter(|link| is_of_kind(link));
        all().find(|link| !link.loopback).or_else(|| all().next())
    }

    /// The largest IP packet that can go from these addresses of a link, in bytes. What a loopback
    /// link has beside the loopback network's own addresses is reached over the other links,
    /// whichever leads to a peer.
    pub fn mtu_from(&self, link: &Link, mut addrs: impl Iterator<Item = IpAddr>) -> u32 {
        if !link.loopback || addrs.all(|addr| addr.is_loopback()) {
            return link.mtu;
        }
        // What has no address carries no IP packets: a link of a CAN bus, or below a bond.
        let carries = |other: &&Link| other.up && !other.loopback && !other.addrs.is_empty();
        self.all().filter(carries).map(|other| other.mtu).min().unwrap_or(link.mtu)
    }

    /// Takes in what the kernel says. Returns whether that changed anything.
    pub(super) fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Link { index, flags, name, mtu, mac } => {
                let unknown = Link { index, ..Link::default() };
                let link = self.by_index.entry(index).or_insert(unknown);
                let before = link.clone();
                link.up = flags.contains(LinkFlags::Up | LinkFlags::Running);
                link.loopback = flags.contains(LinkFlags::Loopback);
                if let Some(name) = name {
                    link.name = name;
                }
                link.mtu = mtu.unwrap_or(link.mtu);
                link.mac = mac.or(link.mac);
                *link != before
            }
            Message::LinkGone { index } => self.by_index.remove(&index).is_some(),
            Message::Address { link, addr, prefix, state } => {
                self.set_address(link, (addr, prefix), Some(state))
            }
            Message::AddressGone { link, addr, prefix } => {
                self.set_address(link, (addr, prefix), None)
            }
            Message::Done | Message::Refused { .. } | Message::Overrun | Message::Other => false,
        }
    }

    /// Puts an address of a link into the list of its state, or into none. Returns whether that
    /// changed anything.
    fn set_address(&mut self, link: u32, addr: (IpAddr, u8), state: Option<AddressState>) -> bool {
        let Some(link) = self.by_index.get_mut(&link) else { return false };
        let mut changed = false;
        for (list, addrs) in [
            (AddressState::Usable, &mut link.addrs),
            (AddressState::Tentative, &mut link.tentative),
        ] {
            match (addrs.contains(&addr), state == Some(list)) {
                (true, false) => addrs.retain(|own| *own != addr),
                (false, true) => addrs.push(addr),
                _ => continue,
            }
            changed = true;
        }
        changed
    }
}

impl FromIterator<Link> for Links {
    fn from_iter<I: IntoIterator<Item = Link>>(links: I) -> Links {
        Links { by_index: links.into_iter().map(|link| (link.index, link)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: LinkFlags = LinkFlags::Up.union(LinkFlags::Running);

    fn link(index: u32, name: &str, flags: LinkFlags) -> Message {
        Message::Link { index, flags, name: Some(name.into()), mtu: Some(1500), mac: None }
    }

    fn address(link: u32, addr: &str, state: AddressState) -> Message {
        Message::Address { link, addr: addr.parse().unwrap(), prefix: 64, state }
    }

    fn gone(link: u32, addr: &str, prefix: u8) -> Message {
        Message::AddressGone { link, addr: addr.parse().unwrap(), prefix }
    }

    #[test]
    fn an_address_stays_until_it_is_gone_with_every_prefix() {
        let mut links = Links::default();
        links.apply(link(2, "eth0", UP));
        let addr = IpAddr::from([10, 0, 0, 1]);
        let state = AddressState::Usable;
        for prefix in [24, 23] {
            assert!(links.apply(Message::Address { link: 2, addr, prefix, state }));
        }
        assert!(links.apply(gone(2, "10.0.0.1", 24)));
        assert!(links.named("eth0").unwrap().has(addr), "it is there with the new prefix");
        assert!(links.apply(gone(2, "10.0.0.1", 23)));
        assert!(!links.named("eth0").unwrap().has(addr));
    }

    #[test]
    fn an_address_is_usable_or_tentative_and_never_both() {
        let mut links = Links::default();
        links.apply(link(2, "eth0", UP));
        let addr = ("fe80::1".parse().unwrap(), 64);
        for (state, usable, tentative) in [
            (AddressState::Tentative, vec![], vec![addr]),
            (AddressState::Usable, vec![addr], vec![]),
            (AddressState::Tentative, vec![], vec![addr]),
            (AddressState::Duplicate, vec![], vec![]),
        ] {
            assert!(links.apply(address(2, "fe80::1", state)));
            let eth0 = links.named("eth0").unwrap();
            assert_eq!((&eth0.addrs, &eth0.tentative), (&usable, &tentative), "{state:?}");
            assert_eq!(eth0.has(addr.0), state == AddressState::Usable);
        }
    }

    #[test]
    fn a_change_is_reported_once_and_a_repeated_message_is_none() {
        let mut links = Links::default();
        let flags_down = LinkFlags::Up;
        for (message, changes) in [
            (link(2, "eth0", UP), true),
            (link(2, "eth0", UP), false),
            (address(2, "fe80::1", AddressState::Tentative), true),
            (address(2, "fe80::1", AddressState::Tentative), false),
            (address(2, "fe80::1", AddressState::Usable), true),
            (address(2, "fe80::1", AddressState::Usable), false),
            (link(2, "eth0", flags_down), true),
            (address(2, "fe80::1", AddressState::Duplicate), true),
            (address(2, "fe80::1", AddressState::Duplicate), false),
            (address(3, "fe80::1", AddressState::Usable), false),
            (gone(2, "fe80::1", 64), false),
            (link(2, "lan", UP), true),
            (Message::Other, false),
            (Message::LinkGone { index: 2 }, true),
            (Message::LinkGone { index: 2 }, false),
        ] {
            assert_eq!(links.apply(message.clone()), changes, "{message:?}");
        }
    }

    #[test]
    fn a_link_is_up_when_it_is_set_up_and_the_other_end_is_there() {
        let mut links = Links::default();
        for (flags, up) in [
            (UP, true),
            (LinkFlags::Up, false),
            (LinkFlags::Running, false),
            (LinkFlags::empty(), false),
        ] {
            links.apply(link(2, "eth0", flags));
            assert_eq!(links.named("eth0").unwrap().up, up, "{flags:?}");
        }
    }

    #[test]
    fn all_of_the_loopback_network_is_on_the_loopback_link_and_of_no_other() {
        let mut links = Links::default();
        links.apply(link(1, "lo", UP | LinkFlags::Loopback));
        links.apply(link(2, "eth0", UP));
        for (index, addr) in [(1, [127, 0, 0, 1]), (2, [10, 0, 0, 1])] {
            let addr = addr.into();
            let state = AddressState::Usable;
            links.apply(Message::Address { link: index, addr, prefix: 8, state });
        }
        let name = |addr: [u8; 4]| links.with_address(addr.into()).map(|link| link.name.as_str());
        assert_eq!(name([127, 3, 2, 1]), Some("lo"));
        assert_eq!(name([10, 0, 0, 1]), Some("eth0"));
        assert_eq!(name([10, 0, 0, 2]), None);
    }

    #[test]
    fn an_address_of_the_machine_on_the_loopback_link_is_reached_over_the_others() {
        let mut links = Links::default();
        let mtu = |mtu| Message::Link {
            index: 1,
            flags: UP | LinkFlags::Loopback,
            name: Some("lo".into()),
            mtu: Some(mtu),
            mac: None,
        };
        links.apply(mtu(65536));
        let (own, service) = ([127, 0, 0, 1].into(), IpAddr::from([10, 0, 0, 9]));
        let has = |links: &mut Links, link, addr, prefix| {
            links.apply(Message::Address { link, addr, prefix, state: AddressState::Usable });
        };
        has(&mut links, 1, own, 8);
        has(&mut links, 1, service, 32);
        let mtu_from = |links: &Links, addr| {
            links.mtu_from(links.with_address(addr).unwrap(), [own, addr].into_iter())
        };
        assert_eq!(mtu_from(&links, service), 65536, "there is no other link");
        links.apply(link(2, "eth0", UP));
        assert_eq!(mtu_from(&links, service), 65536, "nothing goes over that one");
        has(&mut links, 2, [10, 0, 0, 1].into(), 24);
        assert_eq!(mtu_from(&links, service), 1500);
        assert_eq!(mtu_from(&links, own), 65536);
        links.apply(link(2, "eth0", LinkFlags::Up));
        assert_eq!(mtu_from(&links, service), 65536, "it leads nowhere now");

        has(&mut links, 2, service, 24);
        assert_eq!(links.with_address(service).unwrap().name, "eth0", "where it is sent to");
    }
}
