//! The machine's links and their addresses.

use super::message::{Message, Standing};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A link (network interface).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its name.
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

    /// The link that has an address.
    pub fn with_address(&self, addr: IpAddr) -> Option<&Link> {
        self.by_index.values().find(|link| link.has(addr))
    }

    /// Takes in what the kernel says. Returns whether that changed anything.
    pub(super) fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Link { index, flags, name, mtu, mac } => {
                let unknown = Link { index, ..Link::default() };
                let link = self.by_index.entry(index).or_insert(unknown);
                let before = link.clone();
                let has = |flags_wanted: i32| flags & flags_wanted as u32 == flags_wanted as u32;
                link.up = has(libc::IFF_UP | libc::IFF_RUNNING);
                link.loopback = has(libc::IFF_LOOPBACK);
                if let Some(name) = name {
                    link.name = name;
                }
                link.mtu = mtu.unwrap_or(link.mtu);
                link.mac = mac.or(link.mac);
                *link != before
            }
            Message::LinkGone { index } => self.by_index.remove(&index).is_some(),
            Message::Address { link, addr, prefix, standing } => {
                let place = match standing {
                    Standing::Usable => Some(Place::Usable),
                    Standing::Tentative => Some(Place::Tentative),
                    Standing::Duplicate => None,
                };
                self.put_address(link, (addr, prefix), place)
            }
            Message::AddressGone { link, addr, prefix } => {
                self.put_address(link, (addr, prefix), None)
            }
            Message::Done | Message::Refused { .. } | Message::Overrun | Message::Other => false,
        }
    }
}

/// In which of a link's lists an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Usable,
    Tentative,
}

impl Links {
    /// Puts an address of a link into one of its lists, or into none. Returns whether it was
    /// elsewhere.
    fn put_address(&mut self, link: u32, addr: (IpAddr, u8), place: Option<Place>) -> bool {
        let Some(link) = self.by_index.get_mut(&link) else { return false };
        let lists = [(Place::Usable, &mut link.addrs), (Place::Tentative, &mut link.tentative)];
        let mut changed = false;
        for (list, addrs) in lists {
            match (addrs.contains(&addr), place == Some(list)) {
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

    const UP: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;

    fn link(index: u32, name: &str, flags: u32) -> Message {
        Message::Link { index, flags, name: Some(name.into()), mtu: Some(1500), mac: None }
    }

    fn address(link: u32, addr: &str, standing: Standing) -> Message {
        Message::Address { link, addr: addr.parse().unwrap(), prefix: 64, standing }
    }

    fn gone(link: u32, addr: &str, prefix: u8) -> Message {
        Message::AddressGone { link, addr: addr.parse().unwrap(), prefix }
    }

    #[test]
    fn an_address_stays_until_it_is_gone_with_every_prefix() {
        let mut links = Links::default();
        links.apply(link(2, "eth0", UP));
        let addr = IpAddr::from([10, 0, 0, 1]);
        let standing = Standing::Usable;
        for prefix in [24, 23] {
            assert!(links.apply(Message::Address { link: 2, addr, prefix, standing }));
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
        for (standing, usable, tentative) in [
            (Standing::Tentative, vec![], vec![addr]),
            (Standing::Usable, vec![addr], vec![]),
            (Standing::Tentative, vec![], vec![addr]),
            (Standing::Duplicate, vec![], vec![]),
        ] {
            assert!(links.apply(address(2, "fe80::1", standing)));
            let eth0 = links.named("eth0").unwrap();
            assert_eq!((&eth0.addrs, &eth0.tentative), (&usable, &tentative), "{standing:?}");
            assert_eq!(eth0.has(addr.0), standing == Standing::Usable);
        }
    }

    #[test]
    fn every_change_is_one_and_what_is_said_again_is_none() {
        let mut links = Links::default();
        let flags_down = libc::IFF_UP as u32;
        for (message, changes) in [
            (link(2, "eth0", UP), true),
            (link(2, "eth0", UP), false),
            (address(2, "fe80::1", Standing::Tentative), true),
            (address(2, "fe80::1", Standing::Tentative), false),
            (address(2, "fe80::1", Standing::Usable), true),
            (address(2, "fe80::1", Standing::Usable), false),
            (link(2, "eth0", flags_down), true),
            (address(2, "fe80::1", Standing::Duplicate), true),
            (address(2, "fe80::1", Standing::Duplicate), false),
            (address(3, "fe80::1", Standing::Usable), false),
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
            (libc::IFF_UP as u32, false),
            (libc::IFF_RUNNING as u32, false),
            (0, false),
        ] {
            links.apply(link(2, "eth0", flags));
            assert_eq!(links.named("eth0").unwrap().up, up, "{flags:#x}");
        }
    }

    #[test]
    fn all_of_the_loopback_network_is_on_the_loopback_link_and_of_no_other() {
        let mut links = Links::default();
        links.apply(link(1, "lo", UP | libc::IFF_LOOPBACK as u32));
        links.apply(link(2, "eth0", UP));
        for (index, addr) in [(1, [127, 0, 0, 1]), (2, [10, 0, 0, 1])] {
            let addr = addr.into();
            let standing = Standing::Usable;
            links.apply(Message::Address { link: index, addr, prefix: 8, standing });
        }
        let name = |addr: [u8; 4]| links.with_address(addr.into()).map(|link| link.name.as_str());
        assert_eq!(name([127, 3, 2, 1]), Some("lo"));
        assert_eq!(name([10, 0, 0, 1]), Some("eth0"));
        assert_eq!(name([10, 0, 0, 2]), None);
    }
}
