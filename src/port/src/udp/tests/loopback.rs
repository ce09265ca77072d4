//! What a port sends to itself.

use super::*;
use urxe_types::Qpn;

/// A port that sends to itself through memory, for slot 0, with the flow for that.
fn with_loopback(addr: IpAddr) -> (UdpPort, Flow) {
    let options = UdpOptions { loopback: true, ..UdpOptions::default() };
    let port = open_shared(|| UdpPort::open(addr, &options));
    let flow = flow(&port.caps(), addr);
    (port, flow)
}

/// A QP of slot 1.
const OF_SLOT_1: Qpn = Qpn::new(1 << 18 | 0x11);

#[test]
fn datagrams_to_the_port_itself_arrive_as_they_were_sent_and_the_kernel_has_none_of_them() {
    for addr in [fresh_addr(), Ipv6Addr::LOCALHOST.into()] {
        let (mut port, flow) = with_loopback(addr);
        let (mut batch, now) = (batch(&port.caps()), Instant::now());
        for (psn, mtu, packets) in [(0, 1024, 64), (100, 4096, 16), (200, 256, 5)] {
            push_write(&mut batch, &flow, psn, packets, mtu);
            push_write_onlys(&mut batch, &flow, psn + packets, packets, mtu);
        }
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 400, 1);
        let sent: Vec<Vec<u8>> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
        assert_eq!(port.poll_timeout(), None);
        assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
        assert!(batch.is_empty());
        assert_eq!(port.poll_timeout(), Some(now), "it is to be received at once");
        let arrived = recv_all(&mut port, now);
        assert_eq!(arrived.iter().map(|got| got.bytes.clone()).collect::<Vec<_>>(), sent);
        for got in &arrived {
            assert_eq!((got.verdict, got.outer.flow), (Verdict::Exact, flow));
        }
        assert_eq!(port.poll_timeout(), None);
        let (counters, count) = (port.counters(), sent.len() as u64);
        assert_eq!(counters.tx_calls, 0);
        for counted in [counters.loopback_datagrams, counters.tx_datagrams, counters.rx_datagrams] {
            assert_eq!(counted, count);
        }
        let bytes = sent.iter().map(|datagram| datagram.len() as u64).sum::<u64>();
        assert_eq!((counters.tx_bytes, counters.rx_bytes), (bytes, bytes));
    }
}

#[test]
fn other_processes_addresses_and_groups_are_reached_through_the_kernel() {
    let (mut port, to_itself) = with_loopback(fresh_addr());
    let mut other = open(fresh_addr());
    let to_other = flow(&port.caps(), other.caps().addrs[0]);
    let group = fresh_group();
    port.join(group).unwrap();
    let to_group = flow(&port.caps(), group);
    let (mut batch, now) = (batch(&port.caps()), Instant::now());
    push_to(&mut batch, &to_itself, OF_SLOT_1, 0, 100);
    push(&mut batch, &to_other, Opcode::RC_SEND_ONLY, 1, 100);
    push(&mut batch, &to_itself, Opcode::RC_SEND_ONLY, 2, 100);
    push(&mut batch, &to_group, Opcode::UD_SEND_ONLY, 3, 100);
    assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(port.counters().loopback_datagrams, 1);
    assert_eq!(port.counters().tx_datagrams, 4);
    wait_readable(&other);
    assert_eq!(psns(&recv_all(&mut other, now)), [1]);
    let mut arrived = Vec::new();
    while arrived.len() < 3 {
        wait_readable(&port);
        arrived.extend(recv_all(&mut port, now));
    }
    let mut came = psns(&arrived);
    came.sort_unstable();
    assert_eq!(came, [0, 2, 3]);
}

#[test]
fn an_ack_in_the_datagram_of_a_request_is_found_there_and_comes_out_first() {
    let (mut port, flow) = with_loopback(fresh_addr());
    let (mut batch, now) = (batch(&port.caps()), Instant::now());
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 7, 8);
    push(&mut batch, &flow, Opcode::RC_ACK, 3, 0);
    assert!(batch.join_ack());
    assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
    let arrived = recv_all(&mut port, now);
    assert_eq!(psns(&arrived), [3, 7]);
    assert!(arrived.iter().all(|got| got.verdict == Verdict::Exact));
}

#[test]
fn more_than_there_is_room_for_waits_and_nothing_is_lost_or_overtaken() {
    let (mut port, flow) = with_loopback(fresh_addr());
    let now = Instant::now();
    let (mut sent, mut arrived, mut blocked) = (0, Vec::new(), 0);
    while sent < 2000 {
        let mut batch = batch(&port.caps());
        push_write_onlys(&mut batch, &flow, sent, 200, 4096);
        sent += 200;
        // A port that has been blocked is told to go on when it has received.
        while port.send(now, &mut batch).unwrap() == SendOutcome::Blocked {
            blocked += 1;
            arrived.extend(recv_all(&mut port, now));
        }
        assert!(batch.is_empty());
    }
    arrived.extend(recv_all(&mut port, now));
    assert_eq!(psns(&arrived), (0..sent).collect::<Vec<_>>());
    assert!(blocked > 0);
    assert_eq!(port.counters().tx_blocked, blocked);
}

#[test]
fn the_network_is_heard_however_much_a_port_sends_to_itself() {
    let (mut port, flow) = with_loopback(fresh_addr());
    let mut other = open(fresh_addr());
    let mut from_other = batch(&other.caps());
    let to_port = crate::testing::flow(&other.caps(), flow.dst);
    push(&mut from_other, &to_port, Opcode::RC_SEND_ONLY, 1000, 8);
    let (now, mut rx) = (Instant::now(), RxBatch::default());
    assert_eq!(other.send(now, &mut from_other).unwrap(), SendOutcome::Done);
    wait_readable(&port);
    let (mut batch, mut seen) = (batch(&port.caps()), Vec::new());
    for psn in 0..20 {
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, psn, 8);
        assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
        assert!(port.recv(now, &mut rx).unwrap() > 0);
        keep(&mut rx, &mut seen);
    }
    let of_network = psns(&seen).iter().position(|psn| *psn == 1000);
    assert!(of_network.is_some_and(|at| at <= 1), "{of_network:?}");
    seen.extend(recv_all(&mut port, now));
    assert_eq!(psns(&seen).into_iter().filter(|psn| *psn < 1000).count(), 20);
}

#[test]
fn an_address_that_was_taken_away_is_not_reached_from_there_any_more() {
    let (mut port, flow) = with_loopback(fresh_addr());
    port.remove_address(flow.src);
    let (mut batch, now) = (TxBatch::new(port.caps().tx_limits, 1 << 16), Instant::now());
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 0, 8);
    assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(port.poll_timeout(), None);
    assert_eq!(port.counters().tx_wrong_flow, 1);
}
