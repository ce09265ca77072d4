use super::*;
use crate::capture::Capture;
use crate::sim::{Link, SimNetwork, SimPort};
use crate::testing::*;
use crate::udp::{UdpOptions, UdpPort};
use std::net::{IpAddr, Ipv4Addr};
use std::time::SystemTime;
use urxe_wire::icrc::Verdict;

const MS: Duration = Duration::from_millis(1);

fn addr(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// A perfect network with faults at the first of two endpoints.
fn pair(spec: &str) -> (Fault<SimPort>, SimPort) {
    let network = SimNetwork::new(0, Link::default());
    let (a, b) = (network.attach(addr(1)).unwrap(), network.attach(addr(2)).unwrap());
    (Fault::new(a, spec.parse().unwrap()), b)
}

/// Sends a WRITE of so many packets at `now`, PSNs from `psn`.
fn send(from: &mut impl Port, now: Instant, psn: u32, packets: u32) {
    let to = if from.caps().addrs[0] == addr(1) { addr(2) } else { addr(1) };
    let mut batch = batch(&from.caps());
    push_write(&mut batch, &flow(&from.caps(), to), psn, packets, 1024);
    assert_eq!(from.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert!(batch.is_empty());
}

/// What arrives at `to` when `from` sends three WRITEs of four packets each.
fn three_writes(from: &mut impl Port, to: &mut impl Port) -> Vec<Arrived> {
    let now = Instant::now();
    for psn in [0, 10, 20] {
        send(from, now, psn, 4);
    }
    recv_all(to, now)
}

#[test]
fn the_third_write_last_is_lost_and_nothing_else() {
    let (mut a, mut b) = pair("drop:write-last:3");
    let arrived = three_writes(&mut a, &mut b);
    assert_eq!(psns(&arrived), [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22]);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    assert_eq!(a.counters().fault_dropped, 1);
    // What is received is counted for itself.
    let arrived = three_writes(&mut b, &mut a);
    assert_eq!(psns(&arrived), [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22]);
    assert_eq!(a.counters().fault_dropped, 2);
}

#[test]
fn each_packet_of_a_write_can_be_hit_in_either_form() {
    for (number, missing) in [(1, 0), (3, 2), (4, 3), (6, 11)] {
        for push in [push_write, push_write_onlys] {
            let (mut a, mut b) = pair(&format!("drop:write:{number}"));
            let now = Instant::now();
            let mut batch = batch(&a.caps());
            for psn in [0, 10] {
                push(&mut batch, &flow(&a.caps(), addr(2)), psn, 4, 1024);
            }
            assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
            let mut all = vec![0, 1, 2, 3, 10, 11, 12, 13];
            all.retain(|psn| *psn != missing);
            assert_eq!(psns(&recv_all(&mut b, now)), all);
        }
    }
}

#[test]
fn faults_of_one_direction_leave_the_other_alone() {
    let all = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23];
    let (mut a, mut b) = pair("drop:any:1-,dir=tx");
    assert!(three_writes(&mut a, &mut b).is_empty());
    assert_eq!(psns(&three_writes(&mut b, &mut a)), all);
    let (mut a, mut b) = pair("drop:any:1-,dir=rx");
    assert_eq!(psns(&three_writes(&mut a, &mut b)), all);
    assert!(three_writes(&mut b, &mut a).is_empty());
}

#[test]
fn rules_duplicate_reorder_and_corrupt_too() {
    let (mut a, mut b) = pair("dup:write-first:2,corrupt:write-middle:1-2");
    let arrived = three_writes(&mut a, &mut b);
    assert_eq!(psns(&arrived), [0, 1, 2, 3, 10, 10, 11, 12, 13, 20, 21, 22, 23]);
    let counters = a.counters();
    assert_eq!((counters.fault_duplicated, counters.fault_corrupted), (1, 2));

    let (mut a, mut b) = pair("reorder:write-middle:1");
    let now = Instant::now();
    send(&mut a, now, 0, 4);
    assert_eq!(psns(&recv_all(&mut b, now)), [0, 2, 3]);
    let due = a.poll_timeout().unwrap();
    assert!(due > now && due <= now + MS);
    // Nothing but time has to pass: an empty batch brings it.
    let mut nothing = batch(&a.caps());
    assert_eq!(a.send(due, &mut nothing).unwrap(), SendOutcome::Done);
    assert_eq!(psns(&recv_all(&mut b, due)), [1]);
    assert_eq!(a.poll_timeout(), None);
    assert_eq!(a.counters().fault_reordered, 1);
}

#[test]
fn only_damaged_packets_have_a_wrong_icrc() {
    for spec in ["corrupt:any:1-,dir=tx", "corrupt:any:1-,dir=rx"] {
        let (mut a, mut b) = pair(spec);
        let now = Instant::now();
        let arrived = match spec.ends_with("tx") {
            true => {
                send(&mut a, now, 0, 200);
                recv_all(&mut b, now)
            }
            false => {
                send(&mut b, now, 0, 200);
                recv_all(&mut a, now)
            }
        };
        let bad = arrived.iter().filter(|d| d.verdict == Verdict::Bad).count();
        assert_eq!(bad, 200, "{spec}");
        assert_eq!(a.counters().fault_corrupted, 200);
    }
}

#[test]
fn duplicates_and_losses_leave_runs_whose_icrcs_are_right() {
    // Between two sockets, because there the kernel numbers the segments, not we.
    let options = UdpOptions::default();
    let spec = "drop=20%,dup=20%,seed=3,dir=tx".parse().unwrap();
    let mut a = Fault::new(UdpPort::open(fresh_addr(), &options).unwrap(), spec);
    let mut b = UdpPort::open(fresh_addr(), &options).unwrap();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), b.caps().addrs[0]), 0, 300, 1024);
    assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    let counters = a.counters();
    let expected = 300 - counters.fault_dropped + counters.fault_duplicated;
    assert_eq!(counters.tx_datagrams, expected);
    assert!(counters.tx_calls < 10, "they are still sent in runs");
    let mut arrived = Vec::new();
    while arrived.len() < expected as usize {
        wait_readable(&b);
        arrived.extend(recv_all(&mut b, Instant::now()));
    }
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
}

