//! The device: finds the QP of each packet, gives each QP its turn, and minds the clock.

use crate::address_handle::AhTable;
use crate::attr::{DeviceConfig, PdId, QpInfo, QpInit, RecvSource, SrqId};
use crate::counters::{Counter, Counters};
use crate::cq::Cqs;
use crate::host::{CqId, Host, RegionId};
use crate::limits::{GID_TABLE_LEN, IDLE_TURNS, MAX_QP, MAX_QPN, MIN_QPN, PACKETS_PER_TURN};
use crate::management::Management;
use crate::memory::{self, AllocMwError, DeregMrError, MrSpec, MwInfo, RegMrError};
use crate::multicast::MulticastTable;
use crate::qp::{Cx, ModifyQpError, Qp};
use crate::srq::SrqTable;
use crate::table::IntMap;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{MwType, PathMtu, Pkey, QpAttr, QpType, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Outer, Packet, ParseError};

/// Why a QP was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateQpError {
    /// The device has no room for another.
    #[error("the device has {MAX_QP} QPs, and can have no more")]
    TooMany,
    /// The SRQ that it shall receive from does not exist.
    #[error("srq {}: does not exist", .0.0)]
    NoSuchSrq(SrqId),
}

/// A RoCEv2 device: MRs, QPs and what belongs to them, and the protocol between QPs and their
/// peers.
///
/// # Order of calls
///
/// The methods are of four kinds:
///
/// 1. *Verbs*, at any time: [`reg_mr`](Self::reg_mr), [`create_qp`](Self::create_qp),
///    [`modify_qp`](Self::modify_qp) and their kin, [`ring_doorbell`](Self::ring_doorbell).
/// 2. *Input*: [`handle_datagram`](Self::handle_datagram) for each datagram of a batch, then once
///    [`end_of_batch`](Self::end_of_batch); [`handle_timeout`](Self::handle_timeout) when
///    [`poll_timeout`](Self::poll_timeout) has come.
/// 3. *Output*: after any of these, [`poll_transmit`](Self::poll_transmit) until it returns
///    `false`, sending each batch it fills.
/// 4. *Questions*: [`query_qp`](Self::query_qp), [`counters`](Self::counters) and so on.
///
/// `now` never runs backwards from one call to the next.
pub struct Device {
    pub(crate) config: DeviceConfig,
    rng: ChaCha8Rng,
    icrc: Checker,
    keys: memory::Table,
    pub(crate) srqs: SrqTable,
    pub(crate) ahs: AhTable,
    pub(crate) multicast: MulticastTable,
    pub(crate) management: Management,
    pub(crate) qps: IntMap<Box<Qp>>,
    cqs: Cqs,
    next_qpn: u32,
    /// QPs with something to send, in the order of their turns.
    active: VecDeque<Qpn>,
    /// When to look at which QP's timers. A QP stands here at most once with the time it knows of
    /// (`timer_queued`); other entries of it are leftovers.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The QP whose writes the host was not yet told to make visible.
    unsynced: Option<Qpn>,
    pub(crate) counters: Counters,
}

impl Device {
    /// A device without QPs and MRs.
    ///
    /// # Panics
    /// If there are more than [`GID_TABLE_LEN`] GIDs.
    pub fn new(mut config: DeviceConfig) -> Device {
        assert!(config.gids.len() <= GID_TABLE_LEN, "{} GIDs", config.gids.len());
        config.gids.resize(GID_TABLE_LEN, None);
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        // A new daemon is not to get packets meant for the old one's QPs.
        let next_qpn = MIN_QPN + rng.next_u32() % (MAX_QPN / 2);
        Device {
            config,
            rng,
            icrc: Checker::new(),
            keys: memory::Table::default(),
            srqs: SrqTable::default(),
            ahs: AhTable::default(),
            multicast: MulticastTable::default(),
            management: Management::new(),
            qps: IntMap::default(),
            cqs: Cqs::default(),
            next_qpn,
            active: VecDeque::new(),
            timers: BinaryHeap::new(),
            unsynced: None,
            counters: Counters::default(),
        }
    }

