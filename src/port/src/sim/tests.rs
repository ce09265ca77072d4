use super::*;
use crate::Chance;
use crate::testing::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;
use urxe_types::Qpn;
use urxe_wire::icrc::Verdict;
use urxe_wire::{Flow, Opcode};

const US: Duration = Duration::from_micros(1);

fn addr(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

fn pair(seed: u64, link: Link) -> (SimNetwork, SimPort, SimPort) {
    let network = SimNetwork::new(seed, link);
    let (a, b) = (network.attach(addr(1)).unwrap(), network.attach(addr(2)).unwrap());
    (network, a, b)
}

/// Sends a WRITE of so many packets at `now`, PSNs from `psn`.
fn send(from: &mut SimPort, to: IpAddr, now: Instant, psn: u32, packets: u32) {
    let mut batch = batch(&from.caps());
    push_write(&mut batch, &flow(&from.caps(), to), psn, packets, 1024);
    assert_eq!(from.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert!(batch.is_empty());
}

/// Lets time pass until nothing is in flight, and returns what arrived when.
fn run(network: &SimNetwork, to: &mut SimPort, start: Instant) -> Vec<(Duration, Arrived)> {
    let mut arrived = Vec::new();
    while let Some(now) = network.next_event() {
        assert_eq!(to.poll_timeout(), Some(now));
        let new = recv_all(to, now);
        arrived.extend(new.into_iter().map(|datagram| (now - start, datagram)));
    }
    arrived
}

#[test]
fn a_perfect_network_carries_everything_at_once() {
    let (network, mut a, mut b) = pair(1, Link::default());
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 100);
    assert_eq!(network.next_event(), Some(now));
    assert_eq!(a.poll_timeout(), None, "nothing is for the sender");
    let arrived = recv_all(&mut b, now);
    assert_eq!(psns(&arrived), (0..100).collect::<Vec<_>>());
    assert!(arrived.iter().all(|d| d.verdict == Verdict::Exact));
    assert_eq!(network.next_event(), None);
    assert_eq!(network.counters(), SimCounters { delivered: 100, ..SimCounters::default() });
}

#[test]
fn a_delay_keeps_the_order_and_stays_within_its_bounds() {
    let impairment = Impairment { delay: 10 * US..=30 * US, ..Impairment::default() };
    let (network, mut a, mut b) = pair(2, Link { impairment, ..Link::default() });
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 50);
    assert_eq!(recv_all(&mut b, now + 9 * US), []);
    let arrived = run(&network, &mut b, now);
    assert!(arrived.iter().all(|(at, _)| (10 * US..=30 * US).contains(at)));
    assert!(arrived.iter().map(|(_, d)| d.psn()).eq(0..50));
}

#[test]
fn reordered_datagrams_are_overtaken_and_none_is_lost() {
    let impairment = Impairment { reorder: Chance::percent(20.0), ..Impairment::default() };
    let (network, mut a, mut b) = pair(3, Link { impairment, ..Link::default() });
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 100);
    let arrived = run(&network, &mut b, now);
    let mut psns: Vec<u32> = arrived.iter().map(|(_, d)| d.psn()).collect();
    assert!(!psns.is_sorted());
    psns.sort_unstable();
    assert_eq!(psns, (0..100).collect::<Vec<_>>());
    let late = arrived.iter().filter(|(at, _)| *at > Duration::ZERO).count() as u64;
    assert_eq!(network.counters().reordered, late);
}

#[test]
fn losses_duplicates_and_corruption_are_counted_as_they_arrive() {
    let impairment = Impairment {
        drop: Chance::percent(10.0),
        duplicate: Chance::percent(10.0),
        corrupt: Chance::percent(10.0),
        ..Impairment::default()
    };
    let (network, mut a, mut b) = pair(4, Link { impairment, ..Link::default() });
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 200);
    let arrived = recv_all(&mut b, now);
    let counters = network.counters();
    assert!(counters.dropped > 0 && counters.duplicated > 0 && counters.corrupted > 0);
    assert_eq!(arrived.len() as u64, 200 - counters.dropped + counters.duplicated);
    let bad = arrived.iter().filter(|d| d.verdict == Verdict::Bad).count() as u64;
    // A flipped bit may lie where the ICRC does not look, and a corrupted one may come twice.
    assert!((1..=counters.corrupted + counters.duplicated).contains(&bad), "{bad}: {counters:?}");
}

