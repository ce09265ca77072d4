//! One device with its port: how packets, doorbells and time reach the engine, and what becomes
//! of what it says.

use crate::engine_host::ProgramHost;
use crate::limits::{
    BATCHES_PER_TURN, FLUSH_INTERVAL_MAX, FLUSH_INTERVAL_MIN, LOOKS_PER_TURN, MIN_PROBE,
    RX_BUFFERS, TX_BATCH_BYTES,
};
use crate::objects::{EventTarget, QpObject};
use crate::queues::{RecvQueue, SendQueue, own_recv_queue};
use crate::slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::{Duration, Instant};
use urxe_engine::{
    CreateQpError, Device, DeviceConfig, McastError, ModifyQpError, QpInit, QueueId, RecvSource,
    SrqId,
};
use urxe_port::{OpenError, Port, RxBatch, SendOutcome, SourcePort};
use urxe_shm::control::event;
use urxe_types::{AddressVector, PathMtu, QpAttr, QpState, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::mad::MAD_LEN;

/// What happens to a port: told to every context of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PortEvent {
    /// `IBV_EVENT_PORT_ACTIVE`: its link has come up.
    Active = event::PORT_ACTIVE,
    /// `IBV_EVENT_PORT_ERR`: its link is down.
    Error = event::PORT_ERR,
    /// `IBV_EVENT_GID_CHANGE`: its GID table has changed.
    GidChange = event::GID_CHANGE,
}

/// What a data path begins with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The first entries of the GID table.
    pub gids: Vec<Option<IpAddr>>,
    /// Largest path MTU that the link carries.
    pub active_mtu: PathMtu,
    /// Makes keys and QPNs unpredictable, or, in a test, the same each time.
    pub seed: u64,
}

/// The queues of a QP that is about to be.
pub struct Queues {
    pub send: SendQueue,
    pub recv: Recv,
}

/// Where it receives from.
pub enum Recv {
    Own(RecvQueue),
    Shared(SrqId),
}

/// Why an object was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The device has no room for another.
    #[error("the device can have no more")]
    Full,
    /// The engine says no.
    #[error(transparent)]
    Qp(#[from] CreateQpError),
}

/// Why a QP was not attached to a multicast group.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The engine says no.
    #[error(transparent)]
    Engine(#[from] McastError),
    /// The port cannot join the group.
    #[error("the port cannot join: {0}")]
    Port(io::Error),
}

