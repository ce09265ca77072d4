//! Opening what a device begins with: its port, the sockets of its addresses, its capture.

use crate::broker::addresses::{AddressSource, Wanted, first_of_table, is_passing, path_mtu};
use crate::broker::device::{Identity, Sockets, guid_of, guid_of_mac};
use crate::broker::sockets::PlannedSockets;
use crate::config::{Config, Loopback};
use crate::daemon::{DeviceSummary, StartError};
use crate::slot_plan::SlotPlan;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use urxe_port::Caps;
use urxe_port::watch::Links;
use urxe_slot::port_plan::{PortPlan, WithinProcess};
use urxe_types::Slot;

/// What makes the numbers of a device unpredictable, as far as they are the broker's. Those of
/// connections are told to everybody, so that they have a seed of their own.
pub(crate) struct Seeds {
    pub(crate) of_slot: u64,
    pub(crate) of_cm: u64,
}

impl Seeds {
    pub(crate) fn new() -> Result<Seeds, StartError> {
        let seeds =
            getrandom::u64().and_then(|of_slot| Ok(Seeds { of_slot, of_cm: getrandom::u64()? }));
        let step = "getting random numbers";
        seeds.map_err(|error| StartError::System { step, source: error.into() })
    }
}

/// The sockets of a device, with what is to be said about it.
pub(crate) struct Opened {
    pub(crate) sockets: Sockets,
    pub(crate) plan: PortPlan,
    pub(crate) identity: Identity,
    pub(crate) summary: DeviceSummary,
}

/// Opens the port of a device, and its sockets. [`Opened::told_apart_from`] and
/// [`Opened::begin_capture`] follow.
pub(crate) fn open_port(
    config: &Config,
    slots: SlotPlan,
    name: String,
    source: AddressSource,
    links: &Links,
) -> Result<Opened, StartError> {
    let near = source.link(links).map(|link| link.name.clone());
    let plan = PortPlan {
        kind: config.port_backend.into(),
        interface: match &source {
            AddressSource::Interface(name) => name.clone(),
            AddressSource::Address(_) => near.clone().unwrap_or_else(|| LOOPBACK.into()),
        },
        source_ports: config.source_ports,
        loopback: config.loopback == Loopback::Memory,
        fault: config.fault.clone(),
    };
    if let AddressSource::Interface(name) = &source {
        urxe_port::check_interface(name)?;
    }
    let mut sockets = Sockets {
        port: plan.open_bare(Slot::ALONE.id(), WithinProcess::default())?,
        source: Box::new(PlannedSockets { plan: plan.clone(), slots }),
        groups: BTreeMap::new(),
    };
    let mut table = Vec::new();
    let wanted = match &source {
        // One that is on no link is opened all the same: the system says why it cannot be.
        AddressSource::Address(addr) => vec![Wanted { addr: *addr, usable: true }],
        AddressSource::Interface(_) => source.addresses(links),
    };
    for wanted in first_of_table(wanted) {
        let added = match wanted.usable {
            true => sockets.add(wanted.addr, near.as_deref()),
            false => Ok(()),
        };
        match added {
            // An interface need not have any yet.
            Err(error) if matches!(source, AddressSource::Interface(_)) && is_passing(&error) => {}
            result => result?,
        }
        table.push(wanted.addr);
    }
    let Caps { addrs, backend, interface, link_mtu, .. } = sockets.port.caps();
    let link_mtu =
        source.link(links).map_or(link_mtu, |link| links.mtu_from(link, addrs.iter().copied()));
    let mtu = path_mtu(link_mtu, addrs.iter().copied());
    let guid = guid(&source, links, addrs.first().copied());
    let summary = DeviceSummary { name: name.clone(), addrs, mtu, backend, interface };
    let identity = Identity { name, guid, source, table };
    Ok(Opened { sockets, plan, identity, summary })
}

impl Opened {
    /// The same with a GUID that none of these has.
    pub(crate) fn told_apart_from(mut self, others: &[Opened]) -> Opened {
        let taken = |guid: &[u8; 8]| others.iter().any(|other| other.identity.guid == *guid);
        self.identity.guid = unique(self.identity.guid, &self.identity.source, taken);
        self
    }

    /// Makes the device's capture file, if there is to be one, in the place of one that is there:
    /// only when there is all else that the daemon needs, since that may be the capture of another
    /// one.
    pub(crate) fn begin_capture(
        self,
        config: &Config,
    ) -> Result<(Opened, Option<File>), StartError> {
        let capture = match &config.capture {
            Some(path) => {
                let devices = config.addrs.len() + config.interfaces.len();
                let path = capture_path(path, &self.identity.name, devices);
                let file = create(&path).map_err(|source| StartError::Capture { path, source })?;
                Some(file)
            }
            None => None,
        };
        let own = capture.as_ref().map(File::try_clone).transpose();
        let own =
            own.map_err(|source| StartError::System { step: "taking the capture file", source })?;
        let Sockets { port, source, groups } = self.sockets;
        let sockets = Sockets { port: self.plan.wrapped(port, own), source, groups };
        Ok((Opened { sockets, ..self }, capture))
    }
}

/// The interface that every machine has.
const LOOPBACK: &str = "lo";

/// A new file, to which several can write, each at its end.
fn create(path: &Path) -> io::Result<File> {
    File::create(path)?;
    OpenOptions::new().append(true).open(path)
}

/// What tells a device apart: its interface's hardware address where it stands for all of it, else
/// its address.
fn guid(source: &AddressSource, links: &Links, first: Option<IpAddr>) -> [u8; 8] {
    let mac = match source {
        AddressSource::Address(_) => None,
        AddressSource::Interface(_) => source.link(links).and_then(|link| link.mac),
    };
    match mac.filter(|mac| *mac != [0; 6]) {
        Some(mac) => guid_of_mac(mac),
        None => guid_of(first.unwrap_or(Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// What tells a device apart from those that have a GUID already. Interfaces can have a hardware
/// address in common, as a VLAN and what it is on do, and librdmacm tells devices apart by GUID
/// alone: then it is one that is given locally, and comes of the name too.
fn unique(guid: [u8; 8], source: &AddressSource, taken: impl Fn(&[u8; 8]) -> bool) -> [u8; 8] {
    let name = match source {
        AddressSource::Address(addr) => addr.to_string(),
        AddressSource::Interface(name) => name.clone(),
    };
    // FNV-1a: the same at each start, whatever the version.
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let mut unique = guid;
    let mut hash = guid.into_iter().chain(name.bytes()).fold(OFFSET, mix);
    while taken(&unique) {
        unique = hash.to_be_bytes();
        unique[0] = (unique[0] & !1) | 2;
        hash = mix(hash, 0);
    }
    unique
}

/// The capture file of one of several devices: its name goes before the extension.
fn capture_path(path: &Path, device: &str, devices: usize) -> PathBuf {
    if devices == 1 {
        return path.to_path_buf();
    }
    let extension = path
        .extension()
        .map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    path.with_extension(format!("{device}{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_devices_have_a_capture_file_each() {
        let path = Path::new("/tmp/bad.day/roce.pcapng");
        assert_eq!(capture_path(path, "urxe0", 1), path);
        assert_eq!(capture_path(path, "urxe1", 2), Path::new("/tmp/bad.day/roce.urxe1.pcapng"));
        assert_eq!(capture_path(Path::new("roce"), "urxe1", 2), Path::new("roce.urxe1"));
    }
}
