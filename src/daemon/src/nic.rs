//! One device with its port: how packets, doorbells and time reach the engine, and what becomes
//! of what it says.

use crate::addresses::{LinkState, Served, path_mtu};
use crate::engine_host::ProgramHost;
use crate::limits::{
    BATCHES_PER_TURN, FLUSH_INTERVAL_MAX, FLUSH_INTERVAL_MIN, LOOKS_PER_TURN, MIN_PROBE,
    RX_BUFFERS, TX_BATCH_BYTES,
};
use crate::objects::EventTarget;
use crate::queues::own_recv_queue;
use crate::slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Bound;
use std::time::{Duration, Instant};
use urxe_cm::{Manager, Timing};
use urxe_engine::limits::MAX_RD_ATOMIC;
use urxe_engine::{Device, DeviceConfig, ModifyQpError, QueueId};
use urxe_port::{OpenError, Port, RxBatch, SendOutcome, SourcePort};
use urxe_shm::control::event;
use urxe_types::{PathMtu, QpAttr, QpState, Qpn};
use urxe_wire::batch::TxBatch;

/// What happens to a port: told to every context of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum PortEvent {
    /// `IBV_EVENT_PORT_ACTIVE`: its link has come up.
    Active = event::PORT_ACTIVE,
    /// `IBV_EVENT_PORT_ERR`: its link is down.
    Error = event::PORT_ERR,
    /// `IBV_EVENT_GID_CHANGE`: its GID table has changed.
    GidChange = event::GID_CHANGE,
}

/// Who a device is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) guid: [u8; 8],
    /// What it is made for.
    pub(crate) served: Served,
    /// The addresses that its GID table begins with. Those that its port has not cannot be used
    /// yet.
    pub(crate) table: Vec<IpAddr>,
}

/// A NIC: one device on one port.
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) guid: [u8; 8],
    pub(crate) served: Served,
    /// What it is on, and whether that works.
    pub(crate) link: LinkState,
    /// The largest path MTU of its link.
    pub(crate) mtu: PathMtu,
    /// Addresses that cannot be used yet, by their places in the GID table.
    pub(crate) awaited: BTreeMap<u8, IpAddr>,
    /// Addresses that cannot be served.
    pub(crate) refused: BTreeSet<IpAddr>,
    pub(crate) device: Device,
    pub(crate) host: ProgramHost,
    /// Its connections.
    pub(crate) cm: Manager,
    /// Protection domains: they have a number and nothing else.
    pub(crate) pds: Slab<()>,
    port: Box<dyn Port>,
    tx: TxBatch,
    rx: RxBatch,
    /// The engine may have something to send.
    due: bool,
    /// The port takes no more until it is ready again.
    blocked: bool,
    /// QPs in ERR with receive queues of their own. What is posted there has to be flushed, and
    /// the stock `librxe` does not say when it posts a receive.
    failed_qps: BTreeMap<u32, QueueId>,
    /// When to look at these queues, and how long after that to look again.
    look_at: Instant,
    look_interval: Duration,
    /// The QP looked at last.
    looked_at: u32,
    /// Multicast groups that the port is in.
    groups: BTreeSet<IpAddr>,
}

