//! Devices follow the machine's links and addresses. These need namespaces, and so root; where they
//! cannot run they say so.

use crate::cm_client::{Caller, param};
use crate::connections::converse;
use crate::harness::{Client, End, Kind, Running, attrs, av, eventually, fresh_path, read_events};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_shell::testing::{could_not_run, needs_root};
use urxe_shm::control::event::{EventRecord, GID_CHANGE, PORT_ACTIVE, PORT_ERR};
use urxe_shm::control::{CmEventKind, CmIdHandle, CmPortSpace, CmRequest};
use urxe_shm::control::{ContextHandle, PortAttr, Reply, Request};
use urxe_shm::sysfs_directory;
use urxe_types::{Extra, Gid, PathMtu, QpAttr, SendOp};

/// A network of its own, and a daemon in it. Both are gone when it is dropped.
struct Host {
    name: String,
    daemon: Option<Running>,
    socket: PathBuf,
}

impl Host {
    /// `None` (and the reason said) where the tests may not make networks.
    fn new() -> Option<Host> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("urxed-test-{}-{number}", std::process::id());
        if !geteuid().is_root() {
            needs_root("namespaces need root");
            return None;
        }
        let host = Host { name, daemon: None, socket: fresh_path() };
        let added = Command::new("ip").args(["netns", "add", &host.name]).output();
        if !added.as_ref().is_ok_and(|output| output.status.success()) {
            could_not_run(&format!("ip netns add: {added:?}"));
            return None;
        }
        host.ip("link set lo up");
        Some(host)
    }

    fn output(&self, command: &str) -> Output {
        let mut words = vec!["netns", "exec", &self.name];
        words.extend(command.split(' '));
        Command::new("ip").args(words).output().unwrap()
    }

    fn run(&self, command: &str) {
        let output = self.output(command);
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Nobody else is here: addresses are added with `nodad`. Without, one is checked for a second
    /// owner, be it that none is asked (`accept_dad`), by a kernel thread, and cannot be used until
    /// that has run.
    fn ip(&self, arguments: &str) {
        self.run(&format!("ip {arguments}"));
    }

    /// Sets a link up. No link-local address comes by itself, so that every change is one of the
    /// test's.
    fn bring_up(&self, link: &str) {
        self.ip(&format!("link set {link} addrgenmode none"));
        self.ip(&format!("link set {link} up"));
    }

    /// Starts the daemon.
    fn serve(&mut self, what: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_urxed")]).args(what);
        command.arg("--socket").arg(&self.socket).args(["--ready-fd", "1"]);
        let mut child = Running::start(command.stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.daemon = Some(child);
        assert!(line.contains("ready"), "urxed {what:?} did not start");
    }
}

impl Host {
    /// What a file of the device's port says.
    fn port_file(&self, name: &str) -> String {
        let port = sysfs_directory(&self.socket).join("class/infiniband/urxe0/ports/1");
        std::fs::read_to_string(port.join(name)).unwrap().trim_end().into()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
            let _ = daemon.wait();
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

/// Two hosts with a cable between them: `wire` on each, without any address.
fn cable() -> Option<[Host; 2]> {
    let hosts = [Host::new()?, Host::new()?];
    add_cable(&hosts, "wire");
    Some(hosts)
}

fn add_cable([a, b]: &[Host; 2], name: &str) {
    a.ip(&format!("link add {name} type veth peer name {name} netns {}", b.name));
    for host in [a, b] {
        host.bring_up(name);
    }
}

/// A program that watches a device.
struct Watcher {
    client: Client,
    context: ContextHandle,
    pipe: OwnedFd,
    told: Vec<u32>,
}

impl Watcher {
    fn new(host: &Host) -> Watcher {
        let mut client = Client::connect(&host.socket);
        let (context, pipe) = client.open_with_events("urxe0");
        Watcher { client, context, pipe, told: Vec::new() }
    }

    fn port(&mut self) -> PortAttr {
        let query = Request::QueryPort { context: self.context, port: 1 };
        let Ok(Reply::Port(attr)) = self.client.call(query) else { panic!("no port") };
        attr
    }

    /// The first entries of the GID table; `::` is a hole.
    fn gids(&mut self, count: u32) -> Vec<IpAddr> {
        let mut gid = |index| {
            let query = Request::QueryGid { context: self.context, port: 1, index };
            let Ok(Reply::Gid(Gid(bytes))) = self.client.call(query) else { panic!("no GID") };
            Gid(bytes).to_ip()
        };
        (0..count).map(&mut gid).collect()
    }

    /// Waits until these events came, and checks that no other did.
    fn is_told(&mut self, expected: &[u32]) {
        eventually(&format!("events {expected:?}"), || {
            let new = read_events(&self.pipe);
            let of_port = |record: &EventRecord| record.user_handle == 1;
            assert!(new.iter().all(of_port), "{new:?}");
            self.told.extend(new.iter().map(|record| record.kind));
            (self.told.len() >= expected.len()).then_some(())
        });
        assert_eq!(std::mem::take(&mut self.told), expected);
    }

    fn waits_for(&mut self, what: &str, is_so: impl Fn(&PortAttr) -> bool) -> PortAttr {
        eventually(what, || Some(self.port()).filter(&is_so))
    }
}

fn addrs<const N: usize>(texts: [&str; N]) -> Vec<IpAddr> {
    texts.map(|text| text.parse().unwrap()).into()
}

/// A message from one host's first device to the other's, and one back.
fn talk(hosts: &[Host; 2]) {
    let [mut a, mut b] = [0, 1].map(|i| End::at(&hosts[i].socket, "urxe0", Kind::Shared, 8192));
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}

fn exchange(from: &mut End, to: &mut End) {
    from.mr.write(0, &[7; 5000]);
    to.mr.write(0, &[0; 5000]);
    to.post_recv(1, &[to.mr.sge(0, 8192)]);
    assert_eq!(from.exchange(SendOp::Send(Extra::None), &[from.mr.sge(0, 5000)]).status, 0);
    assert_eq!(to.cq.wait(1)[0].status, 0);
    assert_eq!(to.mr.read(0, 5000), [7; 5000]);
}

#[test]
fn the_gid_table_follows_the_interfaces_addresses() {
    let Some(hosts) = cable() else { return };
    let [mut host, _peer] = hosts;
    host.ip("addr add fd00::1/64 dev wire nodad");
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.ip("addr add fe80::1/64 dev wire nodad");
    host.serve(&["--interface", "wire"]);
    let mut watcher = Watcher::new(&host);
    assert_eq!(watcher.gids(4), addrs(["fe80::1", "10.0.0.1", "fd00::1", "::"]));
    assert_eq!(watcher.port().interface.as_deref(), Some("wire"));

    host.ip("addr del 10.0.0.1/24 dev wire");
    watcher.is_told(&[GID_CHANGE]);
    assert_eq!(watcher.gids(4), addrs(["fe80::1", "::", "fd00::1", "::"]), "it leaves a hole");
    host.ip("addr add 10.0.0.2/24 dev wire");
    watcher.is_told(&[GID_CHANGE]);
    assert_eq!(watcher.gids(4), addrs(["fe80::1", "10.0.0.2", "fd00::1", "::"]), "it fills it");
    host.ip("addr add 10.0.0.3/24 dev wire");
    watcher.is_told(&[GID_CHANGE]);
    assert_eq!(watcher.gids(4), addrs(["fe80::1", "10.0.0.2", "fd00::1", "10.0.0.3"]));
    // An address of another interface is none of ours.
    host.ip("addr add 10.9.9.9/32 dev lo");
    host.ip("addr del 10.0.0.3/24 dev wire");
    watcher.is_told(&[GID_CHANGE]);
    assert_eq!(watcher.client.counter("urxe0", "gid_changes"), 4);
    assert_eq!(watcher.client.counter("urxe0", "addresses_refused"), 0);
}

/// The kernel asks the network for three seconds whether another machine has the address.
#[test]
fn an_index_means_the_same_address_before_and_after_its_check_for_duplicates() {
    let Some(hosts) = cable() else { return };
    let [mut host, _peer] = hosts;
    host.run("sysctl -qw net.ipv6.conf.wire.dad_transmits=3");
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.ip("addr add fe80::1/64 dev wire");
    host.serve(&["--interface", "wire"]);
    let mut watcher = Watcher::new(&host);
    let table = addrs(["fe80::1", "10.0.0.1", "::"]);
    assert_eq!(watcher.gids(3), table);
    let refuses = |watcher: &mut Watcher| {
        let pd = watcher.client.alloc_pd(watcher.context);
        let av = av("fe80::2".parse().unwrap());
        watcher.client.call(Request::CreateAh { pd, av }).err()
    };
    let error = refuses(&mut watcher).expect("it cannot be used yet");
    assert_eq!(error.errno, Errno::INVAL.raw_os_error(), "{error}");
    watcher.is_told(&[GID_CHANGE]);
    assert_eq!(watcher.gids(3), table);
    assert_eq!(refuses(&mut watcher), None);
    assert_eq!(host.port_file("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001");
    // Who starts later finds the same.
    drop(watcher);
    let mut daemon = host.daemon.take().unwrap();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    daemon.wait();
    host.serve(&["--interface", "wire"]);
    assert_eq!(Watcher::new(&host).gids(3), table);
}

#[test]
fn every_context_is_told_once_when_the_link_goes_down_and_when_it_comes_up() {
    let Some([mut host, peer]) = cable() else { return };
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.serve(&["--addr", "10.0.0.1", "--addr", "127.0.0.1"]);
    let mut both = [Watcher::new(&host), Watcher::new(&host)];
    let mut loopback = Client::connect(&host.socket);
    let (_, other_device) = loopback.open_with_events("urxe1");
    for watcher in &mut both {
        assert!(watcher.port().active);
    }
    peer.ip("link set wire down");
    for watcher in &mut both {
        watcher.is_told(&[PORT_ERR]);
        assert!(!watcher.port().active);
    }
    peer.ip("link set wire up");
    for watcher in &mut both {
        watcher.is_told(&[PORT_ACTIVE]);
        assert!(watcher.port().active);
        assert_eq!(watcher.client.counter("urxe0", "port_errors"), 1);
    }
    assert_eq!(read_events(&other_device), [], "another device's link did nothing");
}

#[test]
fn the_path_mtu_is_the_interfaces() {
    let Some([mut host, peer]) = cable() else { return };
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.serve(&["--interface", "wire"]);
    let mut watcher = Watcher::new(&host);
    assert_eq!(watcher.port().active_mtu, PathMtu::Mtu1024);
    for (link, path) in [(9000, 4096), (4200, 4096), (2500, 2048), (1500, 1024)] {
        for host in [&host, &peer] {
            host.ip(&format!("link set wire mtu {link}"));
        }
        watcher.waits_for(&format!("{path} over {link}"), |port| port.active_mtu.bytes() == path);
    }
}

#[test]
fn a_path_mtu_above_the_links_reaches_this_machine_and_no_other() {
    let Some(hosts) = cable() else { return };
    let [mut host, _peer] = hosts;
    for addr in ["10.0.0.1", "10.0.0.2"] {
        host.ip(&format!("addr add {addr}/24 dev wire"));
    }
    host.serve(&["--addr", "10.0.0.1", "--addr", "10.0.0.2"]);
    assert_eq!(Watcher::new(&host).port().active_mtu, PathMtu::Mtu1024);
    let mut ends = ["urxe0", "urxe1"].map(|name| End::at(&host.socket, name, Kind::Shared, 8192));
    let [a, b] = &mut ends;
    let places = [&*b, a].map(|peer| (peer.addr, peer.qp.created.qpn));
    for (end, (peer, qpn)) in [&mut *a, b].into_iter().zip(places) {
        let [init, rtr, rts] = attrs(peer, qpn);
        let rtr = QpAttr { path_mtu: Some(PathMtu::Mtu4096), ..rtr };
        end.client.modify(&end.qp, init).unwrap();
        let far = QpAttr { av: Some(av(addrs(["10.0.0.3"])[0])), ..rtr.clone() };
        let error = end.client.modify(&end.qp, far).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL.raw_os_error());
        assert!(error.message.starts_with("path_mtu 4096: "), "{error}");
        end.client.modify(&end.qp, rtr).unwrap();
        end.client.modify(&end.qp, rts).unwrap();
    }
    let [a, b] = &mut ends;
    exchange(a, b);
    exchange(b, a);
}

#[test]
fn a_device_whose_address_is_gone_is_down_and_recovers_when_it_returns() {
    let Some(mut hosts) = cable() else { return };
    for (host, addr) in hosts.iter_mut().zip(["10.0.0.1", "10.0.0.2"]) {
        host.ip(&format!("addr add {addr}/24 dev wire"));
        host.serve(&["--addr", addr]);
    }
    let mut watcher = Watcher::new(&hosts[0]);
    let [mut a, mut b] = [0, 1].map(|i| End::at(&hosts[i].socket, "urxe0", Kind::Shared, 8192));
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    exchange(&mut a, &mut b);

    hosts[0].ip("addr del 10.0.0.1/24 dev wire");
    watcher.is_told(&[GID_CHANGE, PORT_ERR]);
    assert!(!watcher.port().active);
    assert_eq!(watcher.gids(1), addrs(["::"]));

    hosts[0].ip("addr add 10.0.0.1/24 dev wire");
    watcher.is_told(&[GID_CHANGE, PORT_ACTIVE]);
    assert_eq!(watcher.gids(1), addrs(["10.0.0.1"]));
    // The connection that there was goes on.
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}

#[test]
fn an_interface_that_goes_and_comes_back_is_served_again() {
    let Some(mut hosts) = cable() else { return };
    let number = |hosts: &[Host; 2]| {
        for (host, i) in hosts.iter().zip(1..) {
            host.ip(&format!("addr add 10.0.0.{i}/24 dev wire"));
        }
    };
    number(&hosts);
    for host in &mut hosts {
        host.serve(&["--interface", "wire", "--slots", "4"]);
    }
    talk(&hosts);
    let mut watcher = Watcher::new(&hosts[0]);
    hosts[0].ip("link del wire");
    watcher.waits_for("the port is down", |port| !port.active);
    eventually("no address is left", || (watcher.gids(1) == addrs(["::"])).then_some(()));
    // Slots that begin in the meantime do so all the same.
    let late: Vec<Watcher> = (0..4).map(|_| Watcher::new(&hosts[0])).collect();
    for mut late in late {
        assert!(!late.port().active);
    }
    add_cable(&hosts, "wire");
    number(&hosts);
    watcher.waits_for("the port is up", |port| port.active);
    eventually("the address is back", || (watcher.gids(1) == addrs(["10.0.0.1"])).then_some(()));
    let mut other = Watcher::new(&hosts[1]);
    eventually("the other's, too", || (other.gids(1) == addrs(["10.0.0.2"])).then_some(()));
    talk(&hosts);
}

#[test]
fn between_link_local_addresses_too() {
    let Some(mut hosts) = cable() else { return };
    for (host, i) in hosts.iter_mut().zip(1..) {
        host.ip(&format!("addr add fe80::{i}/64 dev wire nodad"));
        // The same on another interface: only this one counts.
        host.ip(&format!("addr add fe80::{i}/64 dev lo nodad"));
        host.serve(&["--interface", "wire"]);
    }
    talk(&hosts);
}

/// A program that is told of a change looks into the files, and finds it there.
#[test]
fn the_files_follow_before_the_programs_are_told() {
    let Some([mut host, peer]) = cable() else { return };
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.serve(&["--interface", "wire"]);
    let mut watcher = Watcher::new(&host);
    let device = sysfs_directory(&host.socket).join("class/infiniband/urxe0");
    let birthday = std::fs::metadata(&device).unwrap().modified().unwrap();
    let (empty, second) = ("0000:".repeat(7) + "0000", "0000:0000:0000:0000:0000:ffff:0a00:0002");
    assert_eq!([host.port_file("gids/1"), host.port_file("gid_attrs/ndevs/1")], [&empty, ""]);
    for _ in 0..10 {
        host.ip("addr add 10.0.0.2/24 dev wire");
        watcher.is_told(&[GID_CHANGE]);
        assert_eq!(host.port_file("gids/1"), second);
        assert_eq!(host.port_file("gid_attrs/ndevs/1"), "wire");
        host.ip("addr del 10.0.0.2/24 dev wire");
        watcher.is_told(&[GID_CHANGE]);
        assert_eq!([host.port_file("gids/1"), host.port_file("gid_attrs/ndevs/1")], [&empty, ""]);
        peer.ip("link set wire down");
        watcher.is_told(&[PORT_ERR]);
        assert_eq!(host.port_file("state"), "1: DOWN");
        peer.ip("link set wire up");
        watcher.is_told(&[PORT_ACTIVE]);
        assert_eq!(host.port_file("state"), "4: ACTIVE");
    }
    assert_eq!(std::fs::metadata(&device).unwrap().modified().unwrap(), birthday);
    assert_eq!(watcher.client.counter("urxe0", "sysfs_errors"), 0);
}

#[test]
fn the_files_name_the_interface_that_has_the_address() {
    let Some([mut host, _peer]) = cable() else { return };
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.serve(&["--addr", "10.0.0.1"]);
    let net = sysfs_directory(&host.socket).join("class/infiniband/urxe0/device/net");
    assert!(net.join("wire").is_dir());
    host.ip("addr del 10.0.0.1/24 dev wire");
    host.ip("addr add 10.0.0.1/24 dev lo");
    eventually("it is on lo", || (host.port_file("gid_attrs/ndevs/0") == "lo").then_some(()));
    eventually("wire is gone", || (!net.join("wire").exists()).then_some(()));
    assert!(net.join("lo").is_dir());
}

/// Two daemons over links that are made of links, as soon as the kernel can make them.
fn over(kind: &str, make: impl Fn(&Host) -> bool) {
    let Some(mut hosts) = cable() else { return };
    add_cable(&hosts, "wire2");
    for (host, i) in hosts.iter_mut().zip(1..) {
        if !make(host) {
            return could_not_run(&format!("this kernel has no {kind}"));
        }
        host.ip(&format!("addr add 10.0.0.{i}/24 dev upper"));
        host.bring_up("upper");
        host.serve(&["--interface", "upper"]);
    }
    let mut watcher = Watcher::new(&hosts[0]);
    assert_eq!(watcher.port().interface.as_deref(), Some("upper"));
    watcher.waits_for("the port is up", |port| port.active);
    talk(&hosts);
    // It is as its lower links let it be.
    for wire in ["wire", "wire2"] {
        hosts[1].ip(&format!("link set {wire} down"));
    }
    watcher.waits_for("the port is down", |port| !port.active);
    for wire in ["wire", "wire2"] {
        hosts[1].ip(&format!("link set {wire} up"));
    }
    watcher.waits_for("the port is up again", |port| port.active);
    talk(&hosts);
}

#[test]
fn over_a_vlan() {
    over("VLAN", |host| {
        host.output("ip link add link wire name upper type vlan id 47").status.success()
    });
}

#[test]
fn over_a_bond_of_two_links() {
    over("bond", |host| {
        let make = "ip link add upper type bond mode active-backup miimon 10";
        let made = host.output(make).status.success();
        for wire in ["wire", "wire2"] {
            if made {
                host.ip(&format!("link set {wire} down"));
                host.ip(&format!("link set {wire} master upper"));
            }
        }
        made
    });
}

#[test]
fn over_a_bridge() {
    over("bridge", |host| {
        let made = host.output("ip link add upper type bridge").status.success();
        if made {
            host.ip("link set wire master upper");
        }
        made
    });
}

#[test]
fn over_a_macvlan() {
    over("macvlan", |host| {
        host.output("ip link add link wire name upper type macvlan mode bridge").status.success()
    });
}

const TCP: CmPortSpace = CmPortSpace::Tcp;

/// Connects to a listener whose events carry 1; returns the ids of both sides.
fn dial(active: &mut Caller, passive: &mut Caller, to: SocketAddr, qpn: u32) -> [CmIdHandle; 2] {
    let [id, new] = dial_from(active, passive, None, to, qpn);
    assert_eq!(passive.query(new).src.map(|src| src.ip()), Some(to.ip()));
    [id, new]
}

/// The same from an address of the program's choice.
fn dial_from(
    active: &mut Caller,
    passive: &mut Caller,
    src: Option<SocketAddr>,
    dst: SocketAddr,
    qpn: u32,
) -> [CmIdHandle; 2] {
    let id = active.create(TCP, 7);
    active.order(CmRequest::ResolveAddr { id, src, dst, timeout_ms: 2000 });
    active.expect(7, CmEventKind::AddrResolved);
    active.order(CmRequest::ResolveRoute { id, timeout_ms: 2000 });
    active.expect(7, CmEventKind::RouteResolved);
    active.order(CmRequest::Connect { id, param: param(qpn, b"") });
    let (new, _) = passive.expect_request(1);
    // Another QP, for both may be of one device.
    let param = param(qpn + 100, b"");
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param });
    active.expect(7, CmEventKind::ConnectResponse);
    active.order(CmRequest::Establish { id });
    passive.expect(2, CmEventKind::Established);
    [id, new]
}

#[test]
fn programs_connect_over_ipv6() {
    let Some(mut hosts) = cable() else { return };
    let addrs = addrs(["fd00::1", "fd00::2"]);
    for (host, addr) in hosts.iter_mut().zip(&addrs) {
        host.ip(&format!("addr add {addr}/64 dev wire nodad"));
        host.serve(&["--interface", "wire"]);
    }
    let places = [0, 1].map(|i| (&*hosts[i].socket, addrs[i]));
    converse(places[0], places[1]);
    converse(places[0], places[0]);
}

#[test]
fn a_wildcard_listener_is_found_at_addresses_that_come_later() {
    let Some(mut hosts) = cable() else { return };
    for (host, i) in hosts.iter_mut().zip(1..) {
        host.ip(&format!("addr add 10.0.0.{i}/24 dev wire"));
        host.serve(&["--interface", "wire"]);
    }
    let [mut passive, mut active] = [0, 1].map(|host| Caller::new(&hosts[host].socket));
    let any = SocketAddr::new(IpAddr::from([0; 16]), 7174);
    passive.listen(TCP, 1, any);
    let at = |addr: &str| SocketAddr::new(addr.parse().unwrap(), 7174);
    let [id, _] = dial(&mut active, &mut passive, at("10.0.0.1"), 17);
    let mut watcher = Watcher::new(&hosts[0]);
    hosts[0].ip("addr add 10.0.0.3/24 dev wire");
    watcher.is_told(&[GID_CHANGE]);
    let [later, later_new] = dial(&mut active, &mut passive, at("10.0.0.3"), 18);
    hosts[0].ip("addr add fd00::1/64 dev wire nodad");
    hosts[1].ip("addr add fd00::2/64 dev wire nodad");
    let mut other = Watcher::new(&hosts[1]);
    eventually("the address is there", || {
        let gids = [watcher.gids(3), other.gids(2)].concat();
        gids.contains(&addrs(["fd00::1"])[0]).then_some(())?;
        gids.contains(&addrs(["fd00::2"])[0]).then_some(())
    });
    dial(&mut active, &mut passive, at("fd00::1"), 19);

    // The address of a connection goes: what it has to say is lost and counted. The others stand.
    hosts[0].ip("addr del 10.0.0.3/24 dev wire");
    eventually("it is gone", || (!watcher.gids(4).contains(&addrs(["10.0.0.3"])[0])).then_some(()));
    passive.order(CmRequest::Disconnect { id: later_new });
    eventually("it is counted", || {
        (passive.client.counter("urxe0", "cm_messages_without_path") > 0).then_some(())
    });
    active.order(CmRequest::Disconnect { id });
    passive.expect(2, CmEventKind::Disconnected);
    active.expect(7, CmEventKind::Disconnected);
    active.destroy(later, 3);
    let bound = passive.create(TCP, 3);
    let gone = at("10.0.0.3");
    passive.refused(CmRequest::Bind { id: bound, addr: gone }, Errno::ADDRNOTAVAIL);
}

#[test]
fn programs_connect_between_link_local_addresses_of_an_interface_that_they_name() {
    let Some(mut hosts) = cable() else { return };
    for (host, i) in hosts.iter_mut().zip(1..) {
        host.ip(&format!("addr add fe80::{i}/64 dev wire nodad"));
        host.serve(&["--interface", "wire"]);
    }
    let [mut passive, mut active] = [0, 1].map(|host| Caller::new(&hosts[host].socket));
    let index = |host: &Host| {
        let output = host.output("cat /sys/class/net/wire/ifindex");
        String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
    };
    let at = |scope| SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 7174, 0, scope));
    passive.listen(TCP, 1, at(index(&hosts[0])));
    let to = at(index(&hosts[1]));
    let [id, new] = dial(&mut active, &mut passive, to, 17);
    assert_eq!(active.query(id).dst, Some(to));
    assert_eq!(passive.query(new).src.map(|src| src.ip()), Some(to.ip()));
    let id = active.create(TCP, 8);
    let nowhere = CmRequest::ResolveAddr { id, src: None, dst: at(0), timeout_ms: 0 };
    active.refused(nowhere, Errno::INVAL);
}

