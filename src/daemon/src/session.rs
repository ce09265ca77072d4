//! A session: one connected program, and all that it owns.
//!
//! Nothing here is shared between sessions. A handle is looked up in the tables of the session
//! that sent it, so a handle of another session does not exist; and when the connection ends,
//! these tables say what is to be freed.

use crate::cm::Cm;
use crate::counters::DaemonCounters;
use crate::device::RdmaDevice;
use crate::limits::MAX_PROGRAM_NAME;
use crate::resources::{
    Ah, ArenaRings, CompChannel, Context, Cq, Mr, MrRequest, Mw, Pd, PendingFree, Qp, QpRequest,
    Refusal, Srq, refuse,
};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;
use urxe_nic::objects::Owner;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{ControlError, Reply, Request};
use urxe_shm::memory::process_memory::ProcessMemory;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::doorbell::DoorbellReader;
use urxe_types::Qpn;

/// What requests are about: the daemon as a session sees it.
pub(crate) struct DaemonCtx<'a> {
    pub(crate) devices: &'a mut [RdmaDevice],
    /// The connection manager.
    pub(crate) cm: &'a mut Cm,
    pub(crate) now: Instant,
    /// The daemon's own counters.
    pub(crate) counters: &'a DaemonCounters,
}

/// A reply, and the descriptors that go with it.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) fds: Vec<OwnedFd>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        Answer { reply, fds: Vec::new() }
    }
}

/// One connected program.
pub(crate) struct Session {
    channel: Channel,
    uid: u32,
    /// The program's name and process id.
    program: Rc<str>,
    pub(crate) shared: Option<Shared>,
    pub(crate) process_memory: Option<Rc<ProcessMemory>>,
    next_handle: u32,
    pub(crate) contexts: BTreeMap<u32, Context>,
    pub(crate) pds: BTreeMap<u32, Pd>,
    pub(crate) mrs: BTreeMap<u32, Mr>,
    pub(crate) channels: BTreeMap<u32, CompChannel>,
    pub(crate) cqs: BTreeMap<u32, Cq>,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) srqs: BTreeMap<u32, Srq>,
    pub(crate) ahs: BTreeMap<u32, Ah>,
    pub(crate) mws: BTreeMap<u32, Mw>,
    /// Which QP, by its handle, is attached to which multicast group.
    pub(crate) attachments: BTreeSet<(u32, IpAddr)>,
    /// Event channels of the connection manager, by their keys there.
    pub(crate) cm_channels: BTreeMap<u32, u32>,
    /// Its ids.
    pub(crate) cm_ids: BTreeMap<u32, u32>,
    /// Memberships of ids in multicast groups.
    pub(crate) cm_memberships: BTreeMap<u32, u32>,
    /// What is being freed: of a device that is being closed, or of a dead program everything.
    pub(crate) pending_frees: Vec<PendingFree>,
    /// Bytes of program memory mapped into the daemon.
    pub(crate) mapped_bytes: u64,
    /// Registrations that are mapped.
    pub(crate) mapped_mrs: usize,
}

/// What a session shares with its program from the beginning.
pub(crate) struct Shared {
    pub(crate) rings: ArenaRings,
    /// Tells the program's threads that sleep between polls.
    pub(crate) notifier: CompletionNotifier,
    doorbell_reader: DoorbellReader,
    /// Which QP each doorbell is of; device and number.
    doorbells: Vec<Option<(usize, Qpn)>>,
    /// Doorbells that were given back.
    spare_doorbells: Vec<u32>,
    /// The program writes here when the daemon sleeps.
    wake: OwnedFd,
}

impl Session {
    /// A session for whoever has just connected.
    pub(crate) fn new(channel: Channel) -> std::io::Result<Session> {
        let peer = channel.peer()?;
        Ok(Session {
            channel,
            uid: peer.uid.as_raw(),
            program: format!("[{}]", peer.pid.as_raw_pid()).into(),
            shared: None,
            process_memory: None,
            next_handle: 1,
            contexts: BTreeMap::new(),
            pds: BTreeMap::new(),
            mrs: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            ahs: BTreeMap::new(),
            mws: BTreeMap::new(),
            attachments: BTreeSet::new(),
            cm_channels: BTreeMap::new(),
            cm_ids: BTreeMap::new(),
            cm_memberships: BTreeMap::new(),
            pending_frees: Vec::new(),
            mapped_bytes: 0,
            mapped_mrs: 0,
        })
    }

    /// Receives one request.
    pub(crate) fn receive(&mut self) -> Result<(Request, Vec<OwnedFd>), ChannelError> {
        self.channel.recv()
    }

    /// Sends an answer.
    pub(crate) fn answer(&mut self, answer: &Answer) -> Result<(), ChannelError> {
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
        self.channel.send(&answer.reply, &fds)
    }

