//! These need CAP_NET_RAW, and some of them a network namespace.

mod group;

use super::*;
use crate::testing::network::Cable;
use crate::testing::*;
use crate::udp::{UdpOptions, UdpPort};
use std::net::SocketAddr;
use urxe_shell::testing::needs_root;
use urxe_wire::icrc::Verdict;
use urxe_wire::{Ident, Opcode, ROCE_PORT};

/// A raw port, or `None` and the reason printed.
fn open_raw(addr: IpAddr, first_ident: Option<u16>) -> Option<RawPort> {
    match RawPort::open(addr, &RawOptions { first_ident, ..RawOptions::default() }) {
        Err(error @ OpenError::NoPrivilege) => {
            needs_root(&error.to_string());
            None
        }
        other => Some(other.unwrap()),
    }
}

fn open_udp(addr: IpAddr) -> UdpPort {
    UdpPort::open(addr, &UdpOptions::default()).unwrap()
}

/// A flow with a value in every field.
fn full_flow(from: &impl Port, dst: IpAddr) -> Flow {
    let flow_label = if dst.is_ipv6() { 0xabcde } else { 0 };
    Flow { flow_label, traffic_class: 0x69, hop_limit: 63, ..flow(&from.caps(), dst) }
}

/// A batch with WRITEs of two sizes towards an address, and how many datagrams that is.
fn writes(from: &impl Port, dst: IpAddr, mtu: usize) -> (TxBatch, usize) {
    let mut batch = batch(&from.caps());
    let flow = full_flow(from, dst);
    push_write(&mut batch, &flow, 0, 50, mtu);
    push_write(&mut batch, &flow, 50, 20, 256);
    (batch, 70)
}

/// Sends writes from one port to another, and checks what arrives but for the identification.
fn cross(from: &mut impl Port, to: &mut impl Port, mtu: usize) -> Vec<Arrived> {
    let (mut batch, count) = writes(from, to.caps().addrs[0], mtu);
    let arrived = carry(from, &mut batch, to, count);
    assert_eq!(psns(&arrived), (0..count as u32).collect::<Vec<_>>());
    for datagram in &arrived {
        assert_eq!(datagram.outer.flow, full_flow(from, to.caps().addrs[0]));
        assert_ne!(datagram.verdict, Verdict::Bad);
    }
    arrived
}

fn known_idents(arrived: &[Arrived]) -> Vec<u16> {
    let ident = |d: &Arrived| match d.outer.ident {
        Ident::Known { ident, fragment: DONT_FRAGMENT } => ident,
        other => panic!("{other:?}"),
    };
    arrived.iter().map(ident).collect()
}

#[test]
fn between_raw_ports_every_header_field_arrives_as_it_was_sent() {
    // The identification counts through 0, which the kernel must leave as it is.
    let Some(mut a) = open_raw(fresh_addr(), Some(0xfff0)) else { return };
    let Some(mut b) = open_raw(fresh_addr(), None) else { return };
    let flow = Flow { traffic_class: 0x69, hop_limit: 7, ..flow(&a.caps(), b.caps().addrs[0]) };
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 32, 1024);
    let arrived = carry(&mut a, &mut batch, &mut b, 32);
    assert_eq!(
        known_idents(&arrived),
        (0..32).map(|i| 0xfff0u16.wrapping_add(i)).collect::<Vec<_>>()
    );
    for datagram in &arrived {
        assert_eq!(datagram.outer.flow, flow);
        assert_eq!(datagram.verdict, Verdict::Exact);
    }
    assert_eq!(b.counters().rx_datagrams, 32, "each just once, although loopback shows them twice");
}

#[test]
fn a_udp_port_recovers_the_identification_that_a_raw_port_chose() {
    let Some(mut raw) = open_raw(fresh_addr(), Some(0x1234)) else { return };
    let mut udp = open_udp(fresh_addr());
    let arrived = cross(&mut raw, &mut udp, 1024);
    for (i, datagram) in (0..).zip(&arrived) {
        let guessed =
            matches!(datagram.outer.ident, Ident::Hidden { guess } if guess == 0x1234 + i);
        let recovered = datagram.verdict == Verdict::Recovered { ident: 0x1234 + i };
        assert!(recovered || guessed, "{:?}", datagram.verdict);
    }
}

