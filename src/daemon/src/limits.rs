//! Every bound of the daemon, with its reason. Limits of the protocol itself are the engine's.

use std::time::Duration;

/// Devices of one daemon: as many as anybody has addresses to serve, with 1.5 MiB of buffers each.
pub const MAX_DEVICES: usize = 64;

/// Programs connected at a time, if there are [descriptors](DESCRIPTORS_PER_SESSION) for so many:
/// each costs a few pages.
pub const MAX_SESSIONS: usize = 2048;

/// Descriptors of this process for each session: its socket, the events of its device, and some of
/// its completion channels.
pub const DESCRIPTORS_PER_SESSION: u64 = 4;

/// Descriptors of this process that are not for sessions: sockets of addresses, slots and files.
pub const DESCRIPTORS_OF_DAEMON: u64 = 256;

/// How long a program has, after it has connected, to say who it is. A library does so at once; one
/// that does not takes a session from others.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a program waits for another one of its user to go, if that has as many as it may.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// Programs that wait for that, of one user and of all.
pub(crate) const MAX_WAITING_OF_USER: usize = 16;
pub(crate) const MAX_WAITING: usize = 512;

/// How long it is not said again that a program is refused.
pub(crate) const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// Ids of the connection manager of all programs.
pub const MAX_CM_IDS_OF_ALL: usize = 1 << 17;

/// Contexts of one session: a program opens each device once or, through layers that know
/// nothing of each other, a few times.
pub const MAX_CONTEXTS: usize = 256;

/// Protection domains of one session: more than any program has; one for each connection is not
/// even of use.
pub const MAX_PDS: usize = 1 << 16;

/// Completion channels of one session: each is a descriptor of ours.
pub const MAX_CHANNELS: usize = 256;

/// CQs of one session. One for each of its QPs is as much as makes sense.
pub const MAX_CQS: usize = MAX_QPS;

/// QPs of one session: as many as it has doorbells.
pub const MAX_QPS: usize = urxe_shm::ring::doorbell::SLOTS as usize;

/// SRQs of one session.
pub const MAX_SRQS: usize = 16_384;

/// Address handles of one session, as many as rxe has in all.
pub const MAX_AHS: usize = 32_767;

/// Memory windows of one session, by the same reasoning.
pub const MAX_MWS: usize = MAX_MRS;

/// Attachments of one session's QPs to multicast groups: as many as rxe has groups.
pub const MAX_MCAST_ATTACHMENTS: usize = 8192;

/// Multicast groups that one session's QPs are attached to: each is a descriptor of ours.
pub const MAX_MCAST_GROUPS: usize = 256;

/// Event channels of the connection manager of one session: each is a descriptor of ours, but
/// librdmacm makes one for each id that is given none, and rsockets for each socket. So this is
/// ten thousand connections, and some.
pub const MAX_CM_CHANNELS: usize = 1 << 14;

/// Ids of the connection manager of one session, at a few hundred bytes each: both ends of ten
/// thousand connections and more, but half of the ports and half of the listeners at most, so that
/// no program has them all.
pub const MAX_CM_IDS: usize = 1 << 15;

/// Memberships of one session's ids in multicast groups: more than groups that its QPs can be
/// attached to are of no use.
pub const MAX_CM_MEMBERSHIPS: usize = MAX_MCAST_GROUPS;

/// Requests of peers that wait at a listener for its program to take them, as in the kernel
/// (`rdma_ucm.max_backlog`).
pub const MAX_CM_BACKLOG: u32 = 1024;

/// Events of one id that wait before requests are refused that would cause more. In its life it
/// has no more than half a dozen, unless a program tries again and again what fails.
pub const MAX_CM_WAITING_EVENTS: u32 = 64;

/// Memory registrations of one session: nearly as many as the device has, and some are left for
/// the others.
pub const MAX_MRS: usize = 1_000_000;

/// Registrations of one session that are mapped into the daemon.
pub const MAX_MAPPED_MRS: usize = 4096;

/// Registrations of all sessions of a process that are mapped there, an equal part of them in each
/// slot of the daemon's own user, and all in a worker: a process can have 65,530 mappings
/// (`vm.max_map_count`), and without any left it cannot even allocate.
pub const MAX_MAPPED_MRS_OF_ALL: usize = 32_768;

/// Registrations that are mapped into the daemon in a slot of another user that is a thread,
/// because no process of its own could be had: 62 of these have a quarter of the mappings.
pub const MAX_MAPPED_MRS_OF_GUEST: usize = 256;

