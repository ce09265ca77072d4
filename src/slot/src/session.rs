//! A session: one connected program, and all that it owns.
//!
//! Nothing here is shared between sessions. A handle is looked up in the tables of the session
//! that sent it, so a handle of another session does not exist; and when the connection ends,
//! these tables say what is to be freed.

use crate::awake::Rest;
use crate::cm_pipe::CmPipe;
use crate::counters::DaemonCounters;
use crate::crowding::Sleepers;
use crate::device::SlotDevice;
use crate::history_file::HistoryWriter;
use crate::limits::{DOORBELLS_PER_TURN, MAX_PROGRAM_NAME, MAX_RING_BYTES, RECLAIM_PER_TURN};
use crate::link::ToBroker;
use crate::log::LogLimit;
use crate::objects::{Objects, PendingFree};
use crate::refusal::{Refusal, no_such, refuse};
use crate::resources::{CompChannel, Context};
use crate::taps::{self, TapRule};
use crate::unmapper::{LARGE_AT_REQUEST, Unmapper, Unmapping};
use crate::{Allotment, Runner};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use urxe_nic::{ChannelId, Memory, OwnerId};
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::closing::Closer;
use urxe_shm::control::{
    CmChannelHandle, CmReply, CmRequest, ContextHandle, ControlError, Reply, Request, RingLocation,
    WhyCopied,
};
use urxe_shm::memory::arena::{Arena, Extent};
use urxe_shm::memory::own_memory;
use urxe_shm::memory::process_memory::ProcessMemory;
use urxe_shm::memory::region::{Window, most_bytes_in_memory};
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::doorbell::{DoorbellReader, Position};
use urxe_shm::ring::geometry::Geometry;
use urxe_types::Qpn;

/// What requests are about: the slot as a session sees it.
pub(crate) struct SlotCtx {
    pub(crate) allotment: Allotment,
    pub(crate) devices: Vec<SlotDevice>,
    /// The programs, by the numbers under which the data paths have what is theirs.
    pub(crate) programs: BTreeMap<OwnerId, Program>,
    /// Which programs the taps of the data paths see.
    pub(crate) taps: Vec<TapRule>,
    /// When this turn of the event loop began.
    pub(crate) now: Instant,
    /// What is counted of sessions here.
    pub(crate) counters: DaemonCounters,
    /// Keeps what happened to QPs for when the slot has ended.
    pub(crate) history_writer: HistoryWriter,
    /// How much is said for the log.
    pub(crate) log_limit: LogLimit,
    /// What the broker is to be told.
    pub(crate) to_broker: Vec<ToBroker>,
    /// Closes what may keep whoever closes it waiting.
    pub(crate) closer: Closer,
    /// What came with messages that were not received as they were sent, until the closer has room
    /// for it: one may have many more than a request.
    pub(crate) refused: Vec<OwnedFd>,
    /// Lets go of memory that was shared with programs.
    pub(crate) unmapper: Unmapper,
}

impl SlotCtx {
    /// Whether more can be let go of without waiting for what was let go of before.
    pub(crate) fn may_let_go(&self) -> bool {
        self.refused.is_empty() && self.closer.has_room() && self.unmapper.has_room()
    }

    /// Closes what a program has sent, and what may be the last that is open of its file.
    pub(crate) fn close(&mut self, descriptor: OwnedFd) {
        match most_bytes_in_memory(&descriptor) {
            // SHARE-120: a peer or a server may be waited for.
            None => self.closer.close(descriptor),
            // SHARE-132
            Some(bytes) if bytes >= LARGE_AT_REQUEST => {
                self.unmapper.unmap(descriptor, 0);
            }
            Some(_) => drop(descriptor),
        }
    }

    /// Has closed what was refused, as far as nothing has to be waited for. Returns whether there
    /// was something.
    pub(crate) fn close_refused(&mut self) -> bool {
        let before = self.refused.len();
        while self.closer.has_room()
            && let Some(descriptor) = self.refused.pop()
        {
            self.closer.close(descriptor);
        }
        self.refused.len() < before
    }
}

/// A program that objects belong to.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its user.
    pub(crate) uid: u32,
    /// Its name and process id.
    pub(crate) name: Arc<str>,
}

