//! One device with its port: how packets, doorbells and time reach the engine, and what becomes
//! of what it says.

use crate::counters::{HostCounters, ObjectCounts};
use crate::engine_host::ProgramHost;
use crate::failed_qps::FailedQps;
use crate::floods::Floods;
use crate::limits::{
    BATCHES_PER_TURN, DEFERRED_PER_TURN, FLUSH_INTERVAL_MAX, FLUSH_INTERVAL_MIN, MIN_PROBE,
    RX_BUFFERS, TX_BATCH_BYTES,
};
use crate::objects::{EventTarget, Objects, OwnerId};
use crate::tap::{TapSpec, Taps};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use urxe_engine::{Counter, Device, DeviceConfig, ModifyQpError, Tuning};
use urxe_port::{
    AddressSockets, IcmpError, OpenError, PacketSource, Port, PortCounters, Receivers, RxBatch,
    SendOutcome,
};
use urxe_shm::control::event;
use urxe_types::{AddressVector, PathMtu, QpAttr, QpState, Qpn, Slot, SlotId};
use urxe_wire::batch::TxBatch;
use urxe_wire::mad::{MAD_LEN, MadSource};
use urxe_wire::{Bth, Flow, Outer};

/// What happens to a port: told to every context of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum PortEvent {
    /// `IBV_EVENT_PORT_ACTIVE`: its link has come up.
    Active = event::PORT_ACTIVE,
    /// `IBV_EVENT_PORT_ERR`: its link is down.
    Error = event::PORT_ERR,
    /// `IBV_EVENT_GID_CHANGE`: its GID table has changed.
    GidChange = event::GID_CHANGE,
}

/// What came of the turn of a poller: a thread of the program that polls its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerTurn {
    /// Anything was done.
    pub worked: bool,
    /// Anything had come.
    pub received: bool,
    /// There is something that only the runner's own thread can do.
    pub left_over: bool,
}

/// What a data path begins with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The first entries of the GID table.
    pub gids: Vec<Option<IpAddr>>,
    /// Largest path MTU that the link carries.
    pub active_mtu: PathMtu,
    /// Which QPNs are its own.
    pub slot: Slot,
    /// Makes keys and QPNs unpredictable, or, in a test, the same each time.
    pub seed: u64,
    /// How the engine behaves on the wire.
    pub tuning: Tuning,
}

/// Packets that are little: a message, and an ACK that came with it.
const LITTLE: usize = 2;

/// What the engine may have to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// An ACK to the little that came last.
    OnlyAnAck,
    Anything,
}

/// A NIC: one device on one port.
pub struct Nic {
    pub(crate) device: Device,
    pub(crate) host: ProgramHost,
    /// MRs that are mapped.
    pub(crate) mapped_mrs: usize,
    port: Box<dyn Port>,
    tx: TxBatch,
    rx: RxBatch,
    due: Due,
    /// The port takes no more until it is ready again.
    blocked: bool,
    failed_qps: FailedQps,
    /// When to look at them, and how long after that to look again.
    look_at: Instant,
    look_interval: Duration,
    /// Multicast groups that the port is in.
    groups: BTreeSet<IpAddr>,
    taps: Taps,
    floods: Floods,
}

impl Nic {
    /// Puts a device on a port. The seed in `config` makes its numbers unpredictable.
    pub fn new(port: Box<dyn Port>, config: Config, now: Instant) -> Nic {
        let caps = port.caps();
        let config = DeviceConfig {
            gids: config.gids,
            source_ports: caps.source_ports,
            active_mtu: config.active_mtu,
            local_addrs: BTreeSet::new(),
            guarded_addrs: BTreeSet::new(),
            slot: config.slot,
            seed: config.seed,
            min_probe: MIN_PROBE,
            tuning: config.tuning,
        };
        Nic {
            device: Device::new(config),
            host: ProgramHost::new(),
            mapped_mrs: 0,
            tx: TxBatch::new(caps.tx_limits, TX_BATCH_BYTES),
            rx: RxBatch::new(RX_BUFFERS),
            port,
            due: Due::Nothing,
            blocked: false,
            failed_qps: FailedQps::default(),
            look_at: now,
            look_interval: FLUSH_INTERVAL_MIN,
            groups: BTreeSet::new(),
            taps: Taps::default(),
            floods: Floods::default(),
        }
    }

    /// The engine, for questions.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was counted of programs' memory and rings.
    pub fn counters(&self) -> &HostCounters {
        &self.host.counters
    }

    /// How many objects there are of each kind.
    pub fn object_counts(&self) -> ObjectCounts {
        let Objects { pds, qps, srqs, cqs, mrs, mws } = &self.host.objects;
        let lens = [pds.len(), qps.len(), srqs.len(), cqs.len(), mrs.len(), mws.len()];
        let [pds, qps, srqs, cqs, mrs, mws] = lens.map(|len| len as u64);
        ObjectCounts { qps, cqs, srqs, mrs, mws, pds }
    }

    /// What the port has counted.
    pub fn port_counters(&self) -> PortCounters {
        self.port.counters()
    }

    /// Writes what is yet to be written of a capture of the port.
    pub fn flush_port(&mut self) {
        self.port.flush();
    }

    /// What routers and hosts said last of what was sent to a peer (ICMP).
    pub fn icmp_error(&self, peer: IpAddr) -> Option<IcmpError> {
        self.port.icmp_error(peer)
    }