#[test]
fn a_raw_port_cuts_the_super_packets_of_a_udp_port_and_knows_every_identification() {
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    let mut udp = open_udp(fresh_addr());
    let arrived = cross(&mut udp, &mut raw, 1024);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    // A FIRST with the shorter MIDDLE that ends its run, the other MIDDLEs with the LAST, twice.
    let idents: Vec<u16> = (0..2).chain(0..48).chain(0..2).chain(0..18).collect();
    assert_eq!(known_idents(&arrived), idents);
}

#[test]
fn an_open_raw_port_keeps_the_kernel_from_answering() {
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    let peer = std::net::UdpSocket::bind((fresh_addr(), 0)).unwrap();
    peer.connect(SocketAddr::new(raw.caps().addrs[0], ROCE_PORT)).unwrap();
    for _ in 0..3 {
        // An ICMP answer to the one before would be an error here.
        peer.send(&[0; 16]).unwrap();
    }
    wait_readable(&raw);
    assert_eq!(recv_all(&mut raw, Instant::now()).len(), 3);
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let queued = raw.sockets[0]._hold.recv(&mut byte).unwrap_err();
    assert_eq!(queued.kind(), io::ErrorKind::WouldBlock, "the bound socket's queue stays empty");
}

#[test]
fn datagrams_for_others_are_not_received() {
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    let other = open_udp(fresh_addr());
    let peer = std::net::UdpSocket::bind((fresh_addr(), 0)).unwrap();
    let send = |addr, port| peer.send_to(&[0; 16], SocketAddr::new(addr, port)).unwrap();
    send(other.caps().addrs[0], ROCE_PORT);
    send(raw.caps().addrs[0], ROCE_PORT + 1);
    send(raw.caps().addrs[0], ROCE_PORT);
    wait_readable(&raw);
    assert_eq!(recv_all(&mut raw, Instant::now()).len(), 1);
    assert_eq!(raw.counters().rx_malformed, 0);
}

#[test]
fn without_the_privilege_the_error_says_what_to_do() {
    // Capabilities are a thread's own, so this works for root too.
    let opened = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        RawPort::open(fresh_addr(), &RawOptions::default()).map(|_| ())
    });
    let error = opened.join().unwrap().unwrap_err();
    assert!(matches!(error, OpenError::NoPrivilege), "{error}");
    assert!(error.to_string().contains("setcap cap_net_raw"), "{error}");
}

// Over a cable

#[test]
fn raw_and_udp_ports_understand_each_other_over_a_cable() {
    let Some(cable) = Cable::new(9000) else { return };
    for addrs in [Cable::V4, Cable::V6] {
        let mut raw = cable
            .a
            .run(move || RawPort::open(addrs[0], &RawOptions::default()))
            .expect("namespaces need more privilege than raw sockets");
        let mut udp = cable.b.run(move || open_udp(addrs[1]));
        assert_eq!(raw.caps().interface.as_deref(), Some("wire"));
        assert_eq!(raw.caps().link_mtu, 9000);
        cross(&mut raw, &mut udp, 4096);
        let arrived = cross(&mut udp, &mut raw, 4096);
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    }
}