    /// Does what a request asks for. If it fails, nothing has changed. `None`: it has only begun;
    /// the answer is [`Reply::Done`] when [`is_ending`](Self::is_ending) says no more.
    pub(crate) fn handle(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        request: Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, ControlError> {
        if let Request::Hello { program } = request {
            return self.hello(&program, fds).map(Some);
        }
        // HOST-025
        if self.shared.is_none() {
            return Err(refuse(Errno::PROTO, "the first request must be Hello"));
        }
        self.shared()?.rings.free_retired();
        let memory = match request {
            Request::RegMr { .. } => fds.pop(),
            _ => None,
        };
        // HOST-016
        if !fds.is_empty() {
            let sentence = format!("{} descriptors came with a request that takes none", fds.len());
            return Err(refuse(Errno::PROTO, sentence));
        }
        let answer = match request {
            Request::Hello { .. } => unreachable!("answered above"),
            Request::ListDevices => Ok(self.list_devices(ctx)),
            Request::ListCauses => Ok(self.list_causes()),
            Request::OpenDevice { name } => self.open_device(ctx, &name),
            Request::CloseDevice { context } => return self.begin_closing(context).map(|()| None),
            Request::QueryDevice { context } => self.query_device(ctx, context),
            Request::QueryPort { context, port } => self.query_port(ctx, context, port),
            Request::QueryGid { context, port, index } => self.query_gid(ctx, context, port, index),
            Request::AllocPd { context } => self.alloc_pd(ctx, context),
            Request::DeallocPd { pd } => self.dealloc_pd(ctx, pd),
            Request::RegMr { pd, addr, length, iova, access, backing } => {
                let spec = MrRequest { addr, length, iova, access, backing };
                self.reg_mr(ctx, pd, spec, memory)
            }
            Request::DeregMr { mr } => self.dereg_mr(ctx, mr),
            Request::CreateCompChannel { context } => self.create_comp_channel(ctx, context),
            Request::DestroyCompChannel { channel } => self.destroy_comp_channel(ctx, channel),
            Request::CreateCq { context, cqe, channel, user_handle, comp_vector } => {
                self.create_cq(ctx, context, cqe, channel, user_handle, comp_vector)
            }
            Request::ResizeCq { cq, cqe } => self.resize_cq(ctx, cq, cqe),
            Request::DestroyCq { cq } => self.destroy_cq(ctx, cq),
            Request::CreateQp {
                pd,
                qp_type,
                send_cq,
                recv_cq,
                srq,
                caps,
                sq_sig_all,
                user_handle,
            } => {
                let cqs = (send_cq, recv_cq);
                let wanted = QpRequest { qp_type, cqs, srq, caps, sq_sig_all, user_handle };
                self.create_qp(ctx, pd, &wanted)
            }
            Request::ModifyQp { qp, attr } => self.modify_qp(ctx, qp, &attr),
            Request::QueryQp { qp } => self.query_qp(ctx, qp),
            Request::DestroyQp { qp } => self.destroy_qp(ctx, qp),
            Request::CreateSrq { pd, attr, user_handle } => {
                self.create_srq(ctx, pd, attr, user_handle)
            }
            Request::ModifySrq { srq, max_wr, limit } => self.modify_srq(ctx, srq, max_wr, limit),
            Request::QuerySrq { srq } => self.query_srq(ctx, srq),
            Request::DestroySrq { srq } => self.destroy_srq(ctx, srq),
            Request::CreateAh { pd, av } => self.create_ah(ctx, pd, &av),
            Request::DestroyAh { ah } => self.destroy_ah(ctx, ah),
            Request::AllocMw { pd, mw_type } => self.alloc_mw(ctx, pd, mw_type),
            Request::DeallocMw { mw } => self.dealloc_mw(ctx, mw),
            Request::AttachMcast { qp, gid } => self.attach_mcast(ctx, qp, gid),
            Request::DetachMcast { qp, gid } => self.detach_mcast(ctx, qp, gid),
            Request::Resources { device, kind, after } => {
                self.list_resources(ctx, &device, kind, after)
            }
            Request::Stats { device, after_qpn } => self.stats(ctx, &device, after_qpn),
            Request::Cm(request) => return self.handle_cm(ctx, request),
            Request::CmWithin { channel, request } => {
                self.check_within(ctx, channel, &request)?;
                return self.handle_cm(ctx, request);
            }
        };
        answer.map(Some)
    }

    fn hello(&mut self, program: &str, mut fds: Vec<OwnedFd>) -> Result<Answer, ControlError> {
        // HOST-025
        if self.shared.is_some() {
            return Err(refuse(Errno::PROTO, "Hello was said before"));
        }
        if fds.len() > 1 {
            let sentence = format!("Hello came with {} descriptors, expected 1 at most", fds.len());
            return Err(refuse(Errno::PROTO, sentence));
        }
        let process_memory = match fds.pop() {
            Some(fd) => {
                let memory = ProcessMemory::accept(fd).or_refuse(Errno::INVAL, "Hello")?;
                Some(Rc::new(memory))
            }
            None => None,
        };
        let shared = Shared::new()?;
        let wake = rustix::io::fcntl_dupfd_cloexec(&shared.wake, 0);
        let wake = wake.or_refuse(Errno::MFILE, "wake-up descriptor")?;
        let memfd = rustix::io::fcntl_dupfd_cloexec(shared.rings.fd(), 0);
        let memfd = memfd.or_refuse(Errno::MFILE, "memory descriptor")?;
        let memory_limit = shared.rings.limit();

        let name: String = program
            .chars()
            .filter(|c| !c.is_control())
            .scan(0, |len, c| {
                *len += c.len_utf8();
                (*len <= MAX_PROGRAM_NAME).then_some(c)
            })
            .collect();
        self.program = format!("{name}{}", self.program).into();
        self.shared = Some(shared);
        self.process_memory = process_memory;
        Ok(Answer { reply: Reply::Hello { memory_limit }, fds: vec![memfd, wake] })
    }

    /// Whose the objects of this session are.
    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.uid, program: Rc::clone(&self.program) }
    }

    /// Whether an event pipe of a device is of this session.
    pub(crate) fn has_pipe(&self, device: usize, pipe: u32) -> bool {
        let is_async = |context: &Context| context.device == device && context.async_events == pipe;
        let is_channel = |channel: &CompChannel| channel.device == device && channel.pipe == pipe;
        self.contexts.values().any(is_async) || self.channels.values().any(is_channel)
    }

    /// Whether the program is root's.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether this session may see another's object.
    pub(crate) fn may_see(&self, owner: &Owner) -> bool {
        let is_privileged = self.uid == 0 || self.uid == rustix::process::geteuid().as_raw();
        is_privileged || self.uid == owner.uid
    }

    /// A number that no object of this session ever had.
    pub(crate) fn new_handle(&mut self) -> Result<u32, ControlError> {
        let handle = self.next_handle;
        // HOST-014
        self.next_handle = handle
            .checked_add(1)
            .ok_or_else(|| refuse(Errno::NOMEM, "this session has used up all handles"))?;
        Ok(handle)
    }

    /// What is shared with the program; there since Hello.
    pub(crate) fn shared(&mut self) -> Result<&mut Shared, ControlError> {
        self.shared.as_mut().ok_or_else(|| refuse(Errno::PROTO, "the first request must be Hello"))
    }

    /// Calls `rung` with the device and number of each QP whose doorbell was rung.
    pub(crate) fn take_doorbells(&self, mut rung: impl FnMut(usize, Qpn)) {
        let Some(shared) = &self.shared else { return };
        shared.doorbell_reader.take(|slot| {
            // HOST-009
            if let Some(&Some((device, qpn))) = shared.doorbells.get(slot as usize) {
                rung(device, qpn);
            }
        });
    }

    /// Tells the program that the daemon is about to sleep; `false` if it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.doorbell_reader.fall_asleep())
    }

    /// Tells the program that the daemon is awake.
    pub(crate) fn wake_up(&self) {
        if let Some(shared) = &self.shared {
            shared.doorbell_reader.wake_up();
        }
    }

    /// The descriptor that wakes the daemon.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|shared| shared.wake.as_fd())
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Shared {
    fn new() -> Result<Shared, ControlError> {
        let rings = ArenaRings::new()?;
        let doorbell_reader =
            DoorbellReader::new(rings.doorbells()).or_refuse(Errno::NOMEM, "doorbells")?;
        let notifier = CompletionNotifier::new(rings.doorbells())
            .or_refuse(Errno::NOMEM, "completion notifier")?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.or_refuse(Errno::MFILE, "wake-up descriptor")?;
        Ok(Shared {
            rings,
            notifier,
            doorbell_reader,
            doorbells: Vec::new(),
            spare_doorbells: Vec::new(),
            wake,
        })
    }

    /// Gives a QP a doorbell.
    pub(crate) fn install_doorbell(&mut self, device: usize, qpn: Qpn) -> u32 {
        let slot = self.spare_doorbells.pop().unwrap_or_else(|| {
            self.doorbells.push(None);
            let slots = self.doorbells.len() as u32;
            self.doorbell_reader.set_slots(slots);
            slots - 1
        });
        self.doorbells[slot as usize] = Some((device, qpn));
        slot
    }

    /// Takes a QP's doorbell away.
    pub(crate) fn remove_doorbell(&mut self, slot: u32) {
        if let Some(doorbell) = self.doorbells.get_mut(slot as usize)
            && doorbell.take().is_some()
        {
            self.spare_doorbells.push(slot);
        }
    }
}
