//! One device of the daemon: the connection manager that speaks for it, the slot that does so on
//! the wire, and how the device follows the machine's addresses and links.

mod saved;

pub(crate) use saved::SavedDevice;

use crate::broker::addresses::{AddressSource, Wanted, is_passing, path_mtu};
use crate::broker::sockets::{SocketGroup, SocketSource};
use crate::counters::DeviceCounters;
use crate::log::DEVICE;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::time::Instant;
use urxe_cm::{Manager, Timing};
use urxe_engine::Tuning;
use urxe_engine::limits::MAX_RD_ATOMIC;
use urxe_nic::{Config, Nic, PortEvent};
use urxe_port::watch::{Link, Links};
use urxe_port::{AddressSockets, OpenError, Port};
use urxe_slot::link::{Counts, DeviceState, LinkState};
use urxe_slot::{DaemonCounters, counts};
use urxe_types::{PathMtu, Slot};

/// What identifies a device.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) guid: [u8; 8],
    /// What it is made for.
    pub(crate) source: AddressSource,
    /// The addresses that its GID table begins with. Those that its port has not cannot be used
    /// yet.
    pub(crate) table: Vec<IpAddr>,
}

/// The sockets of a device: those of the broker's own slot in a port, and of all slots by address.
pub(crate) struct Sockets {
    pub(crate) source: Box<dyn SocketSource>,
    pub(crate) port: Box<dyn Port>,
    pub(crate) groups: BTreeMap<IpAddr, Box<dyn SocketGroup>>,
}

/// What the other slots have to do as the broker's own has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressChange {
    Added(IpAddr),
    Removed(IpAddr),
}

impl Sockets {
    /// Opens an address for all slots. `near` is the name of the interface that is preferred.
    pub(crate) fn add(&mut self, addr: IpAddr, near: Option<&str>) -> Result<(), OpenError> {
        let (group, own) = open_group(&*self.source, addr, near)?;
        self.port.adopt(own)?;
        self.groups.insert(addr, group);
        Ok(())
    }
}

/// Opens an address for all slots, and takes the sockets of the broker's own.
fn open_group(
    source: &dyn SocketSource,
    addr: IpAddr,
    near: Option<&str>,
) -> Result<(Box<dyn SocketGroup>, AddressSockets), OpenError> {
    let mut group = source.open(addr, near)?;
    let own = group.give(own_slot(source))?;
    Ok((group, own))
}

/// The broker's own slot.
fn own_slot(source: &dyn SocketSource) -> Slot {
    source.slots().slots().next().unwrap_or(Slot::ALONE)
}

/// A device: the data path of the broker's own slot, and what the daemon knows and does beside
/// that.
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    pub(crate) guid: [u8; 8],
    made_for: AddressSource,
    /// What it is on, and whether that works.
    pub(crate) link: LinkState,
    /// The largest path MTU of its link.
    pub(crate) mtu: PathMtu,
    /// Addresses that cannot be used yet, by their places in the GID table.
    awaited: BTreeMap<u8, IpAddr>,
    /// Addresses that cannot be served.
    refused: BTreeSet<IpAddr>,
    /// The addresses of this machine that are on one link only.
    local_addrs: BTreeSet<IpAddr>,
    /// What opens addresses, and what it has opened.
    source: Box<dyn SocketSource>,
    pub(crate) groups: BTreeMap<IpAddr, Box<dyn SocketGroup>>,
    /// The data path of QP1.
    pub(crate) nic: Nic,
    /// The port of that data path is of no use any more.
    pub(crate) has_failed: bool,
    /// Its connections.
    pub(crate) cm: Manager,
    pub(crate) counters: DeviceCounters,
    /// What its data path counted in the process that was there before, if there was one.
    before: Option<Counts>,
    /// What slots had counted that have ended.
    of_ended_slots: Option<Counts>,
}

