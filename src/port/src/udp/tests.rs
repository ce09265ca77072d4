use super::*;
use crate::sys::option;
use crate::testing::network::Cable;
use crate::testing::*;
use std::net::Ipv6Addr;
use urxe_wire::Opcode;
use urxe_wire::icrc::Verdict;

fn open(addr: IpAddr) -> UdpPort {
    UdpPort::open(addr, &UdpOptions::default()).unwrap()
}

fn pair() -> (UdpPort, UdpPort) {
    (open(fresh_addr()), open(fresh_addr()))
}

/// Sends a mix of lengths in both directions and checks every byte of it.
fn round_trip(a: &mut UdpPort, b: &mut UdpPort) {
    let flow = flow(&a.caps(), b.caps().addr);
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
    push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 40, 1024);
    assert_eq!(batch.runs().count(), 2, "the FIRST is longer than the MIDDLEs");
    carry(&mut a, &mut batch, &mut b, 40);
    assert_eq!(a.counters().tx_calls, 1);
    assert_eq!(b.counters().rx_calls, 2, "one for both messages, one to see that it was all");
}

#[test]
fn traffic_class_and_hop_limit_are_the_flows() {
    let (mut a, mut b) = pair();
    for (tclass, hop_limit) in [(0x69, 64), (0, 3), (0x02, 255), (0x03, 1)] {
        let flow = Flow { tclass, hop_limit, ..flow(&a.caps(), b.caps().addr) };
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
    let flow = flow(&a.caps(), b.caps().addr);
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
    push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 100, 1024);
    let arrived = carry(&mut a, &mut batch, &mut b, 100);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
}

#[test]
fn datagrams_that_cannot_go_are_counted_and_the_others_go() {
    let (mut a, mut b) = pair();
    let good = flow(&a.caps(), b.caps().addr);
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
fn a_full_receiver_loses_datagrams_and_says_so() {
    let (mut a, mut b) = pair();
    option::set(b.sockets[0].as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), b.caps().addr), 0, 200, 4096);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    let arrived = recv_all(&mut b, Instant::now()).len() as u64;
    assert!(arrived < 200);
    assert!(b.counters().rx_overflow > 0, "{:?}", b.counters());
}

#[test]
fn an_empty_datagram_is_counted_as_malformed() {
    let mut b = open(fresh_addr());
    let peer = std::net::UdpSocket::bind((fresh_addr(), 0)).unwrap();
    peer.send_to(&[], (b.caps().addr, ROCE_PORT)).unwrap();
    wait_readable(&b);
    assert!(recv_all(&mut b, Instant::now()).is_empty());
    assert_eq!(b.counters().rx_malformed, 1);
}

#[test]
fn a_second_port_on_one_address_is_told_who_has_it() {
    let addr = fresh_addr();
    let _first = open(addr);
    let Err(error) = UdpPort::open(addr, &UdpOptions::default()) else { panic!("opened twice") };
    assert!(matches!(error, OpenError::PortTaken { .. }), "{error}");
}

// Multicast

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
fn hears(port: &mut UdpPort, flow: &Flow, psn: u32) {
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
fn every_member_of_a_group_gets_a_copy_the_sender_too() {
    let (group, [mut a, mut b, mut c]) = (fresh_group(), [(); 3].map(|()| open(fresh_addr())));
    for port in [&mut a, &mut b, &mut c] {
        port.join(group).unwrap();
        port.join(group).unwrap();
    }
    let flow = send_to_group(&mut a, group, 0);
    assert_eq!(flow.dst, group, "the group is what the ICRC covers");
    for port in [&mut a, &mut b, &mut c] {
        hears(port, &flow, 0);
    }
    b.leave(group).unwrap();
    b.leave(group).unwrap();
    let flow = send_to_group(&mut c, group, 100);
    hears(&mut a, &flow, 100);
    hears(&mut c, &flow, 100);
    assert!(recv_all(&mut b, Instant::now()).is_empty(), "who has left hears nothing");
    b.join(group).unwrap();
    let flow = send_to_group(&mut a, group, 200);
    hears(&mut b, &flow, 200);
}

#[test]
fn a_sender_that_is_no_member_hears_nothing_of_itself() {
    let (group, (mut a, mut b)) = (fresh_group(), pair());
    b.join(group).unwrap();
    let flow = send_to_group(&mut a, group, 0);
    hears(&mut b, &flow, 0);
    assert!(recv_all(&mut a, Instant::now()).is_empty());
}

#[test]
fn other_groups_and_own_traffic_do_not_mix() {
    let (mut a, mut b) = pair();
    let (one, other) = (fresh_group(), fresh_group());
    a.join(one).unwrap();
    b.join(other).unwrap();
    let to_one = send_to_group(&mut b, one, 0);
    let to_other = send_to_group(&mut a, other, 100);
    hears(&mut a, &to_one, 0);
    hears(&mut b, &to_other, 100);
    // And between the addresses as ever.
    round_trip_back(a, b);
}

#[test]
fn over_the_ipv6_loopback_address_a_port_hears_itself() {
    let addr = Ipv6Addr::LOCALHOST.into();
    let mut port = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
    for group in ["ff02::4791", "ff15::4791"] {
        let group: IpAddr = group.parse().unwrap();
        port.join(group).unwrap();
        let flow = send_to_group(&mut port, group, 0);
        hears(&mut port, &flow, 0);
        port.leave(group).unwrap();
        let _ = send_to_group(&mut port, group, 100);
        assert!(recv_all(&mut port, Instant::now()).is_empty());
    }
}

#[test]
fn only_a_group_can_be_joined() {
    let mut port = open(fresh_addr());
    for wrong in [fresh_addr(), Ipv6Addr::LOCALHOST.into(), [255; 4].into()] {
        for error in [port.join(wrong).unwrap_err(), port.leave(wrong).unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&format!("{wrong}: not a multicast")), "{error}");
        }
    }
}

#[test]
fn over_a_cable_the_members_on_both_ends_hear_and_so_does_the_sender() {
    let Some(cable) = Cable::new(9000) else { return };
    let groups = [("239.47.91.1", Cable::V4), ("ff02::4791", Cable::V6), ("ff15::1", Cable::V6)];
    for (group, addrs) in groups {
        let group: IpAddr = group.parse().unwrap();
        let joined = move |own: usize| {
            move || {
                let mut port = open(addrs[own]);
                port.join(group).unwrap();
                port
            }
        };
        let (mut a, mut b) = (cable.a.run(joined(0)), cable.b.run(joined(1)));
        let flow = send_to_group(&mut a, group, 0);
        hears(&mut a, &flow, 0);
        hears(&mut b, &flow, 0);
        assert_eq!(b.counters().rx_calls, 1, "all of it in one call");
    }
}
