mod ecn;
mod group;
mod icmp;
mod inboxes;
mod loopback;
mod messages;
mod multicast;
mod pollers;
mod source_filter;
mod source_ports;

use super::*;
use crate::sys::option;
use crate::testing::network::Cable;
use crate::testing::*;
use std::net::Ipv6Addr;
use urxe_shell::testing::could_not_run;
use urxe_wire::icrc::Verdict;
use urxe_wire::{Flow, Opcode};

fn open(addr: IpAddr) -> UdpPort {
    UdpPort::open(addr, &UdpOptions::default()).unwrap()
}

fn pair() -> (UdpPort, UdpPort) {
    (open(fresh_addr()), open(fresh_addr()))
}

/// Sends a mix of lengths in both directions and checks every byte of it.
fn round_trip(a: &mut UdpPort, b: &mut UdpPort) {
    let flow = flow(&a.caps(), b.caps().addrs[0]);
    let mut batch = batch(&a.caps());
    for (psn, mtu, packets) in [(0, 1024, 64), (100, 4096, 16), (200, 256, 5), (300, 1024, 2)] {
        push_write(&mut batch, &flow, psn, packets, mtu);
    }
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 400, 1);
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 401, 3);
    let sent: Vec<Vec<u8>> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
    let (runs, datagrams) = (batch.runs().count(), sent.len());
    assert!(runs < datagrams / 4, "{runs} runs of {datagrams} datagrams");

    let arrived = carry(a, &mut batch, b, datagrams);
    for (got, sent) in arrived.iter().zip(&sent) {
        assert_eq!(got.bytes, *sent);
        assert_eq!(got.verdict, Verdict::Exact, "PSN {}", got.psn());
        assert_eq!(got.outer.flow, flow);
    }
    assert_eq!(a.counters().tx_datagrams, datagrams as u64);
    assert_eq!(b.counters().rx_datagrams, datagrams as u64);
    assert_eq!(b.counters().rx_bytes, a.counters().tx_bytes);
}

/// A group that no other test of this machine is likely to use: with the last bytes of a fresh
/// address.
fn fresh_group() -> IpAddr {
    let IpAddr::V4(addr) = fresh_addr() else { unreachable!("a fresh address is IPv4") };
    let [_, b, c, d] = addr.octets();
    [239, b, c, d].into()
}

/// Sends to a group a WRITE of 20 packets from `psn`, with a hop limit that is not the usual one.
fn send_to_group(from: &mut UdpPort, group: IpAddr, psn: u32) -> Flow {
    let flow = Flow { hop_limit: 7, ..flow(&from.caps(), group) };
    let mut batch = batch(&from.caps());
    push_write(&mut batch, &flow, psn, 20, 1024);
    assert_eq!(from.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    flow
}

/// Checks that a port receives just what was sent, once, every ICRC exact.
fn assert_receives(port: &mut UdpPort, flow: &Flow, psn: u32) {
    let mut arrived = Vec::new();
    while arrived.len() < 20 {
        wait_readable(port);
        arrived.extend(recv_all(port, Instant::now()));
    }
    assert_eq!(psns(&arrived), (psn..psn + 20).collect::<Vec<_>>());
    for datagram in arrived {
        assert_eq!((datagram.outer.flow, datagram.verdict), (*flow, Verdict::Exact));
    }
}

#[test]
fn whole_batches_cross_ipv4_with_every_icrc_exact() {
    let (mut a, mut b) = pair();
    round_trip(&mut a, &mut b);
    round_trip_back(a, b);
}

fn round_trip_back(mut a: UdpPort, mut b: UdpPort) {
    a.counters = PortCounters::default();
    b.counters = PortCounters::default();
    round_trip(&mut b, &mut a);
}

#[test]
fn whole_batches_cross_ipv6_with_every_icrc_exact() {
    let addr = Ipv6Addr::LOCALHOST.into();
    let mut a = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
    // There is but one ::1, so the port talks to itself.
    let flow = flow(&a.caps(), addr);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 60, 1024);
    push_write(&mut batch, &flow, 100, 3, 4096);
    let sent: Vec<Vec<u8>> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    let mut arrived = Vec::new();
    while arrived.len() < sent.len() {
        wait_readable(&a);
        arrived.extend(recv_all(&mut a, Instant::now()));
    }
    for (got, sent) in arrived.iter().zip(&sent) {
        assert_eq!((&got.bytes, got.verdict), (sent, Verdict::Exact));
        assert_eq!(got.outer.flow, flow);
    }
}

