//! Links, queues and what is in flight.

use super::{LINK_MTU, Link, SimCounters};
use crate::delay_line::{DelayLine, Path};
use crate::impairment::{self, Impairments};
use crate::rng::Rng;
use crate::{PortCounters, RxBatch};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};
use urxe_wire::batch::{Datagram, TxBatch};
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, Outer, OuterHeaders};

/// The two lowest bits of the traffic class: ECN (RFC 3168).
const ECN: u8 = 0b11;
const NOT_ECN_CAPABLE: u8 = 0b00;
const CONGESTION_EXPERIENCED: u8 = 0b11;

#[derive(Debug)]
pub(super) struct Network {
    seed: u64,
    default_link: Link,
    links: BTreeMap<(IpAddr, IpAddr), LinkState>,
    /// What is in flight to each endpoint.
    endpoints: BTreeMap<IpAddr, DelayLine<Arriving>>,
    /// The members of each multicast group.
    groups: BTreeMap<IpAddr, BTreeSet<IpAddr>>,
    partitions: Vec<Partition>,
    pub(super) counters: SimCounters,
}

#[derive(Debug)]
struct LinkState {
    link: Link,
    rng: Rng,
    /// When what is in the queue will have left.
    free_at: Option<Instant>,
    path: Path,
}

#[derive(Debug)]
struct Partition {
    between: [IpAddr; 2],
    during: Range<Instant>,
}

#[derive(Clone, Debug)]
struct Arriving {
    outer: Outer,
    bytes: Bytes,
}

impl Network {
    pub(super) fn new(seed: u64, link: Link) -> Self {
        Network {
            seed,
            default_link: link,
            links: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            groups: BTreeMap::new(),
            partitions: Vec::new(),
            counters: SimCounters::default(),
        }
    }

    /// False: the address is taken.
    pub(super) fn attach(&mut self, addr: IpAddr) -> bool {
        let vacant = !self.endpoints.contains_key(&addr);
        if vacant {
            self.endpoints.insert(addr, DelayLine::new());
        }
        vacant
    }

    pub(super) fn detach(&mut self, addr: IpAddr) {
        self.endpoints.remove(&addr);
        for members in self.groups.values_mut() {
            members.remove(&addr);
        }
    }

    pub(super) fn join(&mut self, group: IpAddr, addr: IpAddr) {
        self.groups.entry(group).or_default().insert(addr);
    }

