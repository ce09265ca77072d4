//! What the daemon shows of its devices as files, which libibverbs would read as well.

use crate::paths;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A device of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    tree: PathBuf,
    /// The N of its `uverbsN`.
    pub(super) index: u32,
    pub(super) name: String,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chardev {
    pub(super) name: String,
    /// Version of its interface.
    pub(super) abi: u64,
    /// Its number, as the kernel writes it in 64 bits.
    pub(super) number: u64,
}

impl Chardev {
    fn read(directory: &Path, name: String) -> Option<Chardev> {
        let abi = first_line(&directory.join("abi_version"))?.parse().ok()?;
        let dev = first_line(&directory.join("dev"))?;
        let (major, minor) = dev.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let number = u64::from(minor & 0xff)
            | u64::from(major & 0xfff) << 8
            | u64::from(minor & 0xf_ff00) << 12;
        Some(Chardev { name, abi, number })
    }
}

/// The character device of the connection manager.
pub(super) fn rdma_cm() -> Option<Chardev> {
    Chardev::read(&paths::tree()?.join("class/misc/rdma_cm"), "rdma_cm".into())
}

/// All devices, in the order of their numbers. `ENODEV` if no daemon shows any.
pub(super) fn devices() -> Result<Vec<Device>, Errno> {
    let tree = paths::tree().ok_or(Errno::NODEV)?;
    devices_in(tree)
}

fn devices_in(tree: PathBuf) -> Result<Vec<Device>, Errno> {
    let listed = std::fs::read_dir(tree.join("class/infiniband_verbs"));
    let listed = listed.map_err(|_| Errno::NODEV)?;
    let mut devices: Vec<Device> = listed
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let index = entry.file_name().to_str()?.strip_prefix("uverbs")?.parse().ok()?;
            let name = first_line(&entry.path().join("ibdev"))?;
            Some(Device { tree: tree.clone(), index, name })
        })
        .collect();
    devices.sort_by_key(|device| device.index);
    Ok(devices)
}

impl Device {
    /// What a file of it says.
    pub(super) fn read(&self, file: &str) -> Option<String> {
        first_line(&self.tree.join("class/infiniband").join(&self.name).join(file))
    }

    /// A GUID, which is written as four numbers.
    pub(super) fn guid(&self, file: &str) -> Option<u64> {
        u64::from_str_radix(&self.read(file)?.replace(':', ""), 16).ok()
    }

    /// The number that a file begins with, as in `4: ACTIVE`.
    pub(super) fn code(&self, file: &str) -> Option<u8> {
        self.read(file)?.split(':').next()?.parse().ok()
    }

    /// The network interface that it is on, and that one's number.
    pub(super) fn interface(&self) -> Option<(String, Option<u32>)> {
        let name = self.read("ports/1/gid_attrs/ndevs/0").filter(|name| !name.is_empty())?;
        let number = first_line(&Path::new("/sys/class/net").join(&name).join("ifindex"));
        Some((name, number.and_then(|number| number.parse().ok())))
    }

    /// Its character device: the name, what the file `dev` says, and the version of the interface.
    pub(super) fn chardev(&self) -> Option<Chardev> {
        let name = format!("uverbs{}", self.index);
        Chardev::read(&self.tree.join("class/infiniband_verbs").join(&name), name)
    }

    /// What its port has counted, by the names that the kernel's rxe has for it.
    pub(super) fn hw_counters(&self) -> Vec<(String, u64)> {
        let directory = "ports/1/hw_counters";
        let path = self.tree.join("class/infiniband").join(&self.name).join(directory);
        let listed = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        let value = |name: &String| self.read(&format!("{directory}/{name}"))?.parse().ok();
        // How long a value lasts is none.
        let names = names.into_iter().filter(|name| name != "lifespan");
        names.filter_map(|name| value(&name).map(|value| (name, value))).collect()
    }
}

fn first_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn devices_are_what_the_files_say() {
        let tree = std::env::temp_dir().join(format!("urxe-netlink-tree-{}", std::process::id()));
        let put = |file: &str, content: &str| {
            let file = tree.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        };
        assert_eq!(devices_in(tree.clone()), Err(Errno::NODEV));
        put("class/infiniband_verbs/abi_version", "6\n");
        put("class/infiniband_verbs/uverbs10/ibdev", "ten\n");
        put("class/infiniband_verbs/uverbs2/ibdev", "two\n");
        put("class/infiniband/two/node_guid", "0250:56ff:fe01:0203\n");
        put("class/infiniband/two/ports/1/state", "4: ACTIVE\n");
        put("class/infiniband/two/ports/1/gid_attrs/ndevs/0", "lo\n");
        put("class/infiniband/two/ports/1/hw_counters/sent_pkts", "18446744073709551615\n");
        put("class/infiniband/two/ports/1/hw_counters/rcvd_pkts", "5\n");
        put("class/infiniband/two/ports/1/hw_counters/lifespan", "1000\n");
        put("class/infiniband/ten/ports/1/gid_attrs/ndevs/0", "");

        let devices = devices_in(tree.clone()).unwrap();
        let found: Vec<_> = devices.iter().map(|it| (it.index, it.name.as_str())).collect();
        assert_eq!(found, [(2, "two"), (10, "ten")]);
        let two = &devices[0];
        assert_eq!(two.guid("node_guid"), Some(0x0250_56ff_fe01_0203));
        assert_eq!((two.code("ports/1/state"), two.code("ports/1/rate")), (Some(4), None));
        assert_eq!(two.interface().map(|(name, _)| name).as_deref(), Some("lo"));
        let counters = [("rcvd_pkts".to_owned(), 5), ("sent_pkts".to_owned(), u64::MAX)];
        assert_eq!(two.hw_counters(), counters);
        put("class/infiniband_verbs/uverbs10/dev", "231:4661\n");
        put("class/infiniband_verbs/uverbs10/abi_version", "2\n");
        let chardev = Chardev { name: "uverbs10".into(), abi: 2, number: 0x0120_e735 };
        assert_eq!((devices[1].chardev(), devices[0].chardev()), (Some(chardev), None));
        assert_eq!((devices[1].interface(), devices[1].hw_counters()), (None, Vec::new()));
        fs::remove_dir_all(tree).unwrap();
    }
}
