//! What slots of one process send each other.

use super::group::{open_group, slot};
use super::*;
use crate::testing::slots::arrivals;
use std::convert::Infallible;
use std::thread;
use urxe_types::{Psn, Qpn};
use urxe_wire::{Body, Bth, Headers};

/// Slots 1 and 2 of a process, which have two devices; the first has these addresses.
struct Slots {
    groups: Vec<UdpGroup>,
    options: UdpOptions,
    inboxes: Arc<Inboxes>,
}

impl Slots {
    fn new(addresses: usize) -> Slots {
        let inboxes = Arc::new(Inboxes::new(1..3, 2));
        let groups = (0..addresses).map(|_| open_group(fresh_addr(), 3)).collect();
        let options = UdpOptions { loopback: true, ..UdpOptions::default() };
        Slots { groups, options, inboxes }
    }

    /// The port of one of them for a device, without any address.
    fn port_of(&self, device: usize, id: usize) -> UdpPort {
        let inboxes = Arc::clone(&self.inboxes);
        let inbox = Some(InboxOfDevice { inboxes, device });
        let options = UdpOptions { slot: slot(id), inbox, ..self.options.clone() };
        UdpPort::open_interface("lo", &options).unwrap()
    }

    /// The port of one of them for the first device, begun anew.
    fn port(&mut self, id: usize) -> UdpPort {
        let mut port = self.port_of(0, id);
        for group in &mut self.groups {
            port.adopt(group.give(slot(id)).unwrap()).unwrap();
        }
        port
    }
}

/// A QP of a slot.
fn qpn_of(id: u32) -> Qpn {
    Qpn::new(id << 18 | 0x11)
}

/// Sends packets of these PSNs from a port to a QP of a slot at its own first address.
fn send(from: &mut UdpPort, id: u32, psns: std::ops::Range<u32>, len: usize) {
    send_to(from, from.caps().addrs[0], id, psns, len);
}

/// The same to another address.
fn send_to(from: &mut UdpPort, addr: IpAddr, id: u32, psns: std::ops::Range<u32>, len: usize) {
    let (flow, mut batch) = (flow(&from.caps(), addr), batch(&from.caps()));
    for psn in psns {
        push_to(&mut batch, &flow, qpn_of(id), psn, len);
    }
    assert_eq!(from.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert!(batch.is_empty());
}

#[test]
fn slots_of_one_process_reach_each_other_and_the_kernel_has_none_of_it() {
    let mut slots = Slots::new(1);
    let mut ports = [slots.port(1), slots.port(2)];
    send(&mut ports[0], 2, 0..100, 4096);
    send(&mut ports[1], 1, 100..103, 8);
    send(&mut ports[0], 2, 103..104, 1);
    let [to_first, to_second] = <[_; 2]>::try_from(arrivals(&mut ports, 104)).unwrap();
    assert_eq!(psns(&to_first), [100, 101, 102]);
    assert_eq!(psns(&to_second), (0..100).chain([103]).collect::<Vec<_>>());
    for got in to_first.iter().chain(&to_second) {
        assert_eq!(got.verdict, Verdict::Exact);
    }
    let [first, second] = ports.map(|port| port.counters());
    assert_eq!((first.tx_calls, second.tx_calls), (0, 0));
    assert_eq!((first.loopback_datagrams, second.loopback_datagrams), (101, 3));
    assert_eq!((first.tx_datagrams, second.tx_datagrams), (101, 3));
    assert_eq!((first.rx_datagrams, second.rx_datagrams), (3, 101));
    assert_eq!((first.rx_bytes, second.rx_bytes), (second.tx_bytes, first.tx_bytes));
}

/// CONG-038
#[test]
fn packets_of_another_slot_are_told_apart_from_all_others() {
    let mut slots = Slots::new(1);
    let (mut first, mut second) = (slots.port(1), slots.port(2));
    let mut rx = RxBatch::default();
    let mut receive = |port: &mut UdpPort| {
        port.recv(Instant::now(), &mut rx).unwrap();
        (rx.len(), rx.is_within_process())
    };
    send(&mut first, 2, 0..2, 8);
    assert_eq!(receive(&mut second), (2, true));
    assert_eq!(receive(&mut second), (0, false));
    send(&mut second, 2, 0..3, 8);
    assert_eq!(receive(&mut second), (3, false), "what it sends itself");
    let mut elsewhere = slots.port(0);
    send(&mut second, 0, 0..1, 8);
    wait_readable(&elsewhere);
    assert_eq!(receive(&mut elsewhere), (1, false), "what comes through the kernel");
}

/// A wake-up that is lost between a look and the sleep after it ends this.
#[test]
fn a_slot_that_sleeps_is_woken_each_time_however_many_sockets_it_has() {
    const ROUNDS: u32 = 3000;
    for addresses in [1, 2] {
        let mut slots = Slots::new(addresses);
        let (mut first, mut second) = (slots.port(1), slots.port(2));
        let receive_one = |port: &mut UdpPort| loop {
            let arrived = recv_all(port, Instant::now());
            if !arrived.is_empty() {
                return psns(&arrived);
            }
            wait_readable(port);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for psn in 0..ROUNDS {
                    assert_eq!(receive_one(&mut second), [psn]);
                    send(&mut second, 1, psn..psn + 1, 8);
                }
            });
            for psn in 0..ROUNDS {
                send(&mut first, 2, psn..psn + 1, 8);
                assert_eq!(receive_one(&mut first), [psn]);
            }
        });
        assert_eq!(first.counters().tx_calls, 0);
    }
}

