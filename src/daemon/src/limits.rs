//! Every bound of the broker, with its reason. Those of a slot and its sessions are
//! [its own](urxe_slot::limits), those of the protocol the engine's.

use std::time::Duration;

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

/// Ids of the connection manager of all programs.
pub const MAX_CM_IDS_OF_ALL: usize = 1 << 17;

/// Event channels of the connection manager of one session: each is a descriptor of ours, but
/// librdmacm makes one for each id that is given none, and rsockets for each socket. So this is
/// ten thousand connections, and some.
pub const MAX_CM_CHANNELS: usize = 1 << 14;

/// Ids of the connection manager of one session, at a few hundred bytes each: both ends of ten
/// thousand connections and more, but half of the ports and half of the listeners at most, so that
/// no program has them all. What a user has of them in several sessions has bounds of its own.
pub const MAX_CM_IDS: usize = 1 << 15;

/// Memberships of one session's ids in multicast groups: more than groups that its QPs can be
/// attached to are of no use.
pub const MAX_CM_MEMBERSHIPS: usize = urxe_slot::limits::MAX_MCAST_GROUPS;

/// Requests of peers that wait at a listener for its program to take them, as in the kernel
/// (`rdma_ucm.max_backlog`).
pub const MAX_CM_BACKLOG: u32 = 1024;

/// Registrations of all sessions of a process that are mapped there, an equal part of them in each
/// slot of the daemon's own user, and all in a worker: a process can have 65,530 mappings
/// (`vm.max_map_count`), and without any left it cannot even allocate.
pub const MAX_MAPPED_MRS_OF_ALL: usize = 32_768;

/// Registrations that are mapped into the daemon in a slot of another user that is a thread,
/// because no process of its own could be had: 62 of these have a quarter of the mappings.
pub const MAX_MAPPED_MRS_OF_GUEST: usize = 256;

/// How long the broker lets packets gather while it is flooded with such as are of no use, by
/// sources that are not refused: to receive each as it comes takes up to twice the time. Who asks
/// it for a connection meanwhile waits as long.
pub(crate) const FLOOD_PAUSE: Duration = Duration::from_micros(500);

/// Connections accepted in each [`ACCEPT_INTERVAL`]: more than programs can be started in it, and
/// few enough that who connects and goes without end takes less than half of a processor, in the
/// broker and in the slot of its user.
pub(crate) const ACCEPTS_PER_INTERVAL: u32 = 4;

/// The shortest pause that the broker can wait for.
pub(crate) const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);

/// How long no program is accepted after the system had no room for one.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a slot is not started again that could not be had, and none for a user whose worker
/// ended so soon after its start.
pub(crate) const START_PAUSE: Duration = Duration::from_secs(1);

/// How long a worker stays when its user has no program left, for the next one to find it running.
pub(crate) const WORKER_LINGER: Duration = Duration::from_secs(5);

/// How long a worker that was let go may take to end by itself. What it has to do is to write what
/// it has captured.
pub(crate) const WORKER_END: Duration = Duration::from_secs(1);

/// Workers of one user that were ended and have not gone, with which it has no further one. The
/// kernel lets no process go that waits for a file system of the user's own making, as long as that
/// user likes.
pub(crate) const MAX_WORKERS_LEFT: usize = 2;

/// For how long the slot of a worker that is gone is not another's if there is one that has been
/// free for longer: peers may still send what is for its QPs.
pub(crate) const SLOT_REST: Duration = Duration::from_secs(60);

/// Slots that programs of the daemon's own user run themselves: half of all, so that there are some
/// for other users.
pub const MAX_HOSTED_SLOTS: usize = 32;

/// How long a slot is waited for that is asked what it has. Then the answer goes without.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// QPs of one user whose histories are kept after their slots have ended, and how many bytes they
/// may take, which are enough for so many usual ones.
pub const MAX_KEPT_HISTORIES: usize = 256;
pub(crate) const MAX_KEPT_BYTES: usize = 512 * 1024;

/// Users of whom there are such.
pub(crate) const MAX_KEPT_USERS: usize = 64;

/// Captures at a time of one user.
pub const MAX_CAPTURES_OF_USER: usize = 2;

/// Captures at a time of all who see everybody's packets. The rest that a slot can take part in is
/// for the user that it serves.
pub const MAX_CAPTURES_OF_ALL_PACKETS: usize = urxe_slot::limits::MAX_TAPS / 2;

/// How long an address that could not be served waits to be tried again, unless the links change
/// before: whoever has its port does not say when that is free.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(3);
