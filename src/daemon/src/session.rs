//! A session: one connected program, and all that it owns.
//!
//! Nothing here is shared between sessions. A handle is looked up in the tables of the session
//! that sent it, so a handle of another session does not exist; and when the connection ends,
//! these tables say what is to be freed.

use crate::cm::Cm;
use crate::counters::DaemonCounters;
use crate::device::RdmaDevice;
use crate::limits::{MAX_PROGRAM_NAME, MAX_RING_BYTES};
use crate::objects::{Objects, PendingFree};
use crate::resources::{CompChannel, Context, Refusal, no_such, refuse};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use urxe_nic::{ChannelId, OwnerId};
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{ContextHandle, ControlError, Reply, Request, RingLocation};
use urxe_shm::memory::arena::{Arena, Extent};
use urxe_shm::memory::process_memory::ProcessMemory;
use urxe_shm::memory::region::Window;
use urxe_shm::ring::completion_notifier::CompletionNotifier;
use urxe_shm::ring::doorbell::DoorbellReader;
use urxe_shm::ring::geometry::Geometry;
use urxe_types::Qpn;

/// What requests are about: the daemon as a session sees it.
pub(crate) struct DaemonCtx {
    pub(crate) devices: Vec<RdmaDevice>,
    /// The connection manager.
    pub(crate) cm: Cm,
    /// The programs, by the numbers under which the data paths have what is theirs.
    pub(crate) programs: BTreeMap<OwnerId, Program>,
    /// When this turn of the event loop began.
    pub(crate) now: Instant,
    /// The daemon's own counters.
    pub(crate) counters: DaemonCounters,
}

/// A program that objects belong to.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its user.
    pub(crate) uid: u32,
    /// Its name and process id.
    pub(crate) name: Rc<str>,
}

/// What becomes of a request that is not refused.
pub(crate) enum Answer {
    /// It is done: a reply, and the descriptors that go with it.
    Reply { reply: Reply, fds: Vec<OwnedFd> },
    /// It has only begun: the answer is [`Reply::Done`] when nothing is left to be freed.
    WhenFreed,
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
    process_memory: Option<Rc<ProcessMemory>>,
    pub(crate) objects: Objects,
    /// Which QP, by its handle, is attached to which multicast group.
    pub(crate) attachments: BTreeSet<(u32, IpAddr)>,
    /// What is being freed: of a device that is being closed, or of a dead program everything.
    pending_frees: Vec<PendingFree>,
    pub(crate) mapped: Mapped,
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
    pub(crate) fn new(channel: Channel, id: OwnerId) -> std::io::Result<Session> {
        let peer = channel.peer()?;
        let name = format!("[{}]", peer.pid.as_raw_pid()).into();
        Ok(Session {
            channel,
            id,
            program: Program { uid: peer.uid.as_raw(), name },
            shared: None,
            process_memory: None,
            objects: Objects::default(),
            attachments: BTreeSet::new(),
            pending_frees: Vec::new(),
            mapped: Mapped::default(),
        })
    }

    /// Receives one request.
    pub(crate) fn receive(&mut self) -> Result<(Request, Vec<OwnedFd>), ChannelError> {
        self.channel.recv()
    }

    /// Sends a reply.
    pub(crate) fn reply(&mut self, reply: &Reply, fds: &[OwnedFd]) -> Result<(), ChannelError> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.channel.send(reply, &fds)
    }

    /// Gives the program what it shares with the daemon from now on.
    pub(crate) fn hello(
        &mut self,
        ctx: &mut DaemonCtx,
        program: &str,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, ControlError> {
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
        self.shared = Some(shared);
        self.process_memory = process_memory;
        Ok(Answer::Reply { reply: Reply::Hello { memory_limit }, fds: vec![memfd, wake] })
    }

    /// Under which number the data paths have what is of this session.
    pub(crate) fn id(&self) -> OwnerId {
        self.id
    }

    /// The program.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Its memory, if it has passed it.
    pub(crate) fn process_memory(&self) -> Option<&Rc<ProcessMemory>> {
        self.process_memory.as_ref()
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

    /// Whether this session may see another program's objects.
    pub(crate) fn may_see(&self, other: &Program) -> bool {
        self.may_see_all() || self.program.uid == other.uid
    }

    /// Whether this session may see everything.
    pub(crate) fn may_see_all(&self) -> bool {
        let own = self.program.uid;
        own == 0 || own == rustix::process::geteuid().as_raw()
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
    }

    /// Begins to free these objects, the last first.
    pub(crate) fn begin_freeing(&mut self, objects: impl IntoIterator<Item = PendingFree>) {
        self.pending_frees.extend(objects);
    }

    /// Whether there is something left to be freed. Nothing else can free it meanwhile: requests
    /// wait until the end.
    pub(crate) fn is_ending(&self) -> bool {
        !self.pending_frees.is_empty()
    }

    /// Frees up to `count` of the objects that are to be freed: in slices, so that the end of many
    /// is not noticed by others.
    pub(crate) fn free_some(&mut self, ctx: &mut DaemonCtx, count: usize) {
        for _ in 0..count {
            let Some(object) = self.pending_frees.pop() else { return };
            object.free(self, ctx);
        }
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
        // The room is free either way; only its pages may stay with us until the session ends.
        let _ = self.arena.free(extent);
    }

    /// Gives back the room of a ring that the program still believes in: when its next request
    /// comes, for by then it has seen the answer to this one.
    pub(crate) fn retire_ring(&mut self, extent: Extent) {
        self.retired.push(extent);
    }

    /// Says that the next request has come.
    pub(crate) fn free_retired_rings(&mut self) {
        while let Some(extent) = self.retired.pop() {
            self.free_ring(extent);
        }
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
