//! The verbs: how objects come, change and go.
//!
//! Nothing here checks permission: that a program names its own objects only, that they fit
//! together and that there are not too many is checked by the runner of the data path.

use crate::event_pipe::EventPipe;
use crate::nic::Nic;
use crate::objects::{
    ChannelId, EventTarget, Memory, Mr, OwnerId, Qp, Srq, queue_of_qp, queue_of_srq,
};
use crate::queues::{CompletionQueue, RecvQueue, SendQueue};
use crate::table::behind;
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use urxe_engine::{
    AhError, AllocMwError, Cause, CqId, CreateQpError, CreateSrqError, DeregMrError, McastError,
    ModifySrqError, MrSpec, MwInfo, PdId, QpInfo, QpInit, RecvSource, RegMrError, RegionId,
    ShareId, SrqId, SrqInfo, SrqInit,
};
use urxe_shm::memory::region::Window;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::cursor::IndexError;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{CqProducer, MoveError, RqConsumer, SqConsumer};
use urxe_types::{Access, AddressVector, AhId, Lkey, MwType, QpType, Qpn, Rkey};

/// There is no room for another object of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device can have no more")]
pub struct DeviceFull;

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

/// Our end of a ring, and its shape.
pub struct Ring<R> {
    pub ring: R,
    pub shape: Geometry,
}

/// Where a QP takes its receives from.
pub enum Receives {
    Own(Ring<RqConsumer>),
    Shared(SrqId),
}

/// What a QP is created with.
pub struct QpSpec {
    /// Its transport service.
    pub qp_type: QpType,
    pub pd: PdId,
    /// Where its send completions go.
    pub send_cq: CqId,
    /// Where its receive completions go.
    pub recv_cq: CqId,
    /// Its send queue.
    pub send: Ring<SqConsumer>,
    /// Every send completes with a CQE, whether it says so or not.
    pub all_signaled: bool,
    /// Where it receives from.
    pub recv: Receives,
    /// Where its asynchronous events go.
    pub events: EventTarget,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What a CQ is created with.
pub struct CqSpec {
    pub ring: Ring<CqProducer>,
    /// Wakes the program's threads that sleep between polls.
    pub notifier: CompletionNotifier,
    /// The channel of its completion events.
    pub channel: Option<ChannelId>,
    /// Where its errors are told, and what its events say.
    pub events: EventTarget,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What an SRQ is created with.
pub struct SrqSpec {
    pub pd: PdId,
    pub ring: Ring<RqConsumer>,
    /// Its first limit; 0 is none.
    pub limit: u32,
    /// Where its asynchronous events go.
    pub events: EventTarget,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What memory is registered with.
pub struct MemorySpec {
    pub pd: PdId,
    /// The address of its first byte, as work requests name it.
    pub iova: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What may be done with it.
    pub access: Access,
    /// What is behind it; nothing if it has no bytes.
    pub memory: Option<Memory>,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What `query_qp` tells.
pub struct QpStatus {
    /// What the engine knows.
    pub info: QpInfo,
    /// The shape of its send queue.
    pub send: Geometry,
    /// That of its receive queue; none of a QP with an SRQ.
    pub recv: Option<Geometry>,
    /// Every send completes with a CQE.
    pub all_signaled: bool,
    /// Whose it is.
    pub owner: OwnerId,
    /// Why it failed, if it did.
    pub cause: Option<Cause>,
}

/// State of a CQ.
pub struct CqStatus {
    /// Completions that it holds.
    pub cqe: u32,
    /// Completions that the program has not read; not known if it overwrote the cursors.
    pub unread: Result<u32, IndexError>,
    /// QPs that use it, those that use it for both directions once.
    pub qps: u32,
    /// A completion was lost, and it takes no more.
    pub failed: bool,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What `query_srq` tells.
pub struct SrqStatus {
    /// What the engine knows.
    pub info: SrqInfo,
    /// The shape of its ring.
    pub shape: Geometry,
    /// Receives that are posted and not taken.
    pub posted: u32,
    /// Whose it is.
    pub owner: OwnerId,
}

/// The CQs of a QP; one that serves both its queues once.
fn cqs_of(init: &QpInit) -> impl Iterator<Item = CqId> {
    let other = (init.recv_cq != init.send_cq).then_some(init.recv_cq);
    std::iter::once(init.send_cq).chain(other)
}

/// Event channels and protection domains.
impl Nic {
    /// Takes in a channel of completion events.
    ///
    /// # Errors
    /// If there is no room for another.
    pub fn create_channel(&mut self, pipe: EventPipe) -> Result<ChannelId, DeviceFull> {
        self.host.channels.insert(pipe).ok_or(DeviceFull)
    }

