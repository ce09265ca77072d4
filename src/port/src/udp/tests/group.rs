//! One address for several slots.

use super::*;
use crate::testing::network::Namespace;
use crate::testing::slots::*;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_uid};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::thread;
use urxe_shell::testing::needs_root;
use urxe_types::Qpn;

pub(super) fn slot(id: usize) -> SlotId {
    SlotCount::MAX.slot(id).unwrap().id()
}

/// A group, on an address that other tests may be using at the moment.
pub(super) fn open_group(addr: IpAddr, slots: usize) -> UdpGroup {
    open_shared(|| UdpGroup::open(addr, None, &UdpOptions::default(), count(slots)))
}

/// The port of a slot of a group.
fn port_of(group: &mut UdpGroup, id: usize) -> UdpPort {
    let options = UdpOptions { slot: slot(id), ..UdpOptions::default() };
    let mut port = UdpPort::open_interface("lo", &options).unwrap();
    port.adopt(group.give(slot(id)).unwrap()).unwrap();
    port
}

fn ports_of(group: &mut UdpGroup, slots: usize) -> Vec<UdpPort> {
    (0..slots).map(|id| port_of(group, id)).collect()
}

/// Adds packets for a QP.
fn push_sends(batch: &mut TxBatch, flow: &Flow, qpn: u32, psn: u32, packets: u32) {
    for psn in psn..psn + packets {
        push_to(batch, flow, Qpn::new(qpn), psn, 1024);
    }
}

#[test]
fn each_slot_gets_what_is_for_its_qps_over_ipv4() {
    let addr = fresh_addr();
    let mut group = open_group(addr, 8);
    each_slot_gets_what_is_for_its_qps(addr, &mut ports_of(&mut group, 8));
}

#[test]
fn each_slot_gets_what_is_for_its_qps_over_ipv6() {
    let mut group = open_group(LOCALHOST_V6, 8);
    each_slot_gets_what_is_for_its_qps(LOCALHOST_V6, &mut ports_of(&mut group, 8));
}

#[test]
fn every_qpn_comes_to_its_slot_however_many_there_are() {
    for (addr, slots) in [(fresh_addr(), 2), (LOCALHOST_V6, 3), (fresh_addr(), 33)] {
        let mut group = open_group(addr, slots);
        every_qpn_comes_to_its_slot(addr, &mut ports_of(&mut group, slots));
    }
}

#[test]
fn the_multicast_qpn_is_the_brokers_with_the_most_slots_too() {
    let addr = fresh_addr();
    let mut group = open_group(addr, 64);
    let mut ports = [port_of(&mut group, 0), port_of(&mut group, 63)];
    send_plainly(&stranger(addr), addr, &[0xff_ffff, 0xff_fffe, 63 << 18], 32);
    let [to_broker, to_last] = <[_; 2]>::try_from(arrivals(&mut ports, 3)).unwrap();
    assert_eq!(dest_qpns(&to_broker), [0xff_ffff]);
    assert_eq!(dest_qpns(&to_last), [0xff_fffe, 63 << 18]);
}

