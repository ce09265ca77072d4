//! Links, queues and what is in flight.

use super::queue::{self, Queue, QueueCounters, QueueId, QueueState};
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
use urxe_types::{SlotCount, SlotId};
use urxe_wire::batch::{Datagram, TxBatch};
use urxe_wire::{Bth, DONT_FRAGMENT, Flow, Ident, Outer, OuterHeaders};

#[derive(Debug)]
pub(super) struct Network {
    seed: u64,
    default_link: Link,
    links: BTreeMap<(IpAddr, IpAddr), LinkState>,
    /// How many slots each host has.
    hosts: BTreeMap<IpAddr, SlotCount>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Which endpoint has something to receive next, unless it was named already.
    arrivals: BTreeSet<(Instant, EndpointId)>,
    queues: BTreeMap<QueueId, QueueState>,
    /// The groups of hosts; a host that is not here is in group 0.
    host_groups: BTreeMap<IpAddr, u16>,
    /// What is on its way to the next shared queue.
    between_queues: DelayLine<Transit>,
    /// The members of each multicast group.
    groups: BTreeMap<IpAddr, BTreeSet<EndpointId>>,
    partitions: Vec<Partition>,
    pub(super) counters: SimCounters,
}

/// A slot of a host.
pub(super) type EndpointId = (IpAddr, SlotId);

/// What is in flight to an endpoint.
#[derive(Debug)]
struct Endpoint {
    line: DelayLine<Arriving>,
    /// Its entry in `arrivals`.
    listed: Option<Instant>,
    /// It was named, and has not received since.
    named: bool,
    /// How full the queue was that it received from last.
    fill: Option<f32>,
}

/// A datagram before a shared queue.
#[derive(Debug)]
struct Transit {
    to: IpAddr,
    before: QueueId,
    packet_len: usize,
    arriving: Arriving,
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
    /// Bytes that it takes in the downlink's queue until it is received.
    held: usize,
}

impl Network {
    pub(super) fn new(seed: u64, link: Link) -> Self {
        Network {
            seed,
            default_link: link,
            links: BTreeMap::new(),
            hosts: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            arrivals: BTreeSet::new(),
            queues: BTreeMap::new(),
            host_groups: BTreeMap::new(),
            between_queues: DelayLine::new(),
            groups: BTreeMap::new(),
            partitions: Vec::new(),
            counters: SimCounters::default(),
        }
    }

    /// False: the address is taken.
    pub(super) fn attach(&mut self, addr: IpAddr, slots: SlotCount) -> bool {
        let vacant = !self.hosts.contains_key(&addr);
        if vacant {
            self.hosts.insert(addr, slots);
            self.endpoints.extend(slots.slots().map(|slot| {
                let endpoint =
                    Endpoint { line: DelayLine::new(), listed: None, named: false, fill: None };
                ((addr, slot.id()), endpoint)
            }));
        }
        vacant
    }

    pub(super) fn detach(&mut self, id: EndpointId) {
        if let Some(Endpoint { listed: Some(at), .. }) = self.endpoints.remove(&id) {
            self.arrivals.remove(&(at, id));
        }
        for members in self.groups.values_mut() {
            members.remove(&id);
        }
        if !self.endpoints.keys().any(|(addr, _)| *addr == id.0) {
            self.hosts.remove(&id.0);
        }
    }

    pub(super) fn join(&mut self, group: IpAddr, id: EndpointId) {
        self.groups.entry(group).or_default().insert(id);
    }