#[test]
fn a_rate_spreads_datagrams_and_a_full_queue_loses_them() {
    // A MIDDLE of 1024 bytes is 28 + 12 + 1024 + 4 bytes: 8,544 bits.
    let link = Link { rate: Some(8_544_000), queue_limit: Some(10_500 * US), ..Link::default() };
    let (network, mut a, mut b) = pair(5, link);
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 30);
    let arrived = run(&network, &mut b, now);
    assert_eq!(network.counters().queue_full, 30 - arrived.len() as u64);
    assert_eq!(arrived.len(), 11, "those that had to wait at most 10.5 ms");
    for pair in arrived[1..].windows(2) {
        assert_eq!(pair[1].0 - pair[0].0, 1000 * US);
    }
}

#[test]
fn congestion_marks_only_flows_that_understand_marks() {
    let link = Link { rate: Some(8_544_000), mark_above: Some(2_500 * US), ..Link::default() };
    for (traffic_class, marked) in [(0b10, 0b11), (0b01, 0b11), (0b00, 0b00)] {
        let (network, mut a, mut b) = pair(6, link.clone());
        let now = Instant::now();
        let mut batch = batch(&a.caps());
        let flow = Flow { traffic_class, ..flow(&a.caps(), addr(2)) };
        push_write(&mut batch, &flow, 0, 6, 1024);
        assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
        let arrived = run(&network, &mut b, now);
        let tclasses: Vec<u8> = arrived.iter().map(|(_, d)| d.outer.flow.traffic_class).collect();
        assert_eq!(tclasses, [traffic_class, traffic_class, traffic_class, marked, marked, marked]);
        // The traffic class is not under the ICRC.
        assert!(arrived.iter().all(|(_, d)| d.verdict == Verdict::Exact));
        assert_eq!(network.counters().marked, if marked == traffic_class { 0 } else { 3 });
    }
}

#[test]
fn a_partition_lasts_for_its_period_and_spares_other_pairs() {
    let (network, mut a, mut b) = pair(7, Link::default());
    let mut c = network.attach(addr(3)).unwrap();
    let now = Instant::now();
    network.partition(addr(1), addr(2), now + US..now + 3 * US);
    for (at, psn) in [(0, 0), (1, 10), (2, 20), (3, 30)] {
        send(&mut a, addr(2), now + at * US, psn, 2);
        send(&mut b, addr(1), now + at * US, psn, 2);
        send(&mut c, addr(2), now + at * US, 100 + psn, 2);
    }
    let end = now + 3 * US;
    assert_eq!(
        psns(&recv_all(&mut b, end)),
        [0, 1, 100, 101, 110, 111, 120, 121, 30, 31, 130, 131]
    );
    assert_eq!(psns(&recv_all(&mut a, end)), [0, 1, 30, 31]);
    assert_eq!(network.counters().partitioned, 8);
}

#[test]
fn datagrams_that_cannot_be_sent_are_counted_by_cause() {
    let (_network, mut a, mut b) = pair(8, Link::default());
    let now = Instant::now();
    let good = flow(&a.caps(), addr(2));
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &Flow { src: addr(9), ..good }, 0, 2, 1024);
    push_write(&mut batch, &Flow { dst: addr(9), ..good }, 10, 3, 1024);
    batch.push_raw(&good, &[0; 9000]);
    push_write(&mut batch, &good, 20, 4, 4096);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    let counters = a.counters();
    assert_eq!(counters.tx_wrong_flow, 2);
    assert_eq!(counters.tx_unreachable, 3);
    assert_eq!(counters.tx_too_large, 1);
    assert_eq!(counters.tx_datagrams, 4);
    assert_eq!(psns(&recv_all(&mut b, now)), [20, 21, 22, 23]);
}

#[test]
fn an_address_belongs_to_one_endpoint_at_a_time() {
    let (network, a, _b) = pair(9, Link::default());
    assert_eq!(network.attach(addr(1)).unwrap_err(), AddressTaken { addr: addr(1) });
    drop(a);
    assert!(network.attach(addr(1)).is_ok());
}

#[test]
fn one_direction_can_be_worse_than_the_other() {
    let (network, mut a, mut b) = pair(10, Link::default());
    let lost = Impairment { drop: Chance::ALWAYS, ..Impairment::default() };
    network.set_link(addr(1), addr(2), Link { impairment: lost, ..Link::default() });
    let now = Instant::now();
    send(&mut a, addr(2), now, 0, 5);
    send(&mut b, addr(1), now, 0, 5);
    assert_eq!(recv_all(&mut b, now).len(), 0);
    assert_eq!(recv_all(&mut a, now).len(), 5);
}