/// What becomes of a request that is not refused.
pub(crate) enum Answer {
    /// It is done: a reply, and the descriptors that go with it.
    Reply { reply: Reply, fds: Vec<OwnedFd> },
    /// It has only begun: the answer is [`Reply::Done`] when nothing is left to be freed.
    WhenFreed,
    /// The broker has been asked, and its answer is the session's.
    Brokers,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        Answer::Reply { reply, fds: Vec::new() }
    }
}

/// One connected program.
pub(crate) struct Session {
    channel: Channel,
    id: OwnerId,
    program: Program,
    shared: Option<Shared>,
    process_memory: Option<Arc<ProcessMemory>>,
    /// It is the memory of the process that we are in.
    memory_is_own: bool,
    pub(crate) objects: Objects,
    /// Which QP, by its handle, is attached to which multicast group.
    pub(crate) attachments: BTreeSet<(u32, IpAddr)>,
    /// What is being freed: of a device that is being closed, or of a dead program everything.
    pending_frees: Vec<PendingFree>,
    /// What was unmapped last of all that its program waits for.
    unmapping: Option<Unmapping>,
    /// The program is gone.
    is_over: bool,
    /// A request that waits until all doorbells are taken that were rung before it: up to here.
    request_after: Option<Position>,
    held_request: Option<(Request, Vec<OwnedFd>)>,
    pub(crate) mapped: Mapped,
    /// Pipes of its event channels of the connection manager, by their handles.
    cm_pipes: BTreeMap<u32, CmPipe>,
    /// What it waits for, if the broker has not answered yet.
    asked: Option<Asked>,
    /// The multicast group that it was asked for last, until the request is handled again.
    asked_to_join: Option<IpAddr>,
}

/// What the broker has been asked, as far as its answer changes something here.
enum Asked {
    /// For a channel, with both ends of its pipe.
    CreateChannel(CmPipe, OwnedFd),
    DestroyChannel(CmChannelHandle),
    /// For a multicast group, to do this then.
    Join(Request),
    Other,
}

/// How much of a program's memory is mapped into the daemon.
#[derive(Default)]
pub(crate) struct Mapped {
    pub(crate) bytes: u64,
    /// Registrations that are mapped.
    pub(crate) mrs: usize,
}

/// What a session shares with its program from the beginning.
pub(crate) struct Shared {
    /// Memory for rings and doorbells.
    arena: Arena,
    /// Rings that were left for others, until the program knows.
    retired: Vec<Extent>,
    /// The program is gone and nothing uses a ring: all memory is given back, or was.
    is_emptying: bool,
    is_empty: bool,
    /// Tells the program's threads that sleep between polls.
    notifier: CompletionNotifier,
    doorbell_reader: DoorbellReader,
    /// Which QP each doorbell is of; device and number.
    doorbells: Vec<Option<(usize, Qpn)>>,
    /// Doorbells that were given back.
    spare_doorbells: Vec<u32>,
    /// The program writes here when the daemon sleeps.
    wake: OwnedFd,
}

impl Session {
    /// A session for a program that has just connected, under a number that no other ever had.
    pub(crate) fn new(socket: OwnedFd, id: OwnerId, uid: u32, pid: u32) -> Session {
        Session {
            channel: Channel::new(socket),
            id,
            program: Program { uid, name: format!("[{pid}]").into() },
            shared: None,
            process_memory: None,
            memory_is_own: false,
            objects: Objects::default(),
            attachments: BTreeSet::new(),
            pending_frees: Vec::new(),
            unmapping: None,
            is_over: false,
            request_after: None,
            held_request: None,
            mapped: Mapped::default(),
            cm_pipes: BTreeMap::new(),
            asked: None,
            asked_to_join: None,
        }
    }

    /// Receives one request.
    pub(crate) fn receive(&mut self) -> Result<(Request, Vec<OwnedFd>), ChannelError> {
        self.held_request.take().map_or_else(|| self.channel.recv(), Ok)
    }

    /// The descriptors that came with what was no request, to be closed where that may take its
    /// time.
    pub(crate) fn take_refused(&mut self) -> Vec<OwnedFd> {
        self.channel.take_refused()
    }