#[test]
fn a_loopback_address_that_no_device_serves_means_any() {
    let Some(hosts) = cable() else { return };
    let [mut host, _peer] = hosts;
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.ip("addr add fd00::1/64 dev wire nodad");
    host.serve(&["--interface", "wire"]);
    let [mut passive, mut active] = [(); 2].map(|()| Caller::new(&host.socket));
    let at = |addr: &str| SocketAddr::new(addr.parse().unwrap(), 7174);
    for (loopback, real, qpn) in [("127.0.0.1", "10.0.0.1", 17), ("::1", "fd00::1", 18)] {
        let listener = passive.listen(TCP, 1, at(loopback));
        // As good as the wildcard: so it takes the port of every address.
        let other = passive.create(TCP, 9);
        passive.refused(CmRequest::Bind { id: other, addr: at(real) }, Errno::ADDRNOTAVAIL);
        let [id, new] = dial_from(&mut active, &mut passive, None, at(loopback), qpn);
        let between = |caller: &mut Caller, id| {
            let route = caller.query(id);
            [route.src, route.dst].map(|addr| addr.map(|addr| addr.ip().to_string()))
        };
        assert_eq!(between(&mut active, id), [Some(real.into()), Some(real.into())]);
        assert_eq!(between(&mut passive, new), [Some(real.into()), Some(real.into())]);
        let src = Some(SocketAddr::new(at(loopback).ip(), 0));
        let [id, _] = dial_from(&mut active, &mut passive, src, at(real), qpn + 2);
        assert_eq!(between(&mut active, id), [Some(real.into()), Some(real.into())]);
        let src = Some(SocketAddr::new(at(real).ip(), 0));
        let [id, _] = dial_from(&mut active, &mut passive, src, at(loopback), qpn + 4);
        assert_eq!(between(&mut active, id), [Some(real.into()), Some(real.into())]);
        passive.destroy(listener, 3);
    }
}

