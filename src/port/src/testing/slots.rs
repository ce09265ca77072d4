//! What the tests of back-ends with several slots share.

use super::{Arrived, fresh_addr, recv_all};
use crate::Port;
use crate::sim::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Instant;
use urxe_types::{Qpn, SlotCount};
use urxe_wire::{Bth, ROCE_PORT};

pub(crate) const LOCALHOST_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

pub(crate) fn count(slots: usize) -> SlotCount {
    slots.try_into().unwrap()
}

/// A socket that is none of ours.
pub(crate) fn stranger(to: IpAddr) -> UdpSocket {
    let addr = if to.is_ipv4() { fresh_addr() } else { to };
    UdpSocket::bind((addr, 0)).unwrap()
}

/// Sends the first `len` bytes of a datagram to each of these QPs.
pub(crate) fn send_plainly(from: &UdpSocket, to: IpAddr, qpns: &[u32], len: usize) {
    for qpn in qpns {
        let mut bytes = [0; 32];
        bytes[4..8].copy_from_slice(&(0xff00_0000 | qpn).to_be_bytes());
        from.send_to(&bytes[..len], (to, ROCE_PORT)).unwrap();
    }
}

/// What each port receives until all of them together have so many datagrams.
pub(crate) fn arrivals(ports: &mut [impl Port], datagrams: usize) -> Vec<Vec<Arrived>> {
    let mut arrived = vec![Vec::new(); ports.len()];
    while arrived.iter().map(Vec::len).sum::<usize>() < datagrams {
        let watch = |port| PollFd::from_borrowed_fd(Port::fd(port).unwrap(), PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = ports.iter().map(watch).collect();
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "nothing arrives: {arrived:?}");
        for (port, arrived) in ports.iter_mut().zip(&mut arrived) {
            arrived.extend(recv_all(port, Instant::now()));
        }
    }
    arrived
}

/// The QPNs of what arrived.
pub(crate) fn dest_qpns(arrived: &[Arrived]) -> Vec<u32> {
    let qpn = |datagram: &Arrived| Bth::dest_qp_in(&datagram.bytes).unwrap().get();
    arrived.iter().map(qpn).collect()
}

/// Sends to all kinds of QPNs at an address that these ports have, one for each of eight slots.
pub(crate) fn each_slot_gets_what_is_for_its_qps(addr: IpAddr, ports: &mut [impl Port]) {
    let from = stranger(addr);
    let special = [0, 1, 0x3_ffff, 8 << 18, 40 << 18 | 7, 0xff_fffe, 0xff_ffff];
    send_plainly(&from, addr, &special, 32);
    let of_slots: Vec<u32> = (1..8).flat_map(|id| [id << 18, id << 18 | 0x3_ffff]).collect();
    send_plainly(&from, addr, &of_slots, 32);
    // Too short to be for any QP.
    send_plainly(&from, addr, &[7 << 18], 7);
    let arrived = arrivals(ports, special.len() + of_slots.len() + 1);
    let (last, others) = arrived[0].split_last().unwrap();
    assert_eq!(last.bytes.len(), 7);
    assert_eq!(dest_qpns(others), special);
    for (id, arrived) in (0..).zip(&arrived).skip(1) {
        assert_eq!(dest_qpns(arrived), [id << 18, id << 18 | 0x3_ffff], "slot {id}");
    }
}

/// Sends to QPNs of all slots that there can be, and looks at which of these ports they arrive: all
/// slots of an address.
pub(crate) fn every_qpn_comes_to_its_slot(addr: IpAddr, ports: &mut [impl Port]) {
    let slots = count(ports.len());
    let mut rng = Rng::new(ports.len() as u64);
    let ends = (0..64).flat_map(|id| [id << 18, id << 18 | 0x3_ffff]);
    let qpns: Vec<u32> = ends.chain((0..300).map(|_| rng.next_u64() as u32 & 0xff_ffff)).collect();
    let from = stranger(addr);
    let mut expected = vec![Vec::new(); ports.len()];
    let mut arrived = expected.clone();
    // No more at a time than the smallest buffer has room for.
    for qpns in qpns.chunks(64) {
        send_plainly(&from, addr, qpns, 32);
        for &qpn in qpns {
            expected[slots.slot_of(Qpn::new(qpn)).index()].push(qpn);
        }
        for (all, new) in arrived.iter_mut().zip(arrivals(ports, qpns.len())) {
            all.extend(dest_qpns(&new));
        }
    }
    assert_eq!(arrived, expected);
}