    /// Takes in a channel of asynchronous events. It is told what happens to the port, in the name
    /// of these two numbers.
    ///
    /// # Errors
    /// If there is no room for another.
    pub fn create_async_channel(
        &mut self,
        pipe: EventPipe,
        user_handle: u64,
        handle: u32,
    ) -> Result<ChannelId, DeviceFull> {
        let id = self.create_channel(pipe)?;
        self.host.channels.tell_of_port(id, EventTarget::new(id, user_handle, handle));
        Ok(id)
    }

    /// Has the channels watched, by means of `register`, that have become full since the last time.
    /// Returns those for which that failed: their programs would wait for their events for ever.
    pub fn watch_full_channels<E>(
        &mut self,
        register: impl FnMut(ChannelId, BorrowedFd<'_>) -> Result<(), E>,
    ) -> Vec<ChannelId> {
        self.host.channels.watch_full(register)
    }

    /// Sends what waits in a channel that takes records again, and has it watched no longer, by
    /// means of `deregister`, if nothing is left.
    pub fn flush_channel(&mut self, id: ChannelId, deregister: impl FnOnce(BorrowedFd<'_>)) {
        self.host.channels.flush(id, deregister);
    }

    /// Takes back the events of a destroyed object from a channel.
    pub fn withdraw_events(&mut self, channel: ChannelId, handle: u32) {
        self.host.channels.withdraw(channel, handle);
    }

    /// Lets go of a channel.
    pub fn destroy_channel(&mut self, id: ChannelId) {
        self.host.channels.remove(id);
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// If there is no room for another.
    pub fn alloc_pd(&mut self) -> Result<PdId, DeviceFull> {
        self.host.objects.pds.insert(()).map(PdId).ok_or(DeviceFull)
    }

    /// Frees a protection domain with nothing in it.
    pub fn dealloc_pd(&mut self, pd: PdId) {
        self.host.objects.pds.remove(pd.0);
    }

    /// Makes an address handle.
    ///
    /// # Errors
    /// If its path is impossible, or the device is full.
    pub fn create_ah(&mut self, pd: PdId, av: &AddressVector) -> Result<AhId, AhError> {
        self.device.create_ah(pd, av)
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, ah: AhId) {
        self.device.destroy_ah(ah);
    }
}

/// Memory.
impl Nic {
    /// Registers memory. Returns its key, which is lkey and rkey in one.
    ///
    /// # Errors
    /// If the range or the rights are impossible, or the device is full.
    pub fn reg_mr(&mut self, spec: MemorySpec) -> Result<u32, RegMrError> {
        let MemorySpec { pd, iova, length, access, memory, owner } = spec;
        let mrs = &mut self.host.objects.mrs;
        let region = RegionId(mrs.next_key().ok_or(RegMrError::TooMany)?);
        let spec = MrSpec { pd, addr: iova, length, access, region };
        let key = self.device.reg_mr(spec)?.lkey.0;
        self.mapped_mrs += usize::from(memory.as_ref().is_some_and(Memory::is_mapped));
        mrs.insert(key, Mr { spec, owner, memory });
        Ok(key)
    }

    /// Deregisters memory, after the writes to it. Returns what it was.
    ///
    /// # Errors
    /// If it is no MR's key, or windows are bound to the MR: they have to go first.
    pub fn dereg_mr(&mut self, key: u32) -> Result<Option<Mr>, DeregMrError> {
        // MW-028
        self.device.dereg_mr(Lkey(key))?;
        let mr = self.host.objects.mrs.remove(key);
        if let Some(memory) = mr.as_ref().and_then(|mr| mr.memory.as_ref()) {
            self.mapped_mrs -= usize::from(memory.is_mapped());
            if let Memory::Process { memory, .. } | Memory::WholePages { memory, .. } = memory {
                self.host.release(memory);
            }
        }
        Ok(mr)
    }

    /// How many MRs are mapped.
    pub fn mapped_mrs(&self) -> usize {
        self.mapped_mrs
    }

    /// The MRs behind a key that are of those whom `is_meant` says.
    pub fn mrs_behind(
        &self,
        after: Option<u32>,
        is_meant: impl Fn(OwnerId) -> bool,
    ) -> impl Iterator<Item = (u32, &Mr)> {
        self.host.objects.mrs.behind(after).filter(move |(_, mr)| is_meant(mr.owner))
    }

    /// Allocates a memory window. Returns its first rkey.
    ///
    /// # Errors
    /// If the device is full.
    pub fn alloc_mw(
        &mut self,
        pd: PdId,
        mw_type: MwType,
        owner: OwnerId,
    ) -> Result<u32, AllocMwError> {
        let Rkey(rkey) = self.device.alloc_mw(pd, mw_type)?;
        self.host.objects.mws.insert(rkey >> RKEY_VARIANT_BITS, owner);
        Ok(rkey)
    }

    /// Frees a window, bound or not; any rkey that it ever had names it.
    pub fn dealloc_mw(&mut self, rkey: u32) {
        // MW-040
        self.device.dealloc_mw(Rkey(rkey));
        self.host.objects.mws.remove(&(rkey >> RKEY_VARIANT_BITS));
    }

    /// The windows behind the one with this rkey that are of those whom `is_meant` says.
    pub fn mws_behind(
        &self,
        after: Option<u32>,
        is_meant: impl Fn(OwnerId) -> bool,
    ) -> impl Iterator<Item = (MwInfo, OwnerId)> {
        let after = after.map(|rkey| rkey >> RKEY_VARIANT_BITS);
        let mws = self.host.objects.mws.range((behind(after), Bound::Unbounded));
        let mws = mws.filter(move |(_, owner)| is_meant(**owner));
        let info = |&index: &u32| self.device.query_mw(Rkey(index << RKEY_VARIANT_BITS));
        mws.filter_map(move |(index, owner)| Some((info(index)?, *owner)))
    }
}

/// Bits of an rkey that belong to its program, and change with each bind.
const RKEY_VARIANT_BITS: u32 = 8;

/// Completion queues.
impl Nic {
    /// Creates a CQ.
    ///
    /// # Errors
    /// If there is no room for another.
    pub fn create_cq(&mut self, spec: CqSpec) -> Result<CqId, DeviceFull> {
        let queue = CompletionQueue::new(spec);
        self.host.objects.cqs.insert(queue).map(CqId).ok_or(DeviceFull)
    }

    /// Goes on with a new ring, to which what is unread is moved.
    ///
    /// # Errors
    /// If there is no room in it, or the program overwrote the cursors.
    pub fn resize_cq(&mut self, cq: CqId, to: Window, shape: Geometry) -> Result<(), MoveError> {
        let queue = self.host.objects.cqs.get_mut(cq.0);
        queue.map_or(Ok(()), |queue| queue.move_to(to, shape))
    }

    /// Queries a CQ.
    pub fn query_cq(&mut self, cq: CqId) -> Option<CqStatus> {
        self.host.objects.cqs.get_mut(cq.0).map(CompletionQueue::status)
    }

    /// The CQs behind a [number](urxe_types::index_of) that are of those whom `is_meant` says.
    pub fn cqs_behind(
        &mut self,
        after: Option<u32>,
        is_meant: impl Fn(OwnerId) -> bool,
    ) -> impl Iterator<Item = (u32, CqStatus)> {
        let first = after.map_or(0, |after| after.saturating_add(1));
        let cqs = self.host.objects.cqs.iter_mut_from(first);
        cqs.filter(move |(_, cq)| is_meant(cq.owner)).map(|(number, cq)| (number, cq.status()))
    }

    /// Destroys a CQ that no QP uses.
    pub fn destroy_cq(&mut self, cq: CqId) {
        self.host.objects.cqs.remove(cq.0);
        self.device.release_cq(cq);
    }
}

/// Shared receive queues.
impl Nic {
    /// Creates an SRQ.
    ///
    /// # Errors
    /// If the device is full.
    pub fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqId, CreateSrqError> {
        let SrqSpec { pd, ring: Ring { ring, shape }, limit, events, owner } = spec;
        let srqs = &mut self.host.objects.srqs;
        let queue = queue_of_srq(srqs.next_key().ok_or(CreateSrqError::TooMany)?);
        let id = self.device.create_srq(SrqInit { pd, queue, limit })?;
        srqs.insert(id.0, Srq { queue: RecvQueue::of_srq(ring, shape), events, owner });
        Ok(id)
    }

    /// Arms the limit event, or disarms it with 0.
    ///
    /// # Errors
    /// If there is no such SRQ.
    pub fn modify_srq(&mut self, id: SrqId, limit: u32) -> Result<(), ModifySrqError> {
        self.device.modify_srq(&mut self.host, id, limit)
    }

    /// Goes on with a new ring, to which what is posted is moved.
    ///
    /// # Errors
    /// If there is no room in it, or the program overwrote the cursors.
    pub fn resize_srq(&mut self, id: SrqId, to: Window, shape: Geometry) -> Result<(), MoveError> {
        let srq = self.host.objects.srqs.by_number_mut(id.0);
        srq.map_or(Ok(()), |srq| srq.queue.move_to(to, shape))
    }

    /// Queries an SRQ.
    pub fn query_srq(&mut self, id: SrqId) -> Option<SrqStatus> {
        let info = self.device.query_srq(id)?;
        let srq = self.host.objects.srqs.by_number_mut(id.0)?;
        let (shape, posted, owner) = (srq.queue.shape, srq.queue.posted(), srq.owner);
        Some(SrqStatus { info, shape, posted, owner })
    }

    /// The SRQs behind a number that are of those whom `is_meant` says.
    pub fn srqs_behind(
        &self,
        after: Option<u32>,
        is_meant: impl Fn(OwnerId) -> bool,
    ) -> impl Iterator<Item = SrqId> {
        let srqs = self.host.objects.srqs.behind(after);
        srqs.filter(move |(_, srq)| is_meant(srq.owner)).map(|(number, _)| SrqId(number))
    }

    /// Destroys an SRQ that no QP uses.
    pub fn destroy_srq(&mut self, id: SrqId) {
        let destroyed = self.device.destroy_srq(id);
        debug_assert!(destroyed.is_ok(), "its QPs go first: {destroyed:?}");
        self.host.objects.srqs.remove(id.0);
    }
}

/// Queue pairs.
impl Nic {
    /// Creates a QP in RESET.
    ///
    /// # Errors
    /// If the device is full, or there is no such SRQ.
    pub fn create_qp(&mut self, spec: QpSpec) -> Result<Qpn, CreateQpError> {
        let QpSpec { qp_type, pd, send_cq, recv_cq, events, owner, .. } = spec;
        let objects = &mut self.host.objects;
        let key = objects.qps.next_key().ok_or(CreateQpError::TooMany)?;
        let send_queue = queue_of_qp(key);
        let (source, recv) = match spec.recv {
            Receives::Own(Ring { ring, shape }) => {
                (RecvSource::Own(send_queue), Some(RecvQueue::of_qp(ring, shape)))
            }
            Receives::Shared(srq) => (RecvSource::Shared(srq), None),
        };
        let share = ShareId(owner.0);
        let init = QpInit { qp_type, pd, send_cq, recv_cq, send_queue, recv: source, share };
        let qpn = self.device.create_qp(init.clone())?;
        let Ring { ring, shape } = spec.send;
        let send = SendQueue::new(ring, shape, spec.all_signaled);
        objects.qps.insert(qpn.get(), Qp { qpn, send, recv, events, owner });
        for cq in cqs_of(&init) {
            if let Some(cq) = objects.cqs.get_mut(cq.0) {
                cq.qps += 1;
            }
        }
        Ok(qpn)
    }

    /// What a QP is, and how it does.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpStatus> {
        self.status_of_qp(self.host.objects.qps.by_number(qpn.get())?)
    }

    fn status_of_qp(&self, qp: &Qp) -> Option<QpStatus> {
        Some(QpStatus {
            info: self.device.query_qp(qp.qpn)?,
            send: qp.send.shape,
            recv: qp.recv.as_ref().map(|recv| recv.shape),
            all_signaled: qp.send.all_signaled,
            owner: qp.owner,
            cause: self.device.qp_history(qp.qpn)?.failure().map(|(_, cause)| cause),
        })
    }

    /// The QPs behind a QPN that are of those whom `is_meant` says.
    pub fn qps_behind(
        &self,
        after: Option<u32>,
        is_meant: impl Fn(OwnerId) -> bool,
    ) -> impl Iterator<Item = (Qpn, QpStatus)> {
        let qps = self.host.objects.qps.behind(after);
        let qps = qps.filter(move |(_, qp)| is_meant(qp.owner));
        qps.filter_map(|(_, qp)| Some((qp.qpn, self.status_of_qp(qp)?)))
    }

    /// Destroys a QP and its queues.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) {
        if let Some(info) = self.device.query_qp(qpn) {
            self.device.destroy_qp(now, qpn);
            for cq in cqs_of(&info.init) {
                if let Some(cq) = self.host.objects.cqs.get_mut(cq.0) {
                    cq.qps -= 1;
                }
            }
        }
        if let Some(qp) = self.host.objects.qps.remove(qpn.get()) {
            self.forget_failed_qp(qp.owner, qpn);
        }
        self.leave_unused_groups();
    }

    /// Attaches a QP to a group; with the group's first, the port joins it.
    ///
    /// # Errors
    /// If the QP cannot be attached, or the port cannot join.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), AttachError> {
        // MCAST-005
        let is_first = self.device.attach_mcast(qpn, group)?;
        if is_first && let Err(error) = self.join(group) {
            // MCAST-012
            let undone = self.device.detach_mcast(qpn, group);
            debug_assert!(undone.is_ok(), "{undone:?}");
            return Err(AttachError::Port(error));
        }
        Ok(())
    }

    /// Detaches a QP from a group; with the group's last, the port leaves it.
    ///
    /// # Errors
    /// If it is not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), McastError> {
        self.device.detach_mcast(qpn, group)?;
        self.leave_unused_groups();
        Ok(())
    }
}