/// Whoever floods a device with a delay takes no more memory of it than that.
#[test]
fn held_back_datagrams_take_a_bounded_part_of_the_memory() {
    let (mut a, mut b) = pair("delay=1s");
    a.tx.max_held = 4 * (1024 + 256);
    a.rx.max_held = a.tx.max_held;
    let now = Instant::now();
    send(&mut a, now, 0, 10);
    let of_sent = a.counters().fault_dropped;
    send(&mut b, now, 0, 10);
    assert!(recv_all(&mut a, now).is_empty());
    let of_received = a.counters().fault_dropped - of_sent;
    for (held, dropped) in [(a.tx.held_bytes, of_sent), (a.rx.held_bytes, of_received)] {
        assert!((1..=4 * (1024 + 256)).contains(&held), "{held} bytes");
        assert!((5..10).contains(&dropped), "{dropped} dropped");
    }
    // What is due makes room again.
    let later = now + 1000 * MS;
    assert_eq!(recv_all(&mut a, later).len() as u64, 10 - of_received);
    assert_eq!(a.send(later, &mut batch(&a.caps())).unwrap(), SendOutcome::Done);
    assert_eq!(recv_all(&mut b, later).len() as u64, 10 - of_sent);
    assert_eq!((a.tx.held_bytes, a.rx.held_bytes), (0, 0));
}

#[test]
fn delayed_datagrams_keep_their_order_both_ways() {
    let (mut a, mut b) = pair("delay=1ms..5ms");
    let now = Instant::now();
    send(&mut a, now, 0, 50);
    send(&mut b, now, 0, 50);
    assert!(recv_all(&mut a, now).is_empty() && recv_all(&mut b, now).is_empty());
    let (mut at_a, mut at_b, mut time) = (Vec::new(), Vec::new(), now);
    while let Some(due) = a.poll_timeout() {
        time = due;
        let mut nothing = batch(&a.caps());
        assert_eq!(a.send(due, &mut nothing).unwrap(), SendOutcome::Done);
        at_a.extend(recv_all(&mut a, due));
        at_b.extend(recv_all(&mut b, due));
    }
    assert!(time <= now + 5 * MS);
    assert_eq!(psns(&at_a), (0..50).collect::<Vec<_>>());
    assert_eq!(psns(&at_b), (0..50).collect::<Vec<_>>());
    assert_eq!(a.counters().fault_delayed, 100);
}