    /// Has a request received again the next time.
    pub(crate) fn hold_request(&mut self, request: Request, fds: Vec<OwnedFd>) {
        self.held_request = Some((request, fds));
    }

    /// Sends a reply.
    pub(crate) fn reply(&mut self, reply: &Reply, fds: &[OwnedFd]) -> Result<(), ChannelError> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.channel.send(reply, &fds)
    }

    /// Gives the program what it shares with the daemon from now on.
    pub(crate) fn hello(
        &mut self,
        ctx: &mut SlotCtx,
        program: &str,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, ControlError> {
        // HOST-025
        if self.shared.is_some() {
            return Err(refuse(Errno::PROTO, "Hello was said before"));
        }
        if fds.len() > 1 {
            let sentence = format!("Hello came with {} descriptors, expected 1 at most", fds.len());
            return Err(refuse(Errno::PROTO, sentence));
        }
        let process_memory = match fds.first() {
            Some(fd) => {
                // SHARE-132: what is refused is not closed for the last time here.
                let fd = fd.try_clone().or_refuse(Errno::MFILE, "Hello")?;
                let memory = ProcessMemory::accept(fd).or_refuse(Errno::INVAL, "Hello")?;
                Some(Arc::new(memory))
            }
            None => None,
        };
        fds.clear();
        let shared = Shared::new()?;
        let wake = rustix::io::fcntl_dupfd_cloexec(&shared.wake, 0);
        let wake = wake.or_refuse(Errno::MFILE, "wake-up descriptor")?;
        let memfd = rustix::io::fcntl_dupfd_cloexec(shared.arena.fd(), 0);
        let memfd = memfd.or_refuse(Errno::MFILE, "memory descriptor")?;
        let memory_limit = shared.arena.limit();

        let name: String = program
            .chars()
            .filter(|c| !c.is_control())
            .scan(0, |len, c| {
                *len += c.len_utf8();
                (*len <= MAX_PROGRAM_NAME).then_some(c)
            })
            .collect();
        self.program.name = format!("{name}{}", self.program.name).into();
        ctx.programs.insert(self.id, self.program.clone());
        taps::admit(ctx, self.id, &self.program);
        let name = self.program.name.to_string();
        ctx.to_broker.push(ToBroker::Named { session: self.id.0, name });
        self.shared = Some(shared);
        // OWN-020: what tells this process's memory from that of a fork of it is the memory itself.
        self.memory_is_own = ctx.allotment.runner == Runner::Program
            && process_memory.as_ref().is_some_and(|memory| memory.is_own())
            && own_memory::prepare();
        self.process_memory = process_memory;
        Ok(Answer::Reply { reply: Reply::Hello { memory_limit }, fds: vec![memfd, wake] })
    }

    /// Under which number the data paths have what is of this session.
    pub(crate) fn id(&self) -> OwnerId {
        self.id
    }

    /// The user of its program.
    pub(crate) fn uid(&self) -> u32 {
        self.program.uid
    }

    /// Its memory, if it has passed it.
    pub(crate) fn process_memory(&self) -> Option<&Arc<ProcessMemory>> {
        self.process_memory.as_ref()
    }

    /// The memory at an address of the program's, which has passed it, and says why it does not
    /// share it.
    pub(crate) fn memory_at(&self, addr: u64, why: WhyCopied) -> Option<Memory> {
        let memory = self.process_memory.as_ref()?;
        Some(match self.memory_is_own {
            true => Memory::Own { addr },
            false => Memory::Process { memory: Arc::clone(memory), addr, why },
        })
    }

    /// Whether all of its memory is reached by loads and stores.
    pub(crate) fn memory_needs_no_descriptor(&self) -> bool {
        self.memory_is_own || self.process_memory.is_none()
    }

    /// Whether an event channel of a device is of this session.
    pub(crate) fn has_channel(&self, device: usize, channel: ChannelId) -> bool {
        let mut contexts = self.objects.all::<Context>().values();
        let mut channels = self.objects.all::<CompChannel>().values();
        contexts.any(|context| context.device == device && context.async_events == channel)
            || channels.any(|found| found.device == device && found.id == channel)
    }

    /// Whether the program is root's.
    pub(crate) fn is_root(&self) -> bool {
        self.program.uid == 0
    }

    /// Asks the broker what is not this slot's to answer. Until it has answered, the session waits.
    pub(crate) fn ask_broker(
        &mut self,
        ctx: &mut SlotCtx,
        request: Request,
    ) -> Result<Answer, ControlError> {
        let asked = match &request {
            Request::Cm(request) | Request::CmWithin { request, .. } => match *request {
                // SLOT-005: before the broker has a channel, the pipe is there.
                CmRequest::CreateChannel => {
                    let pipe = CmPipe::new().or_refuse(Errno::MFILE, "event channel")?;
                    let (pipe, read_end) = pipe;
                    Asked::CreateChannel(pipe, read_end)
                }
                CmRequest::DestroyChannel { channel } => Asked::DestroyChannel(channel),
                _ => Asked::Other,
            },
            _ => Asked::Other,
        };
        self.asked = Some(asked);
        ctx.to_broker.push(ToBroker::Request { session: self.id.0, request });
        Ok(Answer::Brokers)
    }

    /// Asks the broker for a slot that the program runs itself.
    pub(crate) fn ask_for_slot(
        &mut self,
        ctx: &mut SlotCtx,
        fds: &[OwnedFd],
    ) -> Result<Answer, ControlError> {
        // OWN-001
        if self.shared.is_some() || !fds.is_empty() {
            let sentence = "a slot is asked for by the first request of a connection, and with no \
                            descriptors";
            return Err(refuse(Errno::PROTO, sentence));
        }
        self.ask_broker(ctx, Request::HostSlot)
    }

    /// Asks the broker for a multicast group that this process may not join; a QP is attached then.
    pub(crate) fn ask_to_join(
        &mut self,
        ctx: &mut SlotCtx,
        device: usize,
        group: IpAddr,
        then: Request,
    ) -> Answer {
        (self.asked, self.asked_to_join) = (Some(Asked::Join(then)), Some(group));
        ctx.to_broker.push(ToBroker::Join { session: self.id.0, device, group });
        Answer::Brokers
    }

    /// Whether the broker has been asked for this multicast group just now.
    pub(crate) fn has_asked_to_join(&mut self, group: IpAddr) -> bool {
        self.asked_to_join.take() == Some(group)
    }

    /// Whether the session waits for the broker.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Makes the broker's answer, with what came along, the session's; `None` if nothing was asked,
    /// or a request is to be handled again.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Reply, ControlError>,
        mut fds: Vec<OwnedFd>,
    ) -> Option<Result<Answer, ControlError>> {
        let asked = self.asked.take()?;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => {
                self.asked_to_join = None;
                return Some(Err(error));
            }
        };
        match (asked, &reply) {
            (Asked::Join(then), _) => {
                self.hold_request(then, Vec::new());
                return None;
            }
            (Asked::CreateChannel(pipe, read_end), Reply::Cm(CmReply::Channel(channel))) => {
                self.cm_pipes.insert(channel.0, pipe);
                fds.push(read_end);
            }
            (Asked::DestroyChannel(channel), Reply::Done) => {
                self.cm_pipes.remove(&channel.0);
            }
            _ => {}
        }
        Some(Ok(Answer::Reply { reply, fds }))
    }

    /// Shows the program whether events wait in a channel of the connection manager.
    pub(crate) fn show_cm_events(&self, channel: u32, waiting: bool) {
        if let Some(pipe) = self.cm_pipes.get(&channel) {
            pipe.show(waiting);
        }
    }

    /// What is shared with the program; there since Hello.
    pub(crate) fn shared(&mut self) -> Result<&mut Shared, ControlError> {
        self.shared.as_mut().ok_or_else(|| refuse(Errno::PROTO, "the first request must be Hello"))
    }

    /// Begins to close a device.
    pub(crate) fn begin_closing(&mut self, context: ContextHandle) -> Result<(), ControlError> {
        if !self.objects.all::<Context>().contains_key(&context.0) {
            return Err(no_such("context", context.0));
        }
        // HOST-026
        self.pending_frees = self.objects.of_context(Some(context));
        Ok(())
    }

    /// Begins to free everything: the program is gone.
    pub(crate) fn begin_teardown(&mut self) {
        self.pending_frees = self.objects.of_context(None);
        self.unmapping = None;
        self.is_over = true;
    }

    /// Has a program that is there answered only when this is over: by then it may count on its
    /// memory being its own.
    pub(crate) fn await_unmapping(&mut self, unmapping: Unmapping) {
        if !self.is_over {
            self.unmapping = Some(unmapping);
        }
    }

    /// Whether nothing can be done but to wait until something is unmapped.
    pub(crate) fn is_unmapping(&self) -> bool {
        self.pending_frees.is_empty()
            && self.unmapping.as_ref().is_some_and(|unmapping| !unmapping.is_over())
    }

    /// Whether there is something left to be freed. Nothing else can free it meanwhile: requests
    /// wait until the end.
    pub(crate) fn is_ending(&self) -> bool {
        let has_pages = |shared: &Shared| !shared.is_empty;
        let is_left = self.is_over && self.shared.as_ref().is_some_and(has_pages);
        !self.pending_frees.is_empty() || self.unmapping.is_some() || is_left
    }

    /// Frees up to `count` of the objects that are to be freed: in slices, so that the end of many
    /// is not noticed by others.
    pub(crate) fn free_some(&mut self, ctx: &mut SlotCtx, count: usize) {
        self.unmapping.take_if(|unmapping| unmapping.is_over());
        for _ in 0..count {
            // SHARE-122
            if !ctx.unmapper.has_room() {
                return;
            }
            match self.pending_frees.pop() {
                Some(object) => object.free(self, ctx),
                None if self.is_over => return self.free_memory(),
                None => return,
            }
        }
    }

    /// The end of it, when all is freed. With its socket goes what the program has sent and nobody
    /// has received, such as sockets that linger; with its memory what the program has put there
    /// meanwhile, or behind its end.
    pub(crate) fn close(self, ctx: &mut SlotCtx) {
        let held = self.held_request.into_iter().flat_map(|(_, fds)| fds);
        held.chain([self.channel.into()]).for_each(|descriptor| ctx.closer.close(descriptor));
        // SHARE-131
        self.shared.into_iter().for_each(|shared| drop(ctx.unmapper.unmap(shared, 0)));
    }

    /// Gives back some of the memory that was shared with a program that is gone: the last to let
    /// go of it would do all of it at once.
    fn free_memory(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        if !std::mem::replace(&mut shared.is_emptying, true) {
            shared.arena.free_all();
        }
        shared.arena.reclaim(RECLAIM_PER_TURN);
        shared.is_empty = !shared.arena.has_freed();
    }

    /// Gives back some of the pages of rings that were freed. Returns whether there are more: then
    /// the next request is to wait.
    pub(crate) fn reclaim_rings(&mut self) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.arena.reclaim(RECLAIM_PER_TURN);
        shared.arena.has_freed()
    }

    /// Gives back the rings that were left for others, for the next request has come, and the
    /// program knows. Returns whether there were any.
    pub(crate) fn free_retired_rings(&mut self) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.retired.drain(..).for_each(|extent| shared.arena.free(extent));
        shared.arena.has_freed()
    }

    /// Calls `rung` with the device and number of QPs whose doorbells were rung: of so many as a
    /// session may have rung in one turn.
    pub(crate) fn take_doorbells(&self, mut rung: impl FnMut(usize, Qpn)) {
        let Some(shared) = &self.shared else { return };
        shared.doorbell_reader.take(DOORBELLS_PER_TURN, |slot| {
            // HOST-009
            if let Some(&Some((device, qpn))) = shared.doorbells.get(slot as usize) {
                rung(device, qpn);
            }
        });
    }

    /// Takes doorbells because a request has come. Returns whether all are taken that were rung
    /// before it; if not, the request is to be [held](Self::hold_request).
    pub(crate) fn take_doorbells_before_request(&mut self, rung: impl FnMut(usize, Qpn)) -> bool {
        let Some(shared) = &self.shared else { return true };
        let end = self.request_after.unwrap_or_else(|| shared.doorbell_reader.after_a_round());
        self.take_doorbells(rung);
        let has_reached = |shared: &Shared| shared.doorbell_reader.has_reached(end);
        let all_are_taken = self.shared.as_ref().is_none_or(has_reached);
        self.request_after = (!all_are_taken).then_some(end);
        all_are_taken
    }

    /// The descriptor that wakes the daemon.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|shared| shared.wake.as_fd())
    }

    /// Tells the program's threads that poll whether to sleep.
    pub(crate) fn set_crowded(&self, crowded: bool) {
        if let Some(shared) = &self.shared {
            shared.notifier.set_crowded(crowded);
        }
    }

    /// Wakes the program's threads that sleep between polls.
    pub(crate) fn wake(&self, sleepers: Sleepers) {
        let Some(shared) = &self.shared else { return };
        match sleepers {
            Sleepers::OfPublished => shared.notifier.wake_for_published(),
            Sleepers::All => shared.notifier.wake_sleepers(),
        }
    }
}

