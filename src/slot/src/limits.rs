//! Every bound of a slot, of its sessions and of its link, with its reason. Limits of the protocol
//! itself are the engine's.

use std::time::Duration;

/// Devices of one daemon: as many as anybody has addresses to serve, with 1.5 MiB of buffers each.
pub const MAX_DEVICES: usize = 64;

/// Contexts of one session: a program opens each device once or, through layers that know
/// nothing of each other, a few times.
pub const MAX_CONTEXTS: usize = 256;

/// Protection domains of one session: more than any program has; one for each connection is not
/// even of use.
pub const MAX_PDS: usize = 1 << 16;

/// Completion channels of one session: each is a descriptor of ours, but librdmacm makes one for
/// each connection that is given no CQ, or two, and rsockets for each socket. So this is eight
/// thousand connections, where there are [descriptors](crate::refusal::check_descriptors) for them.
pub const MAX_CHANNELS: usize = 1 << 14;

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

/// Memory registrations of one session: nearly as many as the device has, and some are left for
/// the others.
pub const MAX_MRS: usize = 1_000_000;

/// Registrations of one session that are mapped into the daemon.
pub const MAX_MAPPED_MRS: usize = 4096;

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

/// For how long a turn of the event loop has messages of the broker, control requests of all
/// sessions and what is to be freed: a few times what a request usually takes. If that is not
/// enough, there is as long a rest from it.
pub(crate) const CONTROL_TIME: Duration = Duration::from_micros(50);

/// The longest such rest: a single request that takes its time, as a large registration may, keeps
/// the next only a little longer waiting.
pub(crate) const MAX_REST: Duration = Duration::from_millis(2);

/// How many times as long the rest is where a program sends requests and waits for no answer: our
/// libraries never do.
pub(crate) const FLOODED_REST: u32 = 4;

/// A turn that takes so long is asked for its reason: it is some times what all that is done in one
/// usually takes.
pub(crate) const LONG_TURN: Duration = Duration::from_millis(1);

/// Doorbells of one session that are taken in one turn of the event loop, at about 0.1 us each, or
/// 3 us where there are so many QPs that none is in a cache; the others are in the next turns.
pub(crate) const DOORBELLS_PER_TURN: u32 = 64;

/// A session that has not rung for so long is not looked at until it rings again, which then costs
/// its program a system call more: beside so long a pause that is nothing.
pub(crate) const REST_AFTER: Duration = Duration::from_millis(2);

/// Bytes of freed rings whose pages are given to the system in one turn for one session, at 2 us a
/// page. Its next request waits until all are.
pub(crate) const RECLAIM_PER_TURN: u64 = 256 * 1024;

/// Objects of a dead session that are freed in one turn, so that the death of a large program
/// is not noticed by the others.
pub const FREES_PER_TURN: usize = 64;

/// How long the event loop looks for work after the last piece of it before it sleeps. About what
/// it costs to be put to sleep and woken (50 to 60 us); a shorter pause in a busy exchange would
/// cost more than it saves.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// While there is work, packets are looked for in the sockets themselves, which takes a system call
/// less than to ask first which descriptors are ready; that is asked so often at least.
pub(crate) const ASK_EVERY: Duration = Duration::from_micros(20);

/// A deadline nearer than this is waited for by looking: to set the alarm, to be put to sleep and
/// woken takes about as long on an idle processor.
pub(crate) const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// Longest program name that is kept.
pub const MAX_PROGRAM_NAME: usize = 64;

/// Descriptors reported ready at a time; the others are in the next turn.
pub const EVENTS_PER_TURN: usize = 64;

/// Messages of a link that are taken in one turn, so that a slot that talks a lot keeps neither the
/// others nor packets waiting.
pub const MESSAGES_PER_TURN: usize = 16;

/// Messages that wait for one end of a link to take them. A session has one request under way at
/// most, and two messages tell of its end, so only an end that takes nothing comes here.
pub const MAX_LINK_BACKLOG: usize = 16_384;

/// The same where a program runs the slot: one that is stopped, or reads nothing on purpose, is to
/// cost the broker little.
pub const MAX_HOSTED_BACKLOG: usize = 256;

/// How long one end of a link may take nothing while something waits. A slot's turn takes
/// milliseconds at worst; one that a program has stopped is given up.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptors of a process that programs leave to it, if it may have four times as many: those of
/// the daemon's own user share a process with the broker, which connects all others.
pub const DESCRIPTORS_LEFT: u64 = 128;

/// Captures that a data path takes part in at a time: each looks at every packet.
pub const MAX_TAPS: usize = 8;

/// Bytes that the pipe of a capture holds, if the system allows it: as much as an ordinary user may
/// have.
pub const CAPTURE_PIPE_LEN: usize = 1 << 20;