/// Bytes mapped for one session: address space only, of which we have 128 TiB.
pub const MAX_MAPPED_BYTES: u64 = 1 << 40;

/// Bytes of rings of one session. These are addresses; memory is taken page by page when the
/// program posts, or the daemon completes, so that a program pays for what it uses. A CQ of four
/// million completions takes 256 MiB, a QP with as many and as long work requests as can be had
/// 2 GiB, and 100,000 QPs with the usual 128 work requests on either side 9 GiB. All sessions
/// together need no more than a quarter of a process's addresses.
pub const MAX_RING_BYTES: u64 = 1 << 35;

/// Largest memory registration, in bytes: the whole of a program's address space.
pub const MAX_MR_SIZE: u64 = 1 << 47;

/// Work requests that an SQ or an RQ holds: rxe's, less the slot that a ring leaves free, so that
/// rounding up to a power of two stays within it.
pub const MAX_QP_WR: u32 = (1 << 20) - 1;

/// Work requests that an SRQ holds: rxe's, less the free slot.
pub const MAX_SRQ_WR: u32 = (1 << 20) - 1;

/// SGEs that a work request has, as with rxe.
pub const MAX_SGE: u32 = 32;

/// Inline bytes that a send has: what the room for 32 SGEs holds.
pub const MAX_INLINE_DATA: u32 = MAX_SGE * 16;

/// Completions that a CQ holds. Libraries ask for two million, and rxe has 32,767.
pub const MAX_CQE: u32 = (1 << 22) - 1;

/// Control requests answered in one turn of the event loop for one session, so that a program
/// which creates a thousand QPs does not keep packets waiting.
pub(crate) const REQUESTS_PER_TURN: usize = 2;

/// Doorbells of one session that are taken in one turn of the event loop, at about 0.1 us each;
/// the others are in the next turns.
pub(crate) const DOORBELLS_PER_TURN: u32 = 256;

/// A session that has not rung for so long is not looked at until it rings again, which then costs
/// its program a system call more: beside so long a pause that is nothing.
pub(crate) const REST_AFTER: Duration = Duration::from_millis(2);

/// Bytes of freed rings whose pages are given to the system in one turn for one session, at 2 us a
/// page. Its next request waits until all are.
pub(crate) const RECLAIM_PER_TURN: u64 = 256 * 1024;

/// Connections accepted in one turn.
pub(crate) const ACCEPTS_PER_TURN: usize = 4;

/// Objects of a dead session that are freed in one turn, so that the death of a large program
/// is not noticed by the others.
pub(crate) const FREES_PER_TURN: usize = 64;

/// How long the event loop looks for work after the last piece of it before it sleeps. About what
/// it costs to be put to sleep and woken (50 to 60 us); a shorter pause in a busy exchange would
/// cost more than it saves.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// A deadline nearer than this is waited for by looking: to set the alarm, to be put to sleep and
/// woken takes about as long on an idle processor.
pub(crate) const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// Longest program name that is kept.
pub(crate) const MAX_PROGRAM_NAME: usize = 64;

/// Descriptors reported ready at a time; the others are in the next turn.
pub(crate) const EVENTS_PER_TURN: usize = 64;

/// How long no program is accepted after the system had no room for one.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Messages of a link that are taken in one turn, so that a slot that talks a lot keeps neither the
/// others nor packets waiting.
pub(crate) const MESSAGES_PER_TURN: usize = 16;

/// Messages that wait for one end of a link to take them. A session has one request under way at
/// most, and two messages tell of its end, so only an end that takes nothing comes here.
pub(crate) const MAX_LINK_BACKLOG: usize = 16_384;

/// How long one end of a link may take nothing while something waits. A slot's turn takes
/// milliseconds at worst; one that a program has stopped is given up.
pub(crate) const LINK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a slot is not started again that could not be had, and none for a user whose worker
/// ended so soon after its start.
pub(crate) const START_PAUSE: Duration = Duration::from_secs(1);

/// How long a worker stays when its user has no program left, for the next one to find it running.
pub(crate) const WORKER_LINGER: Duration = Duration::from_secs(5);

/// How long a worker that was let go may take to end by itself. What it has to do is to write what
/// it has captured.
pub(crate) const WORKER_END: Duration = Duration::from_secs(1);

/// For how long the slot of a worker that is gone is not another's if there is one that has been
/// free for longer: peers may still send what is for its QPs.
pub(crate) const SLOT_REST: Duration = Duration::from_secs(60);

/// How long a slot is waited for that is asked what it has. Then the answer goes without.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
