//! How a device follows the machine's addresses and links.
//!
//! A device is made for one address, or for an interface with all the addresses that it has. Its
//! GID table holds those of them that are there. An address that goes leaves a hole; one that comes
//! takes the first hole, so that an address which comes back after a while is most likely where it
//! was. A new table begins like the kernel's: the link-local address first (rxe's index 0, though
//! the kernel puts one there that it derives from the MAC even where the interface has none), then
//! IPv4 addresses, then the other IPv6 ones.
//!
//! An address that cannot be used yet, because the kernel is finding out whether another machine
//! has it, has its place already, and is shown there: an index means the same address whenever the
//! daemon was started. Until then a path that begins there is refused.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use urxe_engine::limits::GID_TABLE_LEN;
use urxe_port::OpenError;
use urxe_port::watch::{Link, Links};
use urxe_types::PathMtu;
use urxe_wire::largest_path_mtu;

/// What a device is made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AddressSource {
    /// One address, on whatever link it is.
    Address(IpAddr),
    /// All addresses of the interface of a name.
    Interface(String),
}

impl AddressSource {
    /// The link that the device is on; `None` while there is none.
    pub(crate) fn link<'a>(&self, links: &'a Links) -> Option<&'a Link> {
        match self {
            AddressSource::Address(addr) => links.with_address(*addr),
            AddressSource::Interface(name) => links.named(name),
        }
    }

    /// The addresses that the device should have, in the order of a new GID table.
    pub(crate) fn addresses(&self, links: &Links) -> Vec<Wanted> {
        let Some(link) = self.link(links) else { return Vec::new() };
        let wanted = |usable| move |&(addr, _): &(IpAddr, u8)| Wanted { addr, usable };
        match self {
            AddressSource::Address(addr) => vec![Wanted { addr: *addr, usable: true }],
            AddressSource::Interface(_) => {
                let usable = link.addrs.iter().map(wanted(true));
                let mut addrs: Vec<Wanted> =
                    usable.chain(link.tentative.iter().map(wanted(false))).collect();
                // A stable sort: those of a kind stay as the kernel lists them.
                addrs.sort_by_key(|wanted| match wanted.addr {
                    IpAddr::V6(addr) if addr.is_unicast_link_local() => 0,
                    IpAddr::V4(_) => 1,
                    IpAddr::V6(_) => 2,
                });
                addrs
            }
        }
    }
}

/// An address that a device should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) addr: IpAddr,
    /// It can be used already.
    pub(crate) usable: bool,
}

/// The largest path MTU of a link for a device with these addresses.
pub(crate) fn path_mtu(link_mtu: u32, mut addrs: impl Iterator<Item = IpAddr>) -> PathMtu {
    // A port that opened has room for the smallest at least.
    largest_path_mtu(link_mtu, addrs.any(|addr| addr.is_ipv6())).unwrap_or(PathMtu::Mtu256)
}

/// Whether an address that the kernel lists will be told of again before it can be used, or is
/// gone already.
pub(crate) fn is_passing(error: &OpenError) -> bool {
    matches!(error, OpenError::NotYetUsable { .. } | OpenError::NotOurs { .. })
}

/// As many addresses of an interface as a GID table holds.
pub(crate) fn first_of_table(addrs: Vec<Wanted>) -> impl Iterator<Item = Wanted> {
    addrs.into_iter().take(GID_TABLE_LEN)
}
