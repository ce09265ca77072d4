//! A device as it is written down for a process that takes the place of this one, and as it goes on
//! there.

use super::{Identity, RdmaDevice, Sockets};
use crate::broker::addresses::AddressSource;
use crate::broker::slots::DevicePlan;
use crate::broker::sockets::{PlannedSockets, SocketGroup};
use crate::slot_plan::SlotPlan;
use crate::upgrade::{CountersByName, Descriptors, Fd, ImageError, ReceivedDescriptors, Times};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;
use urxe_cm::Manager;
use urxe_engine::limits::GID_TABLE_LEN;
use urxe_engine::{Counter, Tuning};
use urxe_nic::HostCounters;
use urxe_port::watch::Link;
use urxe_port::{OpenError, PortCounters};
use urxe_slot::DaemonCounters;
use urxe_slot::link::{Counts, LinkState};
use urxe_slot::port_plan::{PortPlan, WithinProcess};
use urxe_types::{PathMtu, Slot};

/// A device as it is written down.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedDevice {
    pub(crate) name: String,
    guid: [u8; 8],
    made_for: AddressSource,
    pub(crate) link: LinkState,
    pub(crate) mtu: PathMtu,
    pub(crate) gids: Vec<Option<IpAddr>>,
    awaited: BTreeMap<u8, IpAddr>,
    refused: BTreeSet<IpAddr>,
    local_addrs: BTreeSet<IpAddr>,
    pub(crate) port: PortPlan,
    capture: Option<Fd>,
    groups: Vec<SavedGroup>,
    cm: urxe_cm::Saved,
    counters: CountersByName,
    /// Of its own data path.
    counts: CountsByName,
    of_ended_slots: Option<CountsByName>,
}

/// What a data path, and whoever has it, has counted.
type CountsByName = [CountersByName; 4];

/// An address that is open, for all slots.
#[derive(Serialize, Deserialize)]
struct SavedGroup {
    addr: IpAddr,
    interface: Link,
    fds: Vec<Fd>,
}

/// The names of what is counted of a data path, in the order in which that is told.
fn names() -> [Vec<(&'static str, u64, &'static str)>; 4] {
    let engine = Counter::ALL.iter().map(|counter| (counter.name(), 0, counter.meaning()));
    [
        engine.collect(),
        PortCounters::default().iter().collect(),
        HostCounters::default().iter().collect(),
        DaemonCounters::default().iter().collect(),
    ]
}

fn by_name(Counts { engine, port, nic, daemon, .. }: Counts) -> CountsByName {
    let mut values = [engine, port, nic, daemon].into_iter();
    names().map(|names| {
        let named = names.into_iter().zip(values.next().unwrap_or_default());
        CountersByName::of(named.map(|((name, _, meaning), value)| (name, value, meaning)))
    })
}

/// What was counted under these names; of what there is or was at that time, nothing.
fn from_names(counts: CountsByName, like: &Counts) -> Counts {
    let mut counts = counts.into_iter();
    let [engine, port, nic, daemon] =
        names().map(|names| counts.next().unwrap_or_default().values(names.into_iter()));
    let zeros = |values: &[u64]| vec![0; values.len()];
    let (objects, paths) = (zeros(&like.objects), zeros(&like.paths));
    Counts { engine, port, nic, daemon, objects, paths }
}

impl RdmaDevice {
    /// Writes it down.
    pub(crate) fn save<'a>(
        &'a self,
        times: Times,
        plan: &'a DevicePlan,
        fds: &mut Descriptors<'a>,
    ) -> SavedDevice {
        let groups = self.groups.iter().map(|(&addr, group)| {
            let (interface, held) = group.held();
            let interface = interface.clone();
            SavedGroup { addr, interface, fds: held.into_iter().map(|fd| fds.add(fd)).collect() }
        });
        SavedDevice {
            groups: groups.collect(),
            name: self.name.clone(),
            guid: self.guid,
            made_for: self.made_for.clone(),
            link: self.link.clone(),
            mtu: self.mtu,
            gids: self.nic.device().gids().to_vec(),
            awaited: self.awaited.clone(),
            refused: self.refused.clone(),
            local_addrs: self.local_addrs.clone(),
            port: plan.port.clone(),
            capture: plan.capture.as_ref().map(|file| fds.add(file.as_fd())),
            cm: self.cm.save(times.0),
            counters: CountersByName::of(self.counters().iter()),
            counts: by_name(self.counts(&DaemonCounters::default())),
            of_ended_slots: self.of_ended_slots.clone().map(by_name),
        }
    }
}

impl SavedDevice {
    /// Has the device go on, with seeds of its own. Returns it, and what slots begin with.
    pub(crate) fn restore(
        self,
        (times, now): (Times, Instant),
        slots: SlotPlan,
        seeds: [u64; 2],
        tuning: Tuning,
        fds: &mut ReceivedDescriptors,
    ) -> Result<(RdmaDevice, DevicePlan), ImageError> {
        let capture = self.capture.map(|fd| fds.take(fd)).transpose()?.map(File::from);
        let plan = DevicePlan { port: self.port, capture };
        let own = plan.capture.as_ref().map(File::try_clone).transpose();
        let own = own.map_err(ImageError::Unreadable)?;
        let mut sockets = Sockets {
            port: plan.port.open(Slot::ALONE.id(), own, WithinProcess::default())?,
            source: Box::new(PlannedSockets { plan: plan.port.clone(), slots }),
            groups: BTreeMap::new(),
        };
        for SavedGroup { addr, interface, fds: held } in self.groups {
            let held = held.into_iter().map(|fd| fds.take(fd)).collect::<Result<_, _>>()?;
            let group = sockets.source.adopt(addr, interface, held)?;
            sockets.take(addr, group)?;
        }
        if self.gids.len() > GID_TABLE_LEN {
            let (what, expected) = ("GIDs of a device", "as many as its table has");
            return Err(ImageError::Number { what, number: self.gids.len() as u64, expected });
        }
        let identity = Identity {
            name: self.name.clone(),
            guid: self.guid,
            source: self.made_for,
            table: Vec::new(),
        };
        let mut device = RdmaDevice::new(identity, sockets, seeds, tuning, now);
        for (at, gid) in (0u8..).zip(self.gids) {
            // One whose address has gone in this moment is taken out by the first look at links.
            device.nic.set_gid(at, gid);
        }
        device.link = self.link;
        device.mtu = self.mtu;
        device.nic.set_active_mtu(self.mtu);
        device.awaited = self.awaited;
        device.refused = self.refused;
        device.nic.set_local_addrs(self.local_addrs.clone());
        device.local_addrs = self.local_addrs;
        let config = super::cm_config(self.guid, seeds[1], self.mtu);
        let restored = Manager::restore(config, times.0, self.cm);
        device.cm =
            restored.map_err(|source| ImageError::Connections { device: self.name, source })?;
        self.counters.each(|name, value| device.counters.go_on_from(name, value));
        let none = device.counts(&DaemonCounters::default());
        device.before = Some(from_names(self.counts, &none));
        device.of_ended_slots = self.of_ended_slots.map(|counts| from_names(counts, &none));
        Ok((device, plan))
    }
}

impl Sockets {
    /// Takes an address that is open, and the sockets of the broker's own slot.
    fn take(&mut self, addr: IpAddr, mut group: Box<dyn SocketGroup>) -> Result<(), OpenError> {
        let own = group.give(super::own_slot(&*self.source))?;
        self.port.adopt(own)?;
        self.groups.insert(addr, group);
        Ok(())
    }
}