/// Sends three trains for two of eight slots, the middle one for another than the others.
fn send_trains(from: &mut UdpPort, to: IpAddr) {
    let (flow, mut batch) = (flow(&from.caps(), to), batch(&from.caps()));
    for (psn, id) in [(0, 5), (100, 3), (200, 5)] {
        push_sends(&mut batch, &flow, id << 18 | 0x1234, psn, 40);
    }
    assert_eq!(batch.runs().count(), 3, "a run ends where the slot changes");
    assert_eq!(from.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(from.counters().tx_calls, 1);
}

/// Checks that each train arrives at its slot.
fn assert_trains_arrive(ports: &mut [UdpPort]) {
    let arrived = arrivals(ports, 120);
    let psns_of = |first: u32| first..first + 40;
    assert_eq!(psns(&arrived[3]), psns_of(100).collect::<Vec<_>>());
    assert_eq!(psns(&arrived[5]), psns_of(0).chain(psns_of(200)).collect::<Vec<_>>());
    assert!(arrived.iter().flatten().all(|datagram| datagram.verdict == Verdict::Exact));
}

#[test]
fn trains_arrive_whole_at_their_slots_over_ipv4() {
    let (addr, mut from) = (fresh_addr(), open(fresh_addr()));
    let mut group = open_group(addr, 8);
    let mut ports = ports_of(&mut group, 8);
    send_trains(&mut from, addr);
    assert_trains_arrive(&mut ports);
}

#[test]
fn trains_arrive_whole_at_their_slots_over_ipv6() {
    let mut group = open_group(LOCALHOST_V6, 8);
    let mut ports = ports_of(&mut group, 8);
    // There is but one ::1, so that a slot talks to others.
    send_trains(&mut ports[7], LOCALHOST_V6);
    assert_trains_arrive(&mut ports);
}

/// Passes sockets over a Unix socket, as to another process.
fn pass(sockets: AddressSockets) -> AddressSockets {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let fds: Vec<_> = sockets.fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&here, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    drop(sockets.fds);

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(&there, &mut [IoSliceMut::new(&mut byte)], &mut control, flags).unwrap();
    let fds: Vec<OwnedFd> = control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    AddressSockets { addr: sockets.addr, fds }
}

/// The users that a test can be: this one and, for root, one without any rights.
fn users() -> impl Iterator<Item = Option<Uid>> {
    let nobody = geteuid().is_root().then(|| Uid::from_raw(65534));
    [None].into_iter().chain(nobody.map(Some))
}

#[test]
fn a_slot_works_with_sockets_that_were_passed_to_another_user() {
    for user in users() {
        let addr = fresh_addr();
        let mut group = open_group(addr, 4);
        let (sockets, mut peer) = (pass(group.give(slot(3)).unwrap()), open(fresh_addr()));
        let (peer_addr, peer_caps) = (peer.caps().addrs[0], peer.caps());
        let of_slot = thread::spawn(move || {
            if let Some(user) = user {
                set_thread_uid(user).unwrap();
            }
            let options = UdpOptions { slot: slot(3), ..UdpOptions::default() };
            let mut port = UdpPort::open_interface("lo", &options).unwrap();
            port.adopt(sockets).unwrap();
            wait_readable(&port);
            let arrived = recv_all(&mut port, Instant::now());
            assert_eq!(dest_qpns(&arrived), [3 << 18 | 7]);
            // What needs a socket of its own, and what does not.
            let SourcePorts::Pool { first, count: 16 } = port.caps().source_ports else {
                panic!("{:?}", port.caps().source_ports)
            };
            let mut answers = batch(&port.caps());
            for src_port in [ROCE_PORT, first + 15] {
                let flow = Flow { src_port, ..flow(&port.caps(), peer_addr) };
                push_sends(&mut answers, &flow, 0x11, 0, 1);
            }
            assert_eq!(port.send(Instant::now(), &mut answers).unwrap(), SendOutcome::Done);
            assert_eq!(port.counters().source_ports_refused, 0);
            first + 15
        });
        let mut batch = batch(&peer_caps);
        push_sends(&mut batch, &flow(&peer_caps, addr), 3 << 18 | 7, 0, 1);
        assert_eq!(peer.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        let own_port = of_slot.join().unwrap();
        let answers = &arrivals(std::slice::from_mut(&mut peer), 2)[0];
        let from: Vec<u16> = answers.iter().map(|d| d.outer.flow.src_port).collect();
        assert_eq!(from, [ROCE_PORT, own_port]);
        assert!(answers.iter().all(|d| d.verdict == Verdict::Exact));
    }
}

#[test]
fn sockets_of_another_address_or_too_many_are_refused() {
    let [addr, other] = [fresh_addr(), fresh_addr()];
    let mut group = open_group(addr, 2);
    let mut port = UdpPort::open_interface("lo", &UdpOptions::default()).unwrap();
    let wrong = AddressSockets { addr: other, ..group.give(SlotId::BROKER).unwrap() };
    let sentence = port.adopt(wrong).unwrap_err().to_string();
    assert!(sentence.contains(&format!("expected {other}, port 4791")), "{sentence}");
    let mut two = group.give(SlotId::BROKER).unwrap();
    two.fds.extend(group.give(slot(1)).unwrap().fds);
    let sentence = port.adopt(two).unwrap_err().to_string();
    assert!(sentence.contains("2 sockets, expected one"), "{sentence}");
    assert!(port.caps().addrs.is_empty());
}

fn a_slot_that_is_gone_keeps_its_place(addr: IpAddr) {
    let mut group = open_group(addr, 8);
    let (mut ports, from) = (ports_of(&mut group, 8), stranger(addr));
    let one_each: Vec<u32> = (0..8).map(|id| id << 18 | 0x55).collect();
    for id in [3, 0, 7] {
        // The port goes with what it has not received; later ones find nobody.
        send_plainly(&from, addr, &[one_each[id]], 32);
        wait_readable(&ports[id]);
        drop(ports.remove(id));
        group.take_back(slot(id)).unwrap();
        send_plainly(&from, addr, &one_each, 32);
        let others: Vec<u32> =
            one_each.iter().copied().filter(|qpn| *qpn != one_each[id]).collect();
        let arrived: Vec<Vec<u32>> =
            arrivals(&mut ports, 7).iter().map(|arrived| dest_qpns(arrived)).collect();
        assert_eq!(arrived, others.iter().map(|qpn| vec![*qpn]).collect::<Vec<_>>());

        ports.insert(id, port_of(&mut group, id));
        send_plainly(&from, addr, &one_each, 32);
        assert_eq!(ports[id].counters().rx_overflow, 0, "what came before is not its own loss");
        let arrived: Vec<Vec<u32>> =
            arrivals(&mut ports, 8).iter().map(|arrived| dest_qpns(arrived)).collect();
        assert_eq!(arrived, one_each.iter().map(|qpn| vec![*qpn]).collect::<Vec<_>>());
    }
    // What waited, and what came meanwhile.
    assert_eq!(group.dropped(), 3 * 2);
    group.take_back(slot(5)).unwrap();
    send_plainly(&from, addr, &one_each, 32);
    arrivals(&mut ports, 7);
    assert_eq!(group.dropped(), 3 * 2 + 1);
}

#[test]
fn a_slot_that_is_gone_keeps_its_place_over_ipv4() {
    a_slot_that_is_gone_keeps_its_place(fresh_addr());
}

#[test]
fn a_slot_that_is_gone_keeps_its_place_over_ipv6() {
    a_slot_that_is_gone_keeps_its_place(LOCALHOST_V6);
}

#[test]
fn steering_that_was_taken_away_is_set_again() {
    const SO_DETACH_REUSEPORT_BPF: i32 = 68;
    let addr = fresh_addr();
    let mut group = open_group(addr, 4);
    let (mut ports, from) = (ports_of(&mut group, 4), stranger(addr));
    let one_each: Vec<u32> = (0..4).map(|id| id << 18 | 0x55).collect();
    let holder = ports[2].sockets[0].as_fd();
    option::set(holder, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0).unwrap();
    send_plainly(&from, addr, &one_each, 32);
    let arrived = arrivals(&mut ports, 4);
    let counts: Vec<usize> = arrived.iter().map(Vec::len).filter(|count| *count > 0).collect();
    assert_eq!(counts, [4], "without a filter, what has one source goes to one socket");
    group.steer().unwrap();
    send_plainly(&from, addr, &one_each, 32);
    let counts: Vec<usize> = arrivals(&mut ports, 4).iter().map(Vec::len).collect();
    assert_eq!(counts, [1; 4]);
}

#[test]
fn a_second_daemon_of_the_same_user_is_refused_however_many_slots_either_has() {
    for [first, second] in [[1, 8], [8, 1], [8, 8]] {
        let addr = fresh_addr();
        let _first = open_group(addr, first);
        let options = UdpOptions::default();
        let error = UdpGroup::open(addr, None, &options, count(second)).unwrap_err();
        assert!(matches!(error, OpenError::PortTaken { addr: of } if of == addr), "{error}");
    }
}

#[test]
fn of_daemons_that_start_at_one_time_one_has_the_address() {
    for _ in 0..20 {
        let addr = fresh_addr();
        let open = || UdpGroup::open(addr, None, &UdpOptions::default(), count(4));
        let opened: Vec<Result<UdpGroup, OpenError>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let taken =
            |opened: &&Result<UdpGroup, _>| matches!(opened, Err(OpenError::PortTaken { .. }));
        assert_eq!(opened.iter().filter(taken).count(), 3, "{opened:?}");
        assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{opened:?}");
    }
}

#[test]
fn a_socket_that_this_user_binds_beside_a_group_is_sent_nothing() {
    let addr = fresh_addr();
    let mut group = open_group(addr, 4);
    let mut ports = ports_of(&mut group, 4);
    let interface = crate::open::find_interface(addr, None).unwrap();
    let intruder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    intruder.set_reuse_port(true).unwrap();
    intruder.set_nonblocking(true).unwrap();
    intruder.bind(&crate::open::socket_addr(addr, ROCE_PORT, interface.index).into()).unwrap();
    let all: Vec<u32> = (0..64).map(|id| id << 18).collect();
    send_plainly(&stranger(addr), addr, &all, 32);
    let arrived = arrivals(&mut ports, 64);
    assert_eq!(arrived.iter().map(Vec::len).collect::<Vec<_>>(), [61, 1, 1, 1]);
    let nothing = intruder.recv(&mut [MaybeUninit::uninit()]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_user_without_rights_cannot_bind_beside_a_group() {
    if !geteuid().is_root() {
        return needs_root("it takes two users");
    }
    let addr = fresh_addr();
    let _group = open_group(addr, 4);
    let bound = thread::spawn(move || {
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
        socket.set_reuse_port(true)?;
        socket.set_reuse_address(true)?;
        socket.bind(&std::net::SocketAddr::new(addr, ROCE_PORT).into())
    });
    assert_eq!(bound.join().unwrap().unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn every_slot_that_joins_a_group_gets_each_datagram_whosever_it_is() {
    for user in users() {
        let (addr, to) = (fresh_addr(), fresh_group());
        let mut group = open_group(addr, 4);
        let mut ports: Vec<UdpPort> = (0..3)
            .map(|id| {
                let mut port = port_of(&mut group, id);
                let join = move || {
                    if let Some(user) = user.filter(|_| id == 2) {
                        set_thread_uid(user).unwrap();
                    }
                    port.join(to).unwrap();
                    port
                };
                thread::spawn(join).join().unwrap()
            })
            .collect();
        let mut outsider = port_of(&mut group, 3);
        let flow = send_to_group(&mut ports[1], to, 0);
        for port in &mut ports {
            assert_receives(port, &flow, 0);
        }
        assert!(recv_all(&mut outsider, Instant::now()).is_empty());
    }
}

#[test]
fn no_two_slots_send_from_one_source_port() {
    let pool = |id, source_ports| {
        let options = UdpOptions { slot: slot(id), source_ports, ..UdpOptions::default() };
        let port = UdpPort::open_interface("lo", &options).unwrap();
        let SourcePorts::Pool { first, count } = port.caps().source_ports else { panic!() };
        first..first + u16::from(count)
    };
    for source_ports in [2, 16, 255] {
        let mut last_end = FIRST_SOURCE_PORT;
        for id in 0..64 {
            let pool = pool(id, source_ports);
            assert_eq!((pool.start, pool.len()), (last_end, source_ports.into()));
            last_end = pool.end;
        }
    }
}

/// Ports of all slots of a group in a namespace.
fn ports_in(namespace: &Namespace, addr: IpAddr, slots: usize) -> (UdpGroup, Vec<UdpPort>) {
    namespace.run(move || {
        let mut group = open_group(addr, slots);
        let ports = (0..slots).map(|id| {
            let options = UdpOptions { slot: slot(id), ..UdpOptions::default() };
            let mut port = UdpPort::open_interface("wire", &options).unwrap();
            port.adopt(group.give(slot(id)).unwrap()).unwrap();
            port
        });
        let ports = ports.collect();
        (group, ports)
    })
}

#[test]
fn over_a_cable_trains_arrive_whole_at_their_slots_also_where_the_kernel_joins_datagrams() {
    for gro in ["off", "on"] {
        let Some(cable) = Cable::new(9000) else { return };
        if !cable.b.set_gro(gro) {
            return could_not_run("no ethtool, or it cannot set gro");
        }
        for [from, to] in [Cable::V4, Cable::V6] {
            let (_group, mut ports) = ports_in(&cable.b, to, 8);
            let mut from = cable.a.run(move || open(from));
            send_trains(&mut from, to);
            assert_trains_arrive(&mut ports);
        }
    }
}

#[test]
fn slots_that_come_later_get_what_is_for_them_and_the_others_as_before() {
    for addr in [fresh_addr(), LOCALHOST_V6] {
        let mut group = open_group(addr, 2);
        let (mut ports, from) = (ports_of(&mut group, 2), stranger(addr));
        group.take_back(slot(5)).unwrap();
        let one_each: Vec<u32> = (0..8).map(|id| id << 18 | 0x55).collect();
        send_plainly(&from, addr, &one_each, 32);
        let counts: Vec<usize> = arrivals(&mut ports, 8).iter().map(Vec::len).collect();
        assert_eq!(counts, [7, 1], "what names no slot that there is yet is the broker's");
        for (later, expected) in [(5, [3, 1, 1].as_slice()), (7, &[1, 1, 1, 1])] {
            ports.push(port_of(&mut group, later));
            send_plainly(&from, addr, &one_each, 32);
            // Those in between have a socket, which nobody has been given.
            let arrived = arrivals(&mut ports, expected.iter().sum());
            assert_eq!(arrived.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            let last = dest_qpns(arrived.last().unwrap());
            assert_eq!(last, [one_each[later]]);
        }
    }
}