impl Nic {
    /// Puts a device on a port. The seeds make the numbers of the device and of its connections
    /// unpredictable; they are two, since the latter are told to everybody.
    pub(crate) fn new(
        identity: Identity,
        port: Box<dyn Port>,
        [seed, cm_seed]: [u64; 2],
        now: Instant,
    ) -> Nic {
        let Identity { name, guid, served, table } = identity;
        let caps = port.caps();
        let mtu = path_mtu(caps.link_mtu, caps.addrs.iter().copied());
        let is_usable = |addr: &IpAddr| caps.addrs.contains(addr);
        let awaited = (0u8..).zip(&table).filter(|(_, addr)| !is_usable(addr));
        let awaited = awaited.map(|(at, addr)| (at, *addr)).collect();
        let config = DeviceConfig {
            gids: table.iter().map(|addr| Some(*addr).filter(is_usable)).collect(),
            source_port: match caps.source_port {
                SourcePort::Fixed(source_port) => Some(source_port),
                SourcePort::OfFlow => None,
            },
            active_mtu: mtu,
            local_addrs: BTreeSet::new(),
            seed,
            min_probe: MIN_PROBE,
        };
        let cm = Manager::new(urxe_cm::Config {
            guid: u64::from_be_bytes(guid),
            seed: cm_seed,
            active_mtu: mtu,
            max_rd_atomic: MAX_RD_ATOMIC,
            timing: Timing::default(),
        });
        Nic {
            name,
            guid,
            served,
            link: LinkState::default(),
            mtu,
            awaited,
            refused: BTreeSet::new(),
            device: Device::new(config),
            host: ProgramHost::new(),
            cm,
            pds: Slab::default(),
            tx: TxBatch::new(caps.tx_limits, TX_BATCH_BYTES),
            rx: RxBatch::new(RX_BUFFERS),
            port,
            due: false,
            blocked: false,
            failed_qps: BTreeMap::new(),
            look_at: now,
            look_interval: FLUSH_INTERVAL_MIN,
            looked_at: 0,
            groups: BTreeSet::new(),
        }
    }

    pub(crate) fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// The first address of the GID table; the unspecified one while it is empty.
    pub(crate) fn address(&self) -> IpAddr {
        let first = self.device.gids().iter().flatten().next();
        first.copied().unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Whether the port takes no more until it is ready again.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether [`transmit`](Self::transmit) has something to do right away.
    pub(crate) fn is_due(&self) -> bool {
        self.due && !self.blocked
    }

    /// Gives the port another address.
    pub(crate) fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        self.port.add_address(addr)
    }

    /// Takes an address from the port.
    pub(crate) fn remove_address(&mut self, addr: IpAddr) {
        self.port.remove_address(addr);
    }

    /// Tells every program that has opened the device what has happened to its port.
    pub(crate) fn port_event(&mut self, event: PortEvent) {
        let contexts: Vec<EventTarget> = self.host.objects.contexts.values().copied().collect();
        for context in contexts {
            self.host.tell(context, event as u32);
        }
    }

    /// A program rang a QP's doorbell.
    pub(crate) fn ring(&mut self, qpn: Qpn) {
        self.device.ring_doorbell(qpn);
        self.due = true;
    }