#[test]
fn more_than_a_receive_batch_holds_waits_for_the_next() {
    let (_network, mut a, mut b) = pair(11, Link::default());
    let now = Instant::now();
    for i in 0..4 {
        send(&mut a, addr(2), now, i * 500, 500);
    }
    let mut rx = RxBatch::new(1);
    let first = b.recv(now, &mut rx).unwrap();
    assert!(first > 0 && first < 2000);
    let mut arrived = Vec::new();
    keep(&mut rx, &mut arrived);
    arrived.extend(recv_all(&mut b, now));
    assert_eq!(psns(&arrived), (0..2000).collect::<Vec<_>>());
}

/// A MIDDLE of 1024 bytes of payload, as a whole IP packet, takes 1 ms.
const MIDDLE: usize = 28 + 12 + 1024 + 4;
const ONE_PER_MS: u64 = MIDDLE as u64 * 8 * 1000;

fn send_one(from: &mut SimPort, to: IpAddr, now: Instant, psn: u32) {
    let mut batch = batch(&from.caps());
    push(&mut batch, &flow(&from.caps(), to), Opcode::RC_WRITE_MIDDLE, psn, 1024);
    assert_eq!(from.send(now, &mut batch).unwrap(), SendOutcome::Done);
}

/// Lets time pass until nothing is in flight; when each datagram arrived, and from whom.
fn run_shared(network: &SimNetwork, to: &mut SimPort, start: Instant) -> Vec<(Duration, IpAddr)> {
    let mut arrived = Vec::new();
    while let Some(now) = network.next_event() {
        assert!(to.poll_timeout().is_some_and(|at| at <= now), "never later than something comes");
        let new = recv_all(to, now);
        arrived.extend(new.into_iter().map(|datagram| (now - start, datagram.outer.flow.src)));
    }
    arrived
}

#[test]
fn all_senders_share_the_queue_of_a_receiver_in_the_order_of_arrival() {
    let (network, mut a, mut b) = pair(12, Link::default());
    let mut c = network.attach(addr(3)).unwrap();
    // What `a` sends takes longer to the switch than what `c` sends.
    let far = Impairment { delay: 500 * US..=500 * US, ..Impairment::default() };
    network.set_link(addr(1), addr(2), Link { impairment: far, ..Link::default() });
    network.set_queue(QueueId::Downlink(addr(2)), Queue::unlimited(ONE_PER_MS));
    let now = Instant::now();
    send_one(&mut a, addr(2), now, 1);
    send_one(&mut c, addr(2), now, 1);
    send_one(&mut c, addr(2), now + 600 * US, 2);
    let arrived = run_shared(&network, &mut b, now);
    let sources: Vec<_> = arrived.iter().map(|(_, from)| *from).collect();
    assert_eq!(sources, [addr(3), addr(1), addr(3)]);
    assert!(arrived[1].0 - arrived[0].0 > 900 * US, "one waits for the other: {arrived:?}");
}

#[test]
fn a_receiver_that_does_not_receive_finds_its_buffer_full_and_the_rest_lost() {
    let (network, mut a, mut b) = pair(13, Link::default());
    let downlink = QueueId::Downlink(addr(2));
    network.set_queue(downlink, Queue::taildrop(ONE_PER_MS * 1000, 4 * MIDDLE));
    let now = Instant::now();
    for psn in 0..6 {
        // Datagrams that need not wait for one another.
        send_one(&mut a, addr(2), now + psn * 10 * US, psn);
    }
    let later = now + 1000 * US;
    assert_eq!(b.receive_fill(later), None, "nothing was received yet");
    assert_eq!(recv_all(&mut b, later).len(), 4);
    assert_eq!(b.receive_fill(later), Some(1.0));
    assert_eq!(b.receive_fill(later), None, "nothing was received since");
    send_one(&mut a, addr(2), later, 6);
    assert_eq!(recv_all(&mut b, later + 10 * US).len(), 1);
    assert_eq!(b.receive_fill(later), Some(0.25));
    assert_eq!(network.queue(later, downlink).map(|(_, counters)| counters.full), Some(2));
    assert_eq!(network.counters().queue_full, 2);
}

