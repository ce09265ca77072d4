//! Event channels and ids: what is told where, how often, and what is counted; ports in use;
//! programs that end in the middle of it.

use crate::cm_client::{Caller, addr_of, create_channel, param};
use crate::harness::{Client, Random, eventually, start, start_with};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use urxe_daemon::Handle;
use urxe_shm::control::{
    CmChannelHandle, CmConnParam, CmEventKind, CmIdHandle, CmMulticastHandle, CmOption,
    CmPortSpace, CmReply, CmRequest, CmSubject, Reply, Request,
};
use urxe_types::{QpState, QpType};

const TCP: CmPortSpace = CmPortSpace::Tcp;
const UDP: CmPortSpace = CmPortSpace::Udp;

/// The reasons with which a program refuses, and with which nobody is there.
const CONSUMER: i32 = 28;
const NO_LISTENER: i32 = 8;

/// A listener and somebody who connects, of one daemon.
struct Pair {
    daemon: Handle,
    passive: Caller,
    active: Caller,
    listener: CmIdHandle,
    to: SocketAddr,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(start(1))
    }

    fn of(daemon: Handle) -> Pair {
        let (mut passive, active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
        let to = SocketAddr::new(addr_of(&daemon), 7174);
        let listener = passive.listen(TCP, 1, to);
        Pair { daemon, passive, active, listener, to }
    }

    /// Asks for a connection; what the QP is does not matter, but it is another each time.
    fn connect(&mut self, qpn: u32) -> CmIdHandle {
        let id = self.active.resolve(TCP, 7, self.to);
        self.active.order(CmRequest::Connect { id, param: param(qpn, b"") });
        id
    }

    /// Accepts what is asked for next.
    fn accept(&mut self, qpn: u32) -> CmIdHandle {
        let (id, _) = self.passive.expect_request(1);
        self.passive.order(CmRequest::Accept { id, user_handle: 2, param: param(qpn, b"") });
        id
    }

    /// Waits until so many rejections have come.
    fn wait_for_rejections(&mut self, count: u64) {
        eventually("a rejection comes", || {
            let received = self.passive.client.counter("urxe0", "cm_rejections_received");
            (received == count).then_some(())
        });
    }

    /// Confirms the acceptance.
    fn establish(&mut self, id: CmIdHandle) {
        self.active.expect(7, CmEventKind::ConnectResponse);
        self.active.order(CmRequest::Establish { id });
        self.passive.expect(2, CmEventKind::Established);
    }
}

#[test]
fn an_id_moves_to_another_channel_with_what_waits() {
    let mut pair = Pair::new();
    let (other, other_pipe) = create_channel(&mut pair.passive.client);
    let first = pair.connect(17);
    let (new, _) = pair.passive.expect_request(1);
    let second = pair.connect(18);
    eventually("a request waits", || pair.passive.is_announced().then_some(()));
    let migrate = CmRequest::MigrateId { id: pair.listener, channel: other };
    assert_eq!(pair.passive.ask(migrate), Ok(Some(CmReply::Events(1))));
    pair.passive.expect_nothing();
    // What was taken before stays in the old channel, and what is taken now is in the new one.
    let (old, old_pipe) =
        (pair.passive.channel, std::mem::replace(&mut pair.passive.pipe, other_pipe));
    pair.passive.channel = other;
    let (newer, _) = pair.passive.expect_request(1);
    for id in [new, newer] {
        pair.passive.order(CmRequest::Accept {
            id,
            user_handle: id.0.into(),
            param: param(19 + id.0, b""),
        });
    }
    for id in [first, second] {
        pair.active.expect(7, CmEventKind::ConnectResponse);
        pair.active.order(CmRequest::Establish { id });
    }
    pair.passive.expect(newer.0.into(), CmEventKind::Established);
    pair.passive.expect_nothing();
    (pair.passive.channel, pair.passive.pipe) = (old, old_pipe);
    pair.passive.expect(new.0.into(), CmEventKind::Established);
    pair.passive.destroy(pair.listener, 2);
    // A channel goes with its ids.
    pair.passive.order(CmRequest::DestroyChannel { channel: other });
    pair.passive.refused(CmRequest::DestroyId { id: newer }, Errno::NOENT);
    pair.passive.refused(CmRequest::GetEvent { channel: other }, Errno::NOENT);
    assert_eq!(pair.active.expect(7, CmEventKind::Disconnected).status, 0);
    pair.passive.destroy(new, 1);
    pair.active.expect(7, CmEventKind::Disconnected);
}