    /// Takes in what one receive call brings. Returns whether it brought anything.
    pub(crate) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        if self.port.recv(now, &mut self.rx)? == 0 {
            return Ok(false);
        }
        self.host.begin_call();
        while let Some((outer, datagram)) = self.rx.next_datagram() {
            self.device.handle_datagram(now, &mut self.host, outer, datagram);
        }
        self.device.end_of_batch(now, &mut self.host);
        self.due = true;
        self.after_engine(now);
        Ok(true)
    }

    /// Sees to everything whose time has come. Returns whether there was anything.
    pub(crate) fn handle_timers(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        if self.port.poll_timeout().is_some_and(|at| at <= now) {
            worked = self.receive(now)?;
            worked |= self.send(now)?;
        }
        if self.device.poll_timeout().is_some_and(|at| at <= now) {
            self.host.begin_call();
            self.device.handle_timeout(now, &mut self.host);
            self.due = true;
            self.after_engine(now);
            worked = true;
        }
        if self.cm.poll_timeout().is_some_and(|at| at <= now) {
            self.cm.handle_timeout(now);
            worked = true;
        }
        if self.look_at <= now && !self.failed_qps.is_empty() {
            self.look_at_failed_qps(now);
        }
        Ok(worked)
    }

    /// Sends what the engine has to send. Returns whether there was anything.
    pub(crate) fn transmit(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        // Whenever the port is not blocked, the batch is empty.
        for _ in 0..BATCHES_PER_TURN {
            if !self.is_due() {
                break;
            }
            self.host.begin_call();
            self.due = self.device.poll_transmit(now, &mut self.host, &mut self.tx);
            self.after_engine(now);
            if self.tx.is_empty() {
                break;
            }
            worked = self.send(now)?;
        }
        Ok(worked)
    }

    /// Sends the batch. Returns whether it had anything in it.
    ///
    /// To be called also when a blocked port has become ready: a wrapper may hold datagrams of
    /// its own, so even an empty batch moves something.
    pub(crate) fn send(&mut self, now: Instant) -> io::Result<bool> {
        let had_any = !self.tx.is_empty();
        let outcome = self.port.send(now, &mut self.tx)?;
        self.blocked = outcome == SendOutcome::Blocked;
        Ok(had_any)
    }

    /// Changes a QP, and its rings with it.
    pub(crate) fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        self.host.begin_call();
        self.device.modify_qp(now, &mut self.host, qpn, attr)?;
        if attr.state == Some(QpState::Reset)
            && let Some(info) = self.device.query_qp(qpn)
        {
            if let Some(queue) = self.host.send_queues.get_mut(info.init.send_queue.0) {
                queue.reset();
            }
            if let Some(queue) = own_recv_queue(&info.init)
                && let Some(queue) = self.host.recv_queues.get_mut(queue.0)
            {
                queue.reset();
            }
            self.failed_qps.remove(&qpn.get());
        }
        self.due = true;
        self.host.maybe_failed(qpn);
        self.after_engine(now);
        Ok(())
    }

    /// Destroys a QP and its queues.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) {
        if let Some(info) = self.device.query_qp(qpn) {
            self.device.destroy_qp(qpn);
            self.host.forget_qp(&info.init);
        }
        self.host.objects.qps.remove(&qpn.get());
        self.failed_qps.remove(&qpn.get());
        self.leave_unused_groups();
    }

    /// Has the port join a multicast group.
    pub(crate) fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.port.join(group)?;
        self.groups.insert(group);
        Ok(())
    }

    /// Has the port leave the multicast groups that no QP is attached to any more.
    pub(crate) fn leave_unused_groups(&mut self) {
        // The port is in all groups that are in use, so as many are the same. To count them is
        // cheap, and of very many QPs that end at once hardly any was the last of a group.
        if self.device.mcast_groups().count() == self.groups.len() {
            return;
        }
        let used: BTreeSet<IpAddr> = self.device.mcast_groups().collect();
        for group in self.groups.difference(&used) {
            // What the kernel will not let go of is dropped by the engine.
            let _ = self.port.leave(*group);
        }
        self.groups.retain(|group| used.contains(group));
    }

    /// When to be called although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let look = (!self.failed_qps.is_empty()).then_some(self.look_at);
        let timers = [self.device.poll_timeout(), self.port.poll_timeout(), self.cm.poll_timeout()];
        timers.into_iter().chain([look]).flatten().min()
    }

    /// Lets the connection manager see the management datagrams that have come.
    pub(crate) fn take_mads(&mut self, now: Instant) {
        for (from, mad) in self.host.take_mads() {
            self.cm.handle_mad(now, &from, &mad);
        }
    }

    /// Sends what the connection manager has to send.
    pub(crate) fn send_mads(&mut self) {
        while let Some(out) = self.cm.poll_mad() {
            let to = out.path.address_vector(self.device.gids());
            match to.map(|to| self.device.send_mad(&to, out.qpn, &out.mad)) {
                Some(Ok(())) => self.due = true,
                Some(Err(_)) | None => self.host.counters.cm_messages_without_path += 1,
            }
        }
    }

    /// Shows the programs what the engine has done for them.
    fn after_engine(&mut self, now: Instant) {
        self.host.publish();
        while let Some(qpn) = self.host.take_maybe_failed_qp() {
            self.watch_if_failed(now, qpn);
        }
        while let Some(qpn) = self.host.take_requeue_qp() {
            self.ring(qpn);
        }
    }

    fn watch_if_failed(&mut self, now: Instant, qpn: Qpn) {
        if self.failed_qps.contains_key(&qpn.get()) {
            return;
        }
        let Some(info) = self.device.query_qp(qpn) else { return };
        if info.state != QpState::Err {
            return;
        }
        // The receives of an SRQ are not flushed.
        let Some(recv_queue) = own_recv_queue(&info.init) else { return };
        self.failed_qps.insert(qpn.get(), recv_queue);
        self.look_interval = FLUSH_INTERVAL_MIN;
        self.look_at = now + self.look_interval;
        if let Some(queue) = self.host.recv_queues.get_mut(recv_queue.0) {
            queue.want_doorbell();
        }
        // What was posted between the flush and the raising of the flag is flushed now.
        self.ring(qpn);
    }

    fn look_at_failed_qps(&mut self, now: Instant) {
        self.look_interval = (self.look_interval * 2).min(FLUSH_INTERVAL_MAX);
        let behind_last = (Bound::Excluded(self.looked_at), Bound::Unbounded);
        self.looked_at = 0;
        for (&qpn, &queue) in self.failed_qps.range(behind_last).take(LOOKS_PER_TURN) {
            self.looked_at = qpn;
            let queue = self.host.recv_queues.get_mut(queue.0);
            if queue.is_some_and(|queue| queue.posted() > 0) {
                self.device.ring_doorbell(Qpn::new(qpn));
                self.due = true;
                self.look_interval = FLUSH_INTERVAL_MIN;
            }
        }
        self.look_at = now + self.look_interval;
    }
}