/// A NIC: one device on one port.
pub struct Nic {
    pub device: Device,
    pub host: ProgramHost,
    /// Protection domains: they have a number and nothing else.
    pub pds: Slab<()>,
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
    /// Puts a device on a port, with these addresses in its GID table. The seed makes its numbers
    /// unpredictable.
    pub fn new(port: Box<dyn Port>, config: Config, now: Instant) -> Nic {
        let caps = port.caps();
        let config = DeviceConfig {
            gids: config.gids,
            source_port: match caps.source_port {
                SourcePort::Fixed(source_port) => Some(source_port),
                SourcePort::OfFlow => None,
            },
            active_mtu: config.active_mtu,
            local_addrs: BTreeSet::new(),
            seed: config.seed,
            min_probe: MIN_PROBE,
        };
        Nic {
            device: Device::new(config),
            host: ProgramHost::new(),
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

    pub fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// Whether the port takes no more until it is ready again.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether [`transmit`](Self::transmit) has something to do right away.
    pub fn is_due(&self) -> bool {
        self.due && !self.blocked
    }

    /// Gives the port another address.
    pub fn add_address(&mut self, addr: IpAddr) -> Result<(), OpenError> {
        self.port.add_address(addr)
    }

    /// Takes an address from the port.
    pub fn remove_address(&mut self, addr: IpAddr) {
        self.port.remove_address(addr);
    }

    /// Tells every program that has opened the device what has happened to its port.
    pub fn port_event(&mut self, event: PortEvent) {
        // CQ-027
        let contexts: Vec<EventTarget> = self.host.objects.contexts.values().copied().collect();
        for context in contexts {
            self.host.tell(context, event as u32);
        }
    }

    /// A program rang a QP's doorbell.
    pub fn ring(&mut self, qpn: Qpn) {
        self.device.ring_doorbell(qpn);
        self.due = true;
    }

    /// Takes in what one receive call brings. Returns whether it brought anything.
    pub fn receive(&mut self, now: Instant) -> io::Result<bool> {
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
    pub fn handle_timers(&mut self, now: Instant) -> io::Result<bool> {
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
        if self.look_at <= now && !self.failed_qps.is_empty() {
            self.look_at_failed_qps(now);
        }
        Ok(worked)
    }

    /// Sends what the engine has to send. Returns whether there was anything.
    pub fn transmit(&mut self, now: Instant) -> io::Result<bool> {
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
    pub fn send(&mut self, now: Instant) -> io::Result<bool> {
        let had_any = !self.tx.is_empty();
        let outcome = self.port.send(now, &mut self.tx)?;
        self.blocked = outcome == SendOutcome::Blocked;
        Ok(had_any)
    }

    /// Changes a QP, and its rings with it.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        self.host.begin_call();
        self.device.modify_qp(now, &mut self.host, qpn, attr)?;
        // STATE-004
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

    /// Puts a QP's queues where the engine finds them, and makes the QP.
    pub fn create_qp(
        &mut self,
        queues: Queues,
        object: QpObject,
        init: impl FnOnce(QueueId, RecvSource) -> QpInit,
    ) -> Result<Qpn, CreateError> {
        let host = &mut self.host;

        let send = QueueId(host.send_queues.insert(queues.send).ok_or(CreateError::Full)?);
        let recv = match queues.recv {
            Recv::Shared(srq) => Ok(RecvSource::Shared(srq)),
            Recv::Own(queue) => host
                .recv_queues
                .insert(queue)
                .map(QueueId)
                .ok_or(CreateError::Full)
                .map(RecvSource::Own),
        };
        let recv = recv.inspect_err(|_| drop(host.send_queues.remove(send.0)))?;
        let init = init(send, recv);
        host.count_qp(&init);
        let qpn = self.device.create_qp(init.clone()).map_err(CreateError::Qp);
        let qpn = qpn.inspect_err(|_| host.forget_qp(&init))?;
        host.objects.qps.insert(qpn.get(), object);
        if let Some(queue) = host.send_queues.get_mut(send.0) {
            queue.qpn = Some(qpn);
        }
        if let Some(queue) = own_recv_queue(&init)
            && let Some(queue) = host.recv_queues.get_mut(queue.0)
        {
            queue.qpn = Some(qpn);
        }
        Ok(qpn)
    }

    /// Destroys a QP and its queues.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        if let Some(info) = self.device.query_qp(qpn) {
            self.device.destroy_qp(qpn);
            self.host.forget_qp(&info.init);
        }
        self.host.objects.qps.remove(&qpn.get());
        self.failed_qps.remove(&qpn.get());
        self.leave_unused_groups();
    }

    /// Has the port join a multicast group.
    pub fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.port.join(group)?;
        self.groups.insert(group);
        Ok(())
    }

    /// Has the port leave the multicast groups that no QP is attached to any more.
    pub fn leave_unused_groups(&mut self) {
        // The port is in all groups that are in use, so as many are the same. To count them is
        // cheap, and of very many QPs that end at once hardly any was the last of a group.
        if self.device.mcast_groups().count() == self.groups.len() {
            return;
        }
        let used: BTreeSet<IpAddr> = self.device.mcast_groups().collect();
        // MCAST-005
        for group in self.groups.difference(&used) {
            // What the kernel will not let go of is dropped by the engine.
            let _ = self.port.leave(*group);
        }
        self.groups.retain(|group| used.contains(group));
    }

    /// When to be called although nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        let look = (!self.failed_qps.is_empty()).then_some(self.look_at);
        let timers = [self.device.poll_timeout(), self.port.poll_timeout()];
        timers.into_iter().chain([look]).flatten().min()
    }

    /// Sends a management datagram. Returns whether there was a way for it.
    pub fn send_mad(&mut self, to: &AddressVector, qpn: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let is_sent = self.device.send_mad(to, qpn, mad).is_ok();
        self.due |= is_sent;
        is_sent
    }

    /// Attaches a QP to a group; with the group's first, the port joins it.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), AttachError> {
        let is_first = self.device.attach_mcast(qpn, group)?;
        // MCAST-005
        if is_first && let Err(error) = self.join(group) {
            // MCAST-012
            let undone = self.device.detach_mcast(qpn, group);
            debug_assert!(undone.is_ok(), "{undone:?}");
            return Err(AttachError::Port(error));
        }
        Ok(())
    }

    /// Detaches a QP from a group; with the group's last, the port leaves it.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), McastError> {
        self.device.detach_mcast(qpn, group)?;
        self.leave_unused_groups();
        Ok(())
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
            // STATE-010
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
            // STATE-010
            if queue.is_some_and(|queue| queue.posted() > 0) {
                self.device.ring_doorbell(Qpn::new(qpn));
                self.due = true;
                self.look_interval = FLUSH_INTERVAL_MIN;
            }
        }
        self.look_at = now + self.look_interval;
    }
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
    use urxe_engine::{CqId, MrSpec, PdId};
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
    use urxe_types::{Access, QpType};
    use urxe_wire::Packet;
    use urxe_wire::batch::TxLimits;

    fn config() -> Config {
        let gids = vec![Some(IpAddr::from([127, 0, 0, 1]))];
        Config { gids, active_mtu: PathMtu::Mtu1024, seed: 1 }
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
        let mut nic = Nic::new(Box::new(port), config(), now);
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
        let mut nic = Nic::new(Box::new(port), config(), now);
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
}
