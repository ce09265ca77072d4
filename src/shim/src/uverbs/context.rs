//! An opened uverbs device: commands are done here, by requests to the daemon.

use super::abi;
use super::attr;
use super::command::{Command, NewQp, QpSlot, Registration};
use super::device;
use super::doorbells::{self, Doorbells};
use super::events::{AsyncEvents, CompletionEvents, Ledger, Source};
use super::frame::Frame;
use super::method;
use super::reply::{Answer, mm_info};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::memory;
use crate::own_slot;
use crate::polling::{NewCq, Wrapped};
use crate::reasons;
use crate::refused::Refused;
use crate::session::Session;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use urxe_shm::control::{
    AhHandle, ContextHandle, CqHandle, DeviceAttr, MrHandle, MwHandle, PdHandle, QpCaps, QpCreated,
    QpHandle, Reply, Request, RingLocation, SrqHandle,
};
use urxe_shm::memory::remap::Registered;
use urxe_shm::memory::session_memory::WindowError;
use urxe_shm::ring::CqConsumer;
use urxe_shm::ring::completion_notifier::CompletionWaiter;
use urxe_shm::ring::geometry::Geometry;
use urxe_types::QpState;

/// The daemon answered something else.
const UNEXPECTED: Errno = Errno::IO;

/// An opened uverbs device: `ibv_context` as the kernel knows it.
#[derive(Debug)]
pub(crate) struct Context {
    session: Arc<Session>,
    /// N of `/dev/infiniband/uverbsN`, and of the daemon's list of devices.
    device: u32,
    /// The daemon's name for it, once the program has said `GET_CONTEXT`.
    handle: OnceLock<ContextHandle>,
    /// The QPs that may send.
    doorbells: Doorbells,
    ledger: Arc<Ledger>,
    objects: Mutex<Objects>,
    /// CQs through which the program's own structures can be found, but could not yet.
    new_cqs: Mutex<Vec<NewCq>>,
}

/// What has to be known here of the context's objects. The daemon knows them by session, which all
/// contexts of the process share, so that an object is of this context is checked here.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pds: BTreeSet<PdHandle>,
    ahs: BTreeSet<AhHandle>,
    mws: BTreeSet<MwHandle>,
    mrs: BTreeMap<MrHandle, Mr>,
    pub(super) cqs: BTreeMap<CqHandle, Cq>,
    pub(super) qps: BTreeMap<QpSlot, Qp>,
}

/// Registered memory.
#[derive(Debug)]
struct Mr {
    wanted: Registration,
    lkey: u32,
    /// If it was remapped, what it was remapped to.
    _registered: Registered,
}

#[derive(Debug)]
pub(super) struct Cq {
    /// The ring is the program's; of ours is only the word that says whether it waits.
    ring: CqConsumer,
    /// Where it lies.
    pub(super) location: RingLocation,
    /// Completions that it holds.
    pub(super) cqe: u32,
    /// What its events carry: where the program has its `ibv_cq`.
    pub(super) user_handle: u64,
    pub(super) channel: Option<Arc<CompletionEvents>>,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) created: QpCreated,
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    /// The program itself has taken it to ERR.
    is_ended: bool,
}

impl Objects {
    /// What was registered with a protection domain, and has this key.
    pub(super) fn mr_of(&self, pd: PdHandle, lkey: u32) -> Option<Registration> {
        let mut newest_first = self.mrs.values().rev();
        newest_first.find(|mr| (mr.wanted.pd, mr.lkey) == (pd, lkey)).map(|mr| mr.wanted)
    }
}

impl Context {
    /// What `open("/dev/infiniband/uverbsN")` makes. Nothing is asked of the daemon before the
    /// first command.
    pub(crate) fn open(session: Arc<Session>, device: u32) -> Context {
        Context {
            session,
            device,
            handle: OnceLock::new(),
            doorbells: Doorbells::new(),
            ledger: Arc::default(),
            objects: Mutex::default(),
            new_cqs: Mutex::default(),
        }
    }

    /// N of `/dev/infiniband/uverbsN`.
    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// Whether the daemon has this name for it.
    pub(crate) fn is(&self, context: ContextHandle) -> bool {
        self.handle.get() == Some(&context)
    }

