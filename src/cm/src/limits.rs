//! Every bound of the connection manager, with its reason.

use urxe_types::{Rate, TimeCode};

/// Listeners of one connection manager.
pub const MAX_LISTENERS: usize = 1 << 16;

/// Connections of one connection manager that programs have, requests included.
pub const MAX_CONNECTIONS: usize = 1 << 20;

/// Pending requests of one connection manager, besides one that each listener may always have. Each
/// costs about a kilobyte, and anybody can send them.
pub const MAX_REQUESTS: usize = 4096;

/// Requests of one connection manager that wait for the next listener of a port. More are refused
/// at once. Each costs 400 bytes, and anybody can send them.
pub const MAX_HELD: usize = 256;

/// Connections of one connection manager that no program has any more, kept for messages that may
/// still arrive. Beyond that the oldest are forgotten early: they must not keep new ones out.
pub const MAX_LINGERING: usize = 1 << 14;

/// Messages of a connection manager that may wait to be fetched. More are dropped, which retries
/// make up for.
pub const MAX_OUTGOING: usize = 1024;

/// Refusals, and answers about connections that are not known, to one address: a host that forgets
/// a thousand connections at a time is told of each, and of more it is told when it asks again.
pub const REFUSALS_EACH: Rate = Rate { per_second: 256, at_once: 1024 };

/// The same to all addresses together: 660 kB/s, which is no flood for anybody.
pub const REFUSALS_IN_ALL: Rate = Rate { per_second: 2048, at_once: 4096 };

/// Repeats of an answer to one address that has not shown yet that it gets our messages: as many
/// as one host needs that begins a thousand connections at a time over a network that loses all.
pub const REPEATS_EACH: Rate = Rate { per_second: 1024, at_once: 1024 };

/// The same to all addresses together.
pub const REPEATS_IN_ALL: Rate = Rate { per_second: 4096, at_once: 8192 };

/// The longest that the service timeout of a peer's MRA, or its local ACK timeout, makes us wait:
/// 69 s, the kernel's own service timeout.
pub const MAX_PEER_TIME: TimeCode = TimeCode::new(24);