/// A slot that looks by itself, and sleeps only when nothing comes for a while, as an event loop
/// does. A wake-up that is lost between its last look and its sleep ends this.
#[test]
fn a_slot_is_told_of_what_comes_only_while_it_does_not_look_by_itself() {
    const ROUNDS: u32 = 3000;
    let mut slots = Slots::new(1);
    let (mut first, mut second) = (slots.port(1), slots.port(2));
    second.disarm();
    send(&mut first, 2, 0..1, 8);
    assert!(!is_readable_within(&second, 0) && second.has_waiting());
    assert!(!second.arm(), "it has come before");
    assert_eq!(psns(&recv_all(&mut second, Instant::now())), [0]);
    assert!(second.arm() && !second.has_waiting());
    send(&mut first, 2, 1..2, 8);
    wait_readable(&second);
    assert_eq!(psns(&recv_all(&mut second, Instant::now())), [1]);
    let receive_one = |port: &mut UdpPort, looks: u32| {
        let mut seen = 0;
        loop {
            let arrived = recv_all(port, Instant::now());
            if !arrived.is_empty() {
                return psns(&arrived);
            }
            seen += 1;
            if seen > looks && port.arm() {
                wait_readable(port);
                port.disarm();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for psn in 0..ROUNDS {
                assert_eq!(receive_one(&mut second, psn % 3), [psn]);
                send(&mut second, 1, psn..psn + 1, 8);
            }
        });
        for psn in 0..ROUNDS {
            send(&mut first, 2, psn..psn + 1, 8);
            assert_eq!(receive_one(&mut first, psn % 5), [psn]);
        }
    });
}

#[test]
fn a_slot_that_does_not_receive_loses_what_comes_last_and_nobody_waits_for_it() {
    let mut slots = Slots::new(1);
    let (mut first, mut second) = (slots.port(1), slots.port(2));
    send(&mut first, 2, 0..10, 4096);
    let now = Instant::now();
    let before = recv_all(&mut second, now).len();
    assert_eq!(before, 10);
    assert!(second.receive_fill(now).is_some_and(|fill| fill < 0.1));
    for psn in (0..2000).step_by(200) {
        send(&mut first, 2, psn..psn + 200, 4096);
    }
    let arrived = recv_all(&mut second, now);
    assert_eq!(second.receive_fill(now), Some(1.0));
    let lost = first.counters().loopback_overflow;
    assert!(lost > 0 && arrived.len() > 500, "{lost} lost, {} arrived", arrived.len());
    assert_eq!(psns(&arrived), (0..2000 - lost as u32).collect::<Vec<_>>());
    // It goes on.
    send(&mut first, 2, 5000..5001, 8);
    assert_eq!(psns(&recv_all(&mut second, now)), [5000]);
    assert_eq!(first.counters().loopback_overflow, lost);
    assert_eq!(first.counters().tx_datagrams, 2011);
}