#[test]
fn an_id_destroyed_at_any_step_leaves_nothing_and_its_peer_is_told() {
    let mut pair = Pair::new();
    // Nobody knows of it yet.
    let id = pair.active.create(TCP, 7);
    pair.active.destroy(id, 0);
    // An event waits.
    let id = pair.active.create(TCP, 7);
    pair.active.order(CmRequest::ResolveAddr { id, src: None, dst: pair.to, timeout_ms: 2000 });
    assert!(pair.active.is_announced());
    pair.active.destroy(id, 0);
    pair.active.expect_nothing();
    // It has asked: the request is taken back, or comes to nothing if it was seen.
    let id = pair.connect(17);
    eventually("a request waits", || pair.passive.is_announced().then_some(()));
    pair.active.destroy(id, 2);
    eventually("it does no more", || (!pair.passive.is_announced()).then_some(()));
    pair.passive.expect_nothing();
    let id = pair.connect(18);
    let (new, _) = pair.passive.expect_request(1);
    pair.active.destroy(id, 2);
    let accept = CmRequest::Accept { id: new, user_handle: 2, param: param(19, b"") };
    pair.wait_for_rejections(2);
    pair.passive.refused(accept, Errno::INVAL);
    pair.passive.expect_nothing();
    pair.passive.destroy(new, 0);
    // Who is asked goes away: before it has answered, and after.
    pair.connect(20);
    let (new, _) = pair.passive.expect_request(1);
    pair.passive.destroy(new, 0);
    assert_eq!(pair.active.expect(7, CmEventKind::Rejected).status, CONSUMER);
    let id = pair.connect(21);
    let new = pair.accept(22);
    pair.active.expect(7, CmEventKind::ConnectResponse);
    pair.passive.destroy(new, 0);
    assert_eq!(pair.active.expect(7, CmEventKind::Rejected).status, CONSUMER);
    pair.active.destroy(id, 4);
    // Who asked goes away after it was accepted.
    let id = pair.connect(23);
    let new = pair.accept(24);
    pair.active.expect(7, CmEventKind::ConnectResponse);
    pair.active.destroy(id, 3);
    assert_eq!(pair.passive.expect(2, CmEventKind::Rejected).status, CONSUMER);
    pair.passive.destroy(new, 1);
    // It stands.
    let id = pair.connect(25);
    let new = pair.accept(26);
    pair.establish(id);
    pair.active.destroy(id, 3);
    pair.passive.expect(2, CmEventKind::Disconnected);
    pair.passive.destroy(new, 2);
    // The listener goes, with a request that waits.
    pair.connect(27);
    eventually("a request waits", || pair.passive.is_announced().then_some(()));
    pair.passive.destroy(pair.listener, 5);
    pair.passive.expect_nothing();
    assert_eq!(pair.active.expect(7, CmEventKind::Rejected).status, CONSUMER);
    pair.connect(28);
    assert_eq!(pair.active.expect(7, CmEventKind::Rejected).status, NO_LISTENER);
}

/// What is done when a program is killed: everything up to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Asked,
    Taken,
    Accepted,
    Answered,
    Established,
}

const STEPS: [Step; 5] =
    [Step::Asked, Step::Taken, Step::Accepted, Step::Answered, Step::Established];

