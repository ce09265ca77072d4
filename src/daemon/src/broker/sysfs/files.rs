//! What the files say: the texts of the kernel's `/sys/class/infiniband_verbs`,
//! `/sys/class/infiniband` and `/sys/class/misc/rdma_cm`, as far as stock rdma-core and the
//! programs on top of it read them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use urxe_shm::control::LinkRate;
use urxe_slot::link::LinkState;
use urxe_types::Gid;

/// Names, from the top of the tree, and contents. A name that ends in `/` is that of an empty
/// directory.
pub(super) type Files = BTreeMap<String, String>;

/// The major number of the kernel's verbs devices, and the minor number of `uverbs0`.
const UVERBS_DEV: (u32, usize) = (231, 192);

/// Version of the commands that libibverbs gives to a verbs device.
const VERBS_ABI: u32 = 6;

/// Version of the rings that `librxe` maps.
const RXE_ABI: u32 = 2;

/// The numbers of the connection manager's device: the kernel gives it any minor that is free.
const RDMA_CM_DEV: (u32, u32) = (10, 58);

/// Version of the commands that librdmacm gives to it.
const RDMA_CM_ABI: u32 = 4;

/// Under such a name `librxe` takes a device for its own, whatever the device is called.
const MODALIAS: &str = "rdma_device:Nrxe0";

/// `IB_PORT_CM_SUP`, which every RoCE port has.
const CAP_MASK: &str = "0x00010000";

/// The P_Key table: every RoCE port has the default key only.
const PKEY: &str = "0xffff";

/// A device, as far as its files tell of it.
#[derive(Clone, Copy)]
pub(super) struct DeviceView<'a> {
    /// Its number: that of its `uverbs`.
    pub(super) index: usize,
    pub(super) name: &'a str,
    pub(super) guid: [u8; 8],
    pub(super) link: &'a LinkState,
    /// Its whole GID table, with the holes.
    pub(super) gids: &'a [Option<IpAddr>],
}

/// What there is but once.
pub(super) fn of_class() -> Files {
    let mut files = Files::new();
    put(&mut files, "class/infiniband_verbs/abi_version", VERBS_ABI);
    let (major, minor) = RDMA_CM_DEV;
    put(&mut files, "class/misc/rdma_cm/abi_version", RDMA_CM_ABI);
    put(&mut files, "class/misc/rdma_cm/dev", format!("{major}:{minor}"));
    files.insert("dev/infiniband/rdma_cm".into(), String::new());
    files
}

/// What there is of a device.
pub(super) fn of_device(device: DeviceView<'_>) -> Files {
    let DeviceView { index, name, link, .. } = device;
    let (major, first_minor) = UVERBS_DEV;
    let guid = guid_text(device.guid);
    let mut files = Files::new();
    // Stands for a character device, which only the kernel could make.
    files.insert(format!("dev/infiniband/uverbs{index}"), String::new());

    let uverbs = format!("class/infiniband_verbs/uverbs{index}");
    put(&mut files, format!("{uverbs}/ibdev"), name);
    put(&mut files, format!("{uverbs}/dev"), format!("{major}:{}", first_minor + index));
    put(&mut files, format!("{uverbs}/abi_version"), RXE_ABI);

    let device_path = format!("class/infiniband/{name}");
    put(&mut files, format!("{device_path}/node_type"), "1: CA");
    put(&mut files, format!("{device_path}/node_guid"), &guid);
    put(&mut files, format!("{device_path}/sys_image_guid"), &guid);
    put(&mut files, format!("{device_path}/node_desc"), name);
    put(&mut files, format!("{device_path}/fw_ver"), env!("CARGO_PKG_VERSION"));
    put(&mut files, format!("{device_path}/hca_type"), "urxe");
    put(&mut files, format!("{device_path}/board_id"), "urxe");
    put(&mut files, format!("{device_path}/device/modalias"), MODALIAS);
    if let Some(interface) = &link.interface {
        files.insert(format!("{device_path}/device/net/{interface}/"), String::new());
    }
    of_port(device, &format!("{device_path}/ports/1"), &mut files);
    files
}

