//! The devices as files, and when a daemon ends by itself.

use crate::harness::{Client, Kind, connected, eventually, fresh_path, start, start_with};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use urxe_daemon::{Handle, SocketMode};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Reply, Request};
use urxe_shm::sysfs_directory;
use urxe_types::SendOp;

fn tree(daemon: &Handle) -> PathBuf {
    sysfs_directory(daemon.socket())
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn permissions(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn each_uverbs_is_the_device_at_its_place_in_the_list() {
    let daemon = start(3);
    let mut client = Client::connect(daemon.socket());
    let Ok(Reply::Devices(devices)) = client.call(Request::ListDevices) else { panic!() };
    assert_eq!(devices.len(), 3);
    let verbs = tree(&daemon).join("class/infiniband_verbs");
    assert_eq!(read(verbs.join("abi_version")), "6\n");
    assert_eq!(std::fs::read_dir(&verbs).unwrap().count(), 1 + devices.len());
    for (index, device) in devices.iter().enumerate() {
        let uverbs = verbs.join(format!("uverbs{index}"));
        assert_eq!(read(uverbs.join("ibdev")), format!("{}\n", device.name));
        assert_eq!(read(uverbs.join("dev")), format!("231:{}\n", 192 + index));
        let placeholder = tree(&daemon).join(format!("dev/infiniband/uverbs{index}"));
        assert!(std::fs::metadata(placeholder).unwrap().is_file());
        let of_device = tree(&daemon).join("class/infiniband").join(&device.name);
        let guid: String = read(of_device.join("node_guid")).replace([':', '\n'], "");
        assert_eq!(u64::from_str_radix(&guid, 16).unwrap().to_be_bytes(), device.node_guid);
    }
}

#[test]
fn a_device_has_the_name_that_it_was_given_everywhere() {
    let daemon = start_with(3, |config| config.names = ["mlx5_0", "rxe0"].map(Into::into).into());
    let mut client = Client::connect(daemon.socket());
    let Ok(Reply::Devices(devices)) = client.call(Request::ListDevices) else { panic!() };
    let class = tree(&daemon).join("class");
    for (index, name) in ["mlx5_0", "rxe0", "urxe2"].into_iter().enumerate() {
        assert_eq!(daemon.devices()[index].name, name);
        assert_eq!(devices[index].name, name);
        client.open(name);
        let uverbs = class.join(format!("infiniband_verbs/uverbs{index}"));
        assert_eq!(read(uverbs.join("ibdev")), format!("{name}\n"));
        let device = class.join("infiniband").join(name);
        assert_eq!(read(device.join("node_desc")), format!("{name}\n"));
        // By this librxe knows what is its own, and other providers what is not theirs.
        assert_eq!(read(device.join("device/modalias")), "rdma_device:Nrxe0\n");
    }
    let error = client.call(Request::OpenDevice { name: "urxe0".into() }).unwrap_err();
    assert!(error.message.contains("there are mlx5_0, rxe0, urxe2"), "{error}");
}

/// libibverbs gives up the whole GID table of all devices where one index has no file.
#[test]
fn every_index_of_the_gid_table_has_all_its_files() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let query = Request::QueryPort { context, port: 1 };
    let Ok(Reply::Port(port)) = client.call(query) else { panic!() };
    let files = tree(&daemon).join("class/infiniband/urxe0/ports/1");
    for index in 0..port.gid_tbl_len {
        let query = Request::QueryGid { context, port: 1, index };
        let Ok(Reply::Gid(gid)) = client.call(query) else { panic!() };
        assert_eq!(read(files.join(format!("gids/{index}"))), format!("{gid}\n"));
        assert_eq!(read(files.join(format!("gid_attrs/types/{index}"))), "RoCE v2\n");
        let interface = read(files.join(format!("gid_attrs/ndevs/{index}")));
        assert_eq!(interface, if index == 0 { "lo\n" } else { "" });
    }
    for directory in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        let count = std::fs::read_dir(files.join(directory)).unwrap().count();
        assert_eq!(count, port.gid_tbl_len as usize, "{directory}");
    }
    for index in 0..port.pkey_tbl_len {
        assert_eq!(read(files.join(format!("pkeys/{index}"))), "0xffff\n");
    }
}

