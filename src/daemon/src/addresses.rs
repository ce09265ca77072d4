//! How a device follows the machine's addresses and links.
//!
//! A device is made for one address, or for an interface with all the addresses that it has. Its
//! GID table holds those of them that are there. An address that goes leaves a hole; one that comes
//! takes the first hole, so that an address which comes back after a while is most likely where it
//! was. A new table begins like the kernel's: the link-local address first (rxe's index 0, though
//! the kernel puts one there that it derives from the MAC even where the interface has none), then
//! IPv4 addresses, then the other IPv6 ones.

use crate::nic::{Nic, PortEvent};
use std::io;
use std::net::IpAddr;
use std::time::Instant;
use urxe_engine::limits::GID_TABLE_LEN;
use urxe_port::OpenError;
use urxe_port::watch::{Link, Links};
use urxe_wire::PathMtu;

/// What a device is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// One address, on whatever link it is.
    Address(IpAddr),
    /// All addresses of the interface of a name.
    Interface(String),
}

impl Served {
    /// The link that the device is on; `None` while there is none.
    pub(crate) fn link<'a>(&self, links: &'a Links) -> Option<&'a Link> {
        match self {
            Served::Address(addr) => links.with_address(*addr),
            Served::Interface(name) => links.named(name),
        }
    }

    /// The addresses that the device should have, in the order of a new GID table.
    pub(crate) fn addresses(&self, links: &Links) -> Vec<IpAddr> {
        let Some(link) = self.link(links) else { return Vec::new() };
        match self {
            Served::Address(addr) => vec![*addr],
            Served::Interface(_) => {
                let mut addrs: Vec<IpAddr> = link.addrs.iter().map(|(addr, _)| *addr).collect();
                // A stable sort: those of a kind stay as the kernel lists them.
                addrs.sort_by_key(|addr| match addr {
                    IpAddr::V6(addr) if addr.is_unicast_link_local() => 0,
                    IpAddr::V4(_) => 1,
                    IpAddr::V6(_) => 2,
                });
                addrs
            }
        }
    }
}

/// What a device is known to be on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkState {
    /// Packets can pass: `IBV_PORT_ACTIVE`, else `IBV_PORT_DOWN`.
    pub(crate) active: bool,
    /// The interface.
    pub(crate) interface: Option<String>,
    /// Its number.
    index: Option<u32>,
}

/// The largest path MTU of a link for a device with these addresses.
pub(crate) fn path_mtu(link_mtu: u32, mut addrs: impl Iterator<Item = IpAddr>) -> PathMtu {
    // A port that opened has room for the smallest at least.
    PathMtu::largest_for_link(link_mtu, addrs.any(|addr| addr.is_ipv6())).unwrap_or(PathMtu::Mtu256)
}

/// Whether an address that the kernel lists will be told of again before it can be used, or is
/// gone already.
pub(crate) fn is_passing(error: &OpenError) -> bool {
    matches!(error, OpenError::NotYetUsable { .. } | OpenError::NotOurs { .. })
}

impl Nic {
    /// Makes the device what the machine's links and addresses say that it should be, and tells its
    /// programs what has changed.
    pub(crate) fn follow(&mut self, now: Instant, links: &Links) -> io::Result<()> {
        let link = self.served.link(links);
        let wanted = self.served.addresses(links);
        let index = link.map(|link| link.index);
        // A socket is of no use on another link, even if the address is the same.
        let moved = self.link.index.is_some() && self.link.index != index;
        let stays = |addr: &IpAddr| wanted.contains(addr) && !moved;
        let gids = (0u8..).zip(self.device.gids()).filter_map(|(at, gid)| Some((at, (*gid)?)));
        let gone: Vec<(u8, IpAddr)> = gids.filter(|(_, addr)| !stays(addr)).collect();
        for &(at, addr) in &gone {
            self.remove_address(addr);
            self.device.set_gid(at, None);
        }
        self.refused.retain(|addr| wanted.contains(addr));
        let mut changed = !gone.is_empty();
        for addr in wanted {
            if !self.device.gids().contains(&Some(addr)) {
                changed |= self.take_address(addr);
            }
        }

        if let Some(link) = link {
            self.mtu = path_mtu(link.mtu, self.device.gids().iter().flatten().copied());
            self.device.set_active_mtu(self.mtu);
        }
        if changed {
            self.host.counters.gid_changes += 1;
            self.port_event(PortEvent::GidChange);
            if self.is_blocked() {
                // It may have waited for an address that is gone.
                self.send(now)?;
            }
        }
        let has_what_it_is_for = match &self.served {
            Served::Address(addr) => self.device.gids().contains(&Some(*addr)),
            Served::Interface(_) => true,
        };
        let active = link.is_some_and(|link| link.up) && has_what_it_is_for;
        let interface = link.map(|link| link.name.clone()).or(self.link.interface.take());
        let was_active = std::mem::replace(&mut self.link, LinkState { active, interface, index });
        match (was_active.active, active) {
            (true, false) => {
                self.host.counters.port_errors += 1;
                self.port_event(PortEvent::Error);
            }
            (false, true) => self.port_event(PortEvent::Active),
            _ => {}
        }
        Ok(())
    }

    /// Takes an address into the first hole of the GID table. Returns whether that worked.
    fn take_address(&mut self, addr: IpAddr) -> bool {
        let hole = self.device.gids().iter().position(Option::is_none);
        let added = match hole {
            Some(_) => self.add_address(addr),
            None => return self.refuse_address(addr),
        };
        match (added, hole) {
            (Ok(()), Some(hole)) => {
                self.device.set_gid(hole as u8, Some(addr));
                self.refused.remove(&addr);
                true
            }
            (Err(error), _) if is_passing(&error) => false,
            _ => self.refuse_address(addr),
        }
    }

    /// Counts an address that cannot be served, once.
    fn refuse_address(&mut self, addr: IpAddr) -> bool {
        self.host.counters.addresses_refused += u64::from(self.refused.insert(addr));
        false
    }
}

/// As many addresses of an interface as a GID table holds.
pub(crate) fn first_of_table(addrs: Vec<IpAddr>) -> impl Iterator<Item = IpAddr> {
    addrs.into_iter().take(GID_TABLE_LEN)
}