impl RdmaDevice {
    /// Puts a device on a port. The seeds make the numbers of the device and of its connections
    /// unpredictable; they are two, since the latter are told to everybody.
    pub(crate) fn new(
        identity: Identity,
        sockets: Sockets,
        [seed, cm_seed]: [u64; 2],
        tuning: Tuning,
        now: Instant,
    ) -> RdmaDevice {
        let Identity { name, guid, source: made_for, table } = identity;
        let Sockets { source, port, groups } = sockets;
        let slot = own_slot(&*source);
        let caps = port.caps();
        let mtu = path_mtu(caps.link_mtu, caps.addrs.iter().copied());
        let is_usable = |addr: &IpAddr| caps.addrs.contains(addr);
        let awaited = (0u8..).zip(&table).filter(|(_, addr)| !is_usable(addr));
        let awaited = awaited.map(|(at, addr)| (at, *addr)).collect();
        let gids = table.iter().map(|addr| Some(*addr).filter(is_usable)).collect();
        let cm = Manager::new(cm_config(guid, cm_seed, mtu));
        RdmaDevice {
            name,
            guid,
            made_for,
            link: LinkState::default(),
            mtu,
            awaited,
            refused: BTreeSet::new(),
            local_addrs: BTreeSet::new(),
            source,
            groups,
            nic: Nic::new(port, Config { gids, active_mtu: mtu, seed, slot, tuning }, now),
            has_failed: false,
            cm,
            counters: DeviceCounters::default(),
            before: None,
            of_ended_slots: None,
        }
    }

