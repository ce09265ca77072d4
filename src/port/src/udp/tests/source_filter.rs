//! Sources that are refused.

use super::*;
use crate::Receivers;
use std::net::{SocketAddr, UdpSocket};
use urxe_types::{Psn, Qpn};
use urxe_wire::Bth;

const DATA: Qpn = Qpn::new(0x12_3456);

/// Has each of them send a datagram to this QP, and returns whose have arrived.
fn arrive(port: &mut UdpPort, senders: &[UdpSocket], qpn: Qpn) -> Vec<SocketAddr> {
    let to = SocketAddr::new(port.caps().addrs[0], ROCE_PORT);
    let bth = Bth::new(qpn, Psn::default()).emit(Opcode::RC_SEND_ONLY);
    for sender in senders {
        sender.send_to(&[&bth[..], &[7; 64]].concat(), to).unwrap();
    }
    let flows = recv_all(port, Instant::now()).into_iter().map(|arrived| arrived.outer.flow);
    flows.map(|flow| SocketAddr::new(flow.src, flow.src_port)).collect()
}

/// What these send to all QPs but QP1.
fn data_of(senders: &[SocketAddr]) -> Vec<PacketSource> {
    let to = Receivers::AllBut(Qpn::GSI);
    senders.iter().map(|&from| PacketSource { from, to }).collect()
}

fn refused_and_lost(port: &UdpPort) -> (u64, u64) {
    let counters = port.counters();
    (counters.rx_refused, counters.rx_overflow)
}

/// Sends from these addresses to a port, which refuses the first, then the others, then nobody.
fn test_refusal(port: &mut UdpPort, from: [IpAddr; 3]) {
    let senders = from.map(|addr| UdpSocket::bind((addr, 0)).unwrap());
    let all = senders.each_ref().map(|sender| sender.local_addr().unwrap());
    assert_eq!(arrive(port, &senders, DATA), all);
    assert!(port.refuse_sources(&data_of(&all[..1])));
    assert_eq!(arrive(port, &senders, DATA), all[1..]);
    assert_eq!(refused_and_lost(port), (1, 0));
    assert!(port.refuse_sources(&data_of(&all[1..])));
    assert_eq!(arrive(port, &senders, DATA), all[..1]);
    assert_eq!(arrive(port, &senders, DATA), all[..1]);
    assert_eq!(refused_and_lost(port), (5, 0));
    // Of one of them all but the messages to QP1, and of another nothing but these.
    let messages = PacketSource { from: all[1], to: Receivers::Only(Qpn::GSI) };
    assert!(port.refuse_sources(&[data_of(&all[..1]), vec![messages]].concat()));
    assert_eq!(arrive(port, &senders, DATA), all[1..]);
    assert_eq!(arrive(port, &senders, Qpn::GSI), [all[0], all[2]]);
    assert_eq!(refused_and_lost(port), (7, 0));
    assert!(port.refuse_sources(&[]));
    assert_eq!(arrive(port, &senders, DATA), all);
    assert_eq!(refused_and_lost(port), (7, 0));
}

#[test]
fn refused_sources_are_dropped_and_counted_and_no_others() {
    let [one, other] = [fresh_addr(), fresh_addr()];
    // The second differs from the first by its port alone.
    test_refusal(&mut open(fresh_addr()), [one, one, other]);
}

#[test]
fn refused_sources_are_dropped_over_ipv6_too() {
    let addr = Ipv6Addr::LOCALHOST.into();
    let mut port = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
    test_refusal(&mut port, [addr; 3]);
}

#[test]
fn sources_are_told_apart_by_every_part_of_their_address() {
    let Some(Cable { a, b }) = Cable::new(1500) else { return };
    let [near, far] = Cable::V6;
    let mut port = b.run(move || open(far));
    let senders = a.run(move || [(); 2].map(|()| UdpSocket::bind((near, 0)).unwrap()));
    let port_of = |sender: &UdpSocket| sender.local_addr().unwrap().port();
    // Each differs from the first sender by one bit in another word of its address.
    let IpAddr::V6(near) = near else { unreachable!("it is IPv6") };
    let others = [0, 4, 8, 12].map(|byte| {
        let mut octets = near.octets();
        octets[byte] ^= 1;
        SocketAddr::new(octets.into(), port_of(&senders[0]))
    });
    assert!(port.refuse_sources(&data_of(&others)));
    assert_eq!(arrive(&mut port, &senders, DATA).len(), 2);
    let first = SocketAddr::new(near.into(), port_of(&senders[0]));
    assert!(port.refuse_sources(&data_of(&[first])));
    assert_eq!(arrive(&mut port, &senders, DATA).len(), 1);
}