/// WIRE-203
#[test]
fn datagrams_of_other_slots_take_no_room_from_reliable_connections() {
    let mut slots = Slots::new(1);
    let (mut first, mut second) = (slots.port(1), slots.port(2));
    let lost = send_datagrams(&mut first, second.caps().addrs[0]);
    assert!((1300..1700).contains(&lost), "{lost} lost");
    (2000..2400).step_by(100).for_each(|psn| send(&mut first, 2, psn..psn + 100, 4096));
    assert_eq!(first.counters().loopback_overflow, lost, "these have room still");
    let now = Instant::now();
    let arrived = psns(&recv_all(&mut second, now));
    assert_eq!(arrived, (0..2000 - lost as u32).chain(2000..2400).collect::<Vec<_>>());
    // Of the half of the room that RC is to take at most: 1.6 MB of 2.
    let fill = second.receive_fill(now).unwrap();
    assert!((0.7..0.95).contains(&fill), "{fill}");
    // Between two devices of one slot they may have all.
    let mut other_device = slots.port_of(1, 2);
    let socket = open_group(fresh_addr(), 3).give(slot(2)).unwrap();
    other_device.adopt(socket).unwrap();
    let lost = send_datagrams(&mut other_device, second.caps().addrs[0]);
    assert!((800..1200).contains(&lost), "{lost} lost");
}