    /// What is counted of it as a whole.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let dropped: u64 = self.groups.values().map(|group| group.dropped()).sum();
        let DeviceCounters { drop_ended_slot, .. } = self.counters;
        DeviceCounters { drop_ended_slot: drop_ended_slot + dropped, ..self.counters }
    }

    /// What is counted of its own data path, and beside it.
    pub(crate) fn counts(&self, daemon: &DaemonCounters) -> Counts {
        let counts = counts(&self.nic, daemon);
        match &self.before {
            Some(before) => counts + before.clone(),
            None => counts,
        }
    }

    /// A slot has ended that had counted this.
    pub(crate) fn keep_counts(&mut self, Counts { engine, port, nic, daemon, .. }: Counts) {
        let none = self.counts(&DaemonCounters::default());
        // A slot may have listed fewer, or more.
        let as_long = |mut counted: Vec<u64>, like: &[u64]| {
            counted.resize(like.len(), 0);
            counted
        };
        let ended = Counts {
            engine: as_long(engine, &none.engine),
            port: as_long(port, &none.port),
            nic: as_long(nic, &none.nic),
            daemon: as_long(daemon, &none.daemon),
            // There is nothing of it any more.
            objects: vec![0; none.objects.len()],
            paths: vec![0; none.paths.len()],
        };
        self.of_ended_slots = Some(match self.of_ended_slots.take() {
            Some(before) => before + ended,
            None => ended,
        });
    }

    /// What slots had counted that have ended.
    pub(crate) fn of_ended_slots(&self) -> Option<&Counts> {
        self.of_ended_slots.as_ref()
    }

    /// What is counted of its own data path and beside it, and what slots had counted that have
    /// ended.
    pub(crate) fn counts_with_ended(&self, daemon: &DaemonCounters) -> Counts {
        let counts = self.counts(daemon);
        match &self.of_ended_slots {
            Some(ended) => counts + ended.clone(),
            None => counts,
        }
    }

    /// What other slots have to know of it.
    pub(crate) fn state(&self) -> DeviceState {
        DeviceState {
            gids: self.nic.device().gids().to_vec(),
            shown_gids: self.gid_table(),
            mtu: self.mtu,
            link: self.link.clone(),
            local_addrs: self.local_addrs.iter().copied().collect(),
        }
    }

    /// Sees to everything whose time has come.
    pub(crate) fn handle_timers(&mut self, now: Instant) -> io::Result<()> {
        if self.cm.poll_timeout().is_some_and(|at| at <= now) {
            self.cm.handle_timeout(now);
        }
        self.nic.handle_timers(now)?;
        Ok(())
    }

    /// When to be called although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let of_nic = self.nic.deadline().filter(|_| !self.has_failed);
        [of_nic, self.cm.poll_timeout()].into_iter().flatten().min()
    }

    /// Lets the connection manager see the management datagrams that have come.
    pub(crate) fn take_mads(&mut self, now: Instant) {
        for (from, mad) in self.nic.take_mads() {
            let is_of_use = self.cm.handle_mad(now, &from, &mad);
            self.nic.judge_mad(now, &from, is_of_use);
        }
    }

    /// Sends what the connection manager has to send.
    pub(crate) fn send_mads(&mut self) {
        while let Some(out) = self.cm.poll_mad() {
            let to = out.path.address_vector(self.nic.device().gids());
            let is_sent = to.is_some_and(|to| self.nic.send_mad(&to, out.qpn, &out.mad));
            self.counters.cm_messages_without_path += u64::from(!is_sent);
        }
    }

    /// Makes the device what the machine's links and addresses say that it should be. Returns what
    /// the other slots have to do, and what programs are to be [told](Nic::port_event).
    pub(crate) fn sync_with_links(
        &mut self,
        now: Instant,
        links: &Links,
    ) -> (Vec<AddressChange>, Vec<PortEvent>) {
        let link = self.made_for.link(links);
        let wanted = self.made_for.addresses(links);
        let shown_before = self.gid_table();
        // ADDR-018, ADDR-023: a socket is of no use on another link, even if the address is the
        // same.
        let index = link.map(|link| link.index);
        let moved = self.link.index.is_some() && self.link.index != index;
        let mut changes = self.drop_lost_addresses(&wanted, moved);
        changes.extend(self.take_new_addresses(&wanted));

        // A link-local one may be another machine's as well, on another link.
        let is_unique =
            |addr: &IpAddr| !matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
        let local = links.all().flat_map(|link| link.addrs.iter().map(|&(addr, _)| addr));
        self.local_addrs = local.filter(is_unique).collect();
        self.nic.set_local_addrs(self.local_addrs.clone());
        if let Some(link) = link {
            self.follow_link_mtu(links, link);
        }
        let mut events = Vec::new();
        if !changes.is_empty() || self.gid_table() != shown_before {
            self.counters.gid_changes += 1;
            events.push(PortEvent::GidChange);
            if self.nic.is_blocked() && !self.has_failed {
                // It may have waited for an address that is gone.
                self.has_failed = self.nic.send(now).is_err();
            }
        }
        events.extend(self.follow_link_state(link));
        (changes, events)
    }

    /// Lets go of the addresses that are not to be had any more: of all, if the device has `moved`
    /// to another link.
    fn drop_lost_addresses(&mut self, wanted: &[Wanted], moved: bool) -> Vec<AddressChange> {
        let is_wanted = |addr: &IpAddr| wanted.iter().any(|wanted| wanted.addr == *addr);
        let stays = |addr: &IpAddr| {
            !moved && wanted.iter().any(|wanted| wanted.addr == *addr && wanted.usable)
        };
        let gids =
            (0u8..).zip(self.nic.device().gids()).filter_map(|(at, gid)| Some((at, (*gid)?)));
        let gone: Vec<(u8, IpAddr)> = gids.filter(|(_, addr)| !stays(addr)).collect();
        for &(at, addr) in &gone {
            self.nic.remove_address(addr);
            if let Some(group) = self.groups.remove(&addr) {
                self.counters.drop_ended_slot += group.dropped();
            }
            // ADDR-011: its place stays empty, and the others keep theirs.
            self.nic.set_gid(at, None);
            if is_wanted(&addr) && !moved {
                self.awaited.insert(at, addr);
            }
        }
        self.refused.retain(is_wanted);
        self.awaited.retain(|_, addr| is_wanted(addr));
        gone.into_iter().map(|(_, addr)| AddressChange::Removed(addr)).collect()
    }

    /// Takes the addresses that it has not, as far as they can be had.
    fn take_new_addresses(&mut self, wanted: &[Wanted]) -> Vec<AddressChange> {
        let mut changes = Vec::new();
        for &wanted in wanted {
            let has_it = self.nic.device().gids().contains(&Some(wanted.addr));
            if !has_it && self.take_address(wanted) {
                changes.push(AddressChange::Added(wanted.addr));
            }
        }
        changes
    }

    fn follow_link_mtu(&mut self, links: &Links, link: &Link) {
        // ADDR-013, ADDR-016
        let gids = || self.nic.device().gids().iter().flatten().copied();
        self.mtu = path_mtu(links.mtu_from(link, gids()), gids());
        self.nic.set_active_mtu(self.mtu);
        self.cm.set_active_mtu(self.mtu);
    }

    /// Returns what programs are to be told of it.
    fn follow_link_state(&mut self, link: Option<&Link>) -> Option<PortEvent> {
        let has_what_it_is_for = match &self.made_for {
            AddressSource::Address(addr) => self.nic.device().gids().contains(&Some(*addr)),
            AddressSource::Interface(_) => true,
        };
        // ADDR-017
        let active = link.is_some_and(|link| link.up) && has_what_it_is_for;
        let index = link.map(|link| link.index);
        let interface = link.map(|link| link.name.clone()).or(self.link.interface.take());
        // The kernel answers under a lock that other users can hold: not each time a program asks.
        let speed_mbps = interface.as_deref().and_then(speed_mbps_of);
        let state = LinkState { active, interface, index, speed_mbps };
        let before = std::mem::replace(&mut self.link, state);
        // ADDR-015: only a change is told.
        match (before.active, active) {
            (true, false) => {
                self.counters.port_errors += 1;
                Some(PortEvent::Error)
            }
            (false, true) => Some(PortEvent::Active),
            _ => None,
        }
    }

    /// Takes an address to its place in the GID table: the one that awaits it, or the first hole.
    /// Returns whether it is there now.
    fn take_address(&mut self, wanted: Wanted) -> bool {
        let addr = wanted.addr;
        let awaiting = self.awaited.iter().find(|(_, awaited)| **awaited == addr);
        // ADDR-010, ADDR-014
        let hole = || self.gid_table().iter().position(Option::is_none).map(|hole| hole as u8);
        let Some(place) = awaiting.map(|(at, _)| *at).or_else(hole) else {
            // ADDR-022
            return self.refuse_address(addr, &"its GID table is full");
        };
        let added = wanted.usable.then(|| self.open_address(addr));
        match added {
            Some(Ok(())) => {
                self.awaited.remove(&place);
                // ADDR-011
                self.nic.set_gid(place, Some(addr));
                self.refused.remove(&addr);
                true
            }
            Some(Err(error)) if !is_passing(&error) => {
                self.awaited.remove(&place);
                self.refuse_address(addr, &error)
            }
            Some(Err(_)) | None => {
                // ADDR-024
                self.awaited.insert(place, addr);
                false
            }
        }
    }

    /// Opens an address for all slots, and puts it into the port of the broker's own.
    fn open_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        let near = self.link.interface.as_deref();
        let (group, own) = open_group(&*self.source, addr, near)?;
        self.nic.adopt(own)?;
        self.groups.insert(addr, group);
        Ok(())
    }

    /// Opens what receives for a multicast group.
    pub(crate) fn join(&self, group: IpAddr) -> io::Result<AddressSockets> {
        self.source.join(group, self.link.interface.as_deref().unwrap_or_default())
    }

    /// Whether it has not all addresses that it should have, for a reason that nobody tells the end
    /// of: another program has the port, for example.
    pub(crate) fn lacks_addresses(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The GID table as it is shown: with the addresses that cannot be used yet.
    pub(crate) fn gid_table(&self) -> Vec<Option<IpAddr>> {
        let mut table = self.nic.device().gids().to_vec();
        for (&at, &addr) in &self.awaited {
            if let Some(entry) = table.get_mut(usize::from(at)) {
                *entry = Some(addr);
            }
        }
        table
    }

    /// Counts an address that cannot be served, once.
    fn refuse_address(&mut self, addr: IpAddr, why: &dyn Display) -> bool {
        // ADDR-021: it is tried again at every change, and counted once.
        if self.refused.insert(addr) {
            self.counters.addresses_refused += 1;
            let name = self.name.as_str();
            tracing::warn!(target: DEVICE, device = name, %addr, "{name} cannot serve {addr}: {why}");
        }
        false
    }
}