impl Rest for Session {
    fn fall_asleep(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.doorbell_reader.fall_asleep())
    }

    fn wake_up(&self) {
        if let Some(shared) = &self.shared {
            shared.doorbell_reader.wake_up();
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Shared {
    fn new() -> Result<Shared, ControlError> {
        let arena = Arena::new(MAX_RING_BYTES).or_refuse(Errno::NOMEM, "session memory")?;
        let page = || Arc::clone(arena.doorbells());
        let doorbell_reader = DoorbellReader::new(page()).or_refuse(Errno::NOMEM, "doorbells")?;
        let notifier =
            CompletionNotifier::new(page()).or_refuse(Errno::NOMEM, "completion notifier")?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.or_refuse(Errno::MFILE, "wake-up descriptor")?;
        Ok(Shared {
            arena,
            retired: Vec::new(),
            is_emptying: false,
            is_empty: false,
            notifier,
            doorbell_reader,
            doorbells: Vec::new(),
            spare_doorbells: Vec::new(),
            wake,
        })
    }

    /// Tells the program's threads that sleep between polls.
    pub(crate) fn notifier(&self) -> CompletionNotifier {
        self.notifier.clone()
    }

    /// Finds room for a ring.
    pub(crate) fn alloc_ring(
        &mut self,
        what: &str,
        shape: &Geometry,
    ) -> Result<(Extent, Window), ControlError> {
        self.arena.alloc(shape.size().into()).or_refuse(Errno::NOMEM, what)
    }

    /// Gives a ring's room back.
    pub(crate) fn free_ring(&mut self, extent: Extent) {
        self.arena.free(extent);
    }

    /// Gives back the room of a ring that the program still believes in: when its next request
    /// comes, for by then it has seen the answer to this one.
    pub(crate) fn retire_ring(&mut self, extent: Extent) {
        self.retired.push(extent);
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

/// Where a program finds a ring.
pub(crate) fn location(extent: Extent, shape: &Geometry) -> RingLocation {
    RingLocation { offset: extent.offset, size: shape.size() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::ring::doorbell::DoorbellWriter;

    /// SHARE-002
    #[test]
    fn a_request_is_answered_after_the_doorbells_that_were_rung_before_it() {
        const QPS: u32 = 4 * DOORBELLS_PER_TURN;
        let (socket, _program) = Channel::pair_with_program().unwrap();
        let mut session = Session::new(socket, OwnerId(1), 0, 0);
        let mut shared = Shared::new().unwrap();
        let doorbells = DoorbellWriter::new(Arc::clone(shared.arena.doorbells())).unwrap();
        for number in 0..QPS {
            shared.install_doorbell(0, Qpn::new(number));
        }
        session.shared = Some(shared);
        let ring_all = || (0..QPS).for_each(|slot| assert!(!doorbells.ring(slot)));
        // The request comes while the doorbells are gone through.
        ring_all();
        session.take_doorbells(|_, _| ());
        ring_all();
        let (mut taken, mut turns) = (BTreeSet::new(), 1);
        while !session.take_doorbells_before_request(|_, qpn| _ = taken.insert(qpn)) {
            // What is rung later keeps it waiting no longer.
            ring_all();
            turns += 1;
            assert!(turns < 10);
        }
        assert!(turns > 1, "one turn has no room for all");
        assert_eq!(taken.len(), QPS as usize);
        assert_eq!(session.request_after, None, "the next begins anew");
    }
}