    /// The descriptor that is readable when [`receive`](Self::receive) brings something, unless
    /// the port is [disarmed](Self::disarm_port), or a blocked port can [`send`](Self::send) again.
    pub fn port_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    /// [`Port::disarm`]
    pub fn disarm_port(&mut self) {
        self.port.disarm();
    }

    /// [`Port::arm`]
    #[must_use = "what has come already is told of by this alone"]
    pub fn arm_port(&mut self) -> bool {
        self.port.arm()
    }

    /// [`Port::has_waiting`]
    pub fn port_has_waiting(&self) -> bool {
        self.port.has_waiting()
    }

    /// Whether the port takes no more until it is ready again.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether [`transmit`](Self::transmit) has something to do right away.
    pub fn is_due(&self) -> bool {
        self.due != Due::Nothing && !self.blocked
    }

    /// Whether all that is due is an ACK to the little that came last. It may wait a little
    /// for what the program sends next: then both leave together.
    pub fn owes_only_an_ack(&self) -> bool {
        self.due == Due::OnlyAnAck && !self.blocked
    }

    /// Gives the port another address, by its sockets.
    ///
    /// # Errors
    /// If they are not what the port wants.
    pub fn adopt(&mut self, sockets: AddressSockets) -> Result<(), OpenError> {
        self.port.adopt(sockets)
    }

    /// Takes an address from the port.
    pub fn remove_address(&mut self, addr: IpAddr) {
        self.port.remove_address(addr);
    }

    /// Puts an address that the port has into the GID table, or takes one out.
    ///
    /// # Panics
    /// If the table is not that long.
    pub fn set_gid(&mut self, at: u8, gid: Option<IpAddr>) {
        self.device.set_gid(at, gid);
    }

    /// Changes the largest path MTU that the link carries.
    pub fn set_active_mtu(&mut self, active_mtu: PathMtu) {
        self.device.set_active_mtu(active_mtu);
    }

    /// Changes which addresses are of this machine.
    pub fn set_local_addrs(&mut self, local_addrs: BTreeSet<IpAddr>) {
        self.device.set_local_addrs(local_addrs);
    }

    /// Changes from which addresses nobody but this daemon sends; see
    /// [`guard_addresses`](crate::guard_addresses).
    pub(crate) fn set_guarded_addrs(&mut self, guarded_addrs: BTreeSet<IpAddr>) {
        self.device.set_guarded_addrs(guarded_addrs);
    }

    /// Tells every program that has opened the device what has happened to its port.
    pub fn port_event(&mut self, event: PortEvent) {
        // CQ-027
        let targets: Vec<EventTarget> = self.host.channels.port_events().collect();
        for target in targets {
            self.host.tell(target, event as u32);
        }
    }

    /// A program rang a QP's doorbell.
    pub fn ring_doorbell(&mut self, qpn: Qpn) {
        self.device.ring_doorbell(qpn);
        self.due = Due::Anything;
    }