fn of_port(device: DeviceView<'_>, port: &str, files: &mut Files) {
    let (state, phys_state) = match device.link.active {
        true => ("4: ACTIVE", "5: LinkUp"),
        false => ("1: DOWN", "3: Disabled"),
    };
    put(files, format!("{port}/state"), state);
    put(files, format!("{port}/phys_state"), phys_state);
    put(files, format!("{port}/link_layer"), "Ethernet");
    put(files, format!("{port}/rate"), LinkRate::of_ethernet(device.link.speed_mbps));
    put(files, format!("{port}/cap_mask"), CAP_MASK);
    // What a subnet manager gives an InfiniBand port.
    put(files, format!("{port}/lid"), "0x0");
    put(files, format!("{port}/sm_lid"), "0x0");
    put(files, format!("{port}/lid_mask_count"), 0);
    put(files, format!("{port}/sm_sl"), 0);
    put(files, format!("{port}/pkeys/0"), PKEY);

    let interface = device.link.interface.as_deref();
    for (index, gid) in device.gids.iter().enumerate() {
        let in_use = gid.and(interface);
        put(files, format!("{port}/gids/{index}"), gid.map_or_else(Gid::default, Gid::from));
        // Holes too: libibverbs gives up the whole table where one index has no type. But a hole
        // is on no interface, and there libibverbs wants either the name of one that it finds, or
        // nothing.
        put(files, format!("{port}/gid_attrs/types/{index}"), "RoCE v2");
        let ndev = in_use.map_or_else(String::new, |name| format!("{name}\n"));
        files.insert(format!("{port}/gid_attrs/ndevs/{index}"), ndev);
    }
}

fn put(files: &mut Files, name: impl Into<String>, content: impl Display) {
    files.insert(name.into(), format!("{content}\n"));
}