    pub(super) fn leave(&mut self, group: IpAddr, id: EndpointId) {
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(&id);
        }
    }

    pub(super) fn set_link(&mut self, from: IpAddr, to: IpAddr, link: Link) {
        self.link(from, to).link = link;
    }

    pub(super) fn partition(&mut self, a: IpAddr, b: IpAddr, during: Range<Instant>) {
        self.partitions.push(Partition { between: [a, b], during });
    }

    pub(super) fn set_queue(&mut self, id: QueueId, queue: Queue) {
        let seed = self.seed;
        let until_received = matches!(id, QueueId::Downlink(_));
        let state = self.queues.entry(id);
        state
            .or_insert_with(|| QueueState::new(queue, queue_rng(seed, id), until_received))
            .queue = queue;
    }

    pub(super) fn set_group(&mut self, host: IpAddr, group: u16) {
        self.host_groups.insert(host, group);
    }

    /// Bytes that wait in a queue, and what it did so far.
    pub(super) fn queue(&mut self, now: Instant, id: QueueId) -> Option<(usize, QueueCounters)> {
        self.advance(now);
        let queue = self.queues.get_mut(&id)?;
        Some((queue.waiting(now), queue.counters))
    }

    /// How full the queue was that the endpoint received from since it was last asked.
    pub(super) fn take_fill(&mut self, id: EndpointId) -> Option<f32> {
        self.endpoints.get_mut(&id)?.fill.take()
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let arrival = self.arrivals.first().map(|(at, _)| *at);
        arrival.into_iter().chain(self.between_queues.next_due()).min()
    }

    /// When the endpoint may have something to receive: not later than that.
    pub(super) fn next_arrival(&self, id: EndpointId) -> Option<Instant> {
        let arrival = self.endpoints.get(&id)?.line.next_due();
        arrival.into_iter().chain(self.between_queues.next_due()).min()
    }

    pub(super) fn take_arrival(&mut self, now: Instant) -> Option<EndpointId> {
        self.advance(now);
        let &(at, id) = self.arrivals.first().filter(|(at, _)| *at <= now)?;
        self.arrivals.remove(&(at, id));
        let endpoint = self.endpoints.get_mut(&id)?;
        (endpoint.listed, endpoint.named) = (None, true);
        Some(id)
    }

    /// Takes what is between queues to where it is by now, in the order of time.
    fn advance(&mut self, now: Instant) {
        while let Some(at) = self.between_queues.next_due().filter(|at| *at <= now)
            && let Some(mut transit) = self.between_queues.pop_due(now)
        {
            let Some(queue) = self.queues.get_mut(&transit.before) else { continue };
            let class = &mut transit.arriving.outer.flow.traffic_class;
            let Some((leaves, marked)) = queue.pass(at, class, transit.packet_len) else {
                self.counters.queue_full += 1;
                continue;
            };
            self.counters.marked += u64::from(marked);
            let downlink = QueueId::Downlink(transit.to);
            if transit.before == downlink {
                transit.arriving.held = transit.packet_len;
                self.arrive(leaves, transit.to, transit.arriving);
            } else if self.queues.contains_key(&downlink) {
                self.between_queues.push(leaves, Transit { before: downlink, ..transit });
            } else {
                self.arrive(leaves, transit.to, transit.arriving);
            }
        }
    }

    /// The first shared queue after the uplink that a datagram meets.
    fn first_queue(&self, from: IpAddr, to: IpAddr) -> Option<QueueId> {
        let group = |host| self.host_groups.get(&host).copied().unwrap_or(0);
        let on_the_way = [QueueId::Trunk(group(from), group(to)), QueueId::Downlink(to)];
        on_the_way.into_iter().find(|id| self.queues.contains_key(id))
    }

    /// Hands a datagram that comes to a host to the slot that its QPN names, or to those that are
    /// members of its group.
    fn arrive(&mut self, at: Instant, to: IpAddr, mut arriving: Arriving) {
        let dst = arriving.outer.flow.dst;
        if dst.is_multicast() {
            let members = self.groups.get(&dst).into_iter().flatten();
            for &id in members.filter(|(host, _)| *host == to) {
                push(&mut self.endpoints, &mut self.arrivals, id, at, arriving.clone());
                // The queue had it once.
                arriving.held = 0;
            }
        } else if let Some(slots) = self.hosts.get(&to) {
            let id = (to, slots.slot_of(Bth::dest_qp_in(&arriving.bytes).unwrap_or_default()));
            push(&mut self.endpoints, &mut self.arrivals, id, at, arriving);
        }
    }

    /// Sends everything in the batch; what cannot be sent is counted.
    pub(super) fn send(
        &mut self,
        now: Instant,
        from: IpAddr,
        batch: &TxBatch,
        sender: &mut PortCounters,
    ) {
        self.advance(now);
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

    /// The hosts that get what is sent to an address or a group. The sender may be among a group's
    /// members.
    fn receivers(&self, dst: IpAddr) -> Vec<IpAddr> {
        if !dst.is_multicast() {
            return self.hosts.get(&dst).map(|_| dst).into_iter().collect();
        }
        let members = self.groups.get(&dst).into_iter().flatten();
        let mut hosts: Vec<IpAddr> = members.map(|(host, _)| *host).collect();
        hosts.dedup();
        hosts
    }

    fn transmit(&mut self, now: Instant, to: IpAddr, datagram: &Datagram<'_>, mut bytes: BytesMut) {
        let mut flow = *datagram.flow;
        if self.is_partitioned(now, flow.src, to) {
            self.counters.partitioned += 1;
            return;
        }
        let packet_len = OuterHeaders::len(flow.dst.is_ipv6()) + bytes.len();
        let uplink = self.queues.get_mut(&QueueId::Uplink(flow.src));
        let sent = match uplink.map(|queue| queue.pass(now, &mut flow.traffic_class, packet_len)) {
            None => Some((now, false)),
            Some(left) => left,
        };
        let Some((sets_out, marked_before)) = sent else {
            self.counters.queue_full += 1;
            return;
        };
        let next = self.first_queue(flow.src, to);
        let link = self.link(flow.src, to);
        let impairments = link.link.impairment.decide(&mut link.rng);
        let Some((arrival, marked)) = link.pass(sets_out, &mut flow, packet_len, &impairments)
        else {
            self.counters.queue_full += 1;
            return;
        };
        if impairments.corrupt {
            impairment::corrupt(&mut link.rng, &mut bytes);
        }
        self.counters.marked += u64::from(marked || marked_before);
        if impairments.drop {
            self.counters.dropped += 1;
        } else {
            self.counters.corrupted += u64::from(impairments.corrupt);
            self.counters.reordered += u64::from(impairments.reorder.is_some());
            self.counters.duplicated += u64::from(impairments.duplicate);
        }

        let ident = Ident::Known { ident: datagram.ident, fragment: DONT_FRAGMENT };
        let arriving = Arriving { outer: Outer { flow, ident }, bytes: bytes.freeze(), held: 0 };
        for _ in 0..impairments.copies() {
            let arriving = arriving.clone();
            match next {
                None => self.arrive(arrival, to, arriving),
                Some(before) => {
                    let transit = Transit { to, before, packet_len, arriving };
                    self.between_queues.push(arrival, transit);
                }
            }
        }
    }

    /// Hands over what has arrived, as far as there is room, and returns how many datagrams.
    pub(super) fn recv(
        &mut self,
        now: Instant,
        id: EndpointId,
        rx: &mut RxBatch,
        receiver: &mut PortCounters,
    ) -> usize {
        self.advance(now);
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return 0 };
        let mut downlink = self.queues.get_mut(&QueueId::Downlink(id.0));
        if endpoint.line.peek_due(now).is_some() {
            endpoint.fill = downlink.as_ref().and_then(|queue| queue.fill());
        }
        let mut datagrams = 0;
        while let Some(arriving) = endpoint.line.peek_due(now) {
            if !rx.push(&arriving.outer, &arriving.bytes) {
                break;
            }
            receiver.rx_bytes += arriving.bytes.len() as u64;
            datagrams += 1;
            if let Some(queue) = &mut downlink {
                queue.received(arriving.held);
            }
            endpoint.line.pop_due(now);
        }
        endpoint.named = false;
        list_arrival(&mut self.arrivals, id, endpoint);
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
            partition.during.contains(&now) && ((a, b) == (from, to) || (b, a) == (from, to))
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
            && queue::mark(&mut flow.traffic_class);
        let takes =
            self.link.rate.map_or(Duration::ZERO, |rate| queue::transmission(rate, packet_len));
        let leaves = now + waits + takes;
        self.free_at = Some(leaves);
        Some((self.path.arrival(leaves, impairments.delay, impairments.reorder), marked))
    }
}