#[test]
fn a_device_whose_interface_has_another_name_now_serves_new_slots_too() {
    let Some(mut hosts) = cable() else { return };
    for (host, i) in hosts.iter_mut().zip(1..) {
        host.ip(&format!("addr add 10.0.0.{i}/24 dev wire"));
        host.serve(&["--addr", &format!("10.0.0.{i}"), "--slots", "4"]);
    }
    let mut watcher = Watcher::new(&hosts[0]);
    hosts[0].ip("link set wire down");
    hosts[0].ip("link set wire name other");
    hosts[0].ip("link set other up");
    let is_there = |port: &PortAttr| port.active && port.interface.as_deref() == Some("other");
    watcher.waits_for("the port is up again", is_there);
    for _ in 0..2 {
        talk(&hosts);
    }
}

#[test]
fn an_address_whose_port_another_daemon_lets_go_of_is_taken() {
    let Some(hosts) = cable() else { return };
    add_cable(&hosts, "other");
    let [mut host, _peer] = hosts;
    let mut first = Host { name: host.name.clone(), daemon: None, socket: fresh_path() };
    host.ip("addr add 10.0.0.9/32 dev wire");
    first.serve(&["--addr", "10.0.0.9"]);
    host.serve(&["--interface", "other"]);
    let mut watcher = Watcher::new(&host);
    host.ip("addr add 10.0.0.9/32 dev other");
    let mut is_refused = || watcher.client.counter("urxe0", "addresses_refused") == 1;
    eventually("it is refused", || is_refused().then_some(()));
    assert_eq!(watcher.gids(1), addrs(["::"]));
    let daemon = first.daemon.take().unwrap();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    drop(daemon);
    eventually("it is taken", || (watcher.gids(1) == addrs(["10.0.0.9"])).then_some(()));
    assert_eq!(watcher.client.counter("urxe0", "addresses_refused"), 1);
}