/// What the connection manager of a device is made with.
fn cm_config(guid: [u8; 8], seed: u64, mtu: PathMtu) -> urxe_cm::Config {
    urxe_cm::Config {
        guid: u64::from_be_bytes(guid),
        seed,
        active_mtu: mtu,
        max_rd_atomic: MAX_RD_ATOMIC,
        timing: Timing::default(),
    }
}

/// The speed of an interface, where the kernel knows it.
fn speed_mbps_of(interface: &str) -> Option<u32> {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    speed.trim().parse().ok()
}

/// An EUI-64 made of an address, marked as given locally: peers and libraries tell devices apart
/// by it.
pub(crate) fn guid_of(addr: IpAddr) -> [u8; 8] {
    match addr {
        IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            [0x02, b'u', b'r', b'x', a, b, c, d]
        }
        IpAddr::V6(addr) => {
            let (high, low) = ((addr.to_bits() >> 64) as u64, addr.to_bits() as u64);
            let mut guid = (high.rotate_left(32) ^ low).to_be_bytes();
            guid[0] = (guid[0] & !1) | 2;
            guid
        }
    }
}

/// The EUI-64 of a hardware address, as the kernel makes it for its devices.
pub(crate) fn guid_of_mac(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::{Arc, Mutex};
    use urxe_engine::limits::GID_TABLE_LEN;
    use urxe_nic::EventPipe;
    use urxe_port::watch::Link;
    use urxe_port::{Caps, PortCounters, RxBatch, Segmentation, SendOutcome};
    use urxe_shm::control::event::{EventRecord, GID_CHANGE, PORT_ACTIVE, PORT_ERR, RECORD_LEN};
    use urxe_types::SlotCount;
    use urxe_wire::batch::{TxBatch, TxLimits};
    use urxe_wire::{SourcePorts, largest_path_mtu};

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
                source_ports: SourcePorts::All,
                sees_ident: true,
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
            self.adopt(AddressSockets { addr, fds: Vec::new() })
        }

        fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
            let addr = sockets.addr;
            assert!(self.0.lock().unwrap().addrs.insert(addr), "{addr} is added twice");
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

    /// An address that is open, for whatever slot.
    struct FakeGroup(IpAddr);

    impl SocketGroup for FakeGroup {
        fn give(&mut self, _: Slot) -> Result<AddressSockets, OpenError> {
            Ok(AddressSockets { addr: self.0, fds: Vec::new() })
        }

        fn take_back(&mut self, _: Slot) {}

        fn dropped(&self) -> u64 {
            0
        }

        fn held(&self) -> (&Link, Vec<BorrowedFd<'_>>) {
            unreachable!("nothing goes on with it")
        }
    }

    impl SocketSource for FakePort {
        fn slots(&self) -> SlotCount {
            SlotCount::MAX
        }

        fn open(&self, addr: IpAddr, _: Option<&str>) -> Result<Box<dyn SocketGroup>, OpenError> {
            match self.0.lock().unwrap().taken.contains(&addr) {
                true => Err(OpenError::PortTaken { addr }),
                false => Ok(Box::new(FakeGroup(addr))),
            }
        }

        fn adopt(
            &self,
            _: IpAddr,
            _: Link,
            _: Vec<OwnedFd>,
        ) -> Result<Box<dyn SocketGroup>, OpenError> {
            unreachable!("nothing was there before")
        }

        fn join(&self, _: IpAddr, _: &str) -> io::Result<AddressSockets> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// A device with one context, and the machine around it.
    struct Machine {
        device: RdmaDevice,
        port: FakePort,
        /// The addresses that other slots were given.
        in_slots: BTreeSet<IpAddr>,
        pipe: OwnedFd,
        link: Option<Link>,
    }

    impl Machine {
        /// A device of eth0, on a machine without any such link yet.
        fn new(source: AddressSource) -> Machine {
            let port = FakePort::default();
            let table = Vec::new();
            let identity = Identity { name: "urxe0".into(), guid: [2; 8], source, table };
            let sockets = Sockets {
                source: Box::new(port.clone()),
                port: Box::new(port.clone()),
                groups: BTreeMap::new(),
            };
            let mut device =
                RdmaDevice::new(identity, sockets, [1, 2], Tuning::default(), Instant::now());
            let (pipe, read_end) = EventPipe::new().unwrap();
            device.nic.create_async_channel(pipe, 1, 5).unwrap();
            rustix::io::ioctl_fionbio(&read_end, true).unwrap();
            Machine { device, port, in_slots: BTreeSet::new(), pipe: read_end, link: None }
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
                let (changes, events) = self.device.sync_with_links(Instant::now(), &links);
                for change in changes {
                    match change {
                        AddressChange::Added(addr) => assert!(self.in_slots.insert(addr)),
                        AddressChange::Removed(addr) => assert!(self.in_slots.remove(&addr)),
                    }
                }
                for event in events {
                    self.device.nic.port_event(event);
                }
            }
            let table: BTreeSet<IpAddr> =
                self.device.nic.device().gids().iter().flatten().copied().collect();
            assert_eq!(self.port.0.lock().unwrap().addrs, table, "the port has what the table has");
            assert_eq!(self.in_slots, table, "and so have the other slots");
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
            let gids = self.device.gid_table();
            let len = gids.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            let text = |gid: &Option<IpAddr>| gid.map_or("-".into(), |gid| gid.to_string());
            gids[..len].iter().map(text).collect()
        }
    }

    fn of_eth0() -> Machine {
        Machine::new(AddressSource::Interface("eth0".into()))
    }

    #[test]
    fn a_new_table_has_the_kernels_order_and_later_ones_take_the_first_hole() {
        let mut machine = of_eth0();
        assert_eq!(machine.follow(), Vec::<u32>::new());
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
        assert_eq!(early.device.nic.device().gids()[0], None, "nothing is sent from it");
        let told = early.becomes(true, 1500, &["10.0.0.1", "fd00::1", "fe80::1"]);
        assert_eq!(told, [GID_CHANGE], "now it can be used");
        assert_eq!(early.table(), table);
        assert_eq!(early.device.nic.device().gids()[0], Some("fe80::1".parse().unwrap()));
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
        assert_eq!(machine.device.link.interface.as_deref(), Some("eth0"), "still what it is for");
        assert_eq!(machine.becomes(true, 1500, &addrs), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.device.counters.port_errors, 2);
    }

    #[test]
    fn a_device_of_one_address_is_down_without_it_whatever_the_link_says() {
        let mut machine = Machine::new(AddressSource::Address([10, 0, 0, 1].into()));
        let both = ["10.0.0.1", "10.0.0.2"];
        assert_eq!(machine.becomes(true, 1500, &both), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.table(), ["10.0.0.1"]);
        assert_eq!(machine.becomes(true, 1500, &both[1..]), [GID_CHANGE, PORT_ERR]);
        assert_eq!(machine.becomes(true, 1500, &both), [GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(machine.table(), ["10.0.0.1"]);
    }

    #[test]
    fn an_address_on_another_link_is_another_socket() {
        let mut machine = Machine::new(AddressSource::Address([10, 0, 0, 1].into()));
        machine.becomes(true, 1500, &["10.0.0.1"]);
        let link = machine.link.as_mut().unwrap();
        (link.name, link.index) = ("eth1".into(), 3);
        assert_eq!(machine.follow(), [GID_CHANGE]);
        assert_eq!(machine.device.link.interface.as_deref(), Some("eth1"));
    }

    #[test]
    fn the_path_mtu_follows_and_ipv6_needs_more_room() {
        let mut machine = of_eth0();
        let mut mtu = |link_mtu, addr| {
            machine.becomes(true, link_mtu, &[addr]);
            machine.device.mtu
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
        assert_eq!(machine.device.counters.addresses_refused, 1);
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
        assert_eq!(machine.device.counters.addresses_refused, 3);
        machine.becomes(true, 1500, &addrs[1..]);
        assert_eq!(machine.table()[0], addrs[GID_TABLE_LEN], "the first of them takes the hole");
    }

    #[test]
    fn devices_of_different_addresses_have_different_guids_of_the_local_kind() {
        let addrs: [IpAddr; 4] = [
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
            "fd00::1".parse().unwrap(),
            "fd00:0:0:1::1".parse().unwrap(),
        ];
        let guids = addrs.map(guid_of);
        for (index, guid) in guids.iter().enumerate() {
            assert_eq!(guid[0] & 3, 2, "{guid:x?}");
            assert!(!guids[..index].contains(guid), "{guid:x?}");
        }
    }
}