    /// Registers memory. Returns its key, which is lkey and rkey in one.
    ///
    /// # Errors
    /// If the range or the rights are impossible, or the device is full.
    pub fn reg_mr(&mut self, spec: MrSpec) -> Result<u32, RegMrError> {
        self.keys.reg_mr(spec, &mut self.rng)
    }

    /// Deregisters memory: from now on its key opens nothing. Returns the memory that was behind
    /// it.
    ///
    /// # Errors
    /// If it is no MR's key, or windows are bound to the MR: they have to go first.
    pub fn dereg_mr(&mut self, key: u32) -> Result<RegionId, DeregMrError> {
        self.keys.dereg_mr(key)
    }

    /// Allocates a memory window, which opens nothing until a work request binds it. Returns its
    /// first rkey.
    ///
    /// # Errors
    /// If the device is full.
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<u32, AllocMwError> {
        self.keys.alloc_mw(pd, mw_type, &mut self.rng)
    }

    /// Frees a window, bound or not; any rkey that it ever had names it. Returns whether it was
    /// there.
    pub fn dealloc_mw(&mut self, rkey: u32) -> bool {
        self.keys.dealloc_mw(rkey)
    }

    /// What a window is, and what it opens; any rkey that it ever had names it.
    pub fn query_mw(&self, rkey: u32) -> Option<MwInfo> {
        self.keys.query_mw(rkey)
    }

    /// The GID table: what stands at each index.
    pub fn gids(&self) -> &[Option<IpAddr>] {
        &self.config.gids
    }

    /// Puts an address into the GID table, or takes one out. QPs that are connected already keep
    /// the address that they have.
    ///
    /// # Panics
    /// If `index` is not below [`GID_TABLE_LEN`].
    pub fn set_gid(&mut self, index: u8, gid: Option<IpAddr>) {
        self.config.gids[usize::from(index)] = gid;
    }

    /// Changes the largest path MTU that the link carries, which is also the longest datagram.
    /// QPs that are connected already keep the path MTU that they have.
    pub fn set_active_mtu(&mut self, active_mtu: PathMtu) {
        self.config.active_mtu = active_mtu;
    }

    /// Changes which addresses are of this machine.
    pub fn set_local_addrs(&mut self, local_addrs: BTreeSet<IpAddr>) {
        self.config.local_addrs = local_addrs;
    }