    pub(super) fn leave(&mut self, group: IpAddr, addr: IpAddr) {
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(&addr);
        }
    }

    pub(super) fn set_link(&mut self, from: IpAddr, to: IpAddr, link: Link) {
        self.link(from, to).link = link;
    }

    pub(super) fn partition(&mut self, a: IpAddr, b: IpAddr, during: Range<Instant>) {
        self.partitions.push(Partition { between: [a, b], during });
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.endpoints.values().filter_map(DelayLine::next_due).min()
    }

    pub(super) fn next_arrival(&self, addr: IpAddr) -> Option<Instant> {
        self.endpoints.get(&addr)?.next_due()
    }

    /// Sends everything in the batch; what cannot be sent is counted.
    pub(super) fn send(
        &mut self,
        now: Instant,
        from: IpAddr,
        batch: &TxBatch,
        sender: &mut PortCounters,
    ) {
        for run in batch.runs() {
            let (flow, datagrams) = (run.flow, run.segments as u64);
            if flow.src != from || flow.dst.is_ipv4() != from.is_ipv4() {
                sender.tx_wrong_flow += datagrams;
                continue;
            }
            let receivers = self.receivers(flow.dst);
            if receivers.is_empty() && !flow.dst.is_multicast() {
                sender.tx_unreachable += datagrams;
                continue;
            }
            let header_len = OuterHeaders::len(flow.dst.is_ipv6());
            // One allocation for all datagrams of the run.
            let mut bytes = BytesMut::from(run.bytes);
            for datagram in run.datagrams() {
                let bytes = bytes.split_to(datagram.bytes.len());
                if header_len + bytes.len() > LINK_MTU as usize {
                    sender.tx_too_large += 1;
                    continue;
                }
                sender.tx_datagrams += 1;
                sender.tx_bytes += bytes.len() as u64;
                match receivers[..] {
                    [to] => self.transmit(now, to, &datagram, bytes),
                    _ => {
                        for &to in &receivers {
                            self.transmit(now, to, &datagram, bytes.clone());
                        }
                    }
                }
            }
        }
    }

    /// Who gets what is sent to an address or a group. The sender may be among a group's members.
    fn receivers(&self, dst: IpAddr) -> Vec<IpAddr> {
        if dst.is_multicast() {
            return self.groups.get(&dst).into_iter().flatten().copied().collect();
        }
        self.endpoints.get(&dst).map(|_| dst).into_iter().collect()
    }

    fn transmit(&mut self, now: Instant, to: IpAddr, datagram: &Datagram<'_>, mut bytes: BytesMut) {
        let mut flow = *datagram.flow;
        if self.is_partitioned(now, flow.src, to) {
            self.counters.partitioned += 1;
            return;
        }
        let link = self.link(flow.src, to);
        let impairments = link.link.impairment.decide(&mut link.rng);
        let packet_len = OuterHeaders::len(flow.dst.is_ipv6()) + bytes.len();
        let Some((arrival, marked)) = link.pass(now, &mut flow, packet_len, &impairments) else {
            self.counters.queue_full += 1;
            return;
        };
        if impairments.corrupt {
            impairment::corrupt(&mut link.rng, &mut bytes);
        }
        self.counters.marked += u64::from(marked);
        if impairments.drop {
            self.counters.dropped += 1;
        } else {
            self.counters.corrupted += u64::from(impairments.corrupt);
            self.counters.reordered += u64::from(impairments.reorder.is_some());
            self.counters.duplicated += u64::from(impairments.duplicate);
        }

        let ident = Ident::Known { ident: datagram.ident, fragment: DONT_FRAGMENT };
        let arriving = Arriving { outer: Outer { flow, ident }, bytes: bytes.freeze() };
        let Some(endpoint) = self.endpoints.get_mut(&to) else { return };
        for _ in 0..impairments.copies() {
            endpoint.push(arrival, arriving.clone());
        }
    }

    /// Hands over what has arrived, as far as there is room, and returns how many datagrams.
    pub(super) fn recv(
        &mut self,
        now: Instant,
        addr: IpAddr,
        rx: &mut RxBatch,
        receiver: &mut PortCounters,
    ) -> usize {
        let Some(endpoint) = self.endpoints.get_mut(&addr) else { return 0 };
        let mut datagrams = 0;
        while let Some(arriving) = endpoint.peek_due(now) {
            if !rx.push(&arriving.outer, &arriving.bytes) {
                break;
            }
            receiver.rx_bytes += arriving.bytes.len() as u64;
            datagrams += 1;
            endpoint.pop_due(now);
        }
        receiver.rx_datagrams += datagrams as u64;
        self.counters.delivered += datagrams as u64;
        datagrams
    }

    fn link(&mut self, from: IpAddr, to: IpAddr) -> &mut LinkState {
        self.links.entry((from, to)).or_insert_with(|| LinkState {
            link: self.default_link.clone(),
            rng: link_rng(self.seed, from, to),
            free_at: None,
            path: Path::default(),
        })
    }

    fn is_partitioned(&self, now: Instant, from: IpAddr, to: IpAddr) -> bool {
        self.partitions.iter().any(|partition| {
            let [a, b] = partition.between;
            let concerned = [(a, b), (b, a)].contains(&(from, to));
            concerned && partition.during.contains(&now)
        })
    }
}

impl LinkState {
    /// Queues a packet. When it arrives, and whether it was marked; `None`: the queue is full.
    fn pass(
        &mut self,
        now: Instant,
        flow: &mut Flow,
        packet_len: usize,
        impairments: &Impairments,
    ) -> Option<(Instant, bool)> {
        let waits = self.free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        if self.link.queue_limit.is_some_and(|limit| waits > limit) {
            return None;
        }
        let marked = self.link.mark_above.is_some_and(|limit| waits > limit)
            && flow.traffic_class & ECN != NOT_ECN_CAPABLE;
        if marked {
            flow.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let takes = self.link.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos(packet_len as u64 * 8 * 1_000_000_000 / rate.max(1))
        });
        let leaves = now + waits + takes;
        self.free_at = Some(leaves);
        Some((self.path.arrival(leaves, impairments.delay, impairments.reorder), marked))
    }
}

/// A generator for each link, so that what happens on one does not depend on the others' traffic.
fn link_rng(seed: u64, from: IpAddr, to: IpAddr) -> Rng {
    let mut rng = Rng::new(seed);
    for addr in [from, to] {
        let bits = match addr {
            IpAddr::V4(addr) => u128::from(u32::from(addr)),
            IpAddr::V6(addr) => u128::from(addr),
        };
        rng = Rng::new(rng.next_u64() ^ bits as u64);
        rng = Rng::new(rng.next_u64() ^ (bits >> 64) as u64);
    }
    rng
}
