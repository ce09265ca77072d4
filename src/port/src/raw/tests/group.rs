//! One address for several slots.

use super::*;
use crate::sys::option;
use crate::testing::slots::*;
use urxe_types::{Qpn, SlotCount};

/// The ports of all slots of an address, or `None` and the reason printed.
fn open_slots(addr: IpAddr, slots: SlotCount) -> Option<Vec<RawPort>> {
    let options = RawOptions::default();
    let group = open_shared(|| RawGroup::open(addr, None, &options));
    let mut ports = Vec::new();
    for slot in slots.slots() {
        let sockets = match group.give(slot) {
            Err(error @ OpenError::NoPrivilege) => {
                needs_root(&error.to_string());
                return None;
            }
            sockets => sockets.unwrap(),
        };
        let mut port = RawPort::open_interface("lo", &options).unwrap();
        port.adopt(sockets).unwrap();
        ports.push(port);
    }
    Some(ports)
}

#[test]
fn each_slot_gets_what_is_for_its_qps_over_ipv4() {
    let addr = fresh_addr();
    let Some(mut ports) = open_slots(addr, count(8)) else { return };
    each_slot_gets_what_is_for_its_qps(addr, &mut ports);
}

#[test]
fn each_slot_gets_what_is_for_its_qps_over_ipv6() {
    let Some(mut ports) = open_slots(LOCALHOST_V6, count(8)) else { return };
    each_slot_gets_what_is_for_its_qps(LOCALHOST_V6, &mut ports);
}

#[test]
fn every_qpn_comes_to_its_slot_however_many_there_are() {
    for (addr, slots) in [(fresh_addr(), 2), (LOCALHOST_V6, 3), (fresh_addr(), 33)] {
        let Some(mut ports) = open_slots(addr, count(slots)) else { return };
        every_qpn_comes_to_its_slot(addr, &mut ports);
    }
}

#[test]
fn the_multicast_qpn_is_the_brokers_with_the_most_slots_too() {
    let addr = fresh_addr();
    let Some(mut ports) = open_slots(addr, SlotCount::MAX) else { return };
    send_plainly(&stranger(addr), addr, &[0xff_ffff, 0xff_fffe, 63 << 18], 32);
    let arrived = arrivals(&mut ports, 3);
    assert_eq!(dest_qpns(&arrived[0]), [0xff_ffff]);
    assert_eq!(dest_qpns(&arrived[63]), [0xff_fffe, 63 << 18]);
}

#[test]
fn trains_arrive_whole_at_their_slots() {
    let (addr, mut from) = (fresh_addr(), open_udp(fresh_addr()));
    let Some(mut ports) = open_slots(addr, count(8)) else { return };
    let (flow, mut batch) = (flow(&from.caps(), addr), batch(&from.caps()));
    for psn in 0..120 {
        let slot = if psn < 40 { 3 } else { 5 };
        push_to(&mut batch, &flow, Qpn::new(slot << 18 | 0x77), psn, 1024);
    }
    assert_eq!(from.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    let arrived = arrivals(&mut ports, 120);
    assert_eq!(psns(&arrived[3]), (0..40).collect::<Vec<_>>());
    assert_eq!(psns(&arrived[5]), (40..120).collect::<Vec<_>>());
    assert!(arrived.iter().flatten().all(|d| d.verdict == Verdict::Exact));
}

#[test]
fn the_address_is_taken_as_long_as_any_slot_has_it() {
    let addr = fresh_addr();
    let Some(ports) = open_slots(addr, count(2)) else { return };
    for port in ports {
        let error = RawGroup::open(addr, None, &RawOptions::default()).unwrap_err();
        assert!(matches!(error, OpenError::PortTaken { .. }), "{error}");
        let Err(error) = UdpPort::open(addr, &UdpOptions::default()) else { panic!("opened") };
        assert!(matches!(error, OpenError::PortTaken { .. }), "{error}");
        drop(port);
    }
    assert!(RawGroup::open(addr, None, &RawOptions::default()).is_ok());
}

#[test]
fn a_holder_of_the_sockets_of_a_slot_cannot_change_their_filter() {
    let addr = fresh_addr();
    let Some(ports) = open_slots(addr, count(2)) else { return };
    let packet = ports[1].sockets[0].as_fd();
    let detached = option::set(packet, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
    assert_eq!(detached.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn sockets_that_are_too_few_are_refused() {
    let addr = fresh_addr();
    let options = UdpOptions::default();
    let mut group = crate::udp::UdpGroup::open(addr, None, &options, count(1)).unwrap();
    let mut port = RawPort::open_interface("lo", &RawOptions::default()).unwrap();
    let given = group.give(urxe_types::SlotId::BROKER).unwrap();
    let sentence = port.adopt(given).unwrap_err().to_string();
    assert!(sentence.contains("1 sockets, expected three"), "{sentence}");
}