#[test]
fn a_run_goes_out_in_one_call_and_comes_in_as_one_message() {
    let (mut a, mut b) = pair();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), b.caps().addrs[0]), 0, 40, 1024);
    assert_eq!(batch.runs().count(), 2, "the FIRST is longer than the MIDDLEs");
    carry(&mut a, &mut batch, &mut b, 40);
    assert_eq!(a.counters().tx_calls, 1);
    assert_eq!(b.counters().rx_calls, 2, "one for both messages, one to see that it was all");
}

#[test]
fn traffic_class_and_hop_limit_are_the_flows() {
    let (mut a, mut b) = pair();
    for (traffic_class, hop_limit) in [(0x69, 64), (0, 3), (0x02, 255), (0x03, 1)] {
        let flow = Flow { traffic_class, hop_limit, ..flow(&a.caps(), b.caps().addrs[0]) };
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &flow, 0, 4, 256);
        let arrived = carry(&mut a, &mut batch, &mut b, 4);
        assert!(arrived.iter().all(|d| d.outer.flow == flow), "{:?}", arrived[0].outer);
    }
}

/// Makes the kernel refuse `UDP_SEGMENT`, as it does for devices without checksum offload: it
/// wants checksums for segmenting.
fn refuse_segmentation(port: &UdpPort) {
    option::set(port.sockets[0].as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
}

#[test]
fn refused_segmentation_is_turned_off_for_good_and_nothing_is_lost() {
    let (mut a, mut b) = pair();
    refuse_segmentation(&a);
    let flow = flow(&a.caps(), b.caps().addrs[0]);
    let mut old = batch(&a.caps());
    for first_psn in [0, 100] {
        push_write(&mut old, &flow, first_psn, 40, 1024);
        let arrived = carry(&mut a, &mut old, &mut b, 40);
        assert_eq!(psns(&arrived), (first_psn..first_psn + 40).collect::<Vec<_>>());
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    }
    assert_eq!(a.caps().segmentation, Segmentation::Refused { errno: libc::EINVAL });
    assert_eq!(a.caps().tx_limits, TxLimits::SINGLE);
    assert_eq!(a.counters().segmentation_refused, 1);

    // A batch that was made before and has not seen the refusal.
    let mut other = TxBatch::new(TxLimits::segmented(64), 1 << 20);
    push_write(&mut other, &flow, 200, 40, 1024);
    let arrived = carry(&mut a, &mut other, &mut b, 40);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
}

#[test]
fn without_segmentation_everything_crosses_too() {
    let options = UdpOptions { segmentation: false, ..UdpOptions::default() };
    let mut a = UdpPort::open(fresh_addr(), &options).unwrap();
    let mut b = open(fresh_addr());
    assert_eq!(a.caps().segmentation, Segmentation::Off);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), b.caps().addrs[0]), 0, 100, 1024);
    let arrived = carry(&mut a, &mut batch, &mut b, 100);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
}

#[test]
fn datagrams_that_cannot_go_are_counted_and_the_others_go() {
    let (mut a, mut b) = pair();
    let good = flow(&a.caps(), b.caps().addrs[0]);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &Flow { src_port: 50000, ..good }, 0, 3, 256);
    push_write(&mut batch, &Flow { src: fresh_addr(), ..good }, 10, 4, 256);
    push_write(&mut batch, &Flow { dst: Ipv6Addr::LOCALHOST.into(), ..good }, 20, 5, 256);
    // Limited broadcast needs SO_BROADCAST, which we do not set.
    push_write(&mut batch, &Flow { dst: [255; 4].into(), ..good }, 30, 6, 256);
    push_write(&mut batch, &good, 40, 7, 256);
    let arrived = carry(&mut a, &mut batch, &mut b, 7);
    assert_eq!(psns(&arrived), (40..47).collect::<Vec<_>>());
    let counters = a.counters();
    assert_eq!((counters.tx_wrong_flow, counters.tx_forbidden), (12, 6));
    assert_eq!(counters.tx_datagrams, 7);
    assert_eq!(a.caps().segmentation, Segmentation::On);
}

#[test]
fn a_full_receiver_loses_datagrams_and_counts_them() {
    let (mut a, mut b) = pair();
    option::set(b.sockets[0].as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), b.caps().addrs[0]), 0, 200, 4096);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    let arrived = recv_all(&mut b, Instant::now()).len() as u64;
    assert!(arrived < 200);
    assert!(b.counters().rx_overflow > 0, "{:?}", b.counters());
}