    /// Creates a QP in RESET.
    ///
    /// # Errors
    /// If the device is full, or there is no such SRQ.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, CreateQpError> {
        if self.qps.len() >= MAX_QP {
            return Err(CreateQpError::TooMany);
        }
        let recv_pd = match init.recv {
            RecvSource::Own(_) => init.pd,
            RecvSource::Shared(srq) => {
                self.srqs.attach(srq).ok_or(CreateQpError::NoSuchSrq(srq))?
            }
        };
        while self.qps.contains_key(&self.next_qpn) {
            self.next_qpn = following_qpn(self.next_qpn);
        }
        let qpn = Qpn::new(self.next_qpn);
        // The number of a destroyed QP stays unused for long: its peer may still be sending.
        self.next_qpn = following_qpn(self.next_qpn);
        self.cqs.attach(qpn, &init);
        self.qps.insert(qpn.get(), Box::new(Qp::new(qpn, init, recv_pd)));
        Ok(qpn)
    }

    /// Changes a QP's attributes and state. Going to RESET forgets all that was posted (the host
    /// rewinds its queues); going to ERR flushes it.
    ///
    /// # Errors
    /// If the change is not allowed; nothing was changed then.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        self.update_qp(now, host, qpn, |qp, cx| qp.modify(cx, attr))
            .unwrap_or(Err(ModifyQpError::NoSuchQp(qpn)))
    }

    /// A QP's state and attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qps.get(&qpn.get()).map(|qp| qp.info())
    }

    /// Destroys a QP; nothing of it is completed any more, it leaves its multicast groups, and the
    /// type 2 windows that were bound on it are closed. Returns whether it was there.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> bool {
        let Some(qp) = self.qps.remove(&qpn.get()) else { return false };
        self.cqs.detach(qpn, &qp.init);
        if let RecvSource::Shared(srq) = qp.init.recv {
            self.srqs.detach(srq);
        }
        if qp.init.qp_type == QpType::Ud {
            self.multicast.forget(qpn);
        }
        self.keys.unbind_all_on(qpn);
        true
    }

    /// Says that the host has destroyed a CQ, which no QP uses any more: its number may come
    /// again.
    pub fn release_cq(&mut self, cq: CqId) {
        self.cqs.forget(cq);
    }

    /// Says that the program has posted sends, or has posted anything to a QP in ERR.
    pub fn ring_doorbell(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn.get()) {
            qp.on_doorbell();
            if !qp.scheduled && qp.may_transmit() {
                qp.scheduled = true;
                self.active.push_back(qpn);
            }
        }
    }

    /// Takes in one datagram: a UDP payload, and what it came with.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        bytes: &[u8],
    ) {
        let packet = match self.accept(outer, bytes) {
            Ok(packet) => packet,
            Err(counter) => return self.counters.add(counter, 1),
        };
        match packet.headers.bth.dest_qp {
            Qpn::GSI => self.handle_mad(host, outer, &packet),
            Qpn::MULTICAST => self.handle_multicast(now, host, outer, &packet),
            qpn => self.deliver(now, host, qpn, outer, &packet),
        }
    }

    /// Gives a packet to a QP.
    pub(crate) fn deliver(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        qpn: Qpn,
        outer: &Outer,
        packet: &Packet<'_>,
    ) {
        if self.unsynced.is_some_and(|unsynced| unsynced != qpn) {
            // What came for another QP is a batch of its own: it answers for its own memory.
            self.end_of_batch(now, host);
        }
        let dirty = self.update_qp(now, host, qpn, |qp, cx| {
            qp.handle_packet(cx, outer, packet);
            qp.dirty
        });
        match dirty {
            Some(true) => self.unsynced = Some(qpn),
            Some(false) => {}
            None => self.counters.add(Counter::DropUnknownQp, 1),
        }
    }

    /// The checks that need no QP.
    fn accept<'a>(&mut self, outer: &Outer, bytes: &'a [u8]) -> Result<Packet<'a>, Counter> {
        if bytes.len() < urxe_wire::Bth::LEN + urxe_wire::icrc::LEN {
            return Err(Counter::DropTooShort);
        }
        if self.icrc.check(outer, bytes) == Verdict::Bad {
            return Err(Counter::DropBadIcrc);
        }
        let packet = Packet::parse(bytes).map_err(|error| match error {
            ParseError::TooShort { .. } => Counter::DropTooShort,
            ParseError::UnknownOpcode { .. } => Counter::DropUnknownOpcode,
            _ => Counter::DropMalformed,
        })?;
        match packet.headers.bth.pkey.matches(Pkey::DEFAULT) {
            true => Ok(packet),
            false => Err(Counter::DropBadPkey),
        }
    }

    /// Says that a receive batch is through: its writes become visible, and what it acknowledges
    /// may be acknowledged.
    pub fn end_of_batch(&mut self, now: Instant, host: &mut impl Host) {
        if let Some(qpn) = self.unsynced.take() {
            self.update_qp(now, host, qpn, |qp, cx| qp.sync(cx));
        }
    }

    /// Puts packets into a batch until it is full or nothing is left to send. Returns whether
    /// there is more: then send the batch, which may even be empty after much work of another kind,
    /// and call again.
    pub fn poll_transmit(&mut self, now: Instant, host: &mut impl Host, tx: &mut TxBatch) -> bool {
        if self.transmit_mads(tx) {
            return true;
        }
        let mut idle_turns = 0;
        while let Some(qpn) = self.active.pop_front() {
            if !tx.has_room() || idle_turns == IDLE_TURNS {
                self.active.push_front(qpn);
                return true;
            }
            let before = tx.len();
            let more = self.with_qp(now, host, qpn, |qp, cx| {
                qp.scheduled = qp.transmit(cx, tx, PACKETS_PER_TURN);
                qp.scheduled
            });
            if more == Some(true) {
                self.active.push_back(qpn);
            }
            idle_turns += u32::from(tx.len() == before);
            self.stop_qps_of_failed_cqs(now, host);
        }
        false
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None` if nothing is waited for. May
    /// be early, never late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Sees to all timers that have run out.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        while let Some(&Reverse((at, qpn))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            self.update_qp(now, host, Qpn::new(qpn), |qp, cx| {
                if qp.timer_queued == Some(at) {
                    qp.timer_queued = None;
                    qp.handle_timers(cx);
                }
            });
        }
    }

    /// Does something with a QP that may give it something to send.
    fn update_qp<H: Host, R>(
        &mut self,
        now: Instant,
        host: &mut H,
        qpn: Qpn,
        action: impl FnOnce(&mut Qp, &mut Cx<'_, H>) -> R,
    ) -> Option<R> {
        let result = self.update_one_qp(now, host, qpn, action);
        self.stop_qps_of_failed_cqs(now, host);
        result
    }

    /// Takes the QPs of CQs that have failed meanwhile to ERR. What that flushes may be too much
    /// for another CQ, and so on.
    fn stop_qps_of_failed_cqs(&mut self, now: Instant, host: &mut impl Host) {
        while let Some(users) = self.cqs.take_failed() {
            for qpn in users {
                self.update_one_qp(now, host, qpn, |qp, _| qp.on_cq_failed());
            }
        }
    }

    /// Does something with this QP, whatever follows for others.
    fn update_one_qp<H: Host, R>(
        &mut self,
        now: Instant,
        host: &mut H,
        qpn: Qpn,
        action: impl FnOnce(&mut Qp, &mut Cx<'_, H>) -> R,
    ) -> Option<R> {
        let (result, newly_active) = self.with_qp(now, host, qpn, |qp, cx| {
            let result = action(qp, cx);
            qp.process_failures(cx);
            let newly_active = !qp.scheduled && qp.may_transmit();
            qp.scheduled |= newly_active;
            (result, newly_active)
        })?;
        if newly_active {
            self.active.push_back(qpn);
        }
        Some(result)
    }

    /// Does something with a QP, then sees what it has to wait for.
    fn with_qp<H: Host, R>(
        &mut self,
        now: Instant,
        host: &mut H,
        qpn: Qpn,
        action: impl FnOnce(&mut Qp, &mut Cx<'_, H>) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(&qpn.get())?;
        let mut cx = Cx {
            now,
            host,
            keys: &mut self.keys,
            srqs: &mut self.srqs,
            ahs: &self.ahs,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
            config: &self.config,
        };
        let result = action(qp, &mut cx);
        if let Some(at) = qp.deadline()
            && qp.timer_queued.is_none_or(|queued| at < queued)
        {
            qp.timer_queued = Some(at);
            self.timers.push(Reverse((at, qpn.get())));
        }
        Some(result)
    }

    /// What the whole device has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What one QP has counted.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&Counters> {
        self.qps.get(&qpn.get()).map(|qp| &qp.counters)
    }

    /// The QPNs that exist, in no particular order.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.keys().map(|&qpn| Qpn::new(qpn))
    }
}

fn following_qpn(qpn: u32) -> u32 {
    if qpn >= MAX_QPN { MIN_QPN } else { qpn + 1 }
}