#[test]
fn a_trunk_is_shared_by_two_groups_and_not_met_within_one() {
    let (network, mut a, mut b) = pair(14, Link::default());
    let (mut c, mut d) = (network.attach(addr(3)).unwrap(), network.attach(addr(4)).unwrap());
    network.set_group(addr(2), 1);
    network.set_group(addr(4), 1);
    network.set_queue(QueueId::Trunk(0, 1), Queue::unlimited(ONE_PER_MS));
    let now = Instant::now();
    send_one(&mut a, addr(2), now, 1);
    send_one(&mut c, addr(4), now, 1);
    send_one(&mut a, addr(3), now, 1);
    send_one(&mut b, addr(1), now, 1);
    assert_eq!(recv_all(&mut c, now).len(), 1, "within a group");
    assert_eq!(recv_all(&mut a, now).len(), 1, "the way back is another trunk");
    let [first, second] = [now + 1000 * US, now + 2000 * US];
    assert_eq!(recv_all(&mut b, first - US).len(), 0);
    assert_eq!(recv_all(&mut b, first).len(), 1);
    assert_eq!(recv_all(&mut d, second - US).len(), 0, "it comes after the other");
    assert_eq!(recv_all(&mut d, second).len(), 1);
}

#[test]
fn all_that_leaves_a_host_waits_in_its_own_queue() {
    let (network, mut a, mut b) = pair(15, Link::default());
    let mut c = network.attach(addr(3)).unwrap();
    network.set_queue(QueueId::Uplink(addr(1)), Queue::unlimited(ONE_PER_MS));
    let now = Instant::now();
    for psn in 0..3 {
        send_one(&mut a, addr(3), now, psn);
    }
    send_one(&mut a, addr(2), now, 0);
    assert!(network.queue(now, QueueId::Uplink(addr(1))).is_some_and(|(waiting, _)| waiting > 0));
    assert_eq!(recv_all(&mut b, now + 3000 * US).len(), 0);
    assert_eq!(recv_all(&mut b, now + 5000 * US).len(), 1);
    assert_eq!(recv_all(&mut c, now + 5000 * US).len(), 3);
    assert_eq!(network.queue(now + 5000 * US, QueueId::Uplink(addr(1))).unwrap().0, 0);
}

#[test]
fn an_endpoint_is_named_once_until_it_receives() {
    let (network, mut a, mut b) = pair(16, Link::default());
    let now = Instant::now();
    send_one(&mut a, addr(2), now, 0);
    assert_eq!(network.take_arrival(now), Some((addr(2), SlotId::BROKER)));
    send_one(&mut a, addr(2), now, 1);
    assert_eq!(network.take_arrival(now), None);
    assert_eq!(network.next_event(), None);
    assert_eq!(recv_all(&mut b, now).len(), 2);
    send_one(&mut a, addr(2), now, 2);
    assert_eq!(network.next_event(), Some(now));
    assert_eq!(network.take_arrival(now), Some((addr(2), SlotId::BROKER)));
}

/// Everything that can go wrong, a bit of each.
fn storm() -> Link {
    let impairment = Impairment {
        drop: Chance::percent(5.0),
        duplicate: Chance::percent(5.0),
        reorder: Chance::percent(5.0),
        corrupt: Chance::percent(5.0),
        delay: 3 * US..=90 * US,
    };
    let limits = (Some(10_000_000_000), Some(50 * US), Some(5 * US));
    Link { impairment, rate: limits.0, queue_limit: limits.1, mark_above: limits.2 }
}

/// What `b` receives from `a`, while `c` sends it `noise` packets between.
fn history(seed: u64, start: Instant, noise: u32) -> Vec<(Duration, Arrived)> {
    let (network, mut a, mut b) = pair(seed, storm());
    let mut c = network.attach(addr(3)).unwrap();
    for step in 0..10u32 {
        send(&mut a, addr(2), start + step * 20 * US, step * 20, 20);
        if noise > 2 {
            send(&mut c, addr(2), start + step * 20 * US, 0, noise);
        }
    }
    let mut arrived = run(&network, &mut b, start);
    arrived.retain(|(_, datagram)| datagram.outer.flow.src == addr(1));
    arrived
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn the_same_seed_gives_the_same_deliveries(seed: u64, later in 0u64..1_000_000) {
        let start = Instant::now();
        let again = start + Duration::from_micros(later);
        prop_assert_eq!(history(seed, start, 0), history(seed, again, 0));
    }

    #[test]
    fn the_traffic_of_others_does_not_change_what_a_link_does(seed: u64, noise in 3u32..9) {
        let start = Instant::now();
        prop_assert_eq!(history(seed, start, 0), history(seed, start, noise));
    }

    #[test]
    fn another_seed_gives_other_deliveries(seed: u64) {
        let start = Instant::now();
        prop_assert_ne!(history(seed, start, 0), history(seed.wrapping_add(1), start, 0));
    }
}