    /// What `write(2)` does if the bytes are a doorbell; `None` if they are not. No lock, no
    /// allocation, no system call while the daemon is awake.
    #[inline]
    pub(crate) fn doorbell(&self, bytes: &[u8]) -> Option<Result<usize, Errno>> {
        let slot = doorbells::rung(bytes)?;
        Some(self.ring(slot).map(|()| bytes.len()))
    }

    /// `write(2)`: one command. Gives back the number of bytes taken.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.carry_out(bytes).map_err(|refused| reasons::refused(method::verb(bytes), &refused))
    }

    fn carry_out(&self, bytes: &[u8]) -> Result<usize, Refused> {
        // Before any lock: in a fork, another thread of the parent may hold it for ever.
        self.session.connection().check_process()?;
        self.wrap_polls();
        let frame = Frame::parse(bytes)?;
        let command = Command::decode(&frame)?;
        // An answer that cannot be given is found out before anything is done.
        memory::write(frame.response, &Answer::none().lay_out(&frame))?;
        let answer = self.perform(&frame, command)?;
        memory::write(frame.response, &answer.lay_out(&frame))?;
        Ok(bytes.len())
    }

    /// Whether the daemon is gone: asks the system.
    pub(crate) fn is_lost(&self) -> bool {
        self.session.is_lost()
    }

    /// Has polls of new CQs go through us: see [`polling`](crate::polling).
    fn wrap_polls(&self) {
        let is_ours = |fd| match DESCRIPTORS.genuine(fd) {
            Some(Descriptor::Uverbs(context)) => std::ptr::eq(&*context, self),
            _ => false,
        };
        self.new_cqs.lock().retain_mut(|cq| cq.wrap(is_ours) == Wrapped::NotYet);
    }

    /// What tells of completions in the context's queues.
    pub(crate) fn waiter(&self) -> CompletionWaiter {
        self.session.connection().waiter().clone()
    }

    /// Why a work request of a QP has failed, in the daemon's words. Does not wait for another
    /// thread: `None` if one is in the way, or if nobody can be asked.
    pub(crate) fn why_failed(&self, qpn: u32, cause: u32) -> Option<String> {
        let qp = self.qp_by_number(qpn, |qp| qp.created.qp)?;
        match self.session.call_if_free(&Request::ExplainFailure { qp, cause })? {
            Reply::Reason(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether the program itself has taken a QP to ERR. Does not wait either.
    pub(crate) fn was_ended(&self, qpn: u32) -> bool {
        self.qp_by_number(qpn, |qp| qp.is_ended).unwrap_or(false)
    }

    /// What a QP was made for. Does not wait either.
    pub(crate) fn caps_of(&self, qpn: u32) -> Option<QpCaps> {
        self.qp_by_number(qpn, |qp| qp.created.caps)
    }

    fn qp_by_number<R>(&self, qpn: u32, of: impl FnOnce(&Qp) -> R) -> Option<R> {
        let objects = self.objects.try_lock()?;
        objects.qps.values().find(|qp| qp.created.qpn.get() == qpn).map(of)
    }

    /// The session that it belongs to.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Its objects.
    pub(super) fn objects(&self) -> &Mutex<Objects> {
        &self.objects
    }

    /// Rings a QP's doorbell. `ENOENT` if it is not one of this context, `EINVAL` if it may not
    /// send; `EIO` in a fork. When the daemon is gone, what was posted is completed as flushed by
    /// the next poll.
    #[inline]
    fn ring(&self, slot: QpSlot) -> Result<(), Errno> {
        let connection = self.session.connection();
        if !connection.process().is_this() {
            return Err(Errno::IO);
        }
        if !self.doorbells.has(slot) {
            return Err(self.qp(slot).err().map_or(Errno::INVAL, |refused| refused.errno));
        }
        connection.ring(slot.0);
        Ok(())
    }

    fn perform(&self, frame: &Frame<'_>, command: Command) -> Result<Answer, Refused> {
        match command {
            Command::GetContext => self.get_context(),
            Command::QueryDevice => Ok(Answer::device(frame, &self.query_device(self.handle()?)?)),
            Command::QueryPort { port } => {
                let request = Request::QueryPort { context: self.handle()?, port };
                let Reply::Port(attr) = self.ask(&request)? else { return Err(UNEXPECTED.into()) };
                Ok(Answer::core(&device::port(&attr)))
            }
            Command::AllocPd => {
                let request = Request::AllocPd { context: self.handle()? };
                let Reply::Pd(pd) = self.ask(&request)? else { return Err(UNEXPECTED.into()) };
                self.objects.lock().pds.insert(pd);
                Ok(Answer::core(&abi::AllocPdResp { pd_handle: pd.0 }))
            }
            Command::DeallocPd(pd) => {
                self.check_pd(pd)?;
                self.order(&Request::DeallocPd { pd })?;
                self.objects.lock().pds.remove(&pd);
                Ok(Answer::none())
            }
            Command::CreateAh { pd, av } => {
                self.check_pd(pd)?;
                let reply = self.ask(&Request::CreateAh { pd, av })?;
                let Reply::Ah { ah, ah_num } = reply else { return Err(UNEXPECTED.into()) };
                self.objects.lock().ahs.insert(ah);
                Ok(Answer::core(&abi::CreateAhResp { ah_handle: ah.0 })
                    .with_driver(&abi::RxeCreateAhResp { ah_num: ah_num.0, reserved: 0 }))
            }
            Command::DestroyAh(ah) => {
                known(self.objects.lock().ahs.contains(&ah))?;
                self.order(&Request::DestroyAh { ah })?;
                self.objects.lock().ahs.remove(&ah);
                Ok(Answer::none())
            }
            Command::RegMr(wanted) => {
                self.check_pd(wanted.pd)?;
                let (reply, registered) = memory::register(&self.session, &wanted)?;
                let Reply::Mr { mr, lkey, rkey } = reply else { return Err(UNEXPECTED.into()) };
                let it = Mr { wanted, lkey: lkey.0, _registered: registered };
                self.objects.lock().mrs.insert(mr, it);
                Ok(Answer::core(&abi::RegMrResp { mr_handle: mr.0, lkey: lkey.0, rkey: rkey.0 }))
            }
            Command::DeregMr(mr) => {
                known(self.objects.lock().mrs.contains_key(&mr))?;
                self.order(&Request::DeregMr { mr })?;
                // Now that the daemon has let go of it. Not under the lock, for it takes a while.
                let registered = self.objects.lock().mrs.remove(&mr);
                drop(registered);
                Ok(Answer::none())
            }
            Command::AllocMw { pd, mw_type } => {
                self.check_pd(pd)?;
                let reply = self.ask(&Request::AllocMw { pd, mw_type })?;
                let Reply::Mw { mw, rkey } = reply else { return Err(UNEXPECTED.into()) };
                self.objects.lock().mws.insert(mw);
                Ok(Answer::core(&abi::AllocMwResp { mw_handle: mw.0, rkey: rkey.0 }))
            }
            Command::DeallocMw(mw) => {
                known(self.objects.lock().mws.contains(&mw))?;
                self.order(&Request::DeallocMw { mw })?;
                self.objects.lock().mws.remove(&mw);
                Ok(Answer::none())
            }
            Command::CreateCompChannel => self.create_comp_channel(),
            Command::CreateCq { user_handle, cqe, comp_vector, channel } => {
                let channel = channel.map(|fd| self.channel_of(fd)).transpose()?;
                let request = Request::CreateCq {
                    context: self.handle()?,
                    cqe,
                    channel: channel.as_ref().map(|events| events.channel()),
                    user_handle,
                    comp_vector,
                };
                self.create_cq(frame, &request, user_handle, channel)
            }
            Command::ResizeCq { cq, cqe } => self.resize_cq(cq, cqe),
            Command::ReqNotifyCq { cq, solicited_only } => {
                let mut objects = self.objects.lock();
                objects.cqs.get_mut(&cq).ok_or(Errno::NOENT)?.ring.arm(solicited_only);
                own_slot::about_to_wait();
                Ok(Answer::none())
            }
            Command::DestroyCq(cq) => self.destroy_cq(cq),
            Command::CreateQp(wanted) => self.create_qp(frame, &wanted),
            Command::QueryQp(qp) => {
                let reply = self.ask(&Request::QueryQp { qp: self.qp(qp)? })?;
                let Reply::QpAttr(queried) = reply else { return Err(UNEXPECTED.into()) };
                Ok(Answer::core(&attr::queried(&queried)))
            }
            Command::ModifyQp { qp, attr } => {
                let state = attr.state;
                self.order(&Request::ModifyQp { qp: self.qp(qp)?, attr })?;
                if let Some(state) = state {
                    self.moved(qp, state);
                }
                Ok(Answer::qp_modified(frame))
            }
            Command::DestroyQp(slot) => self.destroy_qp(slot),
            Command::PostSend(slot) => {
                self.ring(slot)?;
                Ok(Answer::none())
            }
            Command::AttachMcast { qp, gid } => {
                self.order(&Request::AttachMcast { qp: self.qp(qp)?, gid })
            }
            Command::DetachMcast { qp, gid } => {
                self.order(&Request::DetachMcast { qp: self.qp(qp)?, gid })
            }
            Command::CreateSrq { pd, attr, user_handle } => {
                self.check_pd(pd)?;
                let reply = self.ask(&Request::CreateSrq { pd, attr, user_handle })?;
                let Reply::Srq { srq, srqn, attr, ring } = reply else {
                    return Err(UNEXPECTED.into());
                };
                self.ledger.open(Source::Srq(srq));
                Ok(Answer::srq(srq, srqn, attr, ring))
            }
            Command::ModifySrq { srq, max_wr, limit, ring_place } => {
                self.check_srq(srq)?;
                let reply = self.ask(&Request::ModifySrq { srq, max_wr, limit })?;
                let Reply::SrqModified { ring, .. } = reply else { return Err(UNEXPECTED.into()) };
                if let Some(ring) = ring {
                    memory::write_value(ring_place, &mm_info(ring))?;
                }
                Ok(Answer::none())
            }
            Command::QuerySrq(srq) => {
                self.check_srq(srq)?;
                let reply = self.ask(&Request::QuerySrq { srq })?;
                let Reply::SrqAttr(attr) = reply else { return Err(UNEXPECTED.into()) };
                Ok(Answer::core(&abi::QuerySrqResp {
                    max_wr: attr.max_wr,
                    max_sge: attr.max_sge,
                    srq_limit: attr.limit,
                    reserved: 0,
                }))
            }
            Command::DestroySrq(srq) => {
                self.check_srq(srq)?;
                self.order(&Request::DestroySrq { srq })?;
                let events_reported = self.ledger.close(Source::Srq(srq)).asynchronous;
                Ok(Answer::core(&abi::DestroySrqResp { events_reported }))
            }
        }
    }

    /// The first command of all, and the only one of its kind.
    fn get_context(&self) -> Result<Answer, Refused> {
        // One at a time.
        let _objects = self.objects.lock();
        if self.handle.get().is_some() {
            return Err(Errno::INVAL.into());
        }
        let Reply::Devices(devices) = self.ask(&Request::ListDevices)? else {
            return Err(UNEXPECTED.into());
        };
        let device = devices.into_iter().nth(self.device as usize).ok_or(Errno::NODEV)?;
        let request = Request::OpenDevice { name: device.name };
        let (reply, fds) = self.session.call_with_fds(&request, &[])?;
        let Reply::Context(context) = reply else { return Err(UNEXPECTED.into()) };
        let attr = self.query_device(context)?;
        let events = AsyncEvents::new(self.session.clone(), self.ledger.clone());
        let fd = give(fds, Descriptor::AsyncEvents(Arc::new(events)))?;
        let _ = self.handle.set(context);
        let num_comp_vectors = attr.num_comp_vectors;
        Ok(Answer::core(&abi::GetContextResp { async_fd: fd as u32, num_comp_vectors }))
    }

    fn query_device(&self, context: ContextHandle) -> Result<DeviceAttr, Refused> {
        let reply = self.ask(&Request::QueryDevice { context })?;
        let Reply::Device(attr) = reply else { return Err(UNEXPECTED.into()) };
        Ok(attr)
    }

    fn create_comp_channel(&self) -> Result<Answer, Refused> {
        let context = self.handle()?;
        let request = Request::CreateCompChannel { context };
        let (reply, fds) = self.session.call_with_fds(&request, &[])?;
        let Reply::CompChannel(channel) = reply else { return Err(UNEXPECTED.into()) };
        let (session, ledger) = (self.session.clone(), self.ledger.clone());
        let events = CompletionEvents::new(session, ledger, context, channel);
        let fd = give(fds, Descriptor::CompletionChannel(Arc::new(events)))?;
        Ok(Answer::core(&abi::CreateCompChannelResp { fd: fd as u32 }))
    }

    /// The completion channel that a descriptor is. `EBADF` if it is none of this context.
    fn channel_of(&self, fd: RawFd) -> Result<Arc<CompletionEvents>, Refused> {
        match DESCRIPTORS.genuine(fd) {
            Some(Descriptor::CompletionChannel(events)) if self.is(events.context()) => Ok(events),
            _ => {
                let reason =
                    format!("channel: descriptor {fd} is no completion channel of this device");
                Err(Refused::new(Errno::BADF, reason))
            }
        }
    }

    fn create_cq(
        &self,
        frame: &Frame<'_>,
        request: &Request,
        user_handle: u64,
        channel: Option<Arc<CompletionEvents>>,
    ) -> Result<Answer, Refused> {
        let Reply::Cq { cq, cqe, ring } = self.ask(request)? else { return Err(UNEXPECTED.into()) };
        let mapped = self.cq_ring(cqe, ring).inspect_err(|_| {
            let _ = self.order(&Request::DestroyCq { cq });
        });
        let entry = Cq { ring: mapped?, location: ring, cqe, user_handle, channel };
        self.ledger.open(Source::Cq(cq));
        self.objects.lock().cqs.insert(cq, entry);
        self.new_cqs.lock().push(NewCq::at(user_handle));
        Ok(Answer::cq(frame, cq, cqe, ring))
    }

    fn resize_cq(&self, cq: CqHandle, cqe: u32) -> Result<Answer, Refused> {
        // Until it is done: who arms the CQ meanwhile must not do so in the old ring.
        let mut objects = self.objects.lock();
        let entry = objects.cqs.get_mut(&cq).ok_or(Errno::NOENT)?;
        let reply = self.ask(&Request::ResizeCq { cq, cqe })?;
        let Reply::CqResized { cqe, ring } = reply else { return Err(UNEXPECTED.into()) };
        entry.ring = self.cq_ring(cqe, ring)?;
        (entry.location, entry.cqe) = (ring, cqe);
        Ok(Answer::core(&abi::ResizeCqResp { cqe, reserved: 0 }).with_driver(&mm_info(ring)))
    }

    fn cq_ring(&self, cqe: u32, ring: RingLocation) -> Result<CqConsumer, Refused> {
        let geometry = Geometry::completion(cqe).map_err(|_| UNEXPECTED)?;
        let window = self.session.connection().window(ring).map_err(|error| match error {
            WindowError::Os { .. } => Errno::NOMEM,
            WindowError::Access(_) => UNEXPECTED,
        })?;
        CqConsumer::attach(window, geometry).map_err(|_| UNEXPECTED.into())
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<Answer, Refused> {
        let entry = self.objects.lock().cqs.remove(&cq).ok_or(Errno::NOENT)?;
        self.new_cqs.lock().retain(|new| !new.is_at(entry.user_handle));
        if let Err(errno) = self.order(&Request::DestroyCq { cq }) {
            self.objects.lock().cqs.insert(cq, entry);
            return Err(errno);
        }
        let counts = self.ledger.close(Source::Cq(cq));
        // Only now, for the channel may end with it.
        drop(entry.channel);
        Ok(Answer::core(&abi::DestroyCqResp {
            comp_events_reported: counts.completion,
            async_events_reported: counts.asynchronous,
        }))
    }

    fn create_qp(&self, frame: &Frame<'_>, wanted: &NewQp) -> Result<Answer, Refused> {
        let &NewQp { pd, qp_type, send_cq, recv_cq, srq, caps, sq_sig_all, user_handle } = wanted;
        self.check_pd(pd)?;
        {
            let cqs = &self.objects.lock().cqs;
            known(cqs.contains_key(&send_cq) && cqs.contains_key(&recv_cq))?;
        }
        srq.map_or(Ok(()), |srq| self.check_srq(srq))?;
        let request =
            Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, caps, sq_sig_all, user_handle };
        let Reply::Qp(created) = self.ask(&request)? else { return Err(UNEXPECTED.into()) };
        let slot = QpSlot(created.doorbell_slot);
        self.ledger.open(Source::Qp(created.qp));
        let answer = Answer::qp(frame, &created);
        self.objects.lock().qps.insert(slot, Qp { created, send_cq, recv_cq, is_ended: false });
        Ok(answer)
    }

    fn destroy_qp(&self, slot: QpSlot) -> Result<Answer, Refused> {
        // First, for once the daemon has done it, the slot may be another QP's.
        let qp = self.objects.lock().qps.remove(&slot).ok_or(Errno::NOENT)?;
        let may_send = self.doorbells.has(slot);
        self.doorbells.remove(slot);
        let handle = qp.created.qp;
        if let Err(errno) = self.order(&Request::DestroyQp { qp: handle }) {
            self.objects.lock().qps.insert(slot, qp);
            if may_send {
                self.doorbells.install(slot);
            }
            return Err(errno);
        }
        let events_reported = self.ledger.close(Source::Qp(handle)).asynchronous;
        Ok(Answer::core(&abi::DestroyQpResp { events_reported }))
    }

    /// A QP was moved to another state.
    fn moved(&self, slot: QpSlot, state: QpState) {
        // With the lock, for a slot whose QP is destroyed meanwhile may be another QP's.
        let mut objects = self.objects.lock();
        if let Some(qp) = objects.qps.get_mut(&slot) {
            qp.is_ended = state == QpState::Err;
            self.doorbells.follow(slot, state);
        }
    }

    /// Where the program has a ring.
    #[cfg(test)]
    pub(super) fn window(&self, ring: RingLocation) -> urxe_shm::memory::region::Window {
        self.session.connection().window(ring).unwrap()
    }

    /// The daemon's name for the context. `EINVAL` before `GET_CONTEXT`.
    fn handle(&self) -> Result<ContextHandle, Refused> {
        self.handle.get().copied().ok_or_else(|| Errno::INVAL.into())
    }

    fn qp(&self, slot: QpSlot) -> Result<QpHandle, Refused> {
        self.objects
            .lock()
            .qps
            .get(&slot)
            .map(|qp| qp.created.qp)
            .ok_or_else(|| Errno::NOENT.into())
    }

    /// `ENOENT` if the PD is none of this context.
    fn check_pd(&self, pd: PdHandle) -> Result<(), Refused> {
        known(self.objects.lock().pds.contains(&pd))
    }

    /// The same of an SRQ.
    fn check_srq(&self, srq: SrqHandle) -> Result<(), Refused> {
        known(self.ledger.is_open(Source::Srq(srq)))
    }

    fn ask(&self, request: &Request) -> Result<Reply, Refused> {
        self.session.call(request)
    }

    /// Asks for something that is answered by a mere yes.
    fn order(&self, request: &Request) -> Result<Answer, Refused> {
        match self.ask(request)? {
            Reply::Done => Ok(Answer::none()),
            _ => Err(UNEXPECTED.into()),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(&context) = self.handle.get() {
            self.ledger.end();
            // A daemon that is gone has closed it already; and in a fork it is not ours.
            let _ = self.session.call(&Request::CloseDevice { context });
        }
    }
}

/// `ENOENT` if an object is none of this context.
fn known(is_known: bool) -> Result<(), Refused> {
    if is_known { Ok(()) } else { Err(Errno::NOENT.into()) }
}

/// Gives the one descriptor that came with a reply to the program.
fn give(fds: Vec<OwnedFd>, descriptor: Descriptor) -> Result<RawFd, Refused> {
    let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| UNEXPECTED)?;
    let fd = fd.into_raw_fd();
    DESCRIPTORS.insert(fd, descriptor);
    Ok(fd)
}