#[test]
fn a_raw_port_receives_from_itself_whatever_interface_has_the_address() {
    let Some(cable) = Cable::new(1500) else { return };
    for addr in [Cable::V4[0], Cable::V6[0]] {
        let mut raw = cable.a.run(move || RawPort::open(addr, &RawOptions::default())).unwrap();
        let mut batch = batch(&raw.caps());
        push_write(&mut batch, &flow(&raw.caps(), addr), 0, 10, 1024);
        assert_eq!(raw.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        wait_readable(&raw);
        let arrived = recv_all(&mut raw, Instant::now());
        assert_eq!(psns(&arrived), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn datagrams_too_large_for_the_link_are_counted_and_segmentation_stays_on() {
    let Some(cable) = Cable::new(1500) else { return };
    for (i, addrs) in [Cable::V4, Cable::V6].into_iter().enumerate() {
        let mut raw = cable.a.run(move || RawPort::open(addrs[0], &RawOptions::default())).unwrap();
        let mut udp = cable.b.run(move || open_udp(addrs[1]));
        let (mut too_large, count) = writes(&raw, addrs[1], 4096);
        let arrived = carry(&mut raw, &mut too_large, &mut udp, count - 50);
        assert_eq!(psns(&arrived), (50..70).collect::<Vec<_>>(), "the short ones arrive");
        assert_eq!(raw.counters().tx_too_large, 50);

        let (mut too_large, count) = writes(&udp, addrs[0], 4096);
        carry(&mut udp, &mut too_large, &mut raw, count - 50);
        let counters = udp.counters();
        assert_eq!(counters.tx_too_large + counters.tx_failed, 50, "{i}: {counters:?}");
        assert_eq!(udp.caps().segmentation, Segmentation::On);
        cross(&mut udp, &mut raw, 1024);
    }
}

#[test]
fn a_path_mtu_that_icmp_tells_keeps_nothing_from_being_sent() {
    let Some(cable) = Cable::new(9000) else { return };
    // As after a message of ICMP, forged or not.
    cable.a.ip("route add 10.47.91.2/32 dev wire mtu 552");
    cable.a.ip("-6 route add fd47:91::2/128 dev wire mtu 1280");
    for addrs in [Cable::V4, Cable::V6] {
        let mut raw = cable.a.run(move || RawPort::open(addrs[0], &RawOptions::default())).unwrap();
        let mut udp = cable.b.run(move || open_udp(addrs[1]));
        cross(&mut raw, &mut udp, 4096);
    }
}

#[test]
fn an_address_that_only_loopback_has_is_reached_over_the_cable() {
    let Some(cable) = Cable::new(1500) else { return };
    let addr: IpAddr = [10, 9, 9, 9].into();
    cable.a.ip("addr add 10.9.9.9/32 dev lo");
    cable.b.ip("route add 10.9.9.9/32 via 10.47.91.1");
    let mut raw = cable.a.run(move || RawPort::open(addr, &RawOptions::default())).unwrap();
    let mut udp = cable.b.run(|| open_udp(Cable::V4[1]));
    assert_eq!(raw.caps().interface.as_deref(), Some("lo"));
    cross(&mut udp, &mut raw, 1024);
    cross(&mut raw, &mut udp, 1024);
}

#[test]
fn nothing_leaves_from_an_address_that_was_taken_away_unless_it_is_to_be_forged() {
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    let (gone, other) = (raw.caps().addrs[0], fresh_addr());
    raw.add_address(other).unwrap();
    let mut udp = open_udp(fresh_addr());
    let to = udp.caps().addrs[0];
    let mut out = batch(&raw.caps());
    push_write(&mut out, &Flow { src: gone, ..flow(&raw.caps(), to) }, 0, 10, 1024);
    push_write(&mut out, &Flow { src: other, ..flow(&raw.caps(), to) }, 10, 10, 1024);
    raw.remove_address(gone);
    let arrived = carry(&mut raw, &mut out, &mut udp, 10);
    assert_eq!(psns(&arrived), (10..20).collect::<Vec<_>>());
    assert_eq!(raw.counters().tx_wrong_flow, 10);

    let options = RawOptions { forge: true, ..RawOptions::default() };
    let mut forging = RawPort::open(fresh_addr(), &options).unwrap();
    let mut out = batch(&forging.caps());
    push_write(&mut out, &Flow { src: gone, ..flow(&forging.caps(), to) }, 0, 10, 1024);
    let arrived = carry(&mut forging, &mut out, &mut udp, 10);
    assert!(arrived.iter().all(|datagram| datagram.outer.flow.src == gone));
}

#[test]
fn a_group_that_cannot_be_joined_on_another_interface_is_counted_and_the_port_goes_on() {
    let Some(cable) = Cable::new(1500) else { return };
    let (addr, group) = (Cable::V4[0], IpAddr::from([239, 47, 91, 5]));
    let mut port = cable.a.run(move || {
        let mut port = RawPort::open(addr, &RawOptions::default()).unwrap();
        port.join(group).unwrap();
        port
    });
    cable.a.ip("link del wire");
    port.remove_address(addr);
    cable.a.ip("link add other type veth peer name far");
    cable.a.ip("addr add 10.47.91.1/24 dev other");
    let port = cable.a.run(move || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        // The sockets are another process's, and this one has not the right to open any.
        let given = RawGroup::open(addr, None, &RawOptions::default()).unwrap();
        let given = given.give(Slot::ALONE).unwrap();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        port.adopt(given).unwrap();
        port
    });
    let caps = port.caps();
    assert_eq!((caps.addrs, caps.interface.as_deref()), (vec![addr], Some("other")));
    assert_eq!(port.counters().groups_lost, 1);
}

#[test]
fn no_route_is_counted() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut raw = cable.a.run(|| RawPort::open(Cable::V4[0], &RawOptions::default())).unwrap();
    let mut udp = cable.b.run(|| open_udp(Cable::V4[1]));
    let elsewhere = "192.0.2.1".parse().unwrap();
    let (mut batch, count) = writes(&raw, elsewhere, 1024);
    assert_eq!(raw.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(raw.counters().tx_unreachable, count as u64);
    let (mut batch, count) = writes(&udp, elsewhere, 1024);
    assert_eq!(udp.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(udp.counters().tx_unreachable, count as u64);
}

#[test]
fn an_mtu_too_small_for_roce_is_refused_with_the_numbers() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.set_mtu(300);
    let error = cable
        .a
        .run(|| UdpPort::open(Cable::V4[0], &UdpOptions::default()).map(|_| ()).unwrap_err());
    assert!(matches!(error, OpenError::MtuTooSmall { mtu: 300, needed: 301.., .. }), "{error}");
    assert!(error.to_string().contains("ip link set wire mtu"), "{error}");
}

#[test]
fn raw_ports_are_members_like_any_other_and_each_receives_once() {
    let Some(cable) = Cable::new(9000) else { return };
    for (group, addrs) in [("239.47.91.2", Cable::V4), ("ff15::2", Cable::V6)] {
        let group: IpAddr = group.parse().unwrap();
        let mut a = cable.a.run(move || {
            let mut raw = RawPort::open(addrs[0], &RawOptions::default()).unwrap();
            raw.join(group).unwrap();
            raw
        });
        let mut b = cable.b.run(move || {
            let mut udp = open_udp(addrs[1]);
            udp.join(group).unwrap();
            udp
        });
        let (mut batch, datagrams) = writes(&a, group, 1024);
        let arrived = carry(&mut a, &mut batch, &mut b, datagrams);
        assert_eq!(arrived[0].outer.flow, full_flow(&a, group));
        let own = recv_all(&mut a, Instant::now());
        assert_eq!(psns(&own), psns(&arrived), "its own, once");

        let (mut batch, datagrams) = writes(&b, group, 1024);
        let arrived = carry(&mut b, &mut batch, &mut a, datagrams);
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
        assert_eq!(recv_all(&mut b, Instant::now()).len(), datagrams);

        a.leave(group).unwrap();
        let (mut batch, _) = writes(&b, group, 1024);
        assert_eq!(b.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        assert!(recv_all(&mut a, Instant::now()).is_empty());
    }
}

#[test]
fn on_loopback_a_raw_member_receives_from_others_and_itself_once() {
    let group = IpAddr::from([239, 47, 91, 3]);
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    raw.join(group).unwrap();
    let mut udp = open_udp(fresh_addr());
    let (mut batch, count) = writes(&udp, group, 1024);
    let arrived = carry(&mut udp, &mut batch, &mut raw, count);
    assert_eq!(psns(&arrived), (0..count as u32).collect::<Vec<_>>());
    let (mut batch, count) = writes(&raw, group, 1024);
    assert_eq!(raw.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(psns(&recv_all(&mut raw, Instant::now())), (0..count as u32).collect::<Vec<_>>());
}

/// An opcode that has no super-packet partner: single datagrams still arrive.
#[test]
fn a_single_datagram_is_no_super_packet() {
    let Some(mut raw) = open_raw(fresh_addr(), None) else { return };
    let mut udp = open_udp(fresh_addr());
    let mut batch = batch(&udp.caps());
    push(&mut batch, &flow(&udp.caps(), raw.caps().addrs[0]), Opcode::RC_SEND_ONLY, 9, 100);
    let arrived = carry(&mut udp, &mut batch, &mut raw, 1);
    assert_eq!(known_idents(&arrived), [0]);
    assert_eq!(arrived[0].verdict, Verdict::Exact);
}