    /// Takes in what one receive call brings. Returns whether it brought anything.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn receive(&mut self, now: Instant) -> io::Result<bool> {
        let count = self.port.recv(now, &mut self.rx)?;
        if count == 0 {
            return Ok(false);
        }
        self.end_rests(now);
        if let Some(fill) = self.port.receive_fill(now) {
            self.device.set_receive_fill(fill);
        }
        self.device.set_within_process(self.rx.is_within_process());
        self.host.begin_call();
        // CONG-101: what waited in one queue with these.
        if self.taps.is_empty() {
            let Nic { device, host, rx, floods, .. } = self;
            while let Some((outer, datagram)) = rx.next_datagram() {
                handle_datagram(now, device, host, floods, (outer, datagram));
            }
        } else {
            self.handle_tapped(now);
        }
        self.device.end_of_batch(now, &mut self.host);
        let is_little = count <= LITTLE && self.due == Due::Nothing;
        let only_an_ack = is_little && self.device.owes_only_an_ack();
        self.due = if only_an_ack { Due::OnlyAnAck } else { Due::Anything };
        self.after_engine(now);
        self.flush_taps(now);
        Ok(true)
    }

    /// Says that a turn has taken long, whatever it was that took so long. If programs' memory
    /// keeps this data path waiting again and again, they rest.
    pub fn on_long_turn(&mut self, now: Instant) {
        self.host.stalls.watch(now);
    }

    /// What programs have posted that rested is taken now, if they may have the data path again.
    fn end_rests(&mut self, now: Instant) {
        self.host.stalls.advance(now);
        for _ in 0..DEFERRED_PER_TURN {
            let Some(qpn) = self.host.stalls.next_deferred() else { break };
            self.ring_doorbell(qpn);
        }
    }

    /// Whether [pollers](Self::poller_turn) can do what there is to do.
    pub fn serves_pollers(&self) -> bool {
        self.port.serves_pollers() && self.taps.is_empty()
    }

    /// What there is to do, for a thread of the program that polls and has other descriptors
    /// ([`Port::set_poller`]): what is to be sent, what one receive call brings, and what is due
    /// after that. What came is answered at once or, with `hold_answers`, with the next turn: a
    /// program that sends when it sees it has both leave together, its own first.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn poller_turn(&mut self, now: Instant, hold_answers: bool) -> io::Result<PollerTurn> {
        self.port.set_poller(true);
        self.host.hold_events(true);
        let turn = self.poller_turn_with(now, hold_answers);
        self.host.hold_events(false);
        self.port.set_poller(false);
        turn
    }

    fn poller_turn_with(&mut self, now: Instant, hold_answers: bool) -> io::Result<PollerTurn> {
        let mut worked = self.blocked && self.send(now)?;
        let sent = self.transmit(now)?;
        // CONG-029: what is answered meanwhile took longer than no time.
        let now = if sent { Instant::now() } else { now };
        let received = self.receive(now)?;
        // RC-REQ-055: what has come is not late.
        let timed_out = self.handle_expired(now)?;
        worked |= sent | received | timed_out;
        if timed_out || (received && !hold_answers) {
            self.transmit(now)?;
        }
        if !worked {
            self.host.renew_own_method(now);
        }
        let left_over = self.blocked
            || self.host.has_held_events()
            || self.host.has_comm_est_qps()
            || self.floods.is_due(now)
            || !self.port.serves_pollers();
        Ok(PollerTurn { worked, received, left_over })
    }

    /// Does what pollers could not.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn after_pollers(&mut self, now: Instant) -> io::Result<()> {
        self.host.flush_held_events();
        if self.blocked {
            self.send(now)?;
        }
        Ok(())
    }

    /// Handles the datagrams of a batch, and shows them to the taps.
    fn handle_tapped(&mut self, now: Instant) {
        let Nic { device, host, rx, taps, floods, .. } = self;
        let came = Instant::now();
        taps.begin_batch();
        while let Some((outer, datagram)) = rx.next_datagram() {
            // What no tap takes costs no more than to find that out.
            let is_wanted = taps.before_handling(device, &host.objects, outer, datagram);
            handle_datagram(now, device, host, floods, (outer, datagram));
            if is_wanted {
                taps.handled(came, device, &host.objects, outer, datagram);
            }
        }
    }

    /// Begins to copy packets into a pipe.
    pub fn add_tap(&mut self, spec: TapSpec) {
        self.taps.add(spec);
        self.device.note_senders(true);
    }

    /// Ends a tap, if it has not ended because nobody reads any more.
    pub fn remove_tap(&mut self, number: u64) {
        self.taps.remove(number);
        self.device.note_senders(!self.taps.is_empty());
    }

    /// Has a tap that does not see all packets see those of this owner too.
    pub fn admit_to_tap(&mut self, number: u64, owner: OwnerId) {
        self.taps.admit(number, owner);
    }

    /// Nothing is left of an owner.
    pub fn forget_owner(&mut self, owner: OwnerId) {
        self.taps.forget(owner);
    }

    fn flush_taps(&mut self, now: Instant) {
        if !self.taps.is_empty() && !self.taps.flush(now) {
            self.device.note_senders(false);
        }
    }

    /// Sees to everything whose time has come. Returns whether there was anything.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn handle_timers(&mut self, now: Instant) -> io::Result<bool> {
        if self.floods.is_due(now) {
            let (refused, more) =
                self.floods.change(now, |source| self.device.may_refuse(source.from));
            // SHARE-135
            if self.port.refuse_sources(&refused) {
                self.host.counters.sources_refused += more;
            }
        }
        self.handle_expired(now)
    }

    /// The same, but for what pollers cannot do.
    fn handle_expired(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        if self.port.poll_timeout().is_some_and(|at| at <= now) {
            worked = self.receive(now)?;
            worked |= self.send(now)?;
        }
        if self.device.poll_timeout().is_some_and(|at| at <= now) {
            self.host.begin_call();
            self.device.handle_timeout(now, &mut self.host);
            self.due = Due::Anything;
            self.after_engine(now);
            worked = true;
        }
        self.end_rests(now);
        if self.look_at <= now && !self.failed_qps.is_empty() {
            self.look_at_failed_qps(now);
        }
        if self.taps.deadline().is_some_and(|at| at <= now) {
            self.flush_taps(now);
        }
        Ok(worked)
    }

    /// Sends what the engine has to send, a bounded number of batches. Returns whether there was
    /// anything.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn transmit(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        // Whenever the port is not blocked, the batch is empty.
        for _ in 0..BATCHES_PER_TURN {
            if !self.is_due() {
                break;
            }
            self.host.begin_call();
            let more = self.device.poll_transmit(now, &mut self.host, &mut self.tx);
            self.due = if more { Due::Anything } else { Due::Nothing };
            self.after_engine(now);
            if self.tx.is_empty() {
                break;
            }
            if !self.taps.is_empty() {
                self.taps.sending(&self.device, &self.host.objects, &self.tx);
            }
            worked = self.send(now)?;
            self.flush_taps(now);
        }
        Ok(worked)
    }

    /// Sends the batch. Returns whether it had anything in it.
    ///
    /// To be called also when a blocked port has become ready: a wrapper may hold datagrams of
    /// its own, so even an empty batch moves something.
    ///
    /// # Errors
    /// If the port has failed for good.
    pub fn send(&mut self, now: Instant) -> io::Result<bool> {
        let had_any = !self.tx.is_empty();
        let outcome = self.port.send(now, &mut self.tx)?;
        self.blocked = outcome == SendOutcome::Blocked;
        Ok(had_any)
    }

    /// Changes a QP, and its rings with it.
    ///
    /// # Errors
    /// If the change is not allowed; nothing was changed then.
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
            && let Some(qp) = self.host.objects.qps.by_number_mut(qpn.get())
        {
            qp.send.reset();
            if let Some(recv) = &mut qp.recv {
                recv.reset();
            }
            let owner = qp.owner;
            self.forget_failed_qp(owner, qpn);
        }
        self.due = Due::Anything;
        self.host.maybe_failed(qpn);
        self.after_engine(now);
        Ok(())
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
        let others =
            [look, self.taps.deadline(), self.host.stalls.deadline(), self.floods.deadline()];
        timers.into_iter().chain(others).flatten().min()
    }

    /// The management datagrams that have come since the last time. Each is to be
    /// [judged](Self::judge_mad).
    pub fn take_mads(&mut self) -> Vec<(MadSource, [u8; MAD_LEN])> {
        self.host.take_mads()
    }

    /// Whether a management datagram was of use: a source of many that are not is a flood.
    pub fn judge_mad(&mut self, now: Instant, from: &MadSource, is_of_use: bool) {
        let to = Receivers::Only(self.device.slot().management_qpn());
        self.floods.judge(now, is_of_use, || source(&from.flow, to));
    }

    /// Whether much comes just now that is of no use, wherever it comes from.
    pub fn is_flooded(&self, now: Instant) -> bool {
        self.floods.are_under_way(now)
    }

    /// A QP to which data came, while its program may not know that its peer is ready.
    pub fn take_comm_est_qp(&mut self) -> Option<Qpn> {
        self.host.take_comm_est_qp()
    }

    /// Sends a management datagram. Returns whether there was a way for it.
    pub fn send_mad(&mut self, to: &AddressVector, qpn: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let is_sent = self.device.send_mad(to, qpn, mad).is_ok();
        if is_sent {
            self.due = Due::Anything;
        }
        is_sent
    }

    /// Shows the programs what the engine has done for them.
    pub(crate) fn after_engine(&mut self, now: Instant) {
        self.host.publish();
        while let Some(qpn) = self.host.take_maybe_failed_qp() {
            self.watch_if_failed(now, qpn);
        }
        while let Some(qpn) = self.host.take_requeue_qp() {
            self.ring_doorbell(qpn);
        }
    }

    fn watch_if_failed(&mut self, now: Instant, qpn: Qpn) {
        let has_failed = || self.device.query_qp(qpn).is_some_and(|qp| qp.state == QpState::Err);
        let Some(qp) = self.host.objects.qps.by_number_mut(qpn.get()) else { return };
        if self.failed_qps.contains(qp.owner, qpn.get()) || !has_failed() {
            return;
        }
        // The receives of an SRQ are not flushed.
        let Some(recv) = &mut qp.recv else { return };
        // STATE-010
        recv.want_doorbell();
        self.failed_qps.insert(qp.owner, qpn.get());
        self.look_interval = FLUSH_INTERVAL_MIN;
        self.look_at = now + self.look_interval;
        // What was posted between the flush and the raising of the flag is flushed now.
        self.ring_doorbell(qpn);
    }

    /// A QP has left ERR, or was destroyed.
    pub(crate) fn forget_failed_qp(&mut self, owner: OwnerId, qpn: Qpn) {
        self.failed_qps.remove(owner, qpn.get());
    }

    fn look_at_failed_qps(&mut self, now: Instant) {
        self.look_interval = (self.look_interval * 2).min(FLUSH_INTERVAL_MAX);
        for qpn in self.failed_qps.next_looks() {
            let qp = self.host.objects.qps.by_number_mut(qpn);
            let recv = qp.and_then(|qp| qp.recv.as_mut());
            // STATE-010
            if recv.is_some_and(|recv| recv.posted() > 0) {
                self.device.ring_doorbell(Qpn::new(qpn));
                self.due = Due::Anything;
                self.look_interval = FLUSH_INTERVAL_MIN;
            }
        }
        self.look_at = now + self.look_interval;
    }
}