/// An EUI-64 made of an address, marked as given locally: peers and libraries tell devices apart
/// by it.
pub(crate) fn guid_of(addr: IpAddr) -> [u8; 8] {
    match addr {
        IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            [0x02, b'u', b'r', b'x', a, b, c, d]
        }
        IpAddr::V6(addr) => {
            let (high, low) = ((addr.to_bits() >> 64) as u64, addr.to_bits() as u64);
            let mut guid = (high.rotate_left(32) ^ low).to_be_bytes();
            guid[0] = (guid[0] & !1) | 2;
            guid
        }
    }
}

/// The EUI-64 of a hardware address, as the kernel makes it for its devices.
pub(crate) fn guid_of_mac(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_host::Region;
    use crate::event_pipe::EventPipe;
    use crate::objects::{EventTarget, Owner};
    use crate::queues::{CompletionQueue, RecvQueue, SendQueue};
    use std::collections::VecDeque;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};
    use urxe_engine::{CqId, MrSpec, PdId, QpInit, RecvSource};
    use urxe_port::{Caps, PortCounters, Segmentation};
    use urxe_shm::control::event::{EventRecord, RECORD_LEN};
    use urxe_shm::memory::arena::Arena;
    use urxe_shm::memory::region::{Mapping, create_memfd};
    use urxe_shm::ring::completion_notifier::CompletionNotifier;
    use urxe_shm::ring::entry::{SendData, SendOp, SendWr};
    use urxe_shm::ring::geometry::Geometry;
    use urxe_shm::ring::layout::Sge;
    use urxe_shm::ring::{CqProducer, RqConsumer, SqConsumer, SqProducer};
    use urxe_types::Psn;
    use urxe_types::{Access, AddressVector, QpType};
    use urxe_wire::Packet;
    use urxe_wire::batch::TxLimits;

    fn identity() -> Identity {
        let addr = IpAddr::from([127, 0, 0, 1]);
        let (served, table) = (Served::Address(addr), vec![addr]);
        Identity { name: "urxe0".into(), guid: guid_of(addr), served, table }
    }

    /// What is left to be let through, and what was sent.
    #[derive(Default)]
    struct Passage {
        runs: usize,
        datagrams: VecDeque<Vec<u8>>,
    }

    /// A port that lets only so much through.
    struct Narrow(Arc<Mutex<Passage>>);

    impl Port for Narrow {
        fn caps(&self) -> Caps {
            Caps {
                backend: "narrow",
                addrs: vec![IpAddr::from([127, 0, 0, 1])],
                interface: None,
                link_mtu: 1500,
                tx_limits: TxLimits::segmented(2),
                source_port: SourcePort::Fixed(4791),
                sees_ident: true,
                receive_buffer: 1 << 20,
                segmentation: Segmentation::On,
            }
        }

        fn send(&mut self, _now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
            let mut passage = self.0.lock().unwrap();
            while passage.runs > 0 && !batch.is_empty() {
                let run = batch.runs().next().unwrap();
                passage.datagrams.extend(run.datagrams().map(|datagram| datagram.bytes.to_vec()));
                passage.runs -= 1;
                batch.advance(1);
            }
            Ok(if batch.is_empty() { SendOutcome::Done } else { SendOutcome::Blocked })
        }

        fn recv(&mut self, _now: Instant, rx: &mut RxBatch) -> io::Result<usize> {
            rx.clear();
            Ok(0)
        }

        fn add_address(&mut self, _addr: IpAddr) -> Result<(), OpenError> {
            Ok(())
        }

        fn remove_address(&mut self, _addr: IpAddr) {}

        fn join(&mut self, _group: IpAddr) -> io::Result<()> {
            Ok(())
        }

        fn leave(&mut self, _group: IpAddr) -> io::Result<()> {
            Ok(())
        }

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn counters(&self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// A NIC with one QP that is ready to send from an MR of 64 KiB, and the program's end of the
    /// send queue.
    fn nic_with_qp(port: Narrow, now: Instant) -> (Nic, Qpn, SqProducer, Sge) {
        let mut nic = Nic::new(identity(), Box::new(port), [1, 2], now);
        let mut arena = Arena::new(1 << 20).unwrap();
        let shape = Geometry::send(15, 1, 0).unwrap();
        let (extent, window) = arena.alloc(shape.size().into()).unwrap();
        let send = SendQueue::new(SqConsumer::create(window, shape, false).unwrap(), false);
        let window = urxe_shm::memory::region::Window::new(
            arena.doorbells().clone(),
            extent.offset,
            extent.len,
        );
        let program = SqProducer::attach(window.unwrap(), shape).unwrap();
        let shape = Geometry::recv(15, 1).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let recv = RecvQueue::new(RqConsumer::create(window, shape).unwrap());
        let shape = Geometry::completion(15).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let ring = CqProducer::create(window, shape).unwrap();
        let owner = Owner { uid: 0, program: "nobody".into() };
        let notifier = CompletionNotifier::new(arena.doorbells().clone()).unwrap();
        let cq = CompletionQueue::new(ring, notifier, 15, owner, None, EventTarget::new(0, 0, 0));
        let cq = CqId(nic.host.cqs.insert(cq).unwrap());
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PdId(0),
            send_cq: cq,
            recv_cq: cq,
            send_queue: QueueId(nic.host.send_queues.insert(send).unwrap()),
            recv: RecvSource::Own(QueueId(nic.host.recv_queues.insert(recv).unwrap())),
        };
        let qpn = nic.device.create_qp(init).unwrap();
        for attr in way_to_rts() {
            nic.modify_qp(now, qpn, &attr).unwrap();
        }
        let memfd = create_memfd("narrow", 1 << 16).unwrap();
        let region = Region::Shared(Mapping::new(memfd, 0, 1 << 16).unwrap());
        let region = nic.host.insert_region(region).unwrap();
        let spec =
            MrSpec { pd: PdId(0), addr: 0, length: 1 << 16, access: Access::default(), region };
        let lkey = nic.device.reg_mr(spec).unwrap();
        (nic, qpn, program, Sge { addr: 0, length: 1 << 16, lkey })
    }

    fn way_to_rts() -> [QpAttr; 3] {
        [
            QpAttr {
                state: Some(QpState::Init),
                access: Some(Access::default()),
                pkey_index: Some(0),
                port: Some(1),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(QpState::Rtr),
                av: Some(AddressVector {
                    dgid: IpAddr::from([127, 0, 0, 2]),
                    sgid_index: 0,
                    traffic_class: 0,
                    hop_limit: 64,
                    flow_label: 0,
                }),
                path_mtu: Some(PathMtu::Mtu1024),
                dest_qpn: Some(Qpn::new(9)),
                rq_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(12),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(100)),
                max_rd_atomic: Some(1),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                ..QpAttr::default()
            },
        ]
    }

    #[test]
    fn a_blocked_port_sends_its_rest_first_and_loses_nothing() {
        let passage = Arc::new(Mutex::new(Passage { runs: 3, ..Passage::default() }));
        let now = Instant::now();
        let (mut nic, qpn, mut program, sge) = nic_with_qp(Narrow(passage.clone()), now);
        let op = SendOp::Write { remote_addr: 0, rkey: 1, imm: None };
        let wr = SendWr { wr_id: 1, op, to: None, fence: false, signaled: true, solicited: false };
        program.push(&wr, SendData::Sges(&[sge])).unwrap();
        program.publish();
        nic.ring(qpn);

        assert!(nic.transmit(now).unwrap());
        assert!(nic.is_blocked() && !nic.is_due());
        assert!(!nic.transmit(now).unwrap(), "nothing moves while it is blocked");
        while nic.is_blocked() {
            passage.lock().unwrap().runs += 5;
            nic.send(now).unwrap();
        }
        passage.lock().unwrap().runs = usize::MAX;
        while nic.is_due() {
            nic.transmit(now).unwrap();
        }
        let passage = passage.lock().unwrap();
        let psns =
            passage.datagrams.iter().map(|bytes| Packet::parse(bytes).unwrap().headers.bth.psn);
        let psns: Vec<u32> = psns.map(Psn::get).collect();
        // As much as an initial window allows, from the first packet on, each once and in order.
        assert!(psns.len() >= 32, "{} packets", psns.len());
        assert_eq!(psns, (100..).take(psns.len()).collect::<Vec<_>>());
    }

    #[test]
    fn every_context_is_told_what_happens_to_the_port_and_none_that_is_closed() {
        let now = Instant::now();
        let port = Narrow(Arc::default());
        let mut nic = Nic::new(identity(), Box::new(port), [1, 2], now);
        let mut contexts = Vec::new();
        for handle in 1..=3u32 {
            let (pipe, read_end) = EventPipe::new().unwrap();
            rustix::io::ioctl_fionbio(&read_end, true).unwrap();
            let pipe = nic.host.pipes.insert(pipe).unwrap();
            nic.host.objects.contexts.insert(pipe, EventTarget::new(pipe, 1, handle));
            contexts.push((handle, pipe, read_end));
        }
        let (_, closed, _) = &contexts[1];
        nic.host.objects.contexts.remove(closed);
        let events = [PortEvent::Error, PortEvent::Active, PortEvent::GidChange];
        for event in events {
            nic.port_event(event);
        }
        for (handle, pipe, read_end) in &contexts {
            let mut kinds = Vec::new();
            let mut bytes = [0; RECORD_LEN];
            while rustix::io::read(read_end, &mut bytes).is_ok() {
                let record = EventRecord::from_bytes(bytes);
                assert_eq!((record.user_handle, record.object), (1, u64::from(*handle)));
                kinds.push(record.kind);
            }
            let expected = if pipe == closed { vec![] } else { vec![10, 9, 18] };
            assert_eq!(kinds, expected);
        }
        assert_eq!(nic.host.counters.async_events, 6);
    }

    #[test]
    fn devices_of_different_addresses_have_different_guids_of_the_local_kind() {
        let addrs: [IpAddr; 4] = [
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
            "fd00::1".parse().unwrap(),
            "fd00:0:0:1::1".parse().unwrap(),
        ];
        let guids = addrs.map(guid_of);
        for (index, guid) in guids.iter().enumerate() {
            assert_eq!(guid[0] & 3, 2, "{guid:x?}");
            assert!(!guids[..index].contains(guid), "{guid:x?}");
        }
    }
}