#[test]
fn the_fill_of_the_queue_is_that_of_what_was_received() {
    let (mut a, mut b) = pair();
    let flow = flow(&a.caps(), b.caps().addrs[0]);
    assert_eq!(b.receive_fill(Instant::now()), None);
    let (mut rx, mut out) = (RxBatch::new(4), batch(&a.caps()));
    let mut receive = |b: &mut UdpPort| {
        let received = b.recv(Instant::now(), &mut rx).unwrap();
        (received, b.receive_fill(Instant::now()))
    };
    for psn in 0..20 {
        let flow = Flow { hop_limit: 60 + psn as u8 % 2, ..flow };
        push(&mut out, &flow, Opcode::RC_SEND_ONLY, psn, 4096);
    }
    assert_eq!(a.send(Instant::now(), &mut out).unwrap(), SendOutcome::Done);
    let fills = [receive(&mut b), receive(&mut b)];
    let capacity = b.sockets[0].receive_capacity() as f32;
    let [(4, Some(first)), (4, Some(second))] = fills else { panic!("{fills:?}") };
    assert!(first >= 4.0 * 4096.0 / capacity, "what was taken: {first}");
    assert!(second >= 16.0 * 4096.0 / capacity, "what waited before it was taken: {second}");
    while receive(&mut b).0 > 0 {}
    assert_eq!(receive(&mut b), (0, None));
}

#[test]
fn an_empty_datagram_is_counted_as_malformed() {
    let mut b = open(fresh_addr());
    let peer = std::net::UdpSocket::bind((fresh_addr(), 0)).unwrap();
    peer.send_to(&[], (b.caps().addrs[0], ROCE_PORT)).unwrap();
    wait_readable(&b);
    assert!(recv_all(&mut b, Instant::now()).is_empty());
    assert_eq!(b.counters().rx_malformed, 1);
}

#[test]
fn a_second_port_on_one_address_is_refused_with_a_way_to_find_the_first() {
    let addr = fresh_addr();
    let _first = open(addr);
    let Err(error) = UdpPort::open(addr, &UdpOptions::default()) else { panic!("opened twice") };
    assert!(matches!(error, OpenError::PortTaken { .. }), "{error}");
}

// Several addresses

/// A port on the loopback interface with two addresses.
fn open_two() -> (UdpPort, [IpAddr; 2]) {
    let mut port = UdpPort::open_interface("lo", &UdpOptions::default()).unwrap();
    assert_eq!(port.caps().addrs, [] as [IpAddr; 0]);
    let addrs = [fresh_addr(), fresh_addr()];
    for addr in addrs {
        port.add_address(addr).unwrap();
        port.add_address(addr).unwrap();
    }
    assert_eq!(port.caps().addrs, addrs);
    (port, addrs)
}

#[test]
fn each_datagram_leaves_from_the_address_that_its_flow_names() {
    let ((mut a, [one, other]), mut b) = (open_two(), open(fresh_addr()));
    let from_one = Flow { src: one, ..flow(&a.caps(), b.caps().addrs[0]) };
    let from_other = Flow { src: other, ..from_one };
    let mut batch = batch(&a.caps());
    for (i, flow) in [from_one, from_other, from_other, from_one].iter().enumerate() {
        push_write(&mut batch, flow, 100 * i as u32, 10, 1024);
    }
    let arrived = carry(&mut a, &mut batch, &mut b, 40);
    for datagram in &arrived {
        let src = if matches!(datagram.psn() / 100, 0 | 3) { one } else { other };
        assert_eq!((datagram.outer.flow.src, datagram.verdict), (src, Verdict::Exact));
    }
    assert_eq!(a.counters().tx_calls, 2, "one for each source");
}

#[test]
fn datagrams_to_any_address_are_received_and_say_which() {
    let ((mut a, addrs), mut b) = (open_two(), open(fresh_addr()));
    let mut batch = batch(&b.caps());
    for (i, dst) in addrs.into_iter().enumerate() {
        push_write(&mut batch, &flow(&b.caps(), dst), 100 * i as u32, 10, 1024);
    }
    let arrived = carry(&mut b, &mut batch, &mut a, 20);
    for datagram in &arrived {
        let dst = addrs[datagram.psn() as usize / 100];
        assert_eq!((datagram.outer.flow.dst, datagram.verdict), (dst, Verdict::Exact));
    }
}

