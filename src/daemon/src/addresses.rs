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

use crate::nic::{Nic, PortEvent};
use std::io;
use std::net::IpAddr;
use std::time::Instant;
use urxe_engine::limits::GID_TABLE_LEN;
use urxe_port::OpenError;
use urxe_port::watch::{Link, Links};
use urxe_types::PathMtu;
use urxe_wire::largest_path_mtu;

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
    pub(crate) fn addresses(&self, links: &Links) -> Vec<Wanted> {
        let Some(link) = self.link(links) else { return Vec::new() };
        let wanted = |usable| move |&(addr, _): &(IpAddr, u8)| Wanted { addr, usable };
        match self {
            Served::Address(addr) => vec![Wanted { addr: *addr, usable: true }],
            Served::Interface(_) => {
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

/// What a device is known to be on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkState {
    /// Packets can pass: `IBV_PORT_ACTIVE`, else `IBV_PORT_DOWN`.
    pub(crate) active: bool,
    /// The interface.
    pub(crate) interface: Option<String>,
    /// Its number.
    pub(crate) index: Option<u32>,
}

impl LinkState {
    /// The speed of the interface in Mbit/s, where the kernel knows it.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        let path = format!("/sys/class/net/{}/speed", self.interface.as_deref()?);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
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

impl Nic {
    /// Makes the device what the machine's links and addresses say that it should be. Returns what
    /// its programs are to be [told](Self::port_event).
    pub(crate) fn sync_with_links(
        &mut self,
        now: Instant,
        links: &Links,
    ) -> io::Result<Vec<PortEvent>> {
        let mut events = Vec::new();
        let link = self.served.link(links);
        let wanted = self.served.addresses(links);
        let index = link.map(|link| link.index);
        // A socket is of no use on another link, even if the address is the same.
        let moved = self.link.index.is_some() && self.link.index != index;
        let is_wanted = |addr: &IpAddr| wanted.iter().any(|wanted| wanted.addr == *addr);
        let stays = |addr: &IpAddr| {
            !moved && wanted.iter().any(|wanted| wanted.addr == *addr && wanted.usable)
        };
        let shown_before = self.gid_table();
        let gids = (0u8..).zip(self.device.gids()).filter_map(|(at, gid)| Some((at, (*gid)?)));
        let gone: Vec<(u8, IpAddr)> = gids.filter(|(_, addr)| !stays(addr)).collect();
        for &(at, addr) in &gone {
            self.remove_address(addr);
            self.device.set_gid(at, None);
            if is_wanted(&addr) && !moved {
                self.awaited.insert(at, addr);
            }
        }
        self.refused.retain(is_wanted);
        self.awaited.retain(|_, addr| is_wanted(addr));
        let mut changed = !gone.is_empty();
        for wanted in &wanted {
            if !self.device.gids().contains(&Some(wanted.addr)) {
                changed |= self.take_address(*wanted);
            }
        }
        changed |= self.gid_table() != shown_before;

        // A link-local one may be another machine's as well, on another link.
        let is_unique =
            |addr: &IpAddr| !matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
        let local = links.all().flat_map(|link| link.addrs.iter().map(|&(addr, _)| addr));
        self.device.set_local_addrs(local.filter(is_unique).collect());
        if let Some(link) = link {
            self.mtu = path_mtu(link.mtu, self.device.gids().iter().flatten().copied());
            self.device.set_active_mtu(self.mtu);
            self.cm.set_active_mtu(self.mtu);
        }
        if changed {
            self.host.counters.gid_changes += 1;
            events.push(PortEvent::GidChange);
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
                events.push(PortEvent::Error);
            }
            (false, true) => events.push(PortEvent::Active),
            _ => {}
        }
        Ok(events)
    }

    /// Takes an address to its place in the GID table: the one that awaits it, or the first hole.
    /// Returns whether it is there now.
    fn take_address(&mut self, wanted: Wanted) -> bool {
        let addr = wanted.addr;
        let awaiting = self.awaited.iter().find(|(_, awaited)| **awaited == addr);
        let hole = || self.gid_table().iter().position(Option::is_none).map(|hole| hole as u8);
        let Some(place) = awaiting.map(|(at, _)| *at).or_else(hole) else {
            return self.refuse_address(addr);
        };
        let added = wanted.usable.then(|| self.add_address(addr));
        match added {
            Some(Ok(())) => {
                self.awaited.remove(&place);
                self.device.set_gid(place, Some(addr));
                self.refused.remove(&addr);
                true
            }
            Some(Err(error)) if !is_passing(&error) => {
                self.awaited.remove(&place);
                self.refuse_address(addr)
            }
            Some(Err(_)) | None => {
                self.awaited.insert(place, addr);
                false
            }
        }
    }

    /// The GID table as it is shown: with the addresses that cannot be used yet.
    pub(crate) fn gid_table(&self) -> Vec<Option<IpAddr>> {
        let mut table = self.device.gids().to_vec();
        for (&at, &addr) in &self.awaited {
            if let Some(entry) = table.get_mut(usize::from(at)) {
                *entry = Some(addr);
            }
        }
        table
    }

    /// Counts an address that cannot be served, once.
    fn refuse_address(&mut self, addr: IpAddr) -> bool {
        self.host.counters.addresses_refused += u64::from(self.refused.insert(addr));
        false
    }
}

/// As many addresses of an interface as a GID table holds.
pub(crate) fn first_of_table(addrs: Vec<Wanted>) -> impl Iterator<Item = Wanted> {
    addrs.into_iter().take(GID_TABLE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_pipe::EventPipe;
    use crate::nic::Identity;
    use crate::objects::EventTarget;
    use std::collections::BTreeSet;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::{Arc, Mutex};
    use urxe_port::{Caps, Port, PortCounters, RxBatch, Segmentation, SendOutcome, SourcePort};
    use urxe_shm::control::event::{EventRecord, GID_CHANGE, PORT_ACTIVE, PORT_ERR, RECORD_LEN};
    use urxe_wire::batch::{TxBatch, TxLimits};

    /// A port that has any address but those that are taken.
    #[derive(Clone, Default)]
    struct FakePort(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        addrs: BTreeSet<IpAddr>,
        taken: BTreeSet<IpAddr>,
    }

    impl Port for FakePort {
        fn caps(&self) -> Caps {
            Caps {
                backend: "fake",
                addrs: self.0.lock().unwrap().addrs.iter().copied().collect(),
                interface: None,
                link_mtu: 1500,
                tx_limits: TxLimits::SINGLE,
                source_port: SourcePort::OfFlow,
                sees_ident: true,
                receive_buffer: 1 << 20,
                segmentation: Segmentation::Off,
            }
        }

        fn send(&mut self, _: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
            batch.clear();
            Ok(SendOutcome::Done)
        }

        fn recv(&mut self, _: Instant, rx: &mut RxBatch) -> io::Result<usize> {
            rx.clear();
            Ok(0)
        }

        fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
            let mut state = self.0.lock().unwrap();
            if state.taken.contains(&addr) {
                return Err(OpenError::PortTaken { addr });
            }
            assert!(state.addrs.insert(addr), "{addr} is added twice");
            Ok(())
        }

        fn remove_address(&mut self, addr: IpAddr) {
            assert!(self.0.lock().unwrap().addrs.remove(&addr), "{addr} is not there");
        }

        fn join(&mut self, _: IpAddr) -> io::Result<()> {
            Ok(())
        }

        fn leave(&mut self, _: IpAddr) -> io::Result<()> {
            Ok(())
        }

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn counters(&self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// A device with one context, and the machine around it.
    struct Machine {
        nic: Nic,
        port: FakePort,
        pipe: OwnedFd,
        link: Option<Link>,
    }

    impl Machine {
        /// A device of eth0, on a machine without any such link yet.
        fn new(served: Served) -> Machine {
            let port = FakePort::default();
            let table = Vec::new();
            let identity = Identity { name: "urxe0".into(), guid: [2; 8], served, table };
            let mut nic = Nic::new(identity, Box::new(port.clone()), [1, 2], Instant::now());
            let (pipe, read_end) = EventPipe::new().unwrap();
            let pipe = nic.host.pipes.insert(pipe).unwrap();
            nic.host.objects.contexts.insert(pipe, EventTarget::new(pipe, 1, 5));
            rustix::io::ioctl_fionbio(&read_end, true).unwrap();
            Machine { nic, port, pipe: read_end, link: None }
        }

        /// The link is as this says from now on. Returns the events that the context is told.
        fn becomes(&mut self, up: bool, mtu: u32, addrs: &[&str]) -> Vec<u32> {
            // One with a question mark cannot be used yet.
            let (tentative, usable): (Vec<&str>, Vec<&str>) =
                addrs.iter().partition(|addr| addr.ends_with('?'));
            let all = |addrs: Vec<&str>| {
                let addrs = addrs.iter().map(|addr| addr.trim_end_matches('?').parse().unwrap());
                addrs.map(|addr| (addr, 64)).collect()
            };
            let (name, index) = ("eth0".into(), 2);
            let (addrs, tentative) = (all(usable), all(tentative));
            let link = Link { name, index, mtu, up, loopback: false, mac: None, addrs, tentative };
            self.link = Some(link);
            self.follow()
        }

        fn follow(&mut self) -> Vec<u32> {
            let links: Links = self.link.clone().into_iter().collect();
            // What is known already changes nothing.
            for _ in 0..2 {
                for event in self.nic.sync_with_links(Instant::now(), &links).unwrap() {
                    self.nic.port_event(event);
                }
            }
            let table: BTreeSet<IpAddr> =
                self.nic.device.gids().iter().flatten().copied().collect();
            assert_eq!(self.port.0.lock().unwrap().addrs, table, "the port has what the table has");
            let mut told = Vec::new();
            let mut record = [0; RECORD_LEN];
            while rustix::io::read(&self.pipe, &mut record).is_ok() {
                let record = EventRecord::from_bytes(record);
                assert_eq!((record.user_handle, record.object), (1, 5));
                told.push(record.kind);
            }
            told
        }

        /// The GID table up to its last entry.
        fn table(&self) -> Vec<String> {
            let gids = self.nic.gid_table();
            let len = gids.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            let text = |gid: &Option<IpAddr>| gid.map_or("-".into(), |gid| gid.to_string());
            gids[..len].iter().map(text).collect()
        }
    }

    fn of_eth0() -> Machine {
        Machine::new(Served::Interface("eth0".into()))
    }

    #[test]
    fn a_new_table_has_the_kernels_order_and_later_ones_take_the_first_hole() {
        let mut machine = of_eth0();
        assert_eq!(machine.follow(), []);
        let told = machine.becomes(true, 1500, &["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1"]);
        assert_eq!(told, [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.table(), ["fe80::1", "10.0.0.1", "10.0.0.2", "fd00::1"]);
        let told = machine.becomes(true, 1500, &["10.0.0.2", "fe80::1"]);
        assert_eq!(told, [GID_CHANGE], "one change is told of once, however much it is");
        assert_eq!(machine.table(), ["fe80::1", "-", "10.0.0.2"]);
        machine.becomes(true, 1500, &["10.0.0.2", "fe80::1", "fd00::7", "fd00::8"]);
        assert_eq!(machine.table(), ["fe80::1", "fd00::7", "10.0.0.2", "fd00::8"]);
    }

    #[test]
    fn an_address_that_cannot_be_used_yet_has_its_place_already() {
        let table = ["fe80::1", "10.0.0.1", "fd00::1"];
        let mut early = of_eth0();
        let told = early.becomes(true, 1500, &["10.0.0.1", "fd00::1", "fe80::1?"]);
        assert_eq!(told, [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(early.table(), table);
        assert_eq!(early.nic.device.gids()[0], None, "nothing is sent from it");
        let told = early.becomes(true, 1500, &["10.0.0.1", "fd00::1", "fe80::1"]);
        assert_eq!(told, [GID_CHANGE], "now it can be used");
        assert_eq!(early.table(), table);
        assert_eq!(early.nic.device.gids()[0], Some("fe80::1".parse().unwrap()));
        let mut late = of_eth0();
        late.becomes(true, 1500, &["10.0.0.1", "fd00::1", "fe80::1"]);
        assert_eq!(late.table(), table);
        // It is doubted again, and then found to be another machine's.
        assert_eq!(late.becomes(true, 1500, &["10.0.0.1", "fd00::1", "fe80::1?"]), [GID_CHANGE]);
        assert_eq!(late.table(), table);
        assert_eq!(late.becomes(true, 1500, &["10.0.0.1", "fd00::1"]), [GID_CHANGE]);
        assert_eq!(late.table(), ["-", "10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn the_ports_state_is_told_when_it_changes_and_never_twice() {
        let mut machine = of_eth0();
        let addrs = ["10.0.0.1"];
        assert_eq!(machine.becomes(true, 1500, &addrs), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.becomes(false, 1500, &addrs), [PORT_ERR]);
        assert_eq!(machine.becomes(true, 1500, &addrs), [PORT_ACTIVE]);
        machine.link = None;
        assert_eq!(machine.follow(), [GID_CHANGE, PORT_ERR]);
        assert_eq!(machine.nic.link.interface.as_deref(), Some("eth0"), "still what it is for");
        assert_eq!(machine.becomes(true, 1500, &addrs), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.nic.host.counters.port_errors, 2);
    }

    #[test]
    fn a_device_of_one_address_is_down_without_it_whatever_the_link_says() {
        let mut machine = Machine::new(Served::Address([10, 0, 0, 1].into()));
        let both = ["10.0.0.1", "10.0.0.2"];
        assert_eq!(machine.becomes(true, 1500, &both), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.table(), ["10.0.0.1"]);
        assert_eq!(machine.becomes(true, 1500, &both[1..]), [GID_CHANGE, PORT_ERR]);
        assert_eq!(machine.becomes(true, 1500, &both), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.table(), ["10.0.0.1"]);
    }

    #[test]
    fn an_address_on_another_link_is_another_socket() {
        let mut machine = Machine::new(Served::Address([10, 0, 0, 1].into()));
        machine.becomes(true, 1500, &["10.0.0.1"]);
        let link = machine.link.as_mut().unwrap();
        (link.name, link.index) = ("eth1".into(), 3);
        assert_eq!(machine.follow(), [GID_CHANGE]);
        assert_eq!(machine.nic.link.interface.as_deref(), Some("eth1"));
    }

    #[test]
    fn the_path_mtu_follows_and_ipv6_needs_more_room() {
        let mut machine = of_eth0();
        let mut mtu = |link_mtu, addr| {
            machine.becomes(true, link_mtu, &[addr]);
            machine.nic.mtu
        };
        assert_eq!(mtu(1500, "10.0.0.1"), PathMtu::Mtu1024);
        assert_eq!(mtu(9000, "10.0.0.1"), PathMtu::Mtu4096);
        let exact = (1..).find(|mtu| largest_path_mtu(*mtu, false).is_some());
        let exact = exact.unwrap() + 256;
        assert_eq!(mtu(exact, "10.0.0.1"), PathMtu::Mtu512);
        assert_eq!(mtu(exact, "fd00::1"), PathMtu::Mtu256);
        assert_eq!(mtu(100, "10.0.0.1"), PathMtu::Mtu256, "no less than there is");
    }

    #[test]
    fn an_address_that_cannot_be_served_is_counted_once_and_taken_when_it_can() {
        let mut machine = of_eth0();
        let addrs = ["10.0.0.1", "10.0.0.2"];
        machine.port.0.lock().unwrap().taken.insert([10, 0, 0, 1].into());
        machine.becomes(true, 1500, &addrs);
        assert_eq!(machine.table(), ["10.0.0.2"]);
        assert_eq!(machine.nic.host.counters.addresses_refused, 1);
        machine.port.0.lock().unwrap().taken.clear();
        assert_eq!(machine.becomes(true, 1400, &addrs), [GID_CHANGE]);
        assert_eq!(machine.table(), ["10.0.0.2", "10.0.0.1"]);
    }

    #[test]
    fn more_addresses_than_the_table_holds_are_left_out_and_counted() {
        let mut machine = of_eth0();
        let addrs: Vec<String> = (1..=GID_TABLE_LEN + 3).map(|i| format!("10.0.0.{i}")).collect();
        let addrs: Vec<&str> = addrs.iter().map(String::as_str).collect();
        machine.becomes(true, 1500, &addrs);
        assert_eq!(machine.table().len(), GID_TABLE_LEN);
        assert_eq!(machine.nic.host.counters.addresses_refused, 3);
        machine.becomes(true, 1500, &addrs[1..]);
        assert_eq!(machine.table()[0], addrs[GID_TABLE_LEN], "the first of them takes the hole");
    }
}