#[test]
fn the_files_are_readable_by_those_allowed_to_connect_while_the_daemon_lives() {
    for (socket, directory) in [(0o600, 0o700), (0o660, 0o750), (0o666, 0o755)] {
        let daemon = start_with(1, |config| config.mode = SocketMode(socket));
        let tree = tree(&daemon);
        assert_eq!(permissions(&tree), directory);
        assert_eq!(permissions(&tree.join("class/infiniband")), 0o755);
        drop(daemon);
        assert!(!tree.exists());
    }
}

#[test]
fn without_files_there_is_still_a_daemon_and_it_says_why() {
    let socket = fresh_path();
    let in_the_way = sysfs_directory(&socket);
    std::fs::write(&in_the_way, "precious").unwrap();
    let daemon = start_with(1, |config| config.socket = socket.clone());
    let reason = daemon.why_no_sysfs().unwrap();
    assert!(reason.contains(in_the_way.to_str().unwrap()), "{reason}");
    Client::connect(daemon.socket()).open("urxe0");
    drop(daemon);
    assert_eq!(std::fs::read_to_string(&in_the_way).unwrap(), "precious");
    std::fs::remove_file(in_the_way).unwrap();
    assert_eq!(start(1).why_no_sysfs(), None);
}

/// libibverbs takes a device whose directory has changed for another one.
#[test]
fn two_devices_are_never_taken_for_each_other() {
    let daemon = start(1);
    let device = tree(&daemon).join("class/infiniband/urxe0");
    let birthday = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    let first = birthday(&device);
    let socket = daemon.socket().to_path_buf();
    drop(daemon);
    let daemon = start_with(1, |config| config.socket = socket.clone());
    assert_ne!(birthday(&tree(&daemon).join("class/infiniband/urxe0")), first);
}

#[test]
fn counters_of_a_port_show_what_was_just_sent() {
    let daemon = start(2);
    let ports = |device: &str| tree(&daemon).join("class/infiniband").join(device).join("ports/1");
    let value =
        |device: &str, file: &str| read(ports(device).join(file)).trim().parse::<u64>().unwrap();
    for file in ["counters/port_xmit_data", "hw_counters/sent_pkts", "hw_counters/link_downed"] {
        assert_eq!(value("urxe0", file), 0, "{file}");
    }
    assert_eq!(read(ports("urxe0").join("hw_counters/lifespan")), "1000\n");
    let (mut a, b) = connected(&daemon, &daemon, Kind::Shared, 4096);
    let write = SendOp::Write { remote_addr: b.mr.addr, rkey: b.mr.rkey, imm: None };
    for _ in 0..5 {
        a.exchange(write, &[a.mr.sge(0, 1000)]);
    }
    eventually("the files agree with the statistics", || {
        let mut counter = |name| a.client.counter("urxe0", name);
        let (bytes, packets) = (counter("tx_bytes"), counter("tx_datagrams"));
        assert!(bytes > 5000);
        let expected = [bytes / 4, bytes / 4, packets, packets, counter("sent_packets")];
        let told = [
            "counters/port_xmit_data",
            "counters/port_rcv_data",
            "counters/port_xmit_packets",
            "counters/port_rcv_packets",
            "hw_counters/sent_pkts",
        ];
        (told.map(|file| value("urxe0", file)) == expected).then_some(())
    });
    assert_eq!(value("urxe1", "counters/port_xmit_packets"), 0);
}

/// A daemon that is to end by itself.
fn lingering(seconds: u64) -> Handle {
    start_with(1, |config| config.linger = Some(Duration::from_secs(seconds)))
}

#[test]
fn a_lingering_daemon_without_programs_ends() {
    let daemon = lingering(1);
    let socket = daemon.socket().to_path_buf();
    daemon.wait().unwrap();
    assert!(!socket.exists() && !sysfs_directory(&socket).exists());
}

#[test]
fn a_daemon_ends_after_its_last_program_and_not_before() {
    // Long enough for us to be there in time, on a busy machine too.
    let daemon = lingering(3);
    let socket = daemon.socket().to_path_buf();
    // One has said hello, the other is only connected.
    let client = Client::connect(&socket);
    let silent = Channel::connect(&socket).unwrap();
    drop(client);
    std::thread::sleep(Duration::from_secs(4));
    Client::connect(&socket).open("urxe0");
    drop(silent);
    eventually("it ends", || (!socket.exists()).then_some(()));
    daemon.wait().unwrap();
}
