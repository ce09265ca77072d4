use super::*;
use crate::testing::network::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv4Addr};

/// Waits until the links are as they should be; returns the changes on the way.
fn wait_until(watch: &mut Watch, what: &str, is_so: impl Fn(&Links) -> bool) -> usize {
    let mut changes = 0;
    while !is_so(watch.links()) {
        if watch.next_change(Instant::now()) {
            changes += 1;
            continue;
        }
        let fd = PollFd::from_borrowed_fd(watch.fd().unwrap(), PollFlags::IN);
        let ready = poll(&mut [fd], Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        assert!(ready > 0, "never happened: {what}: {:?}", watch.links());
    }
    changes
}

#[test]
fn the_links_are_those_of_sysfs() {
    let watch = Watch::open(Instant::now());
    assert!(watch.why_slow().is_none(), "{:?}", watch.why_slow());
    let lo = watch.links().named("lo").unwrap();
    assert!(lo.loopback && lo.up && lo.has(Ipv4Addr::new(127, 1, 2, 3).into()));
    // Other tests change links of their own namespaces only.
    let of_sysfs = |name| {
        let text = std::fs::read_to_string(format!("/sys/class/net/lo/{name}")).unwrap();
        text.trim().parse::<u32>().unwrap()
    };
    assert_eq!((of_sysfs("mtu"), of_sysfs("ifindex")), (lo.mtu, lo.index));
    assert!(lo.addrs.contains(&(Ipv4Addr::LOCALHOST.into(), 8)), "{:?}", lo.addrs);
    assert_eq!(Links::now().unwrap().named("lo"), Some(lo));
}

#[test]
fn nothing_new_is_no_change() {
    let Some(namespace) = Namespace::new() else { return };
    let mut watch = namespace.run(|| Watch::open(Instant::now()));
    assert!(!watch.next_change(Instant::now()));
    assert_eq!(watch.poll_timeout(), None);
}

#[test]
fn links_and_addresses_are_followed_as_they_come_change_and_go() {
    let Some(namespace) = Namespace::new() else { return };
    let mut watch = namespace.run(|| Watch::open(Instant::now()));
    assert!(watch.links().named("wire").is_none());
    namespace.ip("link add wire type veth peer name far");
    wait_until(&mut watch, "a new link", |links| links.named("wire").is_some());
    assert!(!watch.links().named("wire").unwrap().up);

    namespace.ip("link set wire up");
    namespace.ip("link set far up");
    wait_until(&mut watch, "the link is up", |links| links.named("wire").unwrap().up);
    let link_local = |links: &Links| {
        let is_link_local = |addr: &IpAddr| match addr {
            IpAddr::V6(addr) => addr.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        };
        links.named("wire").unwrap().addrs.iter().any(|(addr, _)| is_link_local(addr))
    };
    wait_until(&mut watch, "a link-local address, when it was checked", link_local);

    let addr: IpAddr = [10, 1, 2, 3].into();
    namespace.ip("addr add 10.1.2.3/24 dev wire");
    wait_until(&mut watch, "a new address", |links| links.with_address(addr).is_some());
    assert_eq!(watch.links().with_address(addr).unwrap().name, "wire");
    namespace.ip("link set wire mtu 9000");
    wait_until(&mut watch, "another MTU", |links| links.named("wire").unwrap().mtu == 9000);
    namespace.ip("link set far down");
    wait_until(&mut watch, "no carrier", |links| !links.named("wire").unwrap().up);
    namespace.ip("addr del 10.1.2.3/24 dev wire");
    wait_until(&mut watch, "no address", |links| links.with_address(addr).is_none());
    namespace.ip("link del wire");
    wait_until(&mut watch, "no link", |links| links.named("wire").is_none());
}

#[test]
fn lost_notifications_are_made_up_for_by_asking_again() {
    let Some(namespace) = Namespace::new() else { return };
    let mut watch = namespace.run(|| Watch::open(Instant::now()));
    let Source::Notified(route) = &watch.source else { panic!() };
    route.socket.set_rx_buf_sz(1u32).unwrap();
    namespace.ip("link add wire type veth peer name far");
    for i in 1..=20 {
        namespace.ip(format!("addr add 10.1.{i}.1/24 dev wire"));
    }
    let all = |links: &Links| links.named("wire").is_some_and(|link| link.addrs.len() == 20);
    let changes = wait_until(&mut watch, "all 20 addresses", all);
    assert!(changes < 20, "{changes} changes: nothing was lost, so this tests nothing");
}

#[test]
fn without_notifications_the_kernel_is_asked_every_second() {
    let Some(namespace) = Namespace::new() else { return };
    let start = Instant::now();
    let mut watch =
        namespace.run(move || Watch::polling(io::ErrorKind::PermissionDenied.into(), start));
    assert!(watch.why_slow().is_some() && watch.fd().is_none());
    namespace.ip("link add wire type veth peer name far");
    namespace.ip("addr add 10.1.2.3/24 dev wire");
    let due = watch.poll_timeout().unwrap();
    assert_eq!(due, start + POLL_INTERVAL);
    let (early, changed, again, watch) = namespace.run(move || {
        let early = watch.next_change(due - Duration::from_millis(1));
        let changed = watch.next_change(due);
        let again = watch.next_change(due + POLL_INTERVAL);
        (early, changed, again, watch)
    });
    assert_eq!((early, changed, again), (false, true, false));
    let wire = watch.links().named("wire").unwrap();
    assert_eq!((wire.mtu, wire.up), (1500, false));
    assert!(wire.has([10, 1, 2, 3].into()));
}

#[test]
fn known_links_stay_where_the_kernel_does_not_answer() {
    let mut watch = Watch::open(Instant::now());
    let known = watch.links().clone();
    assert!(known.named("lo").is_some());
    assert!(!watch.take(Err(io::ErrorKind::TimedOut.into())));
    assert_eq!(*watch.links(), known);
    assert!(!watch.take(Ok(known.clone())), "the same again is no change");
    assert!(watch.take(Ok(Links::default())));
}