/// Four groups of four digits.
fn guid_text(guid: [u8; 8]) -> String {
    let groups: Vec<String> =
        guid.chunks(2).map(|group| format!("{:02x}{:02x}", group[0], group[1])).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(link: &'a LinkState, gids: &'a [Option<IpAddr>]) -> DeviceView<'a> {
        let guid = [0x02, 0x50, 0x56, 0xff, 0xfe, 0, 0, 1];
        DeviceView { index: 2, name: "urxe2", guid, link, gids }
    }

    fn of_eth0(active: bool) -> Files {
        let interface = Some("eth0".into());
        let link = LinkState { active, interface, index: Some(2), speed_mbps: Some(10_000) };
        let gids = [Some("10.0.0.1".parse().unwrap()), None, Some("fe80::1".parse().unwrap())];
        of_device(view(&link, &gids))
    }

    fn check(files: &Files, expected: &[(&str, &str)]) {
        for (name, content) in expected {
            assert_eq!(files.get(*name).map(String::as_str), Some(*content), "{name}");
        }
    }

    #[test]
    fn the_classes_have_the_versions_of_the_kernel_abi() {
        let versions = [
            ("class/infiniband_verbs/abi_version", "6\n"),
            ("class/misc/rdma_cm/abi_version", "4\n"),
            ("class/misc/rdma_cm/dev", "10:58\n"),
            ("dev/infiniband/rdma_cm", ""),
        ];
        check(&of_class(), &versions);
    }

    /// `class/infiniband_verbs/uverbs2` is how libibverbs comes to a device.
    #[test]
    fn a_uverbs_leads_to_its_device() {
        let uverbs = [
            ("class/infiniband_verbs/uverbs2/ibdev", "urxe2\n"),
            ("class/infiniband_verbs/uverbs2/dev", "231:194\n"),
            ("class/infiniband_verbs/uverbs2/abi_version", "2\n"),
            ("dev/infiniband/uverbs2", ""),
        ];
        check(&of_eth0(true), &uverbs);
    }

    #[test]
    fn a_device_says_what_it_is() {
        let device = [
            ("class/infiniband/urxe2/node_type", "1: CA\n"),
            ("class/infiniband/urxe2/node_guid", "0250:56ff:fe00:0001\n"),
            ("class/infiniband/urxe2/sys_image_guid", "0250:56ff:fe00:0001\n"),
            ("class/infiniband/urxe2/node_desc", "urxe2\n"),
            ("class/infiniband/urxe2/fw_ver", concat!(env!("CARGO_PKG_VERSION"), "\n")),
            ("class/infiniband/urxe2/hca_type", "urxe\n"),
            ("class/infiniband/urxe2/board_id", "urxe\n"),
            ("class/infiniband/urxe2/device/modalias", "rdma_device:Nrxe0\n"),
            ("class/infiniband/urxe2/device/net/eth0/", ""),
        ];
        check(&of_eth0(true), &device);
    }

    #[test]
    fn a_port_says_how_it_is() {
        let port = [
            ("class/infiniband/urxe2/ports/1/state", "4: ACTIVE\n"),
            ("class/infiniband/urxe2/ports/1/phys_state", "5: LinkUp\n"),
            ("class/infiniband/urxe2/ports/1/link_layer", "Ethernet\n"),
            ("class/infiniband/urxe2/ports/1/rate", "10 Gb/sec (1X FDR10)\n"),
            ("class/infiniband/urxe2/ports/1/cap_mask", "0x00010000\n"),
            ("class/infiniband/urxe2/ports/1/lid", "0x0\n"),
            ("class/infiniband/urxe2/ports/1/sm_lid", "0x0\n"),
            ("class/infiniband/urxe2/ports/1/lid_mask_count", "0\n"),
            ("class/infiniband/urxe2/ports/1/sm_sl", "0\n"),
            ("class/infiniband/urxe2/ports/1/pkeys/0", "0xffff\n"),
        ];
        check(&of_eth0(true), &port);
        let down = [
            ("class/infiniband/urxe2/ports/1/state", "1: DOWN\n"),
            ("class/infiniband/urxe2/ports/1/phys_state", "3: Disabled\n"),
        ];
        check(&of_eth0(false), &down);
    }

    #[test]
    fn a_gid_has_an_address_a_type_and_an_interface() {
        let gids = [
            ("class/infiniband/urxe2/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("class/infiniband/urxe2/ports/1/gid_attrs/types/0", "RoCE v2\n"),
            ("class/infiniband/urxe2/ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("class/infiniband/urxe2/ports/1/gids/2", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("class/infiniband/urxe2/ports/1/gid_attrs/ndevs/2", "eth0\n"),
        ];
        check(&of_eth0(true), &gids);
    }

    #[test]
    fn a_hole_is_zero_has_a_type_and_no_interface() {
        let hole = [
            ("class/infiniband/urxe2/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("class/infiniband/urxe2/ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("class/infiniband/urxe2/ports/1/gid_attrs/ndevs/1", ""),
        ];
        check(&of_eth0(true), &hole);
    }

    /// libibverbs and others read these into small buffers, in which the text has to leave room
    /// for its end.
    #[test]
    fn texts_fit_the_buffers_of_their_readers() {
        let files = of_eth0(true);
        let sizes = [("/ibdev", 64), ("/dev", 32), ("/node_type", 32), ("/node_guid", 24)];
        let attrs = [("/gids/0", 41), ("/types/0", 11), ("/ndevs/0", 16), ("/pkeys/0", 8)];
        for (end, size) in sizes.into_iter().chain(attrs) {
            let (name, content) = files.iter().find(|(name, _)| name.ends_with(end)).unwrap();
            assert!(content.len() <= size, "{name}: {content:?}");
        }
    }
}