#[test]
fn every_member_of_a_group_gets_its_own_copy_over_its_own_link() {
    let (network, mut a, mut b) = pair(8, Link::default());
    let mut c = network.attach(addr(3)).unwrap();
    let group = Ipv4Addr::new(239, 1, 2, 3).into();
    let now = Instant::now();
    send(&mut a, group, now, 0, 3);
    assert_eq!(network.next_event(), None, "a group without members is no error, and no traffic");
    for port in [&mut a, &mut b, &mut c] {
        port.join(group).unwrap();
        port.join(group).unwrap();
    }
    network.partition(addr(1), addr(3), now..now + US);
    send(&mut a, group, now, 10, 3);
    for port in [&mut a, &mut b] {
        let arrived = recv_all(port, now);
        assert_eq!(psns(&arrived), [10, 11, 12]);
        assert!(arrived.iter().all(|d| d.outer.flow.dst == group && d.verdict == Verdict::Exact));
    }
    assert_eq!(recv_all(&mut c, now), [], "the partition is between two of them only");
    b.leave(group).unwrap();
    drop(a);
    send(&mut c, group, now, 20, 3);
    assert_eq!(recv_all(&mut b, now), []);
    assert_eq!(psns(&recv_all(&mut c, now)), [20, 21, 22]);
    assert_eq!(network.next_event(), None, "nothing is in flight to one that is gone");
    assert!(c.join(addr(2)).is_err());
}

#[test]
fn each_slot_of_a_host_gets_what_is_for_its_qps() {
    let network = SimNetwork::new(1, Link::default());
    let mut a = network.attach(addr(1)).unwrap();
    let mut slots = network.attach_slots(addr(2), 4.try_into().unwrap()).unwrap();
    assert!(network.attach(addr(2)).is_err());
    let now = Instant::now();
    let mut batch = batch(&a.caps());
    let flow = flow(&a.caps(), addr(2));
    for (psn, qpn) in (0..).zip([0x11, 1 << 18, 3 << 18 | 5, 4 << 18, 0xff_ffff, 3 << 18]) {
        push_to(&mut batch, &flow, Qpn::new(qpn), psn, 64);
    }
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    let mut of_slots = slots.iter_mut().map(|slot| psns(&recv_all(slot, now)));
    assert_eq!(of_slots.by_ref().collect::<Vec<_>>(), [vec![0, 3, 4], vec![1], vec![], vec![2, 5]]);

    // A slot that is gone is missed by nobody.
    drop(slots.remove(1));
    for (psn, qpn) in (0..).zip([1 << 18, 3 << 18]) {
        push_to(&mut batch, &flow, Qpn::new(qpn), psn, 64);
    }
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(network.take_arrival(now).map(|(_, slot)| slot.index()), Some(3));
    assert_eq!(psns(&recv_all(&mut slots[2], now)), [1]);
    assert_eq!(network.next_event(), None);
    drop(slots);
    assert!(network.attach(addr(2)).is_ok());
}

#[test]
fn a_datagram_to_a_group_crosses_a_link_once_and_comes_to_every_slot_that_joined() {
    let network = SimNetwork::new(1, Link::default());
    let mut a = network.attach(addr(1)).unwrap();
    let mut slots = network.attach_slots(addr(2), 3.try_into().unwrap()).unwrap();
    let group = Ipv4Addr::new(239, 0, 0, 1).into();
    for slot in &mut slots[1..] {
        slot.join(group).unwrap();
    }
    network.set_queue(QueueId::Downlink(addr(2)), Queue::unlimited(1_000_000));
    let now = Instant::now();
    let mut batch = batch(&a.caps());
    push_to(&mut batch, &flow(&a.caps(), group), Qpn::MULTICAST, 7, 64);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    let later = now + Duration::from_secs(1);
    let arrived: Vec<Vec<u32>> =
        slots.iter_mut().map(|slot| psns(&recv_all(slot, later))).collect();
    assert_eq!(arrived, [vec![], vec![7], vec![7]]);
    let (waiting, counters) = network.queue(later, QueueId::Downlink(addr(2))).unwrap();
    assert_eq!((waiting, counters.packets), (0, 1));
}