#[test]
fn the_same_seed_does_the_same_and_another_something_else() {
    let survivors = |seed: u64| {
        let (mut a, mut b) = pair(&format!("drop=30%,dup=10%,seed={seed}"));
        let now = Instant::now();
        send(&mut a, now, 0, 100);
        psns(&recv_all(&mut b, now))
    };
    assert_eq!(survivors(1), survivors(1));
    assert_ne!(survivors(1), survivors(2));
}

#[test]
fn datagrams_beyond_the_batch_come_with_the_next() {
    let (mut a, mut b) = pair("dup:any:1-,dir=rx");
    let now = Instant::now();
    for i in 0..10 {
        send(&mut b, now, i * 100, 100);
    }
    let mut rx = RxBatch::new(1);
    let mut arrived = Vec::new();
    while a.recv(now, &mut rx).unwrap() > 0 {
        keep(&mut rx, &mut arrived);
    }
    let twice: Vec<u32> = (0..1000).flat_map(|psn| [psn, psn]).collect();
    assert_eq!(psns(&arrived), twice);
}

#[test]
fn a_blocked_port_below_loses_nothing_and_keeps_the_order() {
    let network = SimNetwork::new(0, Link::default());
    let inner = Narrow::new(network.attach(addr(1)).unwrap());
    let mut a = Fault::new(inner, "dup:any:1-,dir=tx".parse().unwrap());
    let mut b = network.attach(addr(2)).unwrap();
    let now = Instant::now();
    let mut batch = batch(&a.caps());
    let flow = flow(&a.caps(), addr(2));
    // More than the wrapper's own batch holds, so that it stops in the middle of ours.
    for i in 0..15 {
        push_write(&mut batch, &flow, i * 50, 50, 1024);
    }
    let mut arrived = Vec::new();
    while a.send(now, &mut batch).unwrap() == SendOutcome::Blocked {
        assert!(a.poll_timeout().is_some(), "our batch may be empty: time has to bring us back");
        a.inner.runs += 1;
        arrived.extend(recv_all(&mut b, now));
    }
    arrived.extend(recv_all(&mut b, now));
    assert!(batch.is_empty());
    let twice: Vec<u32> = (0..750).flat_map(|psn| [psn, psn]).collect();
    assert_eq!(psns(&arrived), twice);
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
}

#[test]
fn wrappers_pass_on_addresses_memberships_and_the_fill_of_the_queue() {
    let wrap = |port| -> Box<dyn Port> {
        let capture = Capture::new(port, std::io::sink(), Instant::now(), SystemTime::now());
        Box::new(Fault::new(capture, FaultSpec::default()))
    };
    let udp = UdpPort::open_interface("lo", &UdpOptions::default()).unwrap();
    let (mut port, own) = (wrap(udp), fresh_addr());
    port.add_address(own).unwrap();
    assert_eq!(port.caps().addrs, [own]);
    let group = IpAddr::from([239, 47, 91, 5]);
    port.join(group).unwrap();
    let mut batch = batch(&port.caps());
    push_write(&mut batch, &flow(&port.caps(), group), 0, 4, 1024);
    assert_eq!(port.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(psns(&recv_all(&mut port, Instant::now())), [0, 1, 2, 3]);
    assert!(port.receive_fill(Instant::now()).is_some());
    port.leave(group).unwrap();
    push_write(&mut batch, &flow(&port.caps(), group), 10, 4, 1024);
    assert_eq!(port.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(recv_all(&mut port, Instant::now()), []);
    port.remove_address(own);
    assert!(port.caps().addrs.is_empty());
}