fn reach(pair: &mut Pair, step: Step) -> (CmIdHandle, Option<CmIdHandle>) {
    let id = pair.connect(17);
    eventually("a request waits", || pair.passive.is_announced().then_some(()));
    let mut new = None;
    if step >= Step::Taken {
        new = Some(pair.passive.expect_request(1).0);
    }
    if let Some(new) = new.filter(|_| step >= Step::Accepted) {
        pair.passive.order(CmRequest::Accept { id: new, user_handle: 2, param: param(18, b"") });
    }
    if step >= Step::Answered {
        pair.active.expect(7, CmEventKind::ConnectResponse);
    }
    if step >= Step::Established {
        pair.active.order(CmRequest::Establish { id });
        pair.passive.expect(2, CmEventKind::Established);
    }
    (id, new)
}

#[test]
fn a_program_that_is_killed_at_any_step_ends_what_it_began() {
    for step in STEPS {
        let mut pair = Pair::new();
        let (_, new) = reach(&mut pair, step);
        // The one that was there is dropped.
        pair.active = Caller::new(pair.daemon.socket());
        match step {
            Step::Asked => {
                eventually("it is taken back", || (!pair.passive.is_announced()).then_some(()));
            }
            Step::Taken => {
                let id = new.unwrap();
                let param = param(18, b"");
                let accept = CmRequest::Accept { id, user_handle: 2, param };
                pair.wait_for_rejections(1);
                pair.passive.refused(accept, Errno::INVAL);
            }
            Step::Accepted | Step::Answered => {
                pair.passive.expect(2, CmEventKind::Rejected);
            }
            Step::Established => {
                pair.passive.expect(2, CmEventKind::Disconnected);
            }
        }
        // The listener goes on.
        let id = pair.connect(30);
        let (new, _) = pair.passive.expect_request(1);
        pair.passive.order(CmRequest::Accept { id: new, user_handle: 3, param: param(31, b"") });
        pair.active.expect(7, CmEventKind::ConnectResponse);
        pair.active.order(CmRequest::Establish { id });
    }
}

#[test]
fn a_listening_program_that_is_killed_at_any_step_refuses_or_ends_what_it_began() {
    for step in STEPS {
        let mut pair = Pair::new();
        reach(&mut pair, step);
        drop(pair.passive);
        let event = pair.active.next();
        match (step, event.kind) {
            (Step::Accepted, CmEventKind::ConnectResponse) => {
                pair.active.expect(7, CmEventKind::Rejected);
            }
            (Step::Established, kind) => assert_eq!(kind, CmEventKind::Disconnected),
            (_, kind) => assert_eq!((kind, event.status), (CmEventKind::Rejected, CONSUMER)),
        }
        // Its port is free again.
        let mut next = Caller::new(pair.daemon.socket());
        let id = next.create(TCP, 1);
        eventually("the port is free", || {
            next.ask(CmRequest::Bind { id, addr: pair.to }).is_ok().then_some(())
        });
    }
}

#[test]
fn a_thousand_connections_through_one_listener_leave_nothing() {
    const CONNECTIONS: u32 = 1000;
    let mut pair = Pair::new();
    for qpn in 0..CONNECTIONS {
        let id = pair.connect(0x1_0000 + qpn);
        let new = pair.accept(0x2_0000 + qpn);
        pair.establish(id);
        pair.active.order(CmRequest::Disconnect { id });
        pair.active.expect(7, CmEventKind::Disconnected);
        pair.passive.expect(2, CmEventKind::Disconnected);
        pair.active.destroy(id, 4);
        pair.passive.destroy(new, 2);
    }
    pair.active.expect_nothing();
    pair.passive.expect_nothing();
    pair.passive.destroy(pair.listener, CONNECTIONS);
    let mut counter = |name: &str| pair.active.client.counter("urxe0", name);
    assert_eq!(counter("cm_established"), 2 * u64::from(CONNECTIONS));
    assert_eq!(counter("cm_disconnected"), 2 * u64::from(CONNECTIONS));
    eventually("all is forgotten", || {
        let mut left = |begun: &str, ended: &str| counter(begun) - counter(ended);
        let ids = left("cm_ids_created", "cm_ids_destroyed");
        let ports = left("cm_ports_taken", "cm_ports_freed");
        let connections = left("cm_begun", "cm_forgotten");
        ([ids, ports, connections] == [0; 3]).then_some(())
    });
}