/// Handles a datagram, and takes note of where it came from if it is dropped. Of a management
/// datagram that the connection manager gets that is known later.
fn handle_datagram(
    now: Instant,
    device: &mut Device,
    host: &mut ProgramHost,
    floods: &mut Floods,
    (outer, datagram): (&Outer, &[u8]),
) {
    let (before, mads) = (not_held_against_sender(device), host.mads_waiting());
    device.handle_datagram(now, host, outer, datagram);
    if host.mads_waiting() == mads {
        let is_of_use = not_held_against_sender(device) != before;
        floods.judge(now, is_of_use, || {
            let management = device.slot().management_qpn();
            let to = match Bth::dest_qp_in(datagram) {
                Some(qpn) if qpn == management => Receivers::Only(management),
                _ => Receivers::AllBut(management),
            };
            source(&outer.flow, to)
        });
    }
}

fn source(flow: &Flow, to: Receivers) -> PacketSource {
    PacketSource { from: SocketAddr::new(flow.src, flow.src_port), to }
}

/// Packets that were taken, or dropped for a reason that is not the sender's. A question about
/// extensions is not held against who asks once, but no peer needs to ask again and again.
fn not_held_against_sender(device: &Device) -> u64 {
    let counters = device.counters();
    let taken = counters.get(Counter::ReceivedPackets) - counters.get(Counter::MadsReceived);
    let excused = [Counter::DropMemoryStalls, Counter::DropMulticastShare, Counter::DropQpNotReady];
    // SHARE-137: a NIC may have joined packets for several slots. The broker gets what is for none.
    let other_slot = match device.slot().id() {
        SlotId::BROKER => 0,
        _ => counters.get(Counter::DropOtherSlot),
    };
    taken + other_slot + excused.map(|counter| counters.get(counter)).iter().sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_pipe::EventPipe;
    use crate::limits::{FLOOD_PACKETS, REFUSED_FOR};
    use crate::objects::{ChannelId, Memory};
    use crate::verbs::{CqSpec, MemorySpec, QpSpec, Receives, Ring};
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};
    use urxe_engine::Counter;
    use urxe_engine::WireForm;
    use urxe_port::{Caps, PortCounters, Segmentation};
    use urxe_shm::control::event::{EventRecord, RECORD_LEN};
    use urxe_shm::memory::arena::Arena;
    use urxe_shm::memory::region::{Mapping, create_memfd};
    use urxe_shm::ring::completion_notifier::CompletionNotifier;
    use urxe_shm::ring::geometry::Geometry;
    use urxe_shm::ring::{CqProducer, RqConsumer, SqConsumer, SqProducer};
    use urxe_types::{
        Access, Lkey, Psn, Qkey, QpType, Rkey, SendData, SendOp, SendWr, Sge, SlotCount,
    };
    use urxe_wire::batch::TxLimits;
    use urxe_wire::mad::{CapabilityMad, CapabilityMessage};
    use urxe_wire::{
        Body, Bth, DONT_FRAGMENT, Datagram, Deth, Flow, Headers, Ident, Opcode, Outer, Packet,
        SourcePorts,
    };

    fn config() -> Config {
        let gids = vec![Some(IpAddr::from([127, 0, 0, 1]))];
        // No peer is asked anything: it is notified at once.
        let tuning = Tuning { wire: WireForm::Strict, ..Tuning::default() };
        Config { gids, active_mtu: PathMtu::Mtu1024, slot: Slot::ALONE, seed: 1, tuning }
    }

    /// What is left to be let through, and what was sent; what arrives, out of a queue how full.
    #[derive(Default)]
    struct Passage {
        runs: usize,
        datagrams: VecDeque<Vec<u8>>,
        arriving: Vec<(Outer, Vec<u8>)>,
        is_within_process: bool,
        fill: f32,
        refused: Vec<PacketSource>,
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
                source_ports: SourcePorts::Fixed(4791),
                sees_ident: true,
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
            let mut passage = self.0.lock().unwrap();
            for (outer, bytes) in passage.arriving.drain(..) {
                assert!(rx.push(&outer, &bytes));
            }
            if passage.is_within_process {
                rx.set_within_process();
            }
            Ok(rx.len())
        }

        fn refuse_sources(&mut self, sources: &[PacketSource]) -> bool {
            self.0.lock().unwrap().refused = sources.to_vec();
            true
        }

        fn receive_fill(&mut self, _now: Instant) -> Option<f32> {
            Some(self.0.lock().unwrap().fill)
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
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let ring = SqConsumer::create(window.clone(), shape, false).unwrap();
        let send = Ring { ring, shape };
        let program = SqProducer::attach(window, shape).unwrap();
        let shape = Geometry::recv(15, 1).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let recv = Ring { ring: RqConsumer::create(window, shape).unwrap(), shape };
        let shape = Geometry::completion(15).unwrap();
        let (_, window) = arena.alloc(shape.size().into()).unwrap();
        let ring = Ring { ring: CqProducer::create(window, shape).unwrap(), shape };
        let (owner, events) = (OwnerId(1), EventTarget::new(ChannelId(0), 0, 0));
        let notifier = CompletionNotifier::new(arena.doorbells().clone()).unwrap();
        let cq = CqSpec { ring, notifier, channel: None, events, owner };
        let cq = nic.create_cq(cq).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let spec = QpSpec {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send,
            all_signaled: false,
            recv: Receives::Own(recv),
            events,
            owner,
        };
        let qpn = nic.create_qp(spec).unwrap();
        for attr in way_to_rts() {
            nic.modify_qp(now, qpn, &attr).unwrap();
        }
        let memfd = create_memfd("narrow", 1 << 16).unwrap();
        let memory = Some(Memory::Shared(Mapping::new(memfd, 0, 1 << 16).unwrap().into()));
        let (length, access) = (1 << 16, Access::default());
        let spec = MemorySpec { pd, iova: 0, length, access, memory, owner };
        let lkey = nic.reg_mr(spec).unwrap();
        (nic, qpn, program, Sge { addr: 0, length: 1 << 16, lkey: Lkey(lkey) })
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
        program.push(&short_write(), SendData::Sges(&[sge])).unwrap();
        program.publish();
        nic.ring_doorbell(qpn);

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

    /// A SEND to a QP of [`nic_with_qp`], as it arrives from its peer.
    fn send_only(qpn: Qpn) -> (Outer, Vec<u8>) {
        arriving(Bth::new(qpn, Psn::new(0)), Opcode::RC_SEND_ONLY, 8)
    }

    /// A WRITE of no bytes to it, which asks for an ACK.
    fn empty_write(qpn: Qpn, psn: u32) -> (Outer, Vec<u8>) {
        let bth = Bth { ack_req: true, ..Bth::new(qpn, Psn::new(psn)) };
        arriving(bth, Opcode::RC_WRITE_ONLY, 0)
    }

    /// An ACK to it.
    fn ack(qpn: Qpn, psn: u32) -> (Outer, Vec<u8>) {
        arriving(Bth::new(qpn, Psn::new(psn)), Opcode::RC_ACK, 0)
    }

    /// What a program posts to WRITE to its peer.
    fn short_write() -> SendWr {
        let op = SendOp::Write { remote_addr: 0, rkey: Rkey(1), imm: None };
        SendWr { wr_id: 1, op, to: None, fence: false, signaled: true, solicited: false }
    }

    fn arriving(bth: Bth, opcode: Opcode, len: usize) -> (Outer, Vec<u8>) {
        packet(&Headers::new(bth, Body::zeroed(opcode)), &vec![0; len])
    }

    /// A management datagram to QP1.
    fn mad(mad: &[u8; MAD_LEN]) -> (Outer, Vec<u8>) {
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        let bth = Bth::new(Qpn::GSI, Psn::default());
        packet(&Headers::new(bth, Datagram { deth, imm: None }), mad)
    }

    fn packet(headers: &Headers, payload: &[u8]) -> (Outer, Vec<u8>) {
        let flow = Flow {
            src: [127, 0, 0, 2].into(),
            dst: [127, 0, 0, 1].into(),
            src_port: 49441,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let mut batch = TxBatch::new(TxLimits::SINGLE, 0);
        let Ok(()) = batch.push(&flow, headers, payload.len(), |bytes| {
            bytes.copy_from_slice(payload);
            Ok::<(), Infallible>(())
        });
        let bytes = batch.datagrams().next().unwrap().bytes.to_vec();
        (Outer { flow, ident: Ident::Known { ident: 0, fragment: DONT_FRAGMENT } }, bytes)
    }

    #[test]
    fn packets_out_of_a_queue_that_fills_are_answered_with_a_congestion_notification() {
        for (fill, notifications) in [(0.1, 0), (0.9, 1)] {
            let passage = Arc::new(Mutex::new(Passage { runs: 9, ..Passage::default() }));
            let now = Instant::now();
            let (mut nic, qpn, ..) = nic_with_qp(Narrow(passage.clone()), now);
            passage.lock().unwrap().arriving.push(send_only(qpn));
            passage.lock().unwrap().fill = fill;
            assert!(nic.receive(now).unwrap());
            nic.transmit(now).unwrap();
            assert_eq!(nic.device.counters().get(Counter::ReceivedPackets), 1);
            assert_eq!(nic.device.counters().get(Counter::CnpsSent), notifications, "{fill}");
        }
    }

    /// CONG-038
    #[test]
    fn late_answers_of_other_slots_of_the_process_are_no_sign_of_congestion() {
        for is_within_process in [false, true] {
            let passage = Passage { runs: usize::MAX, is_within_process, ..Passage::default() };
            let passage = Arc::new(Mutex::new(passage));
            let mut now = Instant::now();
            let (mut nic, qpn, mut program, sge) = nic_with_qp(Narrow(passage.clone()), now);
            let mut exchange = |psn: u32, takes: Duration| {
                let wr = SendWr { signaled: false, ..short_write() };
                program.push(&wr, SendData::Sges(&[Sge { length: 8, ..sge }])).unwrap();
                program.publish();
                nic.ring_doorbell(qpn);
                nic.transmit(now).unwrap();
                now += takes;
                passage.lock().unwrap().arriving.push(ack(qpn, psn));
                nic.receive(now).unwrap();
            };
            (100..110).for_each(|psn| exchange(psn, Duration::from_micros(20)));
            (110..150).for_each(|psn| exchange(psn, Duration::from_millis(2)));
            let counters = nic.device.counters();
            assert_eq!(counters.get(Counter::AcksReceived), 50);
            assert_eq!(counters.get(Counter::CutsByDelay) == 0, is_within_process);
        }
    }

    #[test]
    fn an_ack_to_a_single_message_is_known_to_be_all_that_is_due() {
        let passage = Arc::new(Mutex::new(Passage { runs: usize::MAX, ..Passage::default() }));
        let now = Instant::now();
        let (mut nic, qpn, ..) = nic_with_qp(Narrow(passage.clone()), now);
        let access = Some(Access::REMOTE_WRITE);
        nic.modify_qp(now, qpn, &QpAttr { access, ..QpAttr::default() }).unwrap();
        nic.transmit(now).unwrap();
        let mut psns = 0..;
        let mut receive = |nic: &mut Nic, count: usize| {
            let packets = psns.by_ref().take(count).map(|psn| empty_write(qpn, psn));
            passage.lock().unwrap().arriving.extend(packets);
            assert!(nic.receive(now).unwrap());
            nic.owes_only_an_ack()
        };
        for number in 1..=3 {
            assert!(receive(&mut nic, 1) && nic.is_due());
            nic.transmit(now).unwrap();
            assert!(!nic.owes_only_an_ack() && !nic.is_due());
            assert_eq!(passage.lock().unwrap().datagrams.len(), number);
        }
        assert!(!receive(&mut nic, LITTLE + 1), "that is no single message");
        nic.transmit(now).unwrap();
        assert!(receive(&mut nic, 1));
        assert!(!receive(&mut nic, 1), "one waits already");
        nic.transmit(now).unwrap();
        assert!(receive(&mut nic, 1));
        nic.ring_doorbell(qpn);
        assert!(!nic.owes_only_an_ack(), "there may be something to go with");
    }

    /// SHARE-134
    #[test]
    fn for_a_program_that_rests_packets_are_dropped_and_what_it_posts_is_sent_later() {
        let passage = Arc::new(Mutex::new(Passage { runs: usize::MAX, ..Passage::default() }));
        let now = Instant::now();
        let (mut nic, qpn, mut program, sge) = nic_with_qp(Narrow(passage.clone()), now);
        let access = Some(Access::REMOTE_WRITE);
        nic.modify_qp(now, qpn, &QpAttr { access, ..QpAttr::default() }).unwrap();
        while !nic.host.stalls.any_rests() {
            nic.host.stalls.on_stall(now, OwnerId(1), Duration::from_millis(1));
        }
        program.push(&short_write(), SendData::Sges(&[Sge { length: 8, ..sge }])).unwrap();
        program.publish();
        nic.ring_doorbell(qpn);
        let turn = |nic: &mut Nic, at: Instant| {
            passage.lock().unwrap().arriving.push(empty_write(qpn, 0));
            nic.receive(at).unwrap();
            nic.handle_timers(at).unwrap();
            while nic.is_due() {
                nic.transmit(at).unwrap();
            }
            let datagrams = std::mem::take(&mut passage.lock().unwrap().datagrams);
            let opcode = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().headers.body.opcode();
            datagrams.iter().map(opcode).collect::<Vec<_>>()
        };
        assert_eq!(turn(&mut nic, now), []);
        assert_eq!(nic.device.counters().get(Counter::DropMemoryStalls), 1);
        let over = nic.deadline().expect("something waits for the end of the rest");
        assert!(over > now);
        // The peer has repeated its packet.
        assert_eq!(turn(&mut nic, over), [Opcode::RC_ACK, Opcode::RC_WRITE_ONLY]);
        assert_eq!(nic.device.counters().get(Counter::DropMemoryStalls), 1);
    }

    /// SHARE-134
    #[test]
    fn qps_of_a_program_that_has_rested_are_looked_at_a_few_at_a_time() {
        let now = Instant::now();
        let (mut nic, ..) = nic_with_qp(Narrow(Arc::default()), now);
        while !nic.host.stalls.any_rests() {
            nic.host.stalls.on_stall(now, OwnerId(1), Duration::from_millis(1));
        }
        (1..=3 * DEFERRED_PER_TURN as u32).for_each(|qpn| nic.host.stalls.defer(Qpn::new(qpn)));
        let over = nic.deadline().unwrap();
        let mut turns = 0;
        while nic.deadline().is_some_and(|at| at <= over) {
            nic.handle_timers(over).unwrap();
            turns += 1;
        }
        assert_eq!(turns, 3);
    }

    /// SHARE-135
    #[test]
    fn a_source_of_nothing_but_what_is_dropped_is_refused_unless_a_peer_may_be_there() {
        let passage = Arc::new(Mutex::new(Passage::default()));
        let now = Instant::now();
        let (mut nic, qpn, ..) = nic_with_qp(Narrow(passage.clone()), now);
        let nobody = Qpn::new(qpn.get() ^ 1);
        // Who is refused when so many packets to a QP have come from there.
        let receive = |nic: &mut Nic, host: u8, qpn: Qpn, packets: u32, at: Instant| {
            let (mut outer, bytes) = send_only(qpn);
            outer.flow.src = [127, 0, 0, host].into();
            let packets = (0..packets).map(|_| (outer, bytes.clone()));
            passage.lock().unwrap().arriving.extend(packets);
            nic.receive(at).unwrap();
            nic.handle_timers(at).unwrap();
            passage.lock().unwrap().refused.clone()
        };
        assert_eq!(receive(&mut nic, 2, nobody, FLOOD_PACKETS, now), [], "the QP's peer is there");
        assert_eq!(receive(&mut nic, 3, nobody, FLOOD_PACKETS - 1, now), []);
        // With its ICRC wrong it is dropped before that.
        let refused = receive(&mut nic, 3, qpn, 1, now);
        let from = SocketAddr::new([127, 0, 0, 3].into(), 49441);
        let to = Receivers::AllBut(nic.device().slot().management_qpn());
        assert_eq!(refused, [PacketSource { from, to }]);
        assert_eq!(nic.counters().sources_refused, 1);
        let over = now + REFUSED_FOR;
        assert!(nic.deadline().is_some_and(|at| at <= over));
        nic.handle_timers(over).unwrap();
        assert_eq!(passage.lock().unwrap().refused, []);
    }

    /// SHARE-136
    #[test]
    fn a_source_of_management_datagrams_is_refused_unless_the_manager_has_a_use_for_one() {
        let now = Instant::now();
        let message = mad(&[0; MAD_LEN]);
        for (of_use, is_refused) in [(0, true), (1, false)] {
            let passage = Arc::new(Mutex::new(Passage::default()));
            let mut nic = Nic::new(Box::new(Narrow(passage.clone())), config(), now);
            let mut arrive = |packets: u32| {
                let packets = (0..packets).map(|_| message.clone());
                passage.lock().unwrap().arriving.extend(packets);
                nic.receive(now).unwrap();
                nic.handle_timers(now).unwrap();
                assert_eq!(passage.lock().unwrap().refused, [], "it is not judged yet");
                let mads = nic.take_mads();
                for (number, (from, _)) in mads.iter().enumerate() {
                    nic.judge_mad(now, from, number < of_use);
                }
                nic.handle_timers(now).unwrap();
                mads.len() as u32
            };
            assert_eq!(arrive(FLOOD_PACKETS), FLOOD_PACKETS);
            let refused = passage.lock().unwrap().refused.clone();
            let from = SocketAddr::new([127, 0, 0, 2].into(), 49441);
            let source = PacketSource { from, to: Receivers::Only(Qpn::GSI) };
            assert_eq!(refused, if is_refused { vec![source] } else { vec![] });
        }
    }

    /// SHARE-137
    #[test]
    fn a_source_is_refused_for_packets_to_no_slot_at_all_but_not_for_those_of_another_slot() {
        let now = Instant::now();
        for (at, is_refused) in [(SlotId::BROKER.index(), true), (1, false)] {
            let passage = Arc::new(Mutex::new(Passage::default()));
            let slot = SlotCount::MAX.slot(at).unwrap();
            let config = Config { slot, ..config() };
            let mut nic = Nic::new(Box::new(Narrow(passage.clone())), config, now);
            let elsewhere = *SlotCount::MAX.slot(2).unwrap().qpns().start();
            let packets = (0..FLOOD_PACKETS).map(|_| send_only(Qpn::new(elsewhere)));
            passage.lock().unwrap().arriving.extend(packets);
            nic.receive(now).unwrap();
            nic.handle_timers(now).unwrap();
            let dropped = nic.device.counters().get(Counter::DropOtherSlot);
            assert_eq!(dropped, u64::from(FLOOD_PACKETS));
            assert_eq!(!passage.lock().unwrap().refused.is_empty(), is_refused);
        }
    }

    /// SHARE-136
    #[test]
    fn a_source_that_asks_for_extensions_again_and_again_is_refused() {
        let now = Instant::now();
        let passage = Arc::new(Mutex::new(Passage::default()));
        let mut nic = Nic::new(Box::new(Narrow(passage.clone())), config(), now);
        let question = CapabilityMad { tid: 1, message: CapabilityMessage::Get }.bytes();
        for packets in [FLOOD_PACKETS - 1, 1] {
            assert_eq!(passage.lock().unwrap().refused, []);
            let packets = (0..packets).map(|_| mad(&question));
            passage.lock().unwrap().arriving.extend(packets);
            nic.receive(now).unwrap();
            nic.handle_timers(now).unwrap();
        }
        assert_eq!(passage.lock().unwrap().refused.len(), 1);
    }

    /// SHARE-135
    #[test]
    fn a_source_is_not_refused_for_packets_to_a_qp_that_is_not_ready_or_whose_program_rests() {
        let now = Instant::now();
        for (rests, counter) in
            [(false, Counter::DropQpNotReady), (true, Counter::DropMemoryStalls)]
        {
            let passage = Arc::new(Mutex::new(Passage::default()));
            let (mut nic, qpn, ..) = nic_with_qp(Narrow(passage.clone()), now);
            let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
            let [init, ..] = way_to_rts();
            for attr in [reset, init] {
                nic.modify_qp(now, qpn, &attr).unwrap();
            }
            while rests && !nic.host.stalls.any_rests() {
                nic.host.stalls.on_stall(now, OwnerId(1), Duration::from_millis(1));
            }
            let receive = |nic: &mut Nic, qpn: Qpn| {
                let packets = (0..FLOOD_PACKETS).map(|_| send_only(qpn));
                passage.lock().unwrap().arriving.extend(packets);
                nic.receive(now).unwrap();
                nic.handle_timers(now).unwrap();
                passage.lock().unwrap().refused.clone()
            };
            assert_eq!(receive(&mut nic, qpn), []);
            assert_eq!(nic.device.counters().get(counter), u64::from(FLOOD_PACKETS));
            let nobody = Qpn::new(qpn.get() ^ 1);
            assert_eq!(receive(&mut nic, nobody).len(), 1, "it might be");
        }
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
            let channel = nic.create_async_channel(pipe, 1, handle).unwrap();
            contexts.push((handle, channel, read_end));
        }
        let closed = contexts[1].1;
        nic.destroy_channel(closed);
        let events = [PortEvent::Error, PortEvent::Active, PortEvent::GidChange];
        for event in events {
            nic.port_event(event);
        }
        for (handle, channel, read_end) in &contexts {
            let mut kinds = Vec::new();
            let mut bytes = [0; RECORD_LEN];
            while rustix::io::read(read_end, &mut bytes) == Ok(RECORD_LEN) {
                let record = EventRecord::from_bytes(bytes);
                assert_eq!((record.user_handle, record.object), (1, u64::from(*handle)));
                kinds.push(record.kind);
            }
            let expected = if *channel == closed { vec![] } else { vec![10, 9, 18] };
            assert_eq!(kinds, expected);
        }
        assert_eq!(nic.host.counters.async_events, 6);
    }
}