#[test]
fn a_vanished_address_costs_its_own_datagrams_and_no_others() {
    let ((mut a, [one, other]), mut b) = (open_two(), open(fresh_addr()));
    let peer = b.caps().addrs[0];
    let from_one = Flow { src: one, ..flow(&a.caps(), peer) };
    let mut out = batch(&a.caps());
    push_write(&mut out, &from_one, 0, 10, 1024);
    push_write(&mut out, &Flow { src: other, ..from_one }, 100, 10, 1024);
    a.remove_address(one);
    a.remove_address(one);
    assert_eq!(a.caps().addrs, [other]);
    let arrived = carry(&mut a, &mut out, &mut b, 10);
    assert!(arrived.iter().all(|datagram| datagram.outer.flow.src == other));
    assert_eq!(a.counters().tx_wrong_flow, 10);

    // Its datagrams go to nobody, and the other's arrive; and it can come back.
    let mut out = batch(&b.caps());
    push_write(&mut out, &flow(&b.caps(), other), 0, 10, 1024);
    carry(&mut b, &mut out, &mut a, 10);
    a.add_address(one).unwrap();
    push_write(&mut out, &flow(&b.caps(), one), 0, 10, 1024);
    carry(&mut b, &mut out, &mut a, 10);
    assert_eq!(b.counters().tx_datagrams, 20);
}