fn on(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

#[test]
fn ports_in_use_are_refused_as_the_kernel_does_it() {
    let daemon = start(2);
    let [addr, other] = [0, 1].map(|device| daemon.devices()[device].addrs[0]);
    let any = IpAddr::from([0; 4]);
    let (mut one, mut two) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let holder = one.create(TCP, 1);
    one.order(CmRequest::Bind { id: holder, addr: on(addr, 7174) });
    // Bound is taken, by whomever.
    let id = two.create(TCP, 1);
    two.refused(CmRequest::Bind { id, addr: on(addr, 7174) }, Errno::ADDRINUSE);
    two.refused(CmRequest::Bind { id, addr: on(any, 7174) }, Errno::ADDRNOTAVAIL);
    // What is refused has changed nothing.
    two.order(CmRequest::Bind { id, addr: on(other, 7174) });
    two.refused(CmRequest::Bind { id, addr: on(other, 7175) }, Errno::INVAL);
    // Another port space, another port.
    let datagrams = two.create(UDP, 1);
    two.order(CmRequest::Bind { id: datagrams, addr: on(addr, 7174) });
    one.destroy(holder, 0);
    let id = two.create(TCP, 1);
    two.order(CmRequest::Bind { id, addr: on(addr, 7174) });
    // An address that nobody has, and one that may be on any link.
    let id = two.create(TCP, 1);
    let nobodys = "192.0.2.1".parse().unwrap();
    two.refused(CmRequest::Bind { id, addr: on(nobodys, 7176) }, Errno::ADDRNOTAVAIL);
    let link_local = "fe80::1".parse().unwrap();
    two.refused(CmRequest::Bind { id, addr: on(link_local, 7176) }, Errno::INVAL);
}

#[test]
fn a_port_with_reuse_addr_is_shared_until_one_id_listens() {
    let daemon = start(1);
    let mut caller = Caller::new(daemon.socket());
    let addr = on(addr_of(&daemon), 7174);
    let [first, second, third] = [1, 2, 3].map(|user_handle| caller.create(TCP, user_handle));
    for id in [first, second] {
        caller.order(CmRequest::SetOption { id, option: CmOption::ReuseAddr(true) });
        caller.order(CmRequest::Bind { id, addr });
    }
    caller.refused(CmRequest::Bind { id: third, addr }, Errno::ADDRINUSE);
    caller.refused(CmRequest::Listen { id: first, backlog: 0 }, Errno::ADDRINUSE);
    caller.destroy(second, 0);
    caller.order(CmRequest::Listen { id: first, backlog: 0 });
    let reuse = |id| CmRequest::SetOption { id, option: CmOption::ReuseAddr(true) };
    caller.order(reuse(third));
    caller.refused(CmRequest::Bind { id: third, addr }, Errno::ADDRINUSE);
    caller.refused(reuse(first), Errno::INVAL);
}

#[test]
fn the_wildcard_of_ipv6_means_ipv4_too_unless_the_program_says_otherwise() {
    let daemon = start(1);
    let mut caller = Caller::new(daemon.socket());
    let (any4, any6) = (IpAddr::from([0; 4]), IpAddr::from([0; 16]));
    let [both, id] = [1, 2].map(|user_handle| caller.create(TCP, user_handle));
    caller.order(CmRequest::Bind { id: both, addr: on(any6, 7174) });
    caller.refused(CmRequest::Bind { id, addr: on(any4, 7174) }, Errno::ADDRNOTAVAIL);
    caller.destroy(both, 0);
    let only = caller.create(TCP, 3);
    caller.order(CmRequest::SetOption { id: only, option: CmOption::FamilyOnly(true) });
    caller.order(CmRequest::Bind { id: only, addr: on(any6, 7174) });
    caller.order(CmRequest::Listen { id: only, backlog: 0 });
    // Nobody listens for IPv4 then.
    let to = on(addr_of(&daemon), 7174);
    let asking = caller.resolve(TCP, 4, to);
    caller.order(CmRequest::Connect { id: asking, param: param(17, b"") });
    assert_eq!(caller.expect(4, CmEventKind::Rejected).status, NO_LISTENER);
    caller.order(CmRequest::Bind { id, addr: on(any4, 7174) });
    caller.order(CmRequest::Listen { id, backlog: 0 });
    let asking = caller.resolve(TCP, 5, to);
    caller.order(CmRequest::Connect { id: asking, param: param(17, b"") });
    caller.expect_request(2);
}

#[test]
fn a_wildcard_listener_is_asked_through_every_device() {
    let daemon = start(3);
    let (mut passive, mut active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let id = passive.create(TCP, 1);
    passive.order(CmRequest::Listen { id, backlog: 0 });
    let bound = passive.query(id).src.unwrap();
    assert!(bound.ip().is_unspecified() && bound.port() >= 1024, "{bound}");
    assert_eq!(passive.query(id).device, None);
    for (index, device) in (0..).zip(daemon.devices()) {
        let to = on(device.addrs[0], bound.port());
        let asking = active.resolve(TCP, 7, to);
        active.order(CmRequest::Connect { id: asking, param: param(17, b"") });
        let (new, _) = passive.expect_request(1);
        let route = passive.query(new);
        assert_eq!((route.device, route.src), (Some(index), Some(to)));
    }
    passive.destroy(id, 3);
}

#[test]
fn ids_are_used_in_their_order_or_not_at_all() {
    let mut pair = Pair::new();
    let caller = &mut pair.active;
    let channel = caller.channel;
    for (space, qp_type) in [(TCP, QpType::Ud), (UDP, QpType::Rc), (TCP, QpType::Uc)] {
        let create = CmRequest::CreateId { channel, user_handle: 0, space, qp_type };
        caller.refused(create, Errno::INVAL);
    }
    let id = caller.create(TCP, 7);
    let connect = |id| CmRequest::Connect { id, param: param(17, b"") };
    for request in [
        CmRequest::ResolveRoute { id, timeout_ms: 0 },
        connect(id),
        CmRequest::Accept { id, user_handle: 1, param: param(17, b"") },
        CmRequest::Establish { id },
        CmRequest::Reject { id, private_data: Vec::new() },
        CmRequest::Disconnect { id },
        CmRequest::QpAttr { id, state: urxe_types::QpState::Init },
    ] {
        caller.refused(request, Errno::INVAL);
    }
    caller.destroy(id, 0);
    let id = caller.resolve(TCP, 7, pair.to);
    for request in [
        CmRequest::Bind { id, addr: pair.to },
        CmRequest::ResolveAddr { id, src: None, dst: pair.to, timeout_ms: 0 },
        CmRequest::Listen { id, backlog: 0 },
        CmRequest::Connect { id, param: param(1 << 24, b"") },
        CmRequest::Connect { id, param: param(17, &[0; 57]) },
        CmRequest::SetOption { id, option: CmOption::AckTimeout(32) },
        CmRequest::SetOption { id, option: CmOption::FamilyOnly(true) },
    ] {
        caller.refused(request, Errno::INVAL);
    }
    caller.order(CmRequest::Connect { id, param: param(17, &[0; 56]) });
    caller.refused(connect(id), Errno::INVAL);
    let (new, _) = pair.passive.expect_request(1);
    for request in [
        CmRequest::Accept { id: new, user_handle: 2, param: param(18, &[0; 197]) },
        CmRequest::Reject { id: new, private_data: vec![0; 149] },
        CmRequest::Establish { id: new },
    ] {
        pair.passive.refused(request, Errno::INVAL);
    }
    let param = param(18, &[0; 196]);
    pair.passive.order(CmRequest::Accept { id: new, user_handle: 2, param });
    // Another session's handles do not exist.
    pair.active.refused(CmRequest::DestroyId { id: CmIdHandle(1000) }, Errno::NOENT);
    pair.active.refused(CmRequest::Query { id: CmIdHandle(u32::MAX) }, Errno::NOENT);
}

/// CM-204
#[test]
fn an_address_is_resolved_again_when_the_event_of_the_last_one_was_taken() {
    let daemon = start(1);
    let mut caller = Caller::new(daemon.socket());
    let unreachable = SocketAddr::new("::1".parse().unwrap(), 7174);
    let id = caller.create(TCP, 1);
    let resolve = CmRequest::ResolveAddr { id, src: None, dst: unreachable, timeout_ms: 0 };
    for _ in 0..3 {
        caller.order(resolve.clone());
        caller.refused(resolve.clone(), Errno::INVAL);
        caller.expect(1, CmEventKind::AddrError);
        caller.expect_nothing();
    }
}

/// CM-205
#[test]
fn a_request_for_which_there_can_be_no_id_is_refused_and_what_is_behind_it_comes() {
    let mut pair = Pair::of(start_with(1, |config| config.cm_ids_per_user = Some(3)));
    let other = pair.passive.create(TCP, 3);
    let id = pair.connect(17);
    eventually("a request waits", || pair.passive.is_announced().then_some(()));
    let resolve = CmRequest::ResolveAddr { id: other, src: None, dst: pair.to, timeout_ms: 0 };
    pair.passive.order(resolve);
    pair.passive.expect(3, CmEventKind::AddrResolved);
    pair.passive.expect_nothing();
    assert_eq!(pair.active.expect(7, CmEventKind::Rejected).status, CONSUMER);
    assert_eq!(pair.active.client.counter("urxe0", "cm_requests_without_id"), 1);
    // With room for its id, the next one is shown.
    pair.active.destroy(id, 3);
    pair.passive.destroy(other, 1);
    pair.connect(18);
    pair.passive.expect_request(1);
}

#[test]
fn ten_thousand_connections_at_a_time_and_then_their_program_dies() {
    const CONNECTIONS: u32 = 10_000;
    let mut pair = Pair::new();
    for qpn in 0..CONNECTIONS {
        let id = pair.connect(0x1_0000 + qpn);
        pair.accept(0x2_0000 + qpn);
        pair.establish(id);
    }
    pair.active = Caller::new(pair.daemon.socket());
    let mut told = [0; 2];
    while told != [CONNECTIONS; 2] {
        match pair.passive.next().kind {
            CmEventKind::Disconnected => told[0] += 1,
            CmEventKind::TimewaitExit => told[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    pair.passive.expect_nothing();
    drop(pair.passive);
    let mut counter = |name: &str| pair.active.client.counter("urxe0", name);
    eventually("all is forgotten", || {
        let ids = counter("cm_ids_created") - counter("cm_ids_destroyed");
        let connections = counter("cm_begun") - counter("cm_forgotten");
        ([ids, connections] == [0; 2]).then_some(())
    });
}

/// Anything that a program can ask, mostly of the ids that it got last.
fn anything(
    random: &mut Random,
    channel: CmChannelHandle,
    ids: &[CmIdHandle],
    addrs: &[IpAddr],
) -> CmRequest {
    let any = CmIdHandle(random.below(40) as u32);
    let id = *ids.iter().rev().nth(random.below(5) as usize).unwrap_or(&any);
    let ip = addrs[random.below(addrs.len() as u64) as usize];
    let addr = SocketAddr::new(ip, [7174, 7174, 7174, 7174, 7175, 0, 80][random.below(7) as usize]);
    let src = (random.below(2) == 0).then_some(addr);
    let channel = match random.below(20) {
        0 if random.below(5) == 0 => CmChannelHandle(random.below(40) as u32),
        _ => channel,
    };
    let len = if random.below(20) == 0 { 300 } else { random.below(40) as usize };
    let private_data = random.bytes(len);
    let param = CmConnParam { private_data, ..param(random.below(1 << 24) as u32, b"") };
    let space = [TCP, TCP, TCP, UDP, CmPortSpace::Ib][random.below(5) as usize];
    let qp_type =
        [QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][random.below(5) as usize];
    let state = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd][random.below(4) as usize];
    let user_handle = random.next();
    match random.below(60) {
        0 => CmRequest::DestroyId { id },
        1 if random.below(200) == 0 => CmRequest::DestroyChannel { channel },
        1 => CmRequest::CreateChannel,
        2 => CmRequest::MigrateId { id, channel },
        3..=5 => CmRequest::CreateId { channel, user_handle, space, qp_type },
        6..=7 => CmRequest::Bind { id, addr },
        8..=11 => CmRequest::ResolveAddr { id, src, dst: addr, timeout_ms: 1 },
        12..=15 => CmRequest::ResolveRoute { id, timeout_ms: 1 },
        16 => CmRequest::Query { id },
        17..=19 => CmRequest::Listen { id, backlog: random.below(5) as u32 },
        20..=23 => CmRequest::Connect { id, param },
        24..=27 => CmRequest::Accept { id, user_handle, param },
        28..=29 => CmRequest::Establish { id },
        30 => CmRequest::Reject { id, private_data: param.private_data },
        31 => CmRequest::Disconnect { id },
        32 => CmRequest::QpAttr { id, state },
        33 => CmRequest::SetOption { id, option: CmOption::ReuseAddr(random.below(2) == 0) },
        34 => CmRequest::SetOption { id, option: CmOption::AckTimeout(random.next() as u8) },
        35 => CmRequest::JoinMulticast { id, user_handle, group: addr },
        36 => CmRequest::LeaveMulticast { multicast: CmMulticastHandle(id.0) },
        _ => CmRequest::GetEvent { channel },
    }
}

#[test]
fn random_requests_are_answered_and_leave_nothing() {
    let daemon = start(2);
    let [one, two] = [0, 1].map(|device| daemon.devices()[device].addrs[0]);
    let others = ["0.0.0.0", "::", "::1", "239.1.2.3", "ff02::7", "fe80::1", "192.0.2.1"];
    let others = others.map(|addr| addr.parse().unwrap());
    let addrs = [&[one, two].repeat(5)[..], &others].concat();
    let mut random = Random::new(1974);
    let mut succeeded = 0;
    for _ in 0..20 {
        let mut callers = [(); 2].map(|()| (Caller::new(daemon.socket()), Vec::new()));
        for ((caller, _), addr) in callers.iter_mut().zip([one, two]) {
            let id = caller.create(TCP, 0);
            // The last round's may not be buried yet.
            let bind = CmRequest::Bind { id, addr: on(addr, 7174) };
            eventually("the port is free", || caller.ask(bind.clone()).ok());
            caller.order(CmRequest::Listen { id, backlog: 0 });
        }
        for _ in 0..3000 {
            let (caller, ids) = &mut callers[random.below(2) as usize];
            let request = anything(&mut random, caller.channel, ids, &addrs);
            if let CmRequest::DestroyId { id } = request {
                ids.retain(|known| *known != id);
            }
            let reply = caller.client.call(Request::Cm(request));
            succeeded += usize::from(reply.is_ok());
            match reply {
                Ok(Reply::Cm(CmReply::Id(id))) => ids.push(id),
                Ok(Reply::Cm(CmReply::Event(event))) => match event.subject {
                    CmSubject::Id(id) if !ids.contains(&id) => ids.push(id),
                    _ => {}
                },
                _ => {}
            }
        }
    }
    assert!(succeeded > 3000, "{succeeded}");
    let mut observer = Client::connect(daemon.socket());
    let mut left =
        |begun, ended| observer.counter("urxe0", begun) - observer.counter("urxe0", ended);
    eventually("nothing is left", || {
        let left = [
            left("cm_ids_created", "cm_ids_destroyed"),
            left("cm_channels_created", "cm_channels_destroyed"),
            left("cm_ports_taken", "cm_ports_freed"),
        ];
        (left == [0; 3]).then_some(())
    });
    for name in ["cm_begun", "cm_established", "cm_refused_by_program"] {
        let count = observer.counter("urxe0", name) + observer.counter("urxe1", name);
        assert!(count > 3, "{name}: {count}");
    }
}