#[test]
fn interfaces_with_one_hardware_address_are_devices_with_two_guids() {
    let Some(hosts) = cable() else { return };
    add_cable(&hosts, "other");
    let [mut host, _peer] = hosts;
    // As those of a VLAN and of what it is on do.
    for link in ["wire", "other"] {
        host.ip(&format!("link set {link} address 02:47:91:00:00:01"));
    }
    host.serve(&["--interface", "wire", "--interface", "other"]);
    let class = sysfs_directory(&host.socket).join("class/infiniband");
    let guid = |device| std::fs::read_to_string(class.join(device).join("node_guid")).unwrap();
    assert_ne!(guid("urxe0"), guid("urxe1"));
}

#[test]
fn an_address_to_which_no_device_leads_is_not_resolved() {
    let Some(hosts) = cable() else { return };
    let [mut host, _peer] = hosts;
    host.ip("addr add 10.0.0.1/24 dev wire");
    host.serve(&["--addr", "127.0.0.2"]);
    let mut caller = Caller::new(&host.socket);
    let mut asked = |addr: &str| {
        let (id, dst) = (caller.create(TCP, 7), SocketAddr::new(addr.parse().unwrap(), 7174));
        caller.order(CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 2000 });
        let event = caller.next();
        caller.destroy(id, 1);
        (event.kind, event.status)
    };
    let no_device = (CmEventKind::AddrError, -Errno::NODEV.raw_os_error());
    let resolved = (CmEventKind::AddrResolved, 0);
    assert_eq!(asked("10.0.0.2"), no_device, "the loopback network leads nowhere else");
    assert_eq!(asked("10.0.0.1"), no_device, "nobody serves it");
    assert_eq!(asked("127.0.0.3"), resolved);
    let mut other = Host { name: host.name.clone(), daemon: None, socket: fresh_path() };
    other.serve(&["--addr", "10.0.0.1"]);
    assert_eq!(asked("10.0.0.1"), resolved, "another daemon does");
}
