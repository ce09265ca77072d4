//! What is answered to which question.

use super::daemon::Daemon;
use super::message::{Answer, Attr, Question, RXE, attr, byte, command, long, nested, text, word};
use super::resources::{self, Kind, Source};
use super::tree::{self, Chardev, Device};
use crate::reasons;
use crate::refused::Refused;
use crate::uverbs::device::capability;
use rustix::io::Errno;
use urxe_shm::control::{Resource, ResourceKind};

/// Devices have one port.
const PORT: u32 = 1;

/// The answer to a question. As the kernel, `EINVAL` if it lacks what it needs or names another
/// port than 1, `ENODEV` if it names no device of ours, `ENOENT` if no object has its number;
/// `EOPNOTSUPP` if it is for nothing that is answered here.
pub(super) fn answer(question: &Question) -> Result<Answer, Errno> {
    let command = question.command()?;
    let told = |refused: Refused| reasons::refused("NETLINK_RDMA", &refused);
    match command {
        command::SYS_GET => Ok(Answer::One(vec![
            byte(attr::SYS_NETNS_MODE, SHARED),
            byte(attr::SYS_COPY_ON_FORK, COPIED),
        ])),
        command::DEV_GET if question.is_dump() => {
            Ok(Answer::List(tree::devices()?.iter().map(of_device).collect()))
        }
        command::DEV_GET => Ok(Answer::One(of_device(&named(question)?))),
        command::PORT_GET if question.is_dump() => {
            Ok(Answer::List(vec![of_port(&named(question)?)]))
        }
        command::PORT_GET => Ok(Answer::One(of_port(&with_port(question)?))),
        command::GET_CHARDEV => Ok(Answer::One(chardev(question)?)),
        // Counters that are bound to QPs: there are none.
        command::STAT_GET if question.word(attr::STAT_RES).is_some() => Err(Errno::OPNOTSUPP),
        command::STAT_GET => Ok(Answer::One(of_counters(&with_port(question)?))),
        command::RES_GET if question.is_dump() => {
            let lists = tree::devices()?.into_iter().map(|device| summary(&device));
            Ok(Answer::List(lists.collect::<Result<_, _>>().map_err(told)?))
        }
        command::RES_GET => Ok(Answer::One(summary(&named(question)?).map_err(told)?)),
        command => {
            let kind = Kind::of(command).ok_or(Errno::OPNOTSUPP)?;
            let device = named(question)?;
            let objects = objects(&device, kind).map_err(told)?;
            if question.is_dump() {
                let entries = objects.iter().map(|(_, attrs)| nested(kind.entry, attrs));
                let entries = entries.collect();
                return Ok(Answer::Table { front: front(&device), kind: kind.table, entries });
            }
            let wanted = question.word(kind.number).ok_or(Errno::INVAL)?;
            let found = objects.into_iter().find(|(number, _)| *number == wanted);
            let (_, attrs) = found.ok_or(Errno::NOENT)?;
            Ok(Answer::One(front(&device).into_iter().chain(attrs).collect()))
        }
    }
}

/// Devices are those of all network namespaces: `ib_devices_shared_netns`.
const SHARED: u8 = 1;

/// A child of `fork` has a copy of registered memory, and its parent's stays the one that is
/// registered: what is reached by system calls is reached by its address, and what was remapped is
/// copied ([`remap`](urxe_shm::memory::remap)). Without this, libibverbs takes the pages of
/// registered memory, and all that lies beside it in them, from children of programs that call
/// `ibv_fork_init`.
const COPIED: u8 = 1;

/// The device that a question names.
fn named(question: &Question) -> Result<Device, Errno> {
    let wanted = question.word(attr::DEV_INDEX).ok_or(Errno::INVAL)?;
    tree::devices()?.into_iter().find(|device| device.index == wanted).ok_or(Errno::NODEV)
}

/// The same of a question that names a port too.
fn with_port(question: &Question) -> Result<Device, Errno> {
    match question.word(attr::PORT_INDEX) {
        Some(PORT) => named(question),
        // As the kernel: it looks for the port, not for the device.
        _ => Err(Errno::INVAL),
    }
}

/// What every message about a device begins with.
fn front(device: &Device) -> Vec<Attr> {
    vec![word(attr::DEV_INDEX, device.index), text(attr::DEV_NAME, &device.name)]
}

fn of_device(device: &Device) -> Vec<Attr> {
    let mut attrs = front(device);
    // For a device as a whole: how many ports it has.
    attrs.push(word(attr::PORT_INDEX, PORT));
    attrs.push(long(attr::CAP_FLAGS, capability::ALL));
    attrs.extend(device.read("fw_ver").map(|version| text(attr::FW_VERSION, &version)));
    attrs.extend(device.guid("node_guid").map(|guid| long(attr::NODE_GUID, guid)));
    attrs.extend(device.guid("sys_image_guid").map(|guid| long(attr::SYS_IMAGE_GUID, guid)));
    attrs.extend(device.code("node_type").map(|code| byte(attr::DEV_NODE_TYPE, code)));
    attrs.push(text(attr::DEV_PROTOCOL, "roce"));
    attrs
}