#[test]
fn a_port_without_addresses_sends_nothing_and_receives_nothing() {
    let mut port = UdpPort::open_interface("lo", &UdpOptions::default()).unwrap();
    let src = fresh_addr();
    let flow =
        Flow { src, dst: src, src_port: ROCE_PORT, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let mut batch = batch(&port.caps());
    push_write(&mut batch, &flow, 0, 10, 1024);
    assert_eq!(port.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(port.counters().tx_wrong_flow, 10);
    assert!(recv_all(&mut port, Instant::now()).is_empty());
}

#[test]
fn an_interface_that_is_none_is_refused_with_those_there_are() {
    let error = crate::check_interface("eth-none").expect_err("no such interface").to_string();
    assert!(error.contains("eth-none is no network interface") && error.contains("lo"), "{error}");
    crate::check_interface("lo").unwrap();
}

#[test]
fn a_port_begins_on_an_interface_that_is_yet_to_come() {
    let mut port = UdpPort::open_interface("eth-none", &UdpOptions::default()).unwrap();
    assert_eq!(port.caps().interface.as_deref(), Some("eth-none"));
    port.add_address(fresh_addr()).unwrap();
    assert_eq!(port.caps().interface.as_deref(), Some("lo"));
    round_trip(&mut port, &mut open(fresh_addr()));
}

#[test]
fn an_address_that_has_gone_since_its_socket_was_opened_can_be_adopted() {
    let Some(cable) = Cable::new(1500) else { return };
    let (addr, options) = (Cable::V4[0], UdpOptions::default());
    let (mut port, mut group) = cable.a.run(move || {
        let port = UdpPort::open_interface("wire", &UdpOptions::default()).unwrap();
        (port, UdpGroup::open(addr, None, &options, SlotCount::ONE).unwrap())
    });
    cable.a.ip("addr del 10.47.91.1/24 dev wire");
    let given = group.give(SlotId::BROKER).unwrap();
    let port = cable.a.run(move || {
        port.adopt(given).unwrap();
        port.remove_address(addr);
        port
    });
    assert_eq!(port.caps().interface.as_deref(), Some("wire"));
}

#[test]
fn a_path_mtu_that_icmp_tells_keeps_nothing_from_being_sent() {
    let Some(cable) = Cable::new(9000) else { return };
    // As after a message of ICMP, forged or not.
    cable.a.ip("route add 10.47.91.2/32 dev wire mtu 552");
    cable.a.ip("-6 route add fd47:91::2/128 dev wire mtu 1280");
    for addrs in [Cable::V4, Cable::V6] {
        let (mut a, mut b) =
            (cable.a.run(move || open(addrs[0])), cable.b.run(move || open(addrs[1])));
        let mut out = batch(&a.caps());
        push_write(&mut out, &flow(&a.caps(), addrs[1]), 0, 40, 4096);
        let arrived = carry(&mut a, &mut out, &mut b, 40);
        assert!(arrived.iter().all(|datagram| datagram.verdict == Verdict::Exact));
        assert_eq!(a.caps().segmentation, Segmentation::On);
    }
}

#[test]
fn where_another_program_has_flow_labels_for_itself_packets_go_without() {
    let Some(cable) = Cable::new(1500) else { return };
    let [src, dst] = Cable::V6;
    let (mut a, mut b) = (cable.a.run(move || open(src)), cable.b.run(move || open(dst)));
    let flow = Flow { flow_label: 0xabcde, ..flow(&a.caps(), dst) };
    let mut labels = |labelled: bool| {
        let mut out = batch(&a.caps());
        push_write(&mut out, &flow, 0, 20, 1024);
        let arrived = carry(&mut a, &mut out, &mut b, 20);
        let label = if labelled { flow.flow_label } else { 0 };
        for datagram in arrived {
            assert_eq!(datagram.outer.flow, Flow { flow_label: label, ..flow });
            assert_eq!(datagram.verdict, Verdict::Exact);
        }
        (a.counters().flow_labels_refused, a.caps().segmentation)
    };
    assert_eq!(labels(true), (0, Segmentation::On));
    let other = cable.a.run(move || {
        let other = std::net::UdpSocket::bind((src, 0)).unwrap();
        let IpAddr::V6(dst) = dst else { unreachable!("it is of IPv6") };
        option::lease_flow_label(other.as_fd(), dst, 0x12345).unwrap();
        other
    });
    assert_eq!(labels(false), (1, Segmentation::On));
    drop(other);
    assert_eq!(labels(false), (1, Segmentation::On), "the packets of a flow stay alike");
}

/// Fills the queues between two ports: what `from` sends stays in its send buffer, as `to`'s device
/// is slowed down to next to nothing.
fn fill_and_go_on(src_port: u16) {
    let Some(cable) = Cable::new(1500) else { return };
    let more: IpAddr = [10, 47, 91, 11].into();
    cable.a.ip("addr add 10.47.91.11/24 dev wire");
    let mut a = cable.a.run(move || {
        let mut port = UdpPort::open(Cable::V4[0], &UdpOptions::default()).unwrap();
        port.add_address(more).unwrap();
        // Opens the socket of the source port, in this namespace.
        let mut out = batch(&port.caps());
        let flow = Flow { src_port, ..flow(&port.caps(), Cable::V4[1]) };
        push(&mut out, &flow, Opcode::RC_SEND_ONLY, 0, 16);
        assert_eq!(port.send(Instant::now(), &mut out).unwrap(), SendOutcome::Done);
        port
    });
    let mut b = cable.b.run(|| open(Cable::V4[1]));
    // Two packets' worth of send buffer, and a queue that lets one through every 25 ms or so.
    if !cable.a.tc("qdisc add dev wire root tbf rate 500kbit burst 1600 limit 1000000") {
        return could_not_run("this kernel has no tbf queue discipline");
    }
    let one = Flow { src_port, ..flow(&a.caps(), Cable::V4[1]) };
    let mut out = batch(&a.caps());
    let index = a.sockets.position(Cable::V4[0]).unwrap();
    let sender = a.sockets[index].sender(src_port);
    option::set(sender, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4096).unwrap();
    for psn in 0..20 {
        push(
            &mut out,
            &Flow { hop_limit: 64 - psn as u8 % 2, ..one },
            Opcode::RC_SEND_ONLY,
            psn,
            1024,
        );
    }
    assert_eq!(a.send(Instant::now(), &mut out).unwrap(), SendOutcome::Blocked);
    let mut other = batch(&a.caps());
    push(&mut other, &Flow { src: more, ..one }, Opcode::RC_SEND_ONLY, 100, 16);
    assert_eq!(a.send(Instant::now(), &mut other).unwrap(), SendOutcome::Done);
    let mut arrived = Vec::new();
    while a.send(Instant::now(), &mut out).unwrap() == SendOutcome::Blocked {
        wait_readable(&a);
        arrived.extend(recv_all(&mut b, Instant::now()));
    }
    while arrived.len() < 21 {
        wait_readable(&b);
        arrived.extend(recv_all(&mut b, Instant::now()));
    }
    assert!(a.counters().tx_blocked > 0);
    let ports = arrived.iter().filter(|datagram| datagram.outer.flow.src_port == src_port);
    assert_eq!(ports.count(), if src_port == ROCE_PORT { 21 } else { 20 });
}

#[test]
fn a_full_socket_makes_the_port_ready_when_it_has_room_and_the_other_addresses_still_send() {
    fill_and_go_on(ROCE_PORT);
}

#[test]
fn a_full_send_socket_makes_the_port_ready_when_it_has_room() {
    fill_and_go_on(FIRST_SOURCE_PORT + 3);
}