/// Lets a datagram come to an endpoint, if there is one.
fn push(
    endpoints: &mut BTreeMap<EndpointId, Endpoint>,
    arrivals: &mut BTreeSet<(Instant, EndpointId)>,
    id: EndpointId,
    at: Instant,
    arriving: Arriving,
) {
    if let Some(endpoint) = endpoints.get_mut(&id) {
        endpoint.line.push(at, arriving);
        list_arrival(arrivals, id, endpoint);
    }
}

/// Says when an endpoint has something to receive next.
fn list_arrival(
    arrivals: &mut BTreeSet<(Instant, EndpointId)>,
    id: EndpointId,
    endpoint: &mut Endpoint,
) {
    let due = endpoint.line.next_due().filter(|_| !endpoint.named);
    if due != endpoint.listed {
        if let Some(at) = endpoint.listed {
            arrivals.remove(&(at, id));
        }
        arrivals.extend(due.map(|at| (at, id)));
        endpoint.listed = due;
    }
}

/// A generator for each link, so that what happens on one does not depend on the others' traffic.
fn link_rng(seed: u64, from: IpAddr, to: IpAddr) -> Rng {
    rng_of(seed, &[bits(from), bits(to)])
}

fn queue_rng(seed: u64, id: QueueId) -> Rng {
    match id {
        QueueId::Uplink(host) => rng_of(seed, &[1, bits(host)]),
        QueueId::Trunk(from, to) => rng_of(seed, &[2, from.into(), to.into()]),
        QueueId::Downlink(host) => rng_of(seed, &[3, bits(host)]),
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => u128::from(u32::from(addr)),
        IpAddr::V6(addr) => u128::from(addr),
    }
}

/// A generator that follows from a seed and from what it is for.
fn rng_of(seed: u64, names: &[u128]) -> Rng {
    let mut rng = Rng::new(seed);
    for name in names {
        rng = Rng::new(rng.next_u64() ^ *name as u64);
        rng = Rng::new(rng.next_u64() ^ (name >> 64) as u64);
    }
    rng
}
