//! Flows that leave from ports of their own.

use super::*;

/// A flow from the `n`th port of the pool.
fn flow_from_pool(from: &UdpPort, dst: IpAddr, n: u16) -> Flow {
    Flow { src_port: FIRST_SOURCE_PORT + n, ..flow(&from.caps(), dst) }
}

#[test]
fn flows_leave_from_their_own_ports_in_order_and_each_port_in_one_call() {
    let (mut a, mut b) = pair();
    let pool = SourcePorts::Pool { first: FIRST_SOURCE_PORT, count: 16 };
    assert_eq!(a.caps().source_ports, pool);
    let mut batch = batch(&a.caps());
    for turn in 0..3 {
        for port in 0..4 {
            let flow = flow_from_pool(&a, b.caps().addrs[0], port);
            push_write(&mut batch, &flow, u32::from(1000 * port + 100 * turn), 10, 1024);
        }
    }
    let arrived = carry(&mut a, &mut batch, &mut b, 120);
    assert_eq!(a.counters().tx_calls, 4);
    assert_eq!(a.counters().source_ports_refused, 0);
    for (port, datagrams) in (0..).zip(arrived.chunks(30)) {
        let first = 1000 * port;
        let expected: Vec<u32> =
            (0..3).flat_map(|turn| (0..10).map(move |psn| first + 100 * turn + psn)).collect();
        assert_eq!(psns(datagrams), expected);
        let src_port = FIRST_SOURCE_PORT + port as u16;
        assert!(datagrams.iter().all(|d| d.verdict == Verdict::Exact));
        assert!(datagrams.iter().all(|d| d.outer.flow.src_port == src_port));
    }
}

#[test]
fn over_ipv6_flows_leave_from_their_own_ports_too() {
    let addr = Ipv6Addr::LOCALHOST.into();
    let mut port = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
    let flow = Flow { flow_label: 0x12345, ..flow_from_pool(&port, addr, 15) };
    let mut batch = batch(&port.caps());
    push_write(&mut batch, &flow, 0, 20, 1024);
    assert_eq!(port.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_receives(&mut port, &flow, 0);
}

#[test]
fn a_source_port_that_is_taken_gives_way_to_4791_for_as_long_as_the_address_is_there() {
    let (mut a, mut b) = pair();
    let (own, peer) = (a.caps().addrs[0], b.caps().addrs[0]);
    let other = std::net::UdpSocket::bind((own, FIRST_SOURCE_PORT + 2)).unwrap();
    let taken = flow_from_pool(&a, peer, 2);
    let mut send = |a: &mut UdpPort| {
        let mut batch = batch(&a.caps());
        for (psn, flow) in [(0, taken), (100, flow_from_pool(a, peer, 1)), (200, taken)] {
            push_write(&mut batch, &flow, psn, 10, 1024);
        }
        let arrived = carry(a, &mut batch, &mut b, 30);
        assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
        let of_port = |port| {
            let of_port = arrived.iter().filter(move |d| d.outer.flow.src_port == port);
            of_port.map(Arrived::psn).collect::<Vec<u32>>()
        };
        [ROCE_PORT, FIRST_SOURCE_PORT + 1, FIRST_SOURCE_PORT + 2].map(|port| of_port(port).len())
    };
    for _ in 0..2 {
        assert_eq!(send(&mut a), [20, 10, 0]);
        assert_eq!(a.counters().source_ports_refused, 1);
    }
    assert_eq!(a.counters().tx_calls, 4);
    drop(other);
    assert_eq!(send(&mut a), [20, 10, 0], "a flow keeps its port, and so its order");
    // What another test has just forked may have the port open for a moment more.
    let has_own_port = (0..600).any(|_| {
        a.remove_address(own);
        open_shared(|| a.add_address(own));
        send(&mut a) == [0, 10, 20]
    });
    assert!(has_own_port);
}

#[test]
fn with_one_source_port_all_leave_from_4791() {
    let options = UdpOptions { source_ports: 1, ..UdpOptions::default() };
    let mut a = UdpPort::open(fresh_addr(), &options).unwrap();
    assert_eq!(a.caps().source_ports, SourcePorts::Fixed(ROCE_PORT));
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow_from_pool(&a, fresh_addr(), 0), 0, 10, 256);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(a.counters().tx_wrong_flow, 10);
}

#[test]
fn datagrams_to_a_source_port_are_dropped_and_not_refused() {
    let (mut a, mut b) = pair();
    let flow = flow_from_pool(&a, b.caps().addrs[0], 5);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 10, 256);
    carry(&mut a, &mut batch, &mut b, 10);
    let peer = std::net::UdpSocket::bind((fresh_addr(), 0)).unwrap();
    peer.connect((flow.src, flow.src_port)).unwrap();
    for _ in 0..2 {
        peer.send(b"hello").expect("no refusal has come");
    }
    assert!(recv_all(&mut a, Instant::now()).is_empty());
}

#[test]
fn a_group_is_reached_from_any_source_port() {
    let (group, [mut a, mut b]) = (fresh_group(), [(); 2].map(|()| open(fresh_addr())));
    a.join(group).unwrap();
    b.join(group).unwrap();
    let flow = flow_from_pool(&a, group, 7);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 20, 1024);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_receives(&mut a, &flow, 0);
    assert_receives(&mut b, &flow, 0);
}