/// Sends 2,000 datagrams of 4 KiB to a QP of slot 2. Returns how many there was no room for.
fn send_datagrams(from: &mut UdpPort, addr: IpAddr) -> u64 {
    let (flow, mut batch) = (flow(&from.caps(), addr), batch(&from.caps()));
    for first in (0..2000).step_by(100) {
        for psn in first..first + 100 {
            let bth = Bth::new(qpn_of(2), Psn::new(psn));
            let headers = Headers::new(bth, Body::zeroed(Opcode::UD_SEND_ONLY));
            let Ok(()) = batch.push(&flow, &headers, 4096, |bytes| {
                bytes.fill(0);
                Ok::<(), Infallible>(())
            });
        }
        assert_eq!(from.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    }
    from.counters().loopback_overflow
}

#[test]
fn a_slot_that_is_gone_is_reached_through_the_kernel_and_its_successor_gets_what_is_new() {
    let mut slots = Slots::new(1);
    let (mut first, second) = (slots.port(1), slots.port(2));
    send(&mut first, 2, 0..5, 8);
    drop(second);
    send(&mut first, 2, 5..6, 8);
    assert_eq!((first.counters().loopback_datagrams, first.counters().tx_calls), (5, 1));
    // One that hangs, and does not know yet that another is in its place.
    let mut hanging = slots.port(2);
    send(&mut first, 2, 6..7, 8);
    let mut second = slots.port(2);
    send(&mut first, 2, 7..9, 8);
    let now = Instant::now();
    let of_memory = |arrived: Vec<Arrived>| {
        psns(&arrived).into_iter().filter(|psn| *psn != 5).collect::<Vec<_>>()
    };
    assert!(of_memory(recv_all(&mut hanging, now)).is_empty());
    assert_eq!(of_memory(recv_all(&mut second, now)), [7, 8]);
    drop(hanging);
    send(&mut first, 2, 9..10, 8);
    assert_eq!(of_memory(recv_all(&mut second, now)), [9]);
    assert_eq!(first.counters().tx_calls, 1);
}

#[test]
fn the_network_is_heard_however_much_another_slot_sends() {
    let mut slots = Slots::new(1);
    let (mut first, mut second) = (slots.port(1), slots.port(2));
    let mut other = open(fresh_addr());
    let to_second = flow(&other.caps(), second.caps().addrs[0]);
    let mut from_other = batch(&other.caps());
    push_to(&mut from_other, &to_second, qpn_of(2), 1000, 8);
    let (now, mut rx) = (Instant::now(), RxBatch::default());
    assert_eq!(other.send(now, &mut from_other).unwrap(), SendOutcome::Done);
    wait_readable(&second);
    let mut seen = Vec::new();
    let mut heard = None;
    for psn in 0..20 {
        send(&mut first, 2, psn..psn + 1, 8);
        send(&mut second, 2, 100 + psn..101 + psn, 8);
        assert!(second.recv(now, &mut rx).unwrap() > 0);
        keep(&mut rx, &mut seen);
        if psns(&seen).contains(&1000) {
            heard.get_or_insert(psn);
        }
    }
    assert!(heard.is_some_and(|call| call <= 2), "{heard:?}");
    seen.extend(recv_all(&mut second, now));
    assert_eq!(seen.len(), 41);
}

#[test]
fn a_port_that_is_to_use_the_kernel_neither_sends_nor_receives_so() {
    let mut slots = Slots::new(1);
    slots.options.loopback = false;
    let by_kernel = slots.port(1);
    slots.options.loopback = true;
    let mut ports = [by_kernel, slots.port(2)];
    send(&mut ports[0], 2, 0..3, 8);
    send(&mut ports[1], 1, 3..6, 8);
    let [to_first, to_second] = <[_; 2]>::try_from(arrivals(&mut ports, 6)).unwrap();
    assert_eq!((psns(&to_first), psns(&to_second)), (vec![3, 4, 5], vec![0, 1, 2]));
    for port in &mut ports {
        assert_eq!((port.counters().loopback_datagrams, port.counters().tx_calls), (0, 1));
    }
}

#[test]
fn devices_of_one_process_reach_each_other_too_as_long_as_they_have_their_addresses() {
    let mut slots = Slots::new(1);
    let mut first = slots.port(1);
    let mut group = open_group(fresh_addr(), 3);
    let mut second = slots.port_of(1, 1);
    second.adopt(group.give(slot(1)).unwrap()).unwrap();
    let [addr, second_addr] = [&first, &second].map(|port| port.caps().addrs[0]);
    let now = Instant::now();
    send_to(&mut first, second_addr, 1, 0..3, 100);
    send_to(&mut second, addr, 1, 3..5, 100);
    assert_eq!(psns(&recv_all(&mut second, now)), [0, 1, 2]);
    let arrived = recv_all(&mut first, now);
    assert_eq!(psns(&arrived), [3, 4]);
    assert!(arrived.iter().all(|got| got.verdict == Verdict::Exact));
    assert_eq!((arrived[0].outer.flow.src, arrived[0].outer.flow.dst), (second_addr, addr));
    assert_eq!((first.counters().tx_calls, second.counters().tx_calls), (0, 0));
    // One that it has no more is the network's, and so is one that no device has.
    second.remove_address(second_addr);
    send_to(&mut first, second_addr, 1, 5..6, 100);
    send_to(&mut first, fresh_addr(), 1, 6..7, 100);
    assert_eq!((first.counters().tx_calls, first.counters().loopback_datagrams), (2, 3));
    assert!(recv_all(&mut second, now).is_empty());
    // The other device has it now.
    drop(group);
    first.adopt(open_group(second_addr, 3).give(slot(1)).unwrap()).unwrap();
    send(&mut first, 1, 7..8, 100);
    send_to(&mut first, second_addr, 1, 8..9, 100);
    assert_eq!(psns(&recv_all(&mut first, now)), [7, 8]);
}

#[test]
fn a_link_local_address_of_another_device_may_be_a_peers_too_and_is_the_networks() {
    let slots = Slots::new(0);
    let (mut first, second) = (slots.port_of(0, 1), slots.port_of(1, 1));
    let of_peer: IpAddr = "fe80::2".parse().unwrap();
    let of_link: IpAddr = "2001:db8::2".parse().unwrap();
    let inbox = first.inbox.as_mut().unwrap();
    for (addr, expected) in [(of_peer, None), (of_link, Some(1 << 1))] {
        second.inbox.as_ref().unwrap().add_address(addr);
        assert_eq!(inbox.place_of(addr, false, slot(1)), expected);
    }
    // One of our own device is ours.
    assert_eq!(inbox.place_of(of_peer, true, slot(2)), Some(1));
    assert_eq!(inbox.place_of(of_link, false, slot(3)), None);
}