/// A character device, by which a library opens what it has found. `ENOENT` if there is none of its
/// type.
fn chardev(question: &Question) -> Result<Vec<Attr>, Errno> {
    let of = |chardev: Chardev| {
        vec![
            text(attr::CHARDEV_NAME, &chardev.name),
            long(attr::CHARDEV_ABI, chardev.abi),
            long(attr::CHARDEV, chardev.number),
        ]
    };
    match question.text(attr::CHARDEV_TYPE).ok_or(Errno::INVAL)? {
        "uverbs" => {
            let device = named(question)?;
            let mut attrs = front(&device);
            attrs.push(word(attr::UVERBS_DRIVER_ID, RXE));
            attrs.extend(of(device.chardev().ok_or(Errno::NOENT)?));
            Ok(attrs)
        }
        "rdma_cm" => tree::rdma_cm().map(of).ok_or(Errno::NOENT),
        _ => Err(Errno::NOENT),
    }
}

fn of_port(device: &Device) -> Vec<Attr> {
    let mut attrs = front(device);
    attrs.push(word(attr::PORT_INDEX, PORT));
    let flags = device.read("ports/1/cap_mask");
    let flags =
        flags.and_then(|flags| u64::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
    attrs.extend(flags.map(|flags| long(attr::CAP_FLAGS, flags)));
    attrs.extend(device.code("ports/1/state").map(|state| byte(attr::PORT_STATE, state)));
    let physical = device.code("ports/1/phys_state");
    attrs.extend(physical.map(|state| byte(attr::PORT_PHYS_STATE, state)));
    if let Some((name, number)) = device.interface() {
        attrs.extend(number.map(|number| word(attr::NDEV_INDEX, number)));
        attrs.push(text(attr::NDEV_NAME, &name));
    }
    attrs
}

fn of_counters(device: &Device) -> Vec<Attr> {
    let counters = device.hw_counters();
    let entries: Vec<Attr> = counters
        .iter()
        .map(|(name, value)| {
            let name = text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
            let value = long(attr::STAT_HWCOUNTER_ENTRY_VALUE, *value);
            nested(attr::STAT_HWCOUNTER_ENTRY, &[name, value])
        })
        .collect();
    let mut attrs = front(device);
    attrs.push(word(attr::PORT_INDEX, PORT));
    attrs.push(nested(attr::STAT_HWCOUNTERS, &entries));
    attrs
}

/// How many objects of each kind a device has, of those that this user may see.
fn summary(device: &Device) -> Result<Vec<Attr>, Refused> {
    let mut daemon = Daemon::connect()?;
    let mut list = |kind| daemon.resources(&device.name, kind);
    let (qps, cqs, mrs) =
        (list(ResourceKind::Qp)?, list(ResourceKind::Cq)?, list(ResourceKind::Mr)?);
    let (srqs, mws, ids) =
        (list(ResourceKind::Srq)?, list(ResourceKind::Mw)?, list(ResourceKind::CmId)?);
    let domains = resources::domains([&qps, &srqs, &mrs, &mws].into_iter().flatten());
    let counts = [
        ("pd", domains.len()),
        ("cq", cqs.len()),
        ("qp", qps.len()),
        ("cm_id", ids.len()),
        ("mr", mrs.len()),
        ("mw", mws.len()),
        ("srq", srqs.len()),
    ];
    let entries = counts.map(|(name, count)| {
        let name = text(attr::RES_SUMMARY_ENTRY_NAME, name);
        let count = long(attr::RES_SUMMARY_ENTRY_CURR, count as u64);
        nested(attr::RES_SUMMARY_ENTRY, &[name, count])
    });
    let mut attrs = front(device);
    attrs.push(nested(attr::RES_SUMMARY, &entries));
    Ok(attrs)
}

/// The numbers and attributes of all objects of a kind that this user may see.
fn objects(device: &Device, kind: Kind) -> Result<Vec<(u32, Vec<Attr>)>, Refused> {
    let mut daemon = Daemon::connect()?;
    let with_number = |it: &Resource| (it.number, resources::attrs(it));
    match kind.of {
        Source::Listed(listed) => {
            Ok(daemon.resources(&device.name, listed)?.iter().map(with_number).collect())
        }
        Source::Domains => {
            let mut all = Vec::new();
            for listed in resources::IN_DOMAINS {
                all.extend(daemon.resources(&device.name, listed)?);
            }
            let domains = resources::domains(&all);
            Ok(domains.iter().map(|domain| (domain.number, domain.attrs())).collect())
        }
    }
}
